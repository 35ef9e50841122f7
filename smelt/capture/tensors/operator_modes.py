"""Modes that intercept each operator of the thread: `TorchFunctionMode`, `TorchDispatchMode`, and the default device.

A mode would observe that the operators of a graph differ from the program's. Therefore frames are not compiled while
such a mode is entered, and a graph ends where the program enters one. The default device, which torch implements as
such a mode, is an exception: its effect is known, and nodes that make tensors name their device.
"""

from __future__ import annotations

import torch
import torch.utils._device
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.base import torch_c
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break, user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special


def entered() -> bool:
    """Whether this thread is in an operator mode other than the default device; the modes' methods are then excluded
    from compilation.
    """
    count = torch_c.dispatch_modes()
    modes = [torch_c.dispatch_mode_at(at) for at in range(count)]
    modes += [mode for mode in function_modes() if type(mode) is not DeviceContext]
    for mode in modes:
        for name in ("__torch_function__", "__torch_dispatch__"):
            code = getattr(getattr(type(mode), name, None), "__code__", None)
            if code is not None:
                native.quiet(code)
    return bool(modes)


def function_modes() -> list[object]:
    """The `TorchFunctionMode`s of this thread, the outermost first."""
    return [torch_c.torch_function_mode_at(at) for at in range(torch_c.torch_function_modes())]


def only_devices() -> bool:
    """Whether all `TorchFunctionMode`s of this thread are default devices, which a guard on the number of modes does
    not show.
    """
    return all(type(mode) is DeviceContext for mode in function_modes())


@special(
    *(vars(kind)[name] for kind in (TorchFunctionMode, TorchDispatchMode) for name in ("__enter__", "__exit__")),
    *torch_c.MODE_SWITCHES,
)
def switch_mode(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """End the graph where an operator mode begins or ends.

    Raises:
        Break: always.
    """
    name = type(args[0]).__name__ if args else "mode"
    raise Break(f"a {name} begins or ends", "it sees the operators of the program, not those of a graph")


# -- the default device --------------------------------------------------------------------------------------------


class DefaultDevices:
    """The default device that the thread had when the object was made, which can be restored."""

    def __init__(self) -> None:
        self._modes = function_modes()
        self._context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        self._current = torch.utils._device.CURRENT_DEVICE

    def differ(self) -> bool:
        """Whether the default device differs now, or will differ when an open `with` statement ends."""
        return function_modes() != self._modes

    def restore(self) -> None:
        """Restore the default device."""
        for _ in range(torch_c.torch_function_modes()):
            torch_c.pop_torch_function_mode()
        for mode in self._modes:
            torch_c.push_torch_function_mode(mode)
        torch._GLOBAL_DEVICE_CONTEXT.device_context = self._context
        torch.utils._device.CURRENT_DEVICE = self._current


@special(vars(torch.device)["__enter__"])
def enter_device(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of entering `with torch.device(...)`: tensors are then made on that device."""
    vm.ambient.switch_device(torch.device.__enter__, args)
    return args[0]


@special(vars(torch.device)["__exit__"])
def leave_device(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of leaving `with torch.device(...)`."""
    exit_args = (args[0], None, None, None)  # torch ignores the exception's arguments
    vm.ambient.switch_device(torch.device.__exit__, exit_args)


@special(torch.set_default_device)
def set_default_device(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `torch.set_default_device(device)`."""
    (device,) = (*args, *kwargs.values())
    user(torch.device, device) if device is not None else None
    vm.ambient.switch_device(torch.set_default_device, (device,))


@special(torch.get_default_device)
def get_default_device(vm: Interpreter, args: Args, kwargs: Kwargs) -> torch.device:
    """Captured form of `torch.get_default_device()`: the default device at the start of the frame is guarded."""
    return torch.get_default_device()

"""All names of `torch._C` that smelt needs and that have no public counterpart, each under one documented name."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, TypeVar

import torch

from smelt.base import _native
from smelt.base.class_tables import classes

T = TypeVar("T")


def implementation_address(tensor: torch.Tensor) -> int:
    """Address of the tensor's TensorImpl."""
    return tensor._cdata


def dispatch_key_word(tensor: torch.Tensor) -> int:
    """The tensor's dispatch key set as its raw 64-bit representation."""
    return torch._C._dispatch_keys(tensor).raw_repr()


empty_strided = torch._C._VariableFunctions.empty_strided
"""`torch.empty_strided` without the Python frame around it."""

current_raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""Function from the index of a CUDA device to the address of its current stream; None in a PyTorch without CUDA."""

swap_implementations: Callable[[torch.Tensor, torch.Tensor], None] = torch._C._swap_tensor_impl
"""Swap the TensorImpls of two tensor objects; views keep the base that they had."""

set_conjugate: Callable[[torch.Tensor, bool], None] = torch._C._set_conj
"""Set whether a tensor's values are the conjugates of the values in its memory."""

set_negative: Callable[[torch.Tensor, bool], None] = torch._C._set_neg
"""Set whether a tensor's values are the negatives of the values in its memory."""

frame_callback: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
"""The callback of torch.compile for the frames that this thread starts; None outside of functions that it compiles."""

set_frame_callback: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame
"""Set the callback of torch.compile for this thread, and return the previous one."""


next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The sequence number of the next autograd node that an operation of this thread creates."""

node_being_run: Callable[[], Any] = torch._C._current_autograd_node
"""The node whose backward the autograd engine runs in this thread; None outside of it."""


def hide_from_torch_compile(code: CodeType) -> None:
    """Have torch.compile run frames of this code uncompiled; it still compiles the functions that they call."""
    evaluator = torch._C._dynamo.eval_frame
    action = evaluator._FrameAction
    evaluator.set_code_exec_strategy(code, evaluator._FrameExecStrategy(action.SKIP, action.DEFAULT))


disabled_torch_function = torch._C._disabled_torch_function_impl
"""Assigned to a tensor subclass's `__torch_function__`: torch functions run without looking for overrides."""


def is_composite(op: torch._ops.OpOverload) -> bool:
    """True when the operator has a CompositeImplicitAutograd kernel: autograd differentiates the operators it calls.

    The result is False for operators with only a Python decomposition of PyTorch, since some of these give other values
    than the kernels, and for `native_channel_shuffle`: its composite kernel returns a view, its CPU kernel new memory.
    """
    recipe = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    return recipe and op.name() != "aten::native_channel_shuffle"


def is_derived_inside(op: torch._ops.OpOverload) -> bool:
    """True when an operator has no autograd kernel: only the operators that its kernel calls can be differentiated."""
    keys = torch._C.DispatchKey
    known = (keys.Autograd, keys.AutogradCPU, keys.AutogradCUDA, keys.CompositeImplicitAutograd)
    return not any(map(op.has_kernel_for_dispatch_key, known))


def run_recipe(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """Run the CompositeImplicitAutograd kernel of an operator, as eager does, and return its result."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def counts_inside(op: torch._ops.OpOverload) -> bool:
    """True when only the operators that an operator calls increment the version counters of the tensors it writes.

    This holds for operators on lists and for operators of libraries. The kernel of batch norm writes the memory itself
    and increments no counter.
    """
    if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.ADInplaceOrView):
        return False
    composite = op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd)
    return composite or not op.has_kernel_for_dispatch_key(torch._C.DispatchKey.Autograd)


def runs_on_cpu(op: torch._ops.OpOverload) -> bool:
    """True when the operator has a kernel for tensors of the CPU."""
    keys = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CompositeExplicitAutograd)
    return any(op.has_kernel_for_dispatch_key(key) for key in keys)


operator_names: Callable[[], list[str]] = torch._C._dispatch_get_all_op_names
"""The names of all registered operators, `aten::add.Tensor`."""

FunctionSchema = torch._C.FunctionSchema
"""The schema of an operator: its arguments and results."""

Argument = torch._C.Argument
"""One parameter or result of an operator schema."""

below_autograd = torch._C._AutoDispatchBelowAutograd
"""Context manager: operators bypass the autograd engine (no history, no version counts)."""

disable_autocast = torch._C._DisableAutocast
"""Context manager: operators are not cast, whatever autocast region is active."""

engine_in_this_thread = functools.partial(torch.autograd.set_multithreading_enabled, False)
"""Context manager: the autograd engine computes derivatives in the calling thread, also those of CUDA tensors."""


Hooks = tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]


def saved_tensor_hooks() -> Hooks | None:
    """The innermost pair of `torch.autograd.graph.saved_tensors_hooks` that is active; None without one."""
    found: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return found


leave_saved_tensor_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
"""Pop the innermost pair of saved-tensor hooks."""

disable_saved_tensor_hooks = torch._C._autograd._saved_tensors_hooks_disable
"""Make `saved_tensors_hooks` raise an error with the given message, until `enable_saved_tensor_hooks` is called."""

enable_saved_tensor_hooks = torch._C._autograd._saved_tensors_hooks_enable
"""Undo `disable_saved_tensor_hooks`."""

saved_tensor_hooks_disabled = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
"""The error message that was passed to `disable_saved_tensor_hooks`; None if hooks are enabled."""

without_torch_function = torch._C.DisableTorchFunctionSubclass
"""Context in which attributes and methods of tensor subclasses are read without their `__torch_function__`."""

without_any_torch_function = torch._C.DisableTorchFunction
"""Context in which no `__torch_function__` is called, neither of tensor subclasses nor of modes."""

default_torch_function: Any = vars(torch.Tensor)["__torch_function__"].__func__
"""The `__torch_function__` that tensor subclasses inherit: runs the function, and gives its results the class."""

tensor_maker: Any = vars(torch._C.TensorBase)["__new__"]
"""`torch.Tensor.__new__`"""

TENSOR_BASE: type = torch._C.TensorBase
"""The class, written in C, of which `torch.Tensor` is a subclass."""

set_grad_enabled = torch._C._set_grad_enabled
"""The function by which `torch.no_grad` and similar contexts switch gradient recording."""


def recording(enabled: bool, fn: Callable[..., T], *args: Any) -> T:
    """`fn(*args)` with gradients recorded or not. Unlike `torch.no_grad`, it restores the mode after any interrupt."""
    return _native.switched(torch.is_grad_enabled, set_grad_enabled, enabled, fn, *args)


get_tracing_state = torch._C._get_tracing_state
"""The state of the running `torch.jit.trace`; None outside of a trace."""

log_api_usage_once = torch._C._log_api_usage_once
"""The function for usage statistics that `nn.Module.__init__` calls."""

functorch_transforms_active = torch._C._are_functorch_transforms_active
"""Whether `torch.func` transforms run in this thread."""


def is_batched_before_transforms(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a batched tensor of the older `vmap` (of `torch.autograd.grad(is_grads_batched=True)`)."""
    return "Batched" in str(torch._C._dispatch_keys(tensor)).replace("FuncTorchBatched", "")


def _nesting_of(enter: Callable[[], int], leave: Callable[[], int]) -> int:
    """The nesting depth, which only `leave` returns. C code calls both functions, so no interrupt comes in between."""
    return tuple(map(operator.call, (enter, leave)))[1]


def batch_level() -> int:
    """The number of nested calls of the older `vmap` that run in this thread."""
    return _nesting_of(torch._C._vmapmode_increment_nesting, torch._C._vmapmode_decrement_nesting)


def in_batches() -> bool:
    """Whether tensors of this thread may be batched tensors of the current or the older `vmap`."""
    return functorch_transforms_active() or batch_level() > 0


forward_ad_level = functools.partial(getattr, torch.autograd.forward_ad, "_current_level")
"""The current level of `torch.autograd.forward_ad`, -1 outside of it. The engine does not expose its own number."""


def derivatives_outside() -> bool:
    """Whether the caller runs `torch.func` transforms or forward-mode derivatives, which compiled code does not
    support.
    """
    return functorch_transforms_active() or forward_ad_level() >= 0


deterministic_algorithms = torch._C._get_deterministic_algorithms
"""Whether deterministic algorithms are on; a builtin, unlike `torch.are_deterministic_algorithms_enabled`."""

fills_new_memory = torch._C._get_deterministic_fill_uninitialized_memory
"""`torch.utils.deterministic.fill_uninitialized_memory`: whether deterministic algorithms fill new memory."""

warns_always = torch._C._get_warnAlways
"""`torch.set_warn_always`: whether torch repeats the warnings that it otherwise gives once per process."""

torch_function_modes = torch._C._len_torch_function_stack
"""The number of `TorchFunctionMode`s entered in this thread."""

torch_function_enabled = torch._C._is_torch_function_enabled
"""Whether torch functions call `__torch_function__` of tensor subclasses in this thread."""

dispatch_modes = torch._C._len_torch_dispatch_stack
"""The number of `TorchDispatchMode`s entered in this thread."""

dispatch_mode_at = torch._C._get_dispatch_stack_at
"""The `TorchDispatchMode` of this thread at an index; 0 is the outermost."""

torch_function_mode_at = torch._C._get_function_stack_at
"""The `TorchFunctionMode` of this thread at an index; 0 is the outermost."""

push_torch_function_mode = torch._C._push_on_torch_function_stack
"""Enter a `TorchFunctionMode`."""

pop_torch_function_mode = torch._C._pop_torch_function_stack
"""Leave the innermost `TorchFunctionMode` and return it."""

MODE_SWITCHES = (
    push_torch_function_mode, pop_torch_function_mode, torch._C._push_on_torch_dispatch_stack,
    torch._C._pop_torch_dispatch_stack, torch._C._set_dispatch_mode, torch._C._unset_dispatch_mode,
)  # fmt: skip
"""C functions that enter and leave modes which see the operators of this thread."""

transform_on_top = torch._C._functorch.peek_interpreter_stack
"""The innermost `torch.func` transform that runs in this thread, or None."""


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Context in which the `torch.func` transforms of this thread are off; they are pushed back at its end."""
    layers = []
    try:
        while transform_on_top() is not None:
            layers.append(torch._C._functorch.pop_dynamic_layer_stack())
        yield
    finally:
        while layers:
            torch._C._functorch.push_dynamic_layer_stack(layers.pop())


inference_mode = torch._C._InferenceMode
"""`torch.inference_mode` without Python frames, which would keep it alive in the traceback of an interrupt."""

State = tuple[str, Callable[[], Any], Callable[[Any], object]]
"""A name, a function that reads one state of the thread or process, and a function that restores an earlier value."""


def _stack(name: str, size: Any, at: Any, push: Any, pop: Any) -> State:
    def read() -> tuple[Any, ...]:
        return tuple([at(i) for i in range(size())])

    def write(before: tuple[Any, ...]) -> None:
        while (now := read()) and (len(now) > len(before) or any(map(operator.is_not, now, before))):
            pop()
        for mode in before[size() :]:
            push(mode)

    return name, read, write


def _nesting(name: str, enter: Callable[[], int], leave: Callable[[], int]) -> State:
    def write(before: int) -> None:
        while (now := _nesting_of(enter, leave)) != before:
            (leave if now > before else enter)()

    return name, functools.partial(_nesting_of, enter, leave), write


def saved_tensor_hooks_state() -> tuple[Any, ...]:
    """The innermost saved-tensor hooks, if any, then the message with which hooks are disabled (None: enabled)."""
    return (*(torch._C._autograd._top_saved_tensors_default_hooks(True) or ()), saved_tensor_hooks_disabled())


def set_saved_tensor_hooks(before: tuple[Any, ...]) -> None:
    """Restore what `saved_tensor_hooks_state` returned: pop the hooks pushed since, enable or disable hooks."""
    *hooks, message = before
    while (now := torch._C._autograd._top_saved_tensors_default_hooks(True)) and [*now] != hooks:
        leave_saved_tensor_hooks()
    if message is None:
        enable_saved_tensor_hooks()
    else:
        disable_saved_tensor_hooks(message)


_entered: list[Any] = []


def _write_inference_mode(before: bool) -> None:
    """Set inference mode by a guard object, the only interface. It stays alive, since its end would undo the write."""
    guard = inference_mode(before)
    guard.__enter__()
    _entered.append(guard)


def _write_anomaly_mode(before: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*before)


def _write_transforms(before: int) -> None:
    while torch._C._functorch.get_dynamic_layer_stack_depth() > before:
        torch._C._functorch.pop_dynamic_layer_stack()


def _write_forward_levels(before: int) -> None:
    """Leave levels in the engine and in Python. After an error between the two the engine may have left one already."""
    while (level := forward_ad_level()) > before:
        with contextlib.suppress(RuntimeError):
            torch._C._exit_dual_level(level=level)
        torch.autograd.forward_ad._current_level = level - 1


def leave_forward_level() -> None:
    """Leave the level of the engine if Python's count says that no level is entered, as after an error in between."""
    if forward_ad_level() < 0:
        with contextlib.suppress(RuntimeError):  # the engine has no level to leave
            torch._C._exit_dual_level(level=0)


def _write_jvp_nesting(before: int) -> None:
    torch.func.jvp.__globals__["JVP_NESTING"] = before


def _read_torch_functions() -> tuple[bool, bool]:
    """Read two flags with functions that allocate no object: pybind11 crashes when such an allocation fails."""
    disabled: bool = torch._C._is_torch_function_all_disabled()
    return torch._C._is_torch_function_enabled(), disabled


_FUNCTION_STATE: Any = torch._C._TorchFunctionState  # type: ignore[attr-defined]
_FUNCTION_STATES = {
    (True, False): _FUNCTION_STATE.ENABLED,
    (False, False): _FUNCTION_STATE.SUBCLASSES_DISABLED,
    (False, True): _FUNCTION_STATE.ALL_DISABLED,
}


def _write_torch_functions(state: tuple[bool, bool]) -> None:
    torch._C._set_torch_function_state(_FUNCTION_STATES[state])  # type: ignore[attr-defined]


def set_torch_functions(enabled: bool, disabled: bool) -> None:
    """Set whether torch functions call `__torch_function__` of subclasses, and whether they ignore modes as well."""
    _write_torch_functions((enabled, disabled))


torch_function_state = _read_torch_functions
"""(whether torch functions call `__torch_function__` of subclasses, whether they ignore modes as well)"""


@contextmanager
def with_torch_function() -> Iterator[None]:
    """Context in which torch functions call `__torch_function__` of subclasses."""
    before = _read_torch_functions()
    _write_torch_functions((True, False))
    try:
        yield
    finally:
        _write_torch_functions(before)


MODE_STATE: tuple[State, ...] = (
    ("torch functions", _read_torch_functions, _write_torch_functions),
    _stack("torch function modes", torch_function_modes, torch_function_mode_at, push_torch_function_mode,
           pop_torch_function_mode),
    _stack("torch dispatch modes", dispatch_modes, dispatch_mode_at, torch._C._push_on_torch_dispatch_stack,
           functools.partial(torch._C._pop_torch_dispatch_stack, None)),
)  # fmt: skip
"""Modes that see the operators of this thread."""

_AUTOCAST_DEPTH = _nesting("autocast", torch.autocast_increment_nesting, torch.autocast_decrement_nesting)

AUTOGRAD_STATE: tuple[State, ...] = (
    ("transforms", torch._C._functorch.get_dynamic_layer_stack_depth, _write_transforms),
    _nesting("vmap", torch._C._vmapmode_increment_nesting, torch._C._vmapmode_decrement_nesting),
    ("forward levels", forward_ad_level, _write_forward_levels),
    ("jvp nesting", lambda: torch.func.jvp.__globals__.get("JVP_NESTING", 0), _write_jvp_nesting),
    ("inference mode", torch.is_inference_mode_enabled, _write_inference_mode),
    ("gradients", torch.is_grad_enabled, set_grad_enabled),
    ("forward gradients", torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled),
    ("engine threads", torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
    ("saved tensor hooks", saved_tensor_hooks_state, set_saved_tensor_hooks),
    ("anomaly mode", lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), _write_anomaly_mode),
    _AUTOCAST_DEPTH,
    ("autocast cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
)
"""State of `torch.autograd` and autocast for this thread, or for the process if its name is in SHARED_STATE."""


def autocast_state(device_type: str) -> tuple[Any, ...]:
    """The autocast state of this thread for a device type, and the type: (type, enabled, dtype, cached, depth)."""
    of_device = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    return device_type, *of_device, torch.is_autocast_cache_enabled(), _AUTOCAST_DEPTH[1]()


def set_autocast_state(state: tuple[Any, ...]) -> None:
    """Restore what `autocast_state` returned."""
    device_type, enabled, dtype, cached, depth = state
    torch.set_autocast_enabled(device_type, enabled)
    torch.set_autocast_dtype(device_type, dtype)
    torch.set_autocast_cache_enabled(cached)
    _AUTOCAST_DEPTH[2](depth)
    if not depth:
        torch.clear_autocast_cache()


SHARED_STATE = ("jvp nesting", "anomaly mode")
"""The names in AUTOGRAD_STATE whose state belongs to the process, not to the thread."""


_SETTING_WORDS = (
    "cudnn", "mkldnn", "cublas", "deterministic", "sdp", "nnpack", "float32", "tf32", "fp32", "onednn", "xnnpack",
    "blas", "linalg", "miopen", "warn", "math", "flash", "mem_efficient",
)  # fmt: skip

SETTINGS = tuple(
    getattr(torch._C, name)
    for name in dir(torch._C)
    if name.startswith("_get_") and any(word in name for word in _SETTING_WORDS) and "_getter" not in name
) + (
    torch.get_num_threads,
    torch.get_num_interop_threads,
    torch.is_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled,
    torch.is_autocast_cache_enabled,
)
"""C functions that read settings of the process."""


_ATTENTION_KINDS = ("flash", "mem_efficient", "math", "cudnn", "overrideable")

ATTENTION_SETTERS = tuple(getattr(torch._C, f"_set_sdp_use_{kind}") for kind in _ATTENTION_KINDS)
"""C functions that each allow or forbid one kernel of scaled_dot_product_attention in the whole process."""

_attention_getters = tuple(getattr(torch._C, f"_get_{kind}_sdp_enabled") for kind in _ATTENTION_KINDS)


def attention_kernels() -> tuple[bool, ...]:
    """Whether each kernel of ATTENTION_SETTERS is allowed."""
    return tuple(get() for get in _attention_getters)


def set_attention_kernels(allowed: tuple[bool, ...]) -> None:
    """Restore what `attention_kernels` returned."""
    for switch, each in zip(ATTENTION_SETTERS, allowed, strict=True):
        switch(each)


_GUARD_NAMES = """
ExcludeDispatchKeyGuard _AutoDispatchBelowADInplaceOrView _AutoDispatchBelowAutograd _DisablePythonDispatcher
_DisableTorchDispatch _EnablePreDispatch _EnablePythonDispatcher _ExcludeDispatchKeyGuard _ForceDispatchKeyGuard
_IncludeDispatchKeyGuard _PreserveDispatchKeyGuard _RestorePythonTLSSnapshot _SetExcludeDispatchKeyGuard
""".split()
DISPATCH_GUARDS = classes(*(getattr(torch._C, name) for name in _GUARD_NAMES if hasattr(torch._C, name)))
"""Classes whose instances change which dispatch keys this thread uses, as long as they live."""


def bypasses_torch_dispatch() -> bool:
    """Whether `__torch_dispatch__` is bypassed in this thread, because an instance of DISPATCH_GUARDS is alive."""
    excluded: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
    return excluded


def runs_below_autograd() -> bool:
    """Whether operators of this thread are not differentiated whatever their arguments, as in `__torch_dispatch__`."""
    excluded: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradOther)
    return excluded and not torch.is_inference_mode_enabled()


def local_dispatch_keys() -> tuple[int, int]:
    """The dispatch keys that this thread includes and excludes, as raw 64-bit representations."""
    return torch._C._dispatch_tls_local_include_set().raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()


@contextmanager
def uncounted(tensor: torch.Tensor) -> Iterator[None]:
    """Context after which the tensor's version counter has its former value, even if the tensor was written."""
    before = tensor._version
    yield
    torch._C._autograd._unsafe_set_version_counter((tensor,), (before,))


def share_counter(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share one version counter: a view or `detach()` shares it, `.data` does not.

    The test increments a's counter, reads b's, and restores a's: autograd must not find a saved tensor modified.
    """
    if a.is_inference() or b.is_inference():
        return True
    try:
        before, of_other = a._version, b._version
    except RuntimeError:  # a tensor of inference mode that was assigned other `.data` has no counter
        return True
    torch.autograd.graph.increment_version(a)
    shared = b._version != of_other
    torch._C._autograd._unsafe_set_version_counter((a,), (before,))
    return shared


def is_plain_view(view: torch.Tensor) -> bool:
    """Whether a view was made with gradients on, by an operation that returns only one view."""
    plain: bool = torch._C._autograd._get_creation_meta(view) == torch._C._autograd.CreationMeta.DEFAULT
    return plain


def returns_gradient(node: Any) -> bool:
    """Whether the running backward returns the gradient of this leaf's node (`autograd.grad`), without accumulating."""
    try:
        torch._C._will_engine_execute_node(node)
    except RuntimeError:  # raised for exactly this case
        return True
    return False


clear_product_workspaces: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
"""Forget the scratch memory that cuBLAS keeps for each stream; the next product on a stream allocates it anew."""


def end_recording_pool(index: int, pool: tuple[int, int]) -> None:
    """After a failed recording: stop allocating from its pool on GPU `index`, and release the pool's memory."""
    torch._C._cuda_endAllocateToPool(index, pool)
    torch._C._cuda_releasePool(index, pool)


_UntypedStorage: Any = torch.UntypedStorage


def weak_storage(tensor: torch.Tensor) -> int:
    """A weak reference to the tensor's storage, as an integer; unique until passed to `free_weak_storage`."""
    pointer: int = _UntypedStorage._weak_ref(tensor.untyped_storage())
    return pointer


storage_is_gone: Callable[[int], bool] = _UntypedStorage._expired
"""Whether the storage of a weak reference (`weak_storage`) was freed."""

free_weak_storage: Callable[[int], None] = _UntypedStorage._free_weak_ref
"""Release a weak reference from `weak_storage`."""


refuse_writes: Callable[[torch.Tensor], None] = torch._C._set_throw_on_mutable_data_ptr
"""Make `mutable_data_ptr` of a tensor without memory raise an error, in C++ too, where it would return 0."""


def finished_work() -> Any:
    """The handle of a finished collective, boxed like the handles that operators return."""
    return torch._C._distributed_c10d.FakeWork().boxed()  # the module is not in every build

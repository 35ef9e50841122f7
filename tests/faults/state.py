"""What a fault must leave as it was, read without the compiler's own table of it."""

from __future__ import annotations

import _signal
import contextvars
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import warnings
from typing import Any

import numpy
import torch
from torch.utils import _device, _python_dispatch

from smelt.base import locks, torch_c
from smelt.capture import _native as native
from smelt.graph.nodes import modes
from smelt.graph.trace import trace, unbacked

_getsignal = _signal.getsignal  # without names for numbers, which takes a hundred times as long
_SIGNALS = [number for number in signal.valid_signals() if number != signal.SIGALRM]  # faults come by that one
_interpreter = ctypes.pythonapi.PyInterpreterState_Get
_interpreter.restype = ctypes.c_void_p
_hook = ctypes.pythonapi._PyInterpreterState_GetEvalFrameFunc
_hook.restype, _hook.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


def look(draws: bool = False) -> dict[str, Any]:
    """The state of this thread and process; without the random generators for a program that draws."""
    c: Any = torch._C
    hooks = c._autograd
    found: dict[str, Any] = {
        "function modes": [id(c._get_function_stack_at(i)) for i in range(c._len_torch_function_stack())],
        "dispatch modes": [id(c._get_dispatch_stack_at(i)) for i in range(c._len_torch_dispatch_stack())],
        "python dispatch": _python_dispatch.is_in_torch_dispatch_mode(),
        "torch functions": str(c._get_torch_function_state()),
        "dispatch keys": torch_c.local_dispatch_keys(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), c._is_fwd_grad_enabled()),
        "engine": (c._is_multithreading_enabled(), torch.is_anomaly_enabled()),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast nesting": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
        "vmap": (c._vmapmode_increment_nesting(), c._vmapmode_decrement_nesting()),
        "transforms": c._functorch.get_dynamic_layer_stack_depth(),
        "forward levels": (torch.autograd.forward_ad._current_level, torch.func.jvp.__globals__["JVP_NESTING"]),
        "saved tensor hooks": (hooks._top_saved_tensors_default_hooks(True), hooks._saved_tensors_hooks_is_enabled()),
        "default": (torch.get_default_dtype(), str(torch.get_default_device()), str(_device.CURRENT_DEVICE)),
        "settings": (torch.get_num_threads(), torch.backends.cuda.flash_sdp_enabled()),
        "warnings": (id(warnings.filters), id(warnings.showwarning)),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "collection": gc.isenabled(),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, [*map(id, sys.meta_path)]),
        "signals": [*map(_getsignal, _SIGNALS)],
        "process": (hash(frozenset(_environment())), os.getcwd(), _umask()),
        "context": {each.name: id(value) for each, value in contextvars.copy_context().items() if value is not None},
        "precision": (torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()),
        "frame hook": (_hook(_interpreter()), native.is_active(), native.owner()),
        "locks": locks.held_locks(),
        "own": (len(modes._open.regions), trace.text.refuse, getattr(unbacked._thread, "numbers", None)),
        "handled": sys.exc_info()[0],
    }  # fmt: skip
    if not draws:
        found["random"] = (
            hash(random.getstate()),
            torch.get_rng_state().numpy().tobytes(),
            str(numpy.random.get_state()),
        )
    return found


def _environment() -> list[tuple[str, str]]:
    """Without the name of the test, which pytest keeps there."""
    return [(name, value) for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"]


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    return [f"{name}: {str(old)[:90]} -> {str(after[name])[:90]}" for name, old in before.items() if old != after[name]]


def left_behind() -> list[str]:
    """Signs of a fault that no table lists: tensors that are none, locks that another thread cannot take."""
    found = []
    plain = torch.ones(2) + 1
    if type(plain) is not torch.Tensor or plain.tolist() != [2.0, 2.0]:
        found.append(f"torch.ones(2) + 1 is a {type(plain).__name__}")
    taken: list[bool] = []

    def take() -> None:
        for lock in locks._living(locks._locks):
            taken.append(lock.acquire(timeout=10))
            if taken[-1]:
                lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    if not all(taken):
        found.append(f"{taken.count(False)} locks are held")
    return found

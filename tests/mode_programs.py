"""Random programs under modes: operators' modes, devices, gradients, autocast, dtypes, entered in every way and place.

Each is a function of two tensors as text, which enters modes and computes, and a caller that enters others around calls
and between them. What a caller sees is compared with eager, with what the modes saw:
`python -m tests.mode_programs --programs 2000`.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import torch

from smelt.base.options import Options
from smelt.capture.compiled import compile_callable
from tests.capture.harness import eager_graph
from tests.sweep import sweep

DEFINITIONS = '''
import contextlib, functools
import torch
from torch import nn
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

SEEN = []

class Called(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        SEEN.append(getattr(func, "__name__", str(func)))
        out = func(*args, **(kwargs or {}))
        return out * 2 if func in (torch.sin, torch.Tensor.sin) else out

class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        SEEN.append(str(func))
        out = func(*args, **(kwargs or {}))
        return out + 1 if func is torch.ops.aten.cos.default else out

@contextlib.contextmanager
def doubled(make):
    with make():
        with make():
            yield 2

@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

class Held:
    """A context manager that enters another one."""
    def __init__(self, make): self.make = make
    def __enter__(self):
        self.held = self.make(); self.held.__enter__()
        return self
    def __exit__(self, *error): return self.held.__exit__(*error)

def helper(a, b):
    return torch.sin(a) + b.cos() * torch.ones(2)

def facts():
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(), torch.get_default_device().type)

def steps(make, a):
    with make():
        yield a.sin()
        yield torch.ones(2) + a
'''

MODES = {
    "function mode": "Called", "dispatch mode": "Dispatched", "device": "lambda: torch.device('meta')",
    "cpu": "lambda: torch.device('cpu')", "no_grad": "torch.no_grad", "enable_grad": "torch.enable_grad",
    "inference": "torch.inference_mode", "not inference": "lambda: torch.inference_mode(False)",
    "set_grad": "lambda: torch.set_grad_enabled(False)", "autocast": "lambda: torch.autocast('cpu', torch.bfloat16)",
    "half": "lambda: torch.autocast('cpu', torch.float16)",
    "no autocast": "lambda: torch.autocast('cpu', enabled=False)", "dtype": "lambda: default_dtype(torch.float64)",
    "nothing": "contextlib.nullcontext", "held": "lambda: Held(torch.no_grad)",
    "generated": "lambda: doubled(torch.no_grad)", "held mode": "lambda: Held(Called)",
    "generated cast": "lambda: doubled(lambda: torch.autocast('cpu', torch.bfloat16))",
    "no hooks": "lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)",
    "anomaly": "lambda: torch.autograd.detect_anomaly(check_nan=False)",
}  # fmt: skip
AROUND = [name for name in MODES if name not in ("device", "anomaly")]

TENSORS = [
    "torch.sin({a})", "{a}.cos()", "{a} * {b}", "{a} @ {b}.t()", "F.relu({a})", "torch.ones(2) + {a}", "{a}.sum()",
    "helper({a}, {b})", "torch.mm({a}, {b}.t()) + 1", "{a}.detach()", "{a}.clone()", "torch.zeros_like({a})",
    "torch.tensor([1.0, 2.0]) * {a}", "torch.full((2,), 0.5) - {a}", "F.linear({a}, {b})", "{a}.view(-1)[:2]",
    "torch.arange(2) + {a}", "{a}.softmax(-1)", "torch.add({a}, 1)", "torch.empty(2).fill_(3) * {a}", "{a}.float()",
    "L({a})", "F.mse_loss({a}, {b})", "{a}.new_ones(2) * {b}",
]  # fmt: skip
OTHERS = ["facts()", "{a}.requires_grad", "{a}.dtype", "{a}.is_inference()", "({a} * 2).grad_fn is None", "len(SEEN)"]
WRITES = ["{a}.add_(1)", "{a}.mul_({b})", "OUT.append({a})"]
BREAKS = ["str(type({a}.untyped_storage()))", "breaks()"]


class _Writer:
    """Text of one program."""

    def __init__(self, seed: int) -> None:
        self.choice, self.numbers = random.Random(seed), itertools.count()
        self.functions: list[str] = []

    def mode(self) -> str:
        return MODES[self.choice.choice([*MODES])]

    def new(self, lines: list[str], indent: str, names: list[str], text: str) -> None:
        name = f"v{next(self.numbers)}"
        lines.append(f"{indent}{name} = {text}")
        names.append(name)

    def body(self, lines: list[str], indent: str, names: list[str], depth: int) -> None:
        for _ in range(self.choice.randint(1, 3)):
            self.statement(lines, indent, names, depth)

    def statement(self, lines: list[str], indent: str, names: list[str], depth: int) -> None:
        choice = self.choice
        a, b = choice.choice(names), choice.choice(names)
        kind = choice.choices(["tensor", "other", "write", "break", "block"], [8, 2, 1, 1, 6 if depth < 3 else 0])[0]
        if kind == "tensor":
            self.new(lines, indent, names, choice.choice(TENSORS).format(a=a, b=b))
        elif kind in ("other", "break"):
            text = choice.choice(OTHERS if kind == "other" else BREAKS).format(a=a, b=b)
            lines.append(f"{indent}OUT.append({text})")
        elif kind == "write":
            lines.append(f"{indent}{choice.choice(WRITES).format(a=a, b=b)}")
        else:
            self.block(lines, indent, names, depth, a, b)

    def block(self, lines: list[str], indent: str, names: list[str], depth: int, a: str, b: str) -> None:
        """Statements under a mode, which is entered in one of the ways that there are."""
        way, mode = self.choice.choice(_WAYS), f"({self.mode()})()"
        inner = indent + "    "
        at = next(self.numbers)
        if way == "with":
            lines.append(f"{indent}with {mode}:")
            self.body(lines, inner, names, depth + 1)
        elif way == "two":
            lines.append(f"{indent}with {mode}, ({self.mode()})():")
            self.body(lines, inner, names, depth + 1)
        elif way == "stack":
            lines.append(f"{indent}with contextlib.ExitStack() as s{at}:")
            lines.append(f"{inner}s{at}.enter_context({mode})")
            self.body(lines, inner, names, depth + 1)
            if self.choice.random() < 0.5:
                lines.append(f"{inner}s{at}.close()")
                self.body(lines, inner, names, depth + 1)
        elif way == "by hand":
            lines += [f"{indent}m{at} = {mode}", f"{indent}m{at}.__enter__()"]
            self.body(lines, indent, names, depth + 1)
            lines.append(f"{indent}m{at}.__exit__(None, None, None)")
        elif way == "error":
            lines += [f"{indent}try:", f"{inner}with {mode}:"]
            self.body(lines, inner + "    ", names, depth + 1)
            lines.append(f"{inner}    raise ValueError(3)")
            lines += [f"{indent}except ValueError:", f"{inner}pass"]
        elif way == "generator":
            lines.append(f"{indent}for v{at} in steps({self.mode()}, {a}):")
            self.body(lines, inner, [*names, f"v{at}"], depth + 1)
        elif way == "loop":
            lines.append(f"{indent}for _ in range(2):")
            lines.append(f"{inner}with {mode}:")
            self.body(lines, inner + "    ", [*names], depth + 1)
        else:
            decorated: list[str] = []
            if way == "decorator":
                decorated.append(f"@({self.choice.choice(_DECORATORS)})")
            decorated.append(f"def g{at}(p, q):")
            own = ["p", "q"]
            start = "    "
            if way == "function":
                decorated.append(f"    with {mode}:")
                start = "        "
            self.body(decorated, start, own, depth + 1)
            decorated.append(f"    return {self.choice.choice(own)}")
            self.functions.append("\n".join(decorated))
            self.new(lines, indent, names, f"g{at}({a}, {b})")


_WAYS = ["with", "with", "two", "stack", "by hand", "error", "generator", "loop", "decorator", "function"]
_DECORATORS = [
    "torch.no_grad()", "torch.no_grad", "torch.enable_grad()", "torch.inference_mode()", "torch.inference_mode",
    "torch.autocast('cpu', torch.bfloat16)", "doubled(torch.no_grad)", "torch.set_grad_enabled(False)",
    "torch.autocast('cpu', enabled=False)",
]  # fmt: skip


def program(seed: int) -> str:
    """Text of `f(x, y)`. Statements that eager refuses are left out by `runs`."""
    writer = _Writer(seed)
    names, lines = ["x", "y"], ["def f(x, y):"]
    for _ in range(writer.choice.randint(2, 4)):
        writer.statement(lines, "    ", names, 0)
    known = [name for name in names if any(line.startswith(f"    {name} =") for line in lines) or name in "xy"]
    lines.append(f"    return {', '.join(writer.choice.choices(known, k=2))}, facts()")
    return "\n\n".join([*writer.functions, "\n".join(lines)])


def calls(seed: int) -> list[tuple[str | None, bool]]:
    """For each call the mode around it, and whether the tensors have gradients."""
    choice = random.Random(seed + 1)
    grad = choice.random() < 0.6
    return [(choice.choice([None, None, *AROUND]), grad) for _ in range(choice.randint(2, 5))]


def _scope(text: str, name: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"OUT": [], "breaks": _breaks}
    exec(compile(DEFINITIONS, "<modes>", "exec"), scope)
    torch.manual_seed(0)
    scope["L"] = torch.nn.Linear(2, 2)
    exec(compile(text, name, "exec"), scope)
    return scope


def _breaks() -> int:
    import sys

    return len(sys._getframe().f_code.co_name)


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        held = None if value.is_meta else value.detach().double().tolist()
        return str(value.dtype), tuple(value.shape), value.requires_grad, value.is_inference(), value.device.type, held
    if isinstance(value, (tuple, list)):
        return [_facts(item) for item in value]
    return str(value)


def seen(scope: dict[str, Any], run: Any, seed: int) -> Iterator[Any]:
    """What a caller sees of a few calls, each under a mode of its own."""
    for around, grad in calls(seed):
        given = [torch.tensor([[0.5, -1.0], [2.0, 0.25]], device="cpu") + k for k in range(2)]
        leaves = [each.requires_grad_() for each in given] if grad else given
        taken = [each * 1 for each in leaves]
        scope["OUT"].clear()
        scope["SEEN"].clear()
        try:
            with eval(MODES[around], scope)() if around else eval("contextlib.nullcontext", scope)():
                out = run(*taken)
        except RuntimeError as error:  # eager's tell of inference tensors, dtypes and views
            yield around, type(error).__name__, _state()
            return  # what was entered by hand may be left over
        yield around, _facts(out), _facts(taken), _facts(scope["OUT"]), [*scope["SEEN"]], _state()
        total = [each.sum().float() for each in out[:2] if each.requires_grad and not each.is_meta]
        if grad and total:
            try:
                yield _facts(torch.autograd.grad(sum(total[1:], total[0]), leaves, allow_unused=True))
            except RuntimeError as error:
                yield type(error).__name__


def _state() -> Any:
    modes = torch.overrides._get_current_function_mode_stack(), torch._C._len_torch_dispatch_stack()
    return (
        [type(mode).__name__ for mode in modes[0]],
        modes[1],
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        str(torch.get_default_dtype()),
    )


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-5 * max(1.0, abs(a)) or a != a and b != b
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b)


def _put_back() -> None:
    """What belongs to the process."""
    torch.set_default_dtype(torch.float32)
    torch.set_anomaly_enabled(False)
    torch.set_autocast_cache_enabled(True)


def _in_a_thread(text: str, seed: int, form: Any) -> Any:
    """What is seen, or the error; in a thread of its own, since a program may end between entering and leaving."""
    found: list[Any] = []

    def run() -> None:
        try:
            scope = _scope(text, f"<mode program {seed}>")
            found.append(list(seen(scope, form(scope["f"]), seed)))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    _put_back()
    return found[0]


def differs(seed: int) -> str | None:
    """The program of this seed where it differs from eager, or None."""
    text = program(seed)
    want = _in_a_thread(text, seed, lambda f: f)
    if isinstance(want, Exception):  # the program itself is wrong: a name that is bound on one way only
        return None
    got = _in_a_thread(text, seed, lambda f: compile_callable(f, eager_graph, Options()))
    if isinstance(got, Exception):
        return f"{text}\n# seed {seed}, {calls(seed)}\n# {type(got).__name__}: {got}"
    first = _first_difference(want, got)
    if first is not None and _first_difference(_in_a_thread(text, seed, _without_kept_casts), got) is None:
        return None
    return None if first is None else f"{text}\n# seed {seed}, {calls(seed)}\n# {first[0]}\n# {first[1]}"


def _first_difference(want: Any, got: Any) -> tuple[Any, Any] | None:
    pairs = itertools.zip_longest(want, got)
    return next(((a, b) for a, b in pairs if not _close(a, b)), None)


def _without_kept_casts(f: Any) -> Any:
    """Eager keeps the casts of weights of an outer `autocast`, of whatever type the first one was: an inner one of
    another type takes or leaves the wrong one, and the product is refused."""

    def run(*args: Any) -> Any:
        torch.set_autocast_cache_enabled(False)
        return f(*args)

    return run


if __name__ == "__main__":
    sweep(__doc__, differs)

# ruff: noqa: E501
"""Random `torch.autograd.Function`s and what is made of them: `python -m tests.function_programs --programs 2000`.

A function has one or two tensor arguments; its results are computed, views of arguments or of each other, arguments, or
arguments that it wrote. Its backward scales each gradient by numbers of its own, or leaves some out. A program applies
it to leaves, views and intermediates, writes, detaches, breaks the graph; gradients, second gradients, values, shared
memory and what the results say of themselves are compared with eager.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import smelt
from tests.sweep import sweep

_RESULTS = {
    "new": ("x * 2 + y", "{g}"), "new of y": ("y.sin()", "{g}"), "view": ("x.view_as(x)", "{g}"),
    "transposed": ("x.t()", "{g}.t()"), "argument": ("x", "{g}"), "other": ("y", "{g}"), "detached": ("x.detach()", "{g}"),
    "row": ("x[0]", "torch.stack([{g}, {g}])"), "expanded": ("x.expand(2, 2, 2)", "{g}.sum(0)"),
    "part of new": ("(x * 3).view(-1)[:2]", "torch.stack([{g}, {g}])"), "sum": ("x.sum()", "{g}.expand(2, 2)"),
    "number": ("x > 0", None), "written": ("x.mul_(2)", "{g}"), "of a result": ("r0.t()", None),
    "saved": ("x * y", "{g} * ctx.saved_tensors[1]"), "exp": ("x.exp()", "{g} * ctx.saved_tensors[0].exp()"),
    "kept": ("x * k", "{g} * ctx.k"), "inner": ("C.apply(x)", "{g} * 2"), "inner twice": ("C.apply(C.apply(x) + y)", "C.apply({g})"),
    "state": ("x * 2", "{g} * STATE[0]"), "needed": ("x.cos()", "({g} if ctx.needs_input_grad[0] else 0)"),
    "result saved": ("x.tanh()", "{g} * (1 - ctx.saved_tensors[{s}] ** 2)"), "engine": ("x.sin() * 2", "R({g}, ctx.saved_tensors[0])"),
    "between saved": ("h{i}.sin()", "{g} * ctx.saved_tensors[{s}].cos() * 2"), "written later": ("x.exp().mul_(2)", "{g}"),
    "saved, written": ("(x + 1).mul_(h{i}).add_(h{i}.neg_())", "{g} * ctx.saved_tensors[{s}]"),
}  # fmt: skip
_SAVED = {"result saved": "r{i}", "between saved": "h{i}", "saved, written": "h{i}"}
_OTHERS = """class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 5
def R(g, x):
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        return torch.autograd.grad((z.sin() * 2).sum(), z)[0] * g
"""
_BEFORE = ["{a}", "{a}", "{a} * 2", "{a}.t()", "{a}.view(2, 2)", "{a}.detach()", "{a}.clone()", "{b} + {a}"]
_AFTER = [
    "{r} * 2", "{r}.sum()", "{r}.view(-1)", "{r}[0] if {r}.dim() else {r}", "{r}.detach()", "{r} + a", "{r}.clone().add_(1)",
    "B(a * 1, b * 1)[0] + {r}", "B({r}, b * 1)[-1] if {r}.shape == (2, 2) and {r}.is_floating_point() else {r}",
]  # fmt: skip


def function(seed: int) -> str:
    """Text of a class `A` and of `B`, which gives `A.apply`'s results as a tuple."""
    choice = random.Random(seed)
    kinds = choice.choices([*_RESULTS], k=choice.choice([1, 1, 2, 2, 3]))
    kinds = [kind if i else "new" if kind == "of a result" else kind for i, kind in enumerate(kinds)]
    fresh = choice.random() < 0.3
    forward: list[str] = []
    if "written" in kinds:  # nothing of an argument that is written is saved
        first = kinds.index("written")
        allowed = ("new", "new of y", "sum", "argument", "view", "transposed", "kept", "state")
        kinds = [k if i == first or k in allowed else "new" for i, k in enumerate(kinds)]
    kinds = ["new" if fresh and _SAVED.get(kind, "")[:1] == "h" else kind for kind in kinds]
    saves = ["x", "y", *(_SAVED[kind].format(i=i) for i, kind in enumerate(kinds) if kind in _SAVED)]
    marks = [f"ctx.save_for_backward({', '.join(saves)})"] if "written" not in kinds else []
    marks += ["ctx.k = k"] if "kept" in kinds else []
    for i, kind in enumerate(kinds):
        if _SAVED.get(kind, "")[:1] == "h":
            forward.append(f"h{i} = x * 2")
        forward.append(f"r{i} = {_RESULTS[kind][0].format(i=i)}")
        if kind == "written":
            marks.append("ctx.mark_dirty(x)")
        if kind == "number" or kind == "new" and choice.random() < 0.1:
            marks.append(f"ctx.mark_non_differentiable(r{i})")
    if choice.random() < 0.2:
        marks.append("ctx.set_materialize_grads(False)")
    given = [f"g{i}" for i in range(len(kinds))]
    parts: list[list[str]] = [[], []]
    for i, kind in enumerate(kinds):
        text = "{g}.t()" if kind == "of a result" and _RESULTS[kinds[0]][0].count("(") < 2 else _RESULTS[kind][1]
        if kind == "of a result" and kinds[0] not in (
            "new",
            "view",
            "argument",
            "transposed",
            "exp",
            "saved",
            "new of y",
        ):
            text = None
        if text is None:
            continue
        to = 1 if kind in ("new of y", "other") else 0
        place = saves.index(_SAVED[kind].format(i=i)) if kind in _SAVED else 0
        text = text.format(g=f"g{i}", s=place)
        parts[to].append(f"(0 if g{i} is None else {text} * {choice.choice([1, 3, -2, 0.5])})")
        if kind == "new" and choice.random() < 0.5:
            parts[1].append(f"(0 if g{i} is None else g{i} * 5)")
    gradients = [" + ".join(part) if part and choice.random() < 0.9 else "None" for part in parts]
    results = "r0" if len(kinds) == 1 else ", ".join(f"r{i}" for i in range(len(kinds)))
    more = ", k=2" if "kept" in kinds else ""
    lines = [_OTHERS + "class A(torch.autograd.Function):", "    @staticmethod"]
    if fresh:
        tensors = ", ".join(f"r{i}" for i in range(len(kinds)))
        lines += [
            f"    def forward(x, y{more}):",
            *(f"        {each}" for each in forward),
            f"        return {results}",
        ]
        lines += ["    @staticmethod", "    def setup_context(ctx, inputs, output):", "        x, y, *rest = inputs"]
        lines += ["        k = rest[0] if rest else 2"] if more else []
        lines += [
            f"        {tensors}{',' if len(kinds) > 1 else ''} = output",
            *(f"        {m}" for m in marks or ["pass"]),
        ]
    else:
        lines += [f"    def forward(ctx, x, y{more}):", *(f"        {each}" for each in [*forward, *marks])]
        lines.append(f"        return {results}")
    lines += ["    @staticmethod", *(["    @once_differentiable"] if choice.random() < 0.1 else [])]
    lines += [f"    def backward(ctx, {', '.join(given)}):"]
    for name, text in zip("xy", gradients, strict=True):
        lines.append(f"        d{name} = {text}")
        lines.append(f"        d{name} = d{name} if isinstance(d{name}, torch.Tensor) else None")
    passed = ", 3" if more and choice.random() < 0.5 else ""
    lines.append("        return dx, dy, None" if passed or more and fresh else "        return dx, dy")
    lines += [
        "def B(x, y):",
        f"    out = A.apply(x, y{passed})",
        "    return out if isinstance(out, tuple) else (out,)",
    ]
    return "\n".join(lines)


def program(seed: int) -> str:
    """Text of `f(a, b)`, which gives a tuple of tensors."""
    choice = random.Random(seed + 1)
    a, b = (choice.choice(_BEFORE).format(a=n, b=m) for n, m in (("a", "b"), ("b", "a")))
    call = f"B({a}, {b})"
    if choice.random() < 0.15:
        call = f"checkpoint(B, {a}, {b}, use_reentrant=False)"
    lines = ["def f(a, b):", f"    out = [*{call}]"]
    if choice.random() < 0.2:
        lines.append("    a.untyped_storage().data_ptr() and str(type(a.untyped_storage()))")
    for _ in range(choice.randint(0, 3)):
        lines.append(f"    r = out[{choice.randint(-2, 2)} % len(out)]")
        lines.append(f"    out.append({choice.choice(_AFTER).format(r='r')})")
    if choice.random() < 0.3:
        lines.append(f"    out = out[{choice.randint(0, 1)}:] or out")
    return "\n".join([function(seed), *lines, "    return tuple(out)"])


def _values(found: Any) -> Any:
    return None if found is None else (tuple(found.shape), (found.detach().double() + 0).tolist())


def seen(run: Any, seed: int, writes: bool, state: list[float]) -> list[Any]:
    """What a caller sees of two calls. `writes`: it may write to a result between a call and its backward.

    Args:
        state: what a backward may read; it may be changed between a call and its backward, too.
    """
    found: list[Any] = []
    choice = random.Random(seed + 2)
    leaf, second, write = choice.random() < 0.6, choice.random() < 0.4, choice.random() < 0.3 and writes
    for call in range(3):
        state[0] = choice.choice([2.0, 2.0, 3.0])
        leaves = [(torch.tensor([[0.5, -1.0], [2.0, 0.25]]) * k + call).requires_grad_() for k in (1, 2)]
        given = leaves if leaf else [each * 1 for each in leaves]
        try:
            out = run(*given)
        except RuntimeError as error:
            found.append(type(error).__name__)
            continue
        everything = [*given, *out]
        places = [each.untyped_storage().data_ptr() for each in everything]
        found.append([[p == q for p in places] for q in places])
        found.append([(each.requires_grad, each.is_leaf, str(each.dtype), each.stride()) for each in out])
        found += [_values(each) for each in everything]
        if write:
            with torch.no_grad():
                try:
                    out[-1].mul_(2)
                except RuntimeError:
                    found.append("refused")
            found += [_values(each) for each in everything]
        state[0] = choice.choice([state[0], 2.0, 5.0])
        weighed = [each.float().cos().sum() * (k + 1) for k, each in enumerate(out) if each.requires_grad]
        used = [each for each in weighed if choice.random() < 0.7] or weighed
        if used:
            found += _gradients(sum(used[1:], used[0]), leaves, second)
    return found


def _gradients(total: torch.Tensor, leaves: list[torch.Tensor], second: bool) -> list[Any]:
    try:
        grads = torch.autograd.grad(total, leaves, allow_unused=True, create_graph=second)
    except RuntimeError as error:
        told = isinstance(error, smelt.SmeltError) and "changed since its forward" in str(error)
        return ["told"] * (3 if second else 2) if told else [type(error).__name__]
    found = [*map(_values, grads)]
    curved = [each.square().sum() for each in grads if each is not None and each.requires_grad]
    if second:
        try:
            again = (
                torch.autograd.grad(sum(curved[1:], curved[0]), leaves, allow_unused=True) if curved else [None, None]
            )
            found.append([_zeros(each) for each in map(_values, again)])
        except (RuntimeError, smelt.SmeltError) as error:
            found.append("no second derivative" if "second derivative" in str(error) else type(error).__name__)
    return found


def _zeros(value: Any) -> Any:
    """Absent second gradients and zeros are one: eager's depend on which formulas it takes."""
    return 0 if value is None or not any(_flat(value[1])) else value


def _flat(value: Any) -> list[float]:
    return [x for each in value for x in _flat(each)] if isinstance(value, list) else [value]


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or a != a and b != b or abs(a - b) <= 1e-4 * max(1.0, abs(a))
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b) or b in ("no second derivative", "told")  # said, and not silent


def differs(seed: int, backend: str = "aot_eager") -> str | None:
    """The program of this seed where it differs from eager, or None."""
    writes = backend == "smelt"  # the other one saves results where eager saves what they come from
    text = program(seed)
    scope: dict[str, Any] = {"torch": torch, "checkpoint": checkpoint, "STATE": [2.0]}
    scope["once_differentiable"] = once_differentiable
    exec(compile(text, f"<function program {seed}>", "exec"), scope)
    try:
        want = seen(scope["f"], seed, writes, scope["STATE"])
    except Exception:
        return None
    if "CheckpointError" in want:
        return None
    try:
        got = seen(smelt.compile(scope["f"], backend=backend), seed, writes, scope["STATE"])
    except Exception as error:
        return f"{text}\n# seed {seed}: {type(error).__name__}: {error}"
    pairs = itertools.zip_longest(want, got)
    first = next(((i, a, b) for i, (a, b) in enumerate(pairs) if not _close(a, b)), None)
    return None if first is None else f"{text}\n# seed {seed}, fact {first[0]}\n# {first[1]}\n# {first[2]}"


if __name__ == "__main__":
    sweep(__doc__, differs, backend="aot_eager")

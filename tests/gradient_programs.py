# ruff: noqa: E501
"""Random programs whose results are used in part: `python -m tests.gradient_programs --programs 1000`.

A program is a chain of operators and custom functions; every few values are results. A function has one or two arguments
and results; its backward may add numbers, look at what is None, give None, or raise. For each of several sets of results,
gradients are compared with eager, also second ones: which are absent, which are nan, and all values.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch

import smelt
from tests.sweep import sweep

_OPERATORS = [
    "{a}.sin()", "{a} * {b}", "{a} + {b}", "{a}.sqrt()", "{a}.exp() * 0.1", "{a} * 2", "{a}.logcumsumexp(0)", "{a} / ({b} + 4)",
    "torch.cat([{a}[:2], {b}[2:]])", "torch.stack([{a}, {b}])[0]", "{a}.detach() * {b}", "{a}.view(2, 2).t().reshape(4)",
    "torch.where({a} > 0.5, {a}, {b})", "{a}.flip(0)", "{a}.cumsum(0)", "torch.stack({a}.chunk(2)).reshape(4)",
    "{a}.softmax(0)", "{a} ** 0.5", "{a}.clone().mul_({b})", "{a}.clamp(0.1, 3)", "{a}.norm() + {b}",
]  # fmt: skip
_PAIRS = [
    "({a} * 1).view(2, 4 // 2).unbind(0)", "({a} * 1).chunk(2)", "torch.var_mean({a}.view(2, 2), 1)",
    "({a} * 3).sort()", "torch.linalg.qr({a}.view(2, 2) + torch.eye(2))", "{a}.view(2, 2).max(1)",
]  # fmt: skip
_TERMS = [
    "g{i}",
    "g{i} * 2",
    "g{i} + 1",
    "(g{i} + 1) * 3",
    "g{i} * x",
    "g{i}.exp()",
    "torch.ones(4)",
    "g{i} * x.rsqrt()",
]
_KEPT = ["(7 if g{i} is None else g{i} * 2)", "(x if g{i} is None else g{i})", "(0 if g{i} is None else g{i} * x)"]


def function(choice: random.Random, name: str) -> tuple[list[str], int, int]:
    """Lines of a class, and the numbers of its arguments and results."""
    arguments, results = choice.choice([(1, 1), (1, 2), (2, 1), (2, 2), (2, 2), (1, 3)])
    keeps = choice.random() < 0.5
    names = ["x", "y"][:arguments]
    forward = [f"{choice.choice(names)} * {choice.choice([2, 3, -1])}" for _ in range(results)]
    lines = [
        f"class {name}(torch.autograd.Function):",
        "    @staticmethod",
        f"    def forward(ctx, {', '.join(names)}):",
    ]
    lines += ["        ctx.set_materialize_grads(False)"] if keeps else []
    lines += ["        ctx.save_for_backward(x)"]
    lines.append(f"        return {', '.join(forward)}" if results > 1 else f"        return {forward[0]}")
    lines += ["    @staticmethod", f"    def backward(ctx, {', '.join(f'g{i}' for i in range(results))}):"]
    lines.append("        x, = ctx.saved_tensors")
    terms = _KEPT if keeps else _TERMS
    if keeps and choice.random() < 0.2:
        lines.append(f"        if g{results - 1} is None: raise ValueError('absent')")
    for argument in names:
        some = choice.sample(range(results), choice.randint(1, results))
        text = choice.choice([" + ", " * "]).join(choice.choice(terms).format(i=i) for i in some)
        lines.append(f"        d{argument} = {'None' if choice.random() < 0.15 else text}")
        lines.append(f"        d{argument} = d{argument} if isinstance(d{argument}, torch.Tensor) else None")
    lines.append(f"        return {', '.join('d' + n for n in names)}")
    return lines, arguments, results


def program(seed: int) -> str:
    """Text of `f(a, b)`, which returns a tuple of tensors that all have gradients."""
    choice = random.Random(seed)
    lines: list[str] = []
    functions = []
    for name in "PQR"[: choice.randint(0, 3)]:
        text, arguments, results = function(choice, name)
        lines += text
        functions.append((name, arguments, results))
    lines.append("def f(a, b):")
    values, out = ["a", "b"], []
    for number in range(choice.randint(2, 7)):
        name, (a, b) = f"v{number}", choice.choices(values, k=2)
        kind = choice.random()
        if functions and kind < 0.45:
            function_name, arguments, results = choice.choice(functions)
            names = [f"{name}_{i}" for i in range(results)]
            given = [f"{each} * 1" for each in (a, b)[:arguments]]
            lines.append(f"    {', '.join(names)} = {function_name}.apply({', '.join(given)})")
            values += names
        elif kind < 0.55:
            lines.append(f"    {name}_0, {name}_1 = {choice.choice(_PAIRS).format(a=a, b=b)}")
            out += [f"{name}_0 * 1"] + ([f"{name}_1 * 1"] if choice.random() < 0.5 else [])
        else:
            lines.append(f"    {name} = {choice.choice(_OPERATORS).format(a=a, b=b)}")
            values.append(name)
    out += [
        f"{each} * 2" if choice.random() < 0.5 else f"{each}.sum()"
        for each in choice.choices(values[2:] or values, k=choice.randint(1, 3))
    ]
    return "\n".join([*lines, f"    return ({', '.join(out)},)"])


def _value(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().tolist()


def seen(run: Any, seed: int, second: bool) -> list[Any]:
    """Gradients for several sets of results."""
    choice = random.Random(seed + 1)
    found: list[Any] = []
    dead = choice.random() < 0.5
    for _ in range(5):
        a = torch.tensor([0.0 if dead else 0.5, 1.0, 2.0, 0.25], requires_grad=True)
        b = torch.tensor([1.5, 0.75, 0.5, 1.0], requires_grad=True)
        try:
            out = [each for each in run(a, b) if each.requires_grad]
        except Exception as error:
            found.append(type(error).__name__)
            continue
        used = [each for each in out if choice.random() < 0.5] or out[:1]
        if not used:
            continue
        try:
            total = sum((each * (k + 1)).sum() for k, each in enumerate(used))
            grads = torch.autograd.grad(total, [a, b], allow_unused=True, create_graph=second)
            found.append([*map(_value, grads)])
            curved = [each.square().sum() for each in grads if each is not None and each.requires_grad]
            if second and curved:
                more = torch.autograd.grad(sum(curved), [a, b], allow_unused=True)
                found.append([_value(each) for each in more])
        except Exception as error:
            found.append(type(error).__name__)
    return found


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or a != a and b != b or abs(a - b) <= 2e-4 * max(1.0, abs(a))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b) or b == "SmeltError"


def differs(seed: int, backend: str) -> str | None:
    """The program where it differs from eager, or None."""
    text, second = program(seed), random.Random(seed + 2).random() < 0.3
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<gradient program {seed}>", "exec"), scope)
    want = seen(scope["f"], seed, second)
    try:
        got = seen(smelt.compile(scope["f"], backend=backend), seed, second)
    except Exception as error:
        return f"{text}\n# seed {seed}: {type(error).__name__}: {error}"
    first = next(((i, a, b) for i, (a, b) in enumerate(itertools.zip_longest(want, got)) if not _close(a, b)), None)
    return None if first is None else f"{text}\n# seed {seed}, fact {first[0]}\n# {first[1]}\n# {first[2]}"


if __name__ == "__main__":
    sweep(__doc__, differs, programs=1000, backend="aot_eager")

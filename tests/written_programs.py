"""Random programs whose arguments and results the caller writes between the call and its backward, against eager.

    python -m tests.written_programs --programs 20000

Writes are in place, through `.data` or through NumPy. Gradients are those of eager's graph, which reads some tensors
as they are then and others as they were; where eager raises, compiled code raises or gives what it would without the
write.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch

import smelt
from tests.sweep import sweep

_ONE = [
    "{a}.sin()", "{a}.cos()", "{a}.exp()", "{a}.tanh()", "{a}.sigmoid()", "{a}.relu()", "{a} * 2", "{a} + 1", "-{a}",
    "{a}.square()", "{a}.abs()", "{a} ** 3", "({a} * {a} + 1).sqrt()", "({a}.abs() + 1).log()", "F.gelu({a})",
    "F.silu({a})", "F.softplus({a})", "{a}.softmax(-1)", "{a}.log_softmax(0)", "F.layer_norm({a}, (4,))", "{a}.clone()",
    "{a}.t().contiguous().t()", "{a}.t()", "{a}.flip(0)", "{a}.cumsum(0)", "{a}.double().sin().float()",
    "{a}.clamp(-0.5, 0.5)",
    "{a}.view(16).view(4, 4)", "{a}[1:].sin().sum() + {a}", "{a}.mean(0) * {a}", "{a}.sum(1, keepdim=True) - {a}",
    "{a}.amax(0) + {a}", "{a}.expand(2, 4, 4).sum(0)", "{a}.bfloat16().exp().float()", "{a}.logsumexp(0) * {a}",
    "{a}.erf()", "1 / ({a}.abs() + 1)", "{a}.std(0) + {a}", "{a}.norm() * {a}",
]  # fmt: skip
_TWO = [
    "{a} * {b}", "{a} + {b}", "{a} - {b} * 2", "{a} / ({b}.abs() + 1)", "torch.where({a} > {b}, {a}, {b} * 2)",
    "{a} @ {b}",
    "torch.maximum({a}, {b})", "torch.atan2({a}, {b}.abs() + 1)", "torch.hypot({a}, {b})", "torch.lerp({a}, {b}, 0.3)",
    "torch.addcmul({a}, {b}, {a})", "F.linear({a}, {b})", "torch.cat([{a}, {b}])[2:6]", "{a}.masked_fill({b} > 0, 0.5)",
    "F.mse_loss({a}, {b}) * {a}", "F.layer_norm({a}, (4,), {b}[0], {b}[1])", "{a} * {b}[0]", "{a} * {b}.sum()",
    "{a}.sin() * {b}",
]  # fmt: skip
_WRITES: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "in place": lambda t, k: torch.no_grad()(t.fill_)(k),
    "data": lambda t, k: t.data.fill_(k),
    "data of a part": lambda t, k: t.data[..., ::2].mul_(k),
    "numpy": lambda t, k: t.detach().numpy().fill(k),
}


def program(seed: int) -> str:
    """Text of `f(a, b, c)`, which gives a tuple of tensors of shape (4, 4)."""
    choice = random.Random(seed)
    names = ["a", "b", "c"]
    lines = ["def f(a, b, c):"]
    for i in range(choice.choice([1, 2, 2, 3, 3, 4, 5, 6])):
        text = choice.choice(_TWO if choice.random() < 0.45 else _ONE)
        lines.append(f"    r{i} = {text.format(a=choice.choice(names), b=choice.choice(names))}")
        names += [f"r{i}"] * (i + 1)
    made = sorted({n for n in names if n[0] == "r"})
    given = dict.fromkeys([made[-1], *choice.choices(made, k=choice.choice([0, 0, 1, 2]))])
    return "\n".join([*lines, f"    return {', '.join(given)},"])


def seen(run: Callable[..., Any], seed: int, written: bool = True) -> list[Any]:
    """What a caller sees of two calls, each with its backward: the results, then the gradients or the error."""
    found: list[Any] = []
    choice = random.Random(seed + 2)
    kinds = [choice.choice(["leaf", "leaf", "computed", "buffer"]) for _ in range(3)]
    if kinds.count("buffer") == 3:
        kinds[0] = "leaf"
    how, several, result = choice.choice([*_WRITES]), choice.random() < 0.2, choice.random() < 0.25
    which, number = choice.randrange(3), choice.choice([0.7, 0.0, -1.5])
    for call in range(2):
        values = [torch.linspace(-1, 1.3, 16).roll(5 * k + call).view(4, 4) for k in range(3)]
        leaves = [v.requires_grad_(k != "buffer") for v, k in zip(values, kinds, strict=True)]
        given = [v * 1 if k == "computed" else v for v, k in zip(leaves, kinds, strict=True)]
        out = run(*given)
        found.append([each.detach().tolist() for each in out])
        for target in [out[which % len(out)]] if result else given if several else [given[which]]:
            if written:
                _WRITES[how](target, number)
        used = [each.sum() * (k + 1) for k, each in enumerate(out) if each.requires_grad]
        try:
            if used:
                sum(used[1:], used[0]).backward()
        except RuntimeError as error:
            found.append("refused" if "modified by an inplace" in str(error) or "changed" in str(error) else str(error))
        else:
            found.append([None if t.grad is None else t.grad.tolist() for t in leaves])
    return found


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or a != a and b != b or abs(a - b) <= 1e-3 * max(1.0, abs(b))
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b)


def differs(seed: int) -> str | None:
    """The program of this seed, with what is seen, where it differs from eager."""
    text = program(seed)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(text, f"<written program {seed}>", "exec"), scope)
    try:
        want = seen(scope["f"], seed)
    except RuntimeError:
        return None  # views of leaves that are written
    unwritten = seen(scope["f"], seed, written=False) if "refused" in want else want
    try:
        got = seen(smelt.compile(scope["f"]), seed)
    except Exception as error:
        return f"# seed {seed}: {type(error).__name__}: {error}\n{text}"
    for i, (made, right, plain) in enumerate(itertools.zip_longest(got, want, unwritten)):
        if not (_close(made, right) or right == "refused" and _close(made, plain)):
            if not _close(seen(smelt.compile(scope["f"]), seed, written=False), seen(scope["f"], seed, written=False)):
                return None  # a matter of rounding: ties, signs of what is nearly zero
            return f"# seed {seed}, fact {i}, {_told(seed)}\n{text}\n# compiled {made}\n# eager    {right}"
    return None


def _told(seed: int) -> str:
    choice = random.Random(seed + 2)
    kinds = [choice.choice(["leaf", "leaf", "computed", "buffer"]) for _ in range(3)]
    how, several, result = choice.choice([*_WRITES]), choice.random() < 0.2, choice.random() < 0.25
    which = choice.randrange(3)
    what = f"result {which}" if result else "all arguments" if several else "abc"[which]
    return f"{', '.join(kinds)}; {how}: {what}"


if __name__ == "__main__":
    sweep(__doc__, differs)

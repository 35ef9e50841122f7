"""Random programs over views, copies and writes, and what a caller sees of them: values, and who shares memory.

Each is a function of three tensors as text. A check calls it three times, holds the results, writes to some of them
and to arguments in between, and compares everything with eager: `python -m tests.sharing_programs --programs 2000`.
"""

from __future__ import annotations

import random
from typing import Any

import torch

import smelt
from tests.sweep import sweep

SHAPES = [(4, 4), (2, 8), (8, 2), (1, 4), (4, 1), (16, 16)]

VIEWS = [
    "{a}.t()", "{a}[0]", "{a}[:, 1:]", "{a}[::2]", "{a}.view(-1)", "{a}.reshape({a}.shape[::-1])", "{a}.detach()",
    "{a}.view_as({a})", "{a}.expand(2, *{a}.shape)", "{a}.unsqueeze(0)", "{a}.diagonal()", "{a}.view(torch.int32)",
    "{a}.view(torch.float32)", "{a}.view(torch.int16)", "{a}.data", "{a}.chunk(2)[0]", "{a}.unfold(0, 1, 1)",
    "torch.view_as_complex({a}.view(-1, 2))", "{a}.conj()", "{a}.imag", "{a}.real", "{a}.mH", "torch._neg_view({a})",
]  # fmt: skip
COPIES = [
    "{a}.clone()", "{a} * 1", "{a} + 1", "torch.cat([{a}, {a}])", "{a}.to({a}.dtype, copy=True)", "{a}.contiguous()",
    "torch.tensor([1.0, 2.0, 3.0, 4.0])", "torch.tensor([1, 2, 3, 4]).to({a}.dtype)", "torch.zeros_like({a})",
    "{a}.flip(0)", "{a}.cumsum(0)", "{a}.new_tensor([5, 6])", "{a}.resolve_conj()", "{a}.float() * 0.5", "{a} + {b}",
    "torch.where({a} == {b}, {a}, {b})", "{a}.sort()[0]",
]  # fmt: skip
WRITES = [
    "{a}.add_(1)", "{a}.zero_()", "{a}[0] = 3", "{a}.mul_(2)", "{a}.copy_({b})", "{a} += {b}", "{a}[:, 0] = 7",
    "{a}.fill_(2)", "{a}.neg_()", "{a}.view(-1)[0] = 9", "{a}[{a} == 2] = 5",
]  # fmt: skip


def program(seed: int) -> str:
    """Text of `f(x, y, z)`. Statements that eager refuses are left out as the program runs (the same in both)."""
    choice = random.Random(seed)
    names, lines = ["x", "y", "z"], ["def f(x, y, z):"]
    for k in range(choice.randint(2, 9)):
        a, b = choice.choice(names), choice.choice(names)
        kind = choice.choices([VIEWS, COPIES, WRITES], [5, 3, 3])[0]
        text = choice.choice(kind).format(a=a, b=b)
        if kind is WRITES:
            lines.append(f"    {text}")
        else:
            lines.append(f"    v{k} = {text}")
            names.append(f"v{k}")
    results = [choice.choice(names) for _ in range(choice.randint(1, 4))]
    lines.append(f"    return [{', '.join(results)}]")
    return "\n".join(lines)


def runs(text: str, given: list[torch.Tensor]) -> str | None:
    """The program without the statements that fail in eager; None where nothing is left of it."""
    lines = text.splitlines()
    while len(lines) > 2:
        scope: dict[str, Any] = {"torch": torch}
        exec(compile("\n".join(lines), "<program>", "exec"), scope)
        try:
            scope["f"](*[t.clone() for t in given])
        except Exception as error:
            at = error.__traceback__
            while at is not None and at.tb_frame.f_code.co_filename != "<program>":
                at = at.tb_next
            if at is None or at.tb_lineno == len(lines):
                return None
            del lines[at.tb_lineno - 1]
        else:
            return "\n".join(lines)
    return None


def arguments(seed: int) -> list[torch.Tensor]:
    choice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = choice.choice(SHAPES)
    return [torch.randint(-3, 4, shape, generator=generator).float() for _ in range(3)]


def seen(f: Any, seed: int, grad: bool) -> list[Any]:
    """What a caller sees over three calls, with writes to results and arguments in between."""
    choice, found, held = random.Random(seed), list[Any](), list[torch.Tensor]()
    given = arguments(seed)
    for _ in range(3):
        taken = [t.clone().requires_grad_() * 1 if grad else t.clone() for t in given]
        out = f(*taken)
        everything = [*taken, *out]
        found.append([tuple(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in everything)
                      for a in everything if a.numel()])  # fmt: skip
        found.append([(o.dtype, tuple(o.shape), o.is_conj(), o.is_neg(), o.requires_grad) for o in out])
        found.append([_bits(t) for t in everything])
        held += everything
        one = choice.choice(everything)
        try:
            with torch.no_grad():
                one.add_(1)
        except RuntimeError:
            found.append("refused")
        found.append([_bits(t) for t in held])
    return found


def _bits(tensor: torch.Tensor) -> Any:
    values = tensor.detach().resolve_conj().resolve_neg().clone()
    values = torch.view_as_real(values) if values.is_complex() else values
    if values.dtype in _SIGN:  # maybe of floats: the zeros of a negated complex number have a sign by their place
        values = values.masked_fill(values == _SIGN[values.dtype], 0)
    return (values + 0).nan_to_num(9.25).tolist()  # zeros of one sign


_SIGN = {dtype: torch.iinfo(dtype).min for dtype in (torch.int16, torch.int32)}
"""What a negative zero is, seen as an integer."""


def differs(seed: int, grad: bool = False) -> str | None:
    """The program of this seed where it differs from eager."""
    text = runs(program(seed), arguments(seed))
    if text is None:
        return None
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<sharing {seed}>", "exec"), scope)
    try:
        expected = seen(scope["f"], seed, grad)
    except RuntimeError:
        return None  # written leaves, views of several results: errors of eager
    try:
        made = seen(smelt.compile(scope["f"]), seed, grad)
    except Exception as error:
        return f"# seed {seed}, grad {grad}: {type(error).__name__}: {error}\n{text}"
    first = next((i for i, (a, b) in enumerate(zip(made, expected, strict=True)) if a != b), None)
    return (
        None
        if first is None
        else f"# seed {seed}, grad {grad}, fact {first}\n{text}\n# {made[first]}\n# {expected[first]}"
    )


if __name__ == "__main__":
    sweep(__doc__, lambda seed: differs(seed, grad=seed % 2 == 1))

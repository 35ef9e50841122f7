"""Results that are views or repeats of each other lie as eager's do: values, strides and who shares memory with whom.

The strides of a value are set last, by what the caller is promised, and its views follow. Programs are random: computed
values, views, repeats and copies of them, in any order, of which some are returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import smelt

COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "double": lambda v: v * 2,
    "sin": lambda v: v.sin(),
    "normal": lambda v: v.softmax(-1),
    "normal_columns": lambda v: v.log_softmax(0),
    "rows": lambda v: v.sum(0, keepdim=True),
    "columns": lambda v: v + v.amax(-1, keepdim=True),
    "running": lambda v: v.cumsum(0),
    "flip": lambda v: v.flip(-1),
    "halves": lambda v: torch.cat([v, v], -1),
    "padded": lambda v: torch.nn.functional.pad(v, (1, 0)),
    "beside": lambda v: torch.stack([v, v], -1),
    "whole": lambda v: v.long().float(),
    "like": lambda v: torch.ones_like(v),
    "outer": lambda v: v.unsqueeze(-1) * v.unsqueeze(-2),
    "product": lambda v: v @ v.transpose(-1, -2),
    "sorted": lambda v: v.sort(-1)[0],
    "chosen": lambda v: v.index_select(0, torch.zeros(2, dtype=torch.int64)),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda v: v.transpose(0, -1),
    "rolled": lambda v: v.movedim(0, -1),
    "rest": lambda v: v[..., 1:],
    "steps": lambda v: v[::2],
    "first": lambda v: v[0],
    "expanded": lambda v: v.expand(2, *v.shape),
    "widened": lambda v: v[..., :1].expand(*v.shape),
    "deeper": lambda v: v.unsqueeze(-1),
    "diagonal": lambda v: v.diagonal(),
    "windows": lambda v: v.unfold(-1, 2, 1),
    "flat": lambda v: v.view(-1),
    "reshaped": lambda v: v.reshape(-1),
    "part": lambda v: v.split(1)[-1],
    "itself": lambda v: v.view_as(v),
    "apart": lambda v: v.detach(),
    "flattened": lambda v: v.flatten(0, 1),
    "squeezed": lambda v: v.squeeze(),
}
COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "repeat": lambda v: v.repeat(2, *[1] * (v.dim() - 1)),
    "repeat_in_front": lambda v: v.repeat(3, *[1] * v.dim()),
    "tile": lambda v: v.tile(2),
    "interleave": lambda v: v.repeat_interleave(2, -1),
    "dense": lambda v: v.contiguous(),
    "clone": lambda v: v.clone(),
    "row_major": lambda v: v.clone(memory_format=torch.contiguous_format),
    "filled": lambda v: torch.empty_like(v).copy_(v),
    "turned_copy": lambda v: v.transpose(0, -1).contiguous(),
    "new": lambda v: v.to(v.dtype, copy=True),
}
STEPS = COMPUTED | VIEWS | COPIES
LAYOUTS: dict[str, Callable[[Sequence[int]], Tensor]] = {
    "plain": lambda shape: fresh(shape),
    "turned": lambda shape: fresh(shape[::-1]).permute(*range(len(shape))[::-1]),
    "gaps": lambda shape: fresh((*shape[:-1], shape[-1] + 2))[..., 1:-1],
    "steps": lambda shape: fresh((*shape[:-1], shape[-1] * 2))[..., ::2],
    "repeated": lambda shape: fresh((1, *shape[1:])).expand(*shape),
    "windows": lambda shape: fresh((sum(shape) + 1,)).as_strided(shape, (1,) * len(shape), 1),
}


def fresh(shape: Sequence[int]) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-8, 9, tuple(shape), generator=generator).float() / 4


@dataclass
class Program:
    """(step, which value it takes) in order, and which values are returned; the first value is the argument."""

    steps: list[tuple[str, int]]
    returned: list[int]

    def __call__(self, x: Tensor) -> list[Tensor]:
        values = [x]
        for name, source in self.steps:
            values.append(STEPS[name](values[source]))
        return [values[i] for i in self.returned]


def runs(program: Program, given: Sequence[Tensor]) -> Program:
    """The program without the steps that eager refuses, or that become large."""
    kept: list[tuple[str, int]] = []
    place = {0: 0}
    for at, (name, source) in enumerate(program.steps):
        one = (name, place[source] if source in place else 0)
        try:
            made = [Program([*kept, one], [len(kept) + 1])(x)[0] for x in given]
        except (RuntimeError, IndexError):
            continue
        if all(t.numel() <= 2000 and t.dim() <= 5 for t in made):
            kept.append(one)
            place[at + 1] = len(kept)
    return Program(kept, [place.get(i, 0) for i in program.returned])


def memory(x: Tensor, results: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """For each result which tensor is the first in its memory, and where it begins in relation to that one."""
    tensors = [t for t in (x, *results) if t.numel()]
    begins = [t.untyped_storage().data_ptr() for t in tensors]
    shown = []
    for t in results:
        first = begins.index(t.untyped_storage().data_ptr()) if t.numel() else -1
        shown.append((first, t.data_ptr() - tensors[first].data_ptr() if t.numel() else 0))
    return shown


def steps(t: Tensor) -> tuple[int, ...]:
    """Strides, of dimensions of size 1 too; a tensor without elements has none that lead anywhere."""
    return t.stride() if t.numel() else ()


@st.composite
def programs(draw: Any) -> Program:
    """Any steps; or one value that is computed and returned, with what is made of its views and repeats."""
    steps = []
    if draw(st.booleans()):
        for at in range(draw(st.integers(2, 6))):
            names = draw(st.sampled_from([COMPUTED, VIEWS, VIEWS, COPIES]))
            steps.append((draw(st.sampled_from(sorted(names))), draw(st.integers(max(0, at - 2), at))))
        count = len(steps)
        return Program(steps, draw(st.lists(st.integers(max(0, count - 4), count), min_size=1, max_size=4)))
    kinds = [COMPUTED] * draw(st.integers(1, 2))
    value = len(kinds)
    kinds += draw(st.lists(st.sampled_from([VIEWS, COPIES]), min_size=1, max_size=2))
    kinds += [COMPUTED] * draw(st.integers(0, 1))
    for at, names in enumerate(kinds):
        steps.append((draw(st.sampled_from(sorted(names))), at))
    return Program(steps, draw(st.permutations([value, *range(value + 1, len(steps) + 1)])))


def check(program: Program, layout: str, shapes: Sequence[Sequence[int]], dynamic: bool) -> None:
    arguments = [LAYOUTS[layout](shape) for shape in shapes]
    program = runs(program, arguments)
    compiled = smelt.compile(lambda x: program(x), dynamic=dynamic)
    held = []
    for x in arguments:
        want, got = program(x), compiled(x)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
            assert steps(a) == steps(b), (program, a.shape, a.stride(), b.stride())
        assert memory(x, got) == memory(x, want), program
        held.append((got, want))
    for got, want in held:  # later calls have not changed them
        torch.testing.assert_close(got, want)
    smelt.reset()


REPEATED = Program([("double", 0), ("interleave", 1), ("first", 2), ("double", 3)], [2, 4, 1, 3])
TURNED = Program(
    [("sin", 0), ("normal_columns", 1), ("repeat", 2), ("tile", 2), ("steps", 2), ("double", 5)], [2, 3, 4, 6]
)


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),  # to explain it follows lines, and nothing is compiled then
)
@example(program=REPEATED, layout="windows", shape=[3, 4], dynamic=False)
@example(program=TURNED, layout="turned", shape=[3, 4, 7], dynamic=False)
@example(program=TURNED, layout="windows", shape=[1], dynamic=True)
@given(
    program=programs(),
    layout=st.sampled_from(sorted(LAYOUTS)),
    shape=st.lists(st.sampled_from([1, 2, 3, 4, 7]), min_size=1, max_size=3),
    dynamic=st.booleans(),
)
def test_random_programs(program: Program, layout: str, shape: list[int], dynamic: bool) -> None:
    larger = [n + 1 if n > 1 else n for n in shape]
    check(program, layout, [shape, larger, shape], dynamic)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("shape", [(7, 7), (6, 7), (7, 6), (8, 8), (3, 1)])
@pytest.mark.parametrize("sections", [2, 3])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_copy_of_a_slice_whose_size_has_another_form(
    dim: int, sections: int, shape: tuple[int, int], gaps: bool
) -> None:
    """The last of two parts of `s` elements has `s // 2`, and begins at `s - s // 2` where `s` is odd."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = (x * 2).tensor_split(sections, dim)
        return *parts, *(part.clone() for part in parts), parts[-1].t().contiguous()

    compiled = smelt.compile(f, dynamic=True)
    for more in (0, 2, 0):
        x = torch.arange(400.0).view(20, 20)
        x = x[: shape[0] + more, : shape[1]] if gaps else x[: shape[0] + more, : shape[1]].clone()
        for made, expected in zip(compiled(x), f(x), strict=True):
            assert made.stride() == expected.stride()
            torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("copy", [torch.clone, lambda v: v * 1], ids=["clone", "times one"])
def test_a_copy_read_through_a_view_of_a_written_argument_has_memory_of_its_own(copy, dtype):
    def fn(z):
        z.view(-1)[0] = 9
        return copy(z.view(dtype))

    z, other = torch.arange(8.0).view(2, 4), torch.arange(8.0).view(2, 4)
    made, expected = smelt.compile(fn)(z), fn(other)
    assert made.untyped_storage().data_ptr() != z.untyped_storage().data_ptr()
    z.fill_(3)
    torch.testing.assert_close(made, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (1, 1), (3, 2)])
@pytest.mark.parametrize("dtypes", [(torch.int32, torch.int16), (torch.int16, torch.int32), (torch.uint8,)], ids=str)
@pytest.mark.parametrize("view", [lambda v: v.unfold(0, 1, 1), lambda v: v[..., None].transpose(0, 1).transpose(0, 1)])
def test_views_as_other_dtypes_of_a_last_dimension_of_one(
    shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], view: Callable[[Tensor], Tensor]
) -> None:
    """Its stride says whether the view is refused; that of a value is another than eager's tensor has there."""

    def f(z: Tensor) -> tuple[Tensor, Tensor]:
        part = v = view(z)
        for dtype in dtypes:
            v = v.view(dtype)
        v.add_(1)
        return part * 1, v.view(torch.uint8) + 1

    z = torch.arange(4 * shape[0] * shape[1]).to(torch.uint8).view(torch.float32).view(shape)
    try:
        want = f(z.clone())
    except RuntimeError as refused:
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:40])):
            smelt.compile(f)(z.clone())
        return
    got = smelt.compile(f)(z.clone())
    assert [out.view(torch.uint8).tolist() for out in got] == [out.view(torch.uint8).tolist() for out in want]
    assert [out.stride() for out in got] == [out.stride() for out in want]

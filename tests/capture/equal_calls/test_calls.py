"""Copied calls of equal modules: graphs, guards and results are those of interpreted calls, whatever the modules do."""

from __future__ import annotations

import contextlib
import copy
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import smelt
from smelt.capture.equal_calls import calls, fragment
from tests.capture.harness import compiled, same

BLOCKS = 7
ODD = 4
"""The block that differs from the others."""


class Block(nn.Module):
    """A block with enough operations to be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.linspace(0, 1, 4))
        self.scale, self.index, self.seen = 2.0, 0, 0
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor, *more: Any) -> Any:
        return x + self.inner(x, *more)

    def inner(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        h = self.norm(x).sin().cos()
        h = self.drop(self.lin(h).tanh() * self.scale + self.shift)
        return h.sigmoid() - h.exp().clamp(max=1)


class Model(nn.Module):
    """Calls its blocks in a loop."""

    block: type[Block] = Block

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(self.block() for _ in range(BLOCKS))
        for index, layer in enumerate(self.layers):
            layer.index = index
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        x = x * 1
        for layer in self.layers:
            x = layer(x)
        return x


def model_of(block: type[Block], forward: Callable[..., Any] | None = None) -> Model:
    """A model of these blocks; `forward` replaces the loop."""
    body: dict[str, Any] = {"block": block} | ({} if forward is None else {"forward": forward})
    return type("Model", (Model,), body)()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of copied calls so far, in a list."""
    counted = [0]
    copy_call = fragment.Fragment.copy

    def counting(*args: Any) -> object:
        counted[0] += 1
        return copy_call(*args)

    monkeypatch.setattr(fragment.Fragment, "copy", counting)
    smelt.reset()
    yield counted


def entries_of(run: Any) -> list[tuple[str, set[str], str]]:
    """What was captured: for each entry its graph, guards and residual code."""
    versions = [v for site in run._smelt_session.sites.values() for v in site.versions]
    graphs = ["" if v.residual.gm is None else v.residual.gm.print_readable(print_output=False) for v in versions]
    graphs = [re.sub(r"conditional_\d+", "conditional", graph) for graph in graphs]  # the number is the process's
    return [(g, set(v.guards.lines()), v.residual.source) for g, v in zip(graphs, versions, strict=True)]


def run_all(model: nn.Module, times: int, grad: bool, **options: Any) -> tuple[list[Any], Any]:
    """Results, gradients and the state after some calls; and the compiled function, if there are options."""
    model = copy.deepcopy(model)
    call = compiled(model, **options) if options else model
    results: list[Any] = []
    torch.manual_seed(1), random.seed(1)
    globals()["FLAG"] = 0
    RemovableHandle.next_id = 1000  # guarded by those who register hooks
    for _ in range(times):
        x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_(grad)
        try:
            results.append(call(x))
        except ValueError as error:
            results.append(str(error))
            continue
        if grad and isinstance(results[-1], torch.Tensor) and results[-1].requires_grad:
            results[-1].sum().backward()
            results.append(x.grad)
    results += [p.grad for p in model.parameters()]
    return [*results, dict(model.state_dict()), [(b.seen, b.scale, list(b.kept)) for b in model.layers]], call


def check(
    model: nn.Module, copies: list[int], monkeypatch: pytest.MonkeyPatch, grad: bool = True, times: int = 2
) -> int:
    """Compare with eager and with a capture that copies no calls; returns the number of copied calls."""
    want, _ = run_all(model, times, grad)
    got, run = run_all(model, times, grad, dynamic=None)
    number = copies[0]
    with monkeypatch.context() as patch:
        patch.setattr(calls, "MIN_NODES", 10**9)
        plain, interpreted = run_all(model, times, grad, dynamic=None)
    assert copies[0] == number
    assert same(want, plain)
    assert same(want, got)
    assert entries_of(run) == entries_of(interpreted)
    return number


def changed(change: Callable[[Any], Any], block: type[Block] = Block) -> Model:
    """A model one of whose blocks was changed."""
    model = model_of(block)
    change(model.layers[ODD])
    return model


# -- equal blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_blocks_after_the_second_one_are_copied(copies, monkeypatch, grad: bool) -> None:
    assert check(Model(), copies, monkeypatch, grad) == BLOCKS - 2


def test_copies_under_no_grad_and_inference(copies, monkeypatch) -> None:
    model = Model()
    x = torch.ones(2, 4)
    for mode in (torch.no_grad, torch.inference_mode):
        run = compiled(model)
        with mode():
            got = run(x)
            assert (
                torch.equal(got, model(x))
                and got.requires_grad is False
                and got.is_inference() == (mode is torch.inference_mode)
            )
    assert copies[0] == 2 * (BLOCKS - 2)


def test_dropout_draws_for_each_block(copies, monkeypatch) -> None:
    model = Model().train()
    assert check(model, copies, monkeypatch) == BLOCKS - 2


def test_other_shapes_and_dynamic_sizes(copies, monkeypatch) -> None:
    model = Model()
    run = compiled(model)
    for size in (2, 3, 5, 7):
        x = torch.randn(size, 4)
        assert torch.equal(run(x), model(x))
    assert len(run._smelt_session.sites) == 1 and len(entries_of(run)) == 2
    assert copies[0] == 2 * (BLOCKS - 2)


# -- blocks that differ in their state -----------------------------------------------------------------------------


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda block: setattr(block, name, value)


def _plus_one(module: Any, args: Any, out: Any) -> Any:
    return out + 1


def _twice(module: Any, args: Any) -> Any:
    return (args[0] * 2,)


def _other_forward(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def _strided(block: Block) -> None:
    block.lin.weight = nn.Parameter(block.lin.weight.detach().t().contiguous().t())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "constant": _set("scale", 3.0),
    "zero of another sign": _set("scale", -0.0),
    "type of a constant": _set("scale", 2),
    "shape of a buffer": _set("shift", torch.ones(1)),
    "type of a buffer": lambda block: setattr(block, "shift", block.shift.double().float().half()),
    "strides of a weight": _strided,
    "no bias": lambda block: setattr(block.lin, "bias", None),
    "a frozen weight": lambda block: block.lin.weight.requires_grad_(False),
    "training": lambda block: block.drop.train(),
    "a rate": lambda block: setattr(block.drop.train(), "p", 0.0),
    "a hook": lambda block: block.register_forward_hook(_plus_one),
    "a pre-hook": lambda block: block.register_forward_pre_hook(_twice),
    "a hook of a part": lambda block: block.lin.register_forward_hook(_plus_one),
    "a method of an instance": _set("forward", _other_forward),
    "a method of a part": lambda block: setattr(block.norm, "forward", _other_forward),
    "another part": lambda block: setattr(block, "norm", nn.Identity()),
    "epsilon": lambda block: setattr(block.norm, "eps", 1e-2),
    "a buffer as an attribute": lambda block: (delattr(block, "shift"), setattr(block, "shift", 0.5)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_block_differs(copies, monkeypatch, what: str) -> None:
    number = check(changed(CHANGES[what]), copies, monkeypatch)
    assert number >= BLOCKS - 3 - 2


@pytest.mark.parametrize("what", CHANGES)
def test_change_of_one_block_is_noticed(copies, what: str) -> None:
    """Guards of copied calls are as strong as those of interpreted ones."""
    model = Model()
    run = compiled(model)
    x = torch.linspace(-1, 1, 8).view(2, 4)
    assert torch.equal(run(x), model(x))
    assert copies[0] == BLOCKS - 2
    CHANGES[what](model.layers[ODD])
    torch.manual_seed(0)
    want = model(x)
    torch.manual_seed(0)
    got = run(x)
    assert torch.equal(got, want) and got.dtype == want.dtype
    assert len(entries_of(run)) == 2


def test_tied_weights(copies, monkeypatch) -> None:
    model = Model()
    model.layers[ODD].lin.weight = model.layers[1].lin.weight
    assert check(model, copies, monkeypatch) == BLOCKS - 3
    run = compiled(model)
    x = torch.ones(2, 4)
    assert torch.equal(run(x), model(x))
    model.layers[ODD].lin.weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(run(x), model(x))


def test_a_block_that_is_listed_twice(copies, monkeypatch) -> None:
    model = Model()
    model.layers[ODD] = model.layers[1]
    check(model, copies, monkeypatch)


def test_a_part_of_all_blocks(copies, monkeypatch) -> None:
    model = Model()
    for layer in model.layers:
        layer.norm = model.layers[0].norm
    assert check(model, copies, monkeypatch) == BLOCKS - 2
    run = compiled(model)
    x = torch.ones(2, 4)
    assert torch.equal(run(x), model(x))
    model.layers[ODD].norm = nn.LayerNorm(4, eps=0.1)
    assert torch.equal(run(x), model(x))


# -- blocks that do more than compute -------------------------------------------------------------------------------

COUNTS = {"calls": 0, "on": 0}
FLAG = 0
OWN: dict[Any, float] = {}
FIRST: list[Any] = []


class Indexed(Block):
    def forward(self, x):
        return x + self.inner(x) * self.index


class Parity(Block):
    def forward(self, x):
        return x + (self.inner(x) if self.index % 2 else self.inner(x).cos())


class Appends(Block):
    def forward(self, x):
        self.kept.append(self.index)
        return x + self.inner(x)


class Caches(Block):
    def forward(self, x):
        self.kept.append(x.detach())
        return x + self.inner(x) + self.kept[0]


class Counts(Block):
    def forward(self, x):
        self.seen += 1
        return x + self.inner(x) * self.seen


class CountsAll(Block):
    def forward(self, x):
        COUNTS["calls"] += 1
        out = x + self.inner(x) * (COUNTS["calls"] % 5)
        COUNTS["calls"] = 0
        return out


class CountsGlobally(Block):
    def forward(self, x):
        global FLAG
        FLAG = (FLAG + 1) % 3
        return x + self.inner(x) * FLAG


class Writes(Block):
    def forward(self, x):
        self.shift.add_(0.25)
        return x + self.inner(x)


class WritesInside(Block):
    def forward(self, x):
        h = self.inner(x)
        h.mul_(2)
        h += x
        return h


class WritesArgument(Block):
    def forward(self, x):
        h = self.inner(x.clone())
        x.mul_(0.5)
        return x + h


class Draws(Block):
    def forward(self, x):
        return x + self.inner(x) * random.random() + torch.rand(4)


class Detached(Block):
    def forward(self, x):
        with torch.no_grad():
            h = self.inner(x)
        return x + h


class Warns(Block):
    def forward(self, x):
        warnings.warn(f"block {self.index % 2}", stacklevel=1)
        return x + self.inner(x)


class Prints(Block):
    def forward(self, x):
        print("block")
        return x + self.inner(x)


class Breaks(Block):
    def forward(self, x):
        h = self.inner(x)
        self.look()
        return x + h

    @torch.compiler.disable
    def look(self):
        self.seen += 1


class Identity(Block):
    def forward(self, x):
        return x + self.inner(x) * (2 if self is FIRST[0] else 1)


class Named(Block):
    def forward(self, x):
        return x + self.inner(x) * OWN[self]


class Raises(Block):
    def forward(self, x):
        h = self.inner(x)
        if self.scale < 0:
            raise ValueError("negative")
        return x + h


class Catches(Block):
    def forward(self, x):
        try:
            h = self.inner(x) * self.missing
        except AttributeError:
            h = self.inner(x)
        return x + h


class Pair(Block):
    def forward(self, x, *more):
        h = self.inner(x)
        return x + h, h


class ListOut(Block):
    def forward(self, x, *more):
        return [x + self.inner(x), 1]


class View(Block):
    def forward(self, x):
        return (x + self.inner(x)).t().contiguous().t()


class Unchanged(Block):
    def forward(self, x):
        self.inner(x)
        return x


class GivesWeight(Block):
    def forward(self, x):
        return x + self.inner(x) @ self.other(x)

    def other(self, x):
        return self.lin.weight


class Conditional(Block):
    def forward(self, x):
        h = self.inner(x)
        return x + (h.sin() if h.sum() > 0 else h.cos())


class Comprehends(Block):
    def forward(self, x):
        parts = [self.inner(x) * n for n in range(2)]
        return x + sum(part for part in parts)


class Compares(Block):
    def forward(self, x):
        same_one = self.lin.weight is self.norm.weight
        return x + self.inner(x) * (2 if same_one else 1)


class Decorated(Block):
    @torch.no_grad()
    def inner(self, x):
        return super().inner(x)

    def forward(self, x):
        return x + self.inner(x)


ALL = [
    *(Indexed, Parity, Appends, Caches, Counts, CountsAll, CountsGlobally, Writes, WritesInside, WritesArgument, Draws),
    *(Detached, Warns, Prints, Breaks, Raises, Catches, View, Unchanged, GivesWeight, Conditional, Comprehends),
    *(Compares, Decorated),
]
COPIED = {CountsAll, WritesInside, Raises, Catches, Comprehends, Unchanged, GivesWeight}
"""Blocks that differ in nothing, only compute, and leave the state as it was."""


@pytest.mark.filterwarnings("ignore:block")
@pytest.mark.parametrize("block", ALL)
def test_what_blocks_do(copies, monkeypatch, block: type[Block]) -> None:
    number = check(model_of(block), copies, monkeypatch)
    assert (number > 0) == (block in COPIED)


@pytest.mark.parametrize("block", [Identity, Named])
def test_blocks_that_know_each_other(copies, monkeypatch, block: type[Block]) -> None:
    model = model_of(block)
    FIRST[:] = [model.layers[ODD]]
    OWN.clear()
    OWN.update({layer: 1.0 + layer.index for layer in model.layers})
    run = compiled(model)
    x = torch.ones(2, 4)
    assert torch.equal(run(x), model(x))
    assert copies[0] == 0


# -- what happens around the calls ----------------------------------------------------------------------------------


def _mode_for_one(self, x):
    for index, layer in enumerate(self.layers):
        with torch.no_grad() if index == ODD else contextlib.nullcontext():
            x = layer(x)
    return x


def _autocast_for_some(self, x):
    for index, layer in enumerate(self.layers):
        with torch.autocast("cpu", torch.bfloat16, enabled=index % 2 == 0):
            x = layer(x) * 1.0
    return x.float()


def _attribute_for_one(self, x):
    self.layers[ODD].scale = 5.0
    for layer in self.layers:
        x = layer(x)
    self.layers[ODD].scale = 2.0
    return x


def _attribute_between(self, x):
    for index, layer in enumerate(self.layers):
        layer.scale = float(index)
        x = layer(x)
        layer.scale = 2.0
    return x


def _buffer_for_one(self, x):
    self.layers[ODD].shift = x[0].detach()
    for layer in self.layers:
        x = layer(x)
    return x


def _dictionary_between(self, x):
    for index, layer in enumerate(self.layers):
        COUNTS["on"] = index % 3
        x = layer(x)
        COUNTS["on"] = 0
    return x


def _global_between(self, x):
    global FLAG
    for index, layer in enumerate(self.layers):
        FLAG = index
        x = layer(x)
    FLAG = 0
    return x


def _hook_between(self, x):
    for index, layer in enumerate(self.layers):
        if index == ODD:
            handle = layer.lin.register_forward_hook(_plus_one)
        x = layer(x)
    handle.remove()
    return x


def _class_attribute_between(self, x):
    for index, layer in enumerate(self.layers):
        Reads.factor = index
        x = layer(x)
    Reads.factor = 0
    return x


def _shapes_change(self, x):
    for layer in self.layers:
        x = layer(x)
        x = torch.cat([x, x]) if len(x) < 8 else x
    return x


def _views(self, x):
    for layer in self.layers:
        x = layer(x.t().contiguous().t())
    return x


def _dtypes_change(self, x):
    for index, layer in enumerate(self.layers):
        x = layer(x.requires_grad_() if index == 0 else x.detach() if index == 3 else x)
    return x


def _written_between(self, x):
    for layer in self.layers:
        x = layer(x)
        x = x.mul_(0.5) if layer.index % 2 else x + 1
    return x


def _same_twice(self, x):
    for index, layer in enumerate(self.layers):
        x = layer(x, x) if index % 2 else layer(x, x * 1)
    return x


def _shared_tensor(self, x):
    mask = torch.ones(4) * 3
    for index, layer in enumerate(self.layers):
        x = layer(x, mask)
        if index == 3:
            mask.add_(1)
    return x


def _list_of_program(self, x):
    seen = []
    for layer in self.layers:
        x = layer(x, seen)
    return x + len(seen)


def _dictionary_of_program(self, x):
    options = {"n": 0}
    for layer in self.layers:
        options["n"] += 1
        x = layer(x, options)
    return x


def _equal_dictionaries(self, x):
    for layer in self.layers:
        x = layer(x, {"n": 3, "x": x, "more": [None, (1.5, "a")]})
    return x


def _numbers(self, x):
    for index, layer in enumerate(self.layers):
        x = layer(x, index // 3)
    return x


def _catching(self, x):
    for layer in self.layers:
        try:
            x = layer(x)
        except ValueError:
            x = x * 2
    return x


def _collects(self, x):
    found = []
    for layer in self.layers:
        x = layer(x)
        found.append(x)
    return sum(found)


def _unrolled(self, x):
    x = self.layers[0](x)
    x = self.layers[1](x)
    x = self.layers[2](x)
    x = self.layers[3](x)
    return self.layers[4](x)


def _kept_inside(self, x):
    self.last = x * 1
    for index, layer in enumerate(self.layers):
        x = layer(self.last if index == ODD else x)
    return x


class Reads(Block):
    """A block that looks at everything that it is given, and at globals."""

    factor = 0

    def forward(self, x, *more):
        given = more[0] if more else 1
        if isinstance(given, list):
            given.append(1)
            given = len(given)
        if isinstance(given, dict):
            given = given["n"]
        if given is x:
            given = 7
        return x + self.inner(x) * given * (1 + COUNTS["on"] + FLAG + self.factor)


AROUND = {
    each.__name__: (each, number)
    for each, number in (
        *((_mode_for_one, 2), (_autocast_for_some, 0), (_attribute_for_one, 4), (_attribute_between, 0)),
        *((_buffer_for_one, 4), (_dictionary_between, 0), (_global_between, 0), (_hook_between, None)),
        *((_class_attribute_between, 0), (_shapes_change, 4), (_views, 0), (_dtypes_change, None)),
        *((_written_between, 4), (_same_twice, 4), (_shared_tensor, 4), (_list_of_program, 0)),
        *((_dictionary_of_program, 0), (_equal_dictionaries, BLOCKS - 2), (_numbers, 3), (_catching, BLOCKS - 2)),
        *((_collects, BLOCKS - 2), (_unrolled, 0), (_kept_inside, 4)),
    )
}


@pytest.mark.parametrize("name", AROUND)
def test_around_the_calls(copies, monkeypatch, name: str) -> None:
    forward, number = AROUND[name]
    found = check(model_of(Reads, forward), copies, monkeypatch, grad=name not in ("_dtypes_change", "_shared_tensor"))
    assert number is None or found == number


# -- gradients inside -----------------------------------------------------------------------------------------------


class Loss(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def backwards(self, x: torch.Tensor) -> None:
        self.model(x).square().mean().backward()

    def gradients(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(self.model(x).square().mean(), list(self.model.parameters()))

    def hooked(self, x: torch.Tensor) -> torch.Tensor:
        out = self.model(x)
        out.register_hook(lambda gradient: gradient * 2)
        return out.square().mean()


def _step(loss: Any, x: torch.Tensor) -> None:
    loss.backwards(x)


def test_gradients_inside(copies) -> None:
    """Tensors that copied calls make have no history of their own: such a capture starts over without copies."""
    x = torch.ones(2, 4)
    loss, other = Loss(Model()), Loss(Model())
    compiled(_step)(loss, x)
    other.backwards(x)
    assert copies[0] == BLOCKS - 2  # in the first attempt
    assert all(same(a.grad, b.grad) for a, b in zip(loss.parameters(), other.parameters(), strict=True))
    got = compiled(Loss.gradients)(loss, x)
    assert copies[0] == BLOCKS - 2  # the code of the function names what computes gradients
    assert same(got, other.gradients(x))


def test_hooks_on_results(copies) -> None:
    x = torch.ones(2, 4)
    loss, other = Loss(Model()), Loss(Model())
    compiled(Loss.hooked)(loss, x).backward()
    other.hooked(x).backward()
    assert copies[0] == BLOCKS - 2
    assert all(same(a.grad, b.grad) for a, b in zip(loss.parameters(), other.parameters(), strict=True))


# -- values of tensors ------------------------------------------------------------------------------------------------


class Masked(Block):
    def forward(self, x, mask):
        if mask.all():
            return x + self.inner(x)
        return x - self.inner(x)


def _masks(self, x):
    masks = (torch.arange(4) + torch.tensor([[0], [1]])) > 0
    for index, layer in enumerate(self.layers):
        x = layer(x, masks[index % 2] * True)
    return x


class Read(Block):
    def forward(self, x, n):
        return x + self.inner(x) * n.item()


def _reads_before(self, x):
    total = 0
    for _index, layer in enumerate(self.layers):
        n = x.detach().abs().sum() + 1
        total += n.item()
        x = layer(x, n)
    return x * total


@pytest.mark.parametrize(("block", "forward"), [(Masked, _masks), (Read, _reads_before)])
def test_values_of_tensors(copies, monkeypatch, block, forward) -> None:
    check(model_of(block, forward), copies, monkeypatch)


# -- numbers that change between calls ------------------------------------------------------------------------------


def test_a_number_that_changes_in_one_block(copies) -> None:
    """The number becomes an input of the graph; the numbers of other blocks stay constants."""

    class Whole(Block):
        def forward(self, x):
            return x + self.inner(x) * self.index

    model = model_of(Whole)
    for layer in model.layers:
        layer.index = 3
    run = compiled(model)
    x = torch.ones(2, 4)
    for number in (3, 4, 5, 6):
        model.layers[ODD].index = number
        assert torch.equal(run(x), model(x))
    assert len(entries_of(run)) == 2
    assert copies[0] == BLOCKS - 2 + BLOCKS - 4


def test_numbers_that_were_read_before_the_call(copies) -> None:
    """A number that is an input of the graph belongs to one block."""

    class Whole(Block):
        def forward(self, x):
            return x + self.inner(x) * self.index

    def sums(self, x):
        total = 0
        for layer in self.layers:
            total += layer.index
            x = layer(x)
        return x * total

    model = model_of(Whole, sums)
    run = compiled(model)
    x = torch.ones(2, 4)
    for number in (3, 4, 5, 6):
        for layer in model.layers:
            layer.index = number
        model.layers[ODD].index = number + 2
        assert torch.equal(run(x), model(x))


class LooksAtMask(Block):
    def forward(self, x):
        return x + (self.inner(x) if self.mask.all() else self.inner(x).cos())

    def look(self, x):
        return x + 1 if self.mask.all() else x


class LooksAtArray(Block):
    def forward(self, x):
        return x + self.inner(x) * torch.from_numpy(self.array)

    def look(self, x):
        return x + torch.from_numpy(self.array)


def _looks_before(self, x):
    for layer in self.layers:
        x = layer(layer.look(x))
    return x


@pytest.mark.parametrize("block", [LooksAtMask, LooksAtArray])
def test_values_that_were_read_before_the_call(copies, block: type[Block]) -> None:
    model = model_of(block, _looks_before)
    for index, layer in enumerate(model.layers):
        layer.mask = torch.tensor([True, index % 3 > 0])
        layer.array = numpy.full(4, index, dtype=numpy.float32)
    run = compiled(model)
    x = torch.ones(2, 4)
    assert torch.equal(run(x), model(x))


class Tagged(torch.Tensor):
    """A subclass of tensors."""


class ByClass(Block):
    def forward(self, x):
        return x + self.inner(x) * (2 if isinstance(x, Tagged) else 1)


def _tagged_for_one(self, x):
    for index, layer in enumerate(self.layers):
        x = layer(x.as_subclass(Tagged if index == ODD else torch.Tensor) * 1)
        x = x.as_subclass(torch.Tensor)
    return x


def test_tensors_of_subclasses(copies) -> None:
    model = model_of(ByClass, _tagged_for_one)
    x = torch.ones(2, 4)
    assert torch.equal(compiled(model)(x), model(x))


def test_stages_of_blocks(copies, monkeypatch) -> None:
    """Calls are copied in recorded calls, too."""

    class Stage(Block):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x):
            for part in self.parts:
                x = part(x)
            return x

    number = check(model_of(Stage), copies, monkeypatch)
    assert number == 2 + 4 + (BLOCKS - 2)

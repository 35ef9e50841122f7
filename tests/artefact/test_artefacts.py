"""Artefacts of models and functions: results, guards, what is not run, what is refused."""

from __future__ import annotations

import collections
import copy
import functools
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.artefact.container import ArtefactError
from smelt.artefact.programs import ProgramReader
from smelt.runtime import tune
from tests.artefact import models
from tests.artefact.models import ARGUMENTS, Branching, Classifier, Loud, Stateful, Statistics


def spec(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def through_a_file(artefact: Any, folder: Any) -> Any:
    artefact.save(folder / "one.smelt")
    return smelt.load(folder / "one.smelt")


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x.clone(),
    "transposed": lambda x: x.t().contiguous().t(),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "offset": lambda x: torch.cat([x[:1], x])[1:],
    "expanded": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_functions_give_what_eager_gives(name: str, grad: bool, layout: str, tmp_path: Any) -> None:
    if name == "written" and (grad or layout == "expanded"):
        pytest.skip("eager refuses to write to such an argument")
    f = getattr(models, name)
    given = [LAYOUTS[layout](x).detach().requires_grad_(grad) for x in ARGUMENTS[name]()]
    compiled = through_a_file(smelt.compile(f).aot_compile(*given), tmp_path).apply(f)
    results = []
    for fn in (f, compiled):
        args = [LAYOUTS[layout](x.detach().clone()).requires_grad_(grad) for x in given]
        out = fn(*args)
        out = out if isinstance(out, tuple) else (out,)
        if grad:
            sum(o.sum() for o in out).backward()
        results.append([*out, *args, *(a.grad for a in args if grad)])
    for want, have in zip(*results, strict=True):
        torch.testing.assert_close(have, want)
        assert (have.stride(), have._is_view()) == (want.stride(), want._is_view())


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_any_set_of_results_may_be_used(used: tuple[int, ...]) -> None:
    x, w = (t.requires_grad_() for t in ARGUMENTS["two"]())
    compiled = smelt.compile(models.two).aot_compile(x, w).apply(models.two)
    want, have = (torch.autograd.grad(sum(fn(x, w)[i].sum() for i in used), (x, w)) for fn in (models.two, compiled))
    torch.testing.assert_close(have, want)


def test_nothing_runs() -> None:
    model = Loud()
    models.ran.clear()
    state = torch.get_rng_state()
    artefact = smelt.compile(model).aot_compile(spec(4))
    count = smelt.stats()["graphs"]
    assert models.ran == [] and model.seen == 0 and torch.equal(state, torch.get_rng_state())
    compiled = artefact.apply(model)
    assert models.ran == [] and model.seen == 0 and torch.equal(state, torch.get_rng_state())
    assert smelt.stats()["graphs"] == count
    assert compiled(torch.ones(4)).shape == () and (models.ran, model.seen) == (["forward"], 1)


class Shape:
    """Has a shape and a type, as specifications of other libraries."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, torch.float32


def test_arguments_may_be_specifications() -> None:
    compiled = smelt.compile(models.scaled).aot_compile(Shape(2, 3), Shape(3, 2)).apply(models.scaled)
    x, y = torch.randn(2, 3), torch.randn(3, 2)
    torch.testing.assert_close(compiled(x, y), models.scaled(x, y))


def test_no_value_is_read() -> None:
    """A branch on a value cannot be taken; its hint names the line."""
    with pytest.raises(smelt.Unsupported, match="models.py"):
        smelt.compile(Branching()).aot_compile(torch.ones(4))


def test_every_size_that_is_marked() -> None:
    x = spec(6, 4)
    smelt.mark_dynamic(x, 0)
    compiled = smelt.compile(models.scaled).aot_compile(x, spec(4, 5)).apply(models.scaled)
    for rows in (2, 5, 33):
        a, b = torch.randn(rows, 4), torch.randn(4, 5)
        torch.testing.assert_close(compiled(a, b), models.scaled(a, b))
    with pytest.raises(ArtefactError, match=r"shape\[1\]: expected 4, got 3"):
        compiled(torch.randn(5, 3), torch.randn(3, 5))


def test_training_with_dynamic_sizes() -> None:
    model = Classifier()
    args = spec(6, 4), spec(6, dtype=torch.int64)
    compiled = smelt.compile(model, dynamic=True).aot_compile(*args).apply(model)
    for rows in (3, 9):
        out = compiled(torch.randn(rows, 4), torch.randint(0, 3, (rows,)))
        out.loss.backward()
        assert out.logits.shape == (rows, 3)


def test_buffers_are_written() -> None:
    model, other = Statistics(), Statistics()
    compiled = smelt.compile(model).aot_compile(spec(6, 4)).apply(model)
    x = torch.randn(6, 4)
    torch.testing.assert_close(compiled(x), other(x))
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_a_call_that_does_not_fit() -> None:
    model = Statistics()
    artefact = smelt.compile(model).aot_compile(spec(6, 4))
    compiled, lenient = artefact.apply(model), artefact.apply(model, otherwise="original")
    for change, words in (
        (lambda: model.eval(), "training"),
        (lambda: model.norm.register_forward_hook(print), "hook"),
    ):
        change()
        with pytest.raises(ArtefactError, match=words):
            compiled(torch.randn(6, 4))
        assert lenient(torch.randn(6, 4))["y"].shape == (6, 4)
        model.train()
    with pytest.raises(ArtefactError, match="grad mode was 1, and is 0"), torch.no_grad():
        compiled(torch.randn(6, 4))


def test_hooks_of_the_model_itself_run() -> None:
    model = Statistics()
    compiled = smelt.compile(model).aot_compile(spec(6, 4)).apply(model)
    seen: list[str] = []
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_forward_hook(lambda *_: seen.append("after"))
    compiled(torch.randn(6, 4))
    assert seen == ["before", "after"]


def test_errors_are_those_of_eager() -> None:
    x, at = torch.randn(4), torch.tensor([0, 3])
    compiled = smelt.compile(models.picked).aot_compile(x, at).apply(models.picked)
    torch.testing.assert_close(compiled(x, at), models.picked(x, at))
    with pytest.raises(IndexError) as want:
        models.picked(x, at + 3)
    with pytest.raises(IndexError) as have:
        compiled(x, at + 3)
    assert str(have.value) == str(want.value)


def test_second_derivatives_are_refused() -> None:
    x, w = (t.requires_grad_() for t in ARGUMENTS["two"]())
    compiled = smelt.compile(models.two).aot_compile(x, w).apply(models.two)
    (grad,) = torch.autograd.grad(compiled(x, w)[1], x, create_graph=True)
    with pytest.raises(smelt.SmeltError, match="second derivative"):
        grad.sum().backward()


def test_a_reset_forgets_nothing_of_an_artefact() -> None:
    compiled = smelt.compile(models.scaled).aot_compile(spec(3, 4), spec(4, 5)).apply(models.scaled)
    x, y = ARGUMENTS["scaled"]()
    want = compiled(x, y)
    smelt.reset()
    torch.testing.assert_close(compiled(x, y), want)
    smelt.compile(models.scaled)(x.double(), y.double())
    torch.testing.assert_close(compiled(x, y), want)


def test_two_models_beside_each_other_and_beside_compile() -> None:
    one, two = Classifier().eval(), Classifier().eval()
    x, labels = torch.randn(5, 4), torch.randint(0, 3, (5,))
    with torch.no_grad():
        artefact = smelt.compile(one).aot_compile(x, labels)
        first, second, third = artefact.apply(one), artefact.apply(two), smelt.compile(two)
        for have, want in ((first, one), (second, two), (third, two), (first, one)):
            torch.testing.assert_close(have(x, labels).logits, want(x, labels).logits)


def test_copies_and_pickles() -> None:
    model = Classifier().eval()
    x, labels = torch.randn(5, 4), torch.randint(0, 3, (5,))
    with torch.no_grad():
        compiled = smelt.compile(model).aot_compile(x, labels).apply(model)
        copied = copy.deepcopy(compiled)
        assert smelt.is_compiled(copied) and copied.first.weight is not model.first.weight
        torch.testing.assert_close(copied(x, labels).logits, model(x, labels).logits)
        again = pickle.loads(pickle.dumps(compiled))
        assert not smelt.is_compiled(again) and type(again) is Classifier


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another width": (lambda: Classifier(16), "first.weight was torch.float32 [8, 4] cpu, and is"),
    "another type": (lambda: Classifier().double(), "torch.float64"),
    "another class": (Statistics, "Statistics"),
    "a function": (lambda: models.scaled, "is for a module"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_model_is_refused(case: str, tmp_path: Any) -> None:
    artefact = smelt.compile(Classifier()).aot_compile(spec(5, 4), spec(5, dtype=torch.int64))
    make, words = REFUSED[case]
    with pytest.raises(ArtefactError) as error:
        through_a_file(artefact, tmp_path).apply(make())
    assert words in str(error.value)


def helper(x: Tensor) -> Tensor:
    return x + 1


def other_helper(x: Tensor) -> Tensor:
    return x + 2


def calls_helper(x: Tensor) -> Tensor:
    return helper(x) * 2


def test_a_function_that_it_calls_has_another_source(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = through_a_file(smelt.compile(calls_helper).aot_compile(spec(3)), tmp_path)
    compiled = loaded.apply(calls_helper)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 4.0))
    monkeypatch.setattr(helper, "__code__", other_helper.__code__)
    with pytest.raises(ArtefactError, match="helper"):
        compiled(torch.ones(3))
    with pytest.raises(ArtefactError, match="another"):
        loaded.apply(calls_helper)


def test_the_reason_why_a_value_cannot_be_stored() -> None:
    def inside(x: Tensor) -> Tensor:
        return x * factor

    factor = torch.tensor(2.0)
    with pytest.raises(ArtefactError):
        smelt.compile(inside, backend="smelt").aot_compile(spec(3)).apply(nn.Linear(3, 3))
    with pytest.raises(smelt.Unsupported, match="aot_eager"):
        smelt.compile(helper, backend="aot_eager").aot_compile(spec(3))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        smelt.compile(models.scaled).aot_compile(spec(3, 4))
    with torch.device("meta"):
        model = Classifier()
    with pytest.raises(ArtefactError, match="meta device"):
        smelt.compile(model).aot_compile(spec(5, 4), spec(5, dtype=torch.int64))
    with pytest.raises(smelt.OptionError, match="otherwise"):
        smelt.compile(helper).aot_compile(spec(3)).apply(helper, otherwise="perhaps")


def test_a_profiler_may_look() -> None:
    compiled = smelt.compile(models.two).aot_compile(*ARGUMENTS["two"]()).apply(models.two)
    with torch.autograd.profiler.profile() as profile:
        compiled(*ARGUMENTS["two"]())
    assert "smelt: two" in {event.name for event in profile.function_events}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        compiled(*ARGUMENTS["two"]())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "any arguments": (models.Star, lambda: (torch.randn(3, 4), torch.randn(3, 4))),
    "a decorator": (models.Decorated, lambda: (torch.randn(3, 4),)),
    "tied weights": (models.Tied, lambda: (torch.randint(0, 10, (2, 5)),)),
    "a dictionary": (models.Doubled, lambda: ({"x": torch.randn(3), "y": torch.randn(2, 2)},)),
    "images": (models.Images, lambda: (torch.randn(2, 3, 8, 8),)),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, mode: Callable[[], Any], tmp_path: Any) -> None:
    make, arguments = MODELS[name]
    model, args = make(), arguments()
    other = copy.deepcopy(model)
    with mode():
        compiled = through_a_file(smelt.compile(model).aot_compile(*args), tmp_path).apply(model)
        torch.testing.assert_close(compiled(*args), other(*args), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_named_tuples_and_closures(tmp_path: Any) -> None:
    x = torch.randn(3)
    have = through_a_file(smelt.compile(models.pair).aot_compile(x), tmp_path).apply(models.pair)(x)
    assert type(have) is models.Pair and torch.equal(have.b, x * 2)
    times = models.closure(3)
    compiled = smelt.compile(times).aot_compile(x).apply(times)
    torch.testing.assert_close(compiled(x), x * 3)
    with pytest.raises(ArtefactError):
        smelt.compile(times).aot_compile(x).apply(models.closure(4))(x)


def test_settings_that_the_program_reads_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = models.Decorated(), torch.randn(3, 4)
    compiled = smelt.compile(model).aot_compile(x).apply(model)
    compiled(x)
    monkeypatch.setattr(models, "SCALE", 4.0)
    with pytest.raises(ArtefactError, match="SCALE == 3.0, and is now 4.0"):
        compiled(x)
    monkeypatch.undo()
    torch.testing.assert_close(compiled(x), model(x))
    model.mode = models.Mode.B
    with pytest.raises(ArtefactError, match="mode"):
        compiled(x)


def test_bound_methods_are_refused_with_a_hint() -> None:
    with pytest.raises(ArtefactError, match="for a module or a function"):
        smelt.compile(Statistics().forward).aot_compile(spec(6, 4))


def test_choices_of_kernels_come_along() -> None:
    names = ("first", "second")
    for winner, known in (("third", None), ("second", "second"), ("first", "second")):
        tune.take("an operation of this test", names, winner)
        assert tune.remembered("an operation of this test", names) == known
    artefact = smelt.compile(models.scaled).aot_compile(spec(128, 256), spec(256, 96))
    choices = artefact.container.contents["graphs"][0]["choices"]
    assert choices and all(winner in candidates for _, candidates, winner in choices)


def test_versions_that_differ_in_guards_alone_share_their_programs(tmp_path: Any) -> None:
    """A model that makes an attribute in its first call: the later ones have other guards, and the same graph."""
    artefact = smelt.compile(models.Stateful("late")).aot_compile(spec(3, 4))
    contents = artefact.container.contents
    assert [each["graph"] for each in contents["versions"]] == [0, 0] and len(contents["graphs"]) == 1
    again = artefact.add(spec(5, 4)).add(spec(3, 4)).container.contents
    assert [each["graph"] for each in again["versions"]] == [0, 0, 1, 1, 0, 0] and len(again["graphs"]) == 2
    assert len(set(artefact.container.blobs)) == len(artefact.container.blobs)


def test_backward_programs_are_loaded_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    original = ProgramReader._program
    monkeypatch.setattr(ProgramReader, "_program", lambda self, *args: loaded.append(args) or original(self, *args))
    x, w = (t.requires_grad_() for t in ARGUMENTS["two"]())
    compiled = smelt.compile(models.two).aot_compile(x, w).apply(models.two)
    counts = [len(loaded)]
    for used in ((1,), (1,), (0,), (0,), (0, 1, 2), (0, 1), (2,)):
        results = compiled(x, w)
        torch.autograd.grad(sum(results[i].sum() for i in used), (x, w))
        counts.append(len(loaded))
    assert counts == [2, 2, 2, 3, 3, 4, 4, 5]  # the forward and the likely backward first; (0, 1) is a sum


def _breaks(x: Tensor) -> Tensor:
    y = x.sin()
    time.sleep(0)
    return y * 2


def _breaks_on_purpose(x: Tensor) -> Tensor:
    y = x.sin()
    smelt.graph_break()
    return y * 2


def _branches(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def _branches_apart(x: Tensor) -> Tensor:
    return x[:1] if x.sum() > 0 else x - 1


def _finds(x: Tensor) -> Tensor:
    y = x + 1
    found = y.nonzero()
    return y[found[:, 0]] * 2


class _Named:
    def __init__(self, factor: float) -> None:
        self.factor = factor


_TWO, _HALF = _Named(2.0), _Named(0.5)


@pytest.mark.parametrize(
    "read",
    [
        lambda: [each.factor for each in {_TWO, _HALF}],
        lambda: [2.0 if each is len else 0.5 for each in {len, "a"}],
        lambda: [each for each in {float("nan"), 1.0, float("nan")}],
        lambda: [hash(len) % 7],
        lambda: list(map(len, {(1, _TWO), (2, 3), (4, 5, 6)})),
        lambda: list(map(len, {(1, len), (2, 3), (4, 5, 6)})),
        pytest.param(
            lambda: [2.0 if each is None else 0.5 for each in {None, "a"}],
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="the hash of None is constant"),
        ),
    ],
)
def test_an_order_that_follows_from_addresses_is_refused(read: Callable[[], list[float]]) -> None:
    def function(x: Tensor) -> Tensor:
        for factor in read():
            x = (x * factor + 1).sin()
        return x

    x = torch.randn(4)
    torch.testing.assert_close(smelt.compile(function)(x), function(x), equal_nan=True)
    with pytest.raises(ArtefactError, match="follows from the addresses of objects"):
        smelt.compile(function).aot_compile(x)


@pytest.mark.parametrize(
    "function, what",
    [
        (_finds, "nonzero gives a data-dependent number of elements"),
        (_breaks, "a call of time.sleep"),
        (_breaks_on_purpose, "graph_break"),
        (_branches, "the graph is cut at a branch on a tensor's value"),
        (_branches_apart, "a branch on a tensor's value"),
    ],
)
def test_a_break_is_refused_with_its_line_and_what_to_try(function: Any, what: str) -> None:
    with pytest.raises(smelt.Unsupported, match=what) as found:
        smelt.compile(function).aot_compile(spec(4, 3))
    first, last = function.__code__.co_firstlineno, max(line for *_, line in function.__code__.co_lines() if line)
    assert found.value.hint and found.value.at is not None
    file, line = found.value.at.rsplit(":", 1)
    assert file == __file__ and first < int(line) <= last


def _scaled_by_a_number(x: Tensor) -> Tensor:
    return x * x.sum().item()


def _number(x: Tensor) -> Any:
    return x.sum().item()


def _numbers(x: Tensor) -> Any:
    return (x * 2).tolist()


@pytest.mark.parametrize("function", [_scaled_by_a_number, _number, _numbers])
def test_numbers_that_are_read_are_those_of_each_call(function: Any, tmp_path: Any) -> None:
    smelt.compile(function).aot_compile(spec(4, 3)).save(tmp_path / "numbers")
    compiled = smelt.load(tmp_path / "numbers").apply(function)
    for _ in range(3):
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("what", ["count", "ready", "late", "inner"])
def test_calls_after_one_that_wrote_what_it_reads(what: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    model, x = Stateful(what), torch.randn(3, 4)
    eager = copy.deepcopy(model)
    before = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    artefact = through_a_file(smelt.compile(model).aot_compile(spec(3, 4)), tmp_path)
    assert {name: value for name, value in vars(model).items() if not name.startswith("_")} == before
    assert model.inner.count == 7
    compiled = artefact.apply(model)
    for _ in range(5):
        torch.testing.assert_close(compiled(x), eager(x))
    assert (model.count, model.ready, model.inner.count) == (eager.count, eager.ready, eager.inner.count)


class Remembering(nn.Module):
    """Writes containers that it reads: `what` says which."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.inner, self.what = nn.Linear(4, 4), what
        self.table: dict[str, Any] = {"count": 0, "inner": [0, []]}
        self.items, self.seen, self.queue = [0, 1.5], set[Any](), collections.deque([1, 2], maxlen=2)
        self.ordered = collections.OrderedDict(a=1, b=2)

    def factor(self) -> Any:
        if self.what == "new key":
            first, self.table["ready"] = "ready" not in self.table, True
            return 2 if first else 3
        if self.what == "count":
            self.table["count"] += 1
            return self.table["count"]
        if self.what == "bounded":
            self.items[0] = min(self.items[0] + 1, 3)
            return self.items[0]
        if self.what == "inner list":
            if len(self.table["inner"][1]) < 2:
                self.table["inner"][1].append({"n": len(self.table["inner"][1])})
            return len(self.table["inner"][1]) + self.table["inner"][1][-1]["n"]
        if self.what == "deleted":
            return self.table.pop("count", 5) + 1
        if self.what == "set":
            self.seen.add("a" if not self.seen else "b")
            return len(self.seen)
        if self.what == "set of colliding hashes":
            self.seen.add(7 if not self.seen else 15)
            return [*self.seen][0]
        if self.what == "queue":
            self.queue.append(3)
            return self.queue[0]
        if self.what == "order":
            if next(iter(self.ordered)) == "a":
                self.ordered.move_to_end("a")
                return 7
            return 8
        global _CALLS
        _CALLS = min(_CALLS + 1, 3)
        return _CALLS

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor()

    def written(self) -> Any:
        parts = (self.table, self.items, self.seen, self.queue, [*self.ordered.items()], _CALLS)
        return copy.deepcopy(parts)


_CALLS = 0


@pytest.mark.parametrize(
    "what",
    [
        "new key",
        "count",
        "bounded",
        "inner list",
        "deleted",
        "set",
        "set of colliding hashes",
        "queue",
        "order",
        "global",
    ],
)
def test_calls_after_one_that_wrote_a_container_or_a_global_that_it_reads(
    what: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "_CALLS", 0)
    model, x = Remembering(what), torch.randn(3, 4)
    eager, before = copy.deepcopy(model), model.written()
    artefact = through_a_file(smelt.compile(model).aot_compile(spec(3, 4)), tmp_path)
    assert model.written() == before
    compiled = artefact.apply(model)
    got = [(compiled(x), model.written()) for _ in range(5)]
    monkeypatch.setitem(globals(), "_CALLS", 0)
    for result, written in got:
        torch.testing.assert_close(result, eager(x))
        assert written == eager.written()


class Layer:
    """Keys of a layer, in an object of a class of its own."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None


class Recurrent(nn.Module):
    """Keeps tensors that the next call reads: `what` says where."""

    def __init__(self, what: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.what = nn.Linear(4, 4), what
        self.last: Any = None
        self.table: dict[Any, Any] = {}
        self.layers = [Layer(), Layer()]
        self.items, self.queue = [torch.ones(4)], collections.deque[Any](maxlen=2)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, KEEPS[self.what](self, x, self.inner(x)))

    def kept(self) -> Any:
        return self.last, self.table, self.items, [*self.queue], [layer.keys for layer in self.layers]


def _attribute(self: Recurrent, x: Tensor, y: Tensor, kept: Callable[[Tensor], Any] = Tensor.detach) -> Tensor:
    out = y if self.last is None else y + self.last
    self.last = kept(y)
    return out


def _argument(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    out = y if self.last is None else y + self.last * (2 if self.last is x else 3)
    self.last = x
    return out


def _pair(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    h, c = (torch.zeros(3, 4), torch.zeros(3, 4)) if self.last is None else self.last
    self.last = torch.tanh(y + h).detach(), (c * 0.5 + h).detach()
    return y + self.last[1]


def _one_object(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    out = y if self.last is None else y * (2 if self.last is self.table["y"] else 3)
    self.last = self.table["y"] = y.detach()
    return out


def _nested(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    out = y if "a" not in self.table else y + self.table["a"]["k"][0] * self.table["a"]["k"][1]
    self.table["a"] = {"k": [y.detach(), 2]}
    return out


def _queue(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    for each in self.queue:
        y = y + each
    self.queue.append(y.detach())
    return y


def _list(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    for each in self.items:
        y = y * each
    self.items.append(y.detach())
    if len(self.items) > 2:
        self.items.pop(0)
    return y


def _objects(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    for layer in self.layers:
        layer.keys = y.detach() if layer.keys is None else torch.cat([layer.keys, y.detach()])
        y = y + layer.keys.mean(0)
    return y


def _in_place(self: Recurrent, x: Tensor, y: Tensor) -> Tensor:
    if "sum" not in self.table:
        self.table["sum"] = torch.zeros(4)
    self.table["sum"].mul_(0.5).add_(y.detach().sum(0))
    return y + self.table["sum"]


KEEPS: dict[str, Callable[[Recurrent, Tensor, Tensor], Tensor]] = {
    "attribute": _attribute,
    "with a history": functools.partial(_attribute, kept=lambda y: y),
    "bfloat16": functools.partial(_attribute, kept=lambda y: y.detach().bfloat16()),
    "transposed": functools.partial(_attribute, kept=lambda y: y.detach().t().contiguous().t()),
    "row": functools.partial(_attribute, kept=lambda y: y.detach()[1]),
    "argument": _argument,
    "pair": _pair,
    "one object twice": _one_object,
    "nested": _nested,
    "queue": _queue,
    "list": _list,
    "objects, longer at each call": _objects,
    "in place": _in_place,
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("what", KEEPS)
def test_calls_that_read_tensors_which_a_call_has_kept(what: str, mode: Callable[[], Any], tmp_path: Any) -> None:
    """The tensors do not exist when versions are compiled: stand-ins with their metadata are found in their stead."""
    model, eager, x = Recurrent(what), Recurrent(what), torch.randn(3, 4)
    before = copy.deepcopy(model.kept())
    with mode():
        artefact = through_a_file(smelt.compile(model).aot_compile(spec(3, 4)), tmp_path)
        assert str(model.kept()) == str(before)
        compiled = artefact.apply(model)
        for _ in range(4):
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x), eager(x))
            torch.testing.assert_close(model.kept(), eager.kept())


def test_a_list_of_tensors_without_end_is_refused() -> None:
    class Hoards(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            self.items.append(self.inner(x).detach())
            return x * len(self.items)

    model = Hoards("list")
    with pytest.raises(smelt.Unsupported, match=r"len\(self.items\) was"):
        smelt.compile(model).aot_compile(spec(3, 4))
    assert len(model.items) == 1


def test_tensors_in_containers_are_those_of_the_model_that_is_given(tmp_path: Any) -> None:
    model, other, x = Recurrent("list"), Recurrent("list"), torch.randn(3, 4)
    artefact = through_a_file(smelt.compile(model).aot_compile(spec(3, 4)), tmp_path)
    other.items[0] = torch.randn(4)
    eager = copy.deepcopy(other)
    torch.testing.assert_close(artefact.apply(other)(x), eager(x))
    other.items[0] = torch.randn(5)
    with pytest.raises(ArtefactError, match=r"self.items\[0\]: shape"):
        artefact.apply(other)(x)


@pytest.mark.parametrize(
    "what, error, told", [("text", smelt.Unsupported, "self.text"), ("scale", ArtefactError, "numbers that change")]
)
def test_versions_without_end_are_refused(what: str, error: type[Exception], told: str) -> None:
    model = Stateful(what)
    with pytest.raises(error, match=told):
        smelt.compile(model).aot_compile(spec(3, 4))
    assert (model.text, model.scale) == ("", 0.5)

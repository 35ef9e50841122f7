"""Versions by the kinds of inputs: what differs gets its own, what does not shares one; errors and limits."""

import gc
import threading
import weakref

import pytest
import torch

import smelt
from smelt.capture import _native as native
from smelt.capture.guards.kinds import kind_of, variants_by_kind


class Subclass(torch.Tensor):
    pass


BASE = torch.arange(12.0).reshape(3, 4)
KINDS = {
    "plain": BASE,
    "dtype": BASE.double(),
    "shape": BASE[:2],
    "rank": BASE[0],
    "order": BASE.t().contiguous().t(),
    "gaps": torch.zeros(3, 8)[:, :4],
    "expanded": torch.zeros(4).expand(3, 4),
    "device": BASE.to("meta"),
    "requires_grad": BASE.clone().requires_grad_(),
    "parameter": torch.nn.Parameter(BASE.clone()),
    "subclass": BASE.as_subclass(Subclass),
    "conjugate": BASE.to(torch.complex64).conj(),
    "complex": BASE.to(torch.complex64),
    "negative": torch._neg_view(BASE),
    "sparse": BASE.to_sparse(),
    "quantized": torch.quantize_per_tensor(BASE, 0.5, 0, torch.qint8),
    "empty": BASE[:0],
    "none": None,
    "int": 1,
    "other int": 2,
    "bool": True,
    "float": 1.0,
    "zero": 0.0,
    "negative zero": -0.0,
    "nan": float("nan"),
    "text": "1",
    "tuple": (1, 2),
}
SAME = {
    "plain": BASE + 1,
    "gaps": torch.ones(5, 8)[1:4, 2:6],
    "requires_grad": (BASE.clone().requires_grad_() * 2),
    "parameter": torch.nn.Parameter(BASE * 3),
    "sparse": (BASE + 1).to_sparse(),
    "nan": float("nan"),
    "tuple": (1, 2),
    "int": 1,
}


def made(most=100):
    """A function that gives the number of its version, and the inputs for which versions were made."""
    inputs = []

    def make(given, kept):
        inputs.append((given, kept))
        number = len(inputs)
        return lambda *_: number

    return variants_by_kind(make, most), inputs


@pytest.mark.parametrize("beside", [0, 2])
def test_each_kind_has_a_version_of_its_own(beside):
    run, inputs = made()
    others = [BASE] * beside
    first = {name: run(*others, value) for name, value in KINDS.items()}
    assert len({*first.values()}) == len(KINDS) == len(inputs) == len(run)
    assert {name: run(*others, value) for name, value in reversed(KINDS.items())} == first
    assert {name: run(*others, value) for name, value in SAME.items()} == {name: first[name] for name in SAME}
    assert len(inputs) == len(KINDS)


def test_the_number_of_inputs_and_their_positions_count():
    run, inputs = made()
    calls = [(), (BASE,), (BASE, BASE), (BASE, 1), (1, BASE)]
    assert len({run(*call) for call in calls}) == len(calls) == len(inputs)


def test_the_grad_mode_counts():
    run, _ = made()
    with torch.no_grad():
        without = run(BASE)
    assert run(BASE) != without
    with torch.no_grad():
        assert run(BASE) == without


def test_a_tensor_that_is_changed_in_place_is_of_another_kind():
    run, _ = made()
    tensor = torch.ones(4)
    first = run(tensor)
    tensor.requires_grad_()
    second = run(tensor)
    tensor.requires_grad_(False)
    tensor.resize_(2)
    assert len({first, second, run(tensor)}) == 3


def test_beyond_the_most_nothing_is_kept():
    run, inputs = made(most=2)
    assert [run(n) for n in (1, 2, 3, 3, 1, 2)] == [1, 2, 3, 4, 1, 2]
    assert [kept for _, kept in inputs] == [True, True, False, False]


def test_an_error_of_the_maker_is_raised_and_nothing_is_kept():
    answers = [ValueError("no"), None]

    def make(given, kept):
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return lambda value: value

    run = native.Variants(make, kind_of, torch.is_grad_enabled, 4)
    with pytest.raises(ValueError, match="no"):
        run(3)
    assert run(3) == 3 == run(3) and len(run) == 1


def test_a_maker_that_calls_itself_for_another_kind():
    def make(given, kept):
        return lambda n: n if n == 0 else n + run(n - 1)

    run = native.Variants(make, kind_of, torch.is_grad_enabled, 16)
    assert run(5) == 15 == run(5) and len(run) == 6


def test_inputs_and_makers_are_let_go():
    class Maker:
        def __call__(self, given, kept):
            return lambda *inputs: None

    maker = Maker()
    maker.run = native.Variants(maker, kind_of, torch.is_grad_enabled, 4)
    tensor = torch.ones(3)
    gone = weakref.ref(maker), weakref.ref(tensor)
    maker.run(tensor)
    del maker, tensor
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_threads_make_versions_side_by_side():
    run, inputs = made()
    results = []
    threads = [threading.Thread(target=lambda: results.append([run(n % 7) for n in range(200)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row in results:
        assert all(inputs[version - 1][0] == (n % 7,) for n, version in enumerate(row))


def test_wrong_arguments_are_errors():
    with pytest.raises(TypeError):
        native.Variants(1, kind_of, torch.is_grad_enabled, 4)
    with pytest.raises(TypeError):
        native.Variants(made, kind_of, torch.is_grad_enabled, 0)
    with pytest.raises(TypeError):
        made()[0](value=1)


def test_a_branch_runs_as_in_eager_for_tensors_of_several_kinds():
    def f(x):
        if x.sum() > 0:
            x = x * 2
        else:
            x = x.sin() - 1
        return x + 1

    compiled = smelt.compile(f)
    for _ in range(3):
        for x in (BASE, -BASE, BASE.double(), -BASE.t(), BASE[0], -BASE[:, 1]):
            torch.testing.assert_close(compiled(x), f(x))

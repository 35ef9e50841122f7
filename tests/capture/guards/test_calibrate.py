"""Tensor metadata and ambient modes as the C core reads them: against Python's answers, fast way and slow way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from smelt.capture import _native as native  # noqa: E402
from smelt.capture.guards import calibrate as calibration  # noqa: E402
from smelt.capture.guards.calibrate import calibrate, describe  # noqa: E402


@pytest.fixture(autouse=True)
def calibrated() -> None:
    calibrate()


@pytest.fixture(params=["raw", "described"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to read metadata: memory, and Python where the layout was not found."""
    if request.param == "described":
        native.set_tensor_layout(torch.Tensor, describe, None)
    yield request.param
    native.set_tensor_layout(torch.Tensor, describe, calibrate().tensors)


def tensor_guards(*specs: native.TensorSpec) -> native.Guards:
    fetches = [(-1, native.LOCAL, i) for i in range(len(specs))]
    return native.Guards(fetches, [(i, native.TENSOR, spec) for i, spec in enumerate(specs)], [])


class Subclass(torch.Tensor):
    pass


def make_tensors() -> dict[str, Any]:
    base = torch.zeros(2, 3, 4)
    with torch.inference_mode():
        inference = torch.zeros(2, 3, 4)
    return {
        "plain": base,
        "other size": torch.zeros(2, 3, 5),
        "more dims": torch.zeros(2, 3, 4, 1),
        "seven dims": torch.zeros(1, 2, 1, 3, 1, 4, 1),
        "other strides of seven": torch.zeros(1, 2, 1, 3, 1, 4, 1).transpose(1, 3).contiguous().transpose(1, 3),
        "scalar": torch.zeros(()),
        "empty": torch.zeros(0),
        "other strides": torch.zeros(4, 3, 2).transpose(0, 2),
        "double": base.double(),
        "half": base.half(),
        "bfloat16": base.bfloat16(),
        "int": base.int(),
        "bool": base.bool(),
        "requires grad": torch.zeros(2, 3, 4, requires_grad=True),
        "parameter": torch.nn.Parameter(base.clone()),
        "frozen parameter": torch.nn.Parameter(base.clone(), requires_grad=False),
        "subclass": base.as_subclass(Subclass),
        "meta": torch.zeros(2, 3, 4, device="meta"),
        "inference": inference,
        "complex": torch.zeros(2, 3, 4, dtype=torch.complex64),
        "conjugate": torch.zeros(2, 3, 4, dtype=torch.complex64).conj(),
        "negative": torch.zeros(2, 3, 4, dtype=torch.complex64).conj().imag,
        "sparse": torch.zeros(2, 3, 4).to_sparse(),
        "onednn": torch.zeros(2, 3, 4).to_mkldnn(),
    }


def test_calibration_finds_this_torch() -> None:
    """On the versions of the test set-up nothing may need the slow way."""
    found = calibrate()
    assert found.tensors is not None and found.dispatch_keys and all(found.tensors.values())
    assert {"grad mode", "inference mode", "autocast on cpu", "autocast dtype on cpu", "default dtype"} <= set(
        found.native_readers
    )


def test_a_spec_matches_exactly_its_like(way: str) -> None:
    tensors = make_tensors()
    specs = {name: native.TensorSpec(t) for name, t in tensors.items()}
    for mine, spec in specs.items():
        for other, t in tensors.items():
            holds = tensor_guards(spec).check((t,), {}) is not None
            assert holds == (mine == other), (mine, other)
            assert spec.matches(t) == holds
            assert (spec.mismatch(t) is None) == holds
        assert not spec.matches(3) and not spec.matches(None)
    raw = {name for name, spec in specs.items() if spec.raw}
    assert raw == (set(tensors) - {"sparse", "onednn"} if way == "raw" else set())


def test_leaves_and_results_are_alike(way: str) -> None:
    leaf = torch.zeros(3, requires_grad=True)
    assert native.TensorSpec(leaf).matches(leaf * 1)


def test_mismatch_reports_what_differs(way: str) -> None:
    tensors = make_tensors()
    spec = native.TensorSpec(tensors["plain"])
    expected = {
        "other size": "shape[2]: expected 4, got 5",
        "more dims": "dimensions: expected 3, got 4",
        "other strides": "stride[0]: expected 12, got 1",
        "double": "dtype: expected torch.float32, got torch.float64",
        "meta": "device: expected cpu, got meta",
        "requires grad": "requires_grad: expected False",
        "parameter": "class: expected Tensor, got Parameter",
    }
    assert {name: spec.mismatch(tensors[name]) for name in expected} == expected
    assert spec.mismatch(tensors["inference"]).startswith("dispatch keys: expected")


def test_wildcards(way: str) -> None:
    example = torch.zeros(2, 3, 4)
    spec = native.TensorSpec(example, shape=(None, 3, 4))
    assert spec.shape == (None, 3, 4) and spec.stride == (12, 4, 1)
    assert spec.matches(torch.zeros(7, 3, 4)) and not spec.matches(torch.zeros(7, 2, 4))
    every = (None,) * 6
    dense = native.TensorSpec(example, shape=every[:3], stride=every[:3], order=(2, 1, 0))
    assert dense.matches(torch.zeros(5, 6, 7)) and dense.matches(torch.zeros(5, 0, 7))
    assert not dense.matches(torch.zeros(5, 6, 7).transpose(0, 1))
    assert not dense.matches(torch.zeros(6, 1, 7).transpose(0, 1)), "a dimension of size 1 has a stride, too"
    turned = native.TensorSpec(example, shape=every[:3], stride=every[:3], order=(2, 0, 1))
    assert turned.matches(torch.zeros(6, 1, 7).transpose(0, 1)) and not turned.matches(torch.zeros(5, 6, 7))
    partly = native.TensorSpec(example, shape=every[:3], stride=(100, None, None), order=(2, 1))
    assert partly.matches(torch.zeros(1, 6, 7).as_strided((1, 6, 7), (100, 7, 1)))
    assert not partly.matches(torch.zeros(1, 6, 7)) and "order (2, 1)" in partly.mismatch(torch.zeros(1, 7, 6).mT)
    loose = native.TensorSpec(example, stride=(None, None, 1), requires_grad=None)
    assert loose.matches(torch.zeros(3, 2, 4, requires_grad=True).transpose(0, 1))
    assert not loose.matches(torch.zeros(2, 4, 3).transpose(1, 2))
    many = native.TensorSpec(
        torch.zeros(1, 2, 3, 4, 5, 6), shape=(1, 2, 3, None, 5, 6), stride=every, order=range(5, -1, -1)
    )
    assert many.matches(torch.zeros(1, 2, 3, 9, 5, 6)) and not many.matches(torch.zeros(2, 1, 3, 9, 5, 6))
    for wrong in ({"shape": (1, 2)}, {"stride": "dense"}, {"stride": (1,)}, {"order": (3,)}, {"order": (0, 1, 2, 0)}):
        with pytest.raises(ValueError):
            native.TensorSpec(example, **wrong)
    with pytest.raises(TypeError):
        native.TensorSpec(3)


def test_changes_in_place_are_seen(way: str) -> None:
    layer = torch.nn.Linear(3, 3)
    guards = tensor_guards(native.TensorSpec(layer.weight))
    assert guards.check((layer.weight,), {}) is not None
    layer.weight.requires_grad_(False)
    assert guards.check((layer.weight,), {}) is None
    layer.weight.requires_grad_(True)
    layer.double()
    assert guards.check((layer.weight,), {}) is None
    layer.float()
    layer.weight.data = torch.zeros(3, 4)
    assert guards.check((layer.weight,), {}) is None


def test_memory_that_was_asked_for_early_may_be_gone(way: str) -> None:
    """The addresses of the last call are no more than hints: what lay there may have died, or be something else."""
    count = 100
    given = [torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(count)]
    guards = tensor_guards(*map(native.TensorSpec, given))
    for turn in range(20):
        assert guards.check(given, {}) is not None
        others: list[Any] = [*map(str, range(count))] if turn % 2 else [torch.zeros(2, 3) for _ in range(count)]
        given.clear()
        assert guards.check(others, {}) is None
        given += [torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(count)]
        given[-1] = torch.nn.Parameter(torch.zeros(2, 4))
        assert guards.check(given, {}) is None
        given[-1] = torch.nn.Parameter(torch.zeros(2, 3))


def test_sizes(way: str) -> None:
    for tensor in (torch.zeros(2, 3), torch.zeros(1, 2, 3, 4, 5, 6, 7)):
        any_of = (None,) * tensor.dim()
        spec = native.TensorSpec(tensor, shape=any_of, stride=any_of, order=range(tensor.dim() - 1, -1, -1))
        fetches = [(-1, native.LOCAL, 0), (0, native.SIZE, 0), (0, native.SIZE, -1)]
        guards = native.Guards(fetches, [(0, native.TENSOR, spec), (1, native.RANGE, (0, 5))], [1, 2])
        assert guards.check((tensor,), {}) == (tensor.shape[0], tensor.shape[-1])
        assert guards.check((torch.zeros(9, *tensor.shape[1:]),), {}) is None
    beyond = native.Guards([(-1, native.LOCAL, 0), (0, native.SIZE, 5)], [], [])
    assert beyond.check((torch.zeros(2, 3),), {}) is None and beyond.check((3,), {}) is None


def test_transformed_tensors_do_not_match() -> None:
    guards = tensor_guards(native.TensorSpec(torch.zeros(3)))
    seen = []

    def look(x: Any) -> Any:
        seen.append(guards.check((x,), {}))
        return x.sum()

    torch.vmap(look)(torch.zeros(2, 3))
    torch.func.grad(look)(torch.zeros(3))
    assert seen == [None, None]


def test_subclass_with_python_sizes_is_compared_in_python() -> None:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls: type, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError("guards call no operator")

    spec = native.TensorSpec(Wrapper(torch.zeros(2, 3)))
    assert not spec.raw
    assert spec.matches(Wrapper(torch.zeros(2, 3))) and not spec.matches(Wrapper(torch.zeros(3, 3)))
    assert not spec.matches(torch.zeros(2, 3))


def test_describe_ignores_torch_function() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError

    loud = torch.zeros(2, 3).as_subclass(Loud)
    dtype, device, requires_grad, _, plain, shape, stride = describe(loud)
    assert (dtype, str(device), requires_grad, plain) == (torch.float32, "cpu", False, True)
    assert (shape, stride) == ((2, 3), (3, 1))


# ------------------------------------------------------------------------------------------------- ambient modes


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DefaultDtype:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(torch.float32)


class Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error: object) -> None:
        torch.use_deterministic_algorithms(False)


MODES: dict[str, Callable[[], Any]] = {
    "none": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "function mode": FunctionMode,
    "dispatch mode": DispatchMode,
    "default dtype": DefaultDtype,
    "deterministic": Deterministic,
    "no torch function": torch._C.DisableTorchFunctionSubclass,
}


@pytest.fixture(params=["calibrated", "getters"])
def readers(request: pytest.FixtureRequest) -> Iterator[None]:
    """As calibrated, and as on a platform where no symbol is found."""
    if request.param == "getters":
        native.set_state_readers(tuple(r.plain() for r in (*calibration._READERS, calibration._TRANSFORM)), None)
    yield
    calibration._set_readers()


def test_a_state_holds_exactly_in_its_mode(readers: None) -> None:
    guards = {}
    for name, mode in MODES.items():
        with mode():
            assert len(native.state()) == len(native.state_names())
            guards[name] = native.Guards([], [(-1, native.STATE, native.state())], [])
    for name, mode in MODES.items():
        with mode():
            assert [other for other, g in guards.items() if g.check((), {}) is not None] == [name]
    with DispatchMode():
        assert guards["none"].failure((), {}) == ("check", 0, native.state())


def test_a_state_does_not_hold_inside_transforms(readers: None) -> None:
    guards = native.Guards([], [(-1, native.STATE, native.state())], [])
    seen = []

    def look(x: Any) -> Any:
        seen.append(guards.check((), {}))
        return x.sum()

    torch.vmap(look)(torch.zeros(2, 3))
    torch.func.grad(look)(torch.zeros(3))
    assert seen == [None, None]
    assert guards.check((), {}) == ()


def test_modes_are_read_in_the_calling_thread() -> None:
    guards = native.Guards([], [(-1, native.STATE, native.state())], [])
    seen = []

    def other() -> None:
        seen.append(guards.check((), {}))
        with torch.autocast("cpu"):
            seen.append(guards.check((), {}))

    with torch.inference_mode():
        worker = threading.Thread(target=other)
        worker.start()
        worker.join()
        assert guards.check((), {}) is None
    assert seen == [(), None]


def test_calibration_leaves_the_modes_as_they_were() -> None:
    before = (torch.is_grad_enabled(), torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))
    calibrate.cache_clear()
    first = calibrate()
    assert calibrate() is first
    assert before == (torch.is_grad_enabled(), torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))


def test_nothing_is_assumed_about_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a place is not found or a symbol is missing, the slow way stays on and answers the same."""
    monkeypatch.setattr(calibration, "allocated_words", lambda address, otherwise: 8)
    assert calibration._tensor_layout() is None
    monkeypatch.undo()
    monkeypatch.setattr(calibration, "_address", lambda library, symbol: 0)
    assert calibration._tensor_layout() is None
    assert calibration._set_readers() == (True, ())
    native.set_tensor_layout(torch.Tensor, describe, None)
    assert native.TensorSpec(torch.zeros(2)).matches(torch.ones(2))
    monkeypatch.undo()
    calibrate.cache_clear()
    assert calibrate().tensors is not None

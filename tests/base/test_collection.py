"""The cycle collector stands still inside, and is afterwards as it was before."""

import gc
import weakref

import pytest

from smelt.base import collection
from smelt.base.collection import collect_young_objects, no_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_as_before(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with no_collection():
            assert not gc.isenabled()
            with no_collection():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(KeyError), no_collection():
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


class Graph:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("frozen", [False, True])
def test_without_collect_what_was_made_inside_becomes_old_unsearched(frozen: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable()
        (gc.freeze if frozen else gc.unfreeze)()  # what the program has frozen, it alone may unfreeze
        garbage, number = weakref.ref(Graph()), gc.get_freeze_count()
        with no_collection(collect=False):
            assert not gc.isenabled() and garbage() is None
            made = weakref.ref(Graph())
        assert gc.isenabled() and made() is not None and gc.get_freeze_count() == number
        assert any(each is made() for each in gc.get_objects(generation=2)) is not frozen
        gc.collect()
        assert made() is None
    finally:
        gc.freeze()  # as tests/conftest.py has done
        (gc.enable if before else gc.disable)()


def test_dropped_objects_are_freed_at_the_end_of_the_outermost_block(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Graph]] = []
    when_released: list[bool] = []
    monkeypatch.setattr(collection, "release_freed", lambda: when_released.append(alive[0]() is not None))
    with no_collection():
        alive.append(weakref.ref(Graph()))
        with no_collection():
            pass
        assert alive[0]() is not None and not when_released
    assert when_released == [False]


def test_dropped_young_objects_are_freed_early_and_survivors_left_to_python() -> None:
    alive: list[weakref.ref[Graph]] = []
    with no_collection():
        kept = Graph()
        alive += [weakref.ref(Graph()), weakref.ref(kept)]
        assert alive[0]() is not None
        collect_young_objects()
        assert alive[0]() is None and alive[1]() is kept
        del kept
    assert alive[1]() is not None  # old objects, which are most, are not looked at twice
    gc.collect()
    assert alive[1]() is None


def test_a_program_that_switched_the_collector_off_keeps_it_off() -> None:
    before = gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            alive = weakref.ref(Graph())
            collect_young_objects()
            assert alive() is not None
        assert alive() is not None
    finally:
        if before:
            gc.enable()

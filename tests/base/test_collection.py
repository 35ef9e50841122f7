"""The cycle collector stands still inside, and is afterwards as it was before."""

import gc
import weakref

import pytest

from smelt.base import collection
from smelt.base.collection import no_collection


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


def test_what_was_made_inside_and_given_up_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Graph]] = []
    when_released: list[bool] = []
    monkeypatch.setattr(collection, "release_freed", lambda: when_released.append(alive[0]() is not None))
    with no_collection():
        alive.append(weakref.ref(Graph()))
        with no_collection():
            pass
        assert alive[0]() is not None and not when_released
    assert when_released == [False]

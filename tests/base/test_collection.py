"""The cycle collector stands still inside, and is afterwards as it was before."""

import gc

import pytest

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

"""The store: content comes back, damage is noticed, many processes agree, an unusable directory is survived."""

from __future__ import annotations

import multiprocessing
import os
import stat
import warnings
from pathlib import Path

import pytest

from smelt.base.errors import SmeltWarning
from smelt.base.store import Store, content_key, store


@pytest.fixture
def quiet_store(tmp_path: Path) -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Store(tmp_path / "cache")


def test_content_key_separates_parts() -> None:
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("ab", b"c") == content_key("ab", "c")


def test_round_trip(quiet_store: Store) -> None:
    assert quiet_store.get("kind", "0" * 64) is None
    quiet_store.put("kind", "0" * 64, b"body\x00\xff")
    assert quiet_store.get("kind", "0" * 64) == b"body\x00\xff"
    quiet_store.put_text("kind", "1" * 64, "text ä")
    assert quiet_store.get_text("kind", "1" * 64) == "text ä"
    assert quiet_store.size() > 0
    quiet_store.clear()
    assert quiet_store.get_text("kind", "1" * 64) is None


def test_directory_is_private(quiet_store: Store) -> None:
    assert stat.S_IMODE(quiet_store.root.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-10],  # truncated
        lambda data: data[:3],  # hardly anything left
        lambda data: b"X" + data[1:],  # changed body
        lambda data: b"not ours at all",
        lambda data: b"",
    ],
)
def test_damaged_entry_is_ignored_with_one_warning(quiet_store: Store, damage) -> None:
    path = quiet_store.put("kind", "2" * 64, b"some content")
    assert path is not None
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(SmeltWarning, match="damaged or foreign") as seen:
        assert quiet_store.get("kind", "2" * 64) is None
    assert len(seen) == 1
    quiet_store.put("kind", "2" * 64, b"again")
    assert quiet_store.get("kind", "2" * 64) == b"again"


def test_others_lose_write_access(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    assert Store(root).root == root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_unusable_directory_gives_a_private_one(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.warns(SmeltWarning, match="cannot use the cache directory") as seen:
        opened = Store(blocked / "cache")
    assert len(seen) == 1
    assert opened.root.is_dir() and stat.S_IMODE(opened.root.stat().st_mode) == 0o700
    opened.put_text("kind", "3" * 64, "kept")
    assert opened.get_text("kind", "3" * 64) == "kept"


def test_disk_refuses_a_write(quiet_store: Store, tmp_path: Path) -> None:
    (quiet_store.root / "kind").write_text("a file where a directory should be")
    with pytest.warns(SmeltWarning, match="cannot write"):
        assert quiet_store.put("kind", "4" * 64, b"x") is None
    built = tmp_path / "built.so"
    built.write_bytes(b"code")
    with pytest.warns(SmeltWarning, match="cannot write"):
        assert quiet_store.put_library("kind", "4" * 64, built) == built


def _hammer(root: str, worker: int) -> bool:
    shared = Store(Path(root))
    for turn in range(40):
        key = f"{turn % 4:064d}"
        shared.put_text("kind", key, f"value {turn % 4} " * 500)
        read = shared.get_text("kind", key)
        if read != f"value {turn % 4} " * 500:
            return False
    return True


def test_many_processes(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert all(pool.starmap(_hammer, [(str(tmp_path / "cache"), i) for i in range(3)]))
    assert not [path for path in (tmp_path / "cache").rglob(".new-*")]


def test_store_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "here"))
    assert store().root == tmp_path / "here"
    assert store() is store()
    assert os.path.isdir(tmp_path / "here")

"""The store: content comes back, damage is noticed, many processes agree, an unusable directory is survived."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import tempfile
import time
import warnings
from pathlib import Path

import pytest

from smelt.base import eviction, private_folder
from smelt.base import store as module
from smelt.base.errors import OptionError, SmeltWarning
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


@pytest.mark.parametrize("mode", [0o1777, 0o2775, 0o775, 0o1770])
def test_a_shared_folder_gets_a_private_subfolder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    monkeypatch.setattr(private_folder, "_is_own_group", lambda group: False)
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = Store(root)
    assert opened.root.parent == root and opened.root.stat().st_mode & 0o777 == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == mode  # not ours to change
    opened.put_text("kind", "0" * 64, "kept")
    assert Store(root).get_text("kind", "0" * 64) == "kept"


def test_a_folder_in_which_anybody_may_replace_things_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    with pytest.warns(SmeltWarning, match="others may replace"):
        opened = Store(root)
    assert not opened.root.is_relative_to(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o777


def test_a_folder_below_one_that_anybody_may_change_is_not_used(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.warns(SmeltWarning, match="others may replace"):
        assert not Store(above / "cache").root.is_relative_to(above)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")
def test_a_folder_or_a_subfolder_of_another_user_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)
    with pytest.warns(SmeltWarning, match="belongs to another user"):
        assert Store(root).root != root
    os.chown(root, 0, 0)
    opened = Store(root)
    opened.put_text("kind", "0" * 64, "mine")
    os.chown(root / "kind", 12345, 12345)
    with pytest.warns(SmeltWarning, match="no folder of this user's alone"):
        assert Store(root).get_text("kind", "0" * 64) is None


def test_a_valid_entry_copied_over_another_is_noticed(quiet_store: Store) -> None:
    first = quiet_store.put("kind", "1" * 64, b"one")
    second = quiet_store.put("kind", "2" * 64, b"two")
    assert first is not None and second is not None
    second.write_bytes(first.read_bytes())
    with pytest.warns(SmeltWarning, match="damaged or foreign"):
        assert quiet_store.get("kind", "2" * 64) is None


def test_an_entry_of_an_earlier_version_is_made_again_without_a_word(quiet_store: Store) -> None:
    path = quiet_store.put("kind", "3" * 64, b"")
    assert path is not None
    path.write_bytes(b"old\n# smelt sha256 " + hashlib.sha256(b"old").hexdigest().encode() + b"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quiet_store.get("kind", "3" * 64) is None
    assert not path.exists()


@pytest.mark.parametrize("thing", ["fifo", "folder", "link", "dangling link"])
def test_what_is_no_regular_file_is_no_entry(quiet_store: Store, tmp_path: Path, thing: str) -> None:
    path = quiet_store.path("kind", "5" * 64)
    path.parent.mkdir(parents=True, mode=0o700)
    path.parent.parent.chmod(0o700)
    target = tmp_path / "victim"
    match thing:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            (path / "inner").mkdir(parents=True)
        case "link":
            target.write_text("precious")
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        assert quiet_store.get("kind", "5" * 64) is None
    quiet_store.put("kind", "5" * 64, b"content")
    assert quiet_store.get("kind", "5" * 64) == b"content"
    if thing == "link":
        assert target.read_text() == "precious"


def test_the_entries_used_least_recently_go_first(tmp_path: Path) -> None:
    opened = Store(tmp_path / "cache", limit=10**9)
    now = time.time()
    for number in range(10):
        path = opened.put("kind", f"{number:064d}", os.urandom(50_000))
        if path is not None:
            os.utime(path, (now, now - 100_000 + number * 1000))
    assert opened.get("kind", f"{2:064d}") is not None  # used now
    eviction.sweep(opened.root, 400_000)
    kept = [number for number in range(10) if opened.path("kind", f"{number:064d}").exists()]
    assert 2 in kept and 9 in kept and 0 not in kept and 1 not in kept
    assert opened.size() <= 400_000


def test_left_overs_of_killed_processes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    gone = tmp_path / "tmp" / f"smelt-build-{os.getuid()}-999999999-x"
    alive = tmp_path / "tmp" / f"smelt-build-{os.getuid()}-{os.getpid()}-x"
    left, young = opened.root / "kind" / ".new-old", opened.root / "kind" / ".new-young"
    left.parent.mkdir(mode=0o700)
    for path in (gone, alive):
        path.mkdir()
        os.utime(path, (0, 0))
    for path in (left, young):
        path.write_text("half")
    os.utime(left, (0, 0))
    eviction.sweep(opened.root, opened.limit)
    assert [path.exists() for path in (gone, alive, left, young)] == [False, True, False, True]


def test_a_filled_read_only_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    Store(root).put_text("kind", "6" * 64, "filled before")
    monkeypatch.setattr(module, "_can_write", lambda root: False)  # root, who runs tests in containers, can always
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = Store(root)
        assert opened.get_text("kind", "6" * 64) == "filled before"
        assert opened.put("kind", "7" * 64, b"x") is None


def test_an_empty_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", "")
    with pytest.raises(OptionError, match="SMELT_CACHE_DIR is set and empty"):
        store()


def _build_slowly(root: str, worker: int) -> bool:
    """Whether this process was the one that made the entry."""
    shared, key = Store(Path(root)), "8" * 64
    with shared.building("kind", key, 30.0):
        if shared.get_text("kind", key) is not None:
            return False
        time.sleep(0.3)
        shared.put_text("kind", key, "made")
        return True


def test_one_process_makes_an_entry_and_others_wait(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        made = pool.starmap(_build_slowly, [(str(tmp_path / "cache"), i) for i in range(3)])
    assert sum(made) == 1


def test_waiting_for_another_builder_has_an_end(quiet_store: Store) -> None:
    with quiet_store.building("kind", "9" * 64, 1.0) as first:
        with quiet_store.building("kind", "9" * 64, 0.05) as second:
            assert (first, second) == (True, False)


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

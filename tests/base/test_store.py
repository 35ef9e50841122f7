"""The store: content comes back, damage is noticed, many processes agree, an unusable directory is survived."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import multiprocessing
import os
import resource
import signal
import stat
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
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


def test_content_key_separates_its_fields() -> None:
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


def test_a_world_writable_folder_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    with pytest.warns(SmeltWarning, match="other users may replace"):
        opened = Store(root)
    assert not opened.root.is_relative_to(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o777


def test_a_folder_below_a_world_writable_one_is_not_used(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.warns(SmeltWarning, match="other users may replace"):
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


@pytest.mark.parametrize("thing", ["fifo", "folder", "link", "dangling link", "device"])
def test_irregular_file_is_not_read_as_an_entry(quiet_store: Store, tmp_path: Path, thing: str) -> None:
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
        case "device":
            try:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.stat("/dev/zero").st_rdev)
            except PermissionError:
                pytest.skip("only root makes devices")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        assert quiet_store.get("kind", "5" * 64) is None
    quiet_store.put("kind", "5" * 64, b"content")
    assert quiet_store.get("kind", "5" * 64) == b"content"
    if thing == "link":
        assert target.read_text() == "precious"


@pytest.mark.parametrize("thing", ["sparse", "with a checksum", "ever growing"])
def test_larger_cache_entry_is_not_read(quiet_store: Store, monkeypatch: pytest.MonkeyPatch, thing: str) -> None:
    """It is not read: of a terabyte without content, a process would take all memory."""
    path = quiet_store.put("kind", "6" * 64, b"content")
    assert path is not None
    match thing:
        case "sparse":
            os.truncate(path, 2**40)
        case "with a checksum":  # right, of content that nobody has written
            footer = path.read_bytes()[-len(module._MARK) - 65 :]
            with path.open("r+b") as file:
                file.seek(2**40 - len(footer))
                file.write(footer)
        case "ever growing":  # it was small when its size was asked for
            os.truncate(path, 2**40)
            small = os.stat_result((0o100600, 0, 0, 1, os.getuid(), 0, 8, 0, 0, 0))
            monkeypatch.setattr(private_folder.os, "fstat", lambda descriptor: small)
    space = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, space[1]))
    try:
        with pytest.warns(SmeltWarning, match="damaged or foreign"):
            assert quiet_store.get("kind", "6" * 64) is None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, space)
    monkeypatch.undo()
    quiet_store.put("kind", "6" * 64, b"again")
    assert quiet_store.get("kind", "6" * 64) == b"again"


def test_larger_cache_entry_is_not_written(quiet_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRY_BYTES", 300)
    assert quiet_store.put("kind", "6" * 64, bytes(100)) is not None
    with pytest.warns(SmeltWarning, match="larger than an entry may be"):
        assert quiet_store.put("kind", "7" * 64, bytes(300)) is None
    assert quiet_store.get("kind", "7" * 64) is None and quiet_store.get("kind", "6" * 64) == bytes(100)


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
    gone, cache = (tmp_path / "tmp" / f"smelt-{kind}-{os.getuid()}-x" for kind in ("build", "cache"))
    folder = opened.root / "kind" / "00"
    left, young, lock = folder / ".new-old", folder / ".new-young", folder / f"{0:064d}.lock"
    folder.mkdir(mode=0o700, parents=True)
    for path in (left, young, lock):
        path.write_text("half")
    with eviction.new_build_folder(opened.root) as alive:
        for path in (gone, cache):
            path.mkdir()
            (path / "half").write_text("half")
        for path in (gone, cache, alive, left, lock):
            os.utime(path, (0, 0))
        eviction.sweep(opened.root, opened.limit)
        there = [path.exists() for path in (gone, cache, alive, left, young, lock)]
        assert there == [False, False, True, False, True, False]
    assert not alive.exists()


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
    with shared.building("kind", key, time.monotonic() + 30.0):
        if shared.get_text("kind", key) is not None:
            return False
        time.sleep(0.3)
        shared.put_text("kind", key, "made")
        return True


def test_one_process_makes_an_entry_and_others_wait(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        made = pool.starmap(_build_slowly, [(str(tmp_path / "cache"), i) for i in range(3)])
    assert sum(made) == 1


def test_waiting_for_another_builder_has_an_end(quiet_store: Store) -> None:
    with quiet_store.building("kind", "9" * 64, time.monotonic() + 1.0) as first:
        with quiet_store.building("kind", "9" * 64, time.monotonic() + 0.05) as second:
            assert (first, second) == (True, False)


def test_who_does_not_wait_longer_leaves_the_lock_to_its_owner(quiet_store: Store) -> None:
    with quiet_store.building("kind", "9" * 64) as first:
        for _ in range(2):
            with quiet_store.building("kind", "9" * 64) as other:
                assert (first, other) == (True, False)
    with quiet_store.building("kind", "9" * 64) as again:
        assert again
    assert not list(quiet_store.root.rglob("*.lock"))


def test_a_wait_ends_when_its_group_is_stopped(quiet_store: Store) -> None:
    stop = time.monotonic() + 0.1
    with quiet_store.building("kind", "9" * 64):
        with quiet_store.building("kind", "9" * 64, stop + 60.0, lambda: time.monotonic() > stop) as other:
            assert not other
    assert time.monotonic() < stop + 30.0


def test_a_lock_is_not_left_to_a_process_that_was_forked_meanwhile(quiet_store: Store) -> None:
    with quiet_store.building("kind", "9" * 64):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with quiet_store.building("kind", "9" * 64) as free:
            assert free
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _build_turns(root: Path) -> list[str]:
    """Makes an entry that is never kept, many times; whether another did so at the same time."""
    shared, key, seen = Store(root), "8" * 64, []
    for _ in range(20):
        with shared.building("kind", key, time.monotonic() + 30.0) as alone:
            mark = root / "busy"
            if not alone or mark.exists():
                seen.append("two at once")
            mark.touch()
            time.sleep(0.002)
            mark.unlink(missing_ok=True)
    return seen


def test_there_are_never_two_builders_of_an_entry(tmp_path: Path) -> None:
    """Also where those before it failed: a lock's file is removed and made again then. A lock is of a file that was
    opened, so threads stand for processes."""
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(_build_turns, [tmp_path / "cache"] * 4), []) == []


@pytest.mark.parametrize("thing", ["fifo", "folder", "link"])
def test_a_folder_in_place_of_a_lock_blocks_no_process(quiet_store: Store, tmp_path: Path, thing: str) -> None:
    path = quiet_store.path("kind", "9" * 64, ".lock")
    path.parent.mkdir(parents=True, mode=0o700)
    if thing == "fifo":
        os.mkfifo(path)
    elif thing == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with quiet_store.building("kind", "9" * 64) as alone:
        assert alone
    assert not (tmp_path / "elsewhere").exists()


OTHERS = [
    "notes.txt",
    "poetry.lock",
    "thesis/chapter.tex",
    "thesis/ab/chapter.tex",
    "thesis/ab/abstract.lock",
    ".git/objects/ab/abcdef",
    "failures/2020/diary.doc",
    "kernels/notes.md",
    f"kernels/cd/ab{0:062d}.so",
]


def test_files_that_smelt_has_not_made_are_left_alone(tmp_path: Path) -> None:
    """SMELT_CACHE_DIR may name a home or a project: what lies there is neither counted nor removed."""
    root = tmp_path / "home"
    for name in OTHERS:
        (root / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / name).write_bytes(b"precious" * 10_000)
        os.utime(root / name, (0, 0))
    root.chmod(0o700)
    opened = Store(root, limit=20_000)
    assert opened.size() == 0
    for number in range(16):
        opened.put("kernels", f"{number:x}" * 64, os.urandom(5_000), ".so")
    report = opened.root / eviction.REPORTS / "f" / "1_torch.py"
    report.parent.mkdir(parents=True)
    report.write_text("old" * 10_000)
    os.utime(report, (0, 0))
    eviction.sweep(opened.root, 20_000)
    assert opened.size() <= 20_000 and not report.exists()
    for name in ("repro.py", "traceback.txt", "minified.py", "guards.py", ".new-1-repro.py"):
        (report.parent / name).write_text("kept")
    opened.clear()
    assert opened.size() == 0 and [*report.parent.iterdir()] == []
    assert [name for name in OTHERS if not (root / name).exists()] == []


def test_many_short_processes_keep_the_limit(tmp_path: Path) -> None:
    limit = 2_000_000
    for number in range(200):
        opened = Store(tmp_path / "cache", limit=limit)  # as in a new process
        opened.put("kind", content_key(str(number)), os.urandom(40_000))
    assert limit / 2 < opened.size() < 1.3 * limit


def test_an_entry_larger_than_the_limit_is_no_error(tmp_path: Path) -> None:
    opened = Store(tmp_path / "cache", limit=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened.put("kind", content_key("large"), os.urandom(40_000))
        opened.get("kind", content_key("large"))


@pytest.mark.parametrize("clock", [-(10**6), 10**9])
def test_a_clock_that_was_wrong_keeps_nothing_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: int
) -> None:
    opened, now = Store(tmp_path / "cache", limit=10**9), time.time()
    path = opened.put("kind", "0" * 64, os.urandom(50_000))
    assert path is not None
    left = path.with_name(".new-left")
    left.write_text("half")
    for each in (path, left, opened.root / ".swept"):
        os.utime(each, (now + clock, now + clock))
    assert eviction.is_due(opened.root)
    assert opened.get("kind", "0" * 64) is not None
    assert abs(path.stat().st_mtime - now) < 3600  # used now
    os.utime(path, (now + clock, now + clock))
    eviction.sweep(opened.root, 10**9)
    assert not left.exists() and path.stat().st_mtime < now + 3600  # it ages from now on


def test_a_file_system_without_a_known_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*told[:2], 0, 0, 0, *told[5:])))
    assert eviction.limit_bytes(tmp_path, None) == 10 * 2**30


def test_nothing_is_used_where_there_is_no_folder_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.warns(SmeltWarning, match="nor a temporary one"):
        opened = Store(tmp_path / "file" / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened.put("kind", "0" * 64, b"x") is None and opened.get("kind", "0" * 64) is None
        with opened.building("kind", "0" * 64) as alone:
            assert alone


NAMES = ["with spaces", "new\nline", "ünï→", "\udcff\udcfe", "-o x", "%s{0}$HOME`id`", "a" * 200, ";quoted'\"", "~"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = Store(tmp_path / name / "cache")
        opened.put_text("kind", "0" * 64, "kept")
        assert Store(tmp_path / name / "cache").get_text("kind", "0" * 64) == "kept"


@pytest.mark.parametrize("name", ["a" * 300, "/".join(["a" * 100] * 50), "/".join("a" * 2100)])
def test_a_name_that_is_too_long_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.warns(SmeltWarning, match="cannot use the cache directory"):
        assert not Store(tmp_path / name).root.is_relative_to(tmp_path)


@pytest.mark.parametrize("call", ["replace", "chmod"])
@pytest.mark.parametrize("problem", [errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EXDEV])
def test_errors_of_the_file_system_are_reported_and_leave_no_files(
    quiet_store: Store, monkeypatch: pytest.MonkeyPatch, call: str, problem: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(os, call, refused)
    with pytest.warns(SmeltWarning, match="cannot write its cache"):
        assert quiet_store.put("kind", "0" * 64, b"x") is None
    assert not [path for path in quiet_store.root.rglob("*") if path.is_file() and path.name != ".swept"]


def test_a_limit_on_file_sizes_is_reported(quiet_store: Store) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.warns(SmeltWarning, match="cannot write its cache"):
            assert quiet_store.put("kind", "0" * 64, bytes(100_000)) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(quiet_store.root.rglob(".new-*"))


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
    again = Store(quiet_store.root)
    with pytest.warns(SmeltWarning, match="cannot write"):
        assert again.put_library("kind", "4" * 64, built) == built


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_refuses_all_entries_warns_once(
    quiet_store: Store, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    """Each message named another file, so that a model of a hundred kernels had as many warnings."""

    def refused(prefix: str, dir: Path, **_: object) -> None:
        raise OSError(problem, os.strerror(problem), f"{dir}/{prefix}{os.urandom(4).hex()}")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with pytest.warns(SmeltWarning, match="cannot write its cache") as seen:
        for number in range(4):
            assert quiet_store.put("kind", f"{number}" * 64, b"x") is None
    assert len(seen) == 1


@pytest.mark.parametrize("problem", [errno.EIO, errno.EDQUOT, errno.ENOLCK])
@pytest.mark.parametrize("call", ["close", "flock"])
def test_a_file_system_that_refuses_locks_and_closes_keeps_what_was_built(
    quiet_store: Store, monkeypatch: pytest.MonkeyPatch, call: str, problem: int
) -> None:
    """NFS and quotas refuse a close, which closes all the same: a kernel was built and kept, its compilation failed."""
    monkeypatch.setattr(tempfile, "tempdir", str(quiet_store.root.parent))
    close = os.close

    def refused(descriptor: int, *_: object) -> None:
        if call == "close":  # those that `shutil` closes itself, Python 3.11 closes twice then
            close(descriptor)
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(*((os, "close", refused) if call == "close" else (fcntl, "flock", refused)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet_store.building("kind", "9" * 64) as alone, eviction.new_build_folder(quiet_store.root) as folder:
            (folder / "built").write_bytes(b"code")
            kept = quiet_store.put_library("kind", "9" * 64, folder / "built")
        eviction.sweep(quiet_store.root, quiet_store.limit)
    monkeypatch.undo()
    assert alone and kept.exists() and (call == "close" or not folder.exists())  # the next sweep removes it
    assert not list(quiet_store.root.rglob("*.lock"))


def _hammer(root: str, worker: int) -> bool:
    shared = Store(Path(root))
    for turn in range(80):  # each entry twice: made by several processes at once, then replaced
        key = f"{turn % 40:064d}"
        shared.put_text("kind", key, f"value {key} " * 50)
        if shared.get_text("kind", key) != f"value {key} " * 50:
            return False
    return True


def test_many_processes(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert all(pool.starmap(_hammer, [(str(tmp_path / "cache"), i) for i in range(3)]))
    assert not [path for path in (tmp_path / "cache").rglob(".new-*")]


def test_an_entry_published_in_the_meantime_is_not_removed(quiet_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process found no entry, another one published it, the first one removed it: the other's library was gone."""
    monkeypatch.setattr(module, "remove", pytest.fail)
    for _ in range(2):  # published, then replaced
        quiet_store.put_text("kind", "8" * 64, "text")
        assert quiet_store.get_text("kind", "8" * 64) == "text"


def test_store_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "here"))
    assert store().root == tmp_path / "here"
    assert store() is store()
    assert os.path.isdir(tmp_path / "here")

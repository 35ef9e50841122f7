"""Folders and files that nobody else can write: made private under any umask, every link is looked at."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from smelt.base import private_folder
from smelt.base.errors import SmeltWarning
from smelt.base.options import environment
from smelt.base.private_folder import UnsafeFolder, check_private, make_private, read_private, write_private
from smelt.base.report import Report
from smelt.base.store import Store


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_folders_are_made_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    make_private(tmp_path / "a" / "b" / "c")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")} == {0o700}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_a_store_keeps_entries_under_any_umask(tmp_path: Path, umask: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = Store(tmp_path / "missing" / "cache")
        opened.put_text("kind", "0" * 64, "kept")
        with opened.building("other", "0" * 64):
            pass
        assert opened.get_text("kind", "0" * 64) == "kept"
        assert Store(tmp_path / "missing" / "cache").get_text("kind", "0" * 64) == "kept"
    for path in opened.root.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077


def test_a_subfolder_that_the_user_has_a_group_of_its_own_for_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version of smelt made them where the umask is 002, the default of several distributions."""
    monkeypatch.setattr(private_folder, "_is_own_group", lambda group: True)
    opened = Store(tmp_path / "cache")
    opened.put_text("kind", "0" * 64, "kept")
    (opened.root / "kind").chmod(0o775)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(tmp_path / "cache").get_text("kind", "0" * 64) == "kept"


def links(tmp_path: Path, steps: int) -> tuple[Path, Path]:
    """A path that reaches a private folder through a chain of links, and the folder in which one of them lies."""
    real, middle = tmp_path / "real", tmp_path / "middle"
    for folder in (real, middle):
        folder.mkdir(mode=0o700)
    last = real
    for step in range(steps):
        link = (middle if step == steps // 2 else tmp_path) / f"link{step}"
        link.symlink_to(last if step % 2 else os.path.relpath(last, link.parent))
        last = link
    return last, middle


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_every_folder_that_links_pass_through_is_checked(tmp_path: Path, steps: int) -> None:
    path, middle = links(tmp_path, steps)
    check_private(path)
    check_private(path.parent / "." / path.name)
    middle.chmod(0o777)
    with pytest.raises(UnsafeFolder, match="middle"):
        check_private(path)
    middle.chmod(0o1777)  # nobody may turn the links of others in a sticky folder
    check_private(path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")
def test_every_link_of_a_path_is_checked(tmp_path: Path) -> None:
    path, middle = links(tmp_path, 3)
    middle.chmod(0o1777)
    (link,) = middle.iterdir()
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(UnsafeFolder, match="another user"):
        check_private(path)


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError):
        check_private(tmp_path / "one" / "cache")
    with pytest.warns(match="cannot use the cache directory"):
        Store(tmp_path / "one" / "cache")


def test_two_dots_after_a_link_mean_the_parent_of_where_it_leads(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    (open_folder / "inner").mkdir(parents=True)
    open_folder.chmod(0o777)
    (tmp_path / "link").symlink_to(open_folder / "inner")
    (open_folder / "cache").mkdir(mode=0o700)
    with pytest.raises(UnsafeFolder, match="open"):
        check_private(tmp_path / "link" / ".." / "cache")


@pytest.mark.parametrize("thing", ["fifo", "folder", "device"])
def test_only_a_regular_file_is_read(tmp_path: Path, thing: str) -> None:
    path = tmp_path / "thing"
    if thing == "fifo":
        os.mkfifo(path)
    elif thing == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    try:
        assert read_private(path, 2**20) is None
    except OSError:
        assert thing == "folder"


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_TRACE", "1")
    monkeypatch.setenv("SMELT_TRACE_DIR", str(tmp_path / "trace"))
    return tmp_path / "trace"


def test_a_trace_is_written(traced: Path) -> None:
    report = Report.for_graph("f")
    report.add("1_torch.py", lambda: "text")
    assert report.folder is not None and (report.folder / "1_torch.py").read_text() == "text"


@pytest.mark.parametrize("thing", ["file", "open folder", "foreign folder", "dangling link"])
def test_a_trace_goes_through_the_checks_of_the_cache(traced: Path, tmp_path: Path, thing: str) -> None:
    if thing == "file":
        traced.write_text("in the way")
    elif thing == "dangling link":
        traced.symlink_to(tmp_path / "nowhere" / "there")
    else:
        traced.mkdir(mode=0o700)
        if thing == "open folder":
            traced.chmod(0o777)
        elif os.getuid() != 0:
            pytest.skip("only root gives files to others")
        else:
            os.chown(traced, 12345, 12345)
    report = Report.for_graph("f")
    with pytest.warns(match="cannot write the trace"):
        report.add("1_torch.py", lambda: "text")
    report.add("2_prims.py", lambda: "text")  # told once
    assert set(report.artefacts) == {"1_torch.py", "2_prims.py"}
    assert not list(tmp_path.rglob("*_prims.py"))


def test_a_trace_is_not_written_through_a_link_of_a_folder(traced: Path, tmp_path: Path) -> None:
    report = Report.for_graph("f")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "1_torch.py").write_text("precious")
    assert report.folder is not None
    traced.mkdir(mode=0o700)
    traced.chmod(0o777)
    report.folder.symlink_to(precious)
    with pytest.warns(match="cannot write the trace"):
        report.add("1_torch.py", lambda: "text")
    assert (precious / "1_torch.py").read_text() == "precious"


def test_an_unwritable_trace_does_not_break_a_program(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("in the way")
    code = "import smelt, torch; print(float(smelt.compile(lambda x: x + 1)(torch.ones(()))))"
    variables = {**os.environ, "SMELT_TRACE": "1", "SMELT_TRACE_DIR": str(tmp_path / "trace"), "SMELT_STRICT": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert ran.stdout == "2.0\n" and ran.stderr.count("cannot write the trace") == 1, ran.stderr


def test_a_file_is_not_written_into_another_one(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    os.link(tmp_path / "mine", tmp_path / "hard")
    (tmp_path / "soft").symlink_to(tmp_path / "mine")
    for name in ("hard", "soft"):
        with pytest.raises(UnsafeFolder):
            write_private(tmp_path / name, "text")
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_the_default_cache_is_never_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """An unset HOME of a user without an entry (containers), a relative one, a relative XDG_CACHE_HOME."""
    for name in ("SMELT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 987654321)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path.replace("~", home if home is not None else "~"))
    monkeypatch.chdir(tmp_path)
    assert environment().cache_dir.is_absolute()
    assert not environment().cache_dir.is_relative_to(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert not environment().cache_dir.is_relative_to(tmp_path)


def test_a_relative_folder_stays_where_it_was_first_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "one")
    opened = Store(Path("cache"))
    opened.put_text("kind", "0" * 64, "kept")
    monkeypatch.chdir(tmp_path / "two")
    assert opened.get_text("kind", "0" * 64) == "kept"
    opened.put_text("kind", "1" * 64, "kept")
    assert list((tmp_path / "two").iterdir()) == []


def test_an_empty_name_of_the_trace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_TRACE_DIR", "")
    with pytest.raises(Exception, match="SMELT_TRACE_DIR is set and empty"):
        environment()


def test_a_name_that_is_too_long_is_not_shown_as_a_whole(tmp_path: Path) -> None:
    with pytest.warns(SmeltWarning, match="cannot use the cache directory") as told:
        opened = Store(tmp_path / ("a" * 100_000))
    assert opened.put("kind", "0" * 64, b"kept") is not None
    assert len(str(told[0].message)) < 1100


@pytest.mark.parametrize("before", ["", "old"])
def test_half_of_a_file_is_not_left(tmp_path: Path, before: str) -> None:
    """A report that ends where the disk was full looked like the whole one."""
    file = tmp_path / "1_torch.py"
    if before:
        write_private(file, before)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        with pytest.raises(OSError):
            write_private(file, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == ([(file.name, before)] if before else [])

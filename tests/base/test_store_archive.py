"""smelt/base/store_archive.py and smelt/cli/cache.py"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import smelt
from smelt.base import private_folder
from smelt.base import store as store_module
from smelt.base.store import Store, content_key, sealed_entry, store
from smelt.cli.main import app
from tests.artefact.models import scaled

KEY = content_key("a")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "one"))
    store().put_text("tune", KEY, "fast")
    store().put("kernels", KEY, b"code", ".so")
    store().put("reports", KEY, b"of a failure", ".txt")
    file = tmp_path / "cache.zip"
    assert smelt.save_cache(file) == 2
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "two"))
    return file


def test_entries_come_to_another_cache(elsewhere: Path) -> None:
    assert store().get_text("tune", KEY) is None
    assert smelt.load_cache(elsewhere) == 2 and smelt.load_cache(elsewhere) == 0
    assert store().get_text("tune", KEY) == "fast" and store().get("kernels", KEY, ".so") == b"code"
    assert store().path("kernels", KEY, ".so").stat().st_mode & 0o777 == 0o700


@pytest.fixture(params=["read-only", "mounted noexec", "of another user", "full"])
def refusing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cache that keeps nothing. (Whoever runs tests in a container may be root, to whom nothing is read-only.)"""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if request.param == "read-only":
        (tmp_path / "two" / "tune").mkdir(parents=True)
        monkeypatch.setattr(store_module, "_can_write", lambda root: False)
    elif request.param == "mounted noexec":
        monkeypatch.setattr(store_module, "is_executable", lambda root: False)
    elif request.param == "of another user":
        monkeypatch.setattr(private_folder, "is_trusted", lambda owner: False)
    else:
        monkeypatch.setattr(store_module, "replace_atomically", full)
    return str(request.param)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_cache_that_stores_nothing_warns(elsewhere: Path, refusing: str) -> None:
    with pytest.raises(smelt.SmeltError, match="2 of 2 new entries are not kept"):
        smelt.load_cache(elsewhere)
    result = CliRunner().invoke(app, ["cache", "import", str(elsewhere)])
    assert result.exit_code == 2 and "not kept" in result.output


def test_a_read_only_cache_that_has_all_of_them_needs_nothing(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "three"))
    assert smelt.load_cache(elsewhere) == 2
    monkeypatch.setattr(store_module, "_can_write", lambda root: False)
    monkeypatch.setattr(store_module, "_opened", {})
    assert smelt.load_cache(elsewhere) == 0
    monkeypatch.setattr(store_module, "remove", lambda path: None)
    result = CliRunner().invoke(app, ["cache", "clear"])
    assert result.exit_code == 1 and "0.0 MiB removed" in result.output and "cannot be written" in result.output


@pytest.mark.parametrize("how", ["changed", "renamed", "outside", "cut", "text"])
def test_nothing_is_taken_from_a_damaged_file(elsewhere: Path, tmp_path: Path, how: str) -> None:
    wrong = tmp_path / "wrong.zip"
    with zipfile.ZipFile(elsewhere) as given, zipfile.ZipFile(wrong, "w") as made:
        for name in given.namelist():
            data = given.read(name)
            if name.endswith(".so"):
                if how == "changed":
                    data = b"x" + data[1:]
                elif how in ("renamed", "outside"):
                    name = name.replace("kernels", "triton") if how == "renamed" else "../../" + name
            made.writestr(name, data)
    if how == "cut":
        wrong.write_bytes(wrong.read_bytes()[:-40])
    elif how == "text":
        wrong.write_text("hello")
    with pytest.raises(smelt.SmeltError, match="was not written by smelt"):
        smelt.load_cache(wrong)
    assert store().get_text("tune", KEY) is None


def _compressed(name: str, file: Path) -> None:
    """Zeros that are small in the file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, b"\0" * 2**26)


def _compressed_badly(name: str, file: Path) -> None:
    _compressed(name, file)
    data, start = bytearray(file.read_bytes()), 30 + len(name)
    data[start : start + 12] = b"\xff" * 12
    file.write_bytes(data)


def _before_the_start(name: str, file: Path) -> None:
    """The list of entries says that they begin before the file does."""
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(name, b"x")
    data = bytearray(file.read_bytes())
    end = data.rindex(b"PK\5\6")
    start = int.from_bytes(data[end + 16 : end + 20], "little")
    data[end + 16 : end + 20] = (start + 1).to_bytes(4, "little")
    file.write_bytes(data)


def _as_a_lock(name: str, file: Path) -> None:
    lock = Path(name).with_suffix(".lock")
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(str(lock), sealed_entry("kernels", KEY, ".lock", b"x"))


@pytest.mark.parametrize("write", [_compressed, _compressed_badly, _before_the_start, _as_a_lock])
def test_files_of_strangers_are_refused_as_such(
    elsewhere: Path, tmp_path: Path, write: Callable[[str, Path], None]
) -> None:
    """With an error of smelt, and without the memory that they ask for."""
    wrong = tmp_path / "wrong.zip"
    write(f"kernels/{KEY}.so", wrong)
    tracemalloc.start()
    try:
        with pytest.raises(smelt.SmeltError, match="was not written by smelt"):
            smelt.load_cache(wrong)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_one_entry_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "large"))
    keys = [content_key(str(i)) for i in range(8)]
    for key in keys:
        store().put("kernels", key, os.urandom(2**20), ".so")
    tracemalloc.start()
    try:
        assert smelt.save_cache(tmp_path / "cache.zip") == len(keys)
        store().clear()
        assert smelt.load_cache(tmp_path / "cache.zip") == len(keys)
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


def test_nothing_is_written_through_a_link(elsewhere: Path, tmp_path: Path) -> None:
    """Whatever names somebody may guess in the folder of the file."""
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "cache.zip").unlink()
    for name in ("cache.zip", f".cache.zip.{os.getpid()}"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    smelt.save_cache(tmp_path / "cache.zip")
    assert (tmp_path / "victim").read_text() == "kept" and not (tmp_path / "cache.zip").is_symlink()


def test_a_file_that_cannot_be_written_leaves_nothing(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        smelt.save_cache(tmp_path / "folder")
    assert not list(tmp_path.glob(".*")) and not list((tmp_path / "folder").iterdir())
    with pytest.raises(FileNotFoundError):
        smelt.load_cache(tmp_path / "none.zip")


def special_file(path: Path, kind: str) -> Path:
    """A pipe, a socket, or a link to one or to a device, made at the path."""
    target = path.with_name(f"{path.name}.target") if kind.startswith("link to a ") else path
    if "pipe" in kind:
        os.mkfifo(target)
    elif "socket" in kind:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(target))  # the name of a socket may have 100 characters
    else:
        target = Path("/dev/null")
    if target != path:
        path.symlink_to(target)
    return target


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a pipe", "link to a socket", "link to a device"])
def test_pipes_sockets_and_devices_are_neither_read_nor_replaced(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A rename would put a file in the place of a device, and opening a pipe would wait for ever."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "special"
    target = special_file(path, kind)
    before = path.lstat(), target.lstat()
    for command in ("export", "import"):
        result = CliRunner().invoke(app, ["cache", command, str(path)])
        assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    with pytest.raises(OSError, match="not a file"):
        smelt.compile(scaled).aot_compile(torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta")).save(path)
    after = path.lstat(), target.lstat()
    assert [x.st_mode for x in before] == [x.st_mode for x in after]
    assert [x.st_ino for x in before] == [x.st_ino for x in after] and not list(tmp_path.glob(".new-*"))


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a pipe", "link to a device"])
def test_an_entry_takes_the_place_of_what_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Store(tmp_path / "cache")
    path = cache.path("tune", KEY, ".txt")
    path.parent.mkdir(parents=True, mode=0o700)
    target = special_file(path, kind)
    mode = target.lstat().st_mode
    assert cache.put("tune", KEY, b"kept", ".txt") == path and cache.get("tune", KEY, ".txt") == b"kept"
    assert target == path or target.lstat().st_mode == mode


def test_commands(elsewhere: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(app, ["cache", "import", str(elsewhere)]).output == "2 new entries\n"
    told = run(app, ["cache", "info"]).output
    assert str(tmp_path / "two") in told and "1 x kernels" in told and "1 x tune" in told
    assert run(app, ["cache", "path"]).output.strip() == str(store().root)
    other = tmp_path / "other.zip"
    assert run(app, ["cache", "export", str(other)]).output.startswith("2 entries") and other.stat().st_size
    assert run(app, ["cache", "clear"]).exit_code == 0 and store().get_text("tune", KEY) is None
    for arguments in (["import", str(tmp_path / "none")], ["export", str(tmp_path / "no" / "file")]):
        assert run(app, ["cache", *arguments]).exit_code == 2


PROGRAM = """
import sys, torch, smelt
if sys.argv[1] == "load":
    smelt.load_cache(sys.argv[2])
smelt.compile(lambda x: x.sin() * 2 + 1)(torch.ones(64))
if sys.argv[1] == "save":
    smelt.save_cache(sys.argv[2])
"""


def test_archive_loads_on_a_machine_that_cannot_build(tmp_path: Path) -> None:
    """Where no compiler has the time to build anything."""
    root = str(Path(smelt.__file__).parent.parent)

    def ran(way: str, folder: str, **env: str) -> int:
        given = {**os.environ, "PYTHONPATH": root, "SMELT_CACHE_DIR": str(tmp_path / folder), **env}
        command = [sys.executable, "-c", PROGRAM, way, str(tmp_path / "cache.zip")]
        return subprocess.run(command, env=given, capture_output=True, timeout=300).returncode

    at_once = {"SMELT_BUILD_TIMEOUT_S": "0.0001"}
    assert ran("save", "a") == 0
    assert ran("load", "b", **at_once) == 0
    assert ran("plain", "c", **at_once) != 0

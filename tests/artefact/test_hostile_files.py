"""Files that are no artefacts, damaged ones, and ones of another machine: an error, and nothing of them runs."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.artefact import container, machine
from smelt.artefact.container import ArtefactError
from tests.artefact.fuzz import artefacts, wrong
from tests.artefact.models import scaled


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("artefact") / "good.smelt"
    specs = torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta")
    smelt.compile(scaled).aot_compile(*specs).save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_bytes()


class Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def sealed(body: bytes) -> bytes:
    return body + b"\n# smelt sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"


def rewritten(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The file with other contents and a checksum that fits: what somebody writes who knows the format."""
    start = len(container.MAGIC) + 16
    end = start + int(data[len(container.MAGIC) : start])
    held = json.loads(data[start:end])
    change(held)
    text = json.dumps(held).encode()
    return sealed(container.MAGIC + b"%016d" % len(text) + text + data[end:-80])


@pytest.mark.parametrize("part", range(24))
def test_every_byte_counts(part: int, good: bytes, tmp_path: Path) -> None:
    at = part * (len(good) - 1) // 23
    (tmp_path / "f").write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    with pytest.raises(ArtefactError):
        smelt.load(tmp_path / "f")


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_off(share: float, good: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(good[: int(len(good) * share)])
    with pytest.raises(ArtefactError):
        smelt.load(tmp_path / "f")


def test_pickles_and_archives_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle").write_bytes(pickle.dumps(Runs()))
    torch.save({"x": Runs()}, tmp_path / "torch")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("../outside", "x")
    (tmp_path / "sealed").write_bytes(sealed(container.MAGIC + b"%016d" % 9 + pickle.dumps(Runs())))
    (tmp_path / "empty").write_bytes(b"")
    for name in ("pickle", "torch", "zip", "sealed", "empty"):
        with pytest.raises(ArtefactError):
            smelt.load(name)
    assert not (tmp_path / "ran").exists() and not (tmp_path.parent / "outside").exists()


def test_links_folders_and_files_of_others(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(good)
    (tmp_path / "link").symlink_to(tmp_path / "f")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, words in (("link", "symbolic link"), ("folder", "no artefact"), ("fifo", "regular file")):
        with pytest.raises(ArtefactError, match=words):
            smelt.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        smelt.load(tmp_path / "nowhere")
    (tmp_path / "f").chmod(0o666)
    with pytest.raises(ArtefactError, match="other users may write"):
        smelt.load(tmp_path / "f")
    (tmp_path / "f").chmod(0o600)
    assert smelt.load(tmp_path / "f").apply(scaled)


@pytest.mark.parametrize("name", sorted(machine.present()))
def test_another_location_is_refused(name: str, good: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(rewritten(good, lambda held: held["header"].update({name: "another"})))
    with pytest.raises(ArtefactError, match="'another'"):
        smelt.load(tmp_path / "f")
    (tmp_path / "f").write_bytes(rewritten(good, lambda held: held["header"].pop(name)))
    with pytest.raises(ArtefactError, match="another machine or installation"):
        smelt.load(tmp_path / "f")


def version(held: dict[str, Any]) -> Any:
    return held["contents"]["versions"][0]


def graph(held: dict[str, Any]) -> Any:
    return held["contents"]["graphs"][0]


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no versions": lambda held: held["contents"].pop("versions"),
    "a kind of its own": lambda held: held["contents"].update(kind="other"),
    "no guards": lambda held: version(held).pop("guards"),
    "a guard of no kind": lambda held: version(held)["guards"]["checks"].append([0, 999, None]),
    "a fetch of no kind": lambda held: version(held)["guards"]["fetches"].append([-1, 999, None]),
    "a fetch before its parent": lambda held: version(held)["guards"]["fetches"].insert(0, [5, 11, "x"]),
    "an output that is none": lambda held: version(held)["guards"]["outputs"].append(10**6),
    "a key with a path": lambda held: graph(held)["forward"]["libraries"][0].__setitem__(0, "../../x"),
    "a blob that is none": lambda held: graph(held)["forward"]["libraries"][0].__setitem__(1, 99),
    "blobs outside": lambda held: held.update(blobs=[[0, 10**9]]),
    "a library that is none": lambda held: stranger(held),
    "a value of no kind": lambda held: graph(held).update(metas=["spell", "x"]),
    "a record of no class": lambda held: graph(held).update(metas=["record", "Popen", ["ls"]]),
    "an operator that is none": lambda held: graph(held).update(metas=["op", "aten", "__class__", "x"]),
    "deep": lambda held: graph(held).update(metas=deep(3000)),
    "a plan without a field": lambda held: graph(held)["plan"].pop("outputs"),
    "no options": lambda held: graph(held)["options"].update(nothing=1),
    "a division by zero": lambda held: graph(held).update(metas=["div", 1, 0]),
    "a negative size": lambda held: graph(held).update(metas=["tensor", 0, "uint8", [-1], [1]]),
    "a size without end": lambda held: graph(held).update(metas=["tensor", 0, "uint8", [2**62, 2**62], [1, 1]]),
    "a device of no kind": lambda held: graph(held).update(metas=["device", "nope"]),
    "an error that is a function": lambda held: graph(held).update(metas=["error", PRINT, ["tuple", "ran"]]),
    "a plan that is a list": lambda held: graph(held).update(plan=[]),
    "a state that is a list": lambda held: held["contents"].update(state=[1]),
    "source that is none": lambda held: version(held)["residual"].update(source="def residual(:"),
}


PRINT = ["attribute", "builtins", "print"]


def stranger(held: dict[str, Any]) -> None:
    """A library that nobody has, and four bytes of it."""
    graph(held)["forward"]["libraries"][0][0] = "0" * 64
    held["blobs"] = [[0, 4] for _ in held["blobs"]]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = ["list", value]
    return value


@pytest.mark.parametrize("case", CHANGES)
def test_contents_that_are_none(
    case: str, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    if case == "deep":
        (tmp_path / "f").write_bytes(rewritten_deep(good))
    else:
        (tmp_path / "f").write_bytes(rewritten(good, CHANGES[case]))
    with pytest.raises(smelt.SmeltError):
        smelt.load(tmp_path / "f").apply(scaled)
    assert "ran" not in capsys.readouterr().out


def test_contents_that_are_changed_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of `python -m tests.artefact.fuzz`: PyTorch's and Python's own errors came through."""
    made = artefacts(tmp_path)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    assert wrong(made, random.Random(5), 60, Counter()) == []


def rewritten_deep(good: bytes) -> bytes:
    """Lists in lists, deeper than Python reads."""
    start = len(container.MAGIC) + 16
    end = start + int(good[len(container.MAGIC) : start])
    text = good[start:end].replace(b'"metas":[', b'"metas":' + b'["list",' * 5000 + b"[", 1)
    return sealed(container.MAGIC + b"%016d" % len(text) + text + good[end:-80])

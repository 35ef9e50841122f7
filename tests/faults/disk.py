"""A disk that refuses the n-th call, or all from the n-th on: `python -m tests.faults.disk`; `--every 25` is a slice,
`--shard 0/4` the first of four processes that share the whole.

`disk.c` is preloaded into a process that compiles into a fresh cache, loads from a filled one, writes traces and
reports, evicts, saves and loads archives and artefacts. For every n the results are right (or an archive or artefact
says that it cannot be written), a refusal of one call gives at most one warning, nothing half-written is left, and a
later compilation is right and silent.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import smelt
from smelt import pipeline
from smelt.base import store as stores
from smelt.base.errors import SmeltError
from smelt.runtime import build, tune

ERRORS = [getattr(errno, name) for name in "ENOSPC EROFS EDQUOT EIO ENOLCK EACCES ESTALE EPERM ENOENT EMFILE".split()]
_REMEMBERS = """#!/bin/sh
for word in "$@"; do case "$word" in *.cpp) source=$word;; esac; out=$word; done
[ -z "$source" ] && exec g++ "$@"
built={folder}/$(sha1sum < "$source" | cut -c1-40).so
[ -f $built ] || {{ g++ "$@" && cp "$out" $built; exit $?; }}
cp $built "$out" 2>/dev/null || {{ echo "No space left on device" >&2; exit 1; }}
"""
"""A compiler that compiles a source once: what is tried is not the compiler."""
_PRELOADED = "SMELT_TESTS_DISK"


def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.relu(x) @ w).sum(0) * 2, x.exp().mean(1)


X, W = torch.linspace(-1, 1, 48).view(8, 6), torch.linspace(-2, 1, 24).view(6, 4)


def trained(run: Callable[..., Any]) -> list[torch.Tensor]:
    w = W.clone().requires_grad_()
    first, second = run(X, w)
    first.sum().backward()
    assert w.grad is not None
    return [first, second, w.grad]


def forget() -> None:
    smelt.reset()
    tune.forget()
    build.find_compiler.cache_clear()
    gc.collect()
    stores._opened.clear()


def _compiled() -> list[torch.Tensor]:
    return trained(smelt.compile(function))


def _artefact() -> list[torch.Tensor]:
    file = Path(os.environ["SMELT_CACHE_DIR"]).with_name("artefact")
    smelt.compile(function).aot_compile(X, W.clone().requires_grad_()).save(file)
    return trained(smelt.load(file).apply(function))


def _archive() -> list[torch.Tensor]:
    cache = os.environ["SMELT_CACHE_DIR"]
    saved = smelt.save_cache(Path(cache).with_name("archive"))
    os.environ["SMELT_CACHE_DIR"] = f"{cache}-2"
    assert smelt.load_cache(Path(cache).with_name("archive")) == saved
    return _compiled()


def _raising() -> AbstractContextManager[Any]:
    return mock.patch.object(pipeline, "schedule", side_effect=RuntimeError("a stage that fails"))


SCENARIOS: dict[str, tuple[Callable[[], list[torch.Tensor]], bool, dict[str, str], Any]] = {
    "compile": (_compiled, False, {}, nullcontext),
    "cached": (_compiled, True, {}, nullcontext),
    "trace": (_compiled, True, {"SMELT_TRACE": "1"}, nullcontext),
    "evict": (_compiled, True, {"SMELT_CACHE_BYTES": "2000"}, nullcontext),
    "report": (_compiled, False, {}, _raising),
    "artefact": (_artefact, False, {}, nullcontext),
    "archive": (_archive, True, {}, nullcontext),
}
"""What runs; whether the cache is filled before; variables of the environment; what it runs in."""


class Disk:
    """The preloaded library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.library.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, *[ctypes.c_int] * 3]
        self.library.fault_disarm.restype = ctypes.c_long
        self.library.fault_met.restype = ctypes.c_char_p

    def strike(self, name: str, folder: Path, at: int, error: int, lasting: bool) -> tuple[int, list[str]]:
        """How many calls there were, and what was wrong."""
        run, filled, variables, within = SCENARIOS[name]
        wrong: list[str] = []
        (folder / "tmp").mkdir(parents=True)
        tempfile.tempdir = str(folder / "tmp")
        places = {"SMELT_CACHE_DIR": f"{folder}/cache", "SMELT_TRACE_DIR": f"{folder}/trace", "TMPDIR": f"{folder}/tmp"}
        with mock.patch.dict(os.environ, places):
            forget()
            if filled:
                _compiled()
                forget()
            with mock.patch.dict(os.environ, variables), warnings.catch_warnings(record=True) as seen, within():
                warnings.simplefilter("default")
                self.library.fault_arm(str(folder).encode(), at, error, lasting, False)
                try:
                    wrong += differ(run())
                except (OSError, SmeltError) as told:
                    wrong += [] if name in ("artefact", "archive") else [f"raises {told!r}"]
                except Exception as raised:
                    wrong.append(f"raises {raised!r}")
                finally:
                    count = self.library.fault_disarm()
            said = len(seen) - (name == "report")  # which is told of in any case
            if said > (3 if lasting else 1):  # of the trace, the cache, and that nothing can be built
                wrong.append(f"{said} warnings: {[str(each.message)[:100] for each in seen]}")
            forget()
            met = self.library.fault_met().decode()
            if not lasting and not met.startswith(("unlink", "lstat")):  # such a one cannot be removed, or looked at
                wrong += [f"left: {each.name}" for each in folder.rglob(".new*")]
            os.environ["SMELT_CACHE_DIR"] = f"{folder}/cache"
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                wrong += [f"later {text}" for text in differ(_compiled())]
            wrong += [f"later: {each.message}" for each in seen]
        forget()
        return count, [f"{name}, {met or 'call'} {at}, {errno.errorcode[error]}{' on' * lasting}: {w}" for w in wrong]


def differ(got: list[torch.Tensor]) -> list[str]:
    want = trained(function)
    return [] if all(map(torch.allclose, got, want)) else ["the results differ"]


def campaign(names: list[str], every: int, seed: int, shard: tuple[int, int], root: Path) -> list[str]:
    """Each `every`-th call of each scenario is refused once, and from there on; of these one share of so many."""
    torch.set_num_threads(1)
    disk, rng, wrong, number = Disk(), random.Random(seed), list[str](), 0
    for name in names:
        total, found = disk.strike(name, root / name, 0, errno.EIO, False)
        for lasting in (False, True):
            for at in range(1 + rng.randrange(every), total + 1, every):
                number, error = number + 1, rng.choice(ERRORS)
                if number % shard[1] != shard[0]:
                    continue
                found += disk.strike(name, root / str(number), at, error, lasting)[1]
                shutil.rmtree(root / str(number), ignore_errors=True)
        print(f"{name}: {total} calls on files, {len(found)} wrong", flush=True)
        wrong += found
    return wrong


def main() -> int:
    """Exit status 1 when a refusal has done more than cost time."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.disk", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="the n-th call for each so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(SCENARIOS))
    parser.add_argument("--shard", default="0/1", help="0/4 is the first of four that share the calls")
    given = parser.parse_args()
    if _PRELOADED not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library, compiler = f"{folder}/disk.so", Path(folder, "compiler")
            source = Path(__file__).with_suffix(".c")
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
            compiler.write_text(_REMEMBERS.format(folder=folder))
            compiler.chmod(0o700)
            more = {"LD_PRELOAD": library, _PRELOADED: folder, "CXX": str(compiler), "SMELT_STRICT": "0"}
            return subprocess.run(
                [sys.executable, "-m", "tests.faults.disk", *sys.argv[1:]], env=os.environ | more
            ).returncode
    index, shards = map(int, given.shard.split("/"))
    root = Path(os.environ[_PRELOADED], "disks")
    wrong = campaign(given.only.split(","), given.every, given.seed, (index, shards), root)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

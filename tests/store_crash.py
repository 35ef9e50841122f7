"""Kills processes that build at random points, and looks at what they leave: `python -m tests.store_crash`.

In each round many processes build kernels of one cache at once, with the real compiler, and each is killed (SIGKILL) at
a random moment. Afterwards:

- no process that they started is left;
- every entry in the cache holds its checksum, loads and gives its own result;
- after a clean-up (left-overs made old, as after a day) neither the cache nor the folder of temporary files holds
  anything but entries;
- a process that builds then gets right results.

The processes are forked from one that has imported smelt: importing takes longer than building.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from smelt.base import eviction
from smelt.base.errors import SmeltWarning
from smelt.base.store import Store, store
from smelt.runtime import build as module
from smelt.runtime.build import build, find_compiler

KERNELS = 24
"""Different kernels of a round."""


def source(number: int) -> str:
    """A kernel whose result tells it from the others, with headers that take a compiler a moment."""
    function = f'extern "C" long number() {{ std::vector<long> v(3, {number}); return v[1]; }}'
    return f"#include <map>\n#include <string>\n#include <vector>\n{function}\n"


def call(library: module.Library) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_long)(library.address("number"))())


def work(turn: random.Random, first: int) -> int:
    """What a process does: build kernels in an order of its own, a few at a time; 0 where all results were right."""
    warnings.simplefilter("error", SmeltWarning)  # of a damaged entry
    numbers = list(range(first, first + KERNELS))
    turn.shuffle(numbers)
    for at in range(0, KERNELS, 3):
        part = numbers[at : at + 3]
        if [call(library) for library in build([source(number) for number in part])] != part:
            return 2
    return 0


def start(turn: random.Random, first: int) -> int:
    """The number of a new process at work."""
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        sys.stderr.flush()
        code = work(turn, first)
    except BaseException as error:
        print(f"  in a process: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def kill_round(turn: random.Random, first: int, processes: int, seconds: float) -> list[str]:
    """Start processes, kill each at a moment of its own; what went wrong in one that was not killed in time."""
    running: list[tuple[float, int]] = []
    wrong: list[str] = []
    waiting = processes
    while waiting or running:
        if waiting:  # a fork takes a while on a busy machine: who is due is killed between them
            waiting -= 1
            process = start(random.Random(turn.random()), first)
            running.append((time.monotonic() + turn.uniform(0, seconds), process))
        for moment, process in sorted(running):
            if moment > time.monotonic() and waiting:
                break
            time.sleep(max(0.0, moment - time.monotonic()))
            running.remove((moment, process))
            os.kill(process, signal.SIGKILL)  # it is not waited for yet, so the number is still its own
            _, status = os.waitpid(process, 0)
            if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
                wrong.append(f"a process ended with status {os.waitstatus_to_exitcode(status)}")
    return wrong


def orphans(folder: Path) -> list[str]:
    """Processes whose command names the folder: compilers and what they started."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command and each.parent.name != str(os.getpid()):
            found.append(f"left over: {command[:120]}")
    return found


def wait_for_orphans(folder: Path, seconds: float = 5.0) -> list[str]:
    """Those that are there after some seconds: a process that is killed takes a moment."""
    end = time.monotonic() + seconds
    while (found := orphans(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def look_at_entries(cache: Path, first: int) -> list[str]:
    """What is wrong with the entries that are there."""
    wrong, opened, compiler = [], Store(cache), find_compiler()
    for number in range(first, first + KERNELS):
        key = module._key(source(number), compiler, ())
        if not opened.path("kernels", key, ".so").exists():
            continue
        path = opened.get_library("kernels", key)
        if path is None:
            wrong.append(f"a damaged entry was kept: kernel {number}")
        elif (result := call(module.Library(path))) != number:
            wrong.append(f"kernel {number} gives {result}")
    return wrong


def clean_up(cache: Path, temporary: Path) -> list[str]:
    """Let a day pass for what is left over; what stays nevertheless."""
    for place in (cache, temporary):
        for path in place.rglob("*"):
            if path.is_dir() or eviction.is_passing(path):
                os.utime(path, (0, 0))
    eviction.sweep(cache, 10**12)
    stays = [path for path in cache.rglob("*") if path.is_file() and path.suffix not in (".so", ".txt")]
    wrong = [f"not cleaned up: {path}" for path in stays if path.name != ".swept"]
    return wrong + [f"not cleaned up: {path}" for path in temporary.iterdir()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds; 1 where something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.store_crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=4.0, help="in which the processes of a round are killed")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    turn = random.Random(given.seed)
    home = Path(tempfile.mkdtemp(prefix="smelt-crash-"))
    cache, temporary = home / "cache", home / "tmp"
    temporary.mkdir(mode=0o700)
    before = {name: os.environ.get(name) for name in ("SMELT_CACHE_DIR", "TMPDIR")}
    tempdir = tempfile.tempdir
    os.environ.update(SMELT_CACHE_DIR=str(cache), TMPDIR=str(temporary))
    tempfile.tempdir = str(temporary)
    wrong: list[str] = []
    try:
        find_compiler()
        store()
        for number in range(given.rounds):
            first = number * KERNELS
            found = kill_round(turn, first, given.processes, given.seconds)
            found += wait_for_orphans(home)
            found += look_at_entries(cache, first)
            kept = len(list(cache.glob("kernels/*/*.so")))
            left = len(list(temporary.iterdir())) + sum(map(eviction.is_passing, cache.rglob("*")))
            found += clean_up(cache, temporary)
            found += [] if work(turn, first) == 0 else ["wrong results afterwards"]
            print(f"round {number + 1}: {kept} entries, {left} left-overs, {len(found)} faults", flush=True)
            wrong += found
    finally:
        tempfile.tempdir = tempdir
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(home, ignore_errors=True)
    print("\n".join([*wrong, f"{given.rounds} rounds of {given.processes} processes: {len(wrong)} faults"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

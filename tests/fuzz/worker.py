"""One process of the fuzzer: makes programs, compares them, shrinks those that differ, writes a line for each."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import smelt

from .execute import ProgramError, difference
from .grammar import make_program
from .shrink import shrink

EAGER_SECONDS = (
    0.15  # lists that double in loops make programs longer than this, and their captures hundreds of times as long
)
COMPILED_SECONDS = 40.0
SHRINK_SECONDS = 12.0
PATIENCE = 10  # how often a program may catch that it took too long
ENDLESS = 77  # exit status: the program does not end in eager
MEMORY = 2 << 30  # bytes that a program may use
AOT_SHARE = 8  # each eighth program runs with the backend that also traces


class TookTooLong(BaseException):
    """A program runs longer than it may."""


@contextlib.contextmanager
def limited(seconds: float, endless: int = 1) -> Iterator[None]:
    """Raise TookTooLong in the block after so many seconds of processor time: what else runs does not count.

    It is raised once more at the end of the block, as the program may have caught it. An outer limit stands still
    meanwhile. A program that goes on and on is left with its process, which exits with `endless`.
    """
    stopped = []

    def stop(*_: Any) -> None:
        stopped.append(True)
        if len(stopped) > PATIENCE:
            os._exit(endless)
        raise TookTooLong

    before = signal.signal(signal.SIGPROF, stop)
    outer = signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        signal.setitimer(signal.ITIMER_PROF, *outer)
        if stopped:
            raise TookTooLong


def backend_of(number: int) -> str:
    """The backend that a program of the series is compiled with."""
    return "aot_eager" if number % AOT_SHARE == AOT_SHARE - 1 else "eager"


def compare(source: str, backend: str) -> dict[str, Any]:
    """Run one program: its status, how it differs, what the compiler did."""
    began = time.monotonic()
    try:
        with limited(COMPILED_SECONDS):
            detail, stats = difference(source, backend, lambda: limited(EAGER_SECONDS, ENDLESS))
    except (ProgramError, MemoryError) as error:
        return {"status": "invalid", "detail": str(error)}
    except TookTooLong:
        return {"status": "hang", "detail": f"took over {COMPILED_SECONDS} s"}
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(lines.filename)}:{lines.lineno}"
        return {"status": "error", "detail": f"{type(error).__name__} at {where}: {str(error)[:500]}"}
    counts = {k: stats.get(k, 0) for k in ("graphs", "breaks", "recompiles", "fallbacks")}
    counts["ms"] = round(1000 * (time.monotonic() - began))
    return {"status": "same" if detail is None else "different", "detail": detail, **counts}


_ERROR = re.compile(r"\b[A-Z]\w+Error\b")


def signature(found: dict[str, Any]) -> str:
    """What must stay the same while a failing program is shrunk."""
    detail = found["detail"] or ""
    if found["status"] == "different":
        part = detail.partition(",")[2].partition(":")[0]
        return f"different {part}: {' '.join(_ERROR.findall(detail))}"
    return f"{found['status']} {detail.partition(':')[0]}"


def shrunk(source: str, backend: str, found: dict[str, Any], seconds: float = SHRINK_SECONDS) -> str:
    """A smaller program that fails in the same way."""
    want = signature(found)

    tried = itertools.count(1)

    def fails(text: str) -> bool:
        if next(tried) % 50 == 0:
            forget()
        return signature(compare(text, backend)) == want

    return shrink(source, fails, seconds)


def work(seed: str, numbers: list[int], results: Path, corpus: Path | None) -> None:
    """Compare these programs of a series; appends a line to `results` before and after each."""
    import torch._dynamo  # the metadata rules of torch import it at the first error that they word in Python

    assert torch._dynamo
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    gc.collect()
    gc.freeze()  # what torch made is not looked through again after each program
    gc.disable()  # `forget` collects: programs meet a collection at the same places in each run of the series
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    with results.open("a", buffering=1) as out:
        for number in numbers:
            out.write(json.dumps({"program": number, "status": "begun"}) + "\n")
            source, backend = make_program(f"{seed}:{number}"), backend_of(number)
            found = compare(source, backend)
            if found["status"] in FAILED and corpus is not None:
                small = source if found["status"] == "hang" else shrunk(source, backend, found)
                save(corpus, seed, number, backend, small, found)
            out.write(json.dumps({"program": number, **found}) + "\n")
            if number % 10 == 0 or found["status"] == "invalid":  # a program without end may have filled the memory
                forget()
                gc.freeze()  # what is left are tables that live on


def forget() -> None:
    """Let go of what the last program made."""
    smelt.reset()
    sys.modules.pop("program", None)
    gc.collect()


FAILED = ("different", "error", "hang", "crash")


def save(corpus: Path, seed: str, number: int, backend: str, source: str, found: dict[str, Any]) -> Path:
    """Write a failing program into the corpus folder."""
    corpus.mkdir(parents=True, exist_ok=True)
    path = corpus / f"seed{seed}_{number}.py"
    detail = "\n".join("# " + line for line in str(found["detail"]).splitlines())
    path.write_text(f"# backend: {backend}\n# {found['status']}\n{detail}\n{source}\n")
    return path

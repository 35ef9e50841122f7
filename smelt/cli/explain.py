"""`smelt explain`: runs an unchanged script, then reports on every compiled frame, as text or as a page."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

import smelt
from smelt.abi.ceilings import Ceilings
from smelt.abi.frame_facts import RunFacts
from smelt.base.errors import BuildError
from smelt.base.text import visible
from smelt.capture.explain import Watch, watched
from smelt.cli.ranks import write_report
from smelt.cli.run import run_script, summary
from smelt.debug.memory_samples import MemorySamples
from smelt.page.page import render
from smelt.roofline.measure import ceilings, stored_ceilings
from smelt.roofline.text import limits

WIDTH = 140
"""Columns of the tables of `--perf` that are not printed on a terminal."""

NOTHING = "nothing was compiled: no compiled function was called"


def explain_script(
    target: str, args: Sequence[str], module: bool, page: Path | None, perf: bool = False, ranks: Path | None = None
) -> int:
    """Run a script, then report on its compiled frames; returns the script's exit status.

    Args:
        page: the file for the HTML page; None: the report is printed as text to standard output.
        perf: compare the times of kernels with the limits of the machine, in place of the text or on the page.
        ranks: the folder to which each process of a distributed run writes its report instead, for `smelt ranks`.
    """
    page = page.absolute() if page is not None else None
    ranks = ranks.absolute() if ranks is not None else None
    process, samples = os.getpid(), MemorySamples()
    with watched() as watch:
        status = run_script(target, args, module, quiet=True)
        if os.getpid() != process:  # a child process forked by the script also ends here
            return status
        _wait_for_threads()
    if ranks is not None:
        return _written_for_ranks(ranks, shlex.join([target, *args]), watch.text(), status)
    if page is None and not perf:
        _print(watch.text() or NOTHING, sys.stdout)
        return status
    run = watch.page(shlex.join([target, *args]))
    run.memory = samples.end()
    _complete(run, status)
    try:
        run.ceilings = _known_ceilings(run, measured=perf)
    except BuildError as error:
        _print(f"smelt: the limits of this machine cannot be measured: {error}", sys.stderr)
        status = status or 1
    if page is None:
        return _print_limits(run, status)
    return _written(page, run, watch, status)


def _print_limits(run: RunFacts, status: int) -> int:
    """Print the tables of `--perf`, if the limits are known; returns the exit status."""
    if not run.programs():
        _print(NOTHING, sys.stdout)
    elif run.ceilings:
        console = Console(file=sys.stdout, markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        with contextlib.suppress(OSError, ValueError):  # the script has closed standard output
            for each in limits(run, run.ceilings.__getitem__):
                console.print(each, soft_wrap=isinstance(each, str))
    return status


def _known_ceilings(run: RunFacts, measured: bool) -> dict[str, Ceilings]:
    """The ceilings of the devices on which programs ran.

    Args:
        measured: measure those that are not in the store.
    """
    devices = dict.fromkeys(program.device for program in run.programs())
    found = {name: (ceilings if measured else stored_ceilings)(torch.device(name)) for name in devices}
    return {name: each for name, each in found.items() if each is not None}


def _wait_for_threads() -> None:
    """Wait for the script's threads, as Python itself does at the end of a process."""
    with contextlib.suppress(KeyboardInterrupt):
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()


def _complete(run: RunFacts, status: int) -> None:
    stats = smelt.stats()
    run.counts["fallbacks"] = stats["fallbacks"]
    run.seconds = stats["stage_s"] or run.seconds
    run.eager_operators = stats["extern_ops"]
    if status:
        run.notes.append(f"The script ended with exit status {status}: this is what it had compiled until then.")


def _written(page: Path, run: RunFacts, watch: Watch, status: int) -> int:
    try:
        write_whole(page, render(run))
    except OSError as error:
        _print(f"smelt: the page could not be written to {page}: {error.strerror or error}", sys.stderr)
        return status or 1
    lines = [f"smelt: the page is {page}"] if run.frames or run.breaks else [f"smelt: {NOTHING}; the page is {page}"]
    _print("\n".join([*summary(smelt.stats()), *lines]), sys.stderr)
    return status


def _written_for_ranks(folder: Path, title: str, text: str, status: int) -> int:
    try:
        file = write_report(folder, title, status, smelt.stats(), text)
    except OSError as error:
        _print(f"smelt: the report could not be written to {folder}: {error.strerror or error}", sys.stderr)
        return status or 1
    _print(f"smelt: the report is {file}; all ranks: smelt ranks {shlex.quote(str(folder))}", sys.stderr)
    return status


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically; links are followed.

    Raises:
        OSError: the file cannot be written; its previous content is unchanged.
    """
    path = Path(os.path.realpath(path))
    data = text.encode("utf-8", "backslashreplace")
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced atomically
        path.write_bytes(data)
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _print(text: str, stream: object) -> None:
    """Print to a stream that the script may have closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(visible(text), file=stream, flush=True)  # type: ignore[call-overload]

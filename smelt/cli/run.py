"""`smelt run`: runs an unchanged script with its `torch.compile` calls compiled by smelt, then prints a summary."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import linecache
import os
import runpy
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import smelt

_run_in_main: Callable[..., None] = runpy._run_module_as_main  # type: ignore[attr-defined]
"""The function that `python -m` calls. (`runpy.run_module` removes the script's `__main__` at its end.)"""

_replaced: list[ModuleType] = []
"""The original `__main__` module of the process, kept alive because its code still runs."""

_HOME = str(Path(smelt.__file__).parents[1])
"""The folder that contains this package: the process that runs in eager uses the same package."""

MANY = 5
"""Maximum number of reasons from one table that the summary shows."""


STANDARD_INPUT = "-"
"""The name under which the script is read from standard input, as by `python -`."""

INSTALL = "smelt.install()"
"""The statement that processes spawned by the script run first."""


def run_script(
    target: str,
    args: Sequence[str],
    module: bool,
    quiet: bool,
    eager_too: bool = False,
    spawned: str = INSTALL,
) -> int:
    """Run a script (or a module, as `python -m` does) with these arguments; returns its exit status.

    Args:
        target, args, module: the script (STANDARD_INPUT: its text is read from there), its arguments, and whether
            `target` is the name of a module.
        quiet: no summary at the end.
        eager_too: if the script succeeds, run it in eager as well, in another process, and print the time saved.
        spawned: source text that processes which `multiprocessing` spawns execute first.
    """
    sys.argv = [target, *args]
    smelt.install()
    began, status = time.perf_counter(), 1
    try:
        with _executed_when_spawned(spawned):
            status = _status_of(target, module)
    finally:
        seconds = time.perf_counter() - began
        with _perhaps_closed():
            sys.stdout.flush()
            if not quiet:
                print("\n".join(summary(smelt.stats())), file=sys.stderr)
    if eager_too and status == 0:
        text = saved(seconds, smelt.stats()["compile_s"], _in_eager(target, args, module))
        with _perhaps_closed():
            print(text, file=sys.stderr)
    return status


class Interrupted(int):
    """The exit status 130 of a script that an interrupt (Ctrl-C) ended."""

    def __new__(cls) -> Interrupted:
        return super().__new__(cls, 130)


def end_like_python(command: Callable[[], object]) -> None:
    """Call a command; if an interrupt ended its script, the process ends by the signal, as Python ends such a script:
    a shell then ends the loop that called it, which an exit status of 130 alone would not do.
    """
    try:
        command()
    except SystemExit as end:
        if not isinstance(end.code, Interrupted):
            raise
        sys.excepthook = lambda *error: None  # the script's traceback has been shown
        raise KeyboardInterrupt from None


@contextmanager
def _executed_when_spawned(text: str) -> Iterator[None]:
    """Context in which processes that `multiprocessing` spawns import smelt and execute `text` before the script."""
    original = spawn.get_command_line

    def command_line(**given: Any) -> list[str]:
        words = original(**given)
        if "-c" in words[:-1]:  # a frozen program has no such source text
            at = words.index("-c") + 1
            words[at] = f"import sys; sys.path.append({_HOME!r}); import smelt; {text}; {words[at]}"
        return words

    spawn.get_command_line = command_line
    try:
        yield
    finally:
        spawn.get_command_line = original


def _status_of(target: str, module: bool) -> int:
    """Run the script; returns its exit status. An error of the script is shown as Python would show it."""
    try:
        _run(target, module)
    except SystemExit as error:
        return _status(error.code)
    except BaseException as error:
        error = error.with_traceback(_of_the_script(error.__traceback__))
        with _perhaps_closed():
            sys.excepthook(type(error), error, error.__traceback__)
        return Interrupted() if isinstance(error, KeyboardInterrupt) else 1
    return 0


def run_in_eager(target: str, args: Sequence[str], module: bool, timed: str) -> int:
    """Run a script as `run_script` does with all that it compiles in eager; write its seconds to `timed`."""
    smelt.stance("force_eager")
    began = time.perf_counter()
    status = run_script(target, args, module, quiet=True, spawned=f"smelt.stance('force_eager'); {INSTALL}")
    Path(timed).write_text(str(time.perf_counter() - began))
    return status


def _in_eager(target: str, args: Sequence[str], module: bool) -> float | None:
    """Seconds that the script takes in eager, in a new process; None if it fails."""
    call = "import json, sys; from smelt.cli.run import run_in_eager; sys.exit(run_in_eager(*json.loads(sys.argv[1])))"
    with tempfile.TemporaryDirectory() as folder:
        timed = Path(folder) / "seconds"
        given = json.dumps([target, [*args], module, str(timed)])
        done = subprocess.run(
            [sys.executable, "-c", call, given],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_HOME, os.environ.get("PYTHONPATH"))))},
            input=_text_of_standard_input() if target == STANDARD_INPUT and not module else b"",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return float(timed.read_text()) if done.returncode == 0 and timed.exists() else None


def saved(seconds: float, compile_s: float, eager: float | None) -> str:
    """The line that reports the time saved.

    Args:
        seconds: time of the script, `compile_s` of it spent compiling.
        eager: time of the script in eager in seconds; None if it failed.
    """
    if eager is None:
        return "  time saved: not known, for the script does not end well when it runs a second time, in eager"
    text = f"{seconds:.1f} s, {compile_s:.1f} s of them compiling; in eager {eager:.1f} s"
    return f"  time saved: {eager - seconds:.1f} s ({text})"


def _run(target: str, module: bool) -> None:
    """Run the script as `__main__`. The module stays there: atexit functions and threads may still read it."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    _replaced.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    path = Path(target).absolute()
    if module:
        sys.path.insert(0, os.getcwd())
        _run_in_main(target)
    elif target == STANDARD_INPUT:
        sys.path[0:1] = [""]
        text = _text_of_standard_input()
        lines = text.decode(errors="replace").splitlines(keepends=True)
        linecache.cache["<stdin>"] = len(text), None, lines, "<stdin>"  # errors and reports show the script's lines
        exec(compile(text, "<stdin>", "exec", dont_inherit=True), main.__dict__)
    elif path.is_dir() or zipfile.is_zipfile(path):
        sys.path[0:1] = [target]
        _run_in_main("__main__", alter_argv=False)
    else:
        sys.path[0:1] = [str(path.resolve().parent)]
        loader = SourceFileLoader("__main__", str(path))
        main.__dict__.update(__file__=str(path), __cached__=None, __loader__=loader)
        with io.open_code(str(path)) as file:
            code = compile(file.read(), str(path), "exec", dont_inherit=True)
        exec(code, main.__dict__)


@cache
def _text_of_standard_input() -> bytes:
    """The script on standard input, which can be read once."""
    return sys.stdin.buffer.read()


def _status(code: Any) -> int:
    """The exit status of `sys.exit(code)`; a text is printed to standard error, as Python does."""
    if code is None or isinstance(code, int):
        return code or 0
    with _perhaps_closed():
        print(code, file=sys.stderr)
    return 1


def _perhaps_closed() -> contextlib.suppress:
    """A context for printing to streams that the script may have closed."""
    return contextlib.suppress(OSError, ValueError, AttributeError)


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first line on, without this file and `runpy`; None if the script is not in it."""
    left = traceback
    while left is not None and left.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        left = left.tb_next
    return left


def summary(stats: dict[str, Any]) -> list[str]:
    """The lines of the summary of what was compiled."""
    counts = (("graph", "graphs"), ("break", "breaks"), ("recompile", "recompiles"), ("fallback", "fallbacks"))
    text = ", ".join(f"{stats[key]} {name}{'s' * (stats[key] != 1)}" for name, key in counts)
    lines = [f"smelt: {text}; compiled for {stats['compile_s']:.1f} s"]
    for title, table in (("break", "break_reasons"), ("recompiled", "recompile_reasons")):
        reasons = sorted(stats[table].items(), key=lambda item: -item[1])
        lines += [f"  {title}: {reason}{f', {times} times' if times > 1 else ''}" for reason, times in reasons[:MANY]]
        if len(reasons) > MANY:
            lines.append(f"  and {len(reasons) - MANY} more")
    return lines

"""`smelt run`: a script as it is, with its `torch.compile` calls compiled by smelt, and a summary at its end."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import runpy
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import smelt

_run_in_main: Callable[..., None] = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What `python -m` calls; `runpy.run_module` takes its `__main__` away again at the end."""

_replaced: list[ModuleType] = []
"""The module that began the process lives on, since its code still runs."""

MANY = 5
"""Lines of a table of reasons that the summary shows."""


def run_script(target: str, args: Sequence[str], module: bool, quiet: bool) -> int:
    """Run a script (or a module, as `python -m` does) with these arguments; its exit status."""
    sys.argv = [target, *args]
    smelt.install()
    try:
        _run(target, module)
    except SystemExit as error:
        return _status(error.code)
    except BaseException as error:
        error = error.with_traceback(_of_the_script(error.__traceback__))
        with _perhaps_closed():
            sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        with _perhaps_closed():
            sys.stdout.flush()
            if not quiet:
                print("\n".join(summary(smelt.stats())), file=sys.stderr)
    return 0


def _run(target: str, module: bool) -> None:
    """Run it as `__main__`, which it stays: atexit functions and threads that outlive the script read it, too."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    _replaced.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    path = Path(target).absolute()
    if module:
        sys.path.insert(0, os.getcwd())
        _run_in_main(target)
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


def _status(code: Any) -> int:
    """The exit status that `sys.exit(code)` means; a text is printed."""
    if code is None or isinstance(code, int):
        return code or 0
    with _perhaps_closed():
        print(code, file=sys.stderr)
    return 1


def _perhaps_closed() -> contextlib.suppress:
    """Where something is printed: the script may have closed its streams."""
    return contextlib.suppress(OSError, ValueError, AttributeError)


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first line on: without this file and `runpy`; None where it has no part in it."""
    left = traceback
    while left is not None and left.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        left = left.tb_next
    return left


def summary(stats: dict[str, Any]) -> list[str]:
    """What was compiled, in lines."""
    counts = (("graph", "graphs"), ("break", "breaks"), ("recompile", "recompiles"), ("fallback", "fallbacks"))
    told = ", ".join(f"{stats[key]} {name}{'s' * (stats[key] != 1)}" for name, key in counts)
    lines = [f"smelt: {told}; compiled for {stats['compile_s']:.1f} s"]
    for title, table in (("break", "break_reasons"), ("recompiled", "recompile_reasons")):
        reasons = sorted(stats[table].items(), key=lambda item: -item[1])
        lines += [f"  {title}: {reason}{f', {times} times' if times > 1 else ''}" for reason, times in reasons[:MANY]]
        if len(reasons) > MANY:
            lines.append(f"  and {len(reasons) - MANY} more")
    return lines

"""The child side of `process`: imports torch and the model libraries once, then forks a process for each task.

A fork takes milliseconds, while starting Python with these libraries takes seconds; every task still has its own
memory, threads and caches. Nothing here may start threads (which a fork does not inherit) or import a compiler (whose
import is part of its cold start). One line of JSON per request on standard input, one per event on standard output:
`{"pid": ...}` when a task has begun, `{"code": ...}` when it has ended (negative: the signal that ended it).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from smelt.bench.contenders import load_compiler
from smelt.bench.processes import turns
from smelt.bench.torchvision_schemas import define_torchvision_schemas

LIBRARIES = {
    "torchvision": ["torchvision"],
    "timm": ["timm"],
    "transformers": ["transformers", "transformers.modeling_utils", "transformers.loss.loss_utils"],
}
"""Modules to import before the first task, because their import is slow, by the package that a workload needs."""

COMPILER = "smelt"
"""Name in `packages` with which the compiler of this project is imported as well, for runs that do not measure cold
starts.
"""

OPTIMIZERS = "torch.optim"
"""Name in `packages` with which an optimizer is created: the first optimizer of a process makes PyTorch import its
compiler, which takes 1.5 s.
"""


def preload(packages: Sequence[str]) -> None:
    """Import the libraries among `packages` that are installed."""
    define_torchvision_schemas()
    if OPTIMIZERS in packages:
        torch.optim.SGD([torch.zeros(1)], lr=0.1)
    if COMPILER in packages:
        load_compiler()
    for package in packages:
        for module in LIBRARIES.get(package, []):
            # A library whose import fails makes the rows that need it fail, with its own message.
            with contextlib.suppress(Exception):
                importlib.import_module(module)


def serve(packages: Sequence[str]) -> None:
    """Fork one process for each request until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # text that libraries print must not be read as an answer
    preload(packages)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(request)
        print(json.dumps({"pid": pid}), file=answers)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), file=answers)


def run(request: dict[str, Any]) -> NoReturn:
    """The forked process: runs one task in a new session, with its output in a file."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.environ.update(request["environment"])
        turns.join_turns()
        if request.get("threads"):
            torch.set_num_threads(request["threads"])
        from smelt.bench.processes.worker import main

        main(request["task"], request["result"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

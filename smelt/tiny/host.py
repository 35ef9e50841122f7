"""Builds the C program of a model with this machine's compiler and calls it through ctypes, for tests and trials."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.base.errors import BuildError
from smelt.tiny.program import Program
from smelt.tiny.rendering import identifier

FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


class HostModel:
    """A model that runs on this machine, with separate memory for its arena and trained parameters."""

    def __init__(self, texts: Mapping[str, str], program: Program, flags: Sequence[str] = ()) -> None:
        """Build and load the program.

        Args:
            texts: from `render_c.render`.
            program: the program from which the texts were rendered.
            flags: additional options of the compiler, such as "-DTINY_DUAL_MAC=1".

        Raises:
            BuildError: there is no C compiler, or it refuses the program.
        """
        self.program = program
        with tempfile.TemporaryDirectory() as folder:
            self.library = ctypes.CDLL(str(build(texts, Path(folder), flags)))
        self.library.model_input.restype = ctypes.POINTER(ctypes.c_int8)
        self.library.model_logits.restype = ctypes.POINTER(ctypes.c_float)
        if hasattr(self.library, "train_step"):
            self.library.train_step.restype = ctypes.c_float
            self.library.train_step.argtypes = (ctypes.c_int, ctypes.c_float)

    def infer(self, image: np.ndarray) -> np.ndarray:
        """Logits of an int8 image, float32 (classes,)."""
        self._give(image)
        best = self.library.infer()
        logits = self.logits()
        assert best == int(logits.argmax())
        return logits

    def train_step(self, image: np.ndarray, label: int, rate: float) -> np.float32:
        """The loss of an int8 image before an update."""
        self._give(image)
        return np.float32(self.library.train_step(label, rate))

    def logits(self) -> np.ndarray:
        """The logits of the last call, float32 (classes,)."""
        return np.ctypeslib.as_array(self.library.model_logits(), (self.program.graph.classes,)).copy()

    def trained(self) -> dict[str, np.ndarray]:
        """The present values of the trained parameters, by their names in the program."""
        held = sorted(self.program.trained.values(), key=lambda one: -one.data.itemsize)
        types: dict[str, Any] = {"int8": ctypes.c_int8, "int32": ctypes.c_int32, "float32": ctypes.c_float}
        fields = [(identifier(one.name), types[one.data.dtype.name] * one.data.size) for one in held]
        struct = type("ModelTrained", (ctypes.Structure,), {"_fields_": [("steps", ctypes.c_uint32), *fields]})
        now = struct.in_dll(self.library, "model_trained")  # type: ignore[attr-defined]
        return {
            one.name: np.ctypeslib.as_array(getattr(now, identifier(one.name))).reshape(one.data.shape).copy()
            for one in held
        }

    def _give(self, image: np.ndarray) -> None:
        graph = self.program.graph
        assert image.dtype == np.int8 and image.shape == graph.tensors[graph.input].shape
        ctypes.memmove(self.library.model_input(), np.ascontiguousarray(image).ctypes.data, image.size)


def build(texts: Mapping[str, str], folder: Path, flags: Sequence[str] = ()) -> Path:
    """A shared library of a C program; its files are written to the folder.

    Raises:
        BuildError: there is no C compiler, or it refuses the program.
    """
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise BuildError("there is no C compiler", hint="apt install gcc")
    for name, text in texts.items():
        (folder / name).write_text(text)
    made = folder / "model.so"
    command = [compiler, *FLAGS, *flags, "-o", str(made), str(folder / "model.c")]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise BuildError("the C compiler refused the model", why=found.stderr[:2000])
    return made

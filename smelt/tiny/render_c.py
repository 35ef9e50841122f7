"""Renders programs and their layouts as one C99 program: `model.c`, `model.h` and the kernels that they call.

`infer` and `train_step` (if there is one) are sequences of calls without branches. Constants are in flash, trained
parameters in one struct, and everything else in one arena that both functions share.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from smelt.base.text import Writer
from smelt.tiny import render_backward, render_forward  # noqa: F401 (they fill the table)
from smelt.tiny.plan import lay_out
from smelt.tiny.program import Program
from smelt.tiny.rendering import C_TYPES, RULES, Rendering, identifier, number


def render(infer: Program, train: Program | None = None) -> dict[str, str]:
    """The files of the C program of a model, by name.

    Args:
        infer: from `infer_program`, with the trained parameters of `train`.
        train: from `step_program`; None: the program only infers.
    """
    first = Rendering(infer, lay_out(infer))
    programs = [("infer", first)]
    if train is not None:
        programs.append(("train_step", Rendering(train, lay_out(train), first.constants, first.functions)))
    bodies = {name: _body(one) for name, one in programs}
    arena = max(one.layout.size for _, one in programs)
    kernels = files("smelt.tiny").joinpath("native")
    texts = {path: kernels.joinpath(path).read_text() for path in KERNELS[: None if train is not None else 2]}
    return {"model.c": _source(programs, bodies), "model.h": _header(first, arena, train is not None), **texts}


KERNELS = ("tiny_kernels.h", "tiny_attention.h", "tiny_train.h")
"""The header files of the kernels. Each includes the one before it; an inference needs the first two."""


def _body(rendering: Rendering) -> list[str]:
    return [RULES[call.kernel](rendering, call, i) for i, call in enumerate(rendering.program.calls)]


def trained_bytes(program: Program) -> int:
    """Bytes of `struct model_trained`: the widest parameters come first, so that none needs padding."""
    held = sum(one.bytes for one in program.trained.values())
    return -(-held // 4) * 4 + 4


def _header(rendering: Rendering, arena: int, trains: bool) -> str:
    program, graph = rendering.program, rendering.graph
    flash = sum(data.nbytes for data in rendering.constants.values())
    image = graph.tensors[graph.input]
    w = Writer()
    w("/* Written by smelt. */", "#ifndef MODEL_H", "#define MODEL_H", "", "#include <stdint.h>", "")
    w(f"#define MODEL_INPUT_BYTES {image.elements}")
    w(f"#define MODEL_CLASSES {graph.classes}", f"#define MODEL_ARENA_BYTES {arena}")
    w(
        f"#define MODEL_TRAINED_BYTES {trained_bytes(program) if trains else 0}",
        f"#define MODEL_FLASH_BYTES {flash}",
        "",
    )
    w("/* Where the image goes, " + " x ".join(map(str, image.shape)) + " int8: a call writes over it. */")
    w("int8_t *model_input(void);", "/* Of the last call. */", "const float *model_logits(void);", "int infer(void);")
    if trains:
        w("", "/* All that trains. */")
        with w.block("struct model_trained {", "};"):
            w("uint32_t steps;")
            for name, data in _struct(program):
                w(f"{C_TYPES[data.dtype.name]} {identifier(name)}[{data.size}];")
        w("extern struct model_trained model_trained;", "")
        w("/* One step of SGD for the image and its class, below MODEL_CLASSES; the loss before the update. */")
        w("float train_step(int label, float rate);")
    w("", "#endif")
    return w.text()


def _struct(program: Program) -> list[tuple[str, np.ndarray]]:
    return sorted(((one.name, one.data) for one in program.trained.values()), key=lambda one: -one[1].itemsize)


def _source(programs: list[tuple[str, Rendering]], bodies: dict[str, list[str]]) -> str:
    first = programs[0][1]
    trains = len(programs) > 1
    w = Writer()
    w("/* Written by smelt. */", '#include "model.h"', f'#include "{KERNELS[1 + trains]}"', "")
    for name, data in first.constants.items():
        _array(w, f"static const {C_TYPES[data.dtype.name]} {name}[{data.size}] = {{", data, "};")
    if trains:
        with w.block("struct model_trained model_trained = {", "};"):
            w("0,")
            for _, data in _struct(first.program):
                _array(w, "{", data, "},")
    w("", "static union {", "    uint64_t aligned;", "    uint8_t bytes[MODEL_ARENA_BYTES];", "} memory;")
    w("#define arena (memory.bytes)", "static const float *logits = (const float *)arena;", "")
    w(f"int8_t *model_input(void) {{ return {first.at(first.graph.input)}; }}")
    w("const float *model_logits(void) { return logits; }")
    for body, name in first.functions.items():
        with w.block(f"\nTINY_FUNCTION void {name}(void) {{", "}"):
            w(*body.splitlines())
    for name, rendering in programs:
        with w.block(f"\n{_SIGNATURES[name]} {{", "}"):
            if name == "train_step":
                w("float loss = 0;")
            w(*bodies[name], f"logits = {rendering.at(rendering.program.logits)};")
            w("model_trained.steps++;", "return loss;") if name == "train_step" else w(
                "return tiny_largest(logits, MODEL_CLASSES);"
            )
    return w.text()


_SIGNATURES = {"infer": "int infer(void)", "train_step": "float train_step(int label, float rate)"}


def _array(w: Writer, head: str, data: np.ndarray, tail: str) -> None:
    with w.block(head, tail):
        texts = [number(v) for v in data.ravel()] if data.dtype == np.float32 else [str(v) for v in data.ravel()]
        for start in range(0, len(texts), 24):
            w(", ".join(texts[start : start + 24]) + ",")

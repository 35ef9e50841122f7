"""Encodes and decodes the programs of one graph: host texts, built libraries, constants, and the plan of a call."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.abi.rendered import Rendered
from smelt.artefact.codec import Decoder, Encoder
from smelt.artefact.container import ArtefactError, refused_as
from smelt.autograd.call.absent_tangents import Backward, subsets
from smelt.autograd.call.calling_convention import Program, wrap
from smelt.autograd.trace.plan import Joint
from smelt.base.locks import new_lock
from smelt.base.options import Options
from smelt.program import load
from smelt.runtime import tune
from smelt.runtime.build import stored_library, take_library
from smelt.runtime.host_code import to_bytes

PLAN = tuple(f.name for f in dataclasses.fields(Joint) if f.name not in ("module", "metas", "states", "facts"))
OPTIONS = tuple(f.name for f in dataclasses.fields(Options) if f.compare)


@dataclasses.dataclass
class Kept:
    """The data of a compiled graph that an artefact needs.

    Attributes:
        joint: the joint graph's plan of a call; the graph itself is not needed.
        forward: the forward program as source text.
        backward: positions of absent tangents -> source text of the backward program that does not take them.
        draws, affine: see `Backward`.
        choices: the choices between library kernels: (operation, names of the candidates, the fastest).
        references: whether some operations run by the eager references of primitives.
    """

    joint: Joint
    options: Options
    forward: Rendered
    backward: Mapping[tuple[int, ...], Rendered]
    draws: bool = False
    affine: bool = False
    choices: Sequence[tuple[str, tuple[str, ...], str]] = ()
    references: bool = False


class KnownBackward(Backward):
    """The backward of a loaded artefact: its programs, and sums of their gradients.

    Args:
        loaders: set of absent tangents -> function that loads the program for it. The first program is loaded by the
            constructor, as a training step probably runs it; the others when they are first needed.
        draws, affine: see `Backward`.
    """

    def __init__(self, loaders: Mapping[tuple[int, ...], Callable[[], Program]], draws: bool, affine: bool) -> None:
        self.loaders = dict(loaders)
        self.programs = {absent: load_now() for absent, load_now in [*loaders.items()][:1]}
        self.draws, self.affine, self.lock = draws, affine, new_lock()

    def without(self, absent: tuple[int, ...], count: int) -> list[tuple[tuple[int, ...], Program]]:
        """See `Backward.without`; here nothing can be compiled, so a missing program is an error."""
        if absent in self.loaders:
            return [(absent, self._program(absent))]
        if self.draws and not self.affine and () in self.loaders:
            return [((), self._program(()))]
        wanted = [] if self.affine else [*subsets(self.loaders, absent, count)]
        if not wanted or any(subset not in self.loaders for subset in wanted):
            raise ArtefactError(
                "the artefact has no backward for this set of results",
                why=f"of {count} results with gradients, those at {absent} have none here",
                hint="use the same results in the loss as the artefact was made for, or smelt.compile the model",
            )
        return [(subset, self._program(subset)) for subset in wanted]

    def reads(self, absent: tuple[int, ...], count: int) -> frozenset[int] | None:
        """Always None: the reads of a loaded program are not known."""
        return None

    def _program(self, absent: tuple[int, ...]) -> Program:
        if absent not in self.loaders:
            raise ArtefactError("the artefact has no backward for this set of results")
        return super()._program(absent)

    def _made(self, absent: tuple[int, ...]) -> Program:
        with self.lock:
            if absent not in self.programs:
                self.programs[absent] = self.loaders[absent]()
        return self.programs[absent]


class ProgramWriter:
    """Encodes programs."""

    def __init__(self, encode: Encoder) -> None:
        self.encode = encode

    def data(self, kept: Kept) -> dict[str, Any]:
        """Encode the programs of a graph and its plan of a call.

        Raises:
            ArtefactError: the programs are for a GPU, or contain a value that the codec cannot encode.
        """
        joint = kept.joint
        if joint.reads or joint.reals or joint.states or joint.num_found:
            raise ArtefactError(
                "a graph that reads numbers from tensors, or takes floating-point numbers that change",
                hint="keep numbers in tensors, or compile with dynamic=False",
            )
        return {
            "plan": {name: self.encode(getattr(joint, name)) for name in PLAN},
            "metas": self.encode(tuple(joint.output_metas)),
            "options": {name: getattr(kept.options, name) for name in OPTIONS},
            "forward": self._text(kept.forward, kept.options),
            "backward": [[[*absent], self._text(each, kept.options)] for absent, each in kept.backward.items()],
            "draws": kept.draws,
            "affine": kept.affine,
            "choices": [[operation, [*names], winner] for operation, names, winner in dict.fromkeys(kept.choices)],
            "references": kept.references,
        }

    def _text(self, rendered: Rendered, options: Options) -> dict[str, Any]:
        if rendered.device is not None or rendered.kernels:
            raise ArtefactError("a program for a GPU", hint="artefacts hold programs for a CPU")
        if rendered.empty is not None:
            raise ArtefactError("a graph with data-dependent sizes")
        libraries = []
        for source, exports in zip(rendered.cpp_sources, rendered.exports, strict=True):
            key, body = stored_library(source, options)
            libraries.append([key, self.encode.blobs.number(body), exports])
        return {
            "host": rendered.host_source,
            "code": self.encode.blobs.number(to_bytes(rendered.host_source)),
            "libraries": libraries,
            "constants": [self.encode(tensor) for tensor in rendered.constants],
            "parts": [self._text(part, options) for part in rendered.parts],
            "operators": [self.encode(each) for each in rendered.operators],
        }


class ProgramReader:
    """Rebuilds programs from their data."""

    def __init__(self, decode: Decoder) -> None:
        self.decode = decode

    def callable(self, data: dict[str, Any]) -> Callable[..., Any]:
        """The callable of a graph, over its flat inputs."""
        if data["references"]:  # fills the tables of primitives
            importlib.import_module("smelt.prims.ops")
        for operation, names, winner in data["choices"]:
            tune.take(operation, tuple(names), winner)
        options = Options(**data["options"])
        plan = {name: self.decode(value) for name, value in data["plan"].items()}
        if plan.keys() != set(PLAN):
            raise ArtefactError("an artefact holds another plan of a call")
        joint = Joint(module=None, metas=self.decode(data["metas"]), **plan)  # type: ignore[arg-type]
        forward = self._program(data["forward"], options)
        loaders = {tuple(absent): functools.partial(self._program, text, options) for absent, text in data["backward"]}
        known = KnownBackward(loaders, data["draws"], data["affine"]) if loaders else None
        return wrap(joint, forward, known)

    def _program(self, data: dict[str, Any], options: Options) -> Program:
        with refused_as("a program of the artefact cannot be loaded"):
            return load(self._rendered(data), options)

    def _rendered(self, data: dict[str, Any]) -> Rendered:
        return Rendered(
            cpp_sources=[],
            exports=[exports for _, _, exports in data["libraries"]],
            host_source=data["host"],
            constants=[self.decode(tensor) for tensor in data["constants"]],
            parts=[self._rendered(part) for part in data["parts"]],
            operators=[self.decode(each) for each in data["operators"]],
            libraries=[take_library(key, self.decode.blobs[blob]) for key, blob, _ in data["libraries"]],
            host_code=self.decode.blobs[data["code"]],
        )

"""CUDA graphs of a compiled graph: `Recorder` returns programs that are recorded once and then replayed.

recorded_program.py decides which call is recorded or replayed, recorded_stages.py decides this for programs in stages,
recording.py implements one recording, cuda/device.py is the interface of the GPU. For users: docs/cuda-graphs.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection

import torch

from smelt.abi.staged import Staged
from smelt.base.options import Owner
from smelt.runtime.cuda.device import NO_OWNER, Device, Program, device_at
from smelt.runtime.cuda.recorded_program import RecordedProgram
from smelt.runtime.cuda.recorded_stages import RecordedStages
from smelt.runtime.memory import RECYCLING


class Recorder:
    """The recordings of one compiled graph: of its forward and its backward program.

    It has only weak references to programs: recordings and their memory are freed with the program that `wrap`
    returned.

    Args:
        device: the device on which the programs run.
        limit: maximum number of recordings of one program for one set of parameters, on average over the sets in use.
        name: name of the graph in reasons and warnings.
        backend: the `Device` that records; default: that of the GPU.
        owner: recordings of one owner share a limit of memory.
    """

    def __init__(
        self,
        device: torch.device,
        limit: int = 8,
        name: str = "graph",
        backend: Device | None = None,
        owner: Owner = NO_OWNER,
    ) -> None:
        self.limit, self.name, self.owner = limit, name, owner
        self._programs: list[weakref.ref[RecordedProgram]] = []
        self.refused: str | None = None
        self.device: Device | None = backend
        if not RECYCLING:
            self.refused = "this PyTorch has no exchange table of DLPack"
        elif backend is None and device.type != "cuda":
            self.refused = f"{device} is no GPU"
        elif backend is None:
            self.device = device_at(device)

    def wrap(
        self,
        program: Program,
        name: str,
        *,
        written: Collection[int] | None = None,
        visible: int | None = None,
        inputs: Collection[str] = (),
    ) -> Program:
        """Returns `program` with recordings; it is called below autograd, like the program itself.

        Args:
            name: name of the program in messages.
            written: positions of inputs that the program overwrites; None: not known, any input that is also a result.
            visible: number of results, the first ones, that callers get and may keep; the others are for autograd.
            inputs: names of inputs in messages.
        """
        if self.refused is not None or self.device is None:
            return program
        make: Callable[..., RecordedProgram] = RecordedStages if isinstance(program, Staged) else RecordedProgram
        wrapped = make(
            program,
            self.device,
            limit=self.limit,
            name=f"{self.name}, {name}",
            written=written,
            visible=visible,
            inputs=tuple(inputs),
            owner=self.owner,
            others=[known for each in self._programs if (known := each()) is not None],
        )
        self._programs.append(weakref.ref(wrapped))
        return wrapped

    @property
    def programs(self) -> list[RecordedProgram]:
        """The programs that still exist."""
        return [program for each in self._programs if (program := each()) is not None]

    def reasons(self) -> list[str]:
        """Returns lines that say what was recorded and why calls ran unrecorded."""
        if self.refused is not None:
            return [f"{self.name}: no CUDA graphs: {self.refused}"]
        return [line for program in self.programs for line in program.reasons()]

"""Types and functions of the C extension, whose sources are _native.c and native/."""

from collections.abc import Callable, Sequence
from typing import Literal, Never, final

import torch

@final
class Table:
    """The base pointers of one launch. It does not own the tensors, which the caller keeps alive."""

    def __new__(cls, size: int) -> Table: ...
    address: int
    def bind(self, slot: int, tensor: torch.Tensor, /) -> None: ...
    def bind_all(self, first_slot: int, tensors: Sequence[torch.Tensor], /) -> None: ...
    def set(self, slot: int, address: int, /) -> None: ...
    def get(self, slot: int, /) -> int: ...
    def copy(self) -> Table: ...
    def __len__(self) -> int: ...

@final
class Gemm:
    """A float32 matrix product for fixed shapes and strides, which count elements, in 2 or 3 dimensions."""

    def __new__(
        cls,
        a_shape: tuple[int, ...],
        a_stride: tuple[int, ...],
        b_shape: tuple[int, ...],
        b_stride: tuple[int, ...],
        out_stride: tuple[int, ...],
        accumulate: bool = False,
    ) -> Gemm: ...
    def __call__(
        self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, /
    ) -> torch.Tensor: ...

@final
class Fresh:
    """Makes uninitialised CPU tensors of one kind on the recycling heap."""

    def __new__(
        cls,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        code: int,
        bits: int,
        otherwise: Callable[[], torch.Tensor] | None,
        /,
    ) -> Fresh: ...
    def __call__(self, *args: Never, **kwargs: Never) -> torch.Tensor: ...

class CudaError(RuntimeError):
    """Raised if NVIDIA's driver reports an error; `code` is its number."""

    code: int

@final
class Driver:
    """NVIDIA's driver, loaded from the library of this name."""

    def __new__(cls, library: str, /) -> Driver: ...
    def load(self, device: int, cubin: bytes, entry: str, shared: int, /) -> tuple[int, int, int, int]: ...
    def copy(self, device: int, to: int, from_: int, bytes: int, stream: int, /) -> None: ...
    def version(self) -> int: ...
    def attribute(self, device: int, number: int, /) -> int: ...

LaunchPlan = tuple[str, int, tuple[int, int, int], int, int, tuple[tuple[int, int] | int, ...], int]
"""(name, function, grid, threads, bytes of shared memory, arguments, number of appended null pointers)."""

Moved = tuple[tuple[LaunchPlan, ...] | Callable[[Table], object], bool]
Prepared = (
    tuple[tuple[LaunchPlan, ...], bool]
    | tuple[
        tuple[LaunchPlan, ...],
        bool,
        tuple[tuple[int, int], ...],
        Callable[[tuple[int, ...], Table], Moved | None],
    ]
)
"""(plan, launched[, pointers that must be multiples of 16, function that returns a plan if some are not])."""

@final
class Segment:
    """Launches the kernels of a plan on the device's current stream; a call returns False if no plan supports the
    pointers.
    """

    def __new__(
        cls,
        driver: Driver,
        device: int,
        stream: Callable[[int], int],
        prepare: Callable[[Table], Prepared | None],
        /,
    ) -> Segment: ...
    def __call__(self, table: Table, /) -> Literal[False] | None: ...

@final
class Addresses:
    """The addresses of the inputs of a call; inputs marked as moving may have other addresses."""

    def __new__(cls, inputs: list[object], moving: list[bool], /) -> Addresses: ...
    def first(self, inputs: list[object], /) -> int: ...

@final
class Memory:
    """Makes tensors over memory with fixed addresses, and tracks which of them are alive."""

    def __new__(
        cls,
        keep: object,
        results: list[tuple[int, tuple[int, ...], tuple[int, ...], int, int] | int | None],
        device: tuple[int, int],
        /,
    ) -> Memory: ...
    in_use: int
    def hand_out(self, inputs: list[object], /) -> list[object]: ...
    def positions(self) -> list[int]: ...

def launch(address: int, table: Table, /) -> None: ...
def launch_short(address: int, table: Table, /) -> None: ...
def peek(object: object, words: int, /) -> list[int]: ...
def peek_at(address: int, words: int, /) -> list[int]: ...
def set_layout(
    words: tuple[int, ...] | None,
    cow_deleter: int,
    keys: tuple[int, ...],
    tensor_type: type,
    parameter_type: type,
    slow: Callable[[torch.Tensor], int],
    /,
) -> None: ...
def aligned(*tensors: torch.Tensor | None) -> bool: ...
def data_ptr(tensor: object, /) -> int: ...
def threads_init(path: str | None, /) -> bool: ...
def gemm_kind() -> str: ...
def gemm_select(name: str, /) -> bool: ...
def sgemm_address() -> int: ...
def depthwise_weight(sizes: bytes, out: torch.Tensor, grad: torch.Tensor, x: torch.Tensor, /) -> torch.Tensor: ...

NONZERO_MOST: int
"""Maximum number of elements; up to it, one thread finds the nonzero ones as fast as several."""

def nonzero(tensor: torch.Tensor, /) -> torch.Tensor | None: ...
def nonzero_static(tensor: torch.Tensor, out: torch.Tensor, fill: int, /) -> torch.Tensor | None: ...
def concatenate(sizes: bytes, out: torch.Tensor, tensors: tuple[torch.Tensor, ...], /) -> torch.Tensor: ...
def fresh_init(tensor_type: type, /) -> bool: ...
def fresh_resizable(word: int, byte: int, allocator: int, /) -> None: ...
def heap_trim() -> None: ...
def heap_report() -> dict[str, int]: ...

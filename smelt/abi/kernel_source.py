"""A generated Triton kernel as plain data: the renderer's source, and the binary that the runtime builds from it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

ALIGNMENT = 16
"""Number of bytes of the widest load, and so the alignment of pointers that are declared divisible."""


OF_SUBNORMALS = re.compile(
    r"tl\.(ceil|floor|sin|cos)\(|libdevice\.(fmod|pow|hypot|atan2|expm1|log1p|log10|tan|asin|acos|atan|sinh|cosh|asinh"
    r"|acosh|atanh|lgamma)\("
)
"""Pattern of calls of functions whose results differ between a subnormal number and 0."""


def ceil_power(n: int) -> int:
    """Returns the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def floor_power(n: int) -> int:
    """Returns the largest power of two up to n, at least 1."""
    return 1 << max(n, 1).bit_length() - 1


@dataclass(frozen=True)
class Config:
    """One configuration with which a kernel is built.

    Attributes:
        constants: values of the constexpr parameters, by name.
        num_warps: number of warps of a program.
        num_stages: depth of the software pipeline of loops.
    """

    constants: tuple[tuple[str, int], ...]
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class KernelSource:
    """The source of a kernel.

    Attributes:
        source: text of a Python module: `import triton`, `import triton.language as tl`, inline functions and one
            function `kernel` under `@triton.jit`.
        signature: run-time parameters in order, (name, type): a type is "*fp32", "*bf16", "*fp16", "*fp64", "*i64",
            "*i32", "*i16", "*i8", "*u8", "*i1", "i32" or "i64". Constexpr parameters follow them.
        divisible: parameters that are declared as multiples of 16: aligned pointers, and sizes. If some pointers of a
            launch are not, the kernel without this declaration for them is launched (see `undeclared`).
        configs: configurations; the first is the heuristic's choice, further ones are candidates of max-autotune.
        name: name in profiles and errors; not part of the identity.
        unaligned: the source for pointers that are not multiples of 16, if `source` addresses words of 16 bytes from
            them.
        contract: whether a multiplication and the addition of its result may become one fused multiply-add, which
            rounds once. Eager's kernels do this within an operator and never across two.
    """

    source: str
    signature: tuple[tuple[str, str], ...]
    divisible: tuple[str, ...]
    configs: tuple[Config, ...]
    name: str = "kernel"
    unaligned: str | None = None
    contract: bool = False

    @property
    def flushes(self) -> bool:
        """Whether functions of the device library may flush subnormal numbers to 0.

        Most kernels are faster with it and give the same results. Functions of `OF_SUBNORMALS` would give other
        results: a % b would be NaN for a subnormal b.
        """
        return not OF_SUBNORMALS.search(self.source)

    def undeclared(self, names: Collection[str]) -> KernelSource:
        """Returns the same kernel, with the same configurations, for any alignment of these pointers."""
        divisible = tuple(name for name in self.divisible if name not in names)
        return replace(self, source=self.unaligned or self.source, divisible=divisible, unaligned=None)


@dataclass(frozen=True)
class Cubin:
    """A built kernel.

    Attributes:
        name: name in messages and profiles.
        image: the binary that the driver loads.
        entry: name of the kernel's function in the image.
        threads: number of threads of a block.
        shared: number of bytes of dynamic shared memory of a block.
        appended: number of pointer parameters that Triton added after those of the source; smelt passes null for them.
    """

    name: str
    key: str
    image: bytes
    entry: str
    threads: int
    shared: int
    appended: int

"""C++ translation units: groups kernels into units of similar size, which processors compile in parallel.

Kernels are exported functions of raw pointers. Segments (runs of kernels between two externs) are `void f(char **P)`: P
is an array of base pointers, followed by the addresses of the kernels, so that units need not be linked with each
other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from smelt.codegen.cpp.kernel import Kernel
from smelt.codegen.cpp.vector_math import header


def kernel_name(index: int) -> str:
    """Returns the exported name of a kernel."""
    return f"kernel{index}"


def translation_units(kernels: Sequence[Kernel], each: int) -> list[tuple[str, list[int]]]:
    """Divide the kernels into units of about `each` kernels; returns (source, indices of the kernels inside) for each
    unit.
    """
    if not kernels:
        return []
    count = min(-(-len(kernels) // each), max(2, os.cpu_count() or 1))
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in sorted(range(len(kernels)), key=lambda i: -sum(map(len, kernels[i].lines))):
        lightest = loads.index(min(loads))
        bins[lightest].append(index)
        loads[lightest] += sum(map(len, kernels[index].lines))
    return [(_unit([(i, kernels[i]) for i in sorted(inside)]), sorted(inside)) for inside in bins if inside]


def _unit(kernels: Sequence[tuple[int, Kernel]]) -> str:
    used = {name for _, kernel in kernels for name in kernel.used}
    sources = [header(used)]
    for index, kernel in kernels:
        sources.append(kernel.function(kernel_name(index)))
    return "\n".join(sources)


def segment_source(segments: Sequence[Sequence[str]]) -> str:
    """Returns the text of the functions of the segments, each of which is a list of calls. They come last in their
    unit.
    """
    # not optimised: these functions only make calls, and optimising them took a quarter of compile time on deep models
    sources = ['#pragma GCC optimize("O0")\n']
    for number, calls in enumerate(segments):
        body = "\n".join("    " + call for call in calls)
        sources.append(f'extern "C" void segment{number}(char **P) {{\n{body}\n}}\n')
    return "\n".join(sources)

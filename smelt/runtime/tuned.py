"""The tuned numbers of the runtime, grouped by user: each with its unit and the machine that it was found on.

Those of schedules and kernels are in `schedule/machine.py`, which says which ones follow from the hardware. Tuning for
another GPU or processor is another value here (`dataclasses.replace`). Limits that follow from a format or an
interface, such as the most programs of a launch, are where they are checked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recordings:
    """CUDA graphs (cuda/device.py, cuda/recorded_program.py). Found on an H100, for models of the baselines.

    Attributes:
        spare_bytes: most bytes that recordings may keep beyond what they use at once; the limit is the largest of
            this and peak memory divided by `spare_divisor`.
        spare_divisor: see `spare_bytes`.
        few_kinds: most kinds of calls for which `spare_divisor_of_few` replaces `spare_divisor`: few graphs do not pass
            memory on to others.
        spare_divisor_of_few: see `few_kinds`.
        unused_bytes: most unused bytes that PyTorch's allocator may keep when a recording begins; or its memory divided
            by `unused_divisor`, if that is more.
        unused_divisor: see `unused_bytes`.
        patience_calls: calls that run plain because results of earlier ones are in use, before another recording is
            made for them.
        seldom_replays: replays after which such a call no longer counts.
        copied_in_bytes: most bytes of inputs that a call copies; with more it runs plain.
        copied_out_bytes: most bytes of results returned as copies because callers keep them until the next call.
        copied_out_results: most results returned as copies if it is unknown which results callers get.
        known_kinds: most kinds of calls whose observations are remembered.
        moved_bytes: most bytes of inputs that may have moved in a call of a known kind.
        parameter_moves: places that the memory of the same parameters has left until their program is no longer
            recorded.
    """

    spare_bytes: int = 32 << 20
    spare_divisor: int = 32
    few_kinds: int = 6
    spare_divisor_of_few: int = 8
    unused_bytes: int = 64 << 20
    unused_divisor: int = 8
    patience_calls: int = 2
    seldom_replays: int = 20
    copied_in_bytes: int = 256 << 20
    copied_out_bytes: int = 16 << 20
    copied_out_results: int = 8
    known_kinds: int = 512
    moved_bytes: int = 1 << 20
    parameter_moves: int = 3


@dataclass(frozen=True)
class Depthwise:
    """Depthwise convolutions on a GPU (library/depthwise.py). Found on an H100: 132 multiprocessors.

    Attributes:
        row_elements: most elements of a row that a thread computes: more would share more inputs, but then fewer
            threads fit on a multiprocessor.
        small_window_elements: elements of a window up to which a thread of the weight gradient has four elements of a
            row, else two.
        registers: most float32 numbers that such a thread should keep: with more, too few threads fit on a
            multiprocessor.
        threads: threads of a program.
        busy_threads: threads that keep the GPU busy; with fewer, each computes fewer elements.
        weight_programs: programs of a weight gradient: four for each multiprocessor.
        min_rows: least rows that a thread of the weight gradient walks.
    """

    row_elements: int = 8
    small_window_elements: int = 9
    registers: int = 110
    threads: int = 128
    busy_threads: int = 132 * 512
    weight_programs: int = 4 * 132
    min_rows: int = 4


@dataclass(frozen=True)
class Versions:
    """Programs with symbolic sizes (sizes.py). Bounds of memory, chosen, not measured.

    Attributes:
        kept: most tuples of sizes whose versions are kept.
        idle_bytes: most bytes of intermediates that idle versions keep, besides the last one used.
        near_factor: versions whose sizes differ by less than this factor share the choice of kernels.
    """

    kept: int = 128
    idle_bytes: int = 256 << 20
    near_factor: int = 4


@dataclass(frozen=True)
class Workspaces:
    """Tables and arenas of programs (workspace.py).

    Attributes:
        borrowed_bytes: least size of an arena that is borrowed for each call instead of kept.
        addresses: most addresses of a borrowed arena for which a program keeps workspaces: repeating one step needs
            two.
    """

    borrowed_bytes: int = 1 << 12
    addresses: int = 4


@dataclass(frozen=True)
class Library:
    """Library calls (library/). Found on two cores with AVX-512.

    Attributes:
        serial_copy_bytes: size of a concatenation up to which one thread copies as fast as several.
        untimed_multiplications: multiplications of a matrix product below which overhead dominates: the implementation
            with the least overhead is used, without timing.
        released_bytes: size of results from which on the memory of one candidate is released before the next is timed.
    """

    serial_copy_bytes: int = 1 << 18
    untimed_multiplications: int = 64**3
    released_bytes: int = 16 << 20


@dataclass(frozen=True)
class Timing:
    """How candidates of library calls are timed (tune.py). Found on two cores shared with other processes.

    Attributes:
        min_runs: runs of every candidate: one may be disturbed, and the first includes initialisation.
        max_runs: most runs of candidates that remain close to each other.
        long_s: seconds of runs after which a candidate gets no further run, as disturbances matter little.
        steady_factor: a winner is stored only if its second-best run is within this factor of its best.
        lost_factor: a candidate that takes at least this factor longer than the winner has clearly lost.
        max_losses: clear losses in a family, without a better result, after which a candidate is no longer tried there.
        tie_factor: candidates within this factor of the best are equal: the first of them is chosen.
        close_factor: a candidate that takes at least this factor longer than the best is not measured further.
    """

    min_runs: int = 3
    max_runs: int = 6
    long_s: float = 0.03
    steady_factor: float = 1.3
    lost_factor: float = 1.5
    max_losses: int = 3
    tie_factor: float = 1.05
    close_factor: float = 1.15


@dataclass(frozen=True)
class KernelTiming:
    """How candidates of Triton kernels are timed (triton/tune.py, triton/products.py, cuda/clock.py). Found on an H100.

    Attributes:
        rounds: measurements of each candidate.
        window_s: total seconds of the launches between two events.
        max_launches: most launches between two events.
        max_copied_bytes: most bytes of copies of memory that a kernel changes; a launch that would need more is not
            timed.
        lead_cycles: cycles that the device waits before the timed launches, so that they are queued by then.
        tie_factor, close_factor: see `Timing`.
        template_gain: factor by which a template must be faster than the library's call. Alone it looks faster than in
            the program: the kernels of a step of BERT take 17.4 ms with the 36 templates that win without this factor,
            and 17.4 ms without any.
    """

    rounds: int = 3
    window_s: float = 5e-4
    max_launches: int = 50
    max_copied_bytes: int = 1 << 30
    lead_cycles: int = 500_000
    tie_factor: float = 1.02
    close_factor: float = 1.25
    template_gain: float = 1.1


RECORDINGS = Recordings()
DEPTHWISE = Depthwise()
VERSIONS = Versions()
WORKSPACES = Workspaces()
LIBRARY = Library()
TIMING = Timing()
KERNEL_TIMING = KernelTiming()

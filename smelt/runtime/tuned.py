"""The tuned numbers of the runtime, grouped by their users: each with its unit and the machine on which it was found.

The numbers of schedules and kernels are in `schedule/machine.py`, which says which of them follow from the hardware. To
tune for another GPU or processor, replace values (`dataclasses.replace`). Limits that follow from a format or an
interface, such as the maximum number of programs of a launch, are defined where they are checked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recordings:
    """Limits of CUDA graphs (cuda/device.py, cuda/recorded_program.py). Found on an H100, for models of the baselines.

    Attributes:
        spare_bytes: maximum bytes that recordings may keep beyond the bytes that they use at once; the limit is the
            larger of this and peak memory divided by `spare_divisor`.
        spare_divisor: see `spare_bytes`.
        few_kinds: maximum number of kinds of calls for which `spare_divisor_of_few` replaces `spare_divisor`: few
            graphs do not pass memory on to others.
        spare_divisor_of_few: see `few_kinds`.
        unused_bytes: maximum unused bytes that PyTorch's allocator may keep when a recording begins, or its memory
            divided by `unused_divisor`, if that is more.
        unused_divisor: see `unused_bytes`.
        patience_calls: number of calls that run unrecorded because results of earlier calls are in use, before another
            recording is made for such calls.
        rare_after_replays: number of replays after which such a call is no longer counted.
        copied_in_bytes: maximum bytes of inputs that a call copies; with more it runs unrecorded.
        copied_out_bytes: maximum bytes of results that are returned as copies because callers keep them until the next
            call.
        copied_out_results: maximum number of results that are returned as copies if it is unknown which results callers
            get.
        known_kinds: maximum number of kinds of calls whose observations are remembered.
        moved_bytes: maximum bytes of inputs that may have moved in a call of a known kind.
        parameter_moves: number of former addresses of the same parameters at which their program is no longer recorded.
    """

    spare_bytes: int = 32 << 20
    spare_divisor: int = 32
    few_kinds: int = 6
    spare_divisor_of_few: int = 8
    unused_bytes: int = 64 << 20
    unused_divisor: int = 8
    patience_calls: int = 2
    rare_after_replays: int = 20
    copied_in_bytes: int = 256 << 20
    copied_out_bytes: int = 16 << 20
    copied_out_results: int = 8
    known_kinds: int = 512
    moved_bytes: int = 1 << 20
    parameter_moves: int = 3


@dataclass(frozen=True)
class Depthwise:
    """Numbers for depthwise convolutions on a GPU (library/depthwise.py). Found on an H100 with 132 multiprocessors.

    Attributes:
        row_elements: maximum number of elements of a row that a thread computes: with more, a thread would reuse more
            inputs, but fewer threads fit on a multiprocessor.
        small_window_elements: maximum number of elements of a window for which a thread of the weight gradient has four
            elements of a row, else two.
        registers: maximum number of float32 values that such a thread should keep: with more, too few threads fit on a
            multiprocessor.
        threads: number of threads of a program.
        busy_threads: number of threads that keep the GPU busy; with fewer, each computes fewer elements.
        weight_programs: number of programs of a weight gradient: four for each multiprocessor.
        min_rows: minimum number of rows that a thread of the weight gradient walks.
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
    """Limits on versions of programs with symbolic sizes (sizes.py). They bound memory and were chosen, not measured.

    Attributes:
        kept: maximum number of tuples of sizes whose versions are kept.
        idle_bytes: maximum bytes of intermediates that idle versions keep, besides the last version used.
        near_factor: versions whose sizes differ by less than this factor share the choice of kernels.
    """

    kept: int = 128
    idle_bytes: int = 256 << 20
    near_factor: int = 4


@dataclass(frozen=True)
class Workspaces:
    """Limits on tables and arenas of programs (workspace.py).

    Attributes:
        borrowed_bytes: minimum bytes of an arena that is borrowed for each call instead of kept.
        addresses: maximum number of addresses of a borrowed arena for which a program keeps workspaces: repeating one
            step needs two.
    """

    borrowed_bytes: int = 1 << 12
    addresses: int = 4


@dataclass(frozen=True)
class Library:
    """Thresholds for library calls (library/). Found on two cores with AVX-512.

    Attributes:
        serial_copy_bytes: maximum bytes of a concatenation that one thread copies as fast as several threads.
        untimed_multiplications: number of multiplications of a matrix product below which overhead dominates: the
            implementation with the least overhead is used, without timing.
        released_bytes: minimum bytes of results for which the memory of one candidate is released before the next is
            timed.
    """

    serial_copy_bytes: int = 1 << 18
    untimed_multiplications: int = 64**3
    released_bytes: int = 16 << 20


@dataclass(frozen=True)
class Timing:
    """Numbers for timing candidates of library calls (tune.py). Found on two cores shared with other processes.

    Attributes:
        min_runs: minimum number of runs of every candidate: a run may be disturbed, and the first includes
            initialisation.
        max_runs: maximum number of runs of candidates that remain close to each other.
        long_s: total seconds of runs after which a candidate gets no further run, as disturbances matter little.
        steady_factor: a winner is stored only if its second-best run is within this factor of its best run.
        lost_factor: a candidate that takes at least this factor longer than the winner has clearly lost.
        max_losses: number of clear losses in a family, without a better result, after which a candidate is no longer
            tried in the family.
        tie_factor: candidates within this factor of the best are treated as equal, and the first of them is chosen.
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
    """Numbers for timing candidates of Triton kernels (triton/tune.py, triton/products.py, cuda/clock.py). Found on an
    H100.

    Attributes:
        rounds: number of measurements of each candidate.
        window_s: total seconds of the launches between two events.
        max_launches: maximum number of launches between two events.
        max_copied_bytes: maximum bytes of copies of memory that a kernel changes; a launch that would need more is not
            timed.
        lead_cycles: number of cycles that the device waits before the timed launches, so that all of them are queued by
            then.
        tie_factor, close_factor: see `Timing`.
        template_gain: factor by which a template must be faster than the library's call. Timed alone, a template looks
            faster than in the program: the kernels of a step of BERT take 17.4 ms with the 36 templates that win
            without this factor, and 17.4 ms without any.
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

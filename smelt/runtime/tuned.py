"""What was tuned for the runtime, by what asks for it: each number with its unit, and what it was found on.

Schedules and kernels have theirs in `schedule/machine.py`, which says what of it follows from the hardware. Another
card or processor is another value here (`dataclasses.replace`). Limits that follow from a format or an interface, such
as how many programs a launch may have, are no part of this: they stay where they are checked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recordings:
    """CUDA graphs (cuda/device.py, cuda/recorded_program.py). On an H100, for models of the baselines.

    Attributes:
        spare_bytes: recordings may keep so much beyond what they use at once ...
        spare_divisor: ... or the most memory so far divided by this ...
        few_kinds: ... or, where there are at most so many kinds of calls (a graph or three, which do not hand memory on
            to others) ...
        spare_divisor_of_few: ... divided by this.
        unused_bytes: PyTorch's allocator may keep so much unused when something is recorded ...
        unused_divisor: ... or what it has divided by this.
        patience_calls: calls that run plain because tensors of earlier ones are in use, before there is another
            recording for that.
        seldom_replays: replays after which such a call no longer counts.
        copied_in_bytes: most bytes of inputs that a call copies; with more it runs plain.
        copied_out_bytes: most bytes of results handed out as copies where callers keep them while they call again.
        copied_out_results: most results handed out as copies where nobody says which of them are for callers.
        known_kinds: kinds of calls of which is remembered what was observed.
        moved_bytes: most bytes of inputs that lie elsewhere than before in a call of a known kind.
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


@dataclass(frozen=True)
class Depthwise:
    """Depthwise convolutions on a GPU (library/depthwise.py). On an H100: 132 multiprocessors.

    Attributes:
        row_elements: most elements of a row that a thread makes: more would meet the same inputs, but fewer threads fit
            a multiprocessor.
        small_window_elements: of a window up to which a thread of the gradient by the weight has four elements of a
            row, else two.
        registers: float32 numbers that such a thread has at hand, if it can: with more, too few fit a multiprocessor.
        threads: of a program.
        busy_threads: keep the GPU busy; with fewer, each makes fewer elements.
        weight_programs: of a gradient by the weight: four for each multiprocessor.
        min_rows: that a thread of the gradient by the weight walks.
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
    """Programs of symbolic sizes (sizes.py). Bounds of memory, chosen, not measured.

    Attributes:
        kept: tuples of sizes that stay prepared.
        idle_bytes: of intermediates that versions may keep while they wait, besides those of the last one used.
        near_factor: versions whose sizes differ less than this many times share the choice of kernels.
    """

    kept: int = 128
    idle_bytes: int = 256 << 20
    near_factor: int = 4


@dataclass(frozen=True)
class Workspaces:
    """Tables and arenas of programs (workspace.py).

    Attributes:
        borrowed_bytes: least size of an arena that is borrowed for each call.
        addresses: of a borrowed arena for which a program keeps workspaces: the same step over and over needs two.
    """

    borrowed_bytes: int = 1 << 12
    addresses: int = 4


@dataclass(frozen=True)
class Library:
    """Library calls (library/). On two cores with AVX-512.

    Attributes:
        serial_copy_bytes: of a concatenation up to which one thread copies as fast as several.
        untimed_multiplications: of a matrix product below which the call costs more than the arithmetic: the way with
            the least overhead is taken, without timing.
        released_bytes: of results from which on candidates that are timed do not keep the memory of the one before.
    """

    serial_copy_bytes: int = 1 << 18
    untimed_multiplications: int = 64**3
    released_bytes: int = 16 << 20


@dataclass(frozen=True)
class Timing:
    """How candidates of library calls are timed (tune.py). On two cores that other processes share.

    Attributes:
        min_runs: of every candidate: one may be disturbed, and the first pays for what is set up once.
        max_runs: of candidates that stay close to each other.
        long_s: a candidate that has used so much time gets no further run: disturbances matter little to it.
        steady_factor: only a winner with a second run within this factor of its best is written to the store.
        lost_factor: a clear loss is this many times the time of the winner.
        max_losses: clear losses in a family, without a better result, after which a candidate is no longer tried there.
        tie_factor: candidates within this factor of the best are as good: the first of them is taken.
        close_factor: a candidate that takes this many times the best time is measured no more.
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
    """How candidates of Triton kernels are timed (triton/tune.py, triton/products.py, cuda/clock.py). On an H100.

    Attributes:
        rounds: times that each candidate is measured.
        window_s: what the launches between two events take together.
        max_launches: between two events.
        max_copied_bytes: that stand in for what a kernel changes; a launch that would need more is not timed.
        lead_cycles: that the device waits before what is timed: launches queue up meanwhile, and do not count.
        tie_factor, close_factor: see `Timing`.
        template_gain: so many times as fast as the library's call a template must be. By itself it looks better than in
            the program: the kernels of a step of BERT take 17.4 ms with the 36 templates that win so, and without any.
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

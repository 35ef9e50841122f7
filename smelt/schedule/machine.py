"""What schedules and kernels need to know of the machine: how much must run side by side, how long a worker is at work.

Numbers that were tuned stand here and nowhere else, by the stage that asks for them. `gpu(hardware)` derives those that
follow from a GPU; one that is tuned for another card is a `Machine` with other values (`dataclasses.replace`). Numbers
that decide values, such as how many additions follow each other, are no part of it: results are the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Realization:
    """Which values get buffers (realize.py).

    Attributes:
        cheap_additions: cost of an element up to which a value of several users is computed for each of them.
        read_again: what a value that more than two loops use may read, as a multiple of its size, to be computed in
            each of them.
        leaves: most buffers that one value reads.
        additions: most that an element of a value costs.
        repeats: a computed value is stored if a view repeats it so many times.
        levels: most bodies that run inside one another for one value. Each takes up to six frames of Python's limited
            stack.
        evaluations: most elements that one element of a value may take to compute: values read at several indices
            multiply.
        waiting: most results of at least `waiting_bytes` that one kernel may wait for only to add them up: they all lie
            in memory until the last one is there. (A weight that twelve layers share has twelve gradients.)
    """

    cheap_additions: int = 4
    read_again: float = 1.3
    leaves: int = 20
    additions: int = 640
    repeats: int = 8
    levels: int = 60
    evaluations: int = 200
    waiting: int = 4
    waiting_bytes: int = 1 << 20


@dataclass(frozen=True)
class Fusion:
    """Which loops become one kernel (fuse.py, merge.py).

    Attributes:
        shared_bytes: buffers that two groups only read bring them together from this size on.
        readers: groups that touch a buffer, up to which each pair of them is tried.
        buffers: most that one kernel touches.
        operations: most in the body of one kernel.
        levels: most bodies that run inside one another to render one value of a kernel; see `Realization`.
        columns: most column accumulators of one kernel.
        accesses: of each buffer, by which two groups are aligned.
    """

    shared_bytes: int = 2048
    readers: int = 12
    buffers: int = 28
    operations: int = 400
    levels: int = 120
    columns: int = 6
    accesses: int = 3


@dataclass(frozen=True)
class Buffers:
    """Where intermediates lie (buffer_assignment.py, memory.py).

    Attributes:
        planned_bytes: least size of an intermediate whose memory is planned together with that of a result.
        planned_divisor: it is also at least the arena divided by this. The arena is planned anew for each: few may be.
        apart_bytes: least size of an intermediate with an allocation of its own, which costs half a microsecond a call.
        apart_divisor: it is also at least the arena divided by this.
        apart_saves: such allocations are made where they save at least all memory divided by this.
        shared_bytes: least size of an arena, shared by programs, whose largest buffers may have their own allocation.
        break_saves: a run of kernels ends early where that saves at least all memory divided by this: it costs a call.
        two_ways: most buffers for which two ways to place them are tried.
    """

    planned_bytes: int = 1 << 16
    planned_divisor: int = 16
    apart_bytes: int = 1 << 12
    apart_divisor: int = 64
    apart_saves: int = 4096
    shared_bytes: int = 32 << 20
    break_saves: int = 8192
    two_ways: int = 3000


@dataclass(frozen=True)
class Bundling:
    """Which kernels share a launch (horizontal_fusion.py).

    Attributes:
        moved_bytes: most that a kernel takes from others, or leaves to them, for it to move past others: what lies in
            the second-level cache is read more quickly, and for larger kernels that is worth more than a launch.
        tiny_bytes: the same for what lies in the arena, where buffers that live longer leave too many gaps.
        room_bytes: by which the most that is in use may grow, besides a sixty-fourth of it.
        tries: kernels in a row that found no room before the search for others ends.
    """

    moved_bytes: int = 8 << 20
    tiny_bytes: int = 1 << 16
    room_bytes: int = 1 << 20
    tries: int = 4


@dataclass(frozen=True)
class Gpu:
    """A card.

    Attributes:
        multiprocessors: that run programs side by side.
        shared_bytes: of shared memory that one program may have.
        grid_rows: programs along the second dimension of a grid.
    """

    multiprocessors: int
    shared_bytes: int
    grid_rows: int = 65535


H100 = Gpu(multiprocessors=132, shared_bytes=227 << 10)
"""Compute capability 9.0; an H200 is the same but for its memory."""


@dataclass(frozen=True)
class Products:
    """Which matrix products one kernel may compute together with what is around them (products.py).

    Attributes:
        min_multiplications: from which on a product of float32 is one for tensor cores without being asked for.
        min_side_elements: shortest side and depth of such a product.
        min_blocks: of 128 by 64 elements that its result has at least: half of the multiprocessors are busy.
        min_depth_elements: folded elements below which a product is no work for tensor cores.
        max_prologue_operations: for an element of an operand: each is computed anew for every block of the result's
            other side.
    """

    min_multiplications: int = 1 << 29
    min_side_elements: int = 64
    min_blocks: int = H100.multiprocessors // 2
    min_depth_elements: int = 16
    max_prologue_operations: int = 16


@dataclass(frozen=True)
class Loops:
    """How C++ kernels walk their elements (codegen/nest.py, phases.py, cpp).

    Attributes:
        min_parallel_operations: element operations below which a kernel stays on one thread.
        chunk_elements: of a long loop that threads share out.
        columns: whose accumulators lie in the first-level cache together.
        symbolic_columns: the same where their number is symbolic: few, because all accumulators are cleared.
        tile_side: elements along both sides of a tile in which strides are met.
        write_weight: loops follow what is written, whose bytes count so many times as much as those that are read:
            strided reads can be staged, strided writes cannot.
        min_kept_additions: recomputing a value costlier than this loses to writing it to the row buffer and reading it
            back.
        row_buffer_bytes, row_buffers_bytes: of one row buffer, and of all that a kernel has.
        scatter_columns: that one thread takes at a time: four cache lines of float32.
        kernels_per_unit: kernels that one process of the C++ compiler gets, where there are processors for all.
        min_unlocked_bytes: a run of kernels that touches less keeps the interpreter lock: releasing it would cost more
            than it gives.
    """

    min_parallel_operations: int = 32768
    chunk_elements: int = 4096
    columns: int = 2048
    symbolic_columns: int = 512
    tile_side: int = 32
    write_weight: int = 8
    min_kept_additions: int = 8
    row_buffer_bytes: int = 64 << 10
    row_buffers_bytes: int = 256 << 10
    scatter_columns: int = 64
    kernels_per_unit: int = 10
    min_unlocked_bytes: int = 1 << 16


@dataclass(frozen=True)
class Tiles:
    """The tiles of Triton kernels (codegen/triton/tiles.py).

    Attributes:
        busy_programs: that keep the GPU busy: four for each multiprocessor.
        flat_block_elements, flat_thread_elements: of a block of the flat form, and of a thread of it.
        short_rows_elements: of a tile of short rows: several rows share a program.
        max_row_elements: longest row that one tile holds; longer ones are walked in a loop, once a phase.
        walked_block_elements: of a tile of a walked row.
        row_bytes: of whole rows that a thread asks for at once where there are rows enough for every multiprocessor.
            Half of the time a program folds and stores: what its neighbours have asked for meanwhile has to cover what
            memory takes to answer, some 60 KB for each multiprocessor. Eight elements of bfloat16 a thread are half of
            that.
        one_tensor_bytes: of an element of a row up to which they are those of one tensor.
        several_tensors_bytes, several_tensors_threads: the bytes, and the threads of a program, for rows of several
            tensors. On an H100 dropout, residual and layer norm of 8192 rows of 768 take 28.5 us so, where programs of
            two rows and 256 threads take 33; without dropout 25.4 and 35.5.
        walked_bytes: as row_bytes for rows that are walked: what is folded is at hand sooner, accumulators need
            registers.
        walked_threads: of a program that walks a row.
        lone_block_elements: of a walked row that has a program almost to itself on the GPU: turns follow each other.
        word_rows_threads: of walked rows that begin between words: maximum and sum of exponentials of 8192 rows of
            50,257 take 209 us on an H200, 216 with 512.
        pipelined_bytes: shared memory in which a program of the mixed form may have its next rows.
        min_own_columns: columns below which parts share a block.
        column_tile_elements: that a tile of columns reads of up to two tensors.
        column_warps: that keep the GPU busy with column reductions: forty for each multiprocessor.
        mixed_tile_elements: of the whole rows that a program folds at once while it accumulates columns.
        segment_columns: of a block: 128 bytes of bfloat16, a line of the cache.
        wide_programs: from which on blocks are twice as wide, unless only the narrower ones end where rows do. The
            gradient of cross-entropy over 30,522 classes takes 560 us so on an H100, 730 with blocks of 64 columns.
        wide_rows: that a wide block folds at once by two warps, where values take much arithmetic: the gradient of
            GELU over 8192 rows of 3072 takes 78 us so on an H100, 84 with blocks of 64 columns and 16 rows by four
            warps.
        column_rows: that such a block folds at once.
        much_additions: for each element, from which on threads have fewer elements: two exponentials or their like. On
            an H100 masks of dropout for 6 million elements take 66 us with 8 elements a thread, 73 with 16, and the
            gradient of cross-entropy with its padding to 50,264 classes 705 and 798.
        thread_rows: that one thread folds by itself where there are columns enough for all threads.
        short_side_elements: of a two-dimensional tile; strides are met along both of its sides.
        min_side_elements: shortest size along which such a tile is worth it.
        row_block_elements: of a row that has programs of its own; no more than an eighth of them lies beyond its end.
    """

    busy_programs: int = 4 * H100.multiprocessors
    flat_block_elements: int = 1024
    flat_thread_elements: int = 16
    short_rows_elements: int = 2048
    max_row_elements: int = 16384
    walked_block_elements: int = 2048
    row_bytes: int = 64
    one_tensor_bytes: int = 4
    several_tensors_bytes: int = 96
    several_tensors_threads: int = 64
    walked_bytes: int = 32
    walked_threads: int = 512
    lone_block_elements: int = 4096
    word_rows_threads: int = 256
    pipelined_bytes: int = 48 << 10
    min_own_columns: int = 32
    column_tile_elements: int = 4096
    column_warps: int = 40 * H100.multiprocessors
    mixed_tile_elements: int = 1024
    segment_columns: int = 64
    wide_programs: int = 512
    wide_rows: int = 8
    column_rows: int = 16
    much_additions: int = 24
    thread_rows: int = 16
    short_side_elements: int = 32
    min_side_elements: int = 16
    row_block_elements: tuple[int, ...] = (1024, 512, 256)


Blocks = tuple[int, int, int, int, int]
"""YBLOCK, XBLOCK, KBLOCK, warps, stages of a matrix product; see codegen/triton/blocks.py."""


@dataclass(frozen=True)
class ProductBlocks:
    """The blocks of matrix products on tensor cores (codegen/triton/blocks.py).

    Attributes:
        min_side_elements: shortest side of a block that tensor cores take.
        group_rows: blocks of rows whose programs follow each other.
        max_timed: configurations that are timed: each takes Triton one to two seconds to build.
        half: for half precision.
        rounded: for float32 whose factors are rounded to TF32.
        exact: for float32 as it is, in parts that tensor cores multiply: the parts of both factors lie in registers.
    """

    min_side_elements: int = 16
    group_rows: int = 8
    max_timed: int = 7
    half: tuple[Blocks, ...] = (
        (128, 128, 64, 4, 4),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (128, 128, 64, 8, 4),
        (128, 64, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (64, 64, 64, 4, 5),
        (64, 256, 64, 4, 4),
        (64, 64, 128, 4, 4),
        (32, 64, 128, 4, 4),
        (16, 64, 128, 4, 5),
    )
    rounded: tuple[Blocks, ...] = (
        (128, 128, 32, 4, 4),
        (128, 256, 32, 8, 3),
        (256, 128, 32, 8, 3),
        (128, 128, 32, 8, 4),
        (128, 64, 32, 4, 4),
        (64, 128, 32, 4, 4),
        (64, 64, 32, 4, 5),
        (64, 64, 64, 4, 3),
        (32, 64, 64, 4, 4),
        (16, 64, 64, 4, 4),
    )
    exact: tuple[Blocks, ...] = (
        (128, 64, 32, 4, 3),
        (128, 128, 32, 8, 3),
        (64, 128, 32, 4, 3),
        (64, 64, 32, 4, 3),
        (32, 64, 32, 4, 3),
        (32, 32, 32, 4, 3),
        (16, 64, 32, 4, 3),
    )


@dataclass(frozen=True)
class Launches:
    """What kernels that share a launch have together at most (codegen/triton/combined_launch.py).

    Attributes:
        max_pointers: parameters take 4 KB at most, and Triton's time grows with them.
        max_bodies: which are built one after another.
        max_lines: of all bodies: the longest one decides how many registers all programs take.
        large_bytes: that a member may read and write to have members of other code beside it.
    """

    max_pointers: int = 400
    max_bodies: int = 8
    max_lines: int = 240
    large_bytes: int = 16 << 20


@dataclass(frozen=True)
class Machine:
    """Numbers by which a program is scheduled and its kernels are written. The defaults are those of a CPU. Where no
    reason stands, none is on record.

    Attributes:
        hardware: the card that Triton kernels are for.
        realization, fusion, buffers, bundling, products, loops, tiles, blocks, launches: by stage.
        split_elements: those that a reduction folds in all, below which it is left whole.
        parallel: independent rows or parts that a long reduction should have.
        rows_per_part: most rows that one part of a column reduction folds.
        elements_per_part: most elements that one part of a row reduction folds.
        max_parts: most parts of one reduction.
        column_elements: elements that the column accumulators of one kernel may have next to whole rows.
        enough_parallel: parts below which row and column work is not joined in one kernel.
        fixed_columns: whether the width of such accumulators must be a number.
        templates: whether generated kernels compute matrix products.
        column_programs: workers that share a column reduction, each with a block of columns of a part of the rows;
            0: the parts do not depend on the width.
        column_block: columns of such a block.
        mixed_parts: parts of a column reduction that may share its loop with reductions of the rows, whose programs
            take whole rows; used where `column_programs` is.
        column_epilogues: whether what is computed from the results of column reductions may follow in their kernel.
        bundles: whether kernels that need nothing of each other may share a launch.
        takes_over: whether a large result may lie, from the start, where the intermediate does that it is written over,
            and rows may be added to a value in its own memory.
        survives_checks: whether the process goes on after a check that fails. On a GPU it ends the context.
        overwrites_unused: whether a value may lie over one that its kernel reads for another value. On a GPU the store
            would meet loads of the same line that are still under way, which takes three times as long.
        repeats: whether equal layers are scheduled once: where their kernels stay what they are after fusion.
        read_again: what a value may read, as a multiple of its size, to be computed in both of two loops that use it.
    """

    realization: Realization = Realization()
    fusion: Fusion = Fusion()
    buffers: Buffers = Buffers()
    bundling: Bundling = Bundling()
    products: Products = Products()
    loops: Loops = Loops()
    tiles: Tiles = Tiles()
    blocks: ProductBlocks = ProductBlocks()
    launches: Launches = Launches()
    hardware: Gpu = H100
    split_elements: int = 32768
    parallel: int = 32
    rows_per_part: int = 256
    elements_per_part: int = 8192
    max_parts: int = 256
    column_elements: int = 4 * 4096
    enough_parallel: int = 8
    fixed_columns: bool = False
    templates: bool = False
    column_programs: int = 0
    column_block: int = 128
    mixed_parts: int = 512
    column_epilogues: bool = False
    bundles: bool = False
    takes_over: bool = True
    survives_checks: bool = True
    overwrites_unused: bool = True
    repeats: bool = True
    read_again: float = 1.3


CPU = Machine()


def gpu(hardware: Gpu) -> Machine:
    """The machine of a large GPU: two programs for each of its multiprocessors; column accumulators stay in registers.
    Little but bytes counts: a value is computed again for two loops unless that reads much more. What was tuned on an
    H100 is taken for any."""
    return Machine(
        hardware=hardware,
        products=Products(min_blocks=hardware.multiprocessors // 2),
        tiles=Tiles(busy_programs=4 * hardware.multiprocessors, column_warps=40 * hardware.multiprocessors),
        parallel=2 * hardware.multiprocessors,
        max_parts=1024,
        column_elements=8192,
        enough_parallel=100,
        fixed_columns=True,
        templates=True,
        column_programs=2 * hardware.multiprocessors,
        column_epilogues=True,
        bundles=True,
        takes_over=False,
        survives_checks=False,
        overwrites_unused=False,
        repeats=False,
        read_again=1.9,
    )


GPU = gpu(H100)

"""The numbers in which machines differ, for schedules and kernels: parallelism, sizes of caches and tiles, thresholds.

All tuned numbers are here, grouped by the stage that uses them. `gpu(hardware)` derives those that follow from a GPU;
tuning for another card is a `Machine` with other values (`dataclasses.replace`). Numbers that would change results,
such as how many additions follow each other, are not here: results do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Realization:
    """Which values get buffers (realize.py).

    Attributes:
        cheap_additions: cost of an element up to which a value of several users is computed for each of them.
        max_read_ratio: a value that more than two loops use is recomputed in each of them only if it reads no more than
            this multiple of its own size.
        leaves: most buffers that one value reads.
        additions: most that an element of a value costs.
        repeats: a computed value is stored if a view repeats it at least this many times.
        levels: deepest nesting of inlined bodies for one value. Each level takes up to six frames of Python's limited
            stack.
        evaluations: most evaluations of inlined elements for one element of a value: reads at several indices multiply.
        waiting: most results of at least `waiting_bytes` that one kernel sums: all of them occupy memory until the last
            is computed. (A weight that twelve layers share has twelve gradients.)
    """

    cheap_additions: int = 4
    max_read_ratio: float = 1.3
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
        shared_bytes: least size of a buffer for which two groups that only read it are merged.
        readers: most groups that touch a buffer for every pair of them to be tried.
        buffers: most buffers that one kernel touches.
        operations: most operations in the body of one kernel.
        levels: deepest nesting of inlined bodies for one value of a kernel; see `Realization`.
        columns: most column accumulators of one kernel.
        accesses: most accesses of each buffer by which aligning two groups is tried.
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
    """How memory is assigned to intermediates (buffer_assignment.py, memory.py).

    Attributes:
        planned_bytes: least size of an intermediate that may lie in the memory of an output.
        planned_divisor: such an intermediate is also at least arena size / this, so that there are few: the arena is
            planned anew for each.
        min_dedicated_bytes: least size of an intermediate with an allocation of its own, which costs half a microsecond
            a call.
        dedicated_divisor: such an intermediate is also at least arena size / this.
        dedicated_saving_divisor: such allocations are made only if they save at least all memory / this.
        shared_bytes: least size of an arena, shared by programs, whose largest buffers may have their own allocation.
        break_saving_divisor: a run of kernels ends early, at the cost of a call, only if that saves at least all memory
            / this.
        max_compared_buffers: most buffers for which the offsets of two placement orders are compared.
    """

    planned_bytes: int = 1 << 16
    planned_divisor: int = 16
    min_dedicated_bytes: int = 1 << 12
    dedicated_divisor: int = 64
    dedicated_saving_divisor: int = 4096
    shared_bytes: int = 32 << 20
    break_saving_divisor: int = 8192
    max_compared_buffers: int = 3000


@dataclass(frozen=True)
class Bundling:
    """Limits on kernels that share a launch (horizontal_fusion.py).

    Attributes:
        moved_bytes: most bytes of buffers, made by a kernel for others or by others for it, with which the kernel may
            move in the order: larger kernels gain more from operands in the second-level cache than from a shared
            launch.
        tiny_bytes: the same for buffers of the arena, where longer lifetimes leave too many gaps.
        room_bytes: bytes by which peak memory may grow, in addition to 1/64 of it.
        tries: the search for more members ends after this many consecutive kernels did not fit in memory.
    """

    moved_bytes: int = 8 << 20
    tiny_bytes: int = 1 << 16
    room_bytes: int = 1 << 20
    tries: int = 4


@dataclass(frozen=True)
class Gpu:
    """A GPU, as CUDA reports it.

    Attributes:
        multiprocessors: number of streaming multiprocessors.
        shared_bytes: shared memory that one program may have.
        grid_rows: most programs along the second dimension of a grid.
    """

    multiprocessors: int
    shared_bytes: int
    grid_rows: int = 65535


H100 = Gpu(multiprocessors=132, shared_bytes=227 << 10)
"""Compute capability 9.0; an H200 is the same but for its memory."""


@dataclass(frozen=True)
class Products:
    """Matrix products that a kernel template may compute, with their prologue and epilogue (products.py).

    Attributes:
        min_multiplications: least multiplications of a float32 product that runs on tensor cores by default.
        min_side_elements: shortest side and depth of such a product.
        min_blocks: least blocks of 128 by 64 elements of its result: half of the multiprocessors are busy.
        min_depth_elements: least depth of a product for which tensor cores are used.
        max_prologue_operations: most operations for an element of an operand, which is computed anew for every block
            along the result's other side.
    """

    min_multiplications: int = 1 << 29
    min_side_elements: int = 64
    min_blocks: int = H100.multiprocessors // 2
    min_depth_elements: int = 16
    max_prologue_operations: int = 16


@dataclass(frozen=True)
class Loops:
    """Loops of C++ kernels (codegen/nest.py, phases.py, cpp).

    Attributes:
        min_parallel_operations: element operations below which a kernel stays on one thread.
        chunk_elements: chunk of a long loop that one thread takes at a time.
        columns: columns whose accumulators fit in the first-level cache together.
        symbolic_columns: the same where their number is symbolic: few, because all accumulators are cleared.
        tile_side: elements along both sides of a tile of a strided access.
        write_weight: the loop order follows the strides of accesses weighted by bytes; written bytes count this many
            times as much as read ones: strided reads can be staged, strided writes cannot.
        min_kept_additions: a value whose cost exceeds this is written to the row buffer and read back, not recomputed.
        row_buffer_bytes, row_buffers_bytes: size of one row buffer, and of all of a kernel.
        scatter_columns: columns that one thread takes at a time: four cache lines of float32.
        kernels_per_unit: kernels that one process of the C++ compiler gets, where there are processors for all.
        min_unlocked_bytes: a run of kernels that touches fewer bytes keeps the interpreter lock: releasing it would
            cost more than it gains.
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
        busy_programs: programs that keep the GPU busy: four for each multiprocessor.
        flat_block_elements, flat_thread_elements: elements of a block of the flat form, and of one thread.
        short_rows_elements: elements of a tile of short rows: several rows share a program.
        max_row_elements: longest row that one tile holds; longer ones are walked in a loop, once a phase.
        walked_block_elements: elements of a tile of a walked row.
        row_bytes: bytes of whole rows that a thread loads at once where there are rows enough for every multiprocessor.
            Half of the time a program folds and stores; the loads that other programs have under way then must cover
            the latency of memory, some 60 KB for each multiprocessor. Eight elements of bfloat16 a thread are half of
            that.
        one_tensor_bytes: most bytes of an element of a row, over all tensors, for the row to count as one tensor's.
        several_tensors_bytes, several_tensors_threads: the bytes, and the threads of a program, for rows of several
            tensors. On an H100 dropout, residual and layer norm of 8192 rows of 768 take 28.5 us so, where programs of
            two rows and 256 threads take 33; without dropout 25.4 and 35.5.
        walked_bytes: the same as row_bytes, for rows that are walked: fewer bytes, because loaded elements are folded
            sooner and accumulators need registers.
        walked_threads: threads of a program that walks a row.
        lone_block_elements: elements of a tile of a walked row where programs are so few that one has a multiprocessor
            almost to itself, and its iterations are not hidden by others.
        word_rows_threads: threads of a program that walks a row that is not aligned to words: maximum and sum of
            exponentials of 8192 rows of 50,257 take 209 us on an H200, 216 with 512.
        pipelined_bytes: shared memory into which a program of the mixed form may prefetch its next rows.
        min_own_columns: columns below which several chunks of rows share a block.
        column_tile_elements: elements that a tile of columns reads of up to two tensors.
        column_warps: warps that keep the GPU busy with column reductions: forty for each multiprocessor.
        mixed_tile_elements: elements of the whole rows that a program folds at once while it accumulates columns.
        segment_columns: columns of a block: 128 bytes of bfloat16, a line of the cache.
        wide_programs: programs from which on blocks are twice as wide, unless only narrow blocks divide a row. The
            gradient of cross-entropy over 30,522 classes takes 560 us so on an H100, 730 with blocks of 64 columns.
        wide_rows: rows that a wide block folds at once by two warps, where values take much arithmetic: the gradient of
            GELU over 8192 rows of 3072 takes 78 us so on an H100, 84 with blocks of 64 columns and 16 rows by four
            warps.
        column_rows: rows that other blocks of columns fold at once.
        much_additions: cost of an element, in additions, from which on threads have fewer elements: that of two
            exponentials. On an H100 masks of dropout for 6 million elements take 66 us with 8 elements a thread, 73
            with 16, and the gradient of cross-entropy with its padding to 50,264 classes 705 and 798.
        thread_rows: rows that one thread folds by itself where there are columns enough for all threads.
        short_side_elements: shorter side of a two-dimensional tile, for accesses that are contiguous along either side.
        min_side_elements: shortest size along which such a tile is used.
        row_block_elements: block of a row that has programs of its own; at most an eighth of it lies beyond the row's
            end.
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
        group_rows: blocks of rows whose programs are launched together, so that they share blocks of columns in the
            cache.
        max_timed: most configurations that are timed: each takes Triton one to two seconds to build.
        half: configurations for half precision.
        rounded: for float32 whose factors are rounded to TF32.
        exact: for float32 at full precision, as products of several TF32 terms of each factor, which are in registers.
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
    """Limits on all kernels of a shared launch together (codegen/triton/combined_launch.py).

    Attributes:
        max_pointers: most pointers: parameters take 4 KB at most, and Triton's compile time grows with them.
        max_bodies: most different bodies, which are compiled one after another.
        max_lines: most lines of all bodies: the longest body decides how many registers all programs take.
        large_bytes: a member that reads and writes more shares a launch only with members of the same code.
    """

    max_pointers: int = 400
    max_bodies: int = 8
    max_lines: int = 240
    large_bytes: int = 16 << 20


@dataclass(frozen=True)
class Machine:
    """All numbers by which a program is scheduled and its kernels are written; the defaults are a CPU's.

    A number without a reason here has none on record.

    Attributes:
        hardware: the GPU that Triton kernels are for.
        realization, fusion, buffers, bundling, products, loops, tiles, blocks, launches: the limits of each stage.
        split_elements: elements that a reduction folds in all, below which it is not split.
        parallel: independent iterations that a long reduction should have: rows, or chunks that it is split into.
        max_chunk_rows: most rows in a chunk of a column reduction.
        max_chunk_elements: most elements in a chunk of a row reduction.
        max_chunks: most chunks of one reduction.
        column_elements: most elements of the column accumulators of one kernel that also handles whole rows.
        enough_parallel: independent iterations below which row and column reductions do not share a kernel.
        fixed_columns: whether the width of such accumulators must be a number.
        templates: whether generated kernels compute matrix products.
        column_programs: workers that share a column reduction, each with a block of columns of a chunk of the rows;
            0: the chunks do not depend on the width.
        column_block: columns of such a block.
        mixed_chunks: chunks of a column reduction that may share its loop with row reductions, whose programs take
            whole rows; used where `column_programs` is.
        column_epilogues: whether values computed from the results of column reductions may follow in the same kernel.
        bundles: whether kernels that do not depend on each other may share a launch.
        takes_over: whether a large result may have, from the start, the memory of the intermediate that it is written
            over, and rows may be added to a value in its own memory.
        survives_checks: whether the process continues after a failed check. On a GPU a failed check ends the context.
        overwrites_unused: whether a value may be written over one that its kernel reads for another value. On a GPU the
            store would meet loads of the same line that are still under way, which takes three times as long.
        repeats: whether equal layers are scheduled once, where fusion leaves their kernels equal.
        max_read_ratio: a value that two loops use is recomputed in both only if it reads no more than this multiple of
            its own size.
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
    max_chunk_rows: int = 256
    max_chunk_elements: int = 8192
    max_chunks: int = 256
    column_elements: int = 4 * 4096
    enough_parallel: int = 8
    fixed_columns: bool = False
    templates: bool = False
    column_programs: int = 0
    column_block: int = 128
    mixed_chunks: int = 512
    column_epilogues: bool = False
    bundles: bool = False
    takes_over: bool = True
    survives_checks: bool = True
    overwrites_unused: bool = True
    repeats: bool = True
    max_read_ratio: float = 1.3


CPU = Machine()


def gpu(hardware: Gpu) -> Machine:
    """The machine of a large GPU: two programs for each multiprocessor; column accumulators stay in registers.

    Memory traffic dominates, so a value is recomputed in two loops unless that reads much more. Numbers tuned on an
    H100 are used for every GPU."""
    return Machine(
        hardware=hardware,
        products=Products(min_blocks=hardware.multiprocessors // 2),
        tiles=Tiles(busy_programs=4 * hardware.multiprocessors, column_warps=40 * hardware.multiprocessors),
        parallel=2 * hardware.multiprocessors,
        max_chunks=1024,
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
        max_read_ratio=1.9,
    )


GPU = gpu(H100)

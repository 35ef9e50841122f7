"""Numbers that differ between machines, for schedules and kernels: parallelism, sizes of caches and tiles, thresholds.

All tuned numbers are here, grouped by the stage that uses them. `gpu(hardware)` derives those that follow from a GPU;
tuning for another card is a `Machine` with other values (`dataclasses.replace`). Numbers that would change results,
such as the number of consecutive additions, are not here: results do not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Realization:
    """Limits on the choice of values that get buffers (realize.py).

    Attributes:
        cheap_additions: maximum cost of an element, in additions, of a value that is recomputed for each of its users.
        max_read_ratio: a value that more than two loops use is recomputed in each of them only if the bytes that it
            reads are at most this multiple of its own size.
        leaves: maximum number of buffers that one value reads.
        additions: maximum cost of an element of a value, in additions.
        repeats: minimum number of times that a view repeats a computed value for the value to be stored.
        levels: maximum nesting depth of inlined bodies for one value. Each level takes up to six frames of Python's
            limited stack.
        evaluations: maximum number of evaluations of inlined elements for one element of a value; reads at several
            indices multiply it.
        waiting: maximum number of results of at least `waiting_bytes` that one kernel sums: all of them occupy memory
            until the last is computed. (A weight that twelve layers share has twelve gradients.)
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
    """Limits on the loops that become one kernel (fuse.py, merge.py).

    Attributes:
        shared_bytes: minimum bytes of a buffer for which two groups that only read it are merged.
        readers: maximum number of groups that touch a buffer for every pair of them to be tried.
        buffers: maximum number of buffers that one kernel touches.
        operations: maximum number of operations in the body of one kernel.
        levels: maximum nesting depth of inlined bodies for one value of a kernel; see `Realization`.
        columns: maximum number of column accumulators of one kernel.
        accesses: two groups are aligned by a pair of accesses to one buffer; maximum number of accesses to it that are
            tried in each group.
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
    """Limits on the assignment of memory to intermediates (buffer_assignment.py, memory.py).

    Attributes:
        planned_bytes: minimum bytes of an intermediate that may use the memory of an output.
        planned_divisor: such an intermediate also has at least arena size / this number of bytes. This keeps their
            number small, as the arena is planned anew for each.
        min_dedicated_bytes: minimum bytes of an intermediate with a separate allocation, which costs half a microsecond
            per call.
        dedicated_divisor: such an intermediate also has at least arena size / this number of bytes.
        dedicated_saving_divisor: such allocations are made only if they save at least all memory / this number.
        shared_bytes: minimum bytes of an arena, shared by programs, whose largest buffers may have a separate
            allocation.
        break_saving_divisor: a run of kernels ends early, at the cost of a call, only if that saves at least all memory
            / this number.
        max_compared_buffers: maximum number of buffers for which the offsets of two placement orders are compared.
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
        moved_bytes: maximum bytes of the buffers that a moved kernel exchanges with other kernels: larger kernels gain
            more from operands in the second-level cache than from a shared launch.
        tiny_bytes: the same limit for buffers of the arena, where longer lifetimes leave too many gaps.
        room_bytes: bytes by which peak memory may grow, in addition to 1/64 of it.
        tries: number of consecutive kernels that do not fit in memory after which the search for more members ends.
    """

    moved_bytes: int = 8 << 20
    tiny_bytes: int = 1 << 16
    room_bytes: int = 1 << 20
    tries: int = 4


@dataclass(frozen=True)
class Gpu:
    """Properties of a GPU, as CUDA reports them.

    Attributes:
        multiprocessors: number of streaming multiprocessors.
        shared_bytes: maximum bytes of shared memory of one program.
        grid_rows: maximum number of programs along the second dimension of a grid.
    """

    multiprocessors: int
    shared_bytes: int
    grid_rows: int = 65535


H100 = Gpu(multiprocessors=132, shared_bytes=227 << 10)
"""Compute capability 9.0. An H200 differs from an H100 only in its memory."""


@dataclass(frozen=True)
class Products:
    """Limits on matrix products that a kernel template may compute, with their prologue and epilogue (products.py).

    Attributes:
        min_multiplications: minimum number of multiplications of a float32 product that runs on tensor cores by
            default.
        min_side_elements: minimum size of the sides and the depth of such a product.
        min_blocks: minimum number of blocks of 128 by 64 elements of its result, which keep half of the multiprocessors
            busy.
        min_depth_elements: minimum depth of a product for which tensor cores are used.
        max_prologue_operations: maximum number of operations for an element of an operand, which is computed anew for
            every block along the result's other side.
    """

    min_multiplications: int = 1 << 29
    min_side_elements: int = 64
    min_blocks: int = H100.multiprocessors // 2
    min_depth_elements: int = 16
    max_prologue_operations: int = 16


@dataclass(frozen=True)
class Loops:
    """Limits and sizes of the loops of C++ kernels (codegen/nest.py, phases.py, cpp).

    Attributes:
        min_parallel_operations: minimum number of element operations of a kernel that runs on several threads.
        chunk_elements: number of elements of a long loop that one thread takes at a time.
        columns: number of columns whose accumulators fit in the first-level cache together.
        symbolic_columns: the same number if the number of columns is symbolic: small, because all accumulators are
            cleared.
        tile_side: number of elements along both sides of a tile of a strided access.
        write_weight: the loop order follows the strides of accesses weighted by bytes; written bytes have this weight
            relative to read ones: strided reads can be staged, strided writes cannot.
        min_kept_additions: cost, in additions, above which a value is written to the row buffer and read back, not
            recomputed.
        row_buffer_bytes, row_buffers_bytes: maximum bytes of one row buffer, and of all row buffers of a kernel.
        scatter_columns: number of columns that one thread takes at a time: four cache lines of float32.
        kernels_per_unit: number of kernels that one process of the C++ compiler gets, if there are processors for all.
        min_unlocked_bytes: minimum bytes that a run of kernels touches for it to release the interpreter lock: below,
            the release costs more than it gains.
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
    """Sizes and thresholds of the tiles of Triton kernels (codegen/triton/tiles.py).

    Attributes:
        busy_programs: number of programs that keep the GPU busy: four for each multiprocessor.
        flat_block_elements, flat_thread_elements: number of elements of a block of the flat form, and of one thread.
        short_rows_elements: number of elements of a tile of short rows, of which several share a program.
        max_row_elements: maximum length of a row that one tile contains; a longer row is walked in a loop, once per
            phase.
        walked_block_elements: number of elements of a tile of a walked row.
        row_bytes: bytes of whole rows that a thread loads at once if there are enough rows for every multiprocessor.
            While a program folds and stores, which is half of its time, the pending loads of other programs must cover
            the latency of memory, some 60 KB for each multiprocessor. Eight elements of bfloat16 a thread are half of
            that.
        one_tensor_bytes: maximum bytes of an element of a row, over all tensors, for the row to be treated as a row of
            one tensor.
        several_tensors_bytes, several_tensors_threads: bytes that a thread loads at once, and threads of a program, for
            rows of several tensors. On an H100 dropout, residual and layer norm of 8192 rows of 768 take 28.5 us this
            way, and 33 us with programs of two rows and 256 threads; without dropout 25.4 and 35.5 us.
        walked_bytes: the same quantity as row_bytes, for rows that are walked: fewer bytes, because loaded elements are
            folded sooner and accumulators need registers.
        walked_threads: number of threads of a program that walks a row.
        lone_block_elements: number of elements of a tile of a walked row if there are so few programs that each has a
            multiprocessor almost to itself, and other programs do not hide its latencies.
        word_rows_threads: number of threads of a program that walks a row that is not aligned to words: maximum and sum
            of exponentials of 8192 rows of 50,257 take 209 us on an H200, and 216 us with 512 threads.
        pipelined_bytes: maximum bytes of shared memory into which a program of the mixed form prefetches its next rows.
        min_own_columns: number of columns below which several chunks of rows share a block.
        column_tile_elements: number of elements that a tile of columns reads of up to two tensors.
        column_warps: number of warps that keep the GPU busy with column reductions: forty for each multiprocessor.
        mixed_tile_elements: number of elements of the whole rows that a program folds at once while it accumulates
            columns.
        segment_columns: number of columns of a block: 128 bytes of bfloat16, a line of the cache.
        wide_programs: minimum number of programs for which blocks are twice as wide, unless only narrow blocks divide a
            row. The gradient of cross-entropy over 30,522 classes takes 560 us with wide blocks on an H100, and 730 us
            with blocks of 64 columns.
        wide_rows: number of rows that a wide block folds at once by two warps, if values take much arithmetic: the
            gradient of GELU over 8192 rows of 3072 takes 78 us this way on an H100, and 84 us with blocks of 64 columns
            and 16 rows by four warps.
        column_rows: number of rows that other blocks of columns fold at once.
        much_additions: minimum cost of an element, in additions, for which threads have fewer elements: the cost of two
            exponentials. On an H100 masks of dropout for 6 million elements take 66 us with 8 elements per thread and
            73 us with 16; the gradient of cross-entropy with its padding to 50,264 classes takes 705 and 798 us.
        thread_rows: number of rows that one thread folds alone if there are enough columns for all threads.
        short_side_elements: number of elements of the shorter side of a two-dimensional tile, for accesses that are
            contiguous along either side.
        min_side_elements: minimum size of a dimension for which such a tile is used.
        row_block_elements: sizes, the preferred one first, of the blocks of a row that is divided among separate
            programs; the last block exceeds the row's end by at most an eighth of the row.
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
"""(YBLOCK, XBLOCK, KBLOCK, warps, stages) of a matrix product; see codegen/triton/blocks.py."""


@dataclass(frozen=True)
class ProductBlocks:
    """The blocks of matrix products on tensor cores (codegen/triton/blocks.py).

    Attributes:
        min_side_elements: minimum side of a block for tensor cores.
        group_rows: number of blocks of rows whose programs are launched together, so that they share blocks of columns
            in the cache.
        max_timed: maximum number of configurations that are timed: Triton takes one to two seconds to build each.
        half: configurations for half precision.
        rounded: configurations for float32 whose factors are rounded to TF32.
        exact: configurations for float32 at full precision, as products of several TF32 terms of each factor, which are
            in registers.
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
        max_pointers: maximum number of pointers: parameters take at most 4 KB, and Triton's compile time grows with
            them.
        max_bodies: maximum number of different bodies, which are compiled one after another.
        max_lines: maximum number of lines of all bodies: the longest body decides the number of registers of all
            programs.
        large_bytes: a member that reads and writes more bytes shares a launch only with members of the same code.
    """

    max_pointers: int = 400
    max_bodies: int = 8
    max_lines: int = 240
    large_bytes: int = 16 << 20


@dataclass(frozen=True)
class Machine:
    """All numbers with which a program is scheduled and its kernels are written; the defaults are a CPU's.

    If no reason for a number is given here, none is on record.

    Attributes:
        hardware: the GPU on which Triton kernels run.
        realization, fusion, buffers, bundling, products, loops, tiles, blocks, launches: the limits of each stage.
        split_elements: minimum number of elements that a reduction folds in total for it to be split.
        parallel: wanted number of independent iterations of a long reduction: rows, or chunks into which it is split.
        max_chunk_rows: maximum number of rows in a chunk of a column reduction.
        max_chunk_elements: maximum number of elements in a chunk of a row reduction.
        max_chunks: maximum number of chunks of one reduction.
        column_elements: maximum number of elements of the column accumulators of one kernel that also handles whole
            rows.
        enough_parallel: minimum number of independent iterations for which row and column reductions share a kernel.
        fixed_columns: whether the width of such accumulators must be a number, not symbolic.
        templates: whether generated kernels compute matrix products.
        column_programs: number of workers that share a column reduction, each with a block of columns of a chunk of the
            rows; 0: the chunks do not depend on the width.
        column_block: number of columns of such a block.
        mixed_chunks: number of chunks of a column reduction that may share its loop with row reductions, whose programs
            take whole rows; used if `column_programs` is not 0.
        column_epilogues: whether values computed from the results of column reductions may follow in the same kernel.
        bundles: whether kernels that do not depend on each other may share a launch.
        takes_over: whether a large intermediate may be in the memory of the result that overwrites it, and whether a
            scatter may add rows to a value in the value's own memory.
        survives_checks: whether the process continues after a failed check. On a GPU a failed check ends the context.
        overwrites_unused: whether a value may be written over one that its kernel reads for another value. On a GPU the
            store would meet loads of the same line that are still under way, which takes three times as long.
        repeats: whether equal layers are scheduled once, if fusion leaves their kernels equal.
        max_read_ratio: a value that two loops use is recomputed in both only if the bytes that it reads are at most
            this multiple of its own size.
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
    """Returns the machine of a large GPU: two programs for each multiprocessor; column accumulators stay in registers.

    Memory traffic dominates, so a value is recomputed in two loops unless that reads much more. Numbers tuned on an
    H100 are used for every GPU.
    """
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

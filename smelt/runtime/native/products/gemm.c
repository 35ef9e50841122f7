/* Driver of the single-precision matrix product: order of loops, packing, threads. The arithmetic is in
 * gemm_tile.h.
 *
 * C is computed in tiles of a few rows by two vectors. One operand, the shared one, is packed once, by all threads
 * together, into panels that every thread reads. The other, the streamed one, is packed in pieces, each by the
 * thread that uses it, into its own cache. So every element of A and B is packed once per product:
 *   m <= n: A is shared, a task is a strip of columns;
 *   m >  n: B is shared, a task is a strip of rows.
 * Tasks are assigned dynamically, so a core that is slowed down by other work takes fewer of them. Inside a task,
 * k is split so that a packed panel of B stays in the first-level cache. Blocking follows "Anatomy of
 * high-performance matrix multiplication" (Goto and van de Geijn, 2008) and BLIS (Van Zee and van de Geijn, 2015);
 * the code is our own. */
#define _GNU_SOURCE
#include "gemm.h"
#include "isa.h"
#include "../threads.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    CUT_K = 384,             /* maximum k per visit of a tile: 384 x 32 floats of B are 48 KB */
    SHARED = 1 << 20,        /* maximum number of floats of the shared operand packed at a time (4 MB) */
    STRIP_PANELS = 6,        /* number of row panels of a task if B is shared */
    STRIP_COLUMNS = 4,       /* number of column panels of a task if A is shared */
    SERIAL = 1 << 18,        /* maximum number of multiplications for one thread: a region costs a few microseconds */
    DIRECT_PANELS = 2,       /* maximum number of row panels for which B is read in place: packing would cost more */
    MAX_COLUMNS = 32,
};

typedef struct {
    float *data;
    size_t size;
} buffer;
static __thread buffer shared_buffer, private_buffer;

static float *reserve(buffer *b, size_t floats) {
    if (b->size < floats) {
        free(b->data);
        size_t bytes = (floats * sizeof(float) + 4095) & ~(size_t)4095;
        b->size = posix_memalign((void **)&b->data, bytes >= (2 << 20) ? 2 << 20 : 4096, bytes) ? 0 : bytes / sizeof(float);
#ifdef MADV_HUGEPAGE
        if (b->size && bytes >= (2 << 20)) madvise(b->data, bytes, MADV_HUGEPAGE);
#endif
        if (!b->size) abort(); /* not even a few megabytes are available, and no error can be returned */
    }
    return b->data;
}

/* --- instruction set -------------------------------------------------------------------------------------------- */

static const smelt_isa *selected;

static int usable(const smelt_isa *isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == &smelt_isa_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (isa == &smelt_isa_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return isa == &smelt_isa_plain;
}

static const smelt_isa *const known[] = {
#if defined(__x86_64__)
    &smelt_isa_avx512, &smelt_isa_avx2,
#endif
    &smelt_isa_plain,
};

static const smelt_isa *isa_in_use(void) {
    if (!selected)
        for (size_t i = 0; i < sizeof known / sizeof *known && !selected; i++)
            if (usable(known[i])) selected = known[i];
    return selected;
}

const char *smelt_gemm_kind(void) { return isa_in_use()->name; }

int smelt_gemm_select(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i]->name, name) && usable(known[i])) {
            selected = known[i];
            return 1;
        }
    return 0;
}

/* --- one product ------------------------------------------------------------------------------------------------ */

typedef struct {
    smelt_gemm g;
    const float *a, *b, *bias;
    float *c;
    const smelt_isa *isa;
    int columns;                                 /* columns of a panel of B */
    int64_t row_panels, short_rows, long_panels; /* the first long_panels have short_rows + 1 rows */
    int64_t column_panels;
    int b_shared;           /* whether B is the shared operand, else A */
    int a_direct, b_direct; /* whether the operand is read in place, not packed */
    int threads;
    float *shared;    /* packed panels of the shared operand */
    int32_t *packed;  /* per panel: number of the last pass that packed it, counted from 1 */
    int64_t to_pack[2], to_do[2]; /* next panel to pack and next task, for odd and even passes */
} job;

/* One pass: panels [first, last) of the shared operand, and `length` steps of k from k0 on. */
typedef struct {
    int32_t number;
    int64_t first, last, k0, length;
} block;

/* The elements of A for one tile. */
typedef struct {
    const float *data;
    int64_t row, step;
} a_view;

static inline int64_t row_start(const job *j, int64_t panel) {
    return panel * j->short_rows + least(panel, j->long_panels);
}
static inline int row_count(const job *j, int64_t panel) { return (int)(j->short_rows + (panel < j->long_panels)); }
static inline int column_count(const job *j, int64_t panel) {
    return (int)least(j->columns, j->g.n - panel * j->columns);
}
/* The columns of a panel of B: a narrow last panel is one vector wide if that suffices. */
static inline int column_width(const job *j, int64_t panel) {
    return column_count(j, panel) <= j->isa->vector ? j->isa->vector : j->columns;
}

static inline const float *a_at(const job *j, int64_t row_panel, int64_t k) {
    return j->a + row_start(j, row_panel) * j->g.a_row + k * j->g.a_column;
}

static void pack_rows(const job *j, float *to, int64_t panel, int64_t k, int64_t length) {
    const int rows = row_count(j, panel);
    j->isa->pack(to, rows, rows, length, a_at(j, panel, k), j->g.a_row, j->g.a_column);
}

static void pack_columns(const job *j, float *to, int64_t panel, int64_t k, int64_t length) {
    j->isa->pack(to, column_width(j, panel), column_count(j, panel), length,
                 j->b + panel * j->columns * j->g.b_column + k * j->g.b_row, j->g.b_column, j->g.b_row);
}

/* The address of a panel of the pass in the shared buffer. */
static inline float *shared_panel(const job *j, const block *s, int64_t panel) {
    const int64_t before = j->b_shared ? (panel - s->first) * j->columns : row_start(j, panel) - row_start(j, s->first);
    return j->shared + before * s->length;
}

/* Packs panels of the shared operand until all are claimed; does not wait for other threads. */
static void pack_shared(job *j, const block *s) {
    for (;;) {
        const int64_t panel = s->first + __atomic_fetch_add(&j->to_pack[s->number & 1], 1, __ATOMIC_RELAXED);
        if (panel >= s->last) return;
        (j->b_shared ? pack_columns : pack_rows)(j, shared_panel(j, s, panel), panel, s->k0, s->length);
        __atomic_store_n(&j->packed[panel - s->first], s->number, __ATOMIC_RELEASE);
    }
}

/* Waits until the thread that claimed a shared panel has packed it; returns the panel. */
static const float *await_panel(const job *j, const block *s, int64_t panel) {
    for (int turns = 0; __atomic_load_n(&j->packed[panel - s->first], __ATOMIC_ACQUIRE) != s->number; turns++)
        if (turns > 1000) sched_yield(); /* the thread that packs it has no core: let it run */
    return shared_panel(j, s, panel);
}

/* Writes or adds a computed tile to C if its rows in C are not whole contiguous vectors: ragged edges, odd strides. */
static void merge(const job *j, const float *tile, int rows, int columns, float *c, int accumulate) {
    for (int i = 0; i < rows; i++)
        for (int q = 0; q < columns; q++) {
            float *at = c + i * j->g.c_row + q * j->g.c_column;
            *at = tile[i * MAX_COLUMNS + q] + (accumulate ? *at : 0);
        }
}

static void multiply(const job *j, int64_t row_panel, int64_t column_panel, int64_t length, a_view a, const float *b,
                     int64_t b_step, int first_pass) {
    const int rows = row_count(j, row_panel), columns = column_count(j, column_panel);
    const int width = column_width(j, column_panel);
    const smelt_tile tile = j->isa->tile[rows - 1][width > j->isa->vector];
    const int64_t column = column_panel * j->columns;
    const int accumulate = !first_pass || j->g.accumulate;
    const float *bias = j->bias && first_pass ? j->bias + column : NULL;
    float *c = j->c + row_start(j, row_panel) * j->g.c_row + column * j->g.c_column;
    if (columns == width && j->g.c_column == 1) {
        tile(length, a.data, a.row, a.step, b, b_step, c, j->g.c_row, bias, accumulate);
        return;
    }
    float temporary[SMELT_MAX_ROWS * MAX_COLUMNS], edge[MAX_COLUMNS] = {0};
    if (bias) memcpy(edge, bias, (size_t)columns * sizeof(float));
    tile(length, a.data, a.row, a.step, b, b_step, temporary, MAX_COLUMNS, bias ? edge : NULL, 0);
    merge(j, temporary, rows, columns, c, accumulate);
}

/* A task if A is shared or read in place: column panels [first, last) times row panels [top, bottom) of the pass. */
static void column_task(const job *j, const block *s, int64_t first, int64_t last, int64_t top, int64_t bottom) {
    const int direct = j->b_direct && column_count(j, last - 1) == column_width(j, last - 1);
    float *strip = reserve(&private_buffer, (size_t)(CUT_K * MAX_COLUMNS * (last - first)));
    const int64_t cuts = up(s->length, CUT_K), cut = up(s->length, cuts);
    for (int64_t k = 0; k < s->length; k += cut) {
        const int64_t length = least(cut, s->length - k);
        for (int64_t p = first; p < last; p++) {
            float *mine = strip + (p - first) * j->columns * length;
            if (!direct) pack_columns(j, mine, p, s->k0 + k, length);
        }
        for (int64_t p = first; p < last; p++) {
            const float *b = direct ? j->b + p * j->columns + (s->k0 + k) * j->g.b_row
                                    : strip + (p - first) * j->columns * length;
            const int64_t step = direct ? j->g.b_row : column_width(j, p);
            for (int64_t i = top; i < bottom; i++) {
                const int64_t rows = row_count(j, i);
                const a_view a = j->a_direct ? (a_view){a_at(j, i, s->k0 + k), j->g.a_row, j->g.a_column}
                                             : (a_view){await_panel(j, s, i) + k * rows, 1, rows};
                multiply(j, i, p, length, a, b, step, s->k0 + k == 0);
            }
        }
    }
}

/* A task if B is shared: row panels [first, last) times all column panels of the pass. */
static void row_task(const job *j, const block *s, int64_t first, int64_t last) {
    const int64_t start = row_start(j, first), rows = row_start(j, last) - start;
    float *strip = j->a_direct ? NULL : reserve(&private_buffer, (size_t)(CUT_K * rows));
    const int64_t cuts = up(s->length, CUT_K), cut = up(s->length, cuts);
    for (int64_t k = 0; k < s->length; k += cut) {
        const int64_t length = least(cut, s->length - k);
        for (int64_t i = first; i < last && strip; i++)
            pack_rows(j, strip + (row_start(j, i) - start) * length, i, s->k0 + k, length);
        for (int64_t p = s->first; p < s->last; p++) {
            const int width = column_width(j, p);
            const float *b = await_panel(j, s, p) + k * width;
            for (int64_t i = first; i < last; i++) {
                const a_view a = strip ? (a_view){strip + (row_start(j, i) - start) * length, 1, row_count(j, i)}
                                       : (a_view){a_at(j, i, s->k0 + k), j->g.a_row, j->g.a_column};
                multiply(j, i, p, length, a, b, width, s->k0 + k == 0);
            }
        }
    }
}

static inline int needs_packing(const job *j) { return j->b_shared || !j->a_direct; }

static void run_block(job *j, const block *s) {
    if (needs_packing(j)) pack_shared(j, s);
    const int64_t panels = j->b_shared ? j->row_panels : j->column_panels;
    const int64_t most = j->b_shared ? STRIP_PANELS : STRIP_COLUMNS;
    const int64_t group = least(most, up(panels, 3 * j->threads)); /* at least three tasks per thread, for balance */
    const int64_t groups = up(panels, group);
    /* with too few strips for the threads, their rows are split as well, although each split then packs its strip
     * of B */
    const int64_t rows = s->last - s->first;
    const int64_t splits = j->b_shared || groups >= 2 * j->threads ? 1 : least(rows, up(2 * j->threads, groups));
    for (;;) {
        const int64_t task = __atomic_fetch_add(&j->to_do[s->number & 1], 1, __ATOMIC_RELAXED);
        if (task >= groups * splits) return;
        const int64_t at = task / splits * group, split = task % splits, end = least(at + group, panels);
        if (j->b_shared)
            row_task(j, s, at, end);
        else
            column_task(j, s, at, end, s->first + rows * split / splits, s->first + rows * (split + 1) / splits);
    }
}

/* The number of panels of the shared operand and the length of k for one pass. */
static block block_sizes(const job *j) {
    const int64_t width = j->b_shared ? j->columns : j->short_rows + 1;
    const int64_t panels = j->b_shared ? j->column_panels : j->row_panels;
    int64_t length = j->g.k;
    if (panels * width * length > SHARED) {
        const int64_t fits = SHARED / (panels * width);
        length = least(length, fits > 4 * CUT_K ? fits : 4 * CUT_K);
        length = up(j->g.k, up(j->g.k, length));
    }
    int64_t count = SHARED / (width * length);
    count = count < 1 ? 1 : least(count, panels);
    return (block){0, 0, up(panels, up(panels, count)), 0, length};
}

/* Runs one thread's share of a product. */
static void run(void *data) {
    job *j = data;
    const int first_thread = j->threads == 1 || smelt_thread_index() == 0;
    const block size = block_sizes(j);
    const int64_t panels = j->b_shared ? j->column_panels : j->row_panels;
    block s = {0};
    for (s.first = 0; s.first < panels; s.first += size.last)
        for (s.k0 = 0; s.k0 < j->g.k; s.k0 += size.length) {
            if (s.number++ > 0 && j->threads > 1) smelt_barrier(); /* all threads have read the last pass's panels */
            if (first_thread) j->to_pack[(s.number + 1) & 1] = j->to_do[(s.number + 1) & 1] = 0;
            s.last = least(s.first + size.last, panels);
            s.length = least(size.length, j->g.k - s.k0);
            run_block(j, &s);
        }
}

/* Prepares a product: nothing is claimed, the buffer has room for the packed panels, and none of them is packed. */
static void start_job(job *j) {
    memset(j->to_pack, 0, sizeof j->to_pack);
    memset(j->to_do, 0, sizeof j->to_do);
    if (!needs_packing(j)) return;
    const block size = block_sizes(j);
    const size_t floats = (size_t)(size.last * (j->b_shared ? j->columns : j->short_rows + 1) * size.length);
    j->shared = reserve(&shared_buffer, floats + (size_t)size.last);
    j->packed = (int32_t *)(j->shared + floats);
    memset(j->packed, 0, (size_t)size.last * sizeof(int32_t));
}

/* --- whole call ------------------------------------------------------------------------------------------------- */

/* C = bias, C += bias or C = 0: the result if k is 0, and the start if bias does not run along the vectors. */
static void fill(const smelt_gemm *g, float *c, const float *bias) {
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t q = 0; q < g->n; q++) {
            float *at = c + i * g->c_row + q * g->c_column;
            *at = (bias ? bias[i * g->bias_row + q * g->bias_column] : 0) + (g->accumulate ? *at : 0);
        }
}

static smelt_gemm transposed(smelt_gemm g) {
    return (smelt_gemm){
        g.batch,   g.n,     g.m,        g.k,       g.b_batch, g.b_column, g.b_row,      g.a_batch,  g.a_column,
        g.a_row,   g.c_batch, g.c_column, g.c_row, g.accumulate, g.bias_row, g.bias_column,
    };
}

/* Whether A is read in place: if its rows are contiguous, or if few columns use it. */
static int reads_a_directly(const smelt_gemm *g, int64_t column_panels) {
    return g->a_column == 1 || column_panels <= DIRECT_PANELS;
}

static job prepare(const smelt_gemm *g, const smelt_isa *isa, int threads) {
    job j = {.g = *g, .isa = isa, .columns = 2 * isa->vector, .threads = threads};
    j.row_panels = up(g->m, isa->rows);
    j.short_rows = g->m / j.row_panels;
    j.long_panels = g->m % j.row_panels;
    j.column_panels = up(g->n, j.columns);
    j.b_shared = g->m > g->n;
    j.a_direct = reads_a_directly(g, j.column_panels);
    j.b_direct = !j.b_shared && g->b_column == 1 && j.row_panels <= DIRECT_PANELS;
    return j;
}

typedef struct {
    job j;
    const float *a, *b;
    float *c;
    int64_t next;
} many;

/* Runs one thread's share of a batch, in which each thread multiplies whole matrices. */
static void run_batch(void *data) {
    many *all = data;
    job j = all->j;
    j.threads = 1;
    for (;;) {
        const int64_t i = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED);
        if (i >= j.g.batch) return;
        j.a = all->a + i * j.g.a_batch;
        j.b = all->b + i * j.g.b_batch;
        j.c = all->c + i * j.g.c_batch;
        start_job(&j);
        run(&j);
    }
}

void smelt_sgemm(const smelt_gemm *shape, const float *a, const float *b, float *c, const float *bias) {
    smelt_gemm g = *shape;
    if (g.c_column != 1 && g.c_row == 1) { /* C in column order: compute its transpose, B' A' */
        g = transposed(g);
        const float *swap = a;
        a = b;
        b = swap;
    }
    if (g.batch <= 0 || g.m <= 0 || g.n <= 0) return;
    if (g.k == 0 || (bias && g.bias_column != 1)) {
        for (int64_t i = 0; i < g.batch; i++) fill(&g, c + i * g.c_batch, bias);
        if (g.k == 0) return;
        g.accumulate = 1;
        bias = NULL;
    }
    const int64_t work = g.m * g.n * g.k;
    const int threads = work * g.batch <= SERIAL ? 1 : smelt_threads_max();
    many all = {.j = prepare(&g, isa_in_use(), threads), .a = a, .b = b, .c = c};
    all.j.bias = bias;
    if (threads == 1 || (g.batch >= threads && (g.batch % threads == 0 || g.batch >= 4 * threads))) {
        smelt_parallel(run_batch, &all, threads);
        return;
    }
    job *j = &all.j;
    for (int64_t i = 0; i < g.batch; i++) {
        j->a = a + i * g.a_batch;
        j->b = b + i * g.b_batch;
        j->c = c + i * g.c_batch;
        start_job(j);
        smelt_parallel(run, j, threads);
    }
}

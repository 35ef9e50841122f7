/* Driver of the single-precision matrix product: order of loops, packing, threads. The arithmetic is in gemm_tile.h.
 *
 * C is computed in tiles of a few rows by two vectors. One operand is packed once, by all threads together, into
 * panels that every thread reads (the shared operand); the other is packed piece by piece, by the thread that uses the
 * piece, into its own cache (the streamed operand). So every element of A and B is packed once per product:
 *   m <= n: A is shared, a task is a strip of columns;
 *   m >  n: B is shared, a task is a strip of rows.
 * Tasks are handed out dynamically, so a core that is slowed down by other work takes fewer of them. Inside a task k is
 * cut so that a packed panel of B stays in the first-level cache. Blocking follows "Anatomy of high-performance matrix
 * multiplication" (Goto and van de Geijn, 2008) and BLIS (Van Zee and van de Geijn, 2015); the code is our own. */
#define _GNU_SOURCE
#include "gemm.h"
#include "threads.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    CUT_K = 256,             /* longest k of one pass: 256 x 32 floats of B are 32 KB */
    SHARED = 1 << 20,        /* floats of the shared operand packed at a time (4 MB) */
    STRIP_PANELS = 6,        /* row panels of one task when B is shared */
    SERIAL = 1 << 18,        /* multiplications that one thread does alone: a region costs a few microseconds */
    DIRECT_PANELS = 2,       /* with at most this many row panels B is read in place: packing would not pay */
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
        if (!b->size) abort(); /* a few megabytes are not to be had: nothing sensible can follow */
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
    int columns;                     /* of a panel of B */
    int64_t row_panels, short_rows, long_panels; /* the first long_panels have short_rows + 1 rows */
    int64_t column_panels;
    int b_shared, b_direct;
    int threads;
    float *shared;
    int64_t next; /* the next task */
} job;

/* One pass: rows or columns [first, last) of the shared operand's panels, k from k0 over `length`. */
typedef struct {
    int64_t first, last, k0, length;
} block;

static inline int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t up(int64_t x, int64_t y) { return (x + y - 1) / y; }

static inline int64_t row_start(const job *j, int64_t panel) {
    return panel * j->short_rows + least(panel, j->long_panels);
}
static inline int row_count(const job *j, int64_t panel) {
    return (int)(j->short_rows + (panel < j->long_panels));
}
static inline int column_count(const job *j, int64_t panel) {
    return (int)least(j->columns, j->g.n - panel * j->columns);
}
/* Panels of the last, narrow strip of B are packed one vector wide when that holds them. */
static inline int column_width(const job *j, int64_t panel) {
    return column_count(j, panel) <= j->isa->vector ? j->isa->vector : j->columns;
}

static void pack_rows(const job *j, float *to, int64_t panel, int64_t k0, int64_t length) {
    const int rows = row_count(j, panel);
    j->isa->pack(to, rows, rows, length, j->a + row_start(j, panel) * j->g.a_row + k0 * j->g.a_column, j->g.a_row,
                 j->g.a_column);
}

static void pack_columns(const job *j, float *to, int64_t panel, int64_t k0, int64_t length) {
    j->isa->pack(to, column_width(j, panel), column_count(j, panel), length,
                 j->b + panel * j->columns * j->g.b_column + k0 * j->g.b_row, j->g.b_column, j->g.b_row);
}

/* Adds a computed tile to C where C has no vector of columns in one piece: a ragged edge, or odd strides. */
static void merge(const job *j, const float *tile, int rows, int columns, float *c, int accumulate) {
    for (int i = 0; i < rows; i++)
        for (int q = 0; q < columns; q++) {
            float *at = c + i * j->g.c_row + q * j->g.c_column;
            *at = tile[i * MAX_COLUMNS + q] + (accumulate ? *at : 0);
        }
}

static void multiply(const job *j, int64_t row_panel, int64_t column_panel, int64_t length, const float *a,
                     const float *b, int64_t b_step, int first_pass) {
    const int rows = row_count(j, row_panel), columns = column_count(j, column_panel);
    const int width = column_width(j, column_panel);
    const smelt_tile tile = j->isa->tile[rows - 1][width > j->isa->vector];
    const int64_t column = column_panel * j->columns;
    const int accumulate = !first_pass || j->g.accumulate;
    const float *bias = j->bias && first_pass ? j->bias + column : NULL;
    float *c = j->c + row_start(j, row_panel) * j->g.c_row + column * j->g.c_column;
    if (columns == width && j->g.c_column == 1) {
        tile(length, a, b, b_step, c, j->g.c_row, bias, accumulate);
        return;
    }
    float temporary[SMELT_MAX_ROWS * MAX_COLUMNS], edge[MAX_COLUMNS] = {0};
    if (bias) memcpy(edge, bias, (size_t)columns * sizeof(float));
    tile(length, a, b, b_step, temporary, MAX_COLUMNS, bias ? edge : NULL, 0);
    merge(j, temporary, rows, columns, c, accumulate);
}

/* Task: columns of one panel times every row panel of the block (A is shared). */
static void column_task(const job *j, const block *s, int64_t panel) {
    const int width = column_width(j, panel);
    const int direct = j->b_direct && column_count(j, panel) == width;
    float *strip = reserve(&private_buffer, CUT_K * MAX_COLUMNS + 16);
    const int64_t cuts = up(s->length, CUT_K), cut = up(s->length, cuts);
    for (int64_t k = 0; k < s->length; k += cut) {
        const int64_t length = least(cut, s->length - k);
        if (!direct) pack_columns(j, strip, panel, s->k0 + k, length);
        const float *b = direct ? j->b + panel * j->columns + (s->k0 + k) * j->g.b_row : strip;
        const int64_t step = direct ? j->g.b_row : width;
        for (int64_t i = s->first; i < s->last; i++) {
            const float *a = j->shared + (row_start(j, i) - row_start(j, s->first)) * s->length + k * row_count(j, i);
            multiply(j, i, panel, length, a, b, step, s->k0 + k == 0);
        }
    }
}

/* Task: a few row panels times every column panel of the block (B is shared). */
static void row_task(const job *j, const block *s, int64_t first, int64_t last) {
    const int64_t rows = row_start(j, last) - row_start(j, first);
    float *strip = reserve(&private_buffer, (size_t)(CUT_K * rows + 16));
    const int64_t cuts = up(s->length, CUT_K), cut = up(s->length, cuts);
    for (int64_t k = 0; k < s->length; k += cut) {
        const int64_t length = least(cut, s->length - k);
        for (int64_t i = first; i < last; i++)
            pack_rows(j, strip + (row_start(j, i) - row_start(j, first)) * length, i, s->k0 + k, length);
        for (int64_t p = s->first; p < s->last; p++) {
            const int width = column_width(j, p);
            const float *b = j->shared + (p - s->first) * j->columns * s->length + k * width;
            for (int64_t i = first; i < last; i++)
                multiply(j, i, p, length, strip + (row_start(j, i) - row_start(j, first)) * length, b, width,
                         s->k0 + k == 0);
        }
    }
}

static void run_block(job *j, const block *s, int thread) {
    if (thread == 0) j->next = 0;
    for (int64_t p = s->first + thread; p < s->last; p += j->threads) {
        if (j->b_shared)
            pack_columns(j, j->shared + (p - s->first) * j->columns * s->length, p, s->k0, s->length);
        else
            pack_rows(j, j->shared + (row_start(j, p) - row_start(j, s->first)) * s->length, p, s->k0, s->length);
    }
    if (j->threads > 1) smelt_barrier();
    const int64_t panels = j->b_shared ? j->row_panels : j->column_panels;
    int64_t group = 1;
    if (j->b_shared) group = least(STRIP_PANELS, up(panels, 3 * j->threads)); /* small tasks even out the threads */
    for (;;) {
        const int64_t at = group * __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (at >= panels) break;
        if (j->b_shared)
            row_task(j, s, at, least(at + group, panels));
        else
            column_task(j, s, at);
    }
    if (j->threads > 1) smelt_barrier();
}

/* How many panels of the shared operand, and how much of k, one pass packs. */
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
    return (block){0, up(panels, up(panels, count)), 0, length};
}

static void run(void *data) {
    job *j = data;
    const int thread = j->threads > 1 ? smelt_thread_index() : 0;
    const block size = block_sizes(j);
    const int64_t panels = j->b_shared ? j->column_panels : j->row_panels;
    for (int64_t first = 0; first < panels; first += size.last)
        for (int64_t k = 0; k < j->g.k; k += size.length) {
            const block s = {first, least(first + size.last, panels), k, least(size.length, j->g.k - k)};
            run_block(j, &s, thread);
        }
}

static size_t shared_floats(const job *j) {
    const block size = block_sizes(j);
    return (size_t)(size.last * (j->b_shared ? j->columns : j->short_rows + 1) * size.length + 16);
}

/* --- whole call ------------------------------------------------------------------------------------------------- */

/* C = bias, or C += bias, or C = 0: what is left when k is 0, and the start when bias does not run along vectors. */
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

static job prepare(const smelt_gemm *g, const smelt_isa *isa, int threads) {
    job j = {.g = *g, .isa = isa, .columns = 2 * isa->vector, .threads = threads};
    j.row_panels = up(g->m, isa->rows);
    j.short_rows = g->m / j.row_panels;
    j.long_panels = g->m % j.row_panels;
    j.column_panels = up(g->n, j.columns);
    j.b_shared = g->m > g->n;
    j.b_direct = !j.b_shared && g->b_column == 1 && j.row_panels <= DIRECT_PANELS;
    return j;
}

typedef struct {
    job j;
    const float *a, *b;
    float *c;
    int threads;
    int64_t next;
} many;

/* Each thread multiplies whole matrices of the batch. */
static void run_batch(void *data) {
    many *all = data;
    job j = all->j;
    j.threads = 1;
    j.shared = reserve(&shared_buffer, shared_floats(&j));
    for (;;) {
        const int64_t i = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED);
        if (i >= j.g.batch) break;
        j.a = all->a + i * j.g.a_batch;
        j.b = all->b + i * j.g.b_batch;
        j.c = all->c + i * j.g.c_batch;
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
    int threads = work * g.batch <= SERIAL ? 1 : smelt_threads_max();
    many all = {.j = prepare(&g, isa_in_use(), threads), .a = a, .b = b, .c = c};
    all.j.bias = bias;
    if (threads == 1 || (g.batch >= threads && (g.batch % threads == 0 || g.batch >= 4 * threads))) {
        smelt_parallel(run_batch, &all, threads);
        return;
    }
    job *j = &all.j;
    j->shared = reserve(&shared_buffer, shared_floats(j));
    for (int64_t i = 0; i < g.batch; i++) {
        j->a = a + i * g.a_batch;
        j->b = b + i * g.b_batch;
        j->c = c + i * g.c_batch;
        smelt_parallel(run, j, threads);
    }
}

/* The minimum cut of a network, by Dinic's algorithm: augmenting paths in phases, each for one shortest length.
 *
 * The partition computes one or a few cuts per graph, of networks of some thousand edges. A library for sparse graphs
 * would compute the same cuts, but importing it takes more time and memory than importing the whole compiler. */
#define PY_SSIZE_T_CLEAN
#include "excluding.h"
#include "memory_marks.h"
#include <stdint.h>
#include <string.h>

typedef struct {
    int32_t nodes, source, sink;
    int32_t *first;  /* node -> its arcs in `arcs`: [first[n], first[n + 1]) */
    int32_t *arcs;   /* arc numbers: edge e is arc 2e, its reverse is arc 2e + 1 */
    int32_t *to;     /* arc -> the node that it leads to */
    int64_t *left;   /* arc -> residual capacity */
    int32_t *level;  /* node -> number of arcs on a shortest path from the source; -1: not reached */
    int32_t *next;   /* node -> the first of its arcs that is not exhausted in this phase */
    int32_t *queue;  /* nodes to visit, or the arcs of a path */
} network;

/* Sorts the arcs by the node that they leave. */
static void collect(network *g, int32_t edges) {
    memset(g->first, 0, ((size_t)g->nodes + 1) * sizeof *g->first);
    for (int32_t a = 0; a < 2 * edges; a++) g->first[g->to[a ^ 1] + 1]++;
    for (int32_t n = 0; n < g->nodes; n++) g->first[n + 1] += g->first[n];
    memcpy(g->next, g->first, (size_t)g->nodes * sizeof *g->next);
    for (int32_t a = 0; a < 2 * edges; a++) g->arcs[g->next[g->to[a ^ 1]]++] = a;
}

/* Computes each node's level, its distance from the source; returns whether the sink is reached. */
static int measure_levels(network *g) {
    int32_t begin = 0, end = 0;
    memset(g->level, -1, (size_t)g->nodes * sizeof *g->level);
    g->level[g->source] = 0;
    g->queue[end++] = g->source;
    while (begin < end) {
        const int32_t n = g->queue[begin++];
        for (int32_t i = g->first[n]; i < g->first[n + 1]; i++) {
            const int32_t a = g->arcs[i], m = g->to[a];
            if (g->left[a] > 0 && g->level[m] < 0) {
                g->level[m] = g->level[n] + 1;
                g->queue[end++] = m;
            }
        }
    }
    return g->level[g->sink] >= 0;
}

/* An arc of `n` that leads to the next level, or -1 if none is left. */
static int32_t step_of(network *g, int32_t n) {
    for (; g->next[n] < g->first[n + 1]; g->next[n]++) {
        const int32_t a = g->arcs[g->next[n]];
        if (g->left[a] > 0 && g->level[g->to[a]] == g->level[n] + 1) return a;
    }
    return -1;
}

/* Sends the largest possible flow along the path of `length` arcs in the queue; returns the index of its first full
 * arc. */
static int32_t push(network *g, int32_t length) {
    int64_t least = INT64_MAX;
    for (int32_t i = 0; i < length; i++)
        if (g->left[g->queue[i]] < least) least = g->left[g->queue[i]];
    int32_t full = length;
    for (int32_t i = length - 1; i >= 0; i--) {
        const int32_t a = g->queue[i];
        g->left[a] -= least;
        g->left[a ^ 1] += least;
        if (!g->left[a]) full = i;
    }
    return full;
}

/* Sends flow along shortest paths until no path of this length is left. */
static void fill_paths(network *g) {
    memcpy(g->next, g->first, (size_t)g->nodes * sizeof *g->next);
    int32_t n = g->source, length = 0;
    for (;;) {
        if (n == g->sink) {
            length = push(g, length);
            n = g->to[g->queue[length] ^ 1];
        }
        const int32_t a = step_of(g, n);
        if (a >= 0) {
            g->queue[length++] = a;
            n = g->to[a];
        } else if (length) { /* a dead end: go back by one arc, which is exhausted */
            n = g->to[g->queue[--length] ^ 1];
            g->next[n]++;
        } else {
            return;
        }
    }
}

/* Sets reaches[n] if n can still send flow to the sink. These nodes define the minimum cut nearest to the sink. */
static void mark_sink_side(network *g, char *reaches) {
    int32_t begin = 0, end = 0;
    memset(reaches, 0, (size_t)g->nodes);
    reaches[g->sink] = 1;
    g->queue[end++] = g->sink;
    while (begin < end) {
        const int32_t n = g->queue[begin++];
        for (int32_t i = g->first[n]; i < g->first[n + 1]; i++) {
            const int32_t a = g->arcs[i], m = g->to[a];
            if (g->left[a ^ 1] > 0 && !reaches[m]) {
                reaches[m] = 1;
                g->queue[end++] = m;
            }
        }
    }
}

static int is_network(const network *g, const int32_t *tails, const int32_t *heads, const int64_t *costs, int32_t n) {
    if (g->nodes < 2 || g->source < 0 || g->sink < 0 || g->source >= g->nodes || g->sink >= g->nodes) return 0;
    if (g->source == g->sink) return 0;
    for (int32_t i = 0; i < n; i++)
        if (tails[i] < 0 || heads[i] < 0 || tails[i] >= g->nodes || heads[i] >= g->nodes || costs[i] < 0 ||
            costs[i] > INT64_MAX / 2)
            return 0;
    return 1;
}

static int allocate(network *g, int32_t edges) {
    const size_t nodes = (size_t)g->nodes, arcs = 2 * (size_t)edges;
    g->left = PyMem_Malloc(arcs * sizeof *g->left + (5 * nodes + 1 + 2 * arcs) * sizeof(int32_t));
    if (!g->left) return 0;
    g->to = (int32_t *)(g->left + arcs);
    g->arcs = g->to + arcs;
    g->first = g->arcs + arcs;
    g->level = g->first + nodes + 1;
    g->next = g->level + nodes;
    g->queue = g->next + nodes;
    return 1;
}

static PyObject *cut(network *g, const int32_t *tails, const int32_t *heads, const int64_t *costs, int32_t edges) {
    PyObject *result = PyBytes_FromStringAndSize(NULL, g->nodes);
    if (!result) return NULL;
    if (!allocate(g, edges)) {
        Py_DECREF(result);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (int32_t e = 0; e < edges; e++) {
        g->to[2 * e] = heads[e];
        g->to[2 * e + 1] = tails[e];
        g->left[2 * e] = costs[e];
        g->left[2 * e + 1] = 0;
    }
    collect(g, edges);
    while (measure_levels(g)) fill_paths(g);
    mark_sink_side(g, PyBytes_AS_STRING(result));
    Py_END_ALLOW_THREADS
    PyMem_Free(g->left);
    return result;
}

static PyObject *minimum_cut(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer tails, heads, costs;
    network g = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*iii", &tails, &heads, &costs, &g.nodes, &g.source, &g.sink)) return NULL;
    PyObject *result = NULL;
    const Py_ssize_t edges = tails.len / (Py_ssize_t)sizeof(int32_t);
    if (edges >= INT32_MAX / 2 || heads.len != tails.len || costs.len != edges * (Py_ssize_t)sizeof(int64_t) ||
        !is_network(&g, tails.buf, heads.buf, costs.buf, (int32_t)edges))
        PyErr_SetString(PyExc_ValueError, "no network");
    else
        result = cut(&g, tails.buf, heads.buf, costs.buf, (int32_t)edges);
    PyBuffer_Release(&tails);
    PyBuffer_Release(&heads);
    PyBuffer_Release(&costs);
    return result;
}

static PyMethodDef methods[] = {
    {"minimum_cut", minimum_cut, METH_VARARGS,
     "minimum_cut(tails, heads, costs, nodes, source, sink) -> a byte for each node, 1 where it is on the sink's side"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "smelt.autograd._native", NULL, -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddFunctions(module, excluding_methods) < 0 ||
                   PyModule_AddFunctions(module, memory_marks_methods) < 0 || PyModule_AddType(module, &ExcludingType) < 0))
        Py_CLEAR(module);
    return module;
}

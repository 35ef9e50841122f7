/* ResumePoint: an instruction of a code object at which execution continues after a graph break. It is a compile site
 * with its own entries. */
#include "native.h"
#include <structmember.h>

/* A copy of `code` without parameters, whose frames have the layout of the original's. */
PyCodeObject *code_without_arguments(PyCodeObject *code) {
    PyObject *replace = PyObject_GetAttrString((PyObject *)code, "replace"), *empty = PyTuple_New(0), *copy = NULL;
    PyObject *changes = Py_BuildValue("{s:i,s:i,s:i,s:i}", "co_argcount", 0, "co_posonlyargcount", 0,
                                      "co_kwonlyargcount", 0, "co_flags",
                                      code->co_flags & ~(CO_VARARGS | CO_VARKEYWORDS));
    if (replace && empty && changes) copy = PyObject_Call(replace, empty, changes);
    Py_XDECREF(replace);
    Py_XDECREF(empty);
    Py_XDECREF(changes);
    return (PyCodeObject *)copy;
}

static PyObject *resume_point_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"code", "offset", "depth", NULL};
    PyCodeObject *code;
    int offset;
    Py_ssize_t depth;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!in", names, &PyCode_Type, &code, &offset, &depth)) return NULL;
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR) || !(code->co_flags & CO_OPTIMIZED))
        return PyErr_Format(PyExc_ValueError, "%U is not the code of an ordinary function", code->co_name);
    if (offset < 0 || offset >= Py_SIZE(code) * 2 || offset % 2 || depth < 0 || depth > code->co_stacksize)
        return PyErr_Format(PyExc_ValueError, "offset %d or stack depth %zd outside %U", offset, depth, code->co_name);
    ResumePoint *self = (ResumePoint *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->code = (PyCodeObject *)Py_NewRef((PyObject *)code);
    self->injected = code_without_arguments(code);
    self->offset = offset;
    self->depth = depth;
    self->site.arity = code->co_nlocalsplus + depth;
    site_link(&self->site);
    CompileSite *pinned = self->injected ? site_make(self->injected) : NULL;
    if (pinned) pinned->skipped = PINNED;
    else Py_CLEAR(self);
    return (PyObject *)self;
}

static int resume_point_traverse(ResumePoint *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; i < self->site.count; i++) {
        if (!self->site.entries[i]->borrowed) Py_VISIT(self->site.entries[i]);
    }
    Py_VISIT(self->function);
    return 0;
}

static int resume_point_clear(ResumePoint *self) {
    site_clear(&self->site);
    Py_CLEAR(self->function);
    return 0;
}

static void resume_point_dealloc(ResumePoint *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) PyObject_ClearWeakRefs((PyObject *)self);
    site_unlink(&self->site);
    resume_point_clear(self);
    Py_CLEAR(self->code);
    Py_CLEAR(self->injected);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *resume_point_repr(ResumePoint *self) {
    return PyUnicode_FromFormat("ResumePoint(%U, offset=%d, depth=%zd)", self->code->co_name, self->offset,
                                self->depth);
}

static PyMemberDef resume_point_members[] = {
    {"code", T_OBJECT, offsetof(ResumePoint, code), READONLY, NULL},
    {"offset", T_INT, offsetof(ResumePoint, offset), READONLY, NULL},
    {"depth", T_PYSSIZET, offsetof(ResumePoint, depth), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
PyTypeObject ResumePointType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "smelt.capture._native.ResumePoint",
    .tp_doc = "ResumePoint(code, offset, depth): where execution continues after a graph break",
    .tp_basicsize = sizeof(ResumePoint),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = resume_point_new,
    .tp_dealloc = (destructor)resume_point_dealloc,
    .tp_traverse = (traverseproc)resume_point_traverse,
    .tp_clear = (inquiry)resume_point_clear,
    .tp_repr = (reprfunc)resume_point_repr,
    .tp_members = resume_point_members,
    .tp_weaklistoffset = offsetof(ResumePoint, weakrefs),
};

/* Calls programs with excluded dispatch keys; see excluding.c. */
#ifndef SMELT_EXCLUDING_H
#define SMELT_EXCLUDING_H
#include <Python.h>

extern PyTypeObject ExcludingType;
extern PyMethodDef excluding_methods[];
#endif

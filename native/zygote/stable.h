/* The part of Python's stable ABI that is used here, declared by hand: the build needs no Python, and the
 * result loads in every CPython from 3.7 on that has the usual object header (not free-threaded, not built
 * with Py_TRACE_REFS: the driver refuses those before it loads this). Names and layouts are the interpreter's.
 * https://docs.python.org/3/c-api/stable.html */
#ifndef SKERRY_ZYGOTE_STABLE_H
#define SKERRY_ZYGOTE_STABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct PyObject {
	intptr_t refcnt;
	void *type;
} PyObject;

typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *args);

typedef struct {
	const char *name;
	PyCFunction function;
	int flags;
	const char *doc;
} PyMethodDef;

typedef struct {
	PyObject object;
	PyObject *(*init)(void);
	intptr_t index;
	PyObject *copy;
	const char *name, *doc;
	intptr_t size;
	PyMethodDef *methods;
	void *slots, *traverse, *clear, *release;
} PyModuleDef;

typedef struct PyThreadState PyThreadState;

enum { METH_VARARGS = 1, METH_NOARGS = 4, METH_O = 8, PYTHON_ABI_VERSION = 3 };

PyObject *PyModule_Create2(PyModuleDef *def, int version);
int PyArg_ParseTuple(PyObject *args, const char *format, ...);
PyObject *PyErr_Format(PyObject *exception, const char *format, ...);
int PyErr_CheckSignals(void);
void PyErr_Print(void);
void PyErr_Clear(void);
void PyErr_Fetch(PyObject **type, PyObject **value, PyObject **traceback);
void PyErr_Restore(PyObject *type, PyObject *value, PyObject *traceback);
void PyErr_NormalizeException(PyObject **type, PyObject **value, PyObject **traceback);
PyObject *PyErr_Occurred(void);
PyObject *PyObject_CallObject(PyObject *callable, PyObject *args);
PyObject *PyObject_GetAttrString(PyObject *object, const char *name);
PyObject *PyLong_FromLong(long value);
long PyLong_AsLong(PyObject *object);
intptr_t PyTuple_Size(PyObject *tuple);
PyObject *PyTuple_GetItem(PyObject *tuple, intptr_t index);
void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

extern PyObject *PyExc_OSError;
extern PyObject *PyExc_ValueError;
extern PyObject _Py_NoneStruct;

#endif

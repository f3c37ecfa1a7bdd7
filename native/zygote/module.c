/* What Python sees of it: the module skerry_zygote. */
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>

#include "sys.h"
#include "zygote.h"

/* Of the C library that the interpreter has loaded; weak, so that this module asks for none. */
__attribute__((weak)) int fflush(void *stream);
__attribute__((weak)) void *dlopen(const char *path, int mode);
__attribute__((weak)) void *dlsym(void *library, const char *name);
enum { LAZY = 1, NOLOAD = 4, SETTERS_MAX = 8 };

static void (*setters[SETTERS_MAX])(int);
static size_t setter_count;

static PyObject *none(void)
{
	Py_IncRef(&_Py_NoneStruct);
	return &_Py_NoneStruct;
}

static PyObject *py_begin(PyObject *self, PyObject *args)
{
	int talk = -1, error;

	(void)self;
	if (!PyArg_ParseTuple(args, "i", &talk))
		return NULL;
	error = zygote_begin(talk);
	return error ? PyErr_Format(PyExc_OSError, "descriptor %d: errno %d", talk, -error) : none();
}

static int held_take(PyObject *held)
{
	intptr_t count = PyTuple_Size(held);

	if (count < 0)
		return -1;
	if (count > HELD_MAX) {
		PyErr_Format(PyExc_ValueError, "modules hold %ld descriptors, at most %d", (long)count, HELD_MAX);
		return -1;
	}
	for (intptr_t i = 0; i < count; i++) {
		long fd = PyLong_AsLong(PyTuple_GetItem(held, i));

		if (fd < CALL_STDIO || (i && fd <= zygote.held[i - 1])) {
			if (!PyErr_Occurred())
				PyErr_Format(PyExc_ValueError, "descriptor %ld: low, or not in order", fd);
			return -1;
		}
		zygote.held[i] = (int)fd;
	}
	zygote.held_count = (size_t)count;
	return 0;
}

static PyObject *py_serve(PyObject *self, PyObject *args)
{
	PyObject *fork, *held;
	uint32_t number = 0;
	long null;
	int error;

	(void)self;
	if (!PyArg_ParseTuple(args, "OO", &fork, &held) || held_take(held))
		return NULL;
	/* These numbers stay taken: what comes with a call lies above them. */
	null = SYS4(openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
	if (null < 0 || SYS3(dup3, null, ZYGOTE_FD_SCRIPT, O_CLOEXEC) < 0 ||
	    SYS3(dup3, null, ZYGOTE_FD_RESULT, O_CLOEXEC) < 0)
		return PyErr_Format(PyExc_OSError, "/dev/null: errno %d", (int)-null);
	if (null > ZYGOTE_FD_RESULT)
		SYS1(close, null);
	/* It holds capabilities that nothing else with its user id has: nobody looks into it. */
	SYS5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
	error = tell(Z_READY, 0, NULL, 0, NULL);
	if (error)
		return PyErr_Format(PyExc_OSError, "the agent is gone: errno %d", -error);
	if (zygote_serve(fork, &number))
		return PyLong_FromLong((long)number);
	return PyErr_Occurred() ? NULL : none();
}

static PyObject *py_flush(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	if (fflush)
		fflush(NULL);
	return none();
}

static PyObject *py_leave(PyObject *self, PyObject *args)
{
	int code = 1;

	(void)self;
	if (!PyArg_ParseTuple(args, "i", &code))
		return NULL;
	if (fflush)
		fflush(NULL);
	for (;;)
		SYS1(exit_group, code);
}

/* Remembers a function void NAME(int) of a library that is loaded already; whether there is one. */
static PyObject *py_setter(PyObject *self, PyObject *args)
{
	const char *path, *name;
	void *library, *found;

	(void)self;
	if (!PyArg_ParseTuple(args, "ss", &path, &name))
		return NULL;
	library = dlopen && dlsym && setter_count < SETTERS_MAX ? dlopen(path, LAZY | NOLOAD) : NULL;
	found = library ? dlsym(library, name) : NULL;
	if (found)
		setters[setter_count++] = (void (*)(int))(uintptr_t)found;
	return PyLong_FromLong(found != NULL);
}

static PyObject *py_threads(PyObject *self, PyObject *args)
{
	int count = 0;

	(void)self;
	if (!PyArg_ParseTuple(args, "i", &count))
		return NULL;
	for (size_t i = 0; i < setter_count; i++)
		setters[i](count);
	return none();
}

static PyMethodDef methods[] = {
	{"begin", py_begin, METH_VARARGS, "begin(fd): takes the agent's end of the conversation over."},
	{"serve", py_serve, METH_VARARGS,
	 "serve(fork, held): says READY and serves. Returns the number of the call in a child that is in its "
	 "cell and without privilege, None in the zygote when the agent is gone."},
	{"flush", py_flush, METH_NOARGS, "flush(): writes out what C code has buffered."},
	{"leave", py_leave, METH_VARARGS, "leave(code): flush(), then ends the process at once."},
	{"setter", py_setter, METH_VARARGS, "setter(path, name): remembers void NAME(int) of a loaded library."},
	{"threads", py_threads, METH_VARARGS, "threads(count): calls what setter() has found."},
	{NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
	.object = {.refcnt = 1},
	.name = "skerry_zygote",
	.doc = "The zygote's part in C: native/zygote/README.md.",
	.size = -1,
	.methods = methods,
};

__attribute__((visibility("default"))) PyObject *PyInit_skerry_zygote(void);

PyObject *PyInit_skerry_zygote(void)
{
	return PyModule_Create2(&definition, PYTHON_ABI_VERSION);
}

/* The zygote's part in C: an extension module of the interpreter that has imported the modules.
 *
 *	module.c  what Python sees		serve.c  waiting: calls, ends of children
 *	enter.c   the child, until it has no privilege any more
 *	call.c    a CALL packet (no state)	sys.c    instead of a C library
 *	talk.h    the conversation with the agent
 *
 * One interpreter, one thread, no allocation: what a peer can make grow is a table of fixed size. */
#ifndef SKERRY_ZYGOTE_H
#define SKERRY_ZYGOTE_H

#include "call.h"
#include "stable.h"

enum { HELD_MAX = 64 };

struct child {
	long pid;
	int pidfd; /* negative: it is asked for from time to time */
	uint32_t number;
};

extern struct zygote {
	int talk;    /* -1 before begin() */
	int own_pid; /* the pid namespace in which it was started */
	uint64_t bounding; /* capabilities that are still in the bounding set */
	size_t children;
	struct child child[ZYGOTE_CALLS_MAX];
	size_t held_count;
	int held[HELD_MAX]; /* in rising order: descriptors of modules, which no call may have */
} zygote;

/* 0 or a negative errno value. */
int zygote_begin(int talk);
int tell(uint8_t type, uint32_t number, const struct call_use *values, size_t count, const char *step);
int tell_failed(uint32_t number, const char *step, int error);

/* Waits; calls `fork` for each call. True in a child that is in its cell; false at the end of the
 * conversation, or, with an exception set, when a signal's handler has raised one. */
int zygote_serve(PyObject *fork, uint32_t *number);

/* In the child: becomes what the call says. 0, or a negative errno value with the step that failed. */
int enter(const struct call *call, const int *fd, const char **step);

#endif

/* The event loop: descriptors, deadlines and short-lived helper processes (jobs). One thread. */
#ifndef SKERRY_LOOP_H
#define SKERRY_LOOP_H

#include "sys.h"

/* Descriptors held for long live from FD_HIGH on. A child shares the table at first and leaves with the
 * part below: its start does not copy, and then close, thousands of them. */
enum { DEADLINE_S = 10, FD_HIGH = 256 };

struct loop;

struct watch {
	int fd; /* -1: not watched */
	void (*ready)(struct watch *w, uint32_t events);
};

/* All deadlines are equally long: the list is ordered by itself. */
struct timer {
	uint64_t at_ns; /* 0: not set */
	struct timer *prev, *next;
	void (*fire)(struct timer *t);
};

struct loop {
	int epoll;
	unsigned base; /* descriptors below are the launcher's own and stay in children */
	bool stop;
	struct timer timers; /* head of the ring */
};

int loop_init(struct loop *l);
int loop_watch(struct loop *l, struct watch *w, int fd, uint32_t events);
/* Forgets and closes the descriptor. */
void loop_close(struct loop *l, struct watch *w);
void timer_set(struct loop *l, struct timer *t, void (*fire)(struct timer *));
void timer_clear(struct timer *t);
/* Moves a descriptor up; it is closed on failure. */
int fd_high(int fd);
/* For a child made with CLONE_FILES: its own table, with the base, those named, and no others. */
int fds_keep(const struct loop *l, int *keep, unsigned count);
/* Runs until l->stop. */
void loop_run(struct loop *l);

/* What a job's process reports, with up to two descriptors. */
struct job_result {
	int error; /* negative errno or 0 */
	char step[16];
	uint64_t value;
	int fds[2]; /* -1: none */
};

struct job {
	struct loop *loop;
	struct watch watch; /* pidfd */
	struct timer timer;
	unsigned terms; /* deadlines that may still pass */
	bool expired;
	int channel, far; /* both ends: the child shares the table when it starts */
	void (*done)(struct job *j, struct job_result *r);
	void *owner;
};

/* Runs `work` in a child process and `done` when it has ended; the job is freed afterwards. It may take
 * as many deadlines as `terms` says, with 0 for ever. `work` fills the result and returns its error. */
int job_start(struct loop *l, int (*work)(void *arg, struct job_result *r), void *arg,
	      void (*done)(struct job *, struct job_result *), void *owner, unsigned terms);
/* For `work`: notes the step and hands the error on. */
int job_fail(struct job_result *r, const char *step, int error);

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

#endif

/* The epoll loop, clocks, and the order of work within one turn. */
#include "cell.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 32, QUIET_MS = 5000 };

static int epoll_fd = -1;
static struct source signals = {.fd = -1};
static bool child_pending OWN;

void source_open(struct source *src, int fd, void (*ready)(struct source *, uint32_t))
{
	*src = (struct source){.fd = fd, .ready = ready};
}

void source_watch(struct source *src, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = src};
	int how = !events ? EPOLL_CTL_DEL : src->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

	if (src->events == events || src->fd < 0)
		return;
	if (!epoll_ctl(epoll_fd, how, src->fd, &e))
		src->events = events;
}

int source_take(struct source *src)
{
	int fd = src->fd;

	source_watch(src, 0);
	src->fd = -1;
	return fd;
}

void source_close(struct source *src)
{
	int fd = source_take(src);

	if (fd >= 0)
		close(fd);
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now_ms(void)
{
	return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

uint64_t realtime_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

void pages_free(uint8_t *buffer, size_t size, size_t keep)
{
	uintptr_t page = 4096, from = ((uintptr_t)buffer + keep + page - 1) & ~(page - 1);
	uintptr_t to = ((uintptr_t)buffer + size) & ~(page - 1);

	if (from < to)
		madvise((void *)from, to - from, MADV_DONTNEED);
}

static void signals_ready(struct source *src, uint32_t events)
{
	struct signalfd_siginfo info[8];

	(void)events;
	while (read(src->fd, info, sizeof(info)) == sizeof(info))
		; /* fewer: no more */
	child_pending = true;
}

/* Everything is blocked: PID 1 has nothing to fear from inside, and SIGPIPE becomes EPIPE.
 * Dispositions go back to their defaults here, once, so that no child has to do it. */
static void signals_init(void)
{
	/* The kernel's struct sigaction, all of it zero: SIG_DFL. The library's own call refuses the
	 * signals that it keeps for itself (32 to 34), which a parent may well have ignored. */
	static const unsigned long dfl[4];
	sigset_t all, child;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	for (int s = 1; s <= 64; s++)
		syscall(SYS_rt_sigaction, s, dfl, NULL, 8); /* refused for KILL and STOP: fine */
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	source_open(&signals, signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK), signals_ready);
	source_watch(&signals, EPOLLIN);
}

void loop_init(void)
{
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	signals_init();
}

/* As PID 1 we are everybody's parent in the end: all that dies is waited for here. */
static void reap(void)
{
	struct rusage used;
	int status;
	pid_t pid;

	while ((pid = wait4(-1, &status, WNOHANG, &used)) > 0) {
		uint64_t us = (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 +
			      (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);

		if (!cell_child_ended(pid))
			op_child_ended(pid, status, us);
	}
	group_child_ended();
}

static int wait_time(void)
{
	uint64_t next = op_next_timer(), other = conn_next_timer(), now;

	next = other < next ? other : next;
	other = cells_next_timer();
	next = other < next ? other : next;
	other = group_retry_at();
	next = other < next ? other : next;
	if (next == NEVER)
		return group_spares() ? QUIET_MS : -1;
	now = now_ms();
	if (next <= now)
		return 0;
	return next - now < 60000 ? (int)(next - now) : 60000;
}

static void timers(void)
{
	uint64_t now = now_ms();

	op_timers(now);
	conn_timers(now);
	cells_timers(now);
	if (group_retry_at() <= now)
		group_retry();
}

void loop_run(void)
{
	struct epoll_event events[BATCH];

	for (;;) {
		int wait = wait_time(), n = epoll_wait(epoll_fd, events, BATCH, wait);

		if (!n && wait == QUIET_MS)
			group_quiet();
		for (int i = 0; i < n; i++) {
			struct source *src = events[i].data.ptr;

			/* One that was closed by an earlier event of this batch has no events. */
			if (src->events)
				src->ready(src, events[i].events);
		}
		if (child_pending) {
			child_pending = false;
			reap();
		}
		timers();
		send_pump();
	}
}

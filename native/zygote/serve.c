/* Waiting: for calls, and for the ends of those that run. */
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "frames.h"
#include "sys.h"
#include "zygote.h"

enum { ASK_AGAIN_NS = 50 * 1000 * 1000, HIGH = 64 };

struct zygote zygote = {.talk = -1, .own_pid = -1};

int zygote_begin(int talk)
{
	long high = SYS3(fcntl, talk, F_DUPFD_CLOEXEC, HIGH);

	if (high == -EINVAL) /* so low a limit of descriptors */
		high = SYS3(fcntl, talk, F_DUPFD_CLOEXEC, ZYGOTE_FD_TALK + 1);
	if (high < 0)
		return (int)high;
	SYS1(close, talk);
	zygote.talk = (int)high;
	zygote.own_pid = (int)SYS4(openat, AT_FDCWD, "/proc/self/ns/pid", O_RDONLY | O_CLOEXEC, 0);
	if (zygote.own_pid < 0)
		return zygote.own_pid;
	for (int cap = 0; cap < 64; cap++) {
		long has = SYS5(prctl, PR_CAPBSET_READ, cap, 0, 0, 0);

		if (has < 0)
			break;
		zygote.bounding |= (uint64_t)has << cap;
	}
	return 0;
}

int tell(uint8_t type, uint32_t number, const struct call_use *values, size_t count, const char *step)
{
	uint8_t packet[FRAME_HEADER + 256];
	struct builder b;
	long sent;

	build_init(&b, packet + FRAME_HEADER, sizeof(packet) - FRAME_HEADER);
	for (size_t i = 0; i < count; i++)
		build_u64(&b, (uint8_t)values[i].tag, values[i].value);
	if (step)
		build_text(&b, Z_STEP, step);
	frame_encode(packet, &(struct frame){.type = type, .stream = number, .length = (uint32_t)b.used});
	do
		sent = sys(SYS_sendto, zygote.talk, (long)packet, (long)(FRAME_HEADER + b.used), MSG_NOSIGNAL, 0);
	while (sent == -EINTR);
	return sent < 0 ? (int)sent : 0;
}

int tell_failed(uint32_t number, const char *step, int error)
{
	const struct call_use errno_value = {Z_ERRNO, (uint64_t)-error};

	return tell(Z_FAILED, number, &errno_value, 1, step);
}

/* --- children ------------------------------------------------------------------------------------- */

static uint64_t usec(const struct timeval *t)
{
	return (uint64_t)t->tv_sec * 1000000 + (uint64_t)t->tv_usec;
}

static void child_remember(uint32_t number, long pid)
{
	zygote.child[zygote.children++] = (struct child){
		.pid = pid, .number = number, .pidfd = (int)SYS2(pidfd_open, pid, 0)};
}

/* True if it is no longer there. */
static int child_reap(const struct child *c)
{
	struct rusage used;
	int status = 0;
	long got = SYS4(wait4, c->pid, &status, WNOHANG, &used);
	struct call_use values[] = {
		{Z_PID, (uint64_t)c->pid},
		{Z_STATUS, (uint32_t)status},
		{Z_CPU_US, usec(&used.ru_utime) + usec(&used.ru_stime)},
		{Z_PEAK, (uint64_t)used.ru_maxrss << 10},
	};

	if (!got || got == -EINTR)
		return 0;
	if (got < 0) /* a module's code has waited for it */
		values[1].value = 127 << 8, values[2].value = values[3].value = 0;
	tell(Z_ENDED, c->number, values, sizeof(values) / sizeof(*values), NULL);
	if (c->pidfd >= 0)
		SYS1(close, c->pidfd);
	return 1;
}

static void children_reap(const struct pollfd *polled)
{
	size_t kept = 0;

	for (size_t i = 0; i < zygote.children; i++) {
		struct child *c = &zygote.child[i];

		if ((c->pidfd >= 0 && !polled[i].revents) || !child_reap(c))
			zygote.child[kept++] = *c;
	}
	zygote.children = kept;
}

/* --- packets -------------------------------------------------------------------------------------- */

struct packet {
	struct call call;
	int fd[ZYGOTE_FDS_MAX];
	size_t fds;
};

static void packet_close(const struct packet *p)
{
	for (size_t i = 0; i < p->fds; i++)
		SYS1(close, p->fd[i]);
}

static void descriptors_take(const struct msghdr *m, const unsigned char *control, struct packet *p)
{
	size_t at = 0;

	p->fds = 0;
	while (m->msg_controllen >= at + sizeof(struct cmsghdr)) {
		const struct cmsghdr *c = (const void *)(control + at);
		size_t count = (c->cmsg_len - sizeof(*c)) / sizeof(int);
		const int *fd = (const void *)(c + 1);

		if (c->cmsg_len < sizeof(*c) || c->cmsg_len > m->msg_controllen - at)
			break;
		for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && i < count; i++) {
			if (p->fds < ZYGOTE_FDS_MAX)
				p->fd[p->fds++] = fd[i];
			else
				SYS1(close, fd[i]);
		}
		at += (c->cmsg_len + 7) & ~(size_t)7;
	}
}

/* 1: a call; 0: the conversation is over; negative: a packet that is no call, and has been answered. */
static int packet_receive(struct packet *p)
{
	static uint8_t bytes[ZYGOTE_PACKET_MAX];
	static unsigned char control[256 + ZYGOTE_FDS_MAX * sizeof(int)] __attribute__((aligned(8)));
	struct iovec v = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
			   .msg_controllen = sizeof(control)};
	long n = SYS3(recvmsg, zygote.talk, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	int error;

	p->fds = 0;
	if (n == -EAGAIN || n == -EINTR)
		return -EAGAIN;
	if (n <= 0)
		return 0;
	descriptors_take(&m, control, p);
	error = call_parse(bytes, (size_t)n, &p->call);
	if (!error && p->fds != p->call.uses)
		error = m.msg_flags & MSG_CTRUNC ? -EMFILE : -EPROTO;
	if (!error && zygote.children == ZYGOTE_CALLS_MAX)
		error = -EAGAIN;
	if (error) {
		tell_failed(p->call.number, "call", error);
		packet_close(p);
	}
	return error ? error : 1;
}

/* --- a call --------------------------------------------------------------------------------------- */

/* The errno of the exception that is set, which is taken away. */
static int exception_errno(void)
{
	PyObject *type = NULL, *value = NULL, *traceback = NULL, *number;
	long error;

	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	number = value ? PyObject_GetAttrString(value, "errno") : NULL;
	error = number ? PyLong_AsLong(number) : -1;
	PyErr_Clear();
	if (number)
		Py_DecRef(number);
	if (error > 0 && error < 4096) {
		Py_DecRef(type);
		if (value)
			Py_DecRef(value);
		if (traceback)
			Py_DecRef(traceback);
		return (int)-error;
	}
	PyErr_Restore(type, value, traceback); /* not of the system: a module's code runs at forks, too */
	PyErr_Print();
	return -EIO;
}

static int birth_place(const struct packet *p)
{
	for (size_t i = 0; i < p->call.uses; i++)
		if (p->call.use[i].tag == Z_JOIN && p->call.use[i].value & CLONE_NEWPID)
			return (int)SYS2(setns, p->fd[i], CLONE_NEWPID);
	return 0;
}

/* The fork is Python's own: what Python and the C library do about forks is done. The pid, 0 in the child. */
static long fork_call(PyObject *fork)
{
	PyObject *result = PyObject_CallObject(fork, NULL);
	long pid;

	if (!result)
		return exception_errno();
	pid = PyLong_AsLong(result);
	Py_DecRef(result);
	return pid < 0 ? -EIO : pid;
}

/* True in the child that has entered its cell. */
static int packet_run(const struct packet *p, PyObject *fork)
{
	const char *step = "join";
	long pid = birth_place(p);

	if (!pid) {
		step = "fork";
		pid = fork_call(fork);
		if (!pid) {
			int error = enter(&p->call, p->fd, &step);

			if (!error)
				return 1;
			tell_failed(p->call.number, step, error);
			for (;;)
				SYS1(exit_group, 127);
		}
		/* Not to be born into the next one's by mistake, and not to keep this one alive. */
		SYS2(setns, zygote.own_pid, CLONE_NEWPID);
	}
	packet_close(p);
	if (pid < 0)
		tell_failed(p->call.number, step, (int)pid);
	else
		child_remember(p->call.number, pid);
	return 0;
}

/* --- the loop ------------------------------------------------------------------------------------- */

static long wait_for(struct pollfd *polled)
{
	struct timespec again = {.tv_nsec = ASK_AGAIN_NS};
	PyThreadState *state;
	int asks = 0;
	long n;

	for (size_t i = 0; i < zygote.children; i++) {
		polled[i] = (struct pollfd){.fd = zygote.child[i].pidfd, .events = POLLIN};
		asks |= zygote.child[i].pidfd < 0;
	}
	polled[zygote.children] = (struct pollfd){.fd = zygote.talk, .events = POLLIN};
	state = PyEval_SaveThread();
	n = SYS5(ppoll, polled, zygote.children + 1, asks ? &again : NULL, NULL, 0);
	PyEval_RestoreThread(state);
	return n;
}

int zygote_serve(PyObject *fork, uint32_t *number)
{
	static struct packet packet;
	static struct pollfd polled[ZYGOTE_CALLS_MAX + 1];

	for (;;) {
		long n = wait_for(polled);
		int talks = polled[zygote.children].revents;
		int got = -EAGAIN;

		if (n == -EINTR) {
			if (PyErr_CheckSignals())
				return 0;
			continue;
		}
		if (n < 0) {
			PyErr_Format(PyExc_OSError, "poll: errno %d", (int)-n);
			return 0;
		}
		children_reap(polled);
		if (talks)
			got = packet_receive(&packet);
		if (!got)
			return 0;
		if (got == 1 && packet_run(&packet, fork)) {
			*number = packet.call.number;
			return 1;
		}
	}
}

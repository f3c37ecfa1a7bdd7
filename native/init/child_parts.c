/* Steps of a command's child that need nothing but what it was launched with. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include "session.h"

/* Of the host's processes, not only of the sandbox's groups: the second lock on the class. No way back
 * from inside: leaving SCHED_IDLE takes RLIMIT_NICE, which is 0, or CAP_SYS_NICE on the host
 * (sched(7)). With core scheduling, no other sandbox's command runs on the same physical core
 * (core-scheduling.rst); where the kernel has none, the call fails and nothing is lost. */
void class_set(void)
{
	struct sched_param param = {.sched_priority = 0};

	if (!config.best_effort)
		return;
	syscall(SYS_prctl, 62 /* PR_SCHED_CORE */, 1 /* CREATE */, 0, 1 /* THREAD_GROUP */, 0);
	syscall(SYS_sched_setscheduler, 0, SCHED_IDLE, &param);
}

/* Never above what it is: nobody here may raise a limit. */
static void limit_set(int what, uint64_t value)
{
	struct rlimit limit;

	if (!value || getrlimit(what, &limit))
		return;
	if (value < limit.rlim_max)
		limit.rlim_max = value;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(what, &limit);
}

/* None for core dumps: there are none anyway. */
void limits_set(const struct launch *l)
{
	limit_set(RLIMIT_NOFILE, l->limits.nofile ? l->limits.nofile : config.nofile);
	limit_set(RLIMIT_FSIZE, l->limits.fsize);
	limit_set(RLIMIT_STACK, l->limits.stack);
}

static void master_send(int status, int master)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.room = {0}};
	struct report r = {.step = STEP_MASTER};
	struct iovec v = {.iov_base = &r, .iov_len = sizeof(r)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.room,
			   .msg_controllen = sizeof(control.room)};

	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.head), &master, sizeof(int));
	if (sendmsg(status, &m, 0) < 0)
		child_fail(status, STEP_PTY, errno);
}

/* Opened after the change of user: so the slave belongs to the one who uses it. */
void terminal_open(const struct launch *l)
{
	struct winsize size = {.ws_row = l->rows, .ws_col = l->cols};
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	int unlock = 0, slave;

	if (master < 0)
		child_fail(l->status, STEP_PTY, errno);
	if (ioctl(master, TIOCSPTLCK, &unlock) || ioctl(master, TIOCSWINSZ, &size))
		child_fail(l->status, STEP_PTY, errno);
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
	if (slave < 0)
		child_fail(l->status, STEP_PTY, errno);
	if (ioctl(slave, TIOCSCTTY, 0))
		child_fail(l->status, STEP_PTY, errno);
	master_send(l->status, master);
	dup2(slave, 0);
	dup2(slave, 1);
	dup2(slave, 2);
}

void stdio_set(const struct launch *l)
{
	if (l->pty)
		return;
	if ((l->in >= 0 && dup2(l->in, 0) < 0) || (l->out >= 0 && dup2(l->out, 1) < 0) ||
	    (l->err >= 0 && dup2(l->err, 2) < 0) || (l->merge && dup2(1, 2) < 0))
		child_fail(l->status, STEP_FORK, errno);
}

/* The descriptor may be any but those that commands are given. */
void number_give(const struct launch *l, int fd, int number)
{
	if (fd >= 0 && dup2(fd, number) < 0)
		child_fail(l->status, STEP_FORK, errno);
}

/* The driver of a session finds its script and its pipe of answers by number. */
void session_give(const struct launch *l)
{
	int file = fcntl(l->script, F_DUPFD_CLOEXEC, SESSION_FD_ANSWER + 1);
	int answer = fcntl(l->answer, F_DUPFD_CLOEXEC, SESSION_FD_ANSWER + 1);

	if (file < 0 || answer < 0 || dup2(file, SESSION_FD_SCRIPT) < 0 ||
	    dup2(answer, SESSION_FD_ANSWER) < 0)
		child_fail(l->status, STEP_FORK, errno);
}

#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

int loop_init(struct loop *l)
{
	l->timers.prev = l->timers.next = &l->timers;
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	return l->epoll < 0 ? -errno : 0;
}

int loop_watch(struct loop *l, struct watch *w, int fd, uint32_t events)
{
	struct epoll_event e = {.events = events, .data.ptr = w};

	if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &e) < 0)
		return -errno;
	w->fd = fd;
	return 0;
}

void loop_close(struct loop *l, struct watch *w)
{
	if (w->fd < 0)
		return;
	/* Explicitly: a copy of the descriptor in a child would keep the registration alive. */
	epoll_ctl(l->epoll, EPOLL_CTL_DEL, w->fd, NULL);
	close(w->fd);
	w->fd = -1;
}

void timer_set(struct loop *l, struct timer *t, void (*fire)(struct timer *))
{
	timer_clear(t);
	t->fire = fire;
	t->at_ns = now_ns() + DEADLINE_S * 1000000000ull;
	t->prev = l->timers.prev;
	t->next = &l->timers;
	t->prev->next = t;
	t->next->prev = t;
}

void timer_clear(struct timer *t)
{
	if (!t->at_ns)
		return;
	t->prev->next = t->next;
	t->next->prev = t->prev;
	t->at_ns = 0;
}

static int wait_ms(const struct loop *l)
{
	const struct timer *first = l->timers.next;
	uint64_t now;

	if (first == &l->timers)
		return -1;
	now = now_ns();
	return first->at_ns <= now ? 0 : (int)((first->at_ns - now) / 1000000 + 1);
}

void loop_run(struct loop *l)
{
	while (!l->stop) {
		struct epoll_event e;
		/* One event at a time: a handler may free the watch of another. */
		int n = epoll_wait(l->epoll, &e, 1, wait_ms(l));
		struct timer *first = l->timers.next;

		if (n == 1) {
			struct watch *w = e.data.ptr;

			w->ready(w, e.events);
		} else if (!n && first != &l->timers && first->at_ns <= now_ns()) {
			timer_clear(first);
			first->fire(first);
		}
	}
}

int fd_high(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, FD_HIGH), err = errno;

	close(fd);
	return high < 0 ? -err : high;
}

static int by_value(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

int fds_keep(const struct loop *l, int *keep, unsigned count)
{
	unsigned next = l->base;
	int err = sys_close_range(FD_HIGH, ~0u, true);

	qsort(keep, count, sizeof(*keep), by_value);
	for (unsigned i = 0; i < count && !err; i++) {
		if (keep[i] < (int)next)
			continue;
		if ((unsigned)keep[i] > next)
			err = sys_close_range(next, (unsigned)keep[i] - 1, false);
		next = (unsigned)keep[i] + 1;
	}
	return err ? err : sys_close_range(next, ~0u, false);
}

int job_fail(struct job_result *r, const char *step, int error)
{
	snprintf(r->step, sizeof(r->step), "%s", step);
	r->error = error;
	return error;
}

static void job_send(int channel, struct job_result *r)
{
	struct iovec iov = {r, sizeof(*r)};
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	unsigned count = r->fds[0] < 0 ? 0 : r->fds[1] < 0 ? 1 : 2;

	if (count) {
		m.msg_control = control.space;
		m.msg_controllen = CMSG_SPACE(count * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(&control.head), r->fds, count * sizeof(int));
	}
	sendmsg(channel, &m, MSG_NOSIGNAL);
}

static void job_receive(int channel, struct job_result *r)
{
	struct iovec iov = {r, sizeof(*r)};
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space,
			   .msg_controllen = sizeof(control.space)};
	ssize_t n = recvmsg(channel, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (n != sizeof(*r))
		job_fail(r, "helper", -ESRCH);
	r->fds[0] = r->fds[1] = -1;
	r->step[sizeof(r->step) - 1] = 0;
	if (n > 0 && m.msg_controllen >= sizeof(control.head) && control.head.cmsg_type == SCM_RIGHTS)
		memcpy(r->fds, CMSG_DATA(&control.head), control.head.cmsg_len - CMSG_LEN(0));
}

static void job_ready(struct watch *w, uint32_t events)
{
	struct job *j = container_of(w, struct job, watch);
	struct job_result r = {0};
	int status;

	(void)events;
	sys_reap(w->fd, &status);
	loop_close(j->loop, w);
	timer_clear(&j->timer);
	job_receive(j->channel, &r);
	if (r.error == -ESRCH && j->expired)
		job_fail(&r, "deadline", -ETIMEDOUT);
	close(j->channel);
	close(j->far);
	j->done(j, &r);
	free(j);
}

static void job_expire(struct timer *t)
{
	struct job *j = container_of(t, struct job, timer);

	if (--j->terms) {
		timer_set(j->loop, t, job_expire);
		return;
	}
	/* The end of the process then runs the job's end. */
	j->expired = true;
	sys_pidfd_kill(j->watch.fd);
}

int job_start(struct loop *l, int (*work)(void *arg, struct job_result *r), void *arg,
	      void (*done)(struct job *, struct job_result *), void *owner, unsigned terms)
{
	struct job *j = calloc(1, sizeof(*j));
	int pair[2], pidfd = -1, err;
	pid_t pid;

	if (!j)
		return -ENOMEM;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		err = -errno;
		free(j);
		return err;
	}
	*j = (struct job){.loop = l, .watch = {-1, job_ready}, .channel = pair[0], .far = pair[1],
			  .terms = terms, .done = done, .owner = owner};
	pid = sys_clone(CLONE_FILES, &pidfd, -1);
	if (!pid) {
		struct job_result r = {.fds = {-1, -1}};
		int keep[] = {pair[1]};

		r.error = fds_keep(l, keep, 1);
		if (!r.error)
			r.error = work(arg, &r);
		job_send(pair[1], &r);
		_exit(0);
	}
	err = pid < 0 ? pid : loop_watch(l, &j->watch, pidfd, EPOLLIN);
	if (err < 0) {
		if (pid > 0)
			sys_kill_and_reap(pid);
		if (pidfd >= 0)
			close(pidfd);
		close(pair[0]);
		close(pair[1]);
		free(j);
		return err;
	}
	if (terms)
		timer_set(l, &j->timer, job_expire);
	return 0;
}

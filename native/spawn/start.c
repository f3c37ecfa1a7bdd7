/* START: plan, the launcher's steps, the clone; then, asynchronously, the answer or the undoing. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "child.h"

static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	mode_t mask;
	int fd, err = 0;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	unlink(path);
	mask = umask(0177);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0)
		err = -errno;
	umask(mask);
	if (!err)
		return fd;
	close(fd);
	return err;
}

static int clone_child(struct instance *i, const char *group)
{
	close_auto int dir = open_at(AT_FDCWD, group, O_RDONLY | O_DIRECTORY);
	int status[2], pidfd = -1, err;

	if (dir < 0)
		return dir;
	i->user_fd = fcntl(i->slot->user_fd, F_DUPFD_CLOEXEC, 3);
	i->net_fd = fcntl(i->slot->net_fd, F_DUPFD_CLOEXEC, 3);
	if (i->user_fd < 0 || i->net_fd < 0 || pipe2(status, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	close(status[1]); /* the child opens its own, and watches the other */
	i->status.fd = status[0];
	i->pid = sys_clone(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_FILES, &pidfd, dir);
	if (!i->pid)
		child_run(i);
	if (i->pid > 0)
		pidfd = fd_high(pidfd);
	err = i->pid < 0 ? i->pid : pidfd < 0 ? pidfd : loop_watch(&i->launcher->loop, &i->death, pidfd, EPOLLIN);
	if (!err)
		return 0;
	/* Without a watch the process must not stay, nor its zombie: a killed child ends in microseconds. */
	if (i->pid > 0)
		sys_kill_and_reap(i->pid);
	loop_close(&i->launcher->loop, &i->status);
	return err;
}

static int run_step(struct instance *i, struct step *s)
{
	struct launcher *l = i->launcher;
	struct group_step g = {.path = s->a, .value = s->b, .mode = (unsigned)s->n, .uid = (int64_t)s->m};

	if (fault_injected(l, s->op) && s->op != OP_CLONE)
		return -EIO;
	switch (s->op) {
	case OP_GROUP_MKDIR:
		g.kind = GROUP_MKDIR;
		return group_run(l, &g, &s->made);
	case OP_GROUP_RMDIR:
		g.kind = GROUP_RMDIR;
		return group_run(l, &g, &s->made);
	case OP_GROUP_WRITE:
		g.kind = GROUP_WRITE;
		return group_run(l, &g, &s->made);
	case OP_SOCKET:
		i->listener = listen_at(s->a);
		s->made = i->listener >= 0;
		return s->made ? 0 : i->listener;
	case OP_UPPER: {
		int err = upper_make(l, s->a, s->n, !s->m);

		s->made = !err;
		return err;
	}
	case OP_LIMIT:
		return l->upper_quota ? upper_limit(l, s->a, s->n) : -EOPNOTSUPP;
	case OP_CLONE:
		return fault_injected(l, OP_CLONE) ? -EIO : clone_child(i, s->a);
	default:
		return -ENOSYS;
	}
}

static void close_low(struct instance *i)
{
	close_ptr(&i->listener);
	close_ptr(&i->user_fd);
	close_ptr(&i->net_fd);
	i->listener = i->user_fd = i->net_fd = -1;
}

/* In reverse order; what was there before stays. */
static void undo(struct instance *i)
{
	struct launcher *l = i->launcher;

	close_low(i);
	if (i->request->work_group)
		group_clear(i->request->work_group);
	if (i->request->upper_from && i->done)
		upper_remove(l, i->id);
	for (unsigned n = i->plan->first_child; n-- > 0;) {
		const struct step *s = &i->plan->steps[n];

		if (!s->made)
			continue;
		if (s->op == OP_GROUP_MKDIR && rmdir(s->a) < 0 && errno != ENOENT)
			log_line(l, "undo: rmdir %s: %s", s->a, strerror(errno));
		else if (s->op == OP_SOCKET)
			unlink(s->a);
		else if (s->op == OP_UPPER)
			upper_remove(l, i->id);
	}
}

static void reply_started(struct instance *i)
{
	struct builder *b = answer();
	const struct report *r = i->report;
	uint64_t now = now_ns(), us;
	char text[64];

	build_u64(b, T_PID, (uint64_t)i->pid);
	for (unsigned n = 0; n < i->plan->count;) {
		enum op op = i->plan->steps[n].op;

		for (us = 0; n < i->plan->count && i->plan->steps[n].op == op; n++)
			us += op == OP_EXEC ? (now - r->started_ns) / 1000 : r->us[n];
		snprintf(text, sizeof(text), "%s=%u", plan_op_name(op), (unsigned)us);
		build_text(b, T_STEP_US, text);
	}
	snprintf(text, sizeof(text), "total=%u", (unsigned)((now - i->begun_ns) / 1000));
	build_text(b, T_STEP_US, text);
	reply_ok(i->launcher, &i->start_reply, b);
}

static void report_free(struct instance *i)
{
	if (i->report)
		i->launcher->reports_used &= ~(1ull << (i->report - i->launcher->reports));
	i->report = NULL;
	free(i->plan);
	free(i->request);
	i->plan = NULL;
	i->request = NULL;
}

/* The process is gone (or never was): undo, answer, forget. */
static void give_up(struct instance *i)
{
	struct launcher *l = i->launcher;
	const struct report *r = i->report;
	const char *step = plan_op_name(i->plan->steps[r->step].op);
	struct request *stop = i->stop;
	int error = r->error ? r->error : -ESRCH;

	if (error == -ETIMEDOUT)
		step = "deadline";
	undo(i);
	reply_fail(l, &i->start_reply, step, error, i->plan->steps[r->step].a);
	i->stop = NULL;
	report_free(i);
	instance_free(l, i);
	if (stop)
		instance_stop(l, stop);
}

void start_died(struct instance *i)
{
	int status;

	if (i->state == STARTING) {
		/* Exec may have been reached before the end came. */
		loop_close(&i->launcher->loop, &i->status);
		i->state = UNDOING;
	}
	timer_clear(&i->timer);
	sys_reap(i->death.fd, &status);
	loop_close(&i->launcher->loop, &i->death);
	give_up(i);
}

static bool exec_reached(const struct instance *i)
{
	return !i->report->error && i->plan->steps[i->report->step].op == OP_EXEC;
}

void start_settle(struct instance *i)
{
	loop_close(&i->launcher->loop, &i->status);
	if (!exec_reached(i)) {
		i->state = UNDOING; /* its death is watched */
		return;
	}
	timer_clear(&i->timer);
	close_low(i);
	i->state = RUNNING;
	reply_started(i);
	report_free(i);
}

static void status_ready(struct watch *w, uint32_t events)
{
	(void)events;
	start_settle(container_of(w, struct instance, status));
}

static void expire(struct timer *t)
{
	struct instance *i = container_of(t, struct instance, timer);

	if (i->report->error == -ETIMEDOUT) {
		/* Killed and still there, in the kernel: the answer cannot wait, the undoing must. */
		reply_fail(i->launcher, &i->start_reply, "deadline", -ETIMEDOUT, "not undone yet");
		i->start_reply.set = false;
		return;
	}
	if (!i->report->error)
		i->report->error = -ETIMEDOUT;
	i->state = UNDOING;
	loop_close(&i->launcher->loop, &i->status);
	sys_pidfd_kill(i->death.fd);
	timer_set(&i->launcher->loop, t, expire);
}

static int check(struct launcher *l, const struct request *r, struct slot *slot, struct failure *f)
{
	struct roots run = {0};
	char parent[PATH_TEXT_MAX + 1];

	if (l->upper == UPPER_NONE)
		return fail(f, "upper", -ENOTCONN, "no UPPER_OPEN came");
	if (instance_find(l, r->instance))
		return fail(f, "instance", -EEXIST, "%s", r->instance);
	if (!slot)
		return fail(f, "slot", -ENOENT, "slot %llu", (unsigned long long)r->slot);
	if (slot->user || slot->adopted || slot->making)
		return fail(f, "slot", -EBUSY, "slot %llu", (unsigned long long)r->slot);
	if (slot->function != (r->profile == PROFILE_FUNCTION))
		return fail(f, "slot", -EINVAL, "slot %llu: of the other profile", (unsigned long long)r->slot);
	for (unsigned n = 0; n < r->layers.count; n++)
		if (!layer_known(l, r->layers.items[n]))
			return fail(f, "layer", -ENOENT, "%s", r->layers.items[n]);
	/* Kept by an earlier STOP: it must not go with the undoing of a snapshot over it. */
	if (!faccessat(l->upper_fd, r->instance, F_OK, AT_SYMLINK_NOFOLLOW))
		return fail(f, "upper", -EEXIST, "%s", r->instance);
	roots_add(&run, l->run_dir);
	if (!path_below(r->socket, &run))
		return fail(f, "path", -EACCES, "%s", r->socket);
	/* The parent too: all of it is killed by STOP, and a root is not ours alone. */
	if (!path_below(r->agent_group, &l->cgroup_roots) ||
	    group_parent(r->agent_group, parent, sizeof(parent)) || !path_below(parent, &l->cgroup_roots))
		return fail(f, "path", -EACCES, "%s", r->agent_group);
	if (r->work_group && !path_below(r->work_group, &l->cgroup_roots))
		return fail(f, "path", -EACCES, "%s", r->work_group);
	if (r->oom_file && !path_below(r->oom_file, &l->cgroup_roots))
		return fail(f, "path", -EACCES, "%s", r->oom_file);
	for (unsigned n = 0; n < r->tasks.count; n++)
		if (!path_below(r->tasks.items[n], &l->cgroup_roots))
			return fail(f, "path", -EACCES, "%s", r->tasks.items[n]);
	return 0;
}

static struct instance *instance_new(struct launcher *l, struct request *r, struct slot *slot,
				     struct failure *f)
{
	struct instance *i = calloc(1, sizeof(*i));
	struct plan *plan = malloc(sizeof(*plan)); /* of its steps only those that there are get written */
	struct plan_facts facts = {.upper_btrfs = l->upper == UPPER_BTRFS,
				   .slot_cgroup_ns = slot->has_cgroup_ns, .uid_base = slot->uid_base,
				   .owner_uid = slot->owner_uid, .masks = l->masks};
	struct kept *kept = kept_make(r);
	int err = i && plan && kept ? plan_start(plan, r, &facts) : -ENOMEM;
	unsigned n = 0;

	while (n < IN_FLIGHT_MAX && l->reports_used >> n & 1)
		n++;
	if (!err && n == IN_FLIGHT_MAX)
		err = -EAGAIN;
	if (err) {
		free(i);
		free(plan);
		free(kept);
		fail(f, "plan", err, "%s", r->instance);
		return NULL;
	}
	*i = (struct instance){.launcher = l, .slot = slot, .request = r, .kept = kept, .plan = plan, .listener = -1,
			       .user_fd = -1, .net_fd = -1,
			       .begun_ns = now_ns(), .report = &l->reports[n],
			       .status = {-1, status_ready}, .death = {-1, instance_death}};
	snprintf(i->id, sizeof(i->id), "%s", r->instance);
	l->reports_used |= 1ull << n;
	memset(i->report, 0, sizeof(*i->report));
	i->start_reply = pending_of(l, r);
	slot->user = i;
	instance_add(l, i);
	return i;
}

void instance_start(struct launcher *l, struct request *r)
{
	struct slot *slot = slot_find(l, r->slot);
	struct failure f = {0};
	struct instance *i = check(l, r, slot, &f) ? NULL : instance_new(l, r, slot, &f);
	uint64_t before, now;

	if (!i) {
		struct pending reply = pending_of(l, r);

		reply_fail(l, &reply, f.step, f.error, f.text);
		free(r);
		return;
	}
	before = i->begun_ns;
	timer_set(&l->loop, &i->timer, expire);
	for (unsigned n = 0; n < i->plan->first_child; n++) {
		struct step *s = &i->plan->steps[n];
		int err;

		i->report->step = n;
		err = run_step(i, s);
		if (err) {
			i->report->error = err;
			timer_clear(&i->timer);
			give_up(i);
			return;
		}
		i->done = n + 1;
		now = now_ns();
		i->report->us[n] = (uint32_t)((now - before) / 1000);
		before = now;
	}
}

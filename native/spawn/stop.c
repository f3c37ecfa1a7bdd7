/* The ends of an instance: STOP, its own death, adoption after a restart of the launcher. */
#include "launcher.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <fcntl.h>

#include "protocol.h"

void instance_free(struct launcher *l, struct instance *i)
{
	instance_remove(l, i);
	if (i->slot)
		i->slot->user = NULL;
	if (i->adopted)
		l->adopted--;
	timer_clear(&i->timer);
	loop_close(&l->loop, &i->death);
	free(i->kept);
	free(i->request);
	free(i);
}

static void read_back(const struct launcher *l, const struct request *r, struct builder *b)
{
	char text[4097];

	for (unsigned n = 0; n < r->reads.count; n++) {
		int length = -EACCES;

		if (path_below(r->reads.items[n], &l->cgroup_roots))
			length = read_file(AT_FDCWD, r->reads.items[n], text, sizeof(text));
		build_bytes(b, T_READ, text, length > 0 ? (size_t)length : 0);
	}
}

/* Removes what an instance leaves beside its process; the first failure, for the answer. */
static int clean(struct launcher *l, const struct request *stop, const char *socket, struct failure *f)
{
	int err = groups_run(l, stop, f);
	int upper = stop->keep_upper ? 0 : upper_remove(l, stop->instance);

	if (upper && upper != -ENOENT && !err)
		err = fail(f, "upper", upper, "%s", stop->instance);
	if (unlink(socket) < 0 && errno != ENOENT && !err)
		err = fail(f, "socket", -errno, "%s", socket);
	return err;
}

static void answer_stop(struct launcher *l, const struct pending *p, struct builder *b, int status,
			const char *unclean)
{
	build_u64(b, T_WAIT_STATUS, (uint64_t)status);
	build_u64(b, T_SLOT_CLEAN, !*unclean);
	if (*unclean)
		build_text(b, T_TEXT, unclean);
	reply_ok(l, p, b);
}

/* The last part, with a slot that is clean or that must be dropped (`why` is not empty). */
static void finish(struct instance *i, const char *why)
{
	struct launcher *l = i->launcher;
	struct builder *b = answer();
	struct failure f = {0};

	read_back(l, i->stop, b);
	if (*i->kept->work_group)
		group_clear(i->kept->work_group);
	group_clear(i->kept->agent_group);
	if (clean(l, i->stop, i->kept->socket, &f)) {
		log_line(l, "stop %s: %s: %s: %s", i->id, f.step, strerror(-f.error), f.text);
		if (!*why)
			why = f.text;
	}
	answer_stop(l, &i->stop_reply, b, i->wait_status, why);
	if (i->slot->adopted) {
		struct slot *s = i->slot;

		slot_remove(l, s);
		i->slot = NULL;
		free(s);
	}
	free(i->stop);
	instance_free(l, i);
}

static void net_replaced(struct job *j, struct job_result *r)
{
	struct instance *i = j->owner;
	struct slot *s = i->slot;

	if (r->error) {
		close_ptr(&r->fds[0]);
		finish(i, "no new network namespace");
		return;
	}
	close(s->net_fd);
	s->net_fd = fd_high(r->fds[0]);
	s->sockets = r->value;
	finish(i, "");
}

/* The process is gone. The user namespace has no other: all of them lived in its pid namespace. */
static void dead(struct instance *i)
{
	struct launcher *l = i->launcher;
	char why[160];

	if (i->slot->adopted)
		finish(i, "adopted from an earlier launcher");
	else if (i->group_killed)
		finish(i, "its group was killed as a whole and cannot be cloned into");
	else if (slot_net_clean(l, i->slot, why, sizeof(why)))
		finish(i, "");
	else if (slot_net_replace(l, net_replaced, i))
		finish(i, why);
}

void instance_death(struct watch *w, uint32_t events)
{
	struct instance *i = container_of(w, struct instance, death);
	struct launcher *l = i->launcher;

	(void)events;
	if (i->state == STARTING)
		start_settle(i); /* it may have reached its exec before */
	if (i->state == UNDOING) {
		start_died(i);
		return;
	}
	if (sys_reap(w->fd, &i->wait_status))
		i->wait_status = STATUS_UNKNOWN;
	loop_close(&l->loop, w);
	timer_clear(&i->timer);
	if (i->state == STOPPING) {
		dead(i);
		return;
	}
	i->state = ENDED;
	struct builder *b = answer();

	build_text(b, T_INSTANCE, i->id);
	build_u64(b, T_WAIT_STATUS, (uint64_t)i->wait_status);
	send_event(l, L_EXITED, b);
}

/* It does not die (a read from a dead store, say): the request fails and may be repeated. */
static void expire(struct timer *t)
{
	struct instance *i = container_of(t, struct instance, timer);

	i->state = RUNNING;
	i->group_killed = !group_kill(i->kept->agent_group);
	reply_fail(i->launcher, &i->stop_reply, "kill", -ETIMEDOUT, i->id);
	free(i->stop);
	i->stop = NULL;
}

static void stop_unknown(struct launcher *l, struct request *r)
{
	struct pending reply = pending_of(l, r);
	struct builder *b = answer();
	char socket[PATH_TEXT_MAX + 80];
	struct failure f = {0};

	snprintf(socket, sizeof(socket), "%s/i/%s", l->run_dir, r->instance);
	read_back(l, r, b);
	if (clean(l, r, socket, &f))
		log_line(l, "stop %s: %s: %s: %s", r->instance, f.step, strerror(-f.error), f.text);
	answer_stop(l, &reply, b, STATUS_UNKNOWN, f.error ? f.text : "unknown instance");
	free(r);
}

void instance_stop(struct launcher *l, struct request *r)
{
	struct instance *i = instance_find(l, r->instance);
	struct pending reply = pending_of(l, r);

	if (!i) {
		stop_unknown(l, r);
		return;
	}
	if (i->stop) {
		reply_fail(l, &reply, "stop", -EALREADY, i->id);
		free(r);
		return;
	}
	i->stop = r;
	i->stop_reply = reply;
	if (i->state == STARTING || i->state == UNDOING) {
		/* The START fails and is undone; then this request is served as one for an unknown id. */
		if (i->state == STARTING && !i->report->error)
			i->report->error = -ECANCELED;
		i->state = UNDOING;
		loop_close(&l->loop, &i->status);
		sys_pidfd_kill(i->death.fd);
		return;
	}
	if (i->state == ENDED) {
		dead(i);
		return;
	}
	i->state = STOPPING;
	timer_set(&l->loop, &i->timer, expire);
	/* Not by cgroup.kill: the end of PID 1 takes its whole pid namespace along, while a group that was
	 * killed once kills whatever CLONE_INTO_CGROUP puts there later (Linux 6.14 to 6.18 compare its
	 * count of kills with that of the cloner's own group): the slot could not be used again. */
	sys_pidfd_kill(i->death.fd);
}

/* The pid may be another process's by now: it must be in the agent's group. */
static bool in_group(const char *group, uint64_t pid)
{
	char path[PATH_TEXT_MAX + 32], text[4096], *line, *rest = text;

	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	if (read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
		return false;
	while ((line = strsep(&rest, "\n")))
		if (*line && strtoull(line, NULL, 10) == pid)
			return true;
	return false;
}

int instance_adopt(struct launcher *l, struct request *r, struct failure *f)
{
	struct instance *i;
	struct kept *k;
	struct slot *s;
	int pidfd, err;

	if (instance_find(l, r->instance) || slot_find(l, r->slot))
		return fail(f, "instance", -EEXIST, "%s", r->instance);
	if (!path_below(r->agent_group, &l->cgroup_roots))
		return fail(f, "path", -EACCES, "%s", r->agent_group);
	pidfd = sys_pidfd_open((pid_t)r->pid);
	if (pidfd >= 0)
		pidfd = fd_high(pidfd);
	if (pidfd < 0)
		return fail(f, "pid", pidfd, "%s", r->instance);
	i = calloc(1, sizeof(*i));
	s = calloc(1, sizeof(*s));
	k = kept_make(r);
	err = !i || !s || !k ? -ENOMEM : in_group(r->agent_group, r->pid) ? 0 : -ESRCH;
	if (!err) {
		*s = (struct slot){.id = r->slot, .adopted = true, .user_fd = -1, .net_fd = -1, .user = i};
		*i = (struct instance){.launcher = l, .state = RUNNING, .adopted = true, .slot = s,
				       .kept = k, .listener = -1, .user_fd = -1, .net_fd = -1, .status = {-1, NULL},
				       .death = {-1, instance_death}, .pid = (pid_t)r->pid};
		snprintf(i->id, sizeof(i->id), "%s", r->instance);
		err = loop_watch(&l->loop, &i->death, pidfd, EPOLLIN);
	}
	if (err) {
		close(pidfd);
		free(i);
		free(s);
		free(k);
		return fail(f, "adopt", err, "%s", r->instance);
	}
	slot_add(l, s);
	instance_add(l, i);
	l->adopted++;
	return 0;
}

/* For the end of the launcher: waiting is allowed here. */
void instances_stop_all(struct launcher *l)
{
	uint64_t until = now_ns() + DEADLINE_S * 1000000000ull;

	for (unsigned b = 0; b < BUCKETS; b++)
		for (struct instance *i = l->instances[b]; i; i = i->next) {
			group_kill(i->kept->agent_group);
			if (i->death.fd >= 0)
				sys_pidfd_kill(i->death.fd);
		}
	for (unsigned b = 0; b < BUCKETS; b++)
		for (struct instance *i; (i = l->instances[b]);) {
			struct pollfd p = {.fd = i->death.fd, .events = POLLIN};
			uint64_t now = now_ns();
			int status;

			if (p.fd >= 0 && poll(&p, 1, now < until ? (int)((until - now) / 1000000) : 0) == 1)
				sys_reap(p.fd, &status);
			if (*i->kept->work_group)
				group_clear(i->kept->work_group);
			upper_remove(l, i->id);
			unlink(i->kept->socket);
			loop_close(&l->loop, &i->status);
			free(i->plan);
			free(i->stop);
			instance_free(l, i);
		}
}

/* FREEZE and THAW: of the work group, so that the agent goes on answering. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "protocol.h"

struct freeze {
	struct launcher *launcher;
	struct watch events;
	struct timer timer;
	struct pending reply;
	bool frozen; /* wanted */
	char id[65];
};

static int is_frozen(int fd)
{
	char text[256], *line;
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n < 0)
		return -errno;
	text[n] = 0;
	line = strstr(text, "frozen ");
	return line ? line[7] == '1' : -EOPNOTSUPP;
}

static void end(struct freeze *z, int err)
{
	timer_clear(&z->timer);
	loop_close(&z->launcher->loop, &z->events);
	if (err)
		reply_fail(z->launcher, &z->reply, "freeze", err, z->id);
	else
		reply_ok(z->launcher, &z->reply, answer());
	free(z);
}

static void changed(struct watch *w, uint32_t events)
{
	struct freeze *z = container_of(w, struct freeze, events);
	int state = is_frozen(w->fd);

	(void)events;
	if (state < 0 || state == z->frozen)
		end(z, state < 0 ? state : 0);
}

static void expire(struct timer *t)
{
	end(container_of(t, struct freeze, timer), -ETIMEDOUT);
}

static int begin(struct freeze *z, const char *group)
{
	char path[PATH_TEXT_MAX + 32];
	int fd, err;

	snprintf(path, sizeof(path), "%s/cgroup.freeze", group);
	err = write_file(AT_FDCWD, path, z->frozen ? "1" : "0");
	if (err)
		return err;
	snprintf(path, sizeof(path), "%s/cgroup.events", group);
	fd = open_at(AT_FDCWD, path, O_RDONLY);
	if (fd < 0)
		return fd;
	err = loop_watch(&z->launcher->loop, &z->events, fd, EPOLLPRI);
	if (err)
		close(fd);
	return err;
}

void freeze_set(struct launcher *l, struct request *r)
{
	struct instance *i = instance_find(l, r->instance);
	struct freeze *z = calloc(1, sizeof(*z));
	struct pending reply = pending_of(l, r);
	int err = !z ? -ENOMEM : !i || i->state != RUNNING ? -ENOENT : 0;

	if (!err) {
		*z = (struct freeze){.launcher = l, .events = {-1, changed}, .reply = reply,
				     .frozen = r->type == L_FREEZE};
		snprintf(z->id, sizeof(z->id), "%s", i->id);
		err = begin(z, *i->kept->work_group ? i->kept->work_group : i->kept->agent_group);
		if (!err) {
			timer_set(&l->loop, &z->timer, expire);
			changed(&z->events, 0); /* it may be so already */
			z = NULL;
		}
	}
	if (err)
		reply_fail(l, &reply, "freeze", err, r->instance);
	free(z);
	free(r);
}

/* A launcher whose node is gone and does not come back: what must not outlive it is ended. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Whether somebody wants the instance to outlive the node: the node made a file of its name. */
static bool is_kept(const struct launcher *l, const char *id)
{
	char path[PATH_TEXT_MAX + 80];

	snprintf(path, sizeof(path), "%s/%s", l->keep_dir, id);
	return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void orphan_ready(struct watch *w, uint32_t events)
{
	struct launcher *l = container_of(w, struct launcher, orphan);
	uint64_t count;
	unsigned kept = 0, ended = 0;

	(void)events;
	if (read(w->fd, &count, sizeof(count)) != sizeof(count) || l->client.fd >= 0)
		return;
	for (unsigned b = 0; b < BUCKETS; b++)
		for (const struct instance *i = l->instances[b]; i; i = i->next) {
			if (l->keep_dir && is_kept(l, i->id)) {
				kept++;
			} else if (i->death.fd >= 0) {
				sys_pidfd_kill(i->death.fd);
				ended++;
			}
		}
	if (ended)
		log_line(l, "no node for %u s: %u instances ended, %u kept", l->orphan_s, ended, kept);
	if (kept) {
		orphan_arm(l); /* those may end by themselves */
		return;
	}
	log_line(l, "no node for %u s, and nothing that shall stay: the end", l->orphan_s);
	l->orphaned = l->loop.stop = l->shutting_down = true;
}

void orphan_arm(struct launcher *l)
{
	struct itimerspec when = {.it_value.tv_sec = l->orphan_s};

	if (l->orphan.fd >= 0)
		timerfd_settime(l->orphan.fd, 0, &when, NULL);
}

void orphan_disarm(struct launcher *l)
{
	struct itimerspec never = {0};

	if (l->orphan.fd >= 0)
		timerfd_settime(l->orphan.fd, 0, &never, NULL);
}

int orphan_open(struct launcher *l)
{
	int fd, err;

	l->orphan = (struct watch){-1, orphan_ready};
	if (!l->orphan_s)
		return 0;
	fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	err = loop_watch(&l->loop, &l->orphan, fd, EPOLLIN);
	if (err) {
		close(fd);
		return err;
	}
	orphan_arm(l);
	return 0;
}

/* What the node would remove by the steps of its requests: the groups below its own roots. */
void orphan_clear(const struct launcher *l)
{
	for (unsigned n = 0; l->orphaned && n < l->cgroup_roots.count; n++)
		group_clear(l->cgroup_roots.paths[n]);
}

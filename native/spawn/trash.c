/* Removing trees that a sandbox made: never by recursion, never by following a link. */
#include "launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int trash_put(struct launcher *l, const char *id)
{
	char name[64];

	do {
		snprintf(name, sizeof(name), ".trash/t%" PRIu64, l->trash_next++);
	} while (!faccessat(l->upper_fd, name, F_OK, AT_SYMLINK_NOFOLLOW));
	if (renameat(l->upper_fd, id, l->upper_fd, name) < 0)
		return -errno;
	trash_empty(l);
	return 0;
}

/* Moves what cannot be removed at once up beside its parent: no tree is deeper than two at any time,
 * however deep it was. True if anything went or moved. */
static bool flatten(int trash, const char *name, uint64_t *next)
{
	int fd = open_at(trash, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	bool moved = false;
	char to[64];

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return !unlinkat(trash, name, 0);
	}
	while ((e = readdir(dir))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (!unlinkat(dirfd(dir), e->d_name, 0) || !unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR)) {
			moved = true;
			continue;
		}
		snprintf(to, sizeof(to), "d%" PRIu64, (*next)++);
		if (!renameat(dirfd(dir), e->d_name, trash, to))
			moved = true;
	}
	closedir(dir);
	return !unlinkat(trash, name, AT_REMOVEDIR) || moved;
}

static int work(void *arg, struct job_result *r)
{
	const struct launcher *l = arg;
	int fd = open_at(l->upper_fd, ".trash", O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	uint64_t next = now_ns(); /* above the names of an earlier run */
	struct dirent *e;
	bool moved;

	if (!dir)
		return job_fail(r, "trash", fd < 0 ? fd : -errno);
	do {
		moved = false;
		rewinddir(dir);
		while ((e = readdir(dir)))
			if (e->d_name[0] != '.' && flatten(dirfd(dir), e->d_name, &next))
				moved = true;
	} while (moved);
	closedir(dir);
	return 0;
}

static void done(struct job *j, struct job_result *r)
{
	struct launcher *l = j->owner;

	l->trash_running = false;
	if (r->error)
		log_line(l, "trash: %s: %s", r->step, strerror(-r->error));
	/* What came meanwhile. */
	if (l->trash_again)
		trash_empty(l);
}

void trash_empty(struct launcher *l)
{
	int err;

	l->trash_again = l->trash_running;
	if (l->trash_running)
		return;
	err = job_start(&l->loop, work, l, done, l, 0);
	l->trash_running = !err;
	if (err)
		log_line(l, "trash: %s", strerror(-err));
}

/* Recursion is bounded by `depth`, the work by `budget`. */
int tree_remove_small(int parent, const char *name, unsigned depth, unsigned *budget)
{
	int fd, err = 0;
	struct dirent *e;
	DIR *dir;

	if (!*budget)
		return -E2BIG;
	--*budget;
	/* Most often nothing is in it. */
	if (!unlinkat(parent, name, AT_REMOVEDIR))
		return 0;
	if (errno == ENOTDIR)
		return unlinkat(parent, name, 0) < 0 ? -errno : 0;
	if (errno != ENOTEMPTY)
		return -errno;
	if (!depth)
		return -E2BIG;
	fd = open_at(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		err = -errno;
		close_ptr(&fd);
		return err;
	}
	while (!err && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			err = tree_remove_small(dirfd(dir), e->d_name, depth - 1, budget);
	closedir(dir);
	if (!err && unlinkat(parent, name, AT_REMOVEDIR) < 0)
		err = -errno;
	return err;
}

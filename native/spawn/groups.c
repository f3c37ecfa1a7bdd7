#include "launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A delegated group: the owner may make groups below and move processes among them. */
static int give_away(const char *path, uid_t uid)
{
	static const char *const files[] = {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"};
	close_auto int dir = open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);

	if (dir < 0)
		return dir;
	if (fchown(dir, uid, uid) < 0)
		return -errno;
	for (unsigned i = 0; i < 3; i++)
		if (fchownat(dir, files[i], uid, uid, 0) < 0 && errno != ENOENT)
			return -errno;
	return 0;
}

int group_run(const struct launcher *l, const struct group_step *s, bool *made)
{
	if (!path_below(s->path, &l->cgroup_roots))
		return -EACCES;
	switch (s->kind) {
	case GROUP_MKDIR:
		if (!mkdir(s->path, s->mode))
			*made = true;
		else if (errno != EEXIST)
			return -errno;
		return s->uid < 0 ? 0 : give_away(s->path, (uid_t)s->uid);
	case GROUP_RMDIR:
		return rmdir(s->path) < 0 && errno != ENOENT ? -errno : 0;
	default:
		return write_file(AT_FDCWD, s->path, s->value);
	}
}

int groups_run(const struct launcher *l, const struct request *r, struct failure *f)
{
	static const char *const names[] = {"mkdir", "rmdir", "write"};
	int first = 0;

	for (unsigned i = 0; i < r->step_count; i++) {
		const struct group_step *s = &r->steps[i];
		bool made = false;
		int err = group_run(l, s, &made);

		/* All are tried: a group that is busy must not keep its neighbours. */
		if (err && !first)
			first = fail(f, names[s->kind], err, "%s", s->path);
	}
	return first;
}

int group_parent(const char *group, char *out, size_t size)
{
	const char *slash = strrchr(group, '/');
	int n = snprintf(out, size, "%.*s", (int)(slash - group), group);

	return n > 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

/* Only the agent makes groups here, a few levels deep; what exceeds the bound stays and shows as
 * EBUSY in the step that removes the group itself. */
static void clear_below(int parent, const char *name, unsigned depth)
{
	int fd = open_at(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((e = readdir(dir))) {
		if (e->d_type != DT_DIR || e->d_name[0] == '.')
			continue;
		if (unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR) < 0 && errno == EBUSY && depth) {
			clear_below(dirfd(dir), e->d_name, depth - 1);
			unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
		}
	}
	closedir(dir);
}

void group_clear(const char *group)
{
	struct stat st;

	/* Two links: no group below. Reading a cgroup directory costs more than asking. */
	if (!stat(group, &st) && st.st_nlink > 2)
		clear_below(AT_FDCWD, group, 8);
}

int group_kill(const char *agent_group)
{
	char path[PATH_TEXT_MAX + 32];
	int err = group_parent(agent_group, path, PATH_TEXT_MAX);

	if (err)
		return err;
	strcat(path, "/cgroup.kill");
	return write_file(AT_FDCWD, path, "1");
}

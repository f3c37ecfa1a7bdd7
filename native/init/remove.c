/* remove PATH FLAGS */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "file.h"

static int root = -1; /* the tree that is being removed */
static uint64_t moved;

/* Deeper than this a tree was made to hurt: its lower part is moved up, and removed from there. */
static void move_up(int dir, const char *name)
{
	char fresh[32] = ".skerry-deep-";
	size_t n = strlen(fresh);

	n += number_text(fresh + n, moved++, 10, 1);
	fresh[n] = 0;
	if (renameat(dir, name, root, fresh))
		file_fail(errno, "rename");
}

static void remove_below(int fd, int depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		file_fail(errno, "open");
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;
		int below;

		if (!strcmp(name, ".") || !strcmp(name, ".."))
			continue;
		if (!unlinkat(fd, name, 0) || errno == ENOENT)
			continue;
		if (errno != EISDIR && errno != EPERM)
			file_fail(errno, "unlink");
		if (!unlinkat(fd, name, AT_REMOVEDIR))
			continue;
		if (errno != ENOTEMPTY && errno != EEXIST)
			file_fail(errno, "rmdir");
		if (depth >= FILE_DEPTH_MAX) {
			move_up(fd, name);
			continue;
		}
		below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (below < 0)
			file_fail(errno, "open");
		remove_below(below, depth + 1);
		if (unlinkat(fd, name, AT_REMOVEDIR))
			file_fail(errno, "rmdir");
	}
	closedir(dir);
}

void file_remove(char **argv)
{
	const char *name;
	int dir = parent_open(argv[1], &name, false), fd;
	uint64_t before;

	if (!unlinkat(dir, name, 0))
		return;
	if (errno != EISDIR && errno != EPERM)
		file_fail(errno, "unlink");
	if (!unlinkat(dir, name, AT_REMOVEDIR))
		return;
	if ((errno != ENOTEMPTY && errno != EEXIST) || !strchr(argv[2], 'r'))
		file_fail(errno == ENOTDIR ? EPERM : errno, "rmdir");
	root = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (root < 0)
		file_fail(errno, "open");
	do { /* again while parts were moved up */
		before = moved;
		fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			file_fail(errno, "open");
		remove_below(fd, 0);
	} while (moved != before);
	if (unlinkat(dir, name, AT_REMOVEDIR))
		file_fail(errno, "rmdir");
}

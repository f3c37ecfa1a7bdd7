/* remove PATH FLAGS */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "file.h"

enum { SWAPS_MAX = 1000 /* of one name while it is being removed: then somebody plays with us */ };

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

static void remove_below(int fd, int depth);

/* True if the name is gone, or is no directory with something in it. What somebody swaps or removes
 * meanwhile is looked at anew by the caller. */
static bool remove_plain(int fd, const char *name)
{
	if (!unlinkat(fd, name, 0) || errno == ENOENT)
		return true;
	if (errno != EISDIR && errno != EPERM)
		file_fail(errno, "unlink");
	if (!unlinkat(fd, name, AT_REMOVEDIR) || errno == ENOENT)
		return true;
	if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
		file_fail(errno, "rmdir");
	return false;
}

static void remove_one(int fd, const char *name, int depth)
{
	for (int i = 0; i < SWAPS_MAX; i++) {
		int below;

		if (remove_plain(fd, name))
			return;
		if (depth >= FILE_DEPTH_MAX) {
			move_up(fd, name);
			return;
		}
		below = directory_below(fd, name);
		if (below >= 0)
			remove_below(below, depth + 1);
		else if (below != -ENOENT && below != -ENOTDIR && below != -ELOOP)
			file_fail(-below, "open");
	}
	if (!remove_plain(fd, name))
		file_fail(EAGAIN, "changed");
}

static void remove_below(int fd, int depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		file_fail(errno, "open");
	while ((entry = readdir(dir)))
		if (!is_dots(entry->d_name))
			remove_one(fd, entry->d_name, depth);
	closedir(dir);
}

void remove_tree(int dir, const char *name)
{
	uint64_t before;
	int fd;

	root = directory_below(dir, name);
	if (root < 0)
		file_fail(-root, "open");
	do { /* again while parts were moved up */
		before = moved;
		fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			file_fail(errno, "open");
		remove_below(fd, 0);
	} while (moved != before);
	close(root);
	if (unlinkat(dir, name, AT_REMOVEDIR) && errno != ENOENT)
		file_fail(errno, "rmdir");
}

void file_remove(char **argv)
{
	const char *name;
	int dir = parent_open(argv[1], &name, false);

	if (!unlinkat(dir, name, 0))
		return;
	if (errno != EISDIR && errno != EPERM)
		file_fail(errno, "unlink");
	if (!unlinkat(dir, name, AT_REMOVEDIR))
		return;
	if ((errno != ENOTEMPTY && errno != EEXIST) || !strchr(argv[2], 'r'))
		file_fail(errno == ENOTDIR ? EPERM : errno, "rmdir");
	remove_tree(dir, name);
}

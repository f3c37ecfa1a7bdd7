/* truncate, utime, chown, symlink, link. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "userdb.h"

/* truncate PATH SIZE */
void file_truncate(char **argv)
{
	off_t size = (off_t)number_parse(argv[2], 10, INT64_MAX);
	int fd = open(argv[1], O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		file_fail(errno, "open");
	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		file_fail(EINVAL, "type");
	if (ftruncate(fd, size))
		file_fail(errno, "truncate");
	close(fd);
}

/* Nanoseconds since 1970, "-" before it, "now", or "keep". */
static struct timespec time_parse(const char *text)
{
	struct timespec t = {0};
	uint64_t ns;

	if (!strcmp(text, "now") || !strcmp(text, "keep")) {
		t.tv_nsec = *text == 'n' ? UTIME_NOW : UTIME_OMIT;
		return t;
	}
	ns = number_parse(text + (*text == '-'), 10, INT64_MAX);
	t.tv_sec = (time_t)(ns / 1000000000);
	t.tv_nsec = (long)(ns % 1000000000);
	if (*text == '-') {
		t.tv_sec = -t.tv_sec - (t.tv_nsec > 0);
		t.tv_nsec = t.tv_nsec ? 1000000000 - t.tv_nsec : 0;
	}
	return t;
}

/* utime PATH ATIME MTIME: of a link itself. */
void file_utime(char **argv)
{
	struct timespec times[2] = {time_parse(argv[2]), time_parse(argv[3])};

	if (utimensat(AT_FDCWD, argv[1], times, AT_SYMLINK_NOFOLLOW))
		file_fail(errno, "utime");
}

/* --- chown -------------------------------------------------------------------------------------------- */

struct owner {
	uid_t uid;
	gid_t gid;
};

/* "USER", "USER:GROUP" or ":GROUP", each a name or a number; without a group it stays. "USER:" gives it
 * to the group of that user too, as chown(1) does. */
static struct owner owner_parse(char *text)
{
	static struct identity who;
	struct owner o = {(uid_t)-1, (gid_t)-1};
	char *group = strchr(text, ':');
	unsigned int id;

	if (group)
		*group++ = 0;
	if (*text && id_parse(text, &id))
		o.uid = id;
	else if (*text && !identity_resolve(text, &who))
		o.uid = who.uid;
	else if (*text || !group)
		file_fail(EINVAL, "user");
	if (group && !*group && *who.name)
		o.gid = who.gid;
	else if (group && id_parse(group, &id))
		o.gid = id;
	else if (group && group_resolve(group, &id) == 0)
		o.gid = id;
	else if (group)
		file_fail(EINVAL, "group");
	return o;
}

/* Links in the tree are given away themselves, never what they name. */
static void owner_below(int fd, struct owner o, int depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		file_fail(errno, "open");
	if (depth >= FILE_DEPTH_MAX)
		file_fail(ENAMETOOLONG, "depth");
	for (errno = 0; (entry = readdir(dir)); errno = 0) {
		struct stat st;
		int below;

		if (is_dots(entry->d_name))
			continue;
		if (fchownat(fd, entry->d_name, o.uid, o.gid, AT_SYMLINK_NOFOLLOW)) {
			if (errno == ENOENT)
				continue;
			file_fail(errno, "chown");
		}
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode))
			continue;
		below = directory_below(fd, entry->d_name);
		if (below >= 0)
			owner_below(below, o, depth + 1);
		else if (below != -ENOENT && below != -ENOTDIR && below != -ELOOP)
			file_fail(-below, "open");
	}
	if (errno)
		file_fail(errno, "read");
	closedir(dir);
}

/* chown PATH OWNER FLAGS (r: all below, h: a link itself) */
void file_chown(char **argv)
{
	struct owner o = owner_parse(argv[2]);
	bool recursive = strchr(argv[3], 'r') != NULL;
	int flags = recursive || strchr(argv[3], 'h') ? AT_SYMLINK_NOFOLLOW : 0, fd;

	if (fchownat(AT_FDCWD, argv[1], o.uid, o.gid, flags))
		file_fail(errno, "chown");
	if (!recursive)
		return;
	fd = directory_below(AT_FDCWD, argv[1]);
	if (fd >= 0)
		owner_below(fd, o, 0);
	else if (fd != -ENOTDIR && fd != -ELOOP)
		file_fail(-fd, "open");
}

/* --- links -------------------------------------------------------------------------------------------- */

/* symlink PATH TARGET FLAGS (p: parents, f: in the place of what is there, which must be no directory) */
void file_symlink(char **argv)
{
	const char *name;
	int dir = parent_open(argv[1], &name, strchr(argv[3], 'p') != NULL);
	char fresh[32] = ".skerry-";
	size_t n = strlen(fresh);

	if (!symlinkat(argv[2], dir, name))
		return;
	if (errno != EEXIST || !strchr(argv[3], 'f'))
		file_fail(errno, "symlink");
	fresh[n + number_text(fresh + n, (uint64_t)getpid(), 10, 1)] = 0;
	if (symlinkat(argv[2], dir, fresh))
		file_fail(errno, "symlink");
	if (renameat(dir, fresh, dir, name)) {
		int error = errno;

		unlinkat(dir, fresh, 0);
		file_fail(error, "rename");
	}
}

/* link PATH TARGET FLAGS (p): another name, PATH, for the file TARGET. */
void file_link(char **argv)
{
	const char *name;
	int dir = parent_open(argv[1], &name, strchr(argv[3], 'p') != NULL);

	if (linkat(AT_FDCWD, argv[2], dir, name, 0))
		file_fail(errno, "link");
}

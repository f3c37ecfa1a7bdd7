/* write and put: content from stdin into one file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "file.h"
#include "sparse.h"

enum { NAME_TRIES = 16, NOREPLACE = 1 /* RENAME_NOREPLACE */ };

static void content_take(int fd, bool sparse)
{
	size_t n;

	if (sparse) {
		sparse_take_map(UINT64_MAX);
		if (ftruncate(fd, (off_t)sparse_end()))
			file_fail(errno, "write");
		sparse_take_data(fd);
		if (in_some(file_buffer, 1))
			file_fail(EINVAL, "sparse");
		return;
	}
	while ((n = in_some(file_buffer, FILE_BUFFER)))
		write_all(fd, file_buffer, n, "write");
}

static void record_of(int dir, const char *name, const char *shown)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
		file_fail(errno, "stat");
	record_put(dir, name, shown, &st);
	out_flush();
}

static void append(int dir, const char *name, mode_t mode)
{
	struct stat st;
	int fd = openat(dir, name, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
			mode);

	if (fd < 0)
		file_fail(errno, "open");
	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		file_fail(EINVAL, "type");
	content_take(fd, false);
	close(fd);
}

/* The next name that nothing else should have; it is never followed, so guessing it helps nobody. */
static void temporary_name(char name[32])
{
	static const char start[] = ".skerry-";
	static uint64_t value;

	value += value ? 1 : (uint64_t)getpid() * 1000003u;
	memcpy(name, start, sizeof(start));
	name[sizeof(start) - 1 + number_text(name + sizeof(start) - 1, value, 8, 8)] = 0;
}

/* Without a name where the file system can: then a helper that is killed, or a full disk, leaves nothing
 * behind. `name` is empty then. */
int temporary_open(int dir, char name[32])
{
	int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	name[0] = 0;
	for (int i = 0; i < NAME_TRIES && fd < 0 && (!i || errno == EEXIST); i++) {
		temporary_name(name);
		fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	}
	return fd;
}

static int link_as(int fd, int dir, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW);
}

/* Gives the finished file its name, in the place of what has that name now unless `exclusive`. */
int put_in_place(int fd, int dir, char temporary[32], const char *name, bool exclusive)
{
	if (!*temporary) {
		if (!link_as(fd, dir, name))
			return 0;
		if (errno != EEXIST || exclusive)
			return errno;
		for (int i = 0; i < NAME_TRIES; i++) {
			temporary_name(temporary);
			if (!link_as(fd, dir, temporary))
				break;
			*temporary = 0;
			if (errno != EEXIST)
				break;
		}
		if (!*temporary)
			return errno;
	}
	return syscall(SYS_renameat2, dir, temporary, dir, name, exclusive ? NOREPLACE : 0) ? errno : 0;
}

/* A mount on a single file cannot be replaced: its content is. */
static void copy_over(int from, int dir, const char *name)
{
	int to = openat(dir, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
	off_t at = 0;
	ssize_t n;

	if (to < 0)
		file_fail(errno, "open");
	while ((n = pread(from, file_buffer, FILE_BUFFER, at)) > 0) {
		write_all(to, file_buffer, (size_t)n, "write");
		at += n;
	}
	if (n < 0)
		file_fail(errno, "read");
	close(to);
}

static void replace(int dir, const char *name, mode_t mode, const char *flags, const struct stat *old)
{
	bool exclusive = strchr(flags, 'x') != NULL;
	char temporary[32];
	int fd = temporary_open(dir, temporary), error;

	if (fd < 0)
		file_fail(errno, "create");
	content_take(fd, strchr(flags, 's') != NULL);
	/* What may be done with a file does not change with its content; but it gains no set-id bit. */
	if (old && strchr(flags, 'k'))
		mode = old->st_mode & 01777;
	/* A file that root writes for its owner stays the owner's. */
	if (old && (old->st_uid != geteuid() || old->st_gid != getegid()))
		(void)!fchown(fd, old->st_uid, old->st_gid);
	error = fchmod(fd, mode) ? errno : put_in_place(fd, dir, temporary, name, exclusive);
	if (error == EBUSY && !exclusive) {
		copy_over(fd, dir, name);
		error = 0;
		unlinkat(dir, temporary, 0);
	}
	if (error) {
		if (*temporary)
			unlinkat(dir, temporary, 0);
		file_fail(error, "rename");
	}
	close(fd);
}

/* put PATH OFFSET FLAGS: over what is there, from an offset on; -1: from the end. In place, so a reader
 * may see half of it. */
void file_patch(char **argv)
{
	bool at_end = !strcmp(argv[2], "-1");
	uint64_t offset = at_end ? 0 : number_parse(argv[2], 10, INT64_MAX);
	int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	const char *name;
	struct stat st;
	int dir = parent_open(argv[1], &name, strchr(argv[3], 'p') != NULL), fd;

	if (strchr(argv[3], 'c'))
		flags |= O_CREAT;
	fd = openat(dir, name, flags | (at_end ? O_APPEND : 0), 0644);
	if (fd < 0)
		file_fail(errno, "open");
	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		file_fail(EINVAL, "type");
	if (lseek(fd, (off_t)offset, SEEK_SET) < 0)
		file_fail(errno, "seek");
	content_take(fd, false);
	if (fstat(fd, &st))
		file_fail(errno, "stat");
	record_put(dir, name, argv[1], &st);
	out_flush();
	close(fd);
}

/* write PATH MODE FLAGS */
void file_write(char **argv)
{
	static char resolved[PATH_MAX];
	mode_t mode = (mode_t)number_parse(argv[2], 8, 07777);
	bool exclusive = strchr(argv[3], 'x') != NULL, exists;
	char *path = argv[1];
	const char *name;
	struct stat st;
	int dir = parent_open(path, &name, strchr(argv[3], 'p') != NULL);

	exists = !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW);
	if (exists && exclusive)
		file_fail(EEXIST, "create");
	if (exists && S_ISLNK(st.st_mode)) {
		/* The link stays; what it names is written. */
		if (!realpath(path, resolved))
			file_fail(errno, "link");
		path = resolved;
		dir = parent_open(path, &name, false);
		exists = !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW);
	}
	if (exists && !S_ISREG(st.st_mode))
		file_fail(S_ISDIR(st.st_mode) ? EISDIR : EINVAL, "type");
	/* Who may write in a directory can replace a file there that is closed to him; that it is closed is
	 * meant for him. */
	if (exists && faccessat(dir, name, W_OK, 0))
		file_fail(errno, "open");
	if (strchr(argv[3], 'a'))
		append(dir, name, mode);
	else
		replace(dir, name, mode, argv[3], exists ? &st : NULL);
	record_of(dir, name, argv[1]);
}

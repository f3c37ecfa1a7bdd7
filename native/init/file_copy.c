/* copy and move. Both sides of a tree are walked by descriptors and without following links: whatever is
 * swapped meanwhile, nothing outside of the two is read or written. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "file.h"

enum { KEPT_MODE = 01777, CHUNK_MAX = 1 << 30, NOREPLACE = 1 };

static dev_t target_dev; /* the tree that is being made: not a part of what is copied */
static ino_t target_ino;

static void owner_copy(int fd, const struct stat *st)
{
	if (!geteuid() && (st->st_uid || st->st_gid))
		(void)!fchown(fd, st->st_uid, st->st_gid);
}

static void times_copy(int fd, const struct stat *st)
{
	struct timespec times[2] = {st->st_atim, st->st_mtim};

	futimens(fd, times);
}

/* Bytes from..to of the file; false where the kernel cannot do it alone. */
static bool range_in_kernel(int in, int out, off_t at, off_t end)
{
	off_t to = at;

	while (at < end) {
		size_t want = end - at < CHUNK_MAX ? (size_t)(end - at) : CHUNK_MAX;
		ssize_t n = syscall(SYS_copy_file_range, in, &at, out, &to, want, 0);

		if (n < 0 && errno == ENOSPC)
			file_fail(errno, "write");
		if (n <= 0)
			return false;
	}
	return true;
}

static void range_copy(int in, int out, off_t at, off_t end)
{
	if (range_in_kernel(in, out, at, end))
		return;
	while (at < end) {
		size_t want = end - at < FILE_BUFFER ? (size_t)(end - at) : FILE_BUFFER;
		ssize_t n = pread(in, file_buffer, want, at);

		if (n < 0)
			file_fail(errno, "read");
		if (!n)
			return; /* it has shrunk */
		if (lseek(out, at, SEEK_SET) < 0)
			file_fail(errno, "write");
		write_all(out, file_buffer, (size_t)n, "write");
		at += n;
	}
}

/* What it holds now; a file that grows all the while has an end here. Holes stay holes. */
static void content_copy(int in, int out, const struct stat *st)
{
	off_t size = (off_t)read_bound(in, st), at = 0, hole;

	if (!st->st_size) {
		range_copy(in, out, 0, size);
		return;
	}
	if (!ioctl(out, FICLONE, in)) {
		if (ftruncate(out, size))
			file_fail(errno, "truncate");
		return;
	}
	if (ftruncate(out, size))
		file_fail(errno, "truncate");
	while (at < size) {
		off_t data = lseek(in, at, SEEK_DATA);

		if (data < 0 && errno == ENXIO)
			return; /* only a hole is left */
		if (data > at)
			at = data;
		hole = data < 0 ? size : lseek(in, at, SEEK_HOLE);
		if (hole <= at || hole > size)
			hole = size;
		range_copy(in, out, at, hole);
		at = hole;
	}
}

/* Takes in. The new file appears whole, in the place of a file or link of that name. */
static void file_copy_to(int in, const struct stat *st, int dir, const char *name, bool exclusive)
{
	char temporary[32];
	int out = temporary_open(dir, temporary), error;

	if (out < 0)
		file_fail(errno, "create");
	content_copy(in, out, st);
	owner_copy(out, st);
	error = fchmod(out, st->st_mode & KEPT_MODE) ? errno : 0;
	times_copy(out, st);
	if (!error)
		error = put_in_place(out, dir, temporary, name, exclusive);
	if (error && *temporary)
		unlinkat(dir, temporary, 0);
	if (error)
		file_fail(error, "rename");
	close(in);
	close(out);
}

static void link_copy(int from, const char *name, const struct stat *st, int dir, const char *to)
{
	char target[FILE_PATH_MAX];
	ssize_t n = readlinkat(from, name, target, sizeof(target) - 1);

	if (n < 0)
		file_fail(errno, "readlink");
	target[n] = 0;
	if (symlinkat(target, dir, to)) {
		if (errno != EEXIST || unlinkat(dir, to, 0) || symlinkat(target, dir, to))
			file_fail(errno, "symlink");
	}
	if (!geteuid() && (st->st_uid || st->st_gid))
		(void)!fchownat(dir, to, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW);
}

static void tree_copy(int in, const struct stat *st, int dir, const char *name, int depth);

static void member_copy(int from, const char *name, int dir, int depth)
{
	struct stat st;
	int fd;

	if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW)) {
		if (errno == ENOENT)
			return; /* gone by now */
		file_fail(errno, "stat");
	}
	if (S_ISLNK(st.st_mode)) {
		link_copy(from, name, &st, dir, name);
	} else if (S_ISFIFO(st.st_mode)) {
		if (mkfifoat(dir, name, st.st_mode & 0777) && errno != EEXIST)
			file_fail(errno, "create");
	} else if (S_ISDIR(st.st_mode)) {
		if (st.st_dev == target_dev && st.st_ino == target_ino)
			return;
		fd = directory_below(from, name);
		if (fd < 0)
			file_fail(-fd, "open");
		tree_copy(fd, &st, dir, name, depth + 1);
	} else if (S_ISREG(st.st_mode)) {
		fd = regular_open(from, name, &st);
		if (fd < 0)
			file_fail(-fd, "open");
		file_copy_to(fd, &st, dir, name, false);
	}
	/* Sockets and devices belong to who made them. */
}

/* Takes in. A directory that is there already gets the members too. */
static void tree_copy(int in, const struct stat *st, int dir, const char *name, int depth)
{
	bool made = !mkdirat(dir, name, 0700);
	struct dirent *entry;
	struct stat target;
	DIR *source;
	int out;

	if (!made && errno != EEXIST)
		file_fail(errno, "mkdir");
	out = directory_below(dir, name);
	if (out < 0)
		file_fail(-out, "open");
	if (!depth && !fstat(out, &target)) {
		target_dev = target.st_dev;
		target_ino = target.st_ino;
	}
	if (depth >= FILE_DEPTH_MAX)
		file_fail(ENAMETOOLONG, "depth");
	source = fdopendir(in);
	if (!source)
		file_fail(errno, "open");
	for (errno = 0; (entry = readdir(source)); errno = 0)
		if (!is_dots(entry->d_name))
			member_copy(in, entry->d_name, out, depth);
	if (errno)
		file_fail(errno, "read");
	if (made) {
		owner_copy(out, st);
		if (fchmod(out, st->st_mode & KEPT_MODE))
			file_fail(errno, "chmod");
		times_copy(out, st);
	}
	closedir(source);
	close(out);
}

static void copy_to(int in, const struct stat *st, int dir, const char *name, const char *flags)
{
	bool exclusive = strchr(flags, 'x') != NULL;
	struct stat there;

	if (exclusive && !fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW))
		file_fail(EEXIST, "create");
	if (S_ISREG(st->st_mode))
		file_copy_to(in, st, dir, name, exclusive);
	else if (!S_ISDIR(st->st_mode))
		file_fail(EINVAL, "type");
	else if (!strchr(flags, 'r'))
		file_fail(EISDIR, "open");
	else
		tree_copy(in, st, dir, name, 0);
}

/* copy FROM TO FLAGS (r: a directory too, p: parents, x: must not exist) */
void file_copy(char **argv)
{
	int in = open(argv[1], O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), dir;
	const char *name;
	struct stat st;

	if (in < 0 || fstat(in, &st))
		file_fail(errno, "open");
	dir = parent_open(argv[2], &name, strchr(argv[3], 'p') != NULL);
	copy_to(in, &st, dir, name, argv[3]);
}

/* Onto another file system, or a directory of a layer, which overlayfs does not rename: copied beside the
 * new place first, so that a move that fails leaves what there was. */
static void move_by_copy(int from, const char *name, int dir, const char *to, bool exclusive)
{
	char fresh[48] = ".skerry-move-";
	size_t n = strlen(fresh);
	struct stat st;
	int in;

	fresh[n + number_text(fresh + n, (uint64_t)getpid(), 10, 1)] = 0;
	if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW))
		file_fail(errno, "stat");
	if (S_ISLNK(st.st_mode)) {
		link_copy(from, name, &st, dir, fresh);
	} else {
		in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		if (in < 0 || fstat(in, &st))
			file_fail(errno, "open");
		copy_to(in, &st, dir, fresh, "rx");
	}
	if (syscall(SYS_renameat2, dir, fresh, dir, to, exclusive ? NOREPLACE : 0)) {
		int error = errno;

		if (S_ISDIR(st.st_mode))
			remove_tree(dir, fresh);
		else
			unlinkat(dir, fresh, 0);
		file_fail(error, "rename");
	}
	if (S_ISDIR(st.st_mode))
		remove_tree(from, name);
	else if (unlinkat(from, name, 0))
		file_fail(errno, "unlink");
}

/* move FROM TO FLAGS (p: parents, x: must not exist) */
void file_move(char **argv)
{
	bool exclusive = strchr(argv[3], 'x') != NULL;
	const char *name, *to;
	int from = parent_open(argv[1], &name, false);
	int dir = parent_open(argv[2], &to, strchr(argv[3], 'p') != NULL);

	if (!syscall(SYS_renameat2, from, name, dir, to, exclusive ? NOREPLACE : 0))
		return;
	if (errno != EXDEV)
		file_fail(errno, "rename");
	move_by_copy(from, name, dir, to, exclusive);
}

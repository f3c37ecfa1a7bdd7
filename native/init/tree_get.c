/* tree-get PATH: the content of a directory as a tar on stdout. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "file.h"
#include "tar.h"

enum { LINKS_MAX = 1 << 16 /* a power of two */ };

/* Files of several names that were sent already. When half full, later ones are sent as copies. */
struct seen {
	dev_t dev;
	ino_t ino;
	char *path;
};
static struct seen seen[LINKS_MAX];
static size_t seen_count;

static struct tar_entry entry; /* entry.path grows and shrinks with the walk */
static uint8_t header[2 * TAR_BLOCK + TAR_RECORDS_MAX];

/* The first name of this file, or NULL if this is it. */
static const char *first_name(const struct stat *st)
{
	size_t at = ((size_t)st->st_ino * 2654435761u ^ (size_t)st->st_dev) % LINKS_MAX;

	while (seen[at].path) {
		if (seen[at].dev == st->st_dev && seen[at].ino == st->st_ino)
			return seen[at].path;
		at = (at + 1) % LINKS_MAX;
	}
	if (seen_count < LINKS_MAX / 2) {
		char *path = strdup(entry.path);

		if (path) {
			seen[at] = (struct seen){st->st_dev, st->st_ino, path};
			seen_count++;
		}
	}
	return NULL;
}

static void header_put(const struct stat *st, char type, uint64_t size)
{
	entry.type = type;
	entry.size = size;
	entry.mode = st->st_mode & 07777;
	entry.uid = st->st_uid;
	entry.gid = st->st_gid;
	entry.mtime = st->st_mtim.tv_sec;
	entry.mtime_ns = (uint32_t)st->st_mtim.tv_nsec;
	out_bytes(header, tar_build(header, &entry));
	entry.link[0] = 0;
}

static void padding_put(uint64_t size)
{
	static const uint8_t zeros[TAR_BLOCK];

	if (size % TAR_BLOCK)
		out_bytes(zeros, TAR_BLOCK - size % TAR_BLOCK);
}

/* Exactly the size that the header told: a file that shrinks meanwhile is filled with zeros. */
static void content_put(int fd, uint64_t size)
{
	uint64_t left = size;

	while (left) {
		size_t want = left < FILE_BUFFER ? (size_t)left : FILE_BUFFER;
		ssize_t n = read(fd, file_buffer, want);

		if (n < 0)
			file_fail(errno, "read");
		if (n == 0) {
			memset(file_buffer, 0, want);
			n = (ssize_t)want;
		}
		out_bytes(file_buffer, (size_t)n);
		left -= (uint64_t)n;
	}
	padding_put(size);
}

static void file_put(int dir, const char *name, const struct stat *listed)
{
	const char *first = listed->st_nlink > 1 ? first_name(listed) : NULL;
	struct stat st;
	int fd;

	if (first) {
		strcpy(entry.link, first);
		header_put(listed, '1', 0);
		return;
	}
	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		file_fail(errno, "open");
	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		file_fail(EAGAIN, "changed");
	header_put(&st, '0', (uint64_t)st.st_size);
	content_put(fd, (uint64_t)st.st_size);
	close(fd);
}

static void link_put(int dir, const char *name, const struct stat *st)
{
	ssize_t n = readlinkat(dir, name, entry.link, sizeof(entry.link) - 1);

	if (n < 0)
		file_fail(errno, "readlink");
	entry.link[n] = 0;
	header_put(st, '2', 0);
}

static void walk(int fd, int depth);

static void directory_put(int dir, const char *name, const struct stat *st, int depth)
{
	size_t n = strlen(entry.path);
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		file_fail(errno, "open");
	if (depth >= FILE_DEPTH_MAX || n + 2 > sizeof(entry.path))
		file_fail(ENAMETOOLONG, "depth");
	strcpy(entry.path + n, "/");
	header_put(st, '5', 0);
	walk(fd, depth + 1);
	entry.path[n] = 0;
}

static void member_put(int dir, const char *name, int depth)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
		if (errno == ENOENT)
			return; /* gone by now */
		file_fail(errno, "stat");
	}
	if (S_ISDIR(st.st_mode))
		directory_put(dir, name, &st, depth);
	else if (S_ISREG(st.st_mode))
		file_put(dir, name, &st);
	else if (S_ISLNK(st.st_mode))
		link_put(dir, name, &st);
	else if (S_ISFIFO(st.st_mode))
		header_put(&st, '6', 0);
	/* Sockets cannot be stored; devices belong to the sandbox that made them. */
}

/* Takes fd. */
static void walk(int fd, int depth)
{
	size_t n = strlen(entry.path);
	DIR *dir = fdopendir(fd);
	struct dirent *d;

	if (!dir)
		file_fail(errno, "open");
	for (;;) {
		errno = 0;
		d = readdir(dir);
		if (!d)
			break;
		if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
			continue;
		if (n + strlen(d->d_name) + 2 > sizeof(entry.path))
			file_fail(ENAMETOOLONG, "depth");
		strcpy(entry.path + n, d->d_name);
		member_put(fd, d->d_name, depth);
		entry.path[n] = 0;
	}
	if (errno)
		file_fail(errno, "read");
	closedir(dir);
}

void tree_get(char **argv)
{
	static const uint8_t end[2 * TAR_BLOCK];
	int fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		file_fail(errno, "open");
	walk(fd, 0);
	out_bytes(end, sizeof(end));
	out_flush();
}

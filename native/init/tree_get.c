/* tree-get PATH: the content of a directory, or one file, as a tar on stdout. What was left out, and what
 * changed while it was read, stands in a comment of a last member for the tree itself. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "file.h"
#include "sparse.h"
#include "tar.h"

enum { LINKS_MAX = 1 << 16 /* a power of two */, NOTES_MAX = 16384 };

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
static dev_t home_dev; /* /proc and its like below a tree are none of it */
static char notes[NOTES_MAX + 64];
static size_t notes_used;
static uint64_t notes_lost;

/* A line about entry.path; what would break the line is a question mark. */
static void note(const char *what)
{
	size_t n = strlen(what), length = strlen(entry.path);

	if (notes_used + n + length + 3 > NOTES_MAX) {
		notes_lost++;
		return;
	}
	memcpy(notes + notes_used, what, n);
	notes_used += n;
	notes[notes_used++] = ' ';
	for (const char *c = entry.path; *c; c++)
		notes[notes_used++] = (unsigned char)*c < ' ' ? '?' : *c;
	notes[notes_used++] = '\n';
}

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

static void header_fill(const struct stat *st, char type, uint64_t size)
{
	entry.type = type;
	entry.size = size;
	entry.sparse = false;
	entry.mode = st->st_mode & 07777;
	entry.uid = st->st_uid;
	entry.gid = st->st_gid;
	entry.mtime = st->st_mtim.tv_sec;
	entry.mtime_ns = (uint32_t)st->st_mtim.tv_nsec;
}

static void header_put(const struct stat *st, char type, uint64_t size)
{
	header_fill(st, type, size);
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
static bool content_put(int fd, uint64_t size)
{
	uint64_t at = 0;
	bool whole = true;

	while (at < size) {
		size_t want = size - at < FILE_BUFFER ? (size_t)(size - at) : FILE_BUFFER;
		ssize_t n = pread(fd, file_buffer, want, (off_t)at);

		if (n < 0)
			file_fail(errno, "read");
		if (n == 0) {
			memset(file_buffer, 0, want);
			n = (ssize_t)want;
			whole = false;
		}
		out_bytes(file_buffer, (size_t)n);
		at += (uint64_t)n;
	}
	return whole;
}

static void holes_header(const struct stat *st)
{
	header_fill(st, '0', sparse_map_size() + sparse_data_size());
	entry.sparse = true;
	entry.real_size = (uint64_t)st->st_size;
	out_bytes(header, tar_build(header, &entry));
}

static void regular_put(int fd, const struct stat *st)
{
	bool holes = sparse_scan(fd, st), whole;
	struct stat now;

	if (holes) {
		holes_header(st);
		whole = sparse_put(fd);
		padding_put(entry.size);
	} else {
		header_put(st, '0', (uint64_t)st->st_size);
		whole = content_put(fd, (uint64_t)st->st_size);
		padding_put((uint64_t)st->st_size);
	}
	if (!whole || fstat(fd, &now) || now.st_mtim.tv_sec != st->st_mtim.tv_sec ||
	    now.st_mtim.tv_nsec != st->st_mtim.tv_nsec || now.st_size != st->st_size)
		note("changed");
}

/* What this user may not read is left out, and said. */
static bool closed(int error)
{
	return error == EACCES || error == EPERM;
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
	fd = regular_open(dir, name, &st);
	if (fd == -ENOENT || fd == -ELOOP || fd == -EINVAL) {
		note("changed"); /* removed, or something else by now */
		return;
	}
	if (closed(-fd)) {
		note("unreadable");
		return;
	}
	if (fd < 0)
		file_fail(-fd, "open");
	regular_put(fd, &st);
	close(fd);
}

static void link_put(int dir, const char *name, const struct stat *st)
{
	ssize_t n = readlinkat(dir, name, entry.link, sizeof(entry.link) - 1);

	if (n < 0) {
		note("changed");
		return;
	}
	entry.link[n] = 0;
	header_put(st, '2', 0);
}

static void walk(int fd, int depth);

static void directory_put(int dir, const char *name, const struct stat *st, int depth)
{
	size_t n = strlen(entry.path);
	int fd = directory_below(dir, name);

	if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP) {
		note("changed");
		return;
	}
	if (fd < 0 && !closed(-fd))
		file_fail(-fd, "open");
	if (depth >= FILE_DEPTH_MAX || n + 2 > sizeof(entry.path))
		file_fail(ENAMETOOLONG, "depth");
	strcpy(entry.path + n, "/");
	header_put(st, '5', 0);
	if (fd < 0) {
		note("unreadable");
	} else if (st->st_dev == home_dev) {
		walk(fd, depth + 1);
	} else {
		note("another file system:");
		close(fd);
	}
	entry.path[n] = 0;
}

static void member_put(int dir, const char *name, int depth)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
		if (errno == ENOENT)
			return; /* gone by now */
		if (closed(errno)) { /* a directory that may be listed and not entered */
			note("unreadable");
			return;
		}
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
	else /* sockets cannot be stored; devices belong to the sandbox that made them */
		note("skipped");
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
		if (is_dots(d->d_name))
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

static void notes_put(const struct stat *st)
{
	size_t n = notes_used;

	if (!n)
		return;
	if (notes_lost) {
		memcpy(notes + n, "more ", 5);
		n += 5;
		n += number_text(notes + n, notes_lost, 10, 1);
		notes[n++] = '\n';
	}
	notes[n - 1] = 0;
	strcpy(entry.path, "./");
	header_fill(st, '5', 0);
	out_bytes(header, tar_build_comment(header, &entry, notes));
}

void tree_get(char **argv)
{
	static const uint8_t end[2 * TAR_BLOCK];
	int fd = open(argv[1], O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	const char *name;
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		file_fail(errno, "open");
	home_dev = st.st_dev;
	if (S_ISDIR(st.st_mode)) {
		walk(fd, 0);
	} else if (S_ISREG(st.st_mode)) {
		name = strrchr(argv[1], '/');
		strcpy(entry.path, name ? name + 1 : argv[1]);
		regular_put(fd, &st);
	} else {
		file_fail(EINVAL, "type");
	}
	notes_put(&st);
	out_bytes(end, sizeof(end));
	out_flush();
}

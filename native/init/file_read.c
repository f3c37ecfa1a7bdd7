/* read, tail, sparse: one file's content to stdout. A file that grows all the while ends where it ended
 * when it was opened, unless the caller said how much. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "sparse.h"

static int content_open(const char *path, struct stat *st)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd < 0)
		file_fail(errno, "open");
	if (fstat(fd, st))
		file_fail(errno, "stat");
	if (S_ISDIR(st->st_mode))
		file_fail(EISDIR, "open");
	/* A FIFO or a terminal would never say that it is at its end. */
	if (!S_ISREG(st->st_mode))
		file_fail(EINVAL, "type");
	return fd;
}

/* False if there was less. */
static bool content_put(int fd, uint64_t offset, uint64_t left)
{
	while (left) {
		size_t want = left < FILE_BUFFER ? (size_t)left : FILE_BUFFER;
		ssize_t n = pread(fd, file_buffer, want, (off_t)offset);

		if (n < 0)
			file_fail(errno, "read");
		if (!n)
			return false;
		write_all(1, file_buffer, (size_t)n, "stdout");
		offset += (uint64_t)n;
		left -= (uint64_t)n;
	}
	return true;
}

/* read PATH OFFSET LENGTH */
void file_read(char **argv)
{
	uint64_t offset = number_parse(argv[2], 10, INT64_MAX), size;
	struct stat st;
	int fd = content_open(argv[1], &st);

	if (strcmp(argv[3], "-1")) {
		content_put(fd, offset, number_parse(argv[3], 10, INT64_MAX));
		return;
	}
	size = read_bound(fd, &st);
	if (offset >= size)
		return;
	/* Only /proc and its like have no size, and an end. */
	if (content_put(fd, offset, size - offset) && !st.st_size)
		file_fail(EFBIG, "read");
}

/* tail PATH LENGTH */
void file_tail(char **argv)
{
	uint64_t length = number_parse(argv[2], 10, INT64_MAX), size;
	struct stat st;
	int fd = content_open(argv[1], &st);

	size = (uint64_t)st.st_size;
	if (length > size)
		length = size;
	content_put(fd, size - length, length);
}

/* sparse PATH: its map, then what it holds. */
void file_sparse_read(char **argv)
{
	struct stat st;
	int fd = content_open(argv[1], &st);

	sparse_scan(fd, &st);
	if (!sparse_put(fd))
		file_fail(EAGAIN, "changed");
	out_flush();
}

/* What the words of the file helper share: streams, numbers, records, parents. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

uint8_t file_buffer[FILE_BUFFER];

static uint8_t out_buffer[FILE_BUFFER];
static size_t out_used;

void file_fail(int error, const char *step)
{
	char text[64];
	size_t n = number_text(text, (uint64_t)error, 10, 1), length = strlen(step);

	out_flush();
	text[n++] = ' ';
	memcpy(text + n, step, length);
	n += length;
	text[n++] = '\n';
	(void)!write(2, text, n);
	_exit(1);
}

void write_all(int fd, const void *bytes, size_t n, const char *step)
{
	const uint8_t *at = bytes;

	while (n) {
		ssize_t done = write(fd, at, n);

		if (done < 0 && errno != EINTR)
			file_fail(errno, step);
		if (done > 0) {
			at += done;
			n -= (size_t)done;
		}
	}
}

void out_flush(void)
{
	size_t n = out_used;

	out_used = 0;
	write_all(1, out_buffer, n, "stdout");
}

void out_bytes(const void *bytes, size_t n)
{
	if (n > sizeof(out_buffer) - out_used)
		out_flush();
	if (n > sizeof(out_buffer)) {
		write_all(1, bytes, n, "stdout");
		return;
	}
	memcpy(out_buffer + out_used, bytes, n);
	out_used += n;
}

size_t in_some(void *bytes, size_t n)
{
	ssize_t done;

	do
		done = read(0, bytes, n);
	while (done < 0 && errno == EINTR);
	if (done < 0)
		file_fail(errno, "stdin");
	return (size_t)done;
}

bool in_exactly(void *bytes, size_t n)
{
	uint8_t *at = bytes;
	size_t have = 0;

	while (have < n) {
		size_t done = in_some(at + have, n - have);

		if (!done && have)
			file_fail(EIO, "truncated");
		if (!done)
			return false;
		have += done;
	}
	return true;
}

size_t number_text(char *out, uint64_t value, unsigned int base, size_t width)
{
	char digits[64];
	size_t n = 0, count;

	do
		digits[n++] = (char)('0' + value % base);
	while (value /= base);
	while (n < width && n < sizeof(digits))
		digits[n++] = '0';
	for (count = 0; n; count++)
		out[count] = digits[--n];
	return count;
}

uint64_t number_parse(const char *text, unsigned int base, uint64_t max)
{
	uint64_t value = 0;

	if (!*text)
		file_fail(EINVAL, "words");
	for (; *text; text++) {
		if (*text < '0' || *text >= (char)('0' + base))
			file_fail(EINVAL, "words");
		value = value * base + (uint64_t)(*text - '0');
		if (value > max)
			file_fail(EINVAL, "words");
	}
	return value;
}

int64_t mtime_ns(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static char type_letter(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return 'd';
	case S_IFLNK:
		return 'l';
	case S_IFIFO:
		return 'p';
	case S_IFSOCK:
		return 's';
	case S_IFCHR:
		return 'c';
	case S_IFBLK:
		return 'b';
	default:
		return 'f';
	}
}

static char *put_number(char *at, uint64_t value, unsigned int base)
{
	*at++ = ' ';
	return at + number_text(at, value, base, 1);
}

void record_put(int dir, const char *name, const char *shown, const struct stat *st)
{
	char head[160], link[FILE_PATH_MAX], *at = head;
	ssize_t linked = 0;
	int64_t mtime = mtime_ns(st);

	if (S_ISLNK(st->st_mode))
		linked = readlinkat(dir, name, link, sizeof(link));
	if (linked < 0)
		linked = 0;
	*at++ = type_letter(st->st_mode);
	at = put_number(at, st->st_mode & 07777, 8);
	at = put_number(at, st->st_uid, 10);
	at = put_number(at, st->st_gid, 10);
	at = put_number(at, (uint64_t)st->st_size, 10);
	if (mtime < 0) { /* before 1970 */
		*at++ = ' ';
		*at++ = '-';
		at += number_text(at, (uint64_t)-mtime, 10, 1);
	} else {
		at = put_number(at, (uint64_t)mtime, 10);
	}
	at = put_number(at, strlen(shown), 10);
	at = put_number(at, (uint64_t)linked, 10);
	*at++ = '\n';
	out_bytes(head, (size_t)(at - head));
	out_bytes(shown, strlen(shown));
	out_bytes(link, (size_t)linked);
}

/* Makes what is missing of a directory's path, as mkdir -p does. */
static void parents_make(char *path)
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (mkdir(path, 0755) && errno != EEXIST)
			file_fail(errno, "mkdir");
		*slash = '/';
	}
	if (mkdir(path, 0755) && errno != EEXIST)
		file_fail(errno, "mkdir");
}

int parent_open(char *path, const char **name, bool parents)
{
	size_t n = strlen(path);
	char *slash;
	int dir;

	while (n > 1 && path[n - 1] == '/')
		path[--n] = 0;
	slash = strrchr(path, '/');
	*name = slash ? slash + 1 : path;
	if (!**name || !strcmp(*name, ".") || !strcmp(*name, ".."))
		file_fail(EINVAL, "path");
	if (!slash)
		return AT_FDCWD;
	if (slash == path)
		return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*slash = 0;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 && errno == ENOENT && parents) {
		parents_make(path);
		dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	if (dir < 0)
		file_fail(errno, "parent");
	*slash = '/';
	return dir;
}

/* What the words of the file helper share: streams, numbers, records, parents. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "weak.h"

uint8_t file_buffer[FILE_BUFFER];

static uint8_t out_buffer[65536], in_buffer[65536];
static size_t out_used, in_at, in_end;

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

void pipes_widen(void)
{
	(void)fcntl(0, F_SETPIPE_SZ, FILE_PIPE);
	(void)fcntl(1, F_SETPIPE_SZ, FILE_PIPE);
}

static size_t in_read(void *bytes, size_t n)
{
	ssize_t done;

	do
		done = read(0, bytes, n);
	while (done < 0 && errno == EINTR);
	if (done < 0)
		file_fail(errno, "stdin");
	return (size_t)done;
}

size_t in_some(void *bytes, size_t n)
{
	size_t here;

	if (in_at == in_end) {
		if (n >= sizeof(in_buffer))
			return in_read(bytes, n);
		in_at = 0;
		in_end = in_read(in_buffer, sizeof(in_buffer));
	}
	here = in_end - in_at < n ? in_end - in_at : n;
	memcpy(bytes, in_buffer + in_at, here);
	in_at += here;
	return here;
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

char type_letter(mode_t mode)
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

void record_put_as(char letter, int dir, const char *name, const char *shown, const struct stat *st)
{
	char head[192], link[FILE_PATH_MAX], *at = head;
	ssize_t linked = 0;
	int64_t mtime = mtime_ns(st);

	if (S_ISLNK(st->st_mode))
		linked = readlinkat(dir, name, link, sizeof(link));
	if (linked < 0)
		linked = 0;
	*at++ = letter;
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
	at = put_number(at, (uint64_t)st->st_blocks * 512, 10);
	*at++ = '\n';
	out_bytes(head, (size_t)(at - head));
	out_bytes(shown, strlen(shown));
	out_bytes(link, (size_t)linked);
}

void record_put(int dir, const char *name, const char *shown, const struct stat *st)
{
	record_put_as(type_letter(st->st_mode), dir, name, shown, st);
}

/* --- below a directory ---------------------------------------------------------------------------- */

bool is_dots(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

int directory_below(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int beneath_step(int root, const char *path, uint64_t flags)
{
	struct open_how how = {.flags = flags | O_CLOEXEC,
			       .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
	int fd;

	if (weak("beneath"))
		fd = openat(root, path, (int)how.flags);
	else
		fd = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
	return fd < 0 ? -errno : fd;
}

int beneath_open(int root, const char *path, uint64_t flags)
{
	char part[FILE_PATH_MAX];
	int at = root, next;

	/* The kernel takes at most a page at once. */
	while (strlen(path) >= sizeof(part)) {
		size_t n = sizeof(part) - 1;

		while (n && path[n] != '/')
			n--;
		if (!n)
			return -ENAMETOOLONG;
		memcpy(part, path, n);
		part[n] = 0;
		next = beneath_step(at, part, O_PATH | O_DIRECTORY);
		if (at != root)
			close(at);
		if (next < 0)
			return next;
		at = next;
		path += n + strspn(path + n, "/");
	}
	next = beneath_step(at, *path ? path : ".", flags);
	if (at != root)
		close(at);
	return next;
}

size_t path_push(char path[TREE_PATH], const char *name)
{
	size_t n = strlen(path), more = strlen(name);

	if (n + more + 2 > TREE_PATH)
		file_fail(ENAMETOOLONG, "depth");
	if (n)
		path[n] = '/';
	memcpy(path + n + (n > 0), name, more + 1);
	return n;
}

int regular_open(int dir, const char *name, struct stat *st)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (!fstat(fd, st) && S_ISREG(st->st_mode))
		return fd;
	close(fd);
	return -EINVAL;
}

uint64_t read_bound(int fd, const struct stat *st)
{
	enum { SIZELESS_MAX = 16 << 20 };
	static const uint32_t sizeless[] = {0x9fa0 /* proc */, 0x62656572 /* sysfs */,
					    0x27e0eb /* cgroup */, 0x63677270 /* cgroup2 */};
	struct statfs fs;

	if (st->st_size)
		return (uint64_t)st->st_size;
	for (size_t i = 0; !fstatfs(fd, &fs) && i < sizeof(sizeless) / sizeof(sizeless[0]); i++)
		if ((uint32_t)fs.f_type == sizeless[i])
			return SIZELESS_MAX;
	return 0;
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

#include "sparse.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "tar.h"

enum { WORTH = 65536 /* fewer missing bytes are sent as zeros */ };

struct piece {
	uint64_t offset, size;
};
static struct piece map[SPARSE_PIECES];
static size_t count;

static void piece_add(uint64_t from, uint64_t to)
{
	map[count++] = (struct piece){from, to - from};
}

bool sparse_scan(int fd, const struct stat *st)
{
	off_t size = st->st_size, at = 0, hole;

	count = 0;
	if ((uint64_t)st->st_blocks * 512 + WORTH > (uint64_t)size)
		return false;
	while (at < size && count < SPARSE_PIECES - 2) {
		at = lseek(fd, at, SEEK_DATA);
		if (at < 0 || at >= size)
			break; /* ENXIO: only a hole is left; others: no such thing here */
		hole = lseek(fd, at, SEEK_HOLE);
		if (hole < 0 || hole > size)
			hole = size;
		piece_add((uint64_t)at, (uint64_t)hole);
		at = hole;
	}
	if (at < 0 && errno != ENXIO)
		return false;
	if (at > 0 && at < size && count == SPARSE_PIECES - 2)
		piece_add((uint64_t)at, (uint64_t)size); /* too many: the rest as it is */
	piece_add((uint64_t)size, (uint64_t)size);
	return sparse_data_size() + sparse_map_size() + WORTH <= (uint64_t)size;
}

static size_t map_text(char *out, uint64_t value)
{
	size_t n = number_text(out, value, 10, 1);

	out[n++] = '\n';
	return n;
}

static size_t padded(size_t n)
{
	return (n + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
}

size_t sparse_map_size(void)
{
	char text[32];
	size_t n = map_text(text, count);

	for (size_t i = 0; i < count; i++)
		n += map_text(text, map[i].offset) + map_text(text, map[i].size);
	return padded(n);
}

uint64_t sparse_data_size(void)
{
	uint64_t total = 0;

	for (size_t i = 0; i < count; i++)
		total += map[i].size;
	return total;
}

uint64_t sparse_end(void)
{
	return count ? map[count - 1].offset + map[count - 1].size : 0;
}

static void map_put(void)
{
	static const uint8_t zeros[TAR_BLOCK];
	char text[32];
	size_t n = map_text(text, count), used = n;

	out_bytes(text, n);
	for (size_t i = 0; i < count; i++) {
		n = map_text(text, map[i].offset);
		n += map_text(text + n, map[i].size);
		out_bytes(text, n);
		used += n;
	}
	out_bytes(zeros, padded(used) - used);
}

bool sparse_put(int fd)
{
	bool whole = true;

	map_put();
	for (size_t i = 0; i < count; i++) {
		uint64_t at = map[i].offset, left = map[i].size;

		while (left) {
			size_t want = left < FILE_BUFFER ? (size_t)left : FILE_BUFFER;
			ssize_t n = pread(fd, file_buffer, want, (off_t)at);

			if (n < 0)
				file_fail(errno, "read");
			if (!n) {
				memset(file_buffer, 0, want);
				n = (ssize_t)want;
				whole = false;
			}
			out_bytes(file_buffer, (size_t)n);
			at += (uint64_t)n;
			left -= (uint64_t)n;
		}
	}
	return whole;
}

/* --- taking ----------------------------------------------------------------------------------------- */

/* One decimal line of the map. */
static uint64_t number_take(uint64_t *used)
{
	uint64_t value = 0;
	char c;

	for (int digits = 0;; digits++) {
		if (!in_exactly(&c, 1))
			file_fail(EIO, "truncated");
		++*used;
		if (c == '\n' && digits)
			return value;
		if (c < '0' || c > '9' || digits > 18)
			file_fail(EINVAL, "sparse");
		value = value * 10 + (uint64_t)(c - '0');
	}
}

uint64_t sparse_take_map(uint64_t size)
{
	uint8_t filling[TAR_BLOCK];
	uint64_t used = 0, end = 0, pieces = number_take(&used);

	if (pieces > SPARSE_PIECES)
		file_fail(E2BIG, "sparse");
	for (count = 0; count < pieces; count++) {
		struct piece *p = &map[count];

		p->offset = number_take(&used);
		p->size = number_take(&used);
		if (p->offset < end || p->size > INT64_MAX || p->offset > INT64_MAX - p->size)
			file_fail(EINVAL, "sparse");
		end = p->offset + p->size;
	}
	if (end > size)
		file_fail(EINVAL, "sparse");
	if (used % TAR_BLOCK && !in_exactly(filling, TAR_BLOCK - used % TAR_BLOCK))
		file_fail(EIO, "truncated");
	return (used + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
}

void sparse_take_data(int fd)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t left = map[i].size;

		if (fd >= 0 && lseek(fd, (off_t)map[i].offset, SEEK_SET) < 0)
			file_fail(errno, "write");
		while (left) {
			size_t n = in_some(file_buffer, left < FILE_BUFFER ? (size_t)left : FILE_BUFFER);

			if (!n)
				file_fail(EIO, "truncated");
			if (fd >= 0)
				write_all(fd, file_buffer, n, "write");
			left -= n;
		}
	}
}

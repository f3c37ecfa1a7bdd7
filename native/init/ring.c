#include "ring.h"

#include <string.h>
#include <sys/mman.h>

#include "frames.h"

bool ring_alone;

size_t ring_room(const struct ring *r)
{
	return STREAM_WINDOW - (size_t)(r->end - r->base);
}

bool ring_reserve(struct ring *r)
{
	void *p;

	if (r->bytes)
		return true;
	/* Not malloc: pages that were never touched cost nothing, and munmap gives all back. */
	p = mmap(NULL, STREAM_WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return false;
	if (ring_alone)
		madvise(p, STREAM_WINDOW, MADV_DONTFORK);
	r->bytes = p;
	return true;
}

static int pieces(const struct ring *r, uint64_t offset, size_t n, struct iovec v[2])
{
	size_t at = (size_t)(offset % STREAM_WINDOW);
	size_t first = n < STREAM_WINDOW - at ? n : STREAM_WINDOW - at;

	if (!n)
		return 0;
	v[0] = (struct iovec){.iov_base = r->bytes + at, .iov_len = first};
	v[1] = (struct iovec){.iov_base = r->bytes, .iov_len = n - first};
	return n > first ? 2 : 1;
}

int ring_space(const struct ring *r, size_t max, struct iovec v[2])
{
	size_t room = ring_room(r);

	return pieces(r, r->end, room < max ? room : max, v);
}

int ring_view(const struct ring *r, uint64_t offset, size_t max, struct iovec v[2])
{
	size_t have = (size_t)(r->end - offset);

	return pieces(r, offset, have < max ? have : max, v);
}

void ring_commit(struct ring *r, size_t n)
{
	r->end += n;
}

void ring_copy(const struct ring *r, uint64_t offset, uint8_t *out, size_t n)
{
	struct iovec v[2];
	int count = ring_view(r, offset, n, v);

	for (int i = 0; i < count; i++) {
		memcpy(out, v[i].iov_base, v[i].iov_len);
		out += v[i].iov_len;
	}
}

void ring_drop(struct ring *r, uint64_t offset)
{
	r->base = offset;
	if (r->base == r->end)
		ring_free(r);
}

void ring_free(struct ring *r)
{
	if (r->bytes)
		munmap(r->bytes, STREAM_WINDOW);
	r->bytes = NULL;
	r->base = r->end;
}

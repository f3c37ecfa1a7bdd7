/* The ring against a plain model, and its edges. */
#include <string.h>

#include "../init/ring.c"
#include "check.h"

static uint8_t byte_at(uint64_t offset)
{
	return (uint8_t)(offset * 131 + (offset >> 8));
}

static void put(struct ring *r, size_t n)
{
	struct iovec v[2];
	uint64_t at = r->end;
	int count;

	CHECK(ring_reserve(r));
	count = ring_space(r, n, v);
	for (int i = 0; i < count; i++)
		for (size_t k = 0; k < v[i].iov_len; k++)
			((uint8_t *)v[i].iov_base)[k] = byte_at(at++);
	CHECK(at - r->end == n);
	ring_commit(r, n);
}

static void check_content(const struct ring *r, uint64_t from, size_t n)
{
	static uint8_t copy[STREAM_WINDOW];

	ring_copy(r, from, copy, n);
	for (size_t i = 0; i < n; i++)
		CHECK(copy[i] == byte_at(from + i));
}

static void test_random_walk(void)
{
	struct ring r = {.bytes = NULL};
	unsigned int seed = 1;

	for (int i = 0; i < 3000; i++) {
		size_t have = (size_t)(r.end - r.base), room = ring_room(&r);

		CHECK(have + room == STREAM_WINDOW);
		seed = seed * 1103515245u + 12345u;
		if (seed & 0x10000 && room)
			put(&r, 1 + (seed >> 8) % room);
		else if (have)
			ring_drop(&r, r.base + 1 + (seed >> 8) % have);
		CHECK((r.bytes != NULL) == (r.base != r.end));
		if (r.base != r.end)
			check_content(&r, r.base, (size_t)(r.end - r.base));
	}
	ring_free(&r);
	CHECK(!r.bytes && r.base == r.end);
}

static void test_full(void)
{
	struct ring r = {.bytes = NULL, .base = STREAM_WINDOW - 5, .end = STREAM_WINDOW - 5};
	struct iovec v[2];

	put(&r, STREAM_WINDOW);
	CHECK(ring_room(&r) == 0 && ring_space(&r, SIZE_MAX, v) == 0);
	CHECK(ring_view(&r, r.base, SIZE_MAX, v) == 2 && v[0].iov_len == 5);
	CHECK(ring_view(&r, r.end, SIZE_MAX, v) == 0);
	check_content(&r, r.base + 3, STREAM_WINDOW - 3);
	ring_drop(&r, r.end);
	CHECK(!r.bytes);
}

int main(void)
{
	test_random_walk();
	test_full();
	return 0;
}

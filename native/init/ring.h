/* A byte window of a stream: what lies between two offsets, at most STREAM_WINDOW of it.
 * Memory is taken at the first byte and given back when the window is empty. */
#ifndef SKERRY_RING_H
#define SKERRY_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Invariant: base <= end <= base + STREAM_WINDOW; bytes is NULL only if base == end. */
struct ring {
	uint8_t *bytes;
	uint64_t base, end; /* offsets in the stream */
};

/* Whether what rings hold is kept from children: those that are no programs look at all that they were given. */
extern bool ring_alone;

size_t ring_room(const struct ring *r);
/* False if there is no memory. */
bool ring_reserve(struct ring *r);
/* The free area, at most max bytes of it; returns the number of pieces. Needs ring_reserve(). */
int ring_space(const struct ring *r, size_t max, struct iovec v[2]);
/* The bytes from offset on, at most max of them; returns the number of pieces. */
int ring_view(const struct ring *r, uint64_t offset, size_t max, struct iovec v[2]);
void ring_commit(struct ring *r, size_t n);
void ring_copy(const struct ring *r, uint64_t offset, uint8_t *out, size_t n);
/* Forgets what lies below offset. */
void ring_drop(struct ring *r, uint64_t offset);
void ring_free(struct ring *r);

#endif

/* A START that does not fit into one frame: what follows in MORE frames is collected here, one at a
 * time, and given back as soon as the child has its copy. */
#include "init.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Invariant: used <= size; bytes is NULL iff nothing is being collected. */
static struct {
	uint8_t *bytes;
	size_t size, used;
	uint32_t stream;
} pending;

uint64_t more_announced(const uint8_t *payload, size_t length)
{
	struct fields it = fields_of(payload, length);
	struct field f;
	uint64_t more = 0;

	if (fields_next(&it, &f) > 0 && f.tag == T_MORE && field_u64(&f, &more))
		return 0;
	return more;
}

void more_forget(void)
{
	if (pending.bytes)
		munmap(pending.bytes, pending.size);
	pending.bytes = NULL;
}

int more_begin(const struct frame *f, const uint8_t *payload, uint64_t more)
{
	void *p;

	if (pending.bytes || more > START_MORE_MAX)
		return -EPROTO;
	/* Not malloc: the memory goes back to the host at once. */
	p = mmap(NULL, f->length + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return EAGAIN;
	pending.bytes = p;
	pending.size = f->length + more;
	pending.used = f->length;
	pending.stream = f->stream;
	memcpy(pending.bytes, payload, f->length);
	return 0;
}

int more_take(const struct frame *f, const uint8_t *payload, const char **step)
{
	int error;

	*step = "start";
	if (!pending.bytes || pending.stream != f->stream)
		return 0; /* of a START that was refused */
	if (!f->length || f->length > pending.size - pending.used)
		return -EPROTO;
	memcpy(pending.bytes + pending.used, payload, f->length);
	pending.used += f->length;
	if (pending.used < pending.size)
		return 0;
	error = op_start(f->stream >> 2, pending.bytes, pending.size, step);
	more_forget();
	return error;
}

#include "call.h"

#include <errno.h>
#include <linux/sched.h>

#include "frames.h"

/* The user namespace is the container's for good, and a cgroup namespace would change only names. */
#define JOINABLE ((uint64_t)(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS))

static int use_take(const struct field *f, struct call *out)
{
	struct call_use *use;
	uint64_t value;

	if (out->uses == ZYGOTE_FDS_MAX || field_u64(f, &value))
		return -EPROTO;
	if (f->tag == Z_FD && value >= CALL_STDIO)
		return -EPROTO;
	if (f->tag == Z_JOIN && (!value || value & ~JOINABLE))
		return -EPROTO;
	for (size_t i = 0; f->tag == Z_FD && i < out->uses; i++)
		if (out->use[i].tag == Z_FD && out->use[i].value == value)
			return -EPROTO;
	use = &out->use[out->uses++];
	use->tag = (enum zygote_tag)f->tag;
	use->value = value;
	return 0;
}

static int rlimit_take(const struct field *f, struct call *out)
{
	struct call_rlimit *limit;

	if (out->rlimits == CALL_RLIMITS || f->length != 24)
		return -EPROTO;
	limit = &out->rlimit[out->rlimits++];
	limit->resource = get_u64(f->bytes);
	limit->soft = get_u64(f->bytes + 8);
	limit->hard = get_u64(f->bytes + 16);
	return limit->resource < 16 && limit->soft <= limit->hard ? 0 : -EPROTO;
}

static int id_take(const struct field *f, uint32_t *id)
{
	uint64_t value;

	if (field_u64(f, &value) || value >= UINT32_MAX)
		return -EPROTO;
	*id = (uint32_t)value;
	return 0;
}

static int field_take(const struct field *f, struct call *out)
{
	switch (f->tag) {
	case Z_FD:
	case Z_JOIN:
	case Z_GROUP:
		return use_take(f, out);
	case Z_RLIMIT:
		return rlimit_take(f, out);
	case Z_UID:
		return id_take(f, &out->uid);
	case Z_GID:
		return id_take(f, &out->gid);
	case Z_CWD:
		return field_text(f, out->cwd, sizeof(out->cwd)) ? -EPROTO : 0;
	}
	return 0;
}

int call_parse(const uint8_t *packet, size_t size, struct call *out)
{
	uint32_t given = 0;
	struct frame frame;
	struct fields it;
	struct field f;
	int more;

	out->number = out->uid = out->gid = 0;
	out->uses = out->rlimits = 0;
	out->cwd[0] = 0;
	if (size < FRAME_HEADER || frame_decode(packet, &frame))
		return -EPROTO;
	out->number = frame.stream;
	if (frame.type != Z_CALL || frame.length != size - FRAME_HEADER)
		return -EPROTO;
	it = fields_of(packet + FRAME_HEADER, frame.length);
	while ((more = fields_next(&it, &f)) > 0)
		if (field_take(&f, out))
			return -EPROTO;
	for (size_t i = 0; i < out->uses; i++)
		if (out->use[i].tag == Z_FD)
			given |= 1u << out->use[i].value;
	if (more || (given & 14) != 14)
		return -EPROTO;
	return out->uid && out->gid ? 0 : -EPERM;
}

/* What a START asks for, beside what only the child reads (child.c). */
#include "request.h"

#include <errno.h>
#include <string.h>

#include "cell.h"
#include "zygote.h"

static int rlimits_parse(const struct field *f, struct request *r)
{
	struct fields it = fields_of(f->bytes, f->length);
	struct field limit;
	int more;

	while ((more = fields_next(&it, &limit)) > 0) {
		uint64_t *to = limit.tag == T_FSIZE   ? &r->limits.fsize
			       : limit.tag == T_NOFILE ? &r->limits.nofile
			       : limit.tag == T_STACK  ? &r->limits.stack
						       : NULL;

		if (to && field_u64(&limit, to))
			return -EPROTO;
	}
	return more;
}

static int request_field(const struct field *f, struct request *r)
{
	switch (f->tag) {
	case T_OP_ID:
		r->id = f->bytes;
		return f->length == OP_ID_SIZE ? 0 : -EPROTO;
	case T_ARG:
		r->args++;
		/* fall through */
	case T_ENV:
	case T_CWD:
	case T_USER:
		return f->length && memchr(f->bytes, 0, f->length) ? -EPROTO : 0;
	case T_KIND:
		return field_u64(f, &r->kind);
	case T_TIMEOUT_MS:
		return field_u64(f, &r->timeout_ms);
	case T_NO_OUTPUT_MS:
		return field_u64(f, &r->quiet_ms);
	case T_STDIN:
		return field_u64(f, &r->in);
	case T_MERGE:
		return field_u64(f, &r->merge);
	case T_PTY_ROWS:
		r->pty = true;
		return field_u64(f, &r->rows);
	case T_PTY_COLS:
		r->pty = true;
		return field_u64(f, &r->cols);
	case T_CELL:
		return field_u64(f, &r->cell);
	case T_CPU_MS:
		return field_u64(f, &r->cpu_ms);
	case T_RESULT:
		return field_u64(f, &r->result);
	case T_RLIMITS:
		return rlimits_parse(f, r);
	}
	return 0;
}

bool request_parse(const uint8_t *payload, size_t length, struct request *r)
{
	struct fields it = fields_of(payload, length);
	struct field f;
	int more;

	*r = (struct request){.id = NULL, .cell = NEVER};
	while ((more = fields_next(&it, &f)) > 0)
		if (request_field(&f, r))
			return false;
	if (r->kind == KIND_SESSION && (r->pty || r->in || r->merge || r->result))
		return false;
	if (r->kind == KIND_FILE && r->result)
		return false; /* the helper finds its own image there */
	return !more && r->id && (r->args || r->kind == KIND_CALL) && r->kind <= KIND_ZYGOTE;
}

int request_place(const struct request *r, struct launch *l, const char **step)
{
	struct cell *c;

	if (!config.function)
		return r->cell != NEVER || r->kind > KIND_SESSION || r->result || r->cpu_ms ? EOPNOTSUPP : 0;
	if (r->kind == KIND_SESSION || r->pty)
		return EINVAL;
	*step = "cell";
	if (r->kind == KIND_ZYGOTE) {
		*step = r->cell == NEVER ? "zygote" : "cell";
		return r->cell != NEVER ? EINVAL : zygote_there() ? EBUSY : 0;
	}
	if (r->cell == NEVER)
		return EPERM;
	c = cell_ready(r->cell);
	if (!c)
		return EAGAIN;
	*step = "zygote";
	if (r->kind == KIND_CALL && !zygote_ready())
		return EAGAIN;
	l->cell = (uint32_t)r->cell;
	l->pidfd = c->pidfd;
	return 0;
}

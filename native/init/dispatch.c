/* A frame of the present generation goes to the part that it concerns. */
#include "cell.h"
#include "session.h"

#include <errno.h>

/* The numbers that a frame may carry; each is NEVER if absent. */
struct numbers {
	uint64_t offset, total, signo, rows, cols, port, stdout_total, stderr_total, held, seq, result_total;
	struct field token;
};

static int numbers_parse(const struct frame *f, const uint8_t *payload, struct numbers *n)
{
	struct fields it = fields_of(payload, f->length);
	struct field field;
	int more;

	*n = (struct numbers){NEVER, NEVER, NEVER, NEVER, NEVER,
				NEVER, NEVER, NEVER, NEVER, NEVER, 0, {0}};
	while ((more = fields_next(&it, &field)) > 0) {
		uint64_t *to = field.tag == T_OFFSET	     ? &n->offset
			       : field.tag == T_TOTAL	     ? &n->total
			       : field.tag == T_SIGNO	     ? &n->signo
			       : field.tag == T_PTY_ROWS     ? &n->rows
			       : field.tag == T_PTY_COLS     ? &n->cols
			       : field.tag == T_PORT	     ? &n->port
			       : field.tag == T_STDOUT_TOTAL ? &n->stdout_total
			       : field.tag == T_STDERR_TOTAL ? &n->stderr_total
			       : field.tag == T_HELD	     ? &n->held
			       : field.tag == T_SEQ	     ? &n->seq
			       : field.tag == T_RESULT_TOTAL ? &n->result_total
							     : NULL;

		if (field.tag == T_TOKEN)
			n->token = field;
		if (to && field_u64(&field, to))
			return -EPROTO;
	}
	return more;
}

static int attach(struct op *op, const struct numbers *n)
{
	if (n->stdout_total == NEVER || n->stderr_total == NEVER)
		return -EPROTO;
	if (op->session)
		session_attach(op);
	else if (outlet_rewind(&op->out[0], n->stdout_total) ||
		 outlet_rewind(&op->out[1], n->stderr_total) ||
		 (op->result && outlet_rewind(&op->out[OUT_RESULT], n->result_total)))
		return ERANGE;
	op->attached = true;
	op->done_sent = false;
	op->started_due = op->started;
	/* Tells the host from where to send stdin again. */
	op->in.credit_due = !op->session;
	op_settle(op);
	return 0;
}

static int resize(struct op *op, const struct numbers *n)
{
	if (n->rows > UINT16_MAX || n->cols > UINT16_MAX)
		return -EPROTO;
	op->rows = (uint16_t)n->rows;
	op->cols = (uint16_t)n->cols;
	op_resize(op);
	return 0;
}

static int acknowledge(struct op *op)
{
	if (op->state != OP_DONE)
		return EBUSY;
	op_forget(op);
	return 0;
}

/* Those that name a command of a session by its number. */
static int session_frame(struct op *op, const struct frame *f, const struct numbers *n)
{
	switch (f->type) {
	case G_SIGNAL:
		return n->signo == NEVER ? -EPROTO
					 : session_signal_command(op, n->seq, (int)(n->signo & 0xffff));
	case G_CANCEL:
		return session_cancel(op, n->seq);
	case G_ACK:
		return session_acknowledge(op, n->seq);
	}
	return -EPROTO;
}

/* 0, an errno value to be answered, or -EPROTO. */
static int op_frame(struct op *op, const struct frame *f, const struct numbers *n)
{
	if (op->session && n->seq != NEVER)
		return session_frame(op, f, n);
	switch (f->type) {
	case G_SIGNAL:
		return n->signo == NEVER ? -EPROTO : op_signal(op, (int)(n->signo & 0xffff));
	case G_CANCEL:
		op_cancel(op);
		return 0;
	case G_ATTACH:
		return attach(op, n);
	case G_ACK:
		return acknowledge(op);
	case G_RESIZE:
		return resize(op, n);
	}
	return -EPROTO;
}

static int stream_frame(struct op *op, const struct frame *f, const uint8_t *payload)
{
	uint32_t channel = f->stream & 3;
	struct outlet *out;
	struct numbers n;
	int error;

	if (op->session && channel == 1)
		return f->type == G_DATA  ? session_data(op, payload, f->length)
		       : f->type == G_EOF ? (session_close(op), 0)
					  : -EPROTO;
	if (f->type == G_DATA)
		return channel == 1 ? inlet_data(&op->in, payload, f->length) : -EPROTO;
	if (numbers_parse(f, payload, &n))
		return -EPROTO;
	if (f->type == G_EOF)
		return channel == 1 && n.total != NEVER ? inlet_eof(&op->in, n.total) : -EPROTO;
	if (!channel || n.offset == NEVER || (channel == 1 && !op->result))
		return -EPROTO;
	out = &op->out[channel == 1 ? OUT_RESULT : channel - 2];
	if (op->quiet_ms && !ring_room(&out->ring))
		op_heard(op); /* it was the host that kept it quiet */
	error = outlet_credit(out, n.offset);
	if (op->session)
		session_credited(op);
	op_settle(op);
	return error;
}

static int answer(const struct frame *f, int error, const char *step)
{
	if (error <= 0)
		return error;
	return send_reply(G_ERROR, f->stream, error, step) ? 0 : -EPROTO;
}

static int start(const struct frame *f, uint8_t *payload)
{
	const char *step;
	uint64_t more = more_announced(payload, f->length);
	int error;

	if (more)
		return answer(f, more_begin(f, payload, more), "start");
	error = op_start(f->stream >> 2, payload, f->length, &step);
	return answer(f, error, step);
}

static int more(const struct frame *f, const uint8_t *payload)
{
	const char *step;
	int error = more_take(f, payload, &step);

	return answer(f, error, step);
}

static int hold(const struct frame *f, const struct numbers *n)
{
	if (f->stream || n->held > 1)
		return -EPROTO;
	work_hold(n->held);
	return 0;
}

static int listener(const struct frame *f, const struct numbers *n)
{
	uint32_t handle = f->stream >> 2;
	int error;

	if (f->type == G_UNLISTEN)
		return answer(f, forward_unlisten(handle) ? 0 : ENOENT, "handle");
	if (!handle || handle > HANDLE_MAX || n->port > UINT16_MAX)
		return -EPROTO;
	error = op_find(handle) ? EEXIST : forward_listen(handle, (uint16_t)n->port);
	return send_reply(error ? G_DONE : G_STARTED, f->stream, error, "listen") ? 0 : -EPROTO;
}

static int control(const struct frame *f, const uint8_t *payload)
{
	struct numbers n;
	struct op *op;

	if ((f->stream & 3) || numbers_parse(f, payload, &n))
		return -EPROTO;
	if (f->type == G_PING)
		return !f->stream && n.token.bytes && send_pong(&n.token) ? 0 : -EPROTO;
	if (f->type == G_HOLD)
		return hold(f, &n);
	if (f->type == G_CELL && !f->stream)
		return answer(f, cell_frame(payload, f->length), "cell");
	if (f->type == G_LISTEN || f->type == G_UNLISTEN)
		return listener(f, &n);
	op = op_find(f->stream >> 2);
	if (f->type == G_EXEC && op && op->session)
		return answer(f, session_exec(op, payload, f->length), "exec");
	return answer(f, op ? op_frame(op, f, &n) : ENOENT, op ? "state" : "handle");
}

int dispatch(const struct frame *f, uint8_t *payload)
{
	struct op *op;

	if (f->stream & FORWARD_BIT)
		return forward_frame(f, payload);
	switch (f->type) {
	case G_START:
		return f->stream & 3 ? -EPROTO : start(f, payload);
	case G_MORE:
		return f->stream & 3 ? -EPROTO : more(f, payload);
	case G_DATA:
	case G_EOF:
	case G_CREDIT:
		/* One for an operation that was just acknowledged is no fault. */
		op = op_find(f->stream >> 2);
		return op ? stream_frame(op, f, payload) : 0;
	default:
		return control(f, payload);
	}
}

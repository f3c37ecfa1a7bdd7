/* What is sent, and in which order: control frames first, then streams in turn. Nothing queues up:
 * frames are made from the operations' state when there is room for them. */
#include "cell.h"
#include "zygote.h"
#include "session.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum {
	TX_SIZE = FRAME_HEADER + FRAME_PAYLOAD_MAX,
	DATA_MAX = FRAME_PAYLOAD_MAX - 8, /* a turn of a stream: one frame fills the buffer */
	KEEP = 4096,
};

static uint8_t tx[TX_SIZE] OWN_TX;
static uint32_t tx_used OWN, tx_done OWN, tx_peak OWN;
static uint8_t welcome_nonce[NONCE_SIZE] OWN;
static bool welcome_due OWN;
static uint32_t turn OWN; /* the stream that sends next */

static size_t room(void)
{
	return TX_SIZE - tx_used;
}

static uint8_t *frame_begin(uint8_t type, uint32_t stream, size_t length)
{
	struct frame f = {.type = type, .generation = conn.generation, .stream = stream,
			  .length = (uint32_t)length};
	uint8_t *payload = tx + tx_used + FRAME_HEADER;

	frame_encode(tx + tx_used, &f);
	tx_used += FRAME_HEADER + f.length;
	return payload;
}

bool send_frame(uint8_t type, uint32_t stream, const struct builder *b)
{
	if (room() < FRAME_HEADER + b->used)
		return false;
	uint8_t *payload = frame_begin(type, stream, b->used);

	if (b->used) /* an empty frame may come without a buffer */
		memcpy(payload, b->bytes, b->used);
	return true;
}

static bool send_number(uint8_t type, uint32_t stream, uint8_t tag, uint64_t value)
{
	uint8_t bytes[16];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, tag, value);
	return send_frame(type, stream, &b);
}

bool send_offset(uint8_t type, uint32_t stream, uint64_t offset)
{
	return send_number(type, stream, type == G_EOF ? T_TOTAL : T_OFFSET, offset);
}

void send_begin(const uint8_t nonce[NONCE_SIZE], bool same_transport)
{
	/* On the same byte stream, a frame that was begun must be ended. */
	if (!same_transport)
		tx_used = tx_done = 0;
	replies_drop();
	memcpy(welcome_nonce, nonce, NONCE_SIZE);
	welcome_due = true;
}

/* What is not said is 0. */
static void build_some(struct builder *b, uint8_t tag, uint64_t value)
{
	if (value)
		build_u64(b, tag, value);
}

static void welcome_send(void)
{
	struct builder b;

	welcome_due = false;
	build_init(&b, tx + FRAME_HEADER, TX_SIZE - FRAME_HEADER);
	build_bytes(&b, T_NONCE, welcome_nonce, NONCE_SIZE);
	build_u64(&b, T_GENERATION, conn.generation);
	build_text(&b, T_VERSION, AGENT_VERSION);
	for (uint32_t i = 0; i < ops_high; i++) {
		const struct op *op = &ops[i];
		uint8_t bytes[128];
		struct builder nested;

		if (op->state == OP_FREE)
			continue;
		build_init(&nested, bytes, sizeof(bytes));
		build_u64(&nested, T_HANDLE, op->handle);
		build_bytes(&nested, T_OP_ID, op->id, OP_ID_SIZE);
		build_u64(&nested, T_STATE, op->state >= OP_ENDED);
		build_u64(&nested, T_STDOUT_TOTAL, op->out[0].ring.end);
		build_u64(&nested, T_STDERR_TOTAL, op->out[1].ring.end);
		build_u64(&nested, T_STDIN_TOTAL, op->in.ring.end);
		build_u64(&nested, T_STDIN_EOF, op->in.eof);
		build_some(&nested, T_RESULT_TOTAL, op->out[OUT_RESULT].ring.end);
		build_bytes(&b, T_OP, nested.bytes, nested.used);
	}
	frame_begin(G_WELCOME, 0, b.used);
}

/* --- operations --------------------------------------------------------------------------------- */

/* Says also what STARTED and the ends of output would have said, if nobody has. */
static bool done_send(struct op *op)
{
	uint8_t bytes[CONTROL_ROOM - FRAME_HEADER];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	if (op->fail_step) {
		build_text(&b, T_ERROR_STEP, op->fail_step);
		build_u64(&b, T_ERRNO, (uint64_t)op->fail_errno);
	} else if (WIFSIGNALED(op->wait_status)) {
		build_u64(&b, T_SIGNO, (uint64_t)WTERMSIG(op->wait_status));
	} else {
		build_u64(&b, T_EXIT_CODE, (uint64_t)WEXITSTATUS(op->wait_status));
	}
	build_some(&b, T_TIMED_OUT, op->timed_out);
	build_some(&b, T_NO_OUTPUT, op->no_output);
	build_some(&b, T_CANCELLED, op->cancelled);
	build_some(&b, T_OOM, op->oom);
	build_u64(&b, T_START_NS, op->start_ns);
	build_u64(&b, T_END_NS, op->end_ns);
	build_some(&b, T_CPU_US, op->cpu_us);
	build_some(&b, T_STDOUT_TOTAL, op->out[0].ring.end);
	build_some(&b, T_STDERR_TOTAL, op->out[1].ring.end);
	build_some(&b, T_RESULT_TOTAL, op->out[OUT_RESULT].ring.end);
	build_some(&b, T_CPU_LIMIT, op->cpu_limited);
	build_some(&b, T_DISK_USED, op->disk_used);
	/* Not of a session: its STARTED was sent, and its shell may be another one by now. */
	build_some(&b, T_PID, op->started && !op->session ? (uint64_t)op->pid : 0);
	return send_frame(G_DONE, op->handle << 2, &b);
}

static bool all_sent(const struct outlet *o)
{
	return o->eof && o->sent == o->ring.end;
}

/* Whether DONE is what is left to say of it: it stands for the ends of the output, too. */
static bool done_tells(const struct op *op)
{
	return op->state == OP_DONE && !op->session;
}

static bool done_due(const struct op *op)
{
	const struct outlet *out = op->out;

	if (op->state != OP_DONE || op->done_sent)
		return false;
	return op->session ? out[0].eof_sent && out[1].eof_sent
			   : all_sent(&out[0]) && all_sent(&out[1]) && all_sent(&out[OUT_RESULT]);
}

static bool stdin_control(struct op *op)
{
	uint32_t stream = op->handle << 2 | 1;
	uint8_t bytes[64];
	struct builder b;

	if (op->in.broken_due) {
		build_init(&b, bytes, sizeof(bytes));
		build_text(&b, T_ERROR_STEP, "stdin");
		build_u64(&b, T_ERRNO, EPIPE);
		if (!send_frame(G_ERROR, stream, &b))
			return false;
		op->in.broken_due = false;
	}
	if (op->in.credit_due) {
		if (!send_offset(G_CREDIT, stream, op->in.ring.base))
			return false;
		op->in.credited = op->in.ring.base;
		op->in.credit_due = false;
	}
	return true;
}

static bool op_control(struct op *op)
{
	if (op->started_due && !done_tells(op)) {
		if (op->session ? !session_started_send(op)
				: !send_number(G_STARTED, op->handle << 2, T_PID, (uint64_t)op->pid))
			return false;
		op->started_due = false;
	}
	if (!stdin_control(op) || (op->session && !session_control(op)))
		return false;
	if (done_due(op)) {
		if (!done_send(op))
			return false;
		op->done_sent = op->out[0].eof_sent = op->out[1].eof_sent = true;
		op->out[OUT_RESULT].eof_sent = true;
		op->started_due = false;
	}
	return true;
}

static bool control_send(void)
{
	if (!replies_send())
		return false;
	for (uint32_t i = 0; i < ops_high; i++)
		if (ops[i].state != OP_FREE && ops[i].attached && !op_control(&ops[i]))
			return false;
	return cells_control() && zygote_control() && forward_control();
}

/* --- data ----------------------------------------------------------------------------------------- */

/* How far it may be sent now. */
static uint64_t stream_end(const struct outlet *o)
{
	return o->ring.end < o->hold ? o->ring.end : o->hold;
}

/* One turn of a stream; false when there was no room for what it has. */
static bool stream_send(struct outlet *o, uint32_t stream, bool end_too)
{
	size_t n = (size_t)(stream_end(o) - o->sent);
	uint8_t *payload;

	if (n) {
		if (room() < FRAME_HEADER + 8 + (n < 512 ? n : 512))
			return false;
		if (n > room() - FRAME_HEADER - 8)
			n = room() - FRAME_HEADER - 8;
		if (n > DATA_MAX)
			n = DATA_MAX;
		payload = frame_begin(G_DATA, stream, 8 + n);
		put_u64(payload, o->sent);
		ring_copy(&o->ring, o->sent, payload + 8, n);
		o->sent += n;
	}
	if (end_too && !o->eof_sent && all_sent(o))
		o->eof_sent = send_offset(G_EOF, stream, o->ring.end);
	return true;
}

/* The end of output that comes early is most often that of the command, and goes with it. */
static bool end_waits(const struct op *op, const struct outlet *o)
{
	return o->sent == o->ring.end && op->listen_at != NEVER;
}

static struct outlet *stream_at(uint32_t index, uint32_t *stream, bool *end_too)
{
	uint32_t forwards = OUTLETS * ops_high;
	struct op *op;
	struct outlet *o;

	*end_too = true;
	if (index >= forwards)
		return forward_outlet(index - forwards, stream);
	op = &ops[index / OUTLETS];
	o = &op->out[index % OUTLETS];
	*stream = op->handle << 2 | outlet_channel(index % OUTLETS);
	*end_too = !done_tells(op);
	return op->state != OP_FREE && op->attached && !end_waits(op, o) ? o : NULL;
}

/* Goes once around; false when the room ran out. */
static bool data_send(void)
{
	uint32_t count = OUTLETS * ops_high + forward_streams(), stream;
	bool end_too;

	for (uint32_t i = 0; i < count; i++, turn++) {
		struct outlet *o;

		turn = turn < count ? turn : 0;
		o = stream_at(turn, &stream, &end_too);
		if (!o || (o->sent == stream_end(o) && (!end_too || !o->eof || o->eof_sent)))
			continue;
		if (!stream_send(o, stream, end_too))
			return false;
		if (turn >= OUTLETS * ops_high)
			forward_settle(turn - OUTLETS * ops_high);
	}
	return true;
}

static void fill(void)
{
	uint32_t before;

	if (welcome_due)
		welcome_send(); /* the buffer is empty: it fits */
	do {
		before = tx_used;
		if (!control_send() || !data_send())
			return;
	} while (tx_used != before);
}

void send_trim(void)
{
	if (tx_peak > KEEP)
		pages_free(tx, sizeof(tx), tx_used > KEEP ? tx_used : KEEP);
	tx_peak = tx_used;
}

void send_pump(void)
{
	ssize_t n;

	if (conn.src.fd < 0)
		return;
	for (;;) {
		if (tx_done == tx_used) {
			tx_done = tx_used = 0;
			fill();
		}
		if (!tx_used)
			break;
		tx_peak = tx_used > tx_peak ? tx_used : tx_peak;
		n = send(conn.src.fd, tx + tx_done, tx_used - tx_done, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN) {
			source_watch(&conn.src, EPOLLIN | EPOLLOUT);
			return;
		}
		if (n < 0 && errno != EINTR) {
			conn_close();
			return;
		}
		tx_done += n > 0 ? (uint32_t)n : 0;
	}
	source_watch(&conn.src, EPOLLIN);
}

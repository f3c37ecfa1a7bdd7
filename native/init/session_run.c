/* The commands of a session: the script that EXEC brings, the output of a command, its times, RAN. */
#include "session.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t cpu_us(struct op *op)
{
	char text[256];

	if (op->group.fd < 0 || !group_read(&op->group, GROUP_CPU, text, sizeof(text)) ||
	    strncmp(text, "usage_usec ", 11))
		return 0;
	return strtoull(text + 11, NULL, 10);
}

static void ran(struct op *op)
{
	struct session *s = op->session;

	s->phase = SESSION_RAN;
	s->ran_sent = false;
	for (int i = 0; i < 2; i++) {
		struct outlet *o = &op->out[i];

		s->mark[i] = o->hold = o->cap;
		o->cap += SESSION_KEEP_MAX;
		outlet_drop(o, true);
	}
	if (s->size > SESSION_KEEP_MAX) { /* nobody needs it any more */
		s->size = 0;
		(void)!ftruncate(s->script, 0);
	}
}

static void drain(struct op *op)
{
	bool done = true;

	for (int i = 0; i < 2; i++) {
		struct outlet *o = &op->out[i];

		while (o->ring.end < o->cap && ring_room(&o->ring)) {
			uint64_t before = o->ring.end;

			outlet_read(o, EPOLLIN);
			if (o->ring.end == before) /* somebody inside has read it */
				o->cap = o->ring.end;
		}
		done = done && o->ring.end >= o->cap;
	}
	if (done)
		ran(op);
}

void session_finish(struct op *op)
{
	struct session *s = op->session;

	s->end_ns = realtime_ns();
	s->kill_by = s->step_at = NEVER;
	s->stop = STOP_NONE;
	session_freeze(op, false);
	s->cpu_us = cpu_us(op) - s->cpu_before;
	s->cpu_before += s->cpu_us;
	s->oom = oom_count() > s->oom_before;
	if (op->pid)
		session_note_cwd(op);
	s->phase = SESSION_DRAINING;
	for (int i = 0; i < 2; i++) {
		struct outlet *o = &op->out[i];
		int here = 0;

		if (o->src.fd < 0 || ioctl(o->src.fd, FIONREAD, &here) || here < 0)
			here = 0;
		o->cap = o->ring.end + (uint64_t)here;
	}
	drain(op);
}

void session_out_ready(struct source *src, uint32_t events)
{
	struct outlet *o = container_of(src, struct outlet, src);
	struct op *op = &ops[((char *)src - (char *)ops) / (ptrdiff_t)sizeof(struct op)];
	uint64_t before = o->ring.end;

	outlet_read(o, events);
	if (!op->session)
		return;
	if (o->ring.end != before)
		op->session->heard = work_ms();
	if (op->session->phase == SESSION_DRAINING)
		drain(op);
	if (o->eof)
		op_settle(op);
}

void session_credited(struct op *op)
{
	op->session->heard = work_ms(); /* it may have been the host that kept it quiet */
	if (op->session->phase == SESSION_DRAINING)
		drain(op);
}

static int script_put(struct session *s, uint64_t offset, const uint8_t *bytes, size_t n)
{
	size_t done = 0;

	if (offset + n > SESSION_SCRIPT_MAX)
		return E2BIG;
	if (!offset && s->size > n && ftruncate(s->script, 0))
		return errno;
	while (done < n) {
		ssize_t put = pwrite(s->script, bytes + done, n - done, (off_t)(offset + done));

		if (put <= 0)
			return errno;
		done += (size_t)put;
	}
	s->size = offset + n;
	return 0;
}

/* A piece of the next script; one at offset 0 begins it anew. */
int session_data(struct op *op, const uint8_t *payload, size_t length)
{
	struct session *s = op->session;
	uint64_t offset = length < 8 ? NEVER : get_u64(payload);

	if (offset == NEVER || (offset && offset != s->size))
		return -EPROTO;
	if (s->phase == SESSION_RUNNING || s->phase == SESSION_DRAINING || s->closing)
		return 0; /* EXEC will be refused */
	/* One that is too long, or has no room, is found short at EXEC. */
	if (script_put(s, offset, payload + 8, length - 8))
		s->size = 0;
	return 0;
}

struct exec {
	uint64_t seq, size, timeout_ms, quiet_ms;
	struct field line;
};

static int exec_parse(const uint8_t *payload, size_t length, struct exec *e)
{
	struct fields it = fields_of(payload, length);
	struct field f;
	int more;

	*e = (struct exec){.size = NEVER};
	while ((more = fields_next(&it, &f)) > 0) {
		uint64_t *to = f.tag == T_SEQ		? &e->seq
			       : f.tag == T_SIZE	? &e->size
			       : f.tag == T_TIMEOUT_MS	? &e->timeout_ms
			       : f.tag == T_NO_OUTPUT_MS ? &e->quiet_ms
							: NULL;

		if (f.tag == T_LINE)
			e->line = f;
		if (to && field_u64(&f, to))
			return -EPROTO;
	}
	return more || !e->seq || e->size == NEVER ? -EPROTO : 0;
}

static void command_begin(struct op *op, const struct exec *e)
{
	struct session *s = op->session;
	uint64_t now = work_ms();

	s->phase = SESSION_RUNNING;
	s->seq = e->seq;
	s->timed_out = s->no_output = s->cancelled = s->oom = false;
	s->reset = s->lost;
	s->lost = false;
	s->fail_step = NULL;
	s->status = 0;
	s->start_ns = realtime_ns();
	s->oom_before = oom_count();
	s->kill_by = e->timeout_ms && e->timeout_ms < TIMEOUT_MAX_MS ? now + e->timeout_ms : NEVER;
	s->quiet_ms = e->quiet_ms < TIMEOUT_MAX_MS ? e->quiet_ms : 0;
	s->heard = now;
	for (int i = 0; i < 2; i++) {
		struct outlet *o = &op->out[i];

		s->base[i] = s->mark[i];
		s->dropped[i] = o->dropped;
		o->dropped = 0;
		o->hold = o->cap = NEVER;
		outlet_drop(o, false);
	}
	session_note_old(op);
}

static void go_write(struct session *s)
{
	char text[24];

	strcat(session_number(text, s->seq), "\n");
	(void)!write(s->go, text, strlen(text)); /* a shell that is gone: wait tells */
}

int session_exec(struct op *op, const uint8_t *payload, size_t length)
{
	struct session *s = op->session;
	struct exec e;
	int error;

	if (exec_parse(payload, length, &e))
		return -EPROTO;
	if ((op->state != OP_STARTING && op->state != OP_RUNNING) || s->closing)
		return ESRCH;
	if (e.seq <= s->seq)
		return EEXIST;
	if (s->phase == SESSION_RUNNING || s->phase == SESSION_DRAINING)
		return EBUSY;
	error = e.line.bytes ? script_put(s, 0, e.line.bytes, e.line.length) : 0;
	if (!error && e.size != s->size)
		error = EINVAL;
	if (error)
		return error;
	session_acknowledge(op, s->seq);
	command_begin(op, &e);
	error = op->pid ? 0 : session_shell_again(op);
	if (error) {
		s->fail_step = "fork";
		s->fail_errno = -error;
		s->reset = true;
		session_finish(op);
		return 0;
	}
	go_write(s);
	return 0;
}

int session_acknowledge(struct op *op, uint64_t seq)
{
	struct session *s = op->session;

	if (s->phase != SESSION_RAN || seq != s->seq)
		return 0; /* a second one */
	s->phase = SESSION_IDLE;
	for (int i = 0; i < 2; i++) {
		s->base[i] = s->mark[i];
		if (op->out[i].sent >= s->mark[i])
			outlet_credit(&op->out[i], s->mark[i]);
	}
	return 0;
}

int session_cancel(struct op *op, uint64_t seq)
{
	struct session *s = op->session;

	if (seq == s->seq && s->phase == SESSION_RUNNING) {
		s->cancelled = true;
		session_stop_begin(op);
	}
	return 0;
}

int session_signal_command(struct op *op, uint64_t seq, int signo)
{
	if (signo < 1 || signo > 64)
		return EINVAL;
	if (seq != op->session->seq || op->session->phase != SESSION_RUNNING || op->group.fd < 0)
		return ESRCH;
	session_signal_new(op, signo, false);
	return 0;
}

/* A new connection: all that is here comes again, and so does RAN. */
void session_attach(struct op *op)
{
	for (int i = 0; i < 2; i++) {
		op->out[i].sent = op->out[i].ring.base;
		op->out[i].eof_sent = false;
	}
	op->session->ran_sent = false;
}

static bool held_back(const struct op *op)
{
	return !ring_room(&op->out[0].ring) || !ring_room(&op->out[1].ring);
}

/* When it has been quiet for too long, in work_ms(). */
static uint64_t quiet_by(const struct session *s)
{
	return s->quiet_ms ? s->heard + s->quiet_ms : NEVER;
}

/* now counts as now_ms(); the command's own deadlines count as work_ms(). */
void session_timer(struct op *op, uint64_t now)
{
	struct session *s = op->session;
	uint64_t work = work_ms();

	if (s->close_by <= now) {
		s->close_by = NEVER;
		op_kill(op);
	}
	if (s->phase != SESSION_RUNNING)
		return;
	if (s->kill_by <= work) {
		s->kill_by = NEVER;
		s->timed_out = true;
		session_stop_begin(op);
	}
	if (quiet_by(s) <= work) {
		s->heard = work;
		if (!held_back(op)) {
			s->quiet_ms = 0;
			s->timed_out = s->no_output = true;
			session_stop_begin(op);
		}
	}
	if (s->step_at <= now)
		session_stop_step(op, now);
}

uint64_t session_next_timer(const struct op *op)
{
	const struct session *s = op->session;
	uint64_t next = s->close_by < s->step_at ? s->close_by : s->step_at, work;

	if (s->phase != SESSION_RUNNING)
		return s->close_by;
	work = quiet_by(s) < s->kill_by ? quiet_by(s) : s->kill_by;
	work = work_deadline(work);
	return work < next ? work : next;
}

/* --- what is said of it --------------------------------------------------------------------------- */

bool session_started_send(struct op *op)
{
	const struct session *s = op->session;
	uint8_t bytes[128];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, T_PID, op->pid > 0 ? (uint64_t)op->pid : 1);
	build_u64(&b, T_SEQ, s->seq);
	build_u64(&b, T_STDOUT_TOTAL, s->base[0]);
	build_u64(&b, T_STDERR_TOTAL, s->base[1]);
	return send_frame(G_STARTED, op->handle << 2, &b);
}

static void end_build(const struct session *s, struct builder *b)
{
	if (s->fail_step) {
		build_text(b, T_ERROR_STEP, s->fail_step);
		build_u64(b, T_ERRNO, (uint64_t)s->fail_errno);
	} else if (s->timed_out || s->cancelled) {
		build_u64(b, T_SIGNO, SIGKILL);
	} else if (WIFSIGNALED(s->status)) {
		build_u64(b, T_SIGNO, (uint64_t)WTERMSIG(s->status));
	} else {
		build_u64(b, T_EXIT_CODE, (uint64_t)WEXITSTATUS(s->status));
	}
}

bool session_control(struct op *op)
{
	struct session *s = op->session;
	uint8_t bytes[320];
	struct builder b;

	if (s->phase != SESSION_RAN || s->ran_sent || op->out[0].sent < s->mark[0] ||
	    op->out[1].sent < s->mark[1])
		return true;
	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, T_SEQ, s->seq);
	end_build(s, &b);
	build_u64(&b, T_TIMED_OUT, s->timed_out);
	build_u64(&b, T_NO_OUTPUT, s->no_output);
	build_u64(&b, T_CANCELLED, s->cancelled);
	build_u64(&b, T_OOM, s->oom);
	build_u64(&b, T_RESET, s->reset);
	build_u64(&b, T_START_NS, s->start_ns);
	build_u64(&b, T_END_NS, s->end_ns);
	build_u64(&b, T_CPU_US, s->cpu_us);
	build_u64(&b, T_STDOUT_TOTAL, s->mark[0]);
	build_u64(&b, T_STDERR_TOTAL, s->mark[1]);
	build_u64(&b, T_STDOUT_DROPPED, s->dropped[0]);
	build_u64(&b, T_STDERR_DROPPED, s->dropped[1]);
	s->ran_sent = send_frame(G_RAN, op->handle << 2, &b);
	return s->ran_sent;
}

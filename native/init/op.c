/* Operations: from START to DONE, and what is kept until ACK. */
#include "cell.h"
#include "zygote.h"
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	KILL_AGAIN_MS = 20,   /* while a killed group is not yet empty */
	KILL_LEADER_MS = 500, /* while a killed leader has not yet ended */
	KILL_GIVE_UP_MS = 5000,
	CPU_LOOK_MS = 10, /* how often processor time is looked at, at most */
};

struct op ops[OPS_LIMIT] OWN_TABLE;
uint32_t ops_high OWN;

static uint8_t finished[FINISHED_IDS][OP_ID_SIZE] OWN_TABLE;
static uint32_t finished_count OWN;

const char *const step_names[STEP_COUNT] = {
	[STEP_FORK] = "fork", [STEP_USER] = "user", [STEP_CWD] = "cwd",
	[STEP_EXEC] = "exec", [STEP_ARGS] = "args", [STEP_PTY] = "pty",
};

struct op *op_find(uint32_t handle)
{
	for (uint32_t i = 0; i < ops_high; i++)
		if (ops[i].state != OP_FREE && ops[i].handle == handle)
			return &ops[i];
	return NULL;
}

bool op_id_known(const uint8_t *id)
{
	uint32_t n = finished_count < FINISHED_IDS ? finished_count : FINISHED_IDS;

	for (uint32_t i = 0; i < ops_high; i++)
		if (ops[i].state != OP_FREE && !memcmp(ops[i].id, id, OP_ID_SIZE))
			return true;
	for (uint32_t i = 0; i < n; i++)
		if (!memcmp(finished[i], id, OP_ID_SIZE))
			return true;
	return false;
}

struct op *op_new(uint32_t handle, const uint8_t *id)
{
	uint32_t used = 0, slot = OPS_LIMIT;
	struct op *op;

	for (uint32_t i = 0; i < ops_high; i++) {
		if (ops[i].state != OP_FREE)
			used++;
		else if (slot == OPS_LIMIT)
			slot = i;
	}
	if (used >= config.max_ops)
		return NULL;
	if (slot == OPS_LIMIT)
		slot = ops_high++;
	op = &ops[slot];
	*op = (struct op){.state = OP_STARTING, .handle = handle, .group.fd = -1, .attached = true,
			  .exec_by = NEVER, .heard = NEVER, .kill_by = NEVER, .kill_again = NEVER,
			  .kill_until = NEVER, .listen_at = NEVER, .start_ns = realtime_ns(),
			  .cell = NO_CELL, .cpu_limit_us = NEVER, .cpu_at = NEVER, .hangs_at = NEVER};
	memcpy(op->id, id, OP_ID_SIZE);
	source_open(&op->status, -1, NULL);
	inlet_open(&op->in, -1, INLET_PIPE, NULL);
	for (int i = 0; i < OUTLETS; i++)
		outlet_open(&op->out[i], -1, NULL);
	op->out[OUT_RESULT].eof_sent = true;
	return op;
}

void op_forget(struct op *op)
{
	memcpy(finished[finished_count++ % FINISHED_IDS], op->id, OP_ID_SIZE);
	if (finished_count == 2 * FINISHED_IDS)
		finished_count = FINISHED_IDS;
	source_close(&op->status);
	inlet_close(&op->in);
	for (int i = 0; i < OUTLETS; i++)
		outlet_close(&op->out[i]);
	session_free(op);
	group_release(&op->group);
	op->state = OP_FREE;
	while (ops_high && ops[ops_high - 1].state == OP_FREE)
		ops_high--;
	if (!ops_high) { /* idle: the buffers' memory goes back to the host */
		conn_trim();
		send_trim();
	}
}

void op_detach_all(void)
{
	for (uint32_t i = 0; i < ops_high; i++) {
		ops[i].attached = false;
		ops[i].done_sent = false;
	}
}

/* The counter is the sandbox's: an operation that lived while it rose is flagged. */
uint64_t oom_count(void)
{
	char text[512], *at;
	uint64_t n = 0;
	ssize_t size;

	if (config.oom_fd < 0)
		return 0;
	size = pread(config.oom_fd, text, sizeof(text) - 1, 0);
	text[size > 0 ? size : 0] = 0;
	at = strstr(text, "oom_kill "); /* both versions; "oom_kill_disable" has no space there */
	for (at = at ? at + 9 : text; at != text && *at >= '0' && *at <= '9'; at++)
		n = n * 10 + (uint64_t)(*at - '0');
	return n;
}

static void signal_all(struct op *op, int signo)
{
	if (op->group.fd >= 0 && signo == SIGKILL)
		group_kill(&op->group);
	else if (op->group.fd >= 0)
		group_signal(&op->group, signo);
	else if (op->pid)
		session_signal(op->pid, signo);
}

static bool alive(struct op *op)
{
	return op->group.fd >= 0 ? group_populated(&op->group)
				 : op->pid && session_alive(op->pid);
}

void op_kill(struct op *op)
{
	signal_all(op, SIGKILL);
	op->killed = true;
	op->kill_again = now_ms() + KILL_LEADER_MS;
}

void op_cancel(struct op *op)
{
	if (op->state != OP_STARTING && op->state != OP_RUNNING)
		return; /* its result is on the way */
	op->cancelled = true;
	op_kill(op);
	if (op->session && !op->pid)
		op_end(op); /* a session without a shell: nobody's death will tell */
}

int op_signal(struct op *op, int signo)
{
	if (signo < 1 || signo > 64)
		return EINVAL;
	if (op->state != OP_STARTING && op->state != OP_RUNNING)
		return ESRCH;
	signal_all(op, signo);
	return 0;
}

void op_resize(struct op *op)
{
	struct winsize size = {.ws_row = op->rows, .ws_col = op->cols};

	if (op->pty && op->out[0].src.fd >= 0)
		ioctl(op->out[0].src.fd, TIOCSWINSZ, &size);
}

/* The result is complete when the leader has ended, its output is here, and, after a kill, nobody
 * of its group is left. */
void op_settle(struct op *op)
{
	if (op->state != OP_ENDED || !op->out[0].eof || !op->out[1].eof || !op->out[OUT_RESULT].eof)
		return;
	op->kill_again = NEVER;
	if (op->killed) {
		uint64_t now = now_ms();

		if (op->kill_until == NEVER)
			op->kill_until = now + KILL_GIVE_UP_MS;
		if (now < op->kill_until && alive(op)) {
			signal_all(op, SIGKILL);
			op->kill_again = now + KILL_AGAIN_MS;
			return;
		}
	}
	group_release(&op->group);
	op->state = OP_DONE;
}

void op_end(struct op *op)
{
	op->state = OP_ENDED;
	op->end_ns = realtime_ns();
	op->exec_by = op->kill_by = op->kill_again = op->listen_at = op->cpu_at = NEVER;
	op->oom = oom_count() > op->oom_before;
	source_close(&op->status);
	inlet_close(&op->in);
	if (op->session)
		session_shut(op);
	if (op->group.fd >= 0 && config.function)
		op->cpu_us = group_cpu_us(&op->group) - op->cpu_before;
	op->disk_used = cell_disk_used(op->cell);
	for (int i = 0; i < OUTLETS; i++) {
		outlet_drain(&op->out[i], op->pty);
		if (op->out[i].src.fd < 0)
			op->out[i].eof = true;
	}
	op_settle(op);
	if (op->kind == KIND_ZYGOTE)
		zygote_over(op);
	cell_left(op->cell);
}

/* The first of a program's two processes in a cell is not the one that counts. */
static bool first_of_two(struct op *op, pid_t pid)
{
	pid_t born = start_born(op);

	if (!born || born == pid)
		return false;
	op->pid = born;
	return true;
}

void op_child_ended(pid_t pid, int status, uint64_t cpu_us)
{
	struct op *op = NULL;

	for (uint32_t i = 0; i < ops_high && !op; i++)
		if ((ops[i].pid == pid || start_born(&ops[i]) == pid) && ops[i].kind != KIND_CALL &&
		    (ops[i].state == OP_STARTING || ops[i].state == OP_RUNNING))
			op = &ops[i];
	if (op && first_of_two(op, pid))
		return;
	if (!op) {
		op = session_orphaned(pid);
		if (op)
			op_child_ended(op->pid, SIGKILL, 0);
		return;
	}
	if (op->status.ready)
		op->status.ready(&op->status, 0); /* what it reported before it ended */
	start_reached(op); /* in a cell the first of the two may still have its end of the pipe */
	if (session_child_ended(op, pid, status))
		return;
	op->wait_status = status;
	op->cpu_us = cpu_us;
	if (op->state == OP_STARTING && !op->fail_step && !op->timed_out && !op->cancelled) {
		op->fail_step = "deadline"; /* killed by somebody inside before it reached exec */
		op->fail_errno = ECHILD;
		start_was_killed();
	}
	op_end(op);
}

void op_heard(struct op *op)
{
	op->heard = work_ms();
}

/* When it will have been quiet for too long, in work_ms(); NEVER if nobody asks. */
static uint64_t quiet_by(const struct op *op)
{
	return op->quiet_ms && op->state == OP_RUNNING ? op->heard + op->quiet_ms : NEVER;
}

/* Whether output waits for the host: then its silence is not the command's. */
static bool held_back(const struct op *op)
{
	return !ring_room(&op->out[0].ring) || !ring_room(&op->out[1].ring);
}

static void quiet_timer(struct op *op, uint64_t now)
{
	if (quiet_by(op) > now)
		return;
	op_heard(op);
	if (held_back(op))
		return;
	op->quiet_ms = 0;
	op->timed_out = op->no_output = true;
	op_kill(op);
}

/* Looks again when the rest could be used up at the earliest, by as many processors as there are. */
static void cpu_timer(struct op *op, uint64_t now)
{
	uint64_t used = group_cpu_us(&op->group) - op->cpu_before, wait;

	op->cpu_at = NEVER;
	if (op->state != OP_STARTING && op->state != OP_RUNNING)
		return;
	if (used >= op->cpu_limit_us) {
		op->cpu_limited = true;
		op_kill(op);
		return;
	}
	wait = (op->cpu_limit_us - used) / 1000 / config.processors;
	op->cpu_at = now + (wait > CPU_LOOK_MS ? wait : CPU_LOOK_MS);
}

void op_cpu_limit(struct op *op, uint64_t ms)
{
	op->cpu_before = group_cpu_us(&op->group);
	if (!ms || ms >= TIMEOUT_MAX_MS)
		return;
	op->cpu_limit_us = ms * 1000;
	op->cpu_at = now_ms() + (ms / config.processors > CPU_LOOK_MS ? ms / config.processors : CPU_LOOK_MS);
}

/* now counts as now_ms(), work as work_ms(). */
static void op_timer(struct op *op, uint64_t now, uint64_t work)
{
	if (op->exec_by <= work) {
		op->exec_by = NEVER;
		op->fail_step = "deadline";
		op->fail_errno = ETIMEDOUT;
		op_kill(op);
	}
	if (op->listen_at <= now)
		start_listen(op, now);
	quiet_timer(op, work);
	if (op->cpu_at <= now)
		cpu_timer(op, now);
	if (op->kill_by <= work) {
		op->kill_by = NEVER;
		op->timed_out = true;
		op_kill(op);
	}
	if (op->kill_again <= now) {
		if (op->state == OP_ENDED)
			op_settle(op);
		else
			op_kill(op);
	}
	if (op->session)
		session_timer(op, now);
	zygote_watch(op, now);
}

void op_timers(uint64_t now)
{
	uint64_t work = work_ms();

	for (uint32_t i = 0; i < ops_high; i++)
		if (ops[i].state != OP_FREE && ops[i].state != OP_DONE)
			op_timer(&ops[i], now, work);
}

uint64_t op_next_timer(void)
{
	uint64_t next = NEVER, work = NEVER, at;

	for (uint32_t i = 0; i < ops_high; i++) {
		const struct op *op = &ops[i];

		if (op->state == OP_FREE || op->state == OP_DONE)
			continue;
		at = quiet_by(op);
		work = at < work ? at : work;
		work = op->exec_by < work ? op->exec_by : work;
		work = op->kill_by < work ? op->kill_by : work;
		next = op->kill_again < next ? op->kill_again : next;
		next = op->listen_at < next ? op->listen_at : next;
		next = op->cpu_at < next ? op->cpu_at : next;
		at = op->session ? session_next_timer(op) : NEVER;
		next = at < next ? at : next;
	}
	work = work_deadline(work);
	return work < next ? work : next;
}

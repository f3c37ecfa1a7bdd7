/* START: from a frame to a running child, and its reports until exec. */
#include "known.h"
#include "request.h"
#include "zygote.h"
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INTO_CGROUP 0x200000000ull /* CLONE_INTO_CGROUP */

enum {
	PAGE_LARGEST = 1 << 16,
	ENDS_BY_MS = 5,	    /* as most commands do, many at once too: so long only the end is waited for */
	STARTED_BY_MS = 100, /* nobody waits for STARTED alone, and many run at once */
};

struct clone3_args {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
		set_tid_size, cgroup;
};

/* A page shared with the children. Exec closes the status pipe, but so does being killed: a child sets its
 * mark when only exec is left; a message would wake us for nothing. What is known is the children's alone. */
struct common {
	volatile uint8_t marks[OPS_LIMIT];
	struct known known[KNOWN_USERS];
	volatile pid_t born[OPS_LIMIT]; /* of cells: the second process of each operation */
};
_Static_assert(offsetof(struct common, born) <= 4096, "one page, but for cells");

/* It lies among the other data: a mapping far away would cost each fork three page tables. */
static struct common *common(void) /* NULL: no memory */
{
	static uint8_t page[PAGE_LARGEST] __attribute__((aligned(PAGE_LARGEST)));
	static bool shared;

	shared = shared || mmap(page, sizeof(struct common), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
	return shared ? (struct common *)(void *)page : NULL;
}

pid_t start_born(const struct op *op)
{
	const struct common *c = op->cell == NO_CELL ? NULL : common();

	return c ? c->born[op - ops] : 0;
}

static bool marked(const struct op *op)
{
	const struct common *c = common();

	return c && c->marks[op - ops];
}

/* --- the child's reports ---------------------------------------------------------------------- */

static void out_ready(struct source *src, uint32_t events)
{
	struct outlet *o = container_of(src, struct outlet, src);
	struct op *op = &ops[((char *)src - (char *)ops) / (ptrdiff_t)sizeof(struct op)];
	uint64_t before = o->ring.end;

	outlet_read(o, events);
	if (o->ring.end != before && op->state == OP_STARTING && op->status.ready)
		op->status.ready(&op->status, 0); /* who writes has reached exec: STARTED goes first */
	if (o->ring.end != before && op->state == OP_STARTING && op->kind == KIND_CALL)
		zygote_hear();
	if (o->ring.end != before && op->quiet_ms)
		op_heard(op);
	if (o->eof)
		op_settle(op);
}

static void in_ready(struct source *src, uint32_t events)
{
	(void)events;
	inlet_write(container_of(src, struct inlet, src));
}

static void master_take(struct op *op, struct msghdr *m)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	int master, twin;

	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)) ||
	    op->out[0].src.fd >= 0) {
		op->fail_step = "pty"; /* no descriptor was free here */
		op->fail_errno = EMFILE;
		op_cancel(op);
		return;
	}
	memcpy(&master, CMSG_DATA(c), sizeof(int));
	twin = fcntl(master, F_DUPFD_CLOEXEC, 3);
	outlet_open(&op->out[0], master, out_ready);
	outlet_watch(&op->out[0]);
	source_open(&op->in.src, twin, in_ready);
	op_resize(op); /* RESIZE may have come before the terminal */
	inlet_write(&op->in);
}

static void report_take(struct op *op, const struct report *r, struct msghdr *m)
{
	if (r->step == STEP_MASTER) {
		master_take(op, m);
	} else if (r->step < STEP_COUNT && !op->fail_step) {
		op->fail_step = step_names[r->step];
		op->fail_errno = r->error;
	}
}

static ssize_t report_receive(struct op *op, struct report *r, struct msghdr *m)
{
	return op->pty ? recvmsg(op->status.fd, m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)
		       : read(op->status.fd, r, sizeof(*r));
}

/* The end before its mark was set: its death will be told by wait. */
void start_reached(struct op *op)
{
	if (op->state != OP_STARTING || op->fail_step || !marked(op))
		return;
	op->state = OP_RUNNING;
	op->pid = start_born(op) ? start_born(op) : op->pid;
	op_heard(op);
	op->exec_by = NEVER;
	op->started_due = op->started_due || !op->started;
	op->started = true;
}

static void status_ready(struct source *src, uint32_t events)
{
	struct op *op = container_of(src, struct op, status);
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct report r;
	struct iovec v = {.iov_base = &r, .iov_len = sizeof(r)};
	struct msghdr m;
	ssize_t n;

	(void)events;
	while (src->fd >= 0) {
		m = (struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
				    .msg_controllen = sizeof(control)};
		n = report_receive(op, &r, &m);
		if (n == sizeof(r)) {
			report_take(op, &r, &m);
			continue;
		}
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		source_close(src);
		start_reached(op);
	}
}

/* --- making it -------------------------------------------------------------------------------- */

/* A pipe of which one end stays here, nonblocking. Mode 0666: its inode belongs to the agent's uid,
 * which is nobody inside, and /dev/stdout could not be opened. */
int pipe_make(int *here, int *there, bool readable_here)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC))
		return -errno;
	*here = readable_here ? fd[0] : fd[1];
	*there = readable_here ? fd[1] : fd[0];
	fcntl(*here, F_SETFL, O_NONBLOCK);
	fchmod(*here, 0666);
	return 0;
}

static int status_make(struct op *op, struct launch *l)
{
	int fd[2], error = 0;

	/* A report always has room: the child needs no end that waits. */
	if (!op->pty)
		error = pipe2(fd, O_CLOEXEC | O_NONBLOCK) ? -errno : 0;
	else if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd))
		error = -errno;
	if (error)
		return error;
	l->status = fd[1];
	if ((uint64_t)fd[1] + FD_RESERVE >= config.fd_limit) {
		close(fd[0]);
		return -EMFILE;
	}
	source_open(&op->status, fd[0], status_ready);
	return 0;
}

static void status_listen(struct op *op)
{
	op->listen_at = NEVER;
	status_ready(&op->status, 0);
	source_watch(&op->status, EPOLLIN);
}

void start_listen(struct op *op, uint64_t now)
{
	if (op->listening) {
		status_listen(op);
		return;
	}
	op->listening = true;
	op->listen_at = now + STARTED_BY_MS;
	for (int i = 0; i < OUTLETS; i++)
		outlet_watch(&op->out[i]);
}

static int streams_make(struct op *op, struct launch *l, bool in)
{
	int here = -1, error = op->kind == KIND_CALL ? 0 : status_make(op, l);

	if (error)
		return error;
	if (op->session)
		return session_streams(op, l);
	if (op->pty) {
		/* Both wait for the terminal that the child opens. */
		op->in = (struct inlet){.src = {.fd = -1}, .kind = INLET_PTY};
		op->out[0].eof = false;
		return 0;
	}
	if (in) {
		error = pipe_make(&here, &l->in, false);
		if (error)
			return error;
		inlet_open(&op->in, here, INLET_PIPE, in_ready);
	}
	for (int i = 0; i < (l->merge ? 1 : 2); i++) {
		error = pipe_make(&here, i ? &l->err : &l->out, true);
		if (error)
			return error;
		outlet_open(&op->out[i], here, out_ready);
	}
	if (op->result) {
		error = pipe_make(&here, &l->result, true);
		if (error)
			return error;
		outlet_open(&op->out[OUT_RESULT], here, out_ready);
	}
	return 0;
}

/* If the agent's own group was ever killed (a slot that is used again), the kernel kills everything
 * that is cloned into a fresh one. Then, and also if somebody inside did it, the slower way is taken
 * from now on. */
static bool clone_avoided;

void start_was_killed(void)
{
	clone_avoided = true;
}

/* Not vfork: a child that is stopped from inside would stop PID 1 with it. */
static pid_t fork_into(struct op *op, struct launch *l)
{
	struct clone3_args args = {.flags = INTO_CGROUP, .exit_signal = SIGCHLD};
	long pid = -1;

	l->group = -1;
	if (op->group.fd >= 0 && !clone_avoided) {
		args.cgroup = (uint64_t)op->group.fd;
		pid = syscall(SYS_clone3, &args, sizeof(args), config.key ? config.key[0] : 0,
			      config.key ? config.key[1] : 0);
		if (pid < 0 && errno == EAGAIN)
			return -1; /* a limit on processes: trying again would not help */
	}
	if (pid < 0) {
		l->group = op->group.fd;
		pid = fork();
	}
	return (pid_t)pid;
}

static void ends_close(const struct launch *l)
{
	const int ends[] = {l->status, l->in, l->out, l->err, l->script, l->answer, l->result, l->talk};

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (ends[i] >= 0)
			close(ends[i]);
}

static int child_start(struct op *op, struct launch *l)
{
	pid_t pid = fork_into(op, l);

	if (!pid)
		child_run(l); /* the child has no operations: OWN */
	op->pid = pid;
	return pid < 0 ? -errno : 0;
}

int launch(struct op *op, struct launch *l, bool in)
{
	int error = streams_make(op, l, in);
	struct common *c = common();

	if (!error && op->kind == KIND_ZYGOTE)
		error = zygote_begin(op, l);
	/* Never outside of a group, if there are groups: nothing could end it. */
	if (!error && config.has_group && op->group.fd < 0)
		error = group_make(&op->group, op->cell);
	if (!c)
		error = -ENOMEM;
	if (!error) {
		l->executing = &c->marks[op - ops];
		l->known = c->known;
		*l->executing = 0;
		if (op->cell != NO_CELL) {
			l->born = &c->born[op - ops];
			*l->born = 0;
		}
		if (config.function)
			op_cpu_limit(op, l->cpu_ms);
		error = op->kind == KIND_CALL ? zygote_call(op, l) : child_start(op, l);
	}
	ends_close(l);
	/* Most commands are over by then: their end tells all, in one turn and with one message. A terminal is
	 * somebody waiting, and so is a session. */
	if (!error && (l->pty || op->session))
		status_listen(op);
	else if (!error)
		op->listen_at = now_ms() + ENDS_BY_MS;
	return error;
}

static void op_take(struct op *op, const struct request *r, struct launch *l)
{
	op->pty = l->pty = r->pty;
	op->rows = l->rows = (uint16_t)r->rows;
	op->cols = l->cols = (uint16_t)r->cols;
	op->kind = l->kind = r->kind;
	op->cell = l->cell;
	op->result = r->result == 1;
	op->out[OUT_RESULT].eof_sent = !op->result;
	l->merge = r->merge == 1;
	l->limits = r->limits;
	l->cpu_ms = r->cpu_ms;
	op->oom_before = oom_count();
}

int op_start(uint32_t handle, uint8_t *payload, size_t length, const char **step)
{
	struct launch l = {.payload = payload, .length = length, .status = -1, .in = -1, .out = -1, .err = -1,
			   .script = -1, .answer = -1, .result = -1, .talk = -1, .cell = NO_CELL, .pidfd = -1};
	struct request r;
	struct op *op;
	int error;

	*step = "start";
	if (!handle || handle > HANDLE_MAX || !request_parse(payload, length, &r))
		return EPROTO;
	if (op_find(handle) || op_id_known(r.id))
		return EEXIST;
	error = request_place(&r, &l, step);
	if (error)
		return error;
	op = op_new(handle, r.id);
	if (!op)
		return EAGAIN;
	op_take(op, &r, &l);
	error = r.kind == KIND_SESSION ? session_begin(op, payload, length) : 0;
	if (!error)
		error = launch(op, &l, r.in == 1);
	if (error) {
		op->fail_step = r.kind == KIND_CALL ? "zygote" : "fork";
		op->fail_errno = -error;
		op_end(op);
		return 0;
	}
	op->exec_by = work_ms() + config.exec_deadline_ms;
	if (r.timeout_ms && r.timeout_ms < TIMEOUT_MAX_MS)
		op->kill_by = work_ms() + r.timeout_ms;
	if (r.quiet_ms < TIMEOUT_MAX_MS)
		op->quiet_ms = r.quiet_ms;
	return 0;
}

/* The agent's end of the conversation with a zygote (../zygote/talk.h). The zygote is the image's: what it says
 * is not believed further than it concerns its own calls. Processes are ended by their groups and cells, never
 * by a number that it tells. */
#include "zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cell.h"
#include "child.h"
#include "../zygote/talk.h"

#define CELL_NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS)

enum { HEAR_MAX = 512, AT_ONCE = 64, HANGS_MS = 5000, IS_READY = 1, IS_FAILED = 3, STEP_MAX = 16 };
enum { LIMIT_FSIZE = 1, LIMIT_STACK = 3, LIMIT_CORE = 4, LIMIT_NOFILE = 7 };

/* Invariant: without an operation (handle 0) there is no conversation, and ready is false. */
static struct {
	struct source talk;
	uint32_t handle;
	bool ready, was_ready;
	int due; /* what ZYGOTE_IS is to say, 0: nothing */
} zygote OWN;

struct told {
	char step[STEP_MAX];
	uint64_t error, pid, status;
};

/* What it may name; the texts outlive the packet. */
static const char *step_known(const char *step)
{
	static const char *const known[] = {"call", "join", "fork", "group", "limits", "stdio", "user", "cwd", "filter",
					    "descriptors"};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(step, known[i]))
			return known[i];
	return "zygote";
}

bool zygote_there(void)
{
	return zygote.handle != 0;
}

bool zygote_ready(void)
{
	return zygote.ready;
}

/* --- what it says ------------------------------------------------------------------------------- */

static bool told_parse(const struct frame *f, const uint8_t *payload, struct told *t)
{
	struct fields it = fields_of(payload, f->length);
	struct field field;
	int more, error = 0;

	*t = (struct told){.step = ""};
	while (!error && (more = fields_next(&it, &field)) > 0) {
		if (field.tag == Z_STEP)
			error = field_text(&field, t->step, sizeof(t->step));
		else if (field.tag == Z_ERRNO)
			error = field_u64(&field, &t->error);
		else if (field.tag == Z_PID)
			error = field_u64(&field, &t->pid);
		else if (field.tag == Z_STATUS)
			error = field_u64(&field, &t->status);
	}
	return !error && !more;
}

static void call_entered(struct op *op, pid_t pid)
{
	if (op->state != OP_STARTING || op->fail_step)
		return;
	op->state = OP_RUNNING;
	op->pid = pid;
	op->exec_by = NEVER;
	op->started = op->started_due = true;
	op_heard(op);
}

static void call_failed(struct op *op, const struct told *t)
{
	if (op->state != OP_STARTING)
		return; /* its end will tell */
	if (!op->fail_step) {
		op->fail_step = step_known(t->step);
		op->fail_errno = t->error > 0 && t->error < 4096 ? (int)t->error : EIO;
	}
	op_end(op);
}

static void call_ended(struct op *op, const struct told *t)
{
	int status = (int)(t->status & 0xffff);

	if (op->state != OP_STARTING && op->state != OP_RUNNING)
		return;
	if (op->state == OP_STARTING && !op->fail_step && !op->timed_out && !op->cancelled) {
		op->fail_step = "zygote"; /* it was killed on its way into the cell */
		op->fail_errno = ECHILD;
	}
	op->wait_status = WIFEXITED(status) || WIFSIGNALED(status) ? status : SIGKILL;
	if (!op->pid)
		op->pid = (pid_t)t->pid;
	op_end(op);
}

static bool said_by_zygote(pid_t pid)
{
	const struct op *op = op_find(zygote.handle);

	return op && op->pid == pid;
}

/* False for what nobody of ours writes. pid is the writer's, as the kernel says. */
static bool packet_take(const uint8_t *packet, size_t size, pid_t pid)
{
	struct told told;
	struct frame f;
	struct op *op;

	if (size < FRAME_HEADER || frame_decode(packet, &f) || f.length != size - FRAME_HEADER ||
	    !told_parse(&f, packet + FRAME_HEADER, &told))
		return false;
	if (f.type == Z_READY) {
		if (!said_by_zygote(pid) || zygote.ready)
			return false;
		zygote.ready = zygote.was_ready = true;
		zygote.due = IS_READY;
		return true;
	}
	op = op_find(f.stream);
	if (!op || op->kind != KIND_CALL)
		return true; /* it is over */
	if (f.type == Z_ENTERED)
		call_entered(op, pid);
	else if (f.type == Z_FAILED)
		call_failed(op, &told);
	else if (f.type == Z_ENDED && said_by_zygote(pid))
		call_ended(op, &told);
	else
		return false;
	return true;
}

/* 1: a packet, whose writer is *pid; 0: none yet; negative: there will be none. Descriptors find no room. */
static int packet_receive(uint8_t *packet, size_t *size, pid_t *pid)
{
	char control[CMSG_SPACE(sizeof(struct ucred))] __attribute__((aligned(8)));
	struct iovec v = {.iov_base = packet, .iov_len = *size};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(zygote.talk.fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *head;
	struct ucred who;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	head = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	if (!head || head->cmsg_type != SCM_CREDENTIALS || m.msg_flags & MSG_TRUNC)
		return -1;
	memcpy(&who, CMSG_DATA(head), sizeof(who));
	*pid = who.pid;
	*size = (size_t)n;
	return 1;
}

/* It has hung up, or speaks nonsense, or hangs: it ends, and zygote_over follows. */
static void zygote_kill(void)
{
	struct op *op = op_find(zygote.handle);

	zygote.ready = false;
	source_close(&zygote.talk);
	if (op && (op->state == OP_STARTING || op->state == OP_RUNNING))
		op_kill(op);
}

static void talk_ready(struct source *src, uint32_t events)
{
	uint8_t packet[HEAR_MAX];

	(void)events;
	for (int i = 0; i < AT_ONCE && src->fd >= 0; i++) {
		size_t size = sizeof(packet);
		pid_t pid = 0;
		int got = packet_receive(packet, &size, &pid);

		if (!got)
			return;
		if (got < 0 || !packet_take(packet, size, pid))
			zygote_kill();
	}
}

void zygote_hear(void)
{
	if (zygote.handle)
		talk_ready(&zygote.talk, 0);
}

/* --- its life ------------------------------------------------------------------------------------- */

int zygote_begin(const struct op *op, struct launch *l)
{
	int ends[2], on = 1;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return -errno;
	l->talk = ends[1];
	/* Before there is anything to be said: what is sent is marked by the kernel with who sent it. */
	if (setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on))) {
		close(ends[0]);
		return -errno;
	}
	zygote.handle = op->handle;
	zygote.ready = zygote.was_ready = false;
	zygote.due = 0;
	source_open(&zygote.talk, ends[0], talk_ready);
	source_watch(&zygote.talk, EPOLLIN);
	return 0;
}

void zygote_over(const struct op *op)
{
	if (op->handle != zygote.handle)
		return;
	zygote_hear(); /* the ends of calls that it still told */
	zygote.handle = 0;
	zygote.ready = false;
	zygote.due = zygote.was_ready ? 0 : IS_FAILED;
	source_close(&zygote.talk);
	for (uint32_t i = 0; i < ops_high; i++) {
		struct op *call = &ops[i];

		if (call->kind != KIND_CALL || (call->state != OP_STARTING && call->state != OP_RUNNING))
			continue;
		if (!call->fail_step) {
			call->fail_step = "zygote";
			call->fail_errno = ECHILD;
		}
		op_kill(call);
		op_end(call);
	}
}

void zygote_watch(struct op *op, uint64_t now)
{
	if (op->kind != KIND_CALL || !op->killed || (op->state != OP_STARTING && op->state != OP_RUNNING))
		return;
	if (op->hangs_at == NEVER)
		op->hangs_at = now + HANGS_MS;
	else if (op->hangs_at <= now)
		zygote_kill();
}

bool zygote_control(void)
{
	uint8_t bytes[64];
	struct builder b;

	if (!zygote.due)
		return true;
	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, T_STATE, (uint64_t)zygote.due);
	if (zygote.due == IS_FAILED) {
		build_text(&b, T_ERROR_STEP, "zygote");
		build_u64(&b, T_ERRNO, ECHILD);
	}
	if (!send_frame(G_ZYGOTE_IS, 0, &b))
		return false;
	zygote.due = 0;
	return true;
}

void zygote_forget(void)
{
	zygote.due = 0;
}

/* --- a call ----------------------------------------------------------------------------------------- */

struct parcel {
	uint8_t packet[ZYGOTE_PACKET_MAX];
	struct builder b;
	int fd[ZYGOTE_FDS_MAX];
	size_t fds;
};

static void parcel_add(struct parcel *p, enum zygote_tag tag, uint64_t value, int fd)
{
	if (p->fds == ZYGOTE_FDS_MAX || fd < 0) {
		p->b.overflow = true;
		return;
	}
	build_u64(&p->b, (uint8_t)tag, value);
	p->fd[p->fds++] = fd;
}

static void parcel_limit(struct parcel *p, uint64_t resource, uint64_t value)
{
	uint8_t raw[24];

	put_u64(raw, resource);
	put_u64(raw + 8, value);
	put_u64(raw + 16, value);
	build_bytes(&p->b, Z_RLIMIT, raw, sizeof(raw));
}

static void parcel_fill(struct parcel *p, struct op *op, const struct launch *l, int script)
{
	uint32_t count;
	int tasks = cell_tasks(op->cell, &count);

	build_init(&p->b, p->packet + FRAME_HEADER, sizeof(p->packet) - FRAME_HEADER);
	for (uint32_t i = 0; i < count; i++)
		parcel_add(p, Z_GROUP, 0, tasks + (int)i);
	parcel_add(p, Z_GROUP, 0, group_door(&op->group));
	if (l->in >= 0)
		parcel_add(p, Z_FD, 0, l->in);
	parcel_add(p, Z_FD, 1, l->out);
	parcel_add(p, Z_FD, 2, l->merge ? l->out : l->err);
	parcel_add(p, Z_FD, ZYGOTE_FD_SCRIPT, script);
	if (l->result >= 0)
		parcel_add(p, Z_FD, ZYGOTE_FD_RESULT, l->result);
	parcel_add(p, Z_JOIN, CELL_NAMESPACES, l->pidfd);
	parcel_limit(p, LIMIT_CORE, 0);
	if (l->limits.fsize)
		parcel_limit(p, LIMIT_FSIZE, l->limits.fsize);
	if (l->limits.stack)
		parcel_limit(p, LIMIT_STACK, l->limits.stack);
	if (l->limits.nofile || config.nofile)
		parcel_limit(p, LIMIT_NOFILE, l->limits.nofile ? l->limits.nofile : config.nofile);
	build_u64(&p->b, Z_UID, CELL_UID);
	build_u64(&p->b, Z_GID, CELL_UID);
	build_text(&p->b, Z_CWD, "/call");
}

static int parcel_send(struct parcel *p, uint32_t handle)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(ZYGOTE_FDS_MAX * sizeof(int))];
	} control = {.room = {0}};
	struct iovec v = {.iov_base = p->packet, .iov_len = FRAME_HEADER + p->b.used};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control,
			   .msg_controllen = CMSG_SPACE(p->fds * sizeof(int))};

	frame_encode(p->packet, &(struct frame){.type = Z_CALL, .stream = handle, .length = (uint32_t)p->b.used});
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(p->fds * sizeof(int));
	memcpy(CMSG_DATA(&control.head), p->fd, p->fds * sizeof(int));
	return sendmsg(zygote.talk.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int zygote_call(struct op *op, const struct launch *l)
{
	struct fields it = fields_of(l->payload, l->length);
	struct field f, payload = {.length = 0};
	struct parcel p;
	int script, error;

	p.fds = 0;
	while (fields_next(&it, &f) > 0)
		if (f.tag == T_SCRIPT)
			payload = f;
	script = script_file(&payload);
	if (script < 0)
		return script;
	parcel_fill(&p, op, l, script);
	error = p.b.overflow ? -E2BIG : parcel_send(&p, op->handle);
	close(script);
	return error;
}

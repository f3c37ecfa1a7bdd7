/* Sessions: the shell, from START to DONE, however often it is replaced. It says "SEQ STATUS PID"
 * on a pipe when it has run a script; its death says the rest. */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLOSE_MS = 2000, MFD_NOEXEC = 8, MFD_CLOSE = 1 };

static void answer_ready(struct source *src, uint32_t events);

char *session_number(char *at, uint64_t value)
{
	char digits[20];
	int n = 0, i = 0;

	do
		digits[n++] = (char)('0' + value % 10);
	while (value /= 10);
	while (n)
		at[i++] = digits[--n];
	at[i] = 0;
	return at;
}

/* --- the shell ---------------------------------------------------------------------------------- */

int session_begin(struct op *op, const uint8_t *payload, size_t length)
{
	struct session *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	*s = (struct session){.script = -1, .go = -1, .keep = {-1, -1}, .close_by = NEVER,
			      .kill_by = NEVER, .step_at = NEVER, .start = malloc(length), .op = op};
	source_open(&s->answer, -1, answer_ready);
	op->session = s;
	if (!s->start)
		return -ENOMEM;
	memcpy(s->start, payload, length);
	s->start_size = length;
	s->script = (int)syscall(SYS_memfd_create, "script", MFD_CLOSE | MFD_NOEXEC);
	if (s->script < 0 && errno == EINVAL) /* before Linux 6.3 */
		s->script = (int)syscall(SYS_memfd_create, "script", MFD_CLOSE);
	if (s->script < 0)
		return -errno;
	fchmod(s->script, 0444); /* its owner is nobody inside: it can only be read there */
	return 0;
}

static int script_reader(const struct session *s)
{
	char path[40];

	session_number(strcpy(path, "/proc/self/fd/") + 14, (uint64_t)s->script);
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Each shell has pipes of its own for numbers and answers: what an earlier one left cannot speak for
 * it. The output pipes stay, held open from here, so that no stream ends with a shell. */
int session_streams(struct op *op, struct launch *l)
{
	struct session *s = op->session;
	int here, error;

	error = pipe_make(&s->go, &l->in, false);
	if (!error)
		error = pipe_make(&here, &l->answer, true);
	if (error)
		return error;
	source_open(&s->answer, here, answer_ready);
	source_watch(&s->answer, EPOLLIN);
	s->text_used = 0;
	l->script = script_reader(s);
	if (l->script < 0)
		return -errno;
	for (int i = 0; i < 2; i++) {
		if (s->keep[i] < 0) {
			error = pipe_make(&here, &s->keep[i], true);
			if (error)
				return error;
			outlet_open(&op->out[i], here, session_out_ready);
			outlet_watch(&op->out[i]);
		}
		*(i ? &l->err : &l->out) = fcntl(s->keep[i], F_DUPFD_CLOEXEC, 3);
	}
	return 0;
}

static void shell_gone(struct op *op)
{
	struct session *s = op->session;

	op->pid = 0;
	source_close(&s->answer);
	close(s->go);
	s->go = -1;
}

int session_shell_again(struct op *op)
{
	struct session *s = op->session;
	struct launch l = {.payload = s->start, .length = s->start_size, .status = -1, .in = -1, .result = -1, .talk = -1, .cell = NO_CELL, .pidfd = -1,
			   .out = -1, .err = -1, .script = -1, .answer = -1, .kind = 2,
			   .cwd_last = s->cwd};
	int error;

	if (op->group.fd >= 0 && op->group.killed)
		group_release(&op->group);
	op->fail_step = NULL;
	op->state = OP_STARTING;
	op->exec_by = work_ms() + config.exec_deadline_ms;
	error = launch(op, &l, false);
	if (!error)
		return 0;
	if (op->pid < 0 || !op->pid)
		op->pid = 0;
	source_close(&op->status);
	shell_gone(op);
	op->state = OP_RUNNING;
	op->exec_by = NEVER;
	return error;
}

/* Where it is now, for a shell that may have to be started again. */
void session_note_cwd(struct op *op)
{
	char link[32], path[SESSION_PATH_ROOM];
	struct session *s = op->session;
	ssize_t n;

	strcat(session_number(strcpy(link, "/proc/") + 6, (uint64_t)op->pid), "/cwd");
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0 || path[0] != '/')
		return;
	path[n] = 0;
	memcpy(s->cwd, path, (size_t)n + 1);
}

/* --- answers -------------------------------------------------------------------------------------- */

/* A decimal number and the character behind it; NEVER if that is not what is there. */
static uint64_t number_take(const char **at, char end)
{
	uint64_t value = 0;
	int digits = 0;

	for (; **at >= '0' && **at <= '9' && digits < 18; (*at)++, digits++)
		value = value * 10 + (uint64_t)(**at - '0');
	if (!digits || **at != end)
		return NEVER;
	(*at)++;
	return value;
}

/* "SEQ STATUS PID": the script has run. After `exit`, another process than before is the shell. */
static bool answer_take(struct op *op, const char *line)
{
	struct session *s = op->session;
	uint64_t seq = number_take(&line, ' '), status = number_take(&line, ' ');
	uint64_t pid = number_take(&line, '\n');

	if (s->phase != SESSION_RUNNING || seq != s->seq || status > 255 || pid < 2 ||
	    pid > INT32_MAX)
		return false;
	if ((pid_t)pid != op->pid) {
		if (op->group.fd >= 0 && !group_has(&op->group, (pid_t)pid))
			return false;
		kill(op->pid, SIGKILL); /* it only waits for the new one; our child until it is reaped */
		s->before = op->pid;
		s->handed_over = true;
		s->step_at = NEVER;
		op->pid = (pid_t)pid;
	}
	s->status = (int)status << 8;
	if (!s->handed_over)
		session_finish(op);
	return true;
}

/* Whoever speaks out of turn is not our driver. The shell is ended, and so is its pipe. */
static void answer_is_forged(struct op *op)
{
	struct session *s = op->session;

	source_close(&s->answer);
	if (op->pid) /* first: it would go on with the script */
		kill(op->pid, SIGKILL);
	if (s->phase == SESSION_RUNNING && s->stop == STOP_NONE)
		session_signal_new(op, SIGKILL, false);
}

static void answer_ready(struct source *src, uint32_t events)
{
	struct session *s = container_of(src, struct session, answer);
	struct op *op = s->op;
	char *end;
	ssize_t n;

	(void)events;
	if (src->fd < 0)
		return;
	n = read(src->fd, s->text + s->text_used, sizeof(s->text) - 1 - s->text_used);
	if (n <= 0) {
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			source_close(src); /* the shell was replaced, or ends: wait tells */
		return;
	}
	s->text_used += (size_t)n;
	s->text[s->text_used] = 0;
	end = memchr(s->text, '\n', s->text_used);
	if (!end && s->text_used < sizeof(s->text) - 1)
		return;
	/* One answer at a time is due, and nothing behind it. */
	if (!end || end + 1 != s->text + s->text_used || !answer_take(op, s->text))
		answer_is_forged(op);
	s->text_used = 0;
}

/* The shell before is dead, and the command that it handed over ends. While it was being killed it may
 * still, in the kernel, have taken its child's death with it: then nobody else tells us of that. */
struct op *session_orphaned(pid_t pid)
{
	for (uint32_t i = 0; i < ops_high; i++) {
		struct op *op = &ops[i];

		if (op->state == OP_FREE || !op->session || op->session->before != pid)
			continue;
		op->session->before = 0;
		if (op->session->handed_over) {
			op->session->handed_over = false;
			session_finish(op);
		}
		return op->pid > 0 && kill(op->pid, 0) && errno == ESRCH ? op : NULL;
	}
	return NULL;
}

bool session_child_ended(struct op *op, pid_t pid, int status)
{
	struct session *s = op->session;

	if (!s || !op->started || pid != op->pid)
		return false;
	answer_ready(&s->answer, 0); /* it may have handed over to another process */
	if (pid != op->pid)
		return true;
	if (s->closing || op->cancelled)
		return false;
	shell_gone(op);
	source_close(&op->status);
	op->state = OP_RUNNING;
	op->exec_by = NEVER;
	s->fail_step = op->fail_step; /* of one that was to take its place */
	s->fail_errno = op->fail_errno;
	if (s->handed_over) {
		s->handed_over = false;
		session_finish(op);
	}
	s->lost = s->phase != SESSION_RUNNING;
	if (s->phase == SESSION_RUNNING) {
		s->status = status;
		s->reset = true;
		session_finish(op);
	}
	return true;
}

/* --- the whole ------------------------------------------------------------------------------------ */

void session_close(struct op *op)
{
	struct session *s = op->session;

	if (s->closing || (op->state != OP_STARTING && op->state != OP_RUNNING))
		return;
	s->closing = true;
	s->close_by = now_ms() + (s->phase == SESSION_RUNNING ? 0 : CLOSE_MS);
	close(s->go);
	s->go = -1;
	if (!op->pid)
		op_end(op);
}

void session_shut(struct op *op)
{
	struct session *s = op->session;

	s->closing = true;
	s->close_by = s->kill_by = s->step_at = NEVER;
	s->phase = SESSION_IDLE;
	session_freeze(op, false);
	source_close(&s->answer);
	close(s->go);
	s->go = -1;
	for (int i = 0; i < 2; i++) {
		close(s->keep[i]);
		s->keep[i] = -1;
		op->out[i].hold = op->out[i].cap = NEVER;
		outlet_drop(&op->out[i], false);
	}
	if (op->started) /* nothing of it goes on */
		op_kill(op);
}

void session_free(struct op *op)
{
	struct session *s = op->session;

	if (!s)
		return;
	op->session = NULL;
	source_close(&s->answer);
	close(s->script);
	close(s->go);
	close(s->keep[0]);
	close(s->keep[1]);
	free(s->start);
	free(s);
}

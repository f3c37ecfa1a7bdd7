/* Sessions: an operation of KIND 2 is a shell that runs one script after another. Its driver, which
 * the host gives as START's arguments, and the frames are described in PROTOCOL.md, "Sessions".
 *
 *	session.c	the shell and its answers, from START to DONE
 *	session_run.c	a command, from EXEC to RAN
 *	session_stop.c	ending what a command started, and neither the shell nor what was there before
 */
#ifndef SKERRY_SESSION_H
#define SKERRY_SESSION_H

#include "init.h"

enum {
	SESSION_SCRIPT_MAX = 16 << 20,
	SESSION_KEEP_MAX = 1 << 16, /* of a stream, written between commands: the next one brings it */
	SESSION_ANSWER_MAX = 64,
	SESSION_OLD_MAX = 256,
	SESSION_PATH_ROOM = 4096,
	SESSION_STOP_SIGNAL = 62, /* the driver's trap: leave the script */
	SESSION_FD_SCRIPT = 8,	  /* where the shell finds them; its stdin is the pipe of numbers */
	SESSION_FD_ANSWER = 9,
};

enum session_phase {
	SESSION_IDLE, /* the last command is the host's */
	SESSION_RUNNING,
	SESSION_DRAINING, /* it has ended; what it wrote is being read */
	SESSION_RAN,	  /* RAN may be sent; kept until it is acknowledged */
};

/* How far the end of a command by force has come. */
enum session_stop {
	STOP_NONE,
	STOP_OTHERS, /* all is frozen, and what the command started is killed */
	STOP_ASKED,  /* the shell runs again, and should leave the script */
	STOP_SHELL,  /* it did not: it is killed too */
	STOP_ALL,    /* nothing helps but the end of the whole group */
};

/* Invariants: size is what script holds; mark[i] <= out[i].ring.end; op->pid is 0 iff there is no
 * shell. What is read from answer comes from the sandbox. */
struct session {
	struct op *op;
	uint8_t *start; /* START's fields: a lost shell is started again */
	size_t start_size;
	char cwd[SESSION_PATH_ROOM]; /* where the shell was last seen; empty: not yet */
	int script, go, keep[2];
	struct source answer;
	char text[SESSION_ANSWER_MAX];
	size_t text_used;
	uint64_t size;
	enum session_phase phase;
	bool closing, lost, ran_sent, frozen;
	pid_t before; /* the shell that handed over, until its death is known */
	bool handed_over; /* its successor has answered: the command ends when it is dead */
	uint64_t seq;
	uint64_t mark[2]; /* where the output of the last ended command ends */
	uint64_t base[2]; /* where that of command seq begins */
	uint64_t close_by;

	/* the command */
	uint64_t kill_by, quiet_ms, heard;
	uint64_t start_ns, end_ns, start_tick, cpu_before, cpu_us, oom_before, dropped[2];
	pid_t old[SESSION_OLD_MAX]; /* in the group when it began */
	size_t old_count;
	int status;
	const char *fail_step;
	int fail_errno;
	bool timed_out, no_output, cancelled, oom, reset;
	enum session_stop stop;
	uint64_t step_at, stop_until;
};

/* --- session.c: 0 or a negative errno value ------------------------------------------------------ */

int session_begin(struct op *op, const uint8_t *payload, size_t length);
int session_streams(struct op *op, struct launch *l);
/* A fresh shell, with the environment of the first, where the last one was. */
int session_shell_again(struct op *op);
void session_note_cwd(struct op *op);
/* True if the death of this process was the session's matter. */
bool session_child_ended(struct op *op, pid_t pid, int status);
/* A process ended that is nobody's leader: whether a shell went with it, and which operation's. */
struct op *session_orphaned(pid_t pid);
/* The shell reads the end of its numbers, runs its EXIT trap, and ends; then so does all of it. */
void session_close(struct op *op);
/* The operation ends: nothing but its output is left. */
void session_shut(struct op *op);
void session_free(struct op *op);
/* Writes a number and a terminator; returns where it begins. */
char *session_number(char *at, uint64_t value);

/* --- session_run.c: 0, an errno value to be answered, or -EPROTO ---------------------------------- */

int session_data(struct op *op, const uint8_t *payload, size_t length);
int session_exec(struct op *op, const uint8_t *payload, size_t length);
int session_acknowledge(struct op *op, uint64_t seq);
int session_cancel(struct op *op, uint64_t seq);
int session_signal_command(struct op *op, uint64_t seq, int signo);
/* The command has ended: session->status or fail_step say how. */
void session_finish(struct op *op);
void session_out_ready(struct source *src, uint32_t events);
void session_attach(struct op *op);
void session_credited(struct op *op);
void session_timer(struct op *op, uint64_t now);
uint64_t session_next_timer(const struct op *op);
/* False when the room ran out. */
bool session_control(struct op *op);
bool session_started_send(struct op *op);

/* --- session_stop.c ---------------------------------------------------------------------------- */

uint64_t session_tick(void);
void session_note_old(struct op *op);
/* To what the command started, the shell excepted unless asked for; how many that were. */
size_t session_signal_new(struct op *op, int signo, bool shell_too);
void session_freeze(struct op *op, bool on);
void session_stop_begin(struct op *op);
void session_stop_step(struct op *op, uint64_t now);

/* --- start.c ------------------------------------------------------------------------------------ */

int pipe_make(int *here, int *there, bool readable_here);
int launch(struct op *op, struct launch *l, bool in);

#endif

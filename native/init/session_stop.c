/* The end of a session's command by force: every process that it started, and not the shell, and not
 * what earlier commands left running. All of it is frozen meanwhile, so that nothing forks away, and
 * the shell, which finds a signal waiting when it goes on, leaves the script (the driver's trap). */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	ROUND_MS = 5,
	ROUNDS_MS = 1000, /* for what is killed to be gone */
	ASKED_MS = 500,	  /* for the shell to answer */
	SEEN_MAX = 8192,
	SPARED_MAX = 512,
	TICKS = 100,  /* USER_HZ, in which /proc counts */
	STAT_START = 20, /* fields behind the name: the start time */
};

/* The time in which /proc/PID/stat tells when a process began. */
uint64_t session_tick(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * TICKS + (uint64_t)t.tv_nsec / (1000000000 / TICKS);
}

void session_note_old(struct op *op)
{
	struct session *s = op->session;

	s->start_tick = session_tick();
	s->old_count = op->group.fd < 0 ? 0 : group_pids(&op->group, s->old, SESSION_OLD_MAX);
}

static bool stat_read(pid_t pid, pid_t *parent, uint64_t *start)
{
	char text[512], *p;

	if (!proc_read(pid, "/stat", text, sizeof(text)) || !(p = strrchr(text, ')')))
		return false;
	for (int field = 1; field <= STAT_START && (p = strchr(p + 1, ' ')); field++) {
		if (field == 2)
			*parent = (pid_t)strtol(p, NULL, 10);
		if (field == STAT_START)
			*start = strtoull(p, NULL, 10);
	}
	return p != NULL;
}

/* A process that began in the same hundredth of a second as the command was there before only if it
 * was seen; its number alone does not tell, since numbers are used again. */
static bool was_there(const struct session *s, pid_t pid, uint64_t start)
{
	if (start != s->start_tick)
		return start < s->start_tick;
	for (size_t i = 0; i < s->old_count; i++)
		if (s->old[i] == pid)
			return true;
	return false;
}

static bool among(const pid_t *list, size_t count, pid_t pid)
{
	for (size_t i = 0; i < count; i++)
		if (list[i] == pid)
			return true;
	return false;
}

size_t session_signal_new(struct op *op, int signo, bool shell_too)
{
	static pid_t pids[SEEN_MAX], spared[SPARED_MAX];
	size_t n = group_pids(&op->group, pids, SEEN_MAX), kept = 0, sent = 0;

	/* Children come after their parents in the list. */
	for (size_t i = 0; i < n; i++) {
		pid_t parent = 0;
		uint64_t start = 0;

		if (pids[i] == op->pid) {
			if (!shell_too)
				continue;
		} else if (!stat_read(pids[i], &parent, &start)) {
			continue; /* gone */
		} else if (was_there(op->session, pids[i], start) || among(spared, kept, parent)) {
			if (kept < SPARED_MAX)
				spared[kept++] = pids[i];
			continue;
		}
		group_signal_one(&op->group, pids[i], signo);
		sent++;
	}
	return sent;
}

static bool group_is_frozen(struct op *op)
{
	char text[128];

	return group_read(&op->group, GROUP_EVENTS, text, sizeof(text)) &&
	       strstr(text, "frozen 1");
}

void session_freeze(struct op *op, bool on)
{
	struct session *s = op->session;

	if (op->group.fd < 0 || s->frozen == on)
		return;
	if (group_write(&op->group, "cgroup.freeze", on ? "1" : "0"))
		s->frozen = on;
}

static void stop_all(struct op *op)
{
	op->session->stop = STOP_ALL;
	op->session->step_at = NEVER;
	session_freeze(op, false);
	if (op->group.fd >= 0)
		group_kill(&op->group);
	else
		session_signal(op->pid, SIGKILL);
}

void session_stop_begin(struct op *op)
{
	struct session *s = op->session;
	uint64_t now = now_ms();

	if (s->phase != SESSION_RUNNING || s->stop != STOP_NONE || !op->pid)
		return;
	session_freeze(op, true);
	if (op->state != OP_RUNNING || !s->frozen) {
		stop_all(op); /* without groups, or without a freezer, there is no telling apart */
		return;
	}
	s->stop = STOP_OTHERS;
	s->stop_until = now + ROUNDS_MS;
	group_signal_one(&op->group, op->pid, SESSION_STOP_SIGNAL);
	session_stop_step(op, now);
}

void session_stop_step(struct op *op, uint64_t now)
{
	struct session *s = op->session;
	bool shell = s->stop != STOP_OTHERS;

	if (s->stop == STOP_ASKED) {
		s->stop = STOP_SHELL;
		s->stop_until = now + ROUNDS_MS;
		session_freeze(op, true);
	}
	s->step_at = now + ROUND_MS;
	if (session_signal_new(op, SIGKILL, shell) || !group_is_frozen(op)) {
		if (now >= s->stop_until)
			stop_all(op);
	} else if (!shell) {
		s->stop = STOP_ASKED;
		s->step_at = now + ASKED_MS;
		session_freeze(op, false);
	}
}

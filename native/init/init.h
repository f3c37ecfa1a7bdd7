/* skerry-init: the guest agent, PID 1 of a sandbox. One thread, one epoll loop.
 *
 *	main.c      start: descriptors, configuration, signals      loop.c    epoll, clocks, timers
 *	conn.c      connections, HELLO, receiving                   send.c    what is sent, in which order
 *	dispatch.c  a received frame -> the part it concerns        op.c, start.c  operations: START to DONE
 *	child.c     the child between fork and exec                 creds.c   its privileges
 *	userdb.c    passwd and group parser (no agent state)        group.c   cgroup2 groups, signals
 *	known.c     what was read of them before
 *	more.c      a START of several frames                 hold.c    the clock that can stand still
 *	request.c   what a START asks for                     cell*.c   cells of a function container
 *	zygote.c    a Python that forks for calls there
 *	low.c       the stack's place                         reply.c   short answers that wait for room
 *	ring.c      ring buffers (no agent state)                   stream.c  descriptor <-> ring
 *	forward.c, listen.c  forwarded connections, listeners        file*.c, tree*.c, tar.c: the file helper
 *
 * Everything that a peer or the sandbox can make grow is a fixed table or a fixed window.
 */
#ifndef SKERRY_INIT_H
#define SKERRY_INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "frames.h"
#include "protocol.h"
#include "ring.h"

enum {
	OPS_LIMIT = 624, /* WELCOME names all operations in one frame: 104 bytes each */
	OPS_DEFAULT = 256,
	OP_ID_SIZE = 16,
	NONCE_SIZE = 16,
	FINISHED_IDS = 1024,
	CONTROL_ROOM = 384, /* the largest control frame but WELCOME */
	HELLO_MS = 5000,
	EXEC_DEADLINE_MS = 10000,
	HANDLE_MAX = (1 << 29) - 1,
	HOST_CONN = 1 << 28, /* set in the number of a forwarded connection that the host chose */
	LISTENERS_MAX = 16,
	PER_LISTENER = 256,
	CONNECTS_MAX = 256, /* forwarded connections that the host asked for, at once */
	START_MORE_MAX = 1 << 21, /* of a START's fields, in MORE frames behind it */
	CELLS_MAX = 32,
	CALLS_MAX = 512, /* as OPS_LIMIT, with a result each */
	FD_RESERVE = 32, /* descriptors that only accept may use: a host must always get in */
};

#define FORWARD_BIT 0x80000000u
#define AGENT_VERSION "0.4.0" /* the minor number counts what was added to the protocol */
#define NEVER UINT64_MAX
#define NO_CELL UINT32_MAX

enum { KIND_COMMAND, KIND_FILE, KIND_SESSION, KIND_CALL, KIND_ZYGOTE };
/* What a command's child never looks at: it is not copied for it (own.ld, fork_less in main.c). Tables lie
 * behind the rest, TX, of which little is used at most times, before the others. */
#define OWN __attribute__((section(".bss.own")))
#define OWN_TX __attribute__((section(".bss.own.tx")))
#define OWN_TABLE __attribute__((section(".bss.own.table")))
#define TIMEOUT_MAX_MS (1ull << 42)
#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* --- loop.c ------------------------------------------------------------------------------- */

/* A descriptor in the epoll set. Invariant: events is 0 iff epoll does not know fd: a full pipe is
 * taken out, since epoll reports hang-ups even to those who ask for nothing. Handlers must survive
 * being called for nothing: a source may be closed and opened again within one batch of events. */
struct source {
	int fd; /* -1: closed */
	uint32_t events;
	void (*ready)(struct source *src, uint32_t events);
};

void source_open(struct source *src, int fd, void (*ready)(struct source *, uint32_t));
void source_watch(struct source *src, uint32_t events);
/* Takes the descriptor out of the set and gives it to the caller. */
int source_take(struct source *src);
void source_close(struct source *src);
uint64_t now_ms(void);
uint64_t realtime_ns(void);
/* Frees the whole pages of a buffer behind its first bytes; they read as zeros afterwards. */
void pages_free(uint8_t *buffer, size_t size, size_t keep);
void loop_init(void);
void loop_run(void) __attribute__((noreturn));

/* --- low.c: unmaps what lies far from the program, if its stack is not there ------------------------ */

void low_settle(void);

/* --- main.c ------------------------------------------------------------------------------- */

struct config {
	uint32_t tasks; /* descriptors from FD_TASKS on; of a function container its own, then each cell's */
	bool function;	/* a function container: programs run in cells only */
	uint32_t cells;
	uint64_t processors;
	int oom_fd;	/* -1: none */
	uid_t peer_uid;
	uint64_t nofile;
	uint64_t fd_limit; /* the agent's own */
	uint64_t exec_deadline_ms;
	uint32_t max_ops;
	bool has_group;
	bool best_effort; /* commands give way to everything else on the host */
	const uint64_t *key; /* two words that the base filter asks for, or NULL: it knows of none */
	const char *env; /* the default environment: texts, one behind the other; an empty one ends it */
	size_t env_count;
};
extern struct config config;

/* --- stream.c: between a descriptor and the host -------------------------------------------- */

/* Bytes from the sandbox to the host. Invariant: ring.base <= sent <= ring.end. */
struct outlet {
	struct source src;
	struct ring ring;
	uint64_t sent;
	int64_t drain; /* bytes still to take after the leader's end; -1 while it lives */
	uint64_t cap;  /* nothing is taken from here on, NEVER normally; with drop: it is thrown away */
	uint64_t hold; /* nothing is sent from here on, NEVER normally */
	uint64_t dropped;
	bool eof, eof_sent, failed, drop;
};

/* Bytes from the host to the sandbox. ring.base counts what the sandbox's side has taken. */
enum inlet_kind { INLET_PIPE, INLET_PTY, INLET_SOCKET };
struct inlet {
	struct source src;
	struct ring ring;
	uint64_t credited;
	enum inlet_kind kind;
	bool eof, finished, broken, credit_due, broken_due;
};

void outlet_open(struct outlet *o, int fd, void (*ready)(struct source *, uint32_t));
/* From here on it is read whenever there is something and room for it. */
void outlet_watch(struct outlet *o);
void outlet_read(struct outlet *o, uint32_t events);
void outlet_drain(struct outlet *o, bool pty);
/* The host has everything below offset. -EPROTO if that was never sent or is no longer here. */
int outlet_credit(struct outlet *o, uint64_t offset);
int outlet_rewind(struct outlet *o, uint64_t offset);
void outlet_close(struct outlet *o);
/* Whether what finds no room is thrown away and counted, or waits in the pipe. */
void outlet_drop(struct outlet *o, bool drop);

void inlet_open(struct inlet *in, int fd, enum inlet_kind kind,
		void (*ready)(struct source *, uint32_t));
int inlet_data(struct inlet *in, const uint8_t *payload, size_t length);
int inlet_eof(struct inlet *in, uint64_t total);
void inlet_write(struct inlet *in);
void inlet_close(struct inlet *in);
/* Keeps a pipe that daemons still hold, and throws away what they write. */
void discard_keep(int fd);

/* --- group.c ------------------------------------------------------------------------------- */

enum group_file { GROUP_EVENTS, GROUP_PROCS, GROUP_CPU, GROUP_DOOR, GROUP_FILES };

struct group {
	int fd; /* its directory; -1: none */
	int file[GROUP_FILES]; /* what was used once stays open; 0: not yet */
	uint32_t serial, cell;
	bool killed;
};

/* An empty group below FD_GROUP, in the directory of that cell (NO_CELL: of none) if there is one; 0 or a
 * negative errno value. */
int group_make(struct group *g, uint32_t cell);
/* Processor time of all that ever ran in it; 0 if that cannot be known. */
uint64_t group_cpu_us(struct group *g);
/* A descriptor of the group's, to be entered by writing "0"; negative: none. */
int group_door(struct group *g);
void group_kill(struct group *g);
bool group_populated(struct group *g);
/* To every process of the group, each once; children forked meanwhile included. */
void group_signal(struct group *g, int signo);
/* Gives it up; one that daemons still live in is removed when they have ended. */
void group_release(struct group *g);
void group_retry(void);
uint64_t group_retry_at(void);
void group_child_ended(void);
/* Whether empty groups are kept for the next operations; gives them up. */
bool group_spares(void);
void group_quiet(void);
/* Its processes, older before younger; a longer list is cut at max. */
size_t group_pids(struct group *g, pid_t *out, size_t max);
bool group_has(const struct group *g, pid_t pid);
void group_signal_one(const struct group *g, pid_t pid, int signo);
/* The beginning of one of its files, terminated; false if it cannot be read. */
bool group_read(struct group *g, enum group_file file, char *text, size_t size);
bool group_write(const struct group *g, const char *file, const char *text);
/* "/proc/PID/FILE", likewise. */
bool proc_read(pid_t pid, const char *file, char *text, size_t size);
/* Without a group: the leader's session and what descends from it. */
void session_signal(pid_t leader, int signo);
bool session_alive(pid_t leader);

/* --- op.c ----------------------------------------------------------------------------------- */

enum op_state {
	OP_FREE,
	OP_STARTING, /* forked; exec not yet reached */
	OP_RUNNING,
	OP_ENDED, /* the leader is reaped (or never was); output is being drained */
	OP_DONE,  /* the result is complete; the operation waits for ACK */
};

/* Which of its outlets is which channel. */
enum { OUT_STDOUT, OUT_STDERR, OUT_RESULT, OUTLETS };
static inline uint32_t outlet_channel(uint32_t index)
{
	return index == OUT_RESULT ? 1 : 2 + index;
}

struct op {
	enum op_state state;
	uint32_t handle;
	uint8_t id[OP_ID_SIZE];
	pid_t pid;
	struct group group;
	bool pty;
	uint16_t rows, cols;
	struct source status; /* step reports of the child until exec */
	struct inlet in;
	struct outlet out[OUTLETS];
	struct session *session; /* KIND 2 */
	uint64_t kind;
	bool result; /* out[OUT_RESULT] is in use */
	uint32_t cell; /* NO_CELL: none */
	uint64_t cpu_limit_us, cpu_before, cpu_at; /* NEVER: none; what its group had used; now_ms() */
	uint64_t disk_used;
	uint64_t hangs_at; /* now_ms(): when a call that was killed is the zygote's fault; NEVER */
	uint64_t kill_again, kill_until; /* now_ms() times, NEVER if unset */
	uint64_t listen_at; /* likewise: when more than the end is waited for */
	uint64_t exec_by, kill_by; /* work_ms() times, NEVER if unset */
	uint64_t quiet_ms, heard; /* no-output timeout (0: none), and the last output in work_ms() */
	uint64_t start_ns, end_ns, cpu_us, oom_before;
	int wait_status;
	bool timed_out, no_output, cancelled, oom, killed, cpu_limited;
	const char *fail_step; /* why exec was not reached */
	int fail_errno;
	bool listening;	  /* for output; before, only for its end */
	bool attached;	  /* the present connection wants this operation's frames */
	bool started, started_due; /* exec was reached; STARTED is to be sent */
	bool done_sent;
};

extern struct op ops[OPS_LIMIT];
extern uint32_t ops_high; /* no slot at or above is in use */

struct op *op_find(uint32_t handle);
/* A slot, or NULL: too many operations. */
struct op *op_new(uint32_t handle, const uint8_t *id);
/* The leader has ended, or never was. */
void op_end(struct op *op);
uint64_t oom_count(void);
/* Output came, or may come again: the no-output timeout begins anew. */
void op_heard(struct op *op);
/* start.c: at listen_at, output is looked for from here on; the next time exec, too. */
void start_listen(struct op *op, uint64_t now);
/* start.c: a child was killed from outside before it reached exec. */
void start_was_killed(void);
/* start.c: notes that exec was reached, if it was. */
void start_reached(struct op *op);
/* start.c: in a cell, the one of its two processes that is the program; 0: not born yet. */
pid_t start_born(const struct op *op);
/* start.c: 0, or an errno value with *step: the frame is refused. */
int op_start(uint32_t handle, uint8_t *payload, size_t length, const char **step);
void op_cancel(struct op *op);
/* Processor time counts from here on, and ends it at so much; 0: at none. */
void op_cpu_limit(struct op *op, uint64_t ms);
void op_kill(struct op *op);
int op_signal(struct op *op, int signo);
void op_forget(struct op *op);
void op_settle(struct op *op);
void op_detach_all(void);
void op_child_ended(pid_t pid, int status, uint64_t cpu_us);
void op_timers(uint64_t now);
uint64_t op_next_timer(void);
void op_resize(struct op *op);
bool op_id_known(const uint8_t *id);

/* --- more.c: 0, an errno value to be answered, or -EPROTO ---------------------------------------- */

/* How many bytes of fields a START says will follow it; 0 for one that is whole. */
uint64_t more_announced(const uint8_t *payload, size_t length);
int more_begin(const struct frame *f, const uint8_t *payload, uint64_t more);
int more_take(const struct frame *f, const uint8_t *payload, const char **step);
void more_forget(void);

/* --- hold.c ---------------------------------------------------------------------------------- */

/* Milliseconds during which nothing was held. */
uint64_t work_ms(void);
/* When, in now_ms(), a time of work_ms() will come: NEVER while held. */
uint64_t work_deadline(uint64_t at);
/* The time from here to its end does not count. Survives connections. */
void work_hold(bool on);

/* --- child.c (privileges: creds.h) ------------------------------------------------------------ */

/* What the child reports: one record of 8 bytes per event. */
enum step {
	STEP_MASTER = 1, /* carries the terminal's master descriptor */
	STEP_FORK,
	STEP_USER,
	STEP_CWD,
	STEP_EXEC,
	STEP_ARGS,
	STEP_PTY,
	STEP_COUNT,
};
struct report {
	uint32_t step;
	int32_t error;
};
extern const char *const step_names[STEP_COUNT];

/* RLIMITS; 0: as it is. */
struct limits {
	uint64_t fsize, nofile, stack;
};

struct launch {
	uint8_t *payload; /* START's fields: the child builds argv and environ inside them */
	size_t length;
	volatile uint8_t *executing; /* shared with the agent; set when only exec is left */
	struct known *known;	     /* shared with other children: whom they looked up */
	int status, in, out, err;    /* -1: leave the agent's /dev/null */
	int group;		     /* to be entered by the child, or -1 */
	int script, answer;	     /* of a session */
	int result;		     /* what the command finds at FD_RESULT, or -1 */
	int talk;		     /* of a zygote: its end of the conversation with us */
	uint32_t cell;		     /* NO_CELL: none */
	int pidfd;		     /* of the cell */
	volatile pid_t *born;	     /* shared with the agent */
	struct limits limits;
	uint64_t cpu_ms;
	const char *cwd_last;	     /* of a session: tried first */
	uint64_t kind;
	bool pty, merge; /* merge: stderr is the pipe of stdout */
	uint16_t rows, cols;
};
void child_run(const struct launch *l) __attribute__((noreturn));
void child_fail(int status, enum step step, int error) __attribute__((noreturn));

/* --- conn.c, send.c, reply.c, dispatch.c ------------------------------------------------------ */

struct conn {
	struct source src;
	uint32_t generation;
};
extern struct conn conn;

void conn_init(void);
void conn_close(void);
void conn_timers(uint64_t now);
uint64_t conn_next_timer(void);
/* Give back the memory of large frames. */
void conn_trim(void);
/* In a child: forgets what came. */
void conn_scrub(void);
void send_trim(void);

/* Forgets what was queued for an older conversation; WELCOME comes first in the new one. */
void send_begin(const uint8_t nonce[NONCE_SIZE], bool same_transport);
/* Queues an answer; false if the host does not read its answers and must be dropped.
 * G_ERROR and G_DONE carry error and step, G_STARTED the agent's pid, G_PONG the token. */
bool send_reply(uint8_t type, uint32_t stream, int error, const char *step);
bool send_pong(const struct field *token);
/* Appends what answers there is room for; false if some still wait. */
bool replies_send(void);
void replies_drop(void);
bool send_offset(uint8_t type, uint32_t stream, uint64_t offset);
void send_pump(void);
/* Appends a frame; false if there is no room for it now. */
bool send_frame(uint8_t type, uint32_t stream, const struct builder *b);

/* 0, or -EPROTO: the connection must be closed. */
int dispatch(const struct frame *f, uint8_t *payload);

#include "forward.h"

/* --- file.c ------------------------------------------------------------------------------------ */

int file_main(int argc, char **argv);

#endif

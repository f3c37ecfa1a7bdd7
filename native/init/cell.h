/* Cells of a function container: namespaces that live for one call (PROTOCOL.md, "Cells"). */
#ifndef SKERRY_CELL_H
#define SKERRY_CELL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "init.h"
#include "seccomp.h"
#include "userdb.h"

enum { CELL_UID = 1000 };

/* What tells of a network namespace whether anybody has used it. */
struct net_state {
	uint64_t sockets, sum; /* in use; of what its interfaces and protocols have counted */
};

/* Invariant: init, pidfd and disk_fd are there in CELL_READY; in CELL_NONE only net_fd may be. */
struct cell {
	enum cell_state { CELL_NONE, CELL_MAKING, CELL_READY, CELL_ENDING } state;
	pid_t maker, init; /* 0: none, or reaped */
	int pidfd, disk_fd, net_fd; /* -1: none */
	struct net_state net;	    /* of net_fd, as it was made */
	struct source report; /* of the maker */
	uint64_t disk, inodes, make_by;
	bool again; /* CELL_ENDING: to be made afresh */
	/* Answers that are owed, and what they say. */
	uint32_t owed;
	enum { CELL_IS_READY = 1, CELL_IS_GONE, CELL_IS_FAILED } said;
	const char *fail_step;
	int fail_errno;
};

/* --- cell.c: the agent's part ------------------------------------------------------------------- */

void cells_init(void);
/* NULL unless programs can be started there. */
struct cell *cell_ready(uint64_t number);
/* CELL: 0, an errno value to be answered, or -EPROTO. */
int cell_frame(const uint8_t *payload, size_t length);
/* True if the process was a cell's: nobody else's. */
bool cell_child_ended(pid_t pid);
/* An operation in it has ended. */
void cell_left(uint32_t number);
/* Bytes of the cell's disk in use, its whole size if no further file fits; 0 if that cannot be known. */
uint64_t cell_disk_used(uint32_t number);
void cells_timers(uint64_t now);
uint64_t cells_next_timer(void);
/* Sends the answers that are owed; false when there was no room. */
bool cells_control(void);
/* A new conversation: nobody waits for an answer any more. */
void cells_forget(void);
/* The descriptors of the `tasks` files of a cell's groups; NO_CELL: the container's own. */
int cell_tasks(uint32_t number, uint32_t *count);

/* --- cell_make.c: a cell's maker and its first process -------------------------------------------- */

/* What the maker says, once, with the cell's disk and network beside it if error is 0. */
struct cell_report {
	uint32_t step;
	int32_t error;
	uint32_t has_net; /* of the two, whether the network namespace is there: a new one */
	struct net_state net;
};
extern const char *const cell_steps[];
struct cell_order {
	const struct cell *cell;
	int report;		 /* where to report to */
	volatile pid_t *init; /* shared with the agent; the kernel writes it before the process runs */
};
void cell_make(const struct cell_order *order) __attribute__((noreturn));
/* The zygote's own mounts and namespaces, but of processes: 0 or a negative errno. */
int cell_of_zygote(void);

/* --- cell_net.c: in the maker -------------------------------------------------------------------------- */

/* Enters the network namespace that the cell had, if nobody can tell that it was used, else a new one: 0 with
 * *fresh -1 or its descriptor, or a negative errno. */
int cell_net_enter(const struct cell *c, int *fresh, struct net_state *state);
int cell_net_loopback(void);

/* --- cell_enter.c: a program's child ----------------------------------------------------------------- */

/* Goes on in a second process in the cell, which runs `in_cell`; the first ends. */
void cell_enter(const struct launch *l, void (*in_cell)(const struct launch *l)) __attribute__((noreturn));
/* Gives up every privilege for good. 0 or a negative errno. */
int cell_become(const struct identity *who);
/* Keeps what a zygote needs for its calls, over its exec, too: it is to be root of the user namespace already. */
int cell_become_zygote(void);
/* Once, before the first child. */
bool cell_filters_build(void);
int cell_filter(enum seccomp_use use);

#endif

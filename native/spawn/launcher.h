/* The launcher's state and its parts. Error convention: native/README.md. */
#ifndef SKERRY_LAUNCHER_H
#define SKERRY_LAUNCHER_H

#include <linux/filter.h>

#include "loop.h"
#include "plan.h"

enum { BUCKETS = 4096, LAYER_TABLE_MAX = 512, IN_FLIGHT_MAX = 40, POOL_MAX = 256, MEMORY_JOBS_MAX = 16,
       VERSION = 1 };
/* Exit status of a process that the launcher only adopted: the kernel tells it to the parent alone. */
enum { STATUS_UNKNOWN = 0 };

/* Filled by a starting child in shared memory; read by the launcher at the end of the status pipe. */
struct report {
	int32_t error;      /* negative errno of the step at fault, or 0 */
	uint32_t step;      /* index of the step under way */
	uint32_t us[PLAN_MAX];
	uint64_t started_ns; /* of OP_EXEC */
};

struct slot {
	struct slot *next;
	uint64_t id, uid_base, owner_uid;
	int user_fd;   /* the user namespace, or a cgroup namespace that it owns (has_cgroup_ns) */
	int net_fd;
	bool has_cgroup_ns;
	bool making;   /* its descriptors are not there yet; STATUS names it, so that nobody reuses it */
	bool adopted;  /* made by an earlier launcher: its descriptors are gone, it is not used again */
	bool function; /* its user namespace may have namespaces below it: it serves no sandbox */
	uint64_t sockets; /* in its network namespace when that was made */
	struct instance *user; /* Invariant: user == NULL or user->slot == this */
};

/* A request that is answered later. */
struct pending {
	uint32_t id;
	uint64_t connection;
	bool set;
};

/* What is remembered of a START for the life of its instance. Small on purpose: a clone copies the
 * launcher's page tables, and an exec frees them, so that each page held here slows every START. */
struct kept {
	const char *agent_group, *work_group, *socket; /* work_group: "" if none */
	const char *layers;                            /* texts one after another, an empty one last */
	char text[];
};

struct instance {
	struct instance *next;
	char id[65];
	enum { STARTING, UNDOING, RUNNING, STOPPING, ENDED } state;
	bool adopted, group_killed;
	struct slot *slot;
	int wait_status;
	struct kept *kept;
	struct request *request; /* START's until it has settled */
	struct request *stop;    /* STOP's while it is under way */
	struct pending start_reply, stop_reply;
	struct launcher *launcher;
	/* While starting */
	struct plan *plan;
	struct report *report;
	unsigned done; /* steps of the launcher that were done */
	int listener, user_fd, net_fd; /* low copies for the child, until it has settled */
	uint64_t begun_ns;
	struct watch status;
	/* While alive */
	struct watch death; /* pidfd; -1 after the end */
	pid_t pid;
	struct timer timer;
};

struct launcher {
	struct loop loop;
	const char *run_dir, *state_dir, *log_file, *fail_at;
	struct roots cgroup_roots, bind_roots;
	int log, lock, host_mounts, host_net, cradle, image; /* descriptors; see mountns.c, image.c */
	struct seccomp_program *filter; /* without a key: each child sets one in its copy */
	uint32_t masks;
	struct watch listener, client;
	struct watch orphan; /* a timer that runs while no node is connected; -1: none is asked for */
	unsigned orphan_s;
	const char *keep_dir; /* files of instances that outlive the node; NULL: none does */
	bool orphaned;
	uint64_t connection;
	struct instance *instances[BUCKETS];
	struct slot *slots[BUCKETS];
	unsigned adopted;
	char layers[LAYER_TABLE_MAX][65];
	unsigned layer_count;
	unsigned layers_mounting; /* jobs under way; with layer_count never above LAYER_TABLE_MAX */
	int blobs; /* the session at /blobs; -1: there is none, or an earlier launcher had it */
	enum { UPPER_NONE, UPPER_BTRFS, UPPER_DIR } upper;
	bool upper_quota;
	int upper_fd, upper_place;
	unsigned pool[POOL_MAX], pool_count, pool_next; /* numbers of clean spare subvolumes */
	bool trash_running, trash_again;
	uint64_t trash_next;
	struct report *reports; /* IN_FLIGHT_MAX, shared with the children */
	uint64_t reports_used;  /* bit per report */
	unsigned memory_jobs; /* RECLAIM and PREFETCH under way */
	bool shutting_down;
};

/* serve.c: answers */
struct failure {
	const char *step;
	int error; /* negative errno */
	char text[160];
};
int fail(struct failure *f, const char *step, int error, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
int serve_open(struct launcher *l);
struct pending pending_of(const struct launcher *l, const struct request *r);
void reply_ok(struct launcher *l, const struct pending *p, struct builder *b);
void reply_fail(struct launcher *l, const struct pending *p, const char *step, int error,
		const char *text);
/* The same, with a copy of a descriptor. */
void reply_descriptor(struct launcher *l, const struct pending *p, struct builder *b, int fd);
void send_event(struct launcher *l, uint8_t type, struct builder *b);
/* The one buffer of answers, emptied. */
struct builder *answer(void);
void log_line(const struct launcher *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* orphan.c: without a node for orphan_s seconds, what is not kept ends, and then the launcher */
int orphan_open(struct launcher *l);
void orphan_arm(struct launcher *l);
void orphan_disarm(struct launcher *l);
void orphan_clear(const struct launcher *l);

/* mountns.c */
int mountns_enter(struct launcher *l, struct failure *f);
/* In a job: takes the bind root above `path` anew from the host's namespace, where another file system
 * is mounted there now; fails, and changes nothing, where it is the same one. */
int mountns_refresh(const struct launcher *l, const char *path);
void mountns_leave(struct launcher *l);

/* image.c: skerry-init in a sealed memfd */
int image_load(const char *path);

/* table.c */
struct instance *instance_find(struct launcher *l, const char *id);
void instance_add(struct launcher *l, struct instance *i);
void instance_remove(struct launcher *l, struct instance *i);
/* NULL when out of memory. */
struct kept *kept_make(const struct request *r);
bool kept_layer(const struct kept *k, const char *id);
struct slot *slot_find(struct launcher *l, uint64_t id);
void slot_add(struct launcher *l, struct slot *s);
void slot_remove(struct launcher *l, struct slot *s);

/* groups.c: cgroup steps and files */
int group_run(const struct launcher *l, const struct group_step *s, bool *made);
int groups_run(const struct launcher *l, const struct request *r, struct failure *f);
int group_parent(const char *group, char *out, size_t size);
/* Removes the groups below (not itself). */
void group_clear(const char *group);
int group_kill(const char *agent_group);

/* slot.c */
void slot_make(struct launcher *l, struct request *r);
int slot_drop(struct launcher *l, struct request *r, struct failure *f);
/* Whether the slot's network namespace is as it was made. */
bool slot_net_clean(struct launcher *l, struct slot *s, char *why, size_t size);
/* Replaces the network namespace; `done` gets the job whose owner is given. */
int slot_net_replace(struct launcher *l, void (*done)(struct job *, struct job_result *), void *owner);

/* layer.c */
void layer_mount(struct launcher *l, struct request *r);
void layer_unmount(struct launcher *l, struct request *r);
bool layer_known(const struct launcher *l, const char *id);
void layers_recover(struct launcher *l);
void layers_unmount(struct launcher *l);
/* Those that read from /blobs go; who has them open gets errors. */
void layers_leave_blobs(struct launcher *l);

/* blobs.c: the FUSE session at /blobs. `offered` is a descriptor that came with the request, or -1. */
void blobs_serve(struct launcher *l, const struct request *r, int offered);
void blobs_close(struct launcher *l);

/* upper.c, trash.c */
void upper_open(struct launcher *l, struct request *r);
void upper_recover(struct launcher *l);
void upper_keep(struct launcher *l, struct request *r);
void upper_answer(struct launcher *l, const struct pending *reply);
/* pool.c: mounts the file or directory at /upper; r->value is 1 if quotas are on. */
int pool_mount(const char *path, bool btrfs, struct job_result *r);
/* A spare one will do unless it is to be limited. */
int upper_make(struct launcher *l, const char *id, uint64_t uid_base, bool spare);
int upper_limit(struct launcher *l, const char *id, uint64_t bytes);
int upper_copy(int upper_fd, const char *from, const char *to);
int upper_rework(int upper_fd, const char *id);
/* -ENOENT if there is none. */
int upper_remove(struct launcher *l, const char *id);
void upper_close(struct launcher *l);
int trash_put(struct launcher *l, const char *id);
void trash_empty(struct launcher *l);
/* Removes a tree of at most *budget entries; -E2BIG when there are more. */
int tree_remove_small(int dir, const char *name, unsigned depth, unsigned *budget);

/* start.c, child.c, stop.c */
void instance_start(struct launcher *l, struct request *r);
void instance_stop(struct launcher *l, struct request *r);
int instance_adopt(struct launcher *l, struct request *r, struct failure *f);
void instance_death(struct watch *w, uint32_t events);
void instance_free(struct launcher *l, struct instance *i);
void start_died(struct instance *i);
/* The child has reached its exec, or failed, or died. */
void start_settle(struct instance *i);
void instances_stop_all(struct launcher *l);
_Noreturn void child_run(struct instance *i);
void freeze_set(struct launcher *l, struct request *r);
/* memory.c: RECLAIM and PREFETCH */
void memory_move(struct launcher *l, struct request *r);

#endif

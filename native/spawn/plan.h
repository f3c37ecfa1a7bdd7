/* The complete plan of a START: every step in order, printable before anything is done. */
#ifndef SKERRY_PLAN_H
#define SKERRY_PLAN_H

#include "request.h"

/* Steps of the launcher come first, then OP_CLONE, then those of the child. */
enum op {
	OP_GROUP_MKDIR, OP_GROUP_RMDIR, OP_GROUP_WRITE, OP_SOCKET, OP_UPPER, OP_LIMIT, OP_CLONE,
	OP_SESSION, OP_JOIN, OP_HOSTNAME, OP_TASKS, OP_OOM, OP_WORK, OP_SNAPSHOT, OP_LOWER, OP_OVERLAY,
	OP_SHARED, OP_NODE, OP_LEAVE, OP_VIEW, OP_ROOT, OP_DEV, OP_RUN, OP_PROC, OP_DEVPTS, OP_MQUEUE,
	OP_HIDE_FILE, OP_HIDE_DIR, OP_READONLY, OP_FIRM, OP_COVER, OP_CHROOT, OP_PLACES, OP_SEAL,
	OP_LIMITS, OP_CONFIG, OP_DESCRIPTORS, OP_SECCOMP, OP_IDENTITY, OP_EXEC, OP_COUNT,
};

enum { PLAN_MAX = STEPS_MAX + LAYERS_MAX + TASKS_MAX + 2 * COVERS_MAX + NODES_MAX + 64 };

struct step {
	enum op op;
	bool made; /* this step made what its undo removes */
	const char *a, *b;
	uint64_t n, m;
};

struct plan {
	unsigned count, first_child; /* Invariant: steps[first_child - 1].op == OP_CLONE */
	struct step steps[PLAN_MAX];
};

/* What the plan needs to know beside the request. */
struct plan_facts {
	bool upper_btrfs;
	bool slot_cgroup_ns; /* the slot holds a cgroup namespace; else one is made */
	uint64_t uid_base, owner_uid;
	uint32_t masks; /* which of the entries of /proc exist: bit i of mask_names order */
};

/* Entries of /proc that are hidden or made read-only. */
struct mask {
	const char *path;
	enum op op;
};
extern const struct mask plan_masks[];
extern const unsigned plan_mask_count;

/* 0, or -E2BIG, or -EOPNOTSUPP (a disk limit or a snapshot without btrfs). */
int plan_start(struct plan *plan, const struct request *r, const struct plan_facts *facts);
const char *plan_op_name(enum op op);
/* One line without newline: who, what, arguments. */
void plan_describe(const struct plan *plan, unsigned index, char *out, size_t size);

#endif

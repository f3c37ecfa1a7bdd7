/* One request of the launcher's socket, parsed and checked as far as it can be without the machine. */
#ifndef SKERRY_REQUEST_H
#define SKERRY_REQUEST_H

#include "frames.h"
#include "names.h"

/* TASKS_MAX and STEPS_MAX: of a function container with 32 cells, four groups each. */
enum { STEPS_MAX = 640, LAYERS_MAX = 64, TASKS_MAX = 144, READS_MAX = 16, COVERS_MAX = 16, NODES_MAX = 32,
       CONFIG_MAX = 60000 };

/* STEP: the cgroup work that Python plans. */
struct group_step {
	enum { GROUP_MKDIR, GROUP_RMDIR, GROUP_WRITE } kind;
	const char *path, *value;
	unsigned mode;
	int64_t uid; /* -1: stays root's */
};

/* NODE: a character device that the sandbox sees below /dev. */
struct device_node {
	const char *name, *numbers; /* "MAJOR:MINOR" */
	unsigned major_number, minor_number;
};

struct text_list {
	unsigned count;
	const char *items[TASKS_MAX]; /* the longest list */
};

enum profile { PROFILE_SANDBOX, PROFILE_FUNCTION };

struct request {
	uint8_t type;
	uint32_t id;
	uint64_t seen[4]; /* bit per tag */
	const char *instance, *upper, *path, *device, *hostname, *agent_group, *work_group;
	const char *oom_file, *socket, *upper_from, *text;
	uint64_t slot, uid_base, owner_uid, disk_bytes, shm_bytes, oom_kind, keep_upper, pid, offset, bytes;
	uint64_t profile; /* enum profile */
	const uint8_t *config;
	size_t config_length;
	struct text_list layers, tasks, reads, readonly, hidden;
	unsigned step_count;
	struct group_step *steps; /* in front of the texts */
	unsigned node_count;
	struct device_node nodes[NODES_MAX];
	char arena[]; /* the steps, then the texts, terminated; Invariant: the texts' part is as long as the payload */
};

/* 0 and *out (to be freed), or -EPROTO, -EINVAL, -E2BIG, -ENOMEM. `where` gets the name of the field
 * at fault. The frame's header must have been decoded into `f`. */
int request_parse(const struct frame *f, const uint8_t *payload, struct request **out,
		  const char **where);
bool request_has(const struct request *r, uint8_t tag);

#endif

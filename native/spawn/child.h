/* What the parts of the child share. Each function executes one kind of step: 0 or a negative errno. */
#ifndef SKERRY_CHILD_H
#define SKERRY_CHILD_H

#include <string.h>

#include "launcher.h"
#include "protocol.h"
#include "seccomp.h"

struct child {
	struct instance *i;
	int status_fd, user_fd, work_fd, overlay_fd, shared_fd, config_fd;
	int upper_fd; /* of an upper whose ids are mapped; -1: of no other */
	int lower_fds[LAYERS_MAX];
	unsigned lower_count;
	int files[TASKS_MAX + 1]; /* tasks, then the OOM counter */
	unsigned file_count;
	uint32_t key[SECCOMP_KEY_WORDS]; /* what the agent shows for the calls that are its alone */
};

/* mounts.c */
int mount_lower(struct child *c, const struct step *s);
int mount_overlay(struct child *c, const struct step *s);
int mount_shared(struct child *c, const struct step *s);
int mount_node(struct child *c, const struct step *s);
int mount_leave(struct child *c, const struct step *s);
int mount_view(struct child *c, const struct step *s);
int mount_root(struct child *c, const struct step *s);
int mount_part(struct child *c, const struct step *s);
int mount_proc(struct child *c, const struct step *s);
int mount_devpts(struct child *c, const struct step *s);
int mount_mqueue(struct child *c, const struct step *s);
int mount_over_file(struct child *c, const struct step *s);
int mount_over_dir(struct child *c, const struct step *s);
int mount_readonly(struct child *c, const struct step *s);
int mount_cover(struct child *c, const struct step *s);
int mount_chroot(struct child *c, const struct step *s);
int mount_places(struct child *c, const struct step *s);
int mount_seal(struct child *c, const struct step *s);

/* idmap.c: a descriptor of a namespace that maps the ids of files on disk to those on the host */
int idmap_make(uint64_t disk, uint64_t host);

/* handover.c */
int limits_set(void);
int hand_config(struct child *c, const struct step *s);
int hand_descriptors(struct child *c, const struct step *s);
int drop_seccomp(struct child *c, const struct step *s);
int drop_identity(struct child *c, const struct step *s);

/* True for the step named by --fail-at, in builds with sanitizers only; "hang:STEP" stays in it. */
static inline bool fault_injected(const struct launcher *l, enum op op)
{
#ifdef __SANITIZE_ADDRESS__
	if (l->fail_at && !strncmp(l->fail_at, "hang:", 5) && !strcmp(l->fail_at + 5, plan_op_name(op)))
		pause();
	return l->fail_at && !strcmp(l->fail_at, plan_op_name(op));
#else
	(void)l;
	(void)op;
	return false;
#endif
}

#endif

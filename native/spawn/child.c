/* The child's half of a START: from the clone to the exec of skerry-init. Nothing here returns to the
 * launcher's loop; what went wrong and how long each step took stands in the shared report. */
#include "child.h"
#include "weak.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define NS_GET_USERNS _IO(0xb7, 0x1)

/* Nothing inside is spared by the kernel, or served first or last, because the daemon is. */
static int rank_forget(void)
{
	int fd = open_at(AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY);
	bool written = fd >= 0 && write(fd, "0", 1) == 1;

	if (fd >= 0)
		close(fd);
	return !written || setpriority(PRIO_PROCESS, 0, 0) ? -errno : 0;
}

static int do_session(struct child *c, const struct step *s)
{
	int err = rank_forget();

	(void)c;
	(void)s;
	if (err)
		return err;
	umask(0);
	/* A child of a launcher that was killed must not become an instance that nobody knows. The change
	 * of identity, just before the exec, clears this again. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return -errno;
	return setsid() < 0 ? -errno : 0;
}

static int do_join(struct child *c, const struct step *s)
{
	struct slot *slot = c->i->slot;
	int err = weak("network") ? 0 : sys_setns(c->i->net_fd, CLONE_NEWNET);

	(void)s;
	if (err)
		return err;
	if (!slot->has_cgroup_ns) {
		c->user_fd = c->i->user_fd;
		return sys_unshare(CLONE_NEWCGROUP);
	}
	/* One descriptor holds both: the cgroup namespace belongs to the user namespace. */
	c->user_fd = ioctl(c->i->user_fd, NS_GET_USERNS);
	return c->user_fd < 0 ? -errno : sys_setns(c->i->user_fd, CLONE_NEWCGROUP);
}

static int do_hostname(struct child *c, const struct step *s)
{
	(void)c;
	return sethostname(s->a, strlen(s->a)) < 0 ? -errno : 0;
}

/* Opened by root: the agent's children write to it without a privilege of their own. */
static int do_tasks(struct child *c, const struct step *s)
{
	int fd = open_at(AT_FDCWD, s->a, O_WRONLY);

	return fd < 0 ? fd : (c->files[c->file_count++] = fd, 0);
}

static int do_oom(struct child *c, const struct step *s)
{
	int fd = open_at(AT_FDCWD, s->a, O_RDONLY);

	return fd < 0 ? fd : (c->files[c->file_count++] = fd, 0);
}

static int do_work(struct child *c, const struct step *s)
{
	c->work_fd = open_at(AT_FDCWD, s->a, O_RDONLY | O_DIRECTORY);
	return c->work_fd < 0 ? c->work_fd : 0;
}

static int do_snapshot(struct child *c, const struct step *s)
{
	int fd = c->i->launcher->upper_fd;
	int err = upper_copy(fd, s->b, s->a);

	return err ? err : upper_rework(fd, s->a);
}

static int do_limit(struct child *c, const struct step *s)
{
	return upper_limit(c->i->launcher, s->a, s->n);
}

static int do_limits(struct child *c, const struct step *s)
{
	(void)c;
	(void)s;
	return limits_set();
}

static int do_exec(struct child *c, const struct step *s)
{
	char *const argv[] = {(char[]){"skerry-init"}, NULL}, *const *envp = WEAK_ENVIRONMENT;

	(void)s;
	c->i->report->started_ns = now_ns();
	return sys_execveat(FD_IMAGE, argv, envp);
}

static int (*const run[OP_COUNT])(struct child *, const struct step *) = {
	[OP_SESSION] = do_session, [OP_JOIN] = do_join, [OP_HOSTNAME] = do_hostname,
	[OP_TASKS] = do_tasks, [OP_OOM] = do_oom, [OP_WORK] = do_work, [OP_SNAPSHOT] = do_snapshot,
	[OP_LIMIT] = do_limit, [OP_LOWER] = mount_lower, [OP_OVERLAY] = mount_overlay,
	[OP_SHARED] = mount_shared, [OP_NODE] = mount_node, [OP_LEAVE] = mount_leave, [OP_VIEW] = mount_view,
	[OP_ROOT] = mount_root,
	[OP_DEV] = mount_part, [OP_RUN] = mount_part, [OP_PROC] = mount_proc,
	[OP_DEVPTS] = mount_devpts, [OP_MQUEUE] = mount_mqueue, [OP_HIDE_FILE] = mount_over_file,
	[OP_HIDE_DIR] = mount_over_dir, [OP_READONLY] = mount_readonly, [OP_CHROOT] = mount_chroot,
	[OP_PLACES] = mount_places, [OP_SEAL] = mount_seal,
	[OP_FIRM] = mount_readonly, [OP_COVER] = mount_cover,
	[OP_LIMITS] = do_limits, [OP_CONFIG] = hand_config, [OP_DESCRIPTORS] = hand_descriptors,
	[OP_SECCOMP] = drop_seccomp, [OP_IDENTITY] = drop_identity, [OP_EXEC] = do_exec,
};

/* The write end of the status pipe is opened here, by the name of the other: had the launcher made it,
 * it could not close its own before the tables are apart, and would have to be told. And only now the
 * read end is watched, in the launcher's own epoll: before, it would wake at once, without a writer. */
static int take_descriptors(struct instance *i)
{
	struct loop *loop = &i->launcher->loop;
	int keep[] = {i->listener, i->user_fd, i->net_fd, i->status.fd};
	int fd, err = fds_keep(loop, keep, 4);
	char path[64];

	if (err)
		return err;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", i->status.fd);
	fd = open_at(AT_FDCWD, path, O_WRONLY);
	err = fd < 0 ? fd : loop_watch(loop, &i->status, i->status.fd, 0);
	return err ? err : fd;
}

_Noreturn void child_run(struct instance *i)
{
	struct child c = {.i = i, .status_fd = take_descriptors(i), .user_fd = -1, .work_fd = -1, .overlay_fd = -1,
			  .shared_fd = -1, .config_fd = -1, .upper_fd = -1};
	struct report *report = i->report;
	uint64_t before = now_ns();

	report->error = c.status_fd < 0 ? c.status_fd : 0;
	for (unsigned n = i->plan->first_child; n < i->plan->count && !report->error; n++) {
		const struct step *s = &i->plan->steps[n];
		uint64_t now;
		int err;

		report->step = n;
		err = fault_injected(i->launcher, s->op) ? -EIO : run[s->op](&c, s);
		report->error = err;
		now = now_ns();
		report->us[n] = (uint32_t)((now - before) / 1000);
		before = now;
	}
	_exit(127);
}

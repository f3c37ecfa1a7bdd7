/* A program's way into a cell, and out of every privilege. */
#include "cell.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "creds.h"
#include "weak.h"

enum { STACK = 1 << 16, JOINED = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS };

static struct {
	const struct launch *l;
	void (*in_cell)(const struct launch *l);
} my;

static int second(void *unused)
{
	(void)unused;
	my.in_cell(my.l);
	return 127;
}

/* Of pid namespaces only children are born into one: so there are two processes. They share their memory until
 * the exec, for which the first waits; the agent is the parent of both. */
void cell_enter(const struct launch *l, void (*in_cell)(const struct launch *l))
{
	static uint8_t stack[STACK] __attribute__((aligned(16)));
	int flags = CLONE_VM | CLONE_VFORK | CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD;

	if (syscall(SYS_setns, FD_USERNS, CLONE_NEWUSER) || syscall(SYS_setns, l->pidfd, JOINED))
		child_fail(l->status, STEP_FORK, errno);
	my.l = l;
	my.in_cell = in_cell;
	if (clone(second, stack + STACK, flags, NULL, l->born) < 0)
		child_fail(l->status, STEP_FORK, errno);
	_exit(0);
}

static struct seccomp_program programs[SECCOMP_ZYGOTE + 1];

bool cell_filters_build(void)
{
	return seccomp_build(&programs[SECCOMP_CELL], SECCOMP_PROGRAM_MAX, SECCOMP_CELL) > 0 &&
	       seccomp_build(&programs[SECCOMP_ZYGOTE], SECCOMP_PROGRAM_MAX, SECCOMP_ZYGOTE) > 0;
}

int cell_filter(enum seccomp_use use)
{
	struct sock_fprog filter = {.len = (unsigned short)programs[use].count, .filter = programs[use].code};

	if (weak("filter"))
		return 0;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) ? -errno : 0;
}

/* All but those of the bounding set, for good. */
static int bounding_drop(uint64_t kept)
{
	for (int cap = 0; cap < 64; cap++) {
		if (kept >> cap & 1 || !prctl(PR_CAPBSET_DROP, cap, 0, 0, 0))
			continue;
		return errno == EINVAL ? 0 : -errno; /* past the last one of this kernel */
	}
	return 0;
}

static int capabilities_set(uint64_t set, uint64_t inherited)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	for (unsigned i = 0; i < 2; i++) {
		data[i].effective = data[i].permitted = (uint32_t)(set >> 32 * i);
		data[i].inheritable = (uint32_t)(inherited >> 32 * i);
	}
	return syscall(SYS_capset, &head, data) ? -errno : 0;
}

/* For a control: all of them, over the exec of a plain user. */
static int capabilities_leave(void)
{
	const uint64_t mount = 1ull << CAP_SYS_ADMIN | 1ull << CAP_SYS_CHROOT | 1ull << CAP_SYS_PTRACE | 1ull << CAP_KILL;

	if (capabilities_set(mount, mount))
		return -errno;
	for (int cap = 0; cap < 64; cap++)
		if (mount >> cap & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0))
			return -errno;
	return 0;
}

int cell_become(const struct identity *who)
{
	int error = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ? -errno : bounding_drop(weak("capabilities") ? ~0ull : 0);

	if (error)
		return error;
	if (syscall(SYS_setgroups, who->group_count, who->groups) ||
	    syscall(SYS_setresgid, who->gid, who->gid, who->gid) ||
	    syscall(SYS_setresuid, who->uid, who->uid, who->uid) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
		return -errno;
	return weak("capabilities") ? capabilities_leave() : capabilities_set(0, 0);
}

int cell_become_zygote(void)
{
	static const uint64_t kept = 1ull << CAP_SYS_ADMIN | 1ull << CAP_SYS_CHROOT | 1ull << CAP_SETUID |
				     1ull << CAP_SETGID | 1ull << CAP_SETPCAP;
	int error = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ? -errno : bounding_drop(kept);

	if (!error && syscall(SYS_setgroups, 0, NULL))
		error = -errno;
	/* The exec gives root of the namespace what the bounding set has left. */
	return error ? error : capabilities_set(kept, 0);
}

/* Privileges of a command's child: it enters the sandbox's user namespace, and keeps there what a
 * container's processes usually have. The order and its reasons were tried out; see decision 3. */
#include "creds.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "last.h"
#include "protocol.h"
#include "weak.h"

/* The usual container default: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap,
 * net_bind_service, net_raw, sys_chroot, mknod, audit_write, setfcap. */
#define KEPT_CAPABILITIES 0x00000000a80425fbull

/* A base filter that asks for no key leaves clone3 and setns to everybody. */
static int filter_install(void)
{
	struct sock_fprog program = {
		.len = sizeof(LAST_FILTER) / sizeof(LAST_FILTER[0]),
		.filter = (struct sock_filter *)(uintptr_t)LAST_FILTER,
	};

	if (weak("filter"))
		return 0;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) ? -errno : 0;
}

static int capabilities = 64; /* of this kernel, at most */

void creds_prepare(void)
{
	for (int cap = 0; cap < 64; cap++)
		if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) < 0) {
			capabilities = cap;
			return;
		}
}

int creds_enter_userns(const uint64_t *key)
{
	if (weak("identity"))
		return 0;
	if (syscall(SYS_setns, FD_USERNS, CLONE_NEWUSER, key ? key[0] : 0, key ? key[1] : 0))
		return -errno;
	/* Entering has filled the bounding set again. EINVAL: past the last one of this kernel. */
	for (int cap = 0; cap < capabilities; cap++) {
		if (KEPT_CAPABILITIES >> cap & 1)
			continue;
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)) {
			if (errno == EINVAL)
				break;
			return -errno;
		}
	}
	return key ? 0 : filter_install(); /* which costs as much as all the rest here */
}

/* Changing from one non-root id to another keeps every capability until exec. The effective ones go
 * now, or a plain user could pick a directory or a program that is closed to it. The permitted ones
 * stay: with more of them than sandbox root has, this process cannot be traced by it. */
static int capabilities_clear(const struct identity *who)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &head, data))
		return -errno;
	if (who->uid)
		data[0].effective = data[1].effective = 0;
	if (weak("capabilities")) {
		data[0].permitted = data[0].effective = (uint32_t)KEPT_CAPABILITIES;
		data[1].permitted = data[1].effective = 0;
	}
	return syscall(SYS_capset, &head, data) ? -errno : 0;
}

int creds_become(const struct identity *who)
{
	/* The bare calls: the C library's wrappers first look for other threads. */
	if (syscall(SYS_setgroups, who->group_count, who->groups) ||
	    syscall(SYS_setresgid, who->gid, who->gid, who->gid) ||
	    syscall(SYS_setresuid, who->uid, who->uid, who->uid))
		return -errno;
	/* setresuid made it what fs.suid_dumpable says. */
	if (prctl(PR_SET_DUMPABLE, weak("dumpable"), 0, 0, 0))
		return -errno;
	return who->uid || weak("capabilities") ? capabilities_clear(who) : 0;
}

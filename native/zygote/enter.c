/* The child of a call, from the fork to the user's code. It begins as a copy of the zygote: root of the
 * container's user namespace with a few of its capabilities. It ends in the cell, as a plain user who cannot
 * get any of them back. Nothing of the call is looked at here but the packet. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>

#include "last.h"
#include "sys.h"
#include "zygote.h"

static int filter_install(void)
{
	struct sock_fprog program = {
		.len = sizeof(LAST_FILTER) / sizeof(LAST_FILTER[0]),
		.filter = (struct sock_filter *)(uintptr_t)LAST_FILTER,
	};

	return (int)SYS5(prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static int groups_enter(const struct call *call, const int *fd)
{
	for (size_t i = 0; i < call->uses; i++)
		if (call->use[i].tag == Z_GROUP) {
			long n = SYS3(write, fd[i], "0", 1);

			if (n != 1)
				return n < 0 ? (int)n : -EIO;
		}
	return 0;
}

/* The pid namespace is entered by being born there. */
static int namespaces_join(const struct call *call, const int *fd)
{
	for (size_t i = 0; i < call->uses; i++) {
		uint64_t flags = call->use[i].value & ~(uint64_t)CLONE_NEWPID;
		long error = call->use[i].tag == Z_JOIN && flags ? SYS2(setns, fd[i], flags) : 0;

		if (error)
			return (int)error;
	}
	return 0;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Never above what they are: nobody here may raise one. */
static int limits_set(const struct call *call)
{
	for (size_t i = 0; i < call->rlimits; i++) {
		const struct call_rlimit *r = &call->rlimit[i];
		uint64_t limit[2] = {0, 0};
		long error = SYS4(prlimit64, 0, r->resource, NULL, limit);

		limit[1] = less(r->hard, limit[1]);
		limit[0] = less(r->soft, limit[1]);
		error = error ? error : SYS4(prlimit64, 0, r->resource, limit, NULL);
		if (error)
			return (int)error;
	}
	return 0;
}

static int identity_take(const struct call *call)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}, {0}};
	long error = 0;

	for (int cap = 0; !error && cap < 64; cap++)
		if (zygote.bounding >> cap & 1)
			error = SYS5(prctl, PR_CAPBSET_DROP, cap, 0, 0, 0);
	error = error ? error : SYS2(setgroups, 0, NULL);
	error = error ? error : SYS3(setresgid, call->gid, call->gid, call->gid);
	error = error ? error : SYS3(setresuid, call->uid, call->uid, call->uid);
	error = error ? error : SYS2(capset, &head, none);
	/* Its own /proc files are closed to a process that cannot be dumped, /dev/stdout among them. Core dumps
	 * are off by limit. */
	return (int)(error ? error : SYS5(prctl, PR_SET_DUMPABLE, 1, 0, 0, 0));
}

static int null_open(void)
{
	return (int)SYS4(openat, AT_FDCWD, "/dev/null", O_RDWR, 0);
}

/* Descriptors that came along lie above 4: the zygote keeps those numbers taken. A call without an input
 * gets a /dev/null of its own: through a common one its flags would show to the next call. */
static int stdio_set(const struct call *call, const int *fd)
{
	unsigned given = 0;

	for (size_t i = 0; i < call->uses; i++) {
		long got = 0;

		if (call->use[i].tag != Z_FD)
			continue;
		given |= 1u << call->use[i].value;
		got = SYS3(dup3, fd[i], call->use[i].value, 0);
		if (got < 0)
			return (int)got;
	}
	if (!(given & 1 << ZYGOTE_FD_RESULT))
		SYS1(close, ZYGOTE_FD_RESULT);
	if (!(given & 1)) {
		int null;

		SYS1(close, 0);
		null = null_open(); /* the lowest that is free */
		return null > 0 ? -EBADF : null;
	}
	return 0;
}

/* Everything above what a call gets. In the place of what modules had opened comes an empty file: a module
 * that still uses its number must not write into what the call opens there. */
static int descriptors_close(void)
{
	unsigned from = CALL_STDIO;
	long error = 0;

	for (size_t i = 0; i < zygote.held_count && !error; i++) {
		unsigned held = (unsigned)zygote.held[i];
		int null = null_open();

		if (null < 0)
			return null;
		if (null != (int)held)
			error = SYS3(dup3, null, held, O_CLOEXEC);
		error = error < 0 ? error : 0;
		if (!error && held > from)
			error = SYS3(close_range, from, held - 1, 0);
		from = held + 1;
	}
	return (int)(error ? error : SYS3(close_range, from, ~0u, 0));
}

int enter(const struct call *call, const int *fd, const char **step)
{
	int error;

	*step = "group";
	error = groups_enter(call, fd);
	if (!error) {
		*step = "join";
		error = namespaces_join(call, fd);
	}
	if (!error) {
		*step = "limits";
		SYS0(setsid);
		SYS1(umask, 022);
		error = limits_set(call);
	}
	if (!error) {
		*step = "stdio";
		error = stdio_set(call, fd);
	}
	if (!error) {
		*step = "user";
		error = identity_take(call);
	}
	if (!error && call->cwd[0]) {
		*step = "cwd";
		error = (int)SYS1(chdir, call->cwd);
	}
	if (!error) {
		*step = "filter";
		error = (int)SYS5(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		error = error ? error : filter_install();
	}
	if (error)
		return error;
	/* The last that it says; what follows it closes its way to say anything. */
	tell(Z_ENTERED, call->number, NULL, 0, NULL);
	*step = "descriptors";
	return descriptors_close();
}

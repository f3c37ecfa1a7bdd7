#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#ifndef __NR_mount_setattr
#define __NR_mount_setattr 442
#endif
#ifndef __NR_close_range
#define __NR_close_range 436
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif
#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

static int result(long value)
{
	return value < 0 ? -errno : (int)value;
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

pid_t sys_clone(uint64_t flags, int *pidfd, int group)
{
	/* struct clone_args, spelled out: the headers of the two libraries disagree about it. */
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size;
		uint64_t tls, set_tid, set_tid_size, cgroup;
	} args = {
		.flags = flags | CLONE_PIDFD,
		.pidfd = (uint64_t)(uintptr_t)pidfd,
		.exit_signal = SIGCHLD,
	};

	if (group >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)group;
	}
	return result(syscall(__NR_clone3, &args, sizeof(args)));
}

int sys_fsopen(const char *type)
{
	return result(syscall(__NR_fsopen, type, FSOPEN_CLOEXEC));
}

int sys_fsconfig(int fs, unsigned cmd, const char *key, const char *value, int aux)
{
	return result(syscall(__NR_fsconfig, fs, cmd, key, value, aux));
}

int sys_fsmount(int fs, unsigned attributes)
{
	return result(syscall(__NR_fsmount, fs, FSMOUNT_CLOEXEC, attributes));
}

int sys_open_tree(int dir, const char *path, unsigned flags)
{
	return result(syscall(__NR_open_tree, dir, path, flags | O_CLOEXEC));
}

int sys_move_mount(int from, int to_dir, const char *to)
{
	return result(syscall(__NR_move_mount, from, "", to_dir, to, MOVE_MOUNT_F_EMPTY_PATH));
}

int sys_mount_setattr(int dir, const char *path, uint64_t set, int userns)
{
	struct mount_attr attributes = {.attr_set = set};

	if (userns >= 0) {
		attributes.attr_set |= MOUNT_ATTR_IDMAP;
		attributes.userns_fd = (uint64_t)userns;
	}
	return result(syscall(__NR_mount_setattr, dir, path, *path ? 0 : AT_EMPTY_PATH, &attributes,
			      sizeof(attributes)));
}

int sys_bind(const char *from, const char *to)
{
	return result(syscall(__NR_mount, from, to, NULL, (unsigned long)MS_BIND, NULL));
}

int sys_umount(const char *path, int flags)
{
	return result(syscall(__NR_umount2, path, flags));
}

int sys_make_private(const char *path, bool recursive)
{
	unsigned long flags = MS_PRIVATE | (recursive ? MS_REC : 0);

	return result(syscall(__NR_mount, NULL, path, NULL, flags, NULL));
}

int sys_pivot_root(const char *root, const char *old)
{
	return result(syscall(__NR_pivot_root, root, old));
}

int sys_setns(int fd, int type)
{
	return result(syscall(__NR_setns, fd, type));
}

int sys_unshare(int flags)
{
	return result(syscall(__NR_unshare, flags));
}

int sys_pidfd_open(pid_t pid)
{
	return result(syscall(__NR_pidfd_open, pid, 0));
}

int sys_pidfd_kill(int pidfd)
{
	return result(syscall(__NR_pidfd_send_signal, pidfd, SIGKILL, NULL, 0));
}

int sys_close_range(unsigned first, unsigned last, bool unshare)
{
	return result(syscall(__NR_close_range, first, last, unshare ? 2 /* CLOSE_RANGE_UNSHARE */ : 0));
}

int sys_execveat(int fd, char *const argv[], char *const envp[])
{
	return result(syscall(__NR_execveat, fd, "", argv, envp, AT_EMPTY_PATH));
}

void sys_kill_and_reap(pid_t pid)
{
	kill(pid, SIGKILL);
	while (waitid(P_PID, (id_t)pid, NULL, WEXITED) < 0 && errno == EINTR)
		;
}

int sys_reap(int pidfd, int *status)
{
	siginfo_t info = {.si_pid = 0};

	if (waitid((idtype_t)P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG) < 0)
		return -errno;
	if (!info.si_pid)
		return -EAGAIN;
	if (info.si_code == CLD_EXITED)
		*status = (info.si_status & 0xff) << 8;
	else
		*status = info.si_status & 0x7f;
	return 0;
}

int open_at(int dir, const char *path, int flags)
{
	return result(openat(dir, path, flags | O_CLOEXEC));
}

int write_file(int dir, const char *path, const char *value)
{
	close_auto int fd = open_at(dir, path, O_WRONLY);
	size_t length = strlen(value);
	ssize_t n;

	if (fd < 0)
		return fd;
	n = write(fd, value, length);
	if (n < 0)
		return -errno;
	return (size_t)n == length ? 0 : -EIO;
}

int read_file(int dir, const char *path, char *out, size_t size)
{
	close_auto int fd = open_at(dir, path, O_RDONLY | O_NONBLOCK);
	size_t used = 0;

	if (fd < 0)
		return fd;
	while (used < size - 1) {
		ssize_t n = read(fd, out + used, size - 1 - used);

		if (n < 0)
			return -errno;
		if (!n)
			break;
		used += (size_t)n;
	}
	out[used] = 0;
	return (int)used;
}

int make_dirs(const char *path, unsigned mode)
{
	char part[PATH_MAX];
	size_t length = strlen(path);

	if (length >= sizeof(part))
		return -ENAMETOOLONG;
	for (size_t i = 1; i <= length; i++) {
		if (path[i] != '/' && path[i])
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, mode) < 0 && errno != EEXIST)
			return -errno;
	}
	return 0;
}

bool is_mount_point(const char *path)
{
	/* The head of struct statx: its attributes lie at offset 8, their mask at 48. */
	uint8_t raw[256] = {0};
	uint64_t attributes;

	if (syscall(__NR_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, raw) < 0)
		return false;
	memcpy(&attributes, raw + 8, sizeof(attributes));
	return attributes & STATX_ATTR_MOUNT_ROOT;
}

int sys_new_mount(const char *type, unsigned attributes, const char *const options[][2])
{
	close_auto int fs = sys_fsopen(type);
	int err = fs < 0 ? fs : sys_fsconfig(fs, FSCONFIG_SET_STRING, "source", "skerry", 0);

	for (; options && options[0][0] && !err; options++) {
		if (options[0][1])
			err = sys_fsconfig(fs, FSCONFIG_SET_STRING, options[0][0], options[0][1], 0);
		else
			err = sys_fsconfig(fs, FSCONFIG_SET_FLAG, options[0][0], NULL, 0);
	}
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	return err ? err : sys_fsmount(fs, attributes);
}

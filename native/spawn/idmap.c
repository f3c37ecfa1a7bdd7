/* A user namespace that serves as a map of ids for a mount, and has no process once it is made. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/wait.h>

#include "child.h"

enum { IDS = 65536 };

static int map_write(const char *pid, const char *name, const char *text)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%s/%s", pid, name);
	return write_file(AT_FDCWD, path, text);
}

/* The process whose namespace is taken: says its number, as /proc counts, and waits for the end. */
static _Noreturn void hold(int out, int in)
{
	char self[32], byte;
	ssize_t length = sys_unshare(CLONE_NEWUSER) ? -1 : readlink("/proc/self", self, sizeof(self) - 1);

	if (length > 0 && write(out, self, (size_t)length) == length)
		(void)!read(in, &byte, 1);
	_exit(0);
}

static int take(int from, uint64_t disk, uint64_t host)
{
	char pid[32] = "", text[96], path[64];
	ssize_t length = read(from, pid, sizeof(pid) - 1);
	int err;

	if (length <= 0)
		return -EPIPE;
	/* The host's root too: the work directory and the whiteouts are its. */
	snprintf(text, sizeof(text), "0 0 1\n%" PRIu64 " %" PRIu64 " %d", disk, host, IDS);
	err = map_write(pid, "uid_map", text);
	if (!err)
		err = map_write(pid, "gid_map", text);
	snprintf(path, sizeof(path), "/proc/%s/ns/user", pid);
	return err ? err : open_at(AT_FDCWD, path, O_RDONLY);
}

int idmap_make(uint64_t disk, uint64_t host)
{
	int up[2], down[2], fd;
	pid_t pid;

	if (pipe2(up, O_CLOEXEC) < 0)
		return -errno;
	if (pipe2(down, O_CLOEXEC) < 0) {
		fd = -errno;
		close(up[0]);
		close(up[1]);
		return fd;
	}
	pid = fork();
	if (!pid) {
		close(up[0]);
		close(down[1]);
		hold(up[1], down[0]);
	}
	fd = pid < 0 ? -errno : 0;
	close(up[1]);
	close(down[0]);
	if (!fd)
		fd = take(up[0], disk, host);
	close(up[0]);
	close(down[1]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return fd;
}

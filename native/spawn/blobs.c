/* The FUSE session at /blobs, through which data blobs of layers come that are read on demand.
 *
 * The launcher mounts it and keeps a copy of its descriptor; a process of the node's serves it. While
 * anybody holds a copy the session lives: a launcher that starts after a crash gets one from its node. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "protocol.h"

static const char place[] = "/blobs";

/* A session that was aborted, or whose mount has gone, only reports errors. */
static bool alive(int fd)
{
	struct pollfd p = {.fd = fd};

	return poll(&p, 1, 0) >= 0 && !(p.revents & (POLLERR | POLLNVAL));
}

/* The number of the mounted session, or -1: without looking at the mount, which may not answer. */
static int mounted_session(void)
{
	FILE *mounts = fopen("/proc/self/mountinfo", "re");
	unsigned minor_number;
	int found = -1;
	char line[4096], at[16];

	if (!mounts)
		return -1;
	while (fgets(line, sizeof(line), mounts))
		if (sscanf(line, "%*u %*u %*u:%u %*s %15s", &minor_number, at) == 2 && !strcmp(at, place))
			found = (int)minor_number;
	fclose(mounts);
	return found;
}

/* Whether the descriptor is of the session that is mounted; older kernels do not tell which it is of. */
static bool fits(int fd)
{
	char path[64], text[512];
	const char *line;
	struct stat st;
	unsigned number;

	if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(10, 229) || !alive(fd))
		return false;
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	if (read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
		return false;
	line = strstr(text, "fuse_connection:");
	return !line || (sscanf(line, "fuse_connection: %u", &number) == 1 && (int)number == mounted_session());
}

static int make(struct failure *f)
{
	close_auto int device = -1, mount = -1;
	char number[16];
	const char *const options[][2] = {{"fd", number}, {"rootmode", "40000"}, {"user_id", "0"},
					  {"group_id", "0"}, {"ro", NULL}, {NULL, NULL}};
	int err;

	if (mknod("/dev/fuse", S_IFCHR | 0600, makedev(10, 229)) < 0 && errno != EEXIST)
		return fail(f, "mknod", -errno, "/dev/fuse");
	if (mkdir(place, 0700) < 0 && errno != EEXIST)
		return fail(f, "mkdir", -errno, "%s", place);
	device = open_at(AT_FDCWD, "/dev/fuse", O_RDWR);
	if (device < 0)
		return fail(f, "fuse", device, "/dev/fuse: modprobe fuse");
	snprintf(number, sizeof(number), "%d", device);
	mount = sys_new_mount("fuse", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID, options);
	if (mount < 0)
		return fail(f, "fuse", mount, "%s", place);
	err = sys_move_mount(mount, AT_FDCWD, place);
	if (err)
		return fail(f, "move", err, "%s", place);
	err = fd_high(device);
	device = -1;
	return err < 0 ? fail(f, "fuse", err, "descriptor") : err;
}

/* Whoever waits for it is told an error, so that nothing that follows can hang. */
static void leave(struct launcher *l)
{
	if (mounted_session() < 0)
		return;
	sys_umount(place, MNT_FORCE); /* aborts the session; the mount may stay */
	layers_leave_blobs(l);
	sys_umount(place, MNT_DETACH);
}

void blobs_serve(struct launcher *l, const struct request *r, int offered)
{
	struct pending reply = pending_of(l, r);
	struct failure f = {0};
	struct builder *b;
	bool fresh = false;

	if (l->blobs >= 0 && !alive(l->blobs)) {
		close(l->blobs);
		l->blobs = -1;
	}
	if (l->blobs < 0 && offered >= 0 && fits(offered))
		l->blobs = fcntl(offered, F_DUPFD_CLOEXEC, FD_HIGH);
	if (l->blobs < 0) {
		leave(l);
		l->blobs = make(&f);
		fresh = true;
	}
	if (l->blobs < 0) {
		l->blobs = -1;
		reply_fail(l, &reply, f.step, f.error, f.text);
		return;
	}
	b = answer();
	build_u64(b, T_STATE, fresh);
	reply_descriptor(l, &reply, b, l->blobs);
}

void blobs_close(struct launcher *l)
{
	leave(l);
	if (l->blobs >= 0)
		close(l->blobs);
	l->blobs = -1;
}

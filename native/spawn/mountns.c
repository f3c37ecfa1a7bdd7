/* The launcher's own mount namespace, and the empty one in which every sandbox's begins.
 *
 * The first is near empty, holds the layers and the uppers, and is pinned by an nsfs bind in the
 * host's namespace: a launcher that starts after a crash enters it and finds everything mounted.
 * The second (the cradle) is one tmpfs with nothing on it: a sandbox's namespace is a copy of it, so
 * its making costs the same with one layer or a thousand, and nothing of the host lies beneath. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>

enum { NSFS = 0x6e736673 };

struct places {
	char dir[PATH_TEXT_MAX + 16], pin[PATH_TEXT_MAX + 16]; /* RUN/ns, RUN/ns/mnt */
	const char *roots[2 * ROOTS_MAX + 3];
	int trees[2 * ROOTS_MAX + 3];
	unsigned count;
};

static int tmpfs_make(const char *mode)
{
	close_auto int fs = sys_fsopen("tmpfs");
	int err;

	if (fs < 0)
		return fs;
	sys_fsconfig(fs, FSCONFIG_SET_STRING, "source", "skerry", 0);
	sys_fsconfig(fs, FSCONFIG_SET_STRING, "mode", mode, 0);
	err = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	return err ? err : sys_fsmount(fs, MOUNT_ATTR_NOSUID);
}

/* Makes `root` the root of the current mount namespace and lets go of all that was mounted. */
static int become_root(int root, const char *place)
{
	int err = sys_move_mount(root, AT_FDCWD, place);

	if (err)
		return err;
	if (chdir(place) < 0)
		return -errno;
	err = sys_pivot_root(".", ".");
	if (!err)
		err = sys_umount(".", MNT_DETACH);
	return !err && chdir("/") < 0 ? -errno : err;
}

static int by_length(const void *a, const void *b)
{
	return (int)strlen(*(const char *const *)a) - (int)strlen(*(const char *const *)b);
}

/* Clones what must be seen inside, while the host's tree can still be seen. */
static int collect(struct launcher *l, struct places *p, struct failure *f)
{
	p->roots[p->count++] = l->run_dir;
	p->roots[p->count++] = l->state_dir;
	for (unsigned i = 0; i < l->bind_roots.count; i++)
		p->roots[p->count++] = l->bind_roots.paths[i];
	for (unsigned i = 0; i < l->cgroup_roots.count; i++)
		p->roots[p->count++] = l->cgroup_roots.paths[i];
	p->roots[p->count++] = "/proc";
	/* Shorter first: a root below another one is attached after it. */
	qsort(p->roots, p->count, sizeof(*p->roots), by_length);
	for (unsigned i = 0; i < p->count; i++) {
		p->trees[i] = sys_open_tree(AT_FDCWD, p->roots[i], OPEN_TREE_CLONE);
		if (p->trees[i] < 0)
			return fail(f, "open-tree", p->trees[i], "%s", p->roots[i]);
	}
	return 0;
}

static int attach(struct places *p, struct failure *f)
{
	for (unsigned i = 0; i < p->count; i++) {
		int err = 0;

		/* Already there when a namespace of an earlier launcher was entered. */
		if (!is_mount_point(p->roots[i])) {
			err = make_dirs(p->roots[i], 0755);
			if (!err)
				err = sys_move_mount(p->trees[i], AT_FDCWD, p->roots[i]);
		}
		close(p->trees[i]);
		if (err)
			return fail(f, "attach", err, "%s", p->roots[i]);
	}
	return 0;
}

static int pin_open(const char *pin)
{
	int fd = open_at(AT_FDCWD, pin, O_RDONLY);
	struct statfs s;

	if (fd >= 0 && (fstatfs(fd, &s) < 0 || s.f_type != NSFS)) {
		close(fd);
		return -ENOENT;
	}
	return fd;
}

static int wait_child(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) < 0)
		return -errno;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR;
}

/* In the host's namespace, when `go` has become readable: binds the namespace of `of` to the pin. */
static int pin_from_host(const struct places *p, pid_t of, int go)
{
	close_auto int file = -1;
	char from[64], byte;

	if (read(go, &byte, 1) != 1)
		return -ECANCELED;
	file = open_at(AT_FDCWD, p->pin, O_WRONLY | O_CREAT);
	if (file < 0)
		return file;
	snprintf(from, sizeof(from), "/proc/%d/ns/mnt", of);
	return sys_bind(from, p->pin);
}

static int make_own_root(struct launcher *l, const struct places *p)
{
	close_auto int root = tmpfs_make("755");
	int err = root < 0 ? root : sys_unshare(CLONE_NEWNS);

	if (!err)
		err = sys_make_private("/", true);
	if (!err)
		err = become_root(root, p->dir);
	if (err)
		return err;
	(void)l;
	if (mkdir("/layers", 0700) < 0 || mkdir("/upper", 0700) < 0 || mkdir("/dev", 0755) < 0)
		return -errno;
	/* Instead of the host's /dev: only what attaching a loop device takes. */
	if (mknod("/dev/loop-control", S_IFCHR | 0600, makedev(10, 237)) < 0)
		return -errno;
	return 0;
}

static int create(struct launcher *l, struct places *p, struct failure *f)
{
	pid_t self = getpid(), helper;
	int go[2], err;

	if (!is_mount_point(p->dir)) {
		close_auto int fs = tmpfs_make("700");

		err = fs < 0 ? fs : sys_move_mount(fs, AT_FDCWD, p->dir);
		if (err)
			return fail(f, "pin", err, "%s", p->dir);
	}
	/* A mount namespace may only be bound where it does not propagate. */
	err = sys_make_private(p->dir, false);
	if (err || pipe(go) < 0)
		return fail(f, "pin", err ? err : -errno, "%s", p->dir);
	helper = fork();
	if (helper < 0)
		return fail(f, "fork", -errno, "pin");
	if (!helper) {
		close(go[1]);
		_exit(-pin_from_host(p, self, go[0]));
	}
	close(go[0]);
	err = make_own_root(l, p);
	if (!err && write(go[1], "g", 1) != 1)
		err = -errno;
	close(go[1]);
	if (err) {
		wait_child(helper);
		return fail(f, "root", err, "own mount namespace");
	}
	err = wait_child(helper);
	return err ? fail(f, "pin", err, "%s", p->pin) : 0;
}

static int cradle_make(void)
{
	close_auto int root = tmpfs_make("755");
	int err = root < 0 ? root : sys_unshare(CLONE_NEWNS);

	if (!err)
		err = become_root(root, "/layers");
	/* Where a sandbox parks the tmpfs of its /dev and its layers, beneath its root; and a function container a
	 * proc. */
	if (!err && (mkdir("/t", 0700) < 0 || mkdir("/l", 0700) < 0 || mkdir("/p", 0700) < 0))
		err = -errno;
	return err;
}

static int cradle_open(void)
{
	int ready[2], hold[2], fd = -ECHILD;
	char path[64], byte;
	pid_t pid;

	if (pipe(ready) < 0 || pipe(hold) < 0)
		return -errno;
	pid = fork();
	if (!pid) {
		int err;

		close(hold[1]);
		err = cradle_make();
		if (!err && write(ready[1], "r", 1) == 1 && read(hold[0], &byte, 1) < 0)
			err = -errno;
		_exit(-err);
	}
	close(ready[1]);
	close(hold[0]);
	if (pid > 0 && read(ready[0], &byte, 1) == 1) {
		snprintf(path, sizeof(path), "/proc/%d/ns/mnt", pid);
		fd = open_at(AT_FDCWD, path, O_RDONLY);
	}
	close(ready[0]);
	close(hold[1]);
	if (pid > 0) {
		int err = wait_child(pid);

		if (err && fd < 0)
			fd = err;
	}
	return fd;
}

int mountns_enter(struct launcher *l, struct failure *f)
{
	struct places p = {.count = 0};
	close_auto int old = -1;
	int err;

	snprintf(p.dir, sizeof(p.dir), "%s/ns", l->run_dir);
	snprintf(p.pin, sizeof(p.pin), "%s/ns/mnt", l->run_dir);
	if (mkdir(p.dir, 0700) < 0 && errno != EEXIST)
		return fail(f, "mkdir", -errno, "%s", p.dir);
	l->host_mounts = open_at(AT_FDCWD, "/proc/self/ns/mnt", O_RDONLY);
	l->host_net = open_at(AT_FDCWD, "/proc/self/ns/net", O_RDONLY);
	if (l->host_mounts < 0 || l->host_net < 0)
		return fail(f, "namespaces", -EBADF, "/proc/self/ns");
	err = collect(l, &p, f);
	if (err)
		return err;
	old = pin_open(p.pin);
	if (old >= 0) {
		err = sys_setns(old, CLONE_NEWNS);
		if (err)
			return fail(f, "setns", err, "%s", p.pin);
	} else {
		err = create(l, &p, f);
	}
	if (!err)
		err = attach(&p, f);
	if (err)
		return err;
	l->cradle = cradle_open();
	return l->cradle < 0 ? fail(f, "cradle", l->cradle, "empty mount namespace") : 0;
}

/* The bind root that a path lies below, unless another root lies below that one. */
static const char *root_of(const struct launcher *l, const char *path)
{
	const struct roots *b = &l->bind_roots;
	const char *found = NULL;

	for (unsigned i = 0; i < b->count; i++) {
		struct roots one = {{b->paths[i]}, 1};

		if (path_below(path, &one) && (!found || strlen(found) < strlen(b->paths[i])))
			found = b->paths[i];
	}
	if (found) {
		struct roots one = {{found}, 1};

		for (unsigned i = 0; i < b->count; i++)
			if (path_below(b->paths[i], &one))
				return NULL;
		if (path_below(l->state_dir, &one) || path_below(l->run_dir, &one))
			return NULL;
	}
	return found;
}

int mountns_refresh(const struct launcher *l, const char *path)
{
	const char *root = root_of(l, path);
	close_auto int own = open_at(AT_FDCWD, "/proc/self/ns/mnt", O_RDONLY);
	close_auto int tree = -1;
	struct stat here, there;
	int err;

	if (!root || own < 0)
		return -ENOENT;
	err = sys_setns(l->host_mounts, CLONE_NEWNS);
	if (err)
		return err;
	tree = sys_open_tree(AT_FDCWD, root, OPEN_TREE_CLONE);
	err = sys_setns(own, CLONE_NEWNS);
	if (err || tree < 0)
		return err ? err : tree;
	if (fstat(tree, &there) < 0)
		return -errno;
	if (!stat(root, &here) && here.st_dev == there.st_dev && here.st_ino == there.st_ino)
		return -EALREADY;
	sys_umount(root, MNT_DETACH);
	return sys_move_mount(tree, AT_FDCWD, root);
}

void mountns_leave(struct launcher *l)
{
	char path[PATH_TEXT_MAX + 16];
	pid_t pid = fork();

	if (pid) {
		if (pid > 0)
			wait_child(pid);
		return;
	}
	if (!sys_setns(l->host_mounts, CLONE_NEWNS)) {
		snprintf(path, sizeof(path), "%s/ns/mnt", l->run_dir);
		sys_umount(path, MNT_DETACH);
		snprintf(path, sizeof(path), "%s/ns", l->run_dir);
		sys_umount(path, MNT_DETACH);
	}
	_exit(0);
}

/* The sandbox's mounts, by the new mount calls. Order and reasons: native/README.md. */
#include "child.h"
#include "weak.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

int mount_lower(struct child *c, const struct step *s)
{
	char path[96];
	int fd, err;

	snprintf(path, sizeof(path), "/layers/%s", s->a);
	fd = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE);
	if (fd < 0)
		return fd;
	err = sys_mount_setattr(fd, "", MOUNT_ATTR_RDONLY, c->user_fd);
	c->lower_fds[c->lower_count++] = fd;
	return err;
}

/* Returns the context of an overlay below the working directory, made; or why not. */
static int overlay(struct child *c)
{
	static const char *const off[] = {"redirect_dir", "metacopy", "index", "xino"};
	int fs = sys_fsopen("overlay");
	int err = fs < 0 ? fs : 0;

	for (unsigned i = 0; i < c->lower_count && !err; i++)
		err = sys_fsconfig(fs, FSCONFIG_SET_FD, "lowerdir+", NULL, c->lower_fds[i]);
	/* By relative names: the sandbox reads them in its mountinfo. */
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_SET_STRING, "upperdir", "u", 0);
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_SET_STRING, "workdir", "w", 0);
	/* Otherwise diff audit and commit misread renames, and unmount syncs the disk. */
	for (unsigned i = 0; i < 4 && !err; i++)
		err = sys_fsconfig(fs, FSCONFIG_SET_STRING, off[i], "off", 0);
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_SET_FLAG, "volatile", NULL, 0);
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_SET_STRING, "source", "skerry", 0);
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	if (!err)
		return fs;
	if (fs >= 0)
		close(fs);
	return err;
}

/* Goes into the upper; where its ids are another range's, into a mount that shows them as this one's. */
static int enter_upper(struct child *c, const struct step *s)
{
	char path[96];

	snprintf(path, sizeof(path), "/upper/%s", s->a);
	if (s->n == s->m)
		return chdir(path) < 0 ? -errno : 0;
	close_auto int map = idmap_make(s->n, s->m);
	int err = map < 0 ? map : 0;

	if (!err) {
		c->upper_fd = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE);
		err = c->upper_fd < 0 ? c->upper_fd : sys_mount_setattr(c->upper_fd, "", 0, map);
	}
	return err ? err : fchdir(c->upper_fd) < 0 ? -errno : 0;
}

int mount_overlay(struct child *c, const struct step *s)
{
	struct statfs made;
	int err = enter_upper(c, s);

	if (err)
		return err;
	close_auto int fs = overlay(c);
	if (fs == -EIO) {
		/*
		 * Something that a sandbox wrote could not be written: the disk was full. No volatile
		 * overlay is mounted over an error that nobody has seen (overlayfs.rst); now it is seen.
		 */
		close_auto int upper = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (upper >= 0)
			syncfs(upper);
		fs = overlay(c);
	}
	if (fs < 0)
		return fs;
	/* Setuid works, for su and sudo; device nodes that an image brings do not. */
	c->overlay_fd = sys_fsmount(fs, MOUNT_ATTR_NODEV);
	if (c->overlay_fd < 0)
		return c->overlay_fd;
	/* Where the kernel cannot make its work directory (no space, no quota left), it mounts read-only
	 * and says so to nobody. */
	if (fstatfs(c->overlay_fd, &made) < 0)
		return -errno;
	return made.f_flags & ST_RDONLY ? -EROFS : 0;
}

static int make_node(int dir, const char *name, unsigned minor_number, unsigned major_number, uid_t owner)
{
	if (mknodat(dir, name, S_IFCHR | 0666, makedev(major_number, minor_number)) < 0 ||
	    fchownat(dir, name, owner, owner, 0) < 0)
		return -errno;
	return 0;
}

/* Directories and links are made under the owner's id, which saves a chown each; nodes need root's. */
static void make_as(uid_t id)
{
	setfsgid(id);
	setfsuid(id);
}

static int fill_dev(int dev, uid_t owner)
{
	static const struct {
		const char *name;
		unsigned minor, major;
	} nodes[] = {{"null", 3, 1}, {"zero", 5, 1}, {"full", 7, 1}, {"random", 8, 1},
		     {"urandom", 9, 1}, {"tty", 0, 5}};
	static const char *const links[][2] = {
		{"pts/ptmx", "ptmx"}, {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"},
		{"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}};
	static const struct {
		const char *name;
		mode_t mode;
	} dirs[] = {{"shm", 01777}, {"pts", 0755}, {"mqueue", 01777}};
	int err = 0;

	for (unsigned i = 0; i < 5 && !err; i++)
		err = symlinkat(links[i][0], dev, links[i][1]) < 0 ? -errno : 0;
	for (unsigned i = 0; i < 3 && !err; i++)
		err = mkdirat(dev, dirs[i].name, dirs[i].mode) < 0 ? -errno : 0;
	make_as(0);
	for (unsigned i = 0; i < 6 && !err; i++)
		err = make_node(dev, nodes[i].name, nodes[i].minor, nodes[i].major, owner);
	return err;
}

/* One superblock for /dev, /dev/shm, /run and the empty directory that hides others. */
int mount_shared(struct child *c, const struct step *s)
{
	char size[32], id[32];
	const char *const options[][2] = {{"mode", "755"}, {"uid", id}, {"gid", id}, {"size", size},
					  {"nr_inodes", "65536"}, {NULL, NULL}};
	static const char *const dirs[] = {"dev", "run", "empty"};
	uid_t owner = (uid_t)s->m;
	close_auto int dev = -1;

	snprintf(size, sizeof(size), "%" PRIu64, s->n);
	snprintf(id, sizeof(id), "%" PRIu64, s->m);
	c->shared_fd = sys_new_mount("tmpfs", MOUNT_ATTR_NOSUID, options);
	if (c->shared_fd < 0)
		return c->shared_fd;
	make_as(owner);
	for (unsigned i = 0; i < 3; i++)
		if (mkdirat(c->shared_fd, dirs[i], 0755) < 0)
			return -errno;
	dev = open_at(c->shared_fd, "dev", O_RDONLY | O_DIRECTORY);
	return dev < 0 ? dev : fill_dev(dev, owner);
}

/* Beside null and its like: no other file system of the sandbox has device nodes that can be opened. */
int mount_node(struct child *c, const struct step *s)
{
	size_t n = strcspn(s->a, "/");
	char dir[NODE_COMPONENT_MAX + 1];
	close_auto int dev = open_at(c->shared_fd, "dev", O_RDONLY | O_DIRECTORY);

	if (dev < 0)
		return dev;
	make_as(0);
	if (s->a[n]) {
		snprintf(dir, sizeof(dir), "%.*s", (int)n, s->a);
		if (mkdirat(dev, dir, 0755) < 0 && errno != EEXIST)
			return -errno;
	}
	return make_node(dev, s->a, minor(s->n), major(s->n), (uid_t)s->m);
}

int mount_leave(struct child *c, const struct step *s)
{
	int err = sys_setns(c->i->launcher->cradle, CLONE_NEWNS);

	(void)s;
	return err ? err : sys_unshare(CLONE_NEWNS);
}

int mount_view(struct child *c, const struct step *s)
{
	close_auto int fd = sys_new_mount("proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, NULL);

	(void)c;
	(void)s;
	return fd < 0 ? fd : sys_move_mount(fd, AT_FDCWD, "/p");
}

int mount_root(struct child *c, const struct step *s)
{
	/* Parked beneath the root first: kernels before 6.15 clone only from mounts that are attached. */
	int err = sys_move_mount(c->shared_fd, AT_FDCWD, "/t");

	(void)s;
	/* The layers' clones too, though the overlay has its own by now: closing a detached mount waits for
	 * a grace period of the kernel, parking it does not. */
	for (unsigned i = 0; i < c->lower_count && !err; i++)
		err = sys_move_mount(c->lower_fds[i], AT_FDCWD, "/l");
	if (c->upper_fd >= 0 && !err)
		err = sys_move_mount(c->upper_fd, AT_FDCWD, "/l");
	return err ? err : sys_move_mount(c->overlay_fd, AT_FDCWD, "/");
}

/* Attaches to a directory of the image, which is made where the image lacks it. A link there is not
 * followed: the mount then fails with ENOTDIR. */
static int attach(struct child *c, int mount, const char *at, uint64_t owner)
{
	int err;

	if (mount < 0)
		return mount;
	err = sys_move_mount(mount, c->overlay_fd, at);
	if (err == -ENOENT) {
		if (mkdirat(c->overlay_fd, at, 0755) < 0 ||
		    fchownat(c->overlay_fd, at, (uid_t)owner, (gid_t)owner, AT_SYMLINK_NOFOLLOW) < 0)
			err = -errno;
		else
			err = sys_move_mount(mount, c->overlay_fd, at);
	}
	close(mount);
	return err;
}

int mount_part(struct child *c, const struct step *s)
{
	int fd = sys_open_tree(c->shared_fd, s->a, OPEN_TREE_CLONE);

	if (fd >= 0 && (s->op == OP_RUN || s->n)) {
		int err = sys_mount_setattr(fd, "", s->op == OP_RUN ? MOUNT_ATTR_NODEV : MOUNT_ATTR_RDONLY, -1);

		if (err)
			return err;
	}
	return attach(c, fd, s->a, s->m);
}

int mount_proc(struct child *c, const struct step *s)
{
	static const char *const processes[][2] = {{"subset", "pid"}, {NULL, NULL}};
	int fd = sys_new_mount("proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
			       s->n ? processes : NULL);

	return attach(c, fd, s->a, s->m);
}

int mount_devpts(struct child *c, const struct step *s)
{
	char gid[32];
	const char *const options[][2] = {{"newinstance", NULL}, {"ptmxmode", "0666"}, {"mode", "0620"},
					  {"gid", gid}, {NULL, NULL}};

	snprintf(gid, sizeof(gid), "%" PRIu64, s->n);
	return attach(c, sys_new_mount("devpts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, options), s->a, 0);
}

int mount_mqueue(struct child *c, const struct step *s)
{
	unsigned attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;

	return attach(c, sys_new_mount("mqueue", attributes, NULL), s->a, 0);
}

int mount_chroot(struct child *c, const struct step *s)
{
	(void)s;
	/* Not pivot_root: that visits every process of the machine. */
	if (fchdir(c->overlay_fd) < 0 || chroot(".") < 0)
		return -errno;
	return 0;
}

int mount_over_file(struct child *c, const struct step *s)
{
	(void)c;
	return weak("masks") ? 0 : sys_bind("/dev/null", s->a);
}

int mount_over_dir(struct child *c, const struct step *s)
{
	int fd = sys_open_tree(c->shared_fd, "empty", OPEN_TREE_CLONE);
	int err = fd < 0 ? fd : sys_mount_setattr(fd, "", MOUNT_ATTR_RDONLY, -1);

	if (err) {
		close_ptr(&fd);
		return err;
	}
	return attach(c, fd, s->a + 1 /* relative to the root */, s->m);
}

int mount_readonly(struct child *c, const struct step *s)
{
	int err;

	(void)c;
	if (weak("masks"))
		return 0;
	err = sys_bind(s->a, s->a);
	return err ? err : sys_mount_setattr(AT_FDCWD, s->a, MOUNT_ATTR_RDONLY, -1);
}

int mount_cover(struct child *c, const struct step *s)
{
	struct stat st;

	if (weak("masks"))
		return 0;
	/* A path that is not there would be hidden from nobody: better no sandbox than that. */
	if (stat(s->a, &st) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) ? mount_over_dir(c, s) : mount_over_file(c, s);
}

/* Where the image has a link, as /var/tmp may be one, there is nothing to be made. */
int mount_places(struct child *c, const struct step *s)
{
	static const char *const places[] = {"tmp", "var", "var/tmp", "run", "call"};

	make_as((uid_t)s->m);
	for (unsigned i = 0; i < 5; i++)
		if (mkdirat(c->overlay_fd, places[i], 0755) < 0 && errno != EEXIST)
			return -errno;
	make_as(0);
	return 0;
}

int mount_seal(struct child *c, const struct step *s)
{
	(void)s;
	return sys_mount_setattr(c->overlay_fd, "", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, -1);
}

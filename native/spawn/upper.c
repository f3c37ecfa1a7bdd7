/* Uppers: /upper/INSTANCE/{u,w}, a btrfs subvolume each, or plain directories ("dir").
 *
 * Spare subvolumes: one whose sandbox wrote little is emptied and kept for the next START, under a
 * name (".pool-N") that no id can have. u and w themselves are made anew each time, for sandbox root
 * may have changed the mode, the owner and the attributes of u. What was in a spare one counts as used
 * until the file system commits, however little is seen of it: none is given to who has a limit. */
#include "launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "protocol.h"

enum { SMALL_ENTRIES = 32, SMALL_DEPTH = 4, WORK_ENTRIES = 4096 };

static int make_both(int upper_fd, const char *id, uint64_t uid_base)
{
	close_auto int dir = open_at(upper_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

	if (dir < 0)
		return dir;
	if (mkdirat(dir, "u", 0755) < 0 || mkdirat(dir, "w", 0700) < 0 ||
	    fchownat(dir, "u", (uid_t)uid_base, (gid_t)uid_base, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return 0;
}

static int subvolume(int upper_fd, unsigned long command, const char *name)
{
	struct btrfs_ioctl_vol_args args = {0};

	snprintf(args.name, sizeof(args.name), "%s", name);
	return ioctl(upper_fd, command, &args) < 0 ? -errno : 0;
}

static int take_spare(struct launcher *l, const char *id)
{
	char spare[32];

	if (!l->pool_count)
		return -ENOENT;
	snprintf(spare, sizeof(spare), ".pool-%u", l->pool[--l->pool_count]);
	return renameat(l->upper_fd, spare, l->upper_fd, id) < 0 ? -errno : 0;
}

int upper_make(struct launcher *l, const char *id, uint64_t uid_base, bool spare)
{
	int err;

	if (l->upper == UPPER_DIR)
		err = mkdirat(l->upper_fd, id, 0700) < 0 ? -errno : 0;
	else if (!spare || take_spare(l, id))
		err = subvolume(l->upper_fd, BTRFS_IOC_SUBVOL_CREATE, id);
	else
		err = 0;
	if (err)
		return err;
	err = make_both(l->upper_fd, id, uid_base);
	if (err)
		upper_remove(l, id);
	return err;
}

int upper_limit(struct launcher *l, const char *id, uint64_t bytes)
{
	close_auto int dir = open_at(l->upper_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	/* qgroupid 0 is that of the subvolume itself; all bits set lift the limit. */
	struct btrfs_ioctl_qgroup_limit_args args = {
		.lim = {.flags = BTRFS_QGROUP_LIMIT_MAX_RFER, .max_rfer = bytes ? bytes : UINT64_MAX},
	};

	if (dir < 0)
		return dir;
	return ioctl(dir, BTRFS_IOC_QGROUP_LIMIT, &args) < 0 ? -errno : 0;
}

static int snapshot(int upper_fd, const char *from, int into, const char *to, bool readonly)
{
	close_auto int source = open_at(upper_fd, from, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	struct btrfs_ioctl_vol_args_v2 args = {
		.fd = source,
		.flags = readonly ? BTRFS_SUBVOL_RDONLY : 0,
	};

	if (source < 0)
		return source;
	snprintf(args.name, sizeof(args.name), "%s", to);
	return ioctl(into, BTRFS_IOC_SNAP_CREATE_V2, &args) < 0 ? -errno : 0;
}

static void place_of(char *text, size_t size, const char *id)
{
	snprintf(text, size, ".at-%s", id);
}

/* What a copy that was broken off has left. */
static void copy_clear(int upper_fd, const char *id)
{
	char place[PATH_TEXT_MAX + 1];

	place_of(place, sizeof(place), id);
	{
		close_auto int dir = open_at(upper_fd, place, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

		if (dir < 0)
			return;
		subvolume(dir, BTRFS_IOC_SNAP_DESTROY, id);
	}
	unlinkat(upper_fd, place, AT_REMOVEDIR);
}

/* A snapshot holds its parent directory's lock until the file system has committed. Made in one directory
 * n copies cost n commits, one after another; in a directory each they share one or two. */
int upper_copy(int upper_fd, const char *from, const char *to)
{
	char place[PATH_TEXT_MAX + 1];
	int err;

	place_of(place, sizeof(place), to);
	if (mkdirat(upper_fd, place, 0700) < 0 && errno != EEXIST)
		return -errno;
	{
		close_auto int dir = open_at(upper_fd, place, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

		err = dir < 0 ? dir : snapshot(upper_fd, from, dir, to, false);
		if (!err && renameat(dir, to, upper_fd, to) < 0)
			err = -errno;
	}
	copy_clear(upper_fd, to);
	return err;
}

/* Makes a copied upper mountable: a volatile overlay refuses a work directory that was used. */
int upper_rework(int upper_fd, const char *id)
{
	close_auto int dir = open_at(upper_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	unsigned budget = WORK_ENTRIES;
	int err;

	if (dir < 0)
		return dir;
	err = tree_remove_small(dir, "w", SMALL_DEPTH, &budget);
	if (err && err != -ENOENT)
		return err;
	return mkdirat(dir, "w", 0700) < 0 ? -errno : 0;
}

/* What each volatile overlay leaves in its work directory, named outright: only the kernel and root
 * write there. Anything else is left to the general way. */
static void remove_work(int dir)
{
	static const char *const chain[] = {"w/work/incompat/volatile", "w/work/incompat", "w/work", "w"};

	unlinkat(dir, "w/work/incompat/volatile/dirty", 0);
	for (unsigned i = 0; i < 4; i++)
		if (unlinkat(dir, chain[i], AT_REMOVEDIR) < 0)
			return;
}

static int keep_spare(struct launcher *l, const char *id)
{
	close_auto int dir = open_at(l->upper_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	unsigned budget = SMALL_ENTRIES;
	char spare[32];
	int err;

	if (dir < 0)
		return dir;
	if (l->pool_count == POOL_MAX || l->shutting_down)
		return -ENOSPC;
	err = tree_remove_small(dir, "u", SMALL_DEPTH, &budget);
	if (err)
		return err;
	remove_work(dir);
	err = tree_remove_small(dir, "w", SMALL_DEPTH, &budget);
	if (err == -ENOENT)
		err = 0;
	if (!err && l->upper_quota)
		err = upper_limit(l, id, 0);
	if (err)
		return err;
	snprintf(spare, sizeof(spare), ".pool-%u", l->pool_next);
	if (renameat(l->upper_fd, id, l->upper_fd, spare) < 0)
		return -errno;
	l->pool[l->pool_count++] = l->pool_next++;
	return 0;
}

int upper_remove(struct launcher *l, const char *id)
{
	if (l->upper == UPPER_NONE)
		return -ENOENT;
	if (l->upper == UPPER_DIR)
		return trash_put(l, id);
	copy_clear(l->upper_fd, id);
	if (!keep_spare(l, id))
		return 0;
	return subvolume(l->upper_fd, BTRFS_IOC_SNAP_DESTROY, id);
}

/* Called with what an earlier launcher left mounted, or after mounting. */
static int upper_take(struct launcher *l, bool btrfs)
{
	DIR *dir;
	struct dirent *e;
	close_auto int opened = open_at(AT_FDCWD, "/upper", O_RDONLY | O_DIRECTORY);
	int fd = opened;

	if (fd < 0)
		return fd;
	/* Onto the place kept for it among the descriptors that children keep. */
	fd = dup3(fd, l->upper_place, O_CLOEXEC);
	l->upper_fd = fd;
	l->upper = btrfs ? UPPER_BTRFS : UPPER_DIR;
	dir = opendir("/upper");
	while (dir && (e = readdir(dir))) {
		unsigned n;

		if (btrfs && !strncmp(e->d_name, ".at-", 4))
			copy_clear(fd, e->d_name + 4);
		if (!btrfs || sscanf(e->d_name, ".pool-%u", &n) != 1)
			continue;
		if (l->pool_count < POOL_MAX)
			l->pool[l->pool_count++] = n;
		if (n >= l->pool_next)
			l->pool_next = n + 1;
	}
	if (dir)
		closedir(dir);
	if (!btrfs && mkdirat(fd, ".trash", 0700) < 0 && errno != EEXIST)
		return -errno;
	if (!btrfs)
		trash_empty(l);
	return 0;
}

void upper_recover(struct launcher *l)
{
	char kind[32];

	if (is_mount_point("/upper") && read_file(AT_FDCWD, "/upper.kind", kind, sizeof(kind)) > 0) {
		l->upper_quota = strstr(kind, "quota");
		upper_take(l, !strncmp(kind, "btrfs", 5));
	}
}

struct order {
	struct launcher *launcher;
	struct request *request;
	struct pending reply;
};

static void done(struct job *j, struct job_result *r)
{
	struct order *o = j->owner;
	struct launcher *l = o->launcher;
	bool btrfs = !strcmp(o->request->upper, "btrfs");
	int fd, err = r->error;

	if (!err) {
		l->upper_quota = r->value;
		err = upper_take(l, btrfs);
		fd = open_at(AT_FDCWD, "/upper.kind", O_WRONLY | O_CREAT | O_TRUNC);
		dprintf(fd, "%s%s\n", o->request->upper, r->value ? " quota" : "");
		close_ptr(&fd);
	}
	if (err)
		reply_fail(l, &o->reply, r->step, err, o->request->path);
	else
		upper_answer(l, &o->reply);
	free(o->request);
	free(o);
}

void upper_answer(struct launcher *l, const struct pending *reply)
{
	struct builder *b = answer();

	if (l->upper_quota)
		build_text(b, T_FEATURE, "quota");
	if (l->upper == UPPER_BTRFS)
		build_text(b, T_FEATURE, "snapshot");
	reply_ok(l, reply, b);
}

static int work(void *arg, struct job_result *r)
{
	const struct order *o = arg;

	return pool_mount(o->request->path, !strcmp(o->request->upper, "btrfs"), r);
}

void upper_open(struct launcher *l, struct request *r)
{
	struct order *o = calloc(1, sizeof(*o));
	struct pending reply = pending_of(l, r);
	struct roots roots = l->bind_roots;
	bool btrfs = !strcmp(r->upper, "btrfs");
	struct failure f = {0};
	int err = o ? 0 : fail(&f, "memory", -ENOMEM, "upper");

	if (!err && !btrfs && strcmp(r->upper, "dir"))
		err = fail(&f, "upper", -EINVAL, "%s", r->upper);
	if (!err && (!roots_add(&roots, l->state_dir) || !path_below(r->path, &roots)))
		err = fail(&f, "path", -EACCES, "%s", r->path);
	if (!err && l->upper != UPPER_NONE) {
		if (btrfs == (l->upper == UPPER_BTRFS))
			upper_answer(l, &reply);
		else
			err = fail(&f, "upper", -EBUSY, "of the other kind");
	} else if (o && !err) {
		*o = (struct order){l, r, reply};
		err = job_start(&l->loop, work, o, done, o, 1);
		if (!err)
			return;
		fail(&f, "fork", err, "upper");
	}
	if (err)
		reply_fail(l, &reply, f.step, f.error, f.text);
	free(o);
	free(r);
}

void upper_close(struct launcher *l)
{
	if (l->upper == UPPER_NONE)
		return;
	while (l->upper == UPPER_BTRFS && l->pool_count) {
		char spare[32];

		snprintf(spare, sizeof(spare), ".pool-%u", l->pool[--l->pool_count]);
		subvolume(l->upper_fd, BTRFS_IOC_SNAP_DESTROY, spare);
	}
	close_ptr(&l->upper_fd);
	l->upper_fd = -1;
	/* Not lazily: the loop device goes with the last mount, and the caller wants it gone. */
	if (sys_umount("/upper", 0))
		sys_umount("/upper", MNT_DETACH);
	unlink("/upper.kind");
	l->upper = UPPER_NONE;
}

static int copy(void *arg, struct job_result *r)
{
	const struct order *o = arg;
	int fd = o->launcher->upper_fd;
	int err = snapshot(fd, o->request->instance, fd, o->request->text, true);

	return err ? job_fail(r, "snapshot", err) : 0;
}

static void copied(struct job *j, struct job_result *r)
{
	struct order *o = j->owner;

	if (r->error)
		reply_fail(o->launcher, &o->reply, r->step, r->error, o->request->instance);
	else
		reply_ok(o->launcher, &o->reply, answer());
	free(o->request);
	free(o);
}

void upper_keep(struct launcher *l, struct request *r)
{
	struct order *o = calloc(1, sizeof(*o));
	struct pending reply = pending_of(l, r);
	int err = !o ? -ENOMEM : l->upper != UPPER_BTRFS ? -EOPNOTSUPP : 0;

	if (o && !err) {
		*o = (struct order){l, r, reply};
		/* In a job: it waits for a commit of the file system. */
		err = job_start(&l->loop, copy, o, copied, o, 1);
	}
	if (!err)
		return;
	reply_fail(l, &reply, "snapshot", err, r->instance);
	free(o);
	free(r);
}

/* The file system that holds the uppers: a btrfs image on a loop device, or a directory. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

enum { QUOTA_ENABLE_SIMPLE = 4 };

/* The device's descriptor; it detaches itself when the last user closes it. */
static int loop_attach(const char *path, char *device, size_t size)
{
	close_auto int control = open_at(AT_FDCWD, "/dev/loop-control", O_RDWR);
	close_auto int file = open_at(AT_FDCWD, path, O_RDWR);
	struct loop_config config = {
		.fd = (uint32_t)file,
		.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
	};

	if (control < 0 || file < 0)
		return control < 0 ? control : file;
	/* Others take loop devices too: between the question and the taking ours may be gone. */
	for (int tries = 0; tries < 32; tries++) {
		int number = ioctl(control, LOOP_CTL_GET_FREE), fd;

		if (number < 0)
			return -errno;
		snprintf(device, size, "/dev/loop%d", number);
		if (mknod(device, S_IFBLK | 0600, makedev(7, (unsigned)number)) < 0 && errno != EEXIST)
			return -errno;
		fd = open_at(AT_FDCWD, device, O_RDWR);
		if (fd < 0)
			return fd;
		if (!ioctl(fd, LOOP_CONFIGURE, &config))
			return fd;
		close(fd);
		if (errno != EBUSY)
			return -errno;
	}
	return -EBUSY;
}

static int mount_image(const char *path, struct job_result *r)
{
	char device[32];
	close_auto int loop = loop_attach(path, device, sizeof(device));
	close_auto int fs = -1;
	int err;

	if (loop < 0)
		return job_fail(r, "loop", loop);
	fs = sys_fsopen("btrfs");
	err = fs < 0 ? fs : sys_fsconfig(fs, FSCONFIG_SET_STRING, "source", device, 0);
	/* After a loss of the host the image is made anew: nothing in it has to reach the disk in any
	 * order. With barriers each snapshot would wait for a sync of the disk below, and so for what
	 * others write there. A kernel that refuses the option works all the same. */
	if (!err)
		sys_fsconfig(fs, FSCONFIG_SET_FLAG, "nobarrier", NULL, 0);
	if (!err)
		err = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	if (err)
		return job_fail(r, "btrfs", err);
	err = sys_fsmount(fs, MOUNT_ATTR_NOATIME | MOUNT_ATTR_NODEV);
	return err < 0 ? job_fail(r, "fsmount", err) : err;
}

static int quota_on(void)
{
	close_auto int fd = open_at(AT_FDCWD, "/upper", O_RDONLY | O_DIRECTORY);
	struct btrfs_ioctl_quota_ctl_args args = {.cmd = QUOTA_ENABLE_SIMPLE};

	if (fd < 0)
		return fd;
	return ioctl(fd, BTRFS_IOC_QUOTA_CTL, &args) < 0 && errno != EEXIST ? -errno : 0;
}

int pool_mount(const char *path, bool btrfs, struct job_result *r)
{
	close_auto int mount = -1;
	struct statfs fs;
	struct stat st;
	int err;

	if (stat(path, &st) < 0)
		return job_fail(r, "path", -errno);
	if (S_ISDIR(st.st_mode)) {
		mount = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE);
		if (mount < 0)
			return job_fail(r, "bind", mount);
	} else if (btrfs) {
		mount = mount_image(path, r);
		if (mount < 0)
			return mount;
	} else {
		return job_fail(r, "path", -ENOTDIR);
	}
	err = sys_move_mount(mount, AT_FDCWD, "/upper");
	if (err)
		return job_fail(r, "move", err);
	if (!btrfs)
		return 0;
	if (statfs("/upper", &fs) < 0 || (unsigned long)fs.f_type != BTRFS_SUPER_MAGIC) {
		sys_umount("/upper", MNT_DETACH);
		return job_fail(r, "btrfs", -EINVAL);
	}
	/* A directory's file system is somebody else's: its quotas are not ours to switch on. */
	r->value = S_ISREG(st.st_mode) && !quota_on();
	return 0;
}

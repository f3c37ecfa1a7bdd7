/* A cell's maker, and its first process. Both are children of the agent in the container's user namespace,
 * with every capability there; the first process has none left when it says that the cell is ready.
 *
 *	maker: user namespace, the network that the cell had or a new one, unshare, clone
 *	first process: mounts, capabilities, report; then it only waits, and the kernel reaps for it
 *
 * It is the first process that mounts, for a proc is that of the pid namespace of who makes it. What it finds
 * mounted is locked (mount_namespaces(7)): the read-only root, /dev and what lies beneath. */
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "weak.h"

enum { STACK = 1 << 15, ZYGOTE_DISK = 64 << 20, ZYGOTE_INODES = 4096, TEXT = 64 };
enum { IN_USER, IN_NET, IN_UNSHARE, IN_CLONE, IN_IDENTITY, IN_TMPFS, IN_PLACES, IN_PROC, IN_MASKS, IN_DROP };
const char *const cell_steps[] = {"user", "net", "unshare", "clone", "identity", "tmpfs", "places", "proc", "masks", "drop"};

/* Of the fresh proc: what is hidden and what is read-only, as in sandboxes. */
static const char *const hidden_files[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms",
	"/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/sched_debug"};
static const char *const hidden_dirs[] = {"/proc/acpi", "/proc/scsi", "/proc/asound"};
static const char *const readonly[] = {"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/sysrq-trigger"};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct {
	const struct cell_order *order;
	struct cell_report report;
	int net; /* a new one's, to be handed over; else -1 */
} my;

static int result(long value)
{
	return value < 0 ? -errno : (int)value;
}

static void report_send(int disk)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = {.room = {0}};
	int fds[2] = {disk, my.net};
	struct iovec v = {.iov_base = &my.report, .iov_len = sizeof(my.report)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};

	if (disk >= 0) {
		size_t size = (1 + my.report.has_net) * sizeof(int);

		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(size);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(size);
		memcpy(CMSG_DATA(&control.head), fds, size);
	}
	sendmsg(my.order->report, &m, MSG_NOSIGNAL);
}

static _Noreturn void fail(int error)
{
	my.report.error = error;
	report_send(-1);
	_exit(1);
}

/* In test builds: whether the step is to fail, or to be the last. */
static bool told_to(const char *what, uint32_t at)
{
#ifdef SKERRY_WEAK
	char word[TEXT];

	snprintf(word, sizeof(word), "%s-%s", what, cell_steps[at]);
	return weak(word);
#else
	(void)what;
	(void)at;
	return false;
#endif
}

static void step(uint32_t at, int error)
{
	my.report.step = at;
	while (told_to("hang", at))
		pause();
	if (told_to("fail", at))
		error = -EIO;
	if (error < 0)
		fail(error);
}

/* --- mounts ---------------------------------------------------------------------------------------- */

static int new_mount(const char *type, unsigned attributes, const char *const options[][2])
{
	int fs = result(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC)), mount = fs;

	for (; fs >= 0 && mount >= 0 && options && (*options)[0]; options++)
		mount = result(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, (*options)[0], (*options)[1], 0));
	if (fs >= 0 && mount >= 0)
		mount = result(syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
	if (fs >= 0 && mount >= 0)
		mount = result(syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes));
	if (fs >= 0)
		close(fs);
	return mount;
}

static int move_mount(int mount, const char *to)
{
	return result(syscall(SYS_move_mount, mount, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH));
}

static int bind_mount(const char *from, const char *to)
{
	return result(syscall(SYS_mount, from, to, NULL, 4096L /* MS_BIND */, NULL));
}

/* The cell's own file system, on what the host gives it; a descriptor of it. */
static int disk_make(uint64_t size, uint64_t inodes)
{
	static const struct {
		const char *name, *at;
		mode_t mode;
		bool link_is_fine; /* the image leads to another of them */
	} places[] = {{"tmp", "/tmp", 01777, false}, {"var", "/var/tmp", 01777, true}, {"shm", "/dev/shm", 01777, false},
		      {"run", "/run", 01777, false}, {"call", "/call", 0700, false}};
	char size_text[TEXT], inodes_text[TEXT];
	const char *const options[][2] = {{"source", "skerry"}, {"size", size_text}, {"nr_inodes", inodes_text},
					  {"mode", "755"}, {NULL, NULL}};
	int disk;

	snprintf(size_text, sizeof(size_text), "%llu", (unsigned long long)size);
	snprintf(inodes_text, sizeof(inodes_text), "%llu", (unsigned long long)inodes);
	my.report.step = IN_TMPFS;
	disk = new_mount("tmpfs", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, options);
	if (disk < 0)
		return disk;
	my.report.step = IN_PLACES;
	for (size_t i = 0; i < COUNT(places); i++)
		if (mkdirat(disk, places[i].name, places[i].mode))
			return -errno;
	if (fchownat(disk, "call", CELL_UID, CELL_UID, 0))
		return -errno;
	/* Attached before parts of it are cloned, for older kernels; the last lies over it. */
	if (move_mount(disk, "/call") < 0)
		return -errno;
	for (size_t i = 0; i < COUNT(places); i++) {
		int part = result(syscall(SYS_open_tree, disk, places[i].name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
		int error = part < 0 ? part : move_mount(part, places[i].at);

		if (part >= 0)
			close(part);
		if (error < 0 && !places[i].link_is_fine)
			return error;
	}
	return disk;
}

/* An entry that this kernel lacks needs no mask. */
static int masks_make(void)
{
	struct mount_attr firm = {.attr_set = MOUNT_ATTR_RDONLY};
	int error = 0;

	if (weak("masks"))
		return 0;
	for (size_t i = 0; i < COUNT(hidden_files) && (error >= 0 || error == -ENOENT); i++)
		error = bind_mount("/dev/null", hidden_files[i]);
	for (size_t i = 0; i < COUNT(hidden_dirs) && (error >= 0 || error == -ENOENT); i++)
		error = bind_mount("/sys", hidden_dirs[i]); /* empty and read-only */
	for (size_t i = 0; i < COUNT(readonly) && (error >= 0 || error == -ENOENT); i++) {
		error = bind_mount(readonly[i], readonly[i]);
		if (!error)
			error = result(syscall(SYS_mount_setattr, AT_FDCWD, readonly[i], 0, &firm, sizeof(firm)));
	}
	return error == -ENOENT ? 0 : error;
}

static int proc_make(void)
{
	int proc = new_mount("proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, NULL);
	int error = proc < 0 ? proc : move_mount(proc, "/proc");

	if (proc >= 0)
		close(proc);
	return error;
}

/* --- the processes ------------------------------------------------------------------------------------ */

static int root_of_container(void)
{
	/* Who made the namespace has no id in it, and so could make no file. */
	return result(syscall(SYS_setresgid, 0, 0, 0)) || result(syscall(SYS_setresuid, 0, 0, 0)) ? -errno : 0;
}

/* Nothing but what a process needs to wait. It may be looked at by a zygote, which joins by that right. */
static int drop(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}};

	more_forget();
	conn_scrub();
	signal(SIGCHLD, SIG_IGN); /* the kernel reaps orphans itself */
	setsid();
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_capset, &head, none) || prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
		return -errno;
	return cell_filter(SECCOMP_CELL);
}

static _Noreturn int first_process(void *unused)
{
	const struct cell *c = my.order->cell;
	int disk;

	(void)unused;
	umask(0);
	step(IN_IDENTITY, root_of_container());
	disk = disk_make(c->disk, c->inodes);
	step(my.report.step, disk);
	step(IN_PROC, proc_make());
	step(IN_MASKS, masks_make());
	step(IN_DROP, drop());
	report_send(disk);
	syscall(SYS_close_range, 0, ~0u, 0);
	for (;;)
		pause();
}

void cell_make(const struct cell_order *order)
{
	static uint8_t stack[STACK] __attribute__((aligned(16)));
	int flags = CLONE_VM | CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD;
	sigset_t none;

	my.order = order;
	my.net = -1;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	step(IN_USER, result(syscall(SYS_setns, FD_USERNS, CLONE_NEWUSER)));
	step(IN_NET, cell_net_enter(order->cell, &my.net, &my.report.net));
	my.report.has_net = my.net >= 0;
	step(IN_UNSHARE, result(unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)));
	/* The memory is handed over rather than copied: this process ends at once. */
	step(IN_CLONE, result(clone(first_process, stack + STACK, flags, NULL, order->init)));
	_exit(0);
}

int cell_of_zygote(void)
{
	int error = result(unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS));

	umask(0);
	if (!error)
		error = cell_net_loopback();
	if (!error)
		error = root_of_container();
	if (!error)
		error = disk_make(ZYGOTE_DISK, ZYGOTE_INODES);
	umask(022);
	return error < 0 ? error : 0;
}

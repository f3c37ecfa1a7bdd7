/* Attacks from inside a sandbox, one static program. Each prints lines "NAME RESULT": RESULT is "ok"
 * if the attack worked, else the name of the error, or "signal N". Nothing here does harm where it
 * works: calls get arguments that fail later, values are written back as they were read. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/if.h>
#include <linux/io_uring.h>
#include <linux/kcmp.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALL(...) (int)syscall(__VA_ARGS__)
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static char byte;
static struct iovec mine = {&byte, 1};

struct attack {
	const char *name;
	int (*run)(void); /* 0 or more: it worked; else errno says why not */
};

static void report(const char *name, int result)
{
	printf("%s %s\n", name, result >= 0 ? "ok" : strerrorname_np(errno));
	fflush(stdout);
}

/* Each in a child of its own: some end the caller, some change it. */
static void try_all(const struct attack *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		pid_t pid = fork();
		int status;

		if (!pid) {
			alarm(5);
			report(list[i].name, list[i].run());
			_exit(0);
		}
		waitpid(pid, &status, 0);
		if (WIFSIGNALED(status))
			printf("%s signal %d\n", list[i].name, WTERMSIG(status));
		fflush(stdout);
	}
}

/* -- mounts and namespaces ------------------------------------------------------------------------ */

static int a_mount(void) { return mount("none", "/mnt", "tmpfs", 0, NULL); }
static int a_mount_proc(void) { return mount("none", "/mnt", "proc", 0, NULL); }
static int a_bind(void) { return mount("/etc", "/mnt", NULL, MS_BIND, NULL); }
static int a_remount(void) { return mount(NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND, NULL); }
static int a_umount_mask(void) { return umount2("/proc/kallsyms", MNT_DETACH); }
static int a_umount_lazy(void) { return umount2("/dev/mqueue", MNT_DETACH); }
static int a_move(void) { return mount("/dev/mqueue", "/mnt", NULL, MS_MOVE, NULL); }
static int a_pivot(void) { return CALL(SYS_pivot_root, "/", "/"); } /* never possible, but after the check */
static int a_open_tree(void) { return CALL(SYS_open_tree, AT_FDCWD, "/etc", 1 /* CLONE */); }
static int a_move_mount(void) { return CALL(SYS_move_mount, AT_FDCWD, "/dev/mqueue", AT_FDCWD, "/mnt", 0); }
static int a_fsopen(void) { return CALL(SYS_fsopen, "tmpfs", 0); }
static int a_fspick(void) { return CALL(SYS_fspick, AT_FDCWD, "/proc", 0); }
static int a_mount_setattr(void)
{
	struct { uint64_t set, clear, propagation, fd; } attr = {.clear = 1 /* RDONLY */};

	return CALL(SYS_mount_setattr, AT_FDCWD, "/proc/sys", 0, &attr, sizeof(attr));
}
static int a_open_tree_attr(void) { return CALL(467, AT_FDCWD, "/etc", 1, NULL, 0); }
static int a_unshare_user(void) { return unshare(CLONE_NEWUSER); }
static int a_unshare_mnt(void) { return unshare(CLONE_NEWNS); }
static int a_unshare_net(void) { return unshare(CLONE_NEWNET); }
static int a_unshare_pid(void) { return unshare(CLONE_NEWPID); }
static int a_unshare_ipc(void) { return unshare(CLONE_NEWIPC); }
static int a_unshare_uts(void) { return unshare(CLONE_NEWUTS); }
static int a_unshare_cgroup(void) { return unshare(CLONE_NEWCGROUP); }
static int a_unshare_time(void) { return unshare(CLONE_NEWTIME); }
/* What somebody would do with a namespace of his own: root in it, and so a mount. */
static int a_user_then_mount(void)
{
	return unshare(CLONE_NEWUSER) || unshare(CLONE_NEWNS) ? -1 : mount("none", "/mnt", "tmpfs", 0, NULL);
}
static int clone_with(uint64_t flags)
{
	int pid = CALL(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);

	if (!pid)
		_exit(0);
	return pid;
}
static int a_clone_user(void) { return clone_with(CLONE_NEWUSER); }
static int a_clone_all(void) { return clone_with(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET); }
static int a_clone3(void)
{
	struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
	int pid = CALL(SYS_clone3, &args, sizeof(args));

	if (!pid)
		_exit(0);
	return pid;
}
/* The agent may, by a key in arguments that the kernel does not look at: some that are no secret. */
static int a_clone3_guess(void)
{
	struct clone_args args = {.exit_signal = SIGCHLD};
	int pid = -1;

	for (unsigned long guess = 0; guess < 4096 && pid < 0; guess++) {
		pid = CALL(SYS_clone3, &args, sizeof(args), guess, guess);
		if (pid < 0)
			pid = CALL(SYS_clone3, &args, sizeof(args), ~guess, ~0ul);
	}
	if (!pid)
		_exit(0);
	return pid;
}
static int setns_of(const char *path, int kind)
{
	int fd = open(path, O_RDONLY);

	return fd < 0 ? -1 : setns(fd, kind);
}
static int a_setns_mnt(void) { return setns_of("/proc/self/ns/mnt", CLONE_NEWNS); }
static int a_setns_net(void) { return setns_of("/proc/self/ns/net", 0); }
static int a_setns_user(void) { return setns_of("/proc/self/ns/user", CLONE_NEWUSER); }
static int a_setns_pidfd(void)
{
	int fd = CALL(SYS_pidfd_open, 1, 0);

	return fd < 0 ? -1 : setns(fd, CLONE_NEWNS);
}
static int a_hostname(void)
{
	char name[65];

	return gethostname(name, sizeof(name)) ? -1 : sethostname(name, strlen(name));
}
static int a_domainname(void) { return setdomainname("x", 1); }

/* -- kernel interfaces ---------------------------------------------------------------------------- */

static int a_keyctl(void) { return CALL(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1); }
static int a_add_key(void) { return CALL(SYS_add_key, "user", "skerry", "x", 1, KEY_SPEC_PROCESS_KEYRING); }
static int a_request_key(void) { return CALL(SYS_request_key, "user", "none", NULL, 0); }
static int a_bpf(void)
{
	union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};

	return CALL(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof(attr));
}
static int a_perf(void)
{
	struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof(attr),
				       .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1};

	return CALL(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}
static int a_userfaultfd(void) { return CALL(SYS_userfaultfd, O_CLOEXEC | 1 /* USER_MODE_ONLY */); }
static int a_io_uring(void)
{
	struct io_uring_params params = {0};

	return CALL(SYS_io_uring_setup, 4, &params);
}
static int a_io_uring_enter(void) { return CALL(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0); }
static int a_fanotify(void) { return CALL(SYS_fanotify_init, 0x200 /* REPORT_FID */, O_RDONLY); }
static int a_open_by_handle(void)
{
	struct { unsigned bytes; int type; unsigned char handle[128]; } h = {.bytes = 128};
	int mount_id;

	if (CALL(SYS_name_to_handle_at, AT_FDCWD, "/etc", &h, &mount_id, 0))
		h.bytes = 8, h.type = 1;
	return CALL(SYS_open_by_handle_at, AT_FDCWD, &h, O_RDONLY);
}
static int a_syslog(void) { return CALL(SYS_syslog, 10 /* SIZE_BUFFER */, NULL, 0); }
static int a_dmesg(void)
{
	char text[64];

	return CALL(SYS_syslog, 3, text, sizeof(text));
}
static int a_kexec(void) { return CALL(SYS_kexec_load, 0, 1000, NULL, 0); }
static int a_kexec_file(void) { return CALL(SYS_kexec_file_load, -1, -1, 0, NULL, 0); }
static int a_init_module(void) { return CALL(SYS_init_module, &byte, 1, ""); }
static int a_finit_module(void) { return CALL(SYS_finit_module, -1, "", 0); }
static int a_delete_module(void) { return CALL(SYS_delete_module, "no-such-module", O_NONBLOCK); }
static int a_iopl(void) { return CALL(SYS_iopl, 3); }
static int a_ioperm(void) { return CALL(SYS_ioperm, 0x80, 1, 1); }
static int a_quotactl(void) { return CALL(SYS_quotactl, 0x800001 << 8, NULL, 0, NULL); }
static int a_swapon(void) { return CALL(SYS_swapon, "/nowhere", 0); }
static int a_swapoff(void) { return CALL(SYS_swapoff, "/nowhere"); }
static int a_reboot(void) { return CALL(SYS_reboot, 0, 0, 0, NULL); } /* wrong magic: never reboots */
static int a_acct(void) { return CALL(SYS_acct, "/nowhere"); }
static int a_settimeofday(void)
{
	struct timeval now;

	gettimeofday(&now, NULL);
	now.tv_usec = 1000000; /* out of range: refused by everybody who gets that far */
	return CALL(SYS_settimeofday, &now, NULL);
}
static int a_clock_settime(void)
{
	struct timespec now = {.tv_sec = 1, .tv_nsec = -1};

	return CALL(SYS_clock_settime, CLOCK_REALTIME, &now);
}
static int a_clock_adjtime(void)
{
	struct timex t = {.modes = 0};

	return CALL(SYS_clock_adjtime, CLOCK_REALTIME, &t);
}
static int a_int80(void)
{
#ifdef __x86_64__
	long r;

	__asm__ volatile("int $0x80" : "=a"(r) : "a"(20) /* getpid of the 32-bit table */ : "memory");
	errno = (int)-r;
	return r < 0 ? -1 : 0;
#else
	return errno = ENOSYS, -1;
#endif
}
static int a_x32(void) { return CALL(0x40000000 | SYS_getpid); }
static int a_unknown_call(void) { return CALL(1000); }
static int a_tiocsti(void) { return ioctl(0, TIOCSTI, &byte); }
static int a_personality_mem(void) { return prctl(PR_SET_MM, PR_SET_MM_START_CODE, 0x1000, 0, 0); }
static int a_caps_raise(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct all[2] = {{~0u, ~0u, ~0u}, {0x1ff, 0x1ff, 0x1ff}};

	return CALL(SYS_capset, &head, all);
}
static int a_bounding(void) { return prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN) == 1 ? 0 : (errno = EPERM, -1); }
static int a_nofile(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_max = limit.rlim_cur = limit.rlim_max + 1;
	return setrlimit(RLIMIT_NOFILE, &limit);
}
static int a_nice(void) { return setpriority(PRIO_PROCESS, 0, -5); }
static int a_realtime(void)
{
	struct sched_param p = {.sched_priority = 1};

	return sched_setscheduler(0, SCHED_FIFO, &p);
}
static int a_oom_score(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);

	return fd < 0 ? -1 : (int)write(fd, "-1000", 5);
}

/* -- devices and files ---------------------------------------------------------------------------- */

static int node_open(mode_t kind, unsigned major_number, unsigned minor_number)
{
	int fd;

	unlink("/dev/attack");
	if (mknod("/dev/attack", kind | 0600, makedev(major_number, minor_number)))
		return -1;
	fd = open("/dev/attack", O_RDONLY | O_NONBLOCK);
	unlink("/dev/attack");
	return fd;
}
static int a_mknod_mem(void) { return node_open(S_IFCHR, 1, 1); }
static int a_mknod_kmsg(void) { return node_open(S_IFCHR, 1, 11); }
static int a_mknod_disk(void) { return node_open(S_IFBLK, 254, 0); }
static int a_mknod_loop(void) { return node_open(S_IFBLK, 7, 0); }
static int a_mknod_loop_control(void) { return node_open(S_IFCHR, 10, 237); }
static int a_mknod_fuse(void) { return node_open(S_IFCHR, 10, 229); }
static int a_mknod_null(void) { return node_open(S_IFCHR, 1, 3); }
static int a_mknod_whiteout(void)
{
	return mknod("/root/whiteout", S_IFCHR, 0);
}
static int a_xattr_trusted(void)
{
	return CALL(SYS_setxattr, "/root", "trusted.overlay.opaque", "y", 1, 0);
}

static int write_open(const char *path)
{
	int fd = open(path, O_WRONLY);

	return fd;
}
static int a_sys_hostname(void) { return write_open("/proc/sys/kernel/hostname"); }
static int a_sys_core(void) { return write_open("/proc/sys/kernel/core_pattern"); }
static int a_sys_drop(void) { return write_open("/proc/sys/vm/drop_caches"); }
static int a_sys_forward(void) { return write_open("/proc/sys/net/ipv4/ip_forward"); }
static int a_sys_userns(void) { return write_open("/proc/sys/user/max_user_namespaces"); }
static int a_sys_modprobe(void) { return write_open("/proc/sys/kernel/modprobe"); }
static int a_sysrq(void) { return write_open("/proc/sysrq-trigger"); }
static int read_some(const char *path)
{
	char text[16];
	int fd = open(path, O_RDONLY);
	int n = fd < 0 ? -1 : (int)read(fd, text, sizeof(text));

	return n ? n : (errno = ENODATA, -1);
}
static int a_kallsyms(void) { return read_some("/proc/kallsyms"); }
static int a_kcore(void) { return read_some("/proc/kcore"); }
static int a_keys(void) { return read_some("/proc/keys"); }
static int a_timer_list(void) { return read_some("/proc/timer_list"); }
static int a_kpageflags(void) { return read_some("/proc/kpageflags"); }
static int a_kpagecgroup(void) { return read_some("/proc/kpagecgroup"); }
static int a_kmsg(void) { return open("/proc/kmsg", O_RDONLY | O_NONBLOCK); }
static int a_slabinfo(void) { return read_some("/proc/slabinfo"); }
static int a_vmallocinfo(void) { return read_some("/proc/vmallocinfo"); }
static int a_sysfs(void) { return read_some("/sys/kernel/uevent_seqnum"); }

/* -- network -------------------------------------------------------------------------------------- */

static int a_raw(void) { return socket(AF_INET, SOCK_RAW, IPPROTO_ICMP); }
static int a_packet(void) { return socket(AF_PACKET, SOCK_RAW, 0); }
static int a_vsock(void) { return socket(AF_VSOCK, SOCK_STREAM, 0); }
static int a_alg(void) { return socket(AF_ALG, SOCK_SEQPACKET, 0); }
static int a_bluetooth(void) { return socket(AF_BLUETOOTH, SOCK_RAW, 0); }
static int a_lo_down(void)
{
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};

	return ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &r);
}
static int a_tun(void) { return node_open(S_IFCHR, 10, 200); }
static int connect_to(const char *address, int port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct timeval wait = {.tv_sec = 2};

	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	inet_pton(AF_INET, address, &to.sin_addr);
	return connect(fd, (struct sockaddr *)&to, sizeof(to));
}
static int a_metadata(void) { return connect_to("169.254.169.254", 80); }
static int a_internet(void) { return connect_to("1.1.1.1", 443); }
static int a_udp_out(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53)};

	inet_pton(AF_INET, "8.8.8.8", &to.sin_addr);
	return (int)sendto(socket(AF_INET, SOCK_DGRAM, 0), "x", 1, 0, (struct sockaddr *)&to, sizeof(to));
}
static int a_inet6_out(void)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(80)};

	inet_pton(AF_INET6, "2606:4700:4700::1111", &to.sin6_addr);
	return connect(socket(AF_INET6, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof(to));
}

/* -- PID 1 ---------------------------------------------------------------------------------------- */

static int a_1_kill(void) { return kill(1, SIGKILL); }
static int a_1_stop(void) { return kill(1, SIGSTOP); }
static int a_1_term(void) { return kill(1, SIGTERM); }
static int a_1_tgkill(void) { return CALL(SYS_tgkill, 1, 1, SIGSEGV); }
static int a_1_sigqueue(void)
{
	siginfo_t info = {.si_code = SI_QUEUE};

	return CALL(SYS_rt_sigqueueinfo, 1, SIGTERM, &info);
}
static int a_1_pidfd_signal(void) { return CALL(SYS_pidfd_send_signal, CALL(SYS_pidfd_open, 1, 0), SIGKILL, NULL, 0); }
static int a_1_pidfd_getfd(void) { return CALL(SYS_pidfd_getfd, CALL(SYS_pidfd_open, 1, 0), 3, 0); }
static int a_1_seize(void) { return (int)ptrace(PTRACE_SEIZE, 1, 0, 0); }
static int a_1_readv(void)
{
	struct iovec there = {(void *)0x400000, 1};

	return CALL(SYS_process_vm_readv, 1, &mine, 1, &there, 1, 0);
}
static int a_1_writev(void)
{
	struct iovec there = {(void *)0x400000, 1};
	int r = CALL(SYS_process_vm_writev, 1, &mine, 1, &there, 1, 0);

	return r < 0 && errno == EFAULT ? 0 : r; /* read-only there, but it was let in */
}
static int a_1_mem(void) { return open("/proc/1/mem", O_RDWR); }
static int a_1_environ(void) { return read_some("/proc/1/environ"); }
static int a_1_maps(void) { return read_some("/proc/1/maps"); }
static int a_1_stack(void) { return read_some("/proc/1/stack"); }
static int a_1_syscall(void) { return read_some("/proc/1/syscall"); }
static int a_1_auxv(void) { return read_some("/proc/1/auxv"); }
static int a_1_pagemap(void) { return read_some("/proc/1/pagemap"); }
static int a_1_io(void) { return read_some("/proc/1/io"); }
static int link_of(const char *path)
{
	char text[64];

	return (int)readlink(path, text, sizeof(text));
}
static int a_1_fd(void) { return link_of("/proc/1/fd/3"); }
static int a_1_fdinfo(void) { return read_some("/proc/1/fdinfo/3"); }
static int a_1_cwd(void) { return open("/proc/1/cwd", O_RDONLY); }
static int a_1_root(void) { return open("/proc/1/root/etc", O_RDONLY); }
static int a_1_exe(void) { return open("/proc/1/exe", O_RDONLY); }
static int a_1_ns(void) { return open("/proc/1/ns/user", O_RDONLY); }
static int a_1_clear_refs(void) { return write_open("/proc/1/clear_refs"); }
static int a_1_oom(void)
{
	int fd = open("/proc/1/oom_score_adj", O_WRONLY);

	return fd < 0 ? -1 : (int)write(fd, "1000", 4);
}
static int a_1_prlimit(void)
{
	struct rlimit limit;

	return CALL(SYS_prlimit64, 1, RLIMIT_NOFILE, NULL, &limit) ||
	       CALL(SYS_prlimit64, 1, RLIMIT_NOFILE, &limit, NULL) ? -1 : 0;
}
static int a_1_affinity(void)
{
	unsigned long mask = 1;

	return CALL(SYS_sched_setaffinity, 1, sizeof(mask), &mask);
}
static int a_1_nice(void) { return setpriority(PRIO_PROCESS, 1, 19); }
static int a_1_ioprio(void) { return CALL(SYS_ioprio_set, 1, 1, 3 << 13); }
static int a_1_scheduler(void)
{
	struct sched_param p = {0};

	return sched_setscheduler(1, SCHED_IDLE, &p);
}
static int a_1_migrate(void)
{
	unsigned long from = 1, to = 1;

	return CALL(SYS_migrate_pages, 1, 8, &from, &to);
}
static int a_1_move_pages(void)
{
	void *page = (void *)0x400000;
	int status;

	return CALL(SYS_move_pages, 1, 1, &page, NULL, &status, 0);
}
static int a_1_madvise(void)
{
	struct iovec there = {(void *)0x400000, 4096};

	return CALL(SYS_process_madvise, CALL(SYS_pidfd_open, 1, 0), &there, 1, 20 /* COLD */, 0);
}
static int a_1_kcmp(void) { return CALL(SYS_kcmp, 1, getpid(), KCMP_VM, 0, 0); }
static int a_1_robust(void)
{
	void *head;
	size_t size;

	return CALL(SYS_get_robust_list, 1, &head, &size);
}

#define A(name) {#name, a_##name}
static const struct attack calls[] = {
	A(mount), A(mount_proc), A(bind), A(remount), A(umount_mask), A(umount_lazy), A(move), A(pivot),
	A(open_tree), A(open_tree_attr), A(move_mount), A(fsopen), A(fspick), A(mount_setattr),
	A(unshare_user), A(unshare_mnt), A(unshare_net), A(unshare_pid), A(unshare_ipc), A(unshare_uts),
	A(unshare_cgroup), A(unshare_time), A(user_then_mount), A(clone_user), A(clone_all), A(clone3), A(clone3_guess),
	A(setns_mnt), A(setns_net), A(setns_user), A(setns_pidfd), A(hostname), A(domainname),
	A(keyctl), A(add_key), A(request_key), A(bpf), A(perf), A(userfaultfd), A(io_uring),
	A(io_uring_enter), A(fanotify), A(open_by_handle), A(syslog), A(dmesg), A(kexec), A(kexec_file),
	A(init_module), A(finit_module), A(delete_module), A(iopl), A(ioperm), A(quotactl), A(swapon),
	A(swapoff), A(reboot), A(acct), A(settimeofday), A(clock_settime), A(clock_adjtime), A(int80),
	A(x32), A(unknown_call), A(personality_mem), A(caps_raise), A(bounding), A(nofile), A(nice),
	A(realtime), A(oom_score),
};
static const struct attack files[] = {
	A(mknod_mem), A(mknod_kmsg), A(mknod_disk), A(mknod_loop), A(mknod_loop_control), A(mknod_fuse),
	A(mknod_null), A(mknod_whiteout), A(xattr_trusted), A(sys_hostname),
	A(sys_core), A(sys_drop), A(sys_forward), A(sys_userns), A(sys_modprobe), A(sysrq), A(kallsyms),
	A(kcore), A(keys), A(timer_list), A(kpageflags), A(kpagecgroup), A(kmsg), A(slabinfo),
	A(vmallocinfo), A(sysfs),
};
static const struct attack network[] = {
	A(raw), A(packet), A(vsock), A(alg), A(bluetooth), A(lo_down), A(tun), A(metadata), A(internet),
	A(udp_out), A(inet6_out),
};
static const struct attack agent[] = {
	A(1_stop), A(1_tgkill), A(1_sigqueue), A(1_pidfd_getfd), A(1_readv), A(1_writev), A(1_mem),
	A(1_environ), A(1_maps), A(1_stack), A(1_syscall), A(1_auxv), A(1_pagemap), A(1_io), A(1_fd),
	A(1_fdinfo), A(1_cwd), A(1_root), A(1_exe), A(1_ns), A(1_clear_refs), A(1_oom), A(1_prlimit),
	A(1_affinity), A(1_nice), A(1_ioprio), A(1_scheduler), A(1_migrate), A(1_move_pages),
	A(1_madvise), A(1_kcmp), A(1_robust), A(1_seize), A(1_term),
	A(1_kill), A(1_pidfd_signal),
};

/* -- longer ones ---------------------------------------------------------------------------------- */

/* Out of a chroot by keeping a directory outside of the new one: works for chroots, and must end at the
 * sandbox's own root. Prints what the farthest directory holds. */
static int chroot_escape(void)
{
	int outside = open("/", O_RDONLY | O_DIRECTORY);
	char mark[32] = "nothing";
	int fd;

	mkdir("/root/jail", 0700);
	if (chroot("/root/jail") || fchdir(outside))
		return 1;
	for (int i = 0; i < 64; i++)
		if (chdir(".."))
			return 1;
	fd = open("root/mark", O_RDONLY);
	if (fd >= 0)
		mark[read(fd, mark, sizeof(mark) - 1)] = 0;
	printf("%s\n", mark);
	fflush(stdout);
	if (chroot("."))
		return 1;
	execl("/bin/ls", "ls", "-1A", "/", NULL);
	return 1;
}

static struct sockaddr_un abstract(const char *name, socklen_t *length)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	strcpy(a.sun_path + 1, name);
	*length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
	return a;
}

static int abstract_listen(const char *name)
{
	socklen_t length;
	struct sockaddr_un a = abstract(name, &length);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (bind(fd, (struct sockaddr *)&a, length) || listen(fd, 1))
		return 1;
	puts("listening");
	fflush(stdout);
	return accept(fd, NULL, NULL) < 0;
}

static int abstract_connect(const char *name)
{
	socklen_t length;
	struct sockaddr_un a = abstract(name, &length);

	report("abstract", connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&a, length));
	return 0;
}

/* At the moment of credential change: between the fork of a command's child and its exec. What is read
 * and written lies where only the agent's image has memory; the command's own image lies elsewhere, and
 * the command opens nothing, so every success is one against the agent's child. */
static uint64_t seen, reads, writes, mems, fds, getfds, seized;

static bool peek(pid_t pid, uintptr_t at)
{
	int status;
	long word;

	if (ptrace(PTRACE_SEIZE, pid, 0, 0))
		return false;
	ptrace(PTRACE_INTERRUPT, pid, 0, 0);
	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		return false;
	errno = 0;
	word = ptrace(PTRACE_PEEKDATA, pid, at, 0);
	ptrace(PTRACE_DETACH, pid, 0, 0);
	return word != -1 || !errno;
}

static char agent_comm[64]; /* a child has its parent's name until it executes something */

static void strike(pid_t pid, uintptr_t at, bool trace)
{
	char text[64], link[64], was = 0;
	struct iovec here = {&was, 1}, there = {(void *)at, 1};
	int fd, pidfd;

	snprintf(text, sizeof(text), "/proc/%d/comm", pid);
	fd = open(text, O_RDONLY);
	if (fd < 0)
		return;
	memset(text, 0, sizeof(text));
	if (read(fd, text, sizeof(text) - 1) > 0 && !strcmp(text, agent_comm))
		seen++;
	close(fd);
	reads += process_vm_readv(pid, &here, 1, &there, 1, 0) == 1;
	writes += process_vm_writev(pid, &here, 1, &there, 1, 0) == 1;
	snprintf(text, sizeof(text), "/proc/%d/mem", pid);
	fd = open(text, O_RDWR);
	if (fd >= 0) {
		mems += pread(fd, &was, 1, (off_t)at) == 1;
		close(fd);
	}
	snprintf(text, sizeof(text), "/proc/%d/fd/3", pid);
	fds += readlink(text, link, sizeof(link)) > 0;
	pidfd = CALL(SYS_pidfd_open, pid, 0);
	if (pidfd >= 0) {
		fd = CALL(SYS_pidfd_getfd, pidfd, 3, 0);
		getfds += fd >= 0;
		close(fd);
		close(pidfd);
	}
	if (trace)
		seized += peek(pid, at);
}

static int race(uintptr_t at, double seconds)
{
	struct iovec there = {(void *)at, 1};
	struct timespec begin, now;
	uint64_t rounds = 0;
	pid_t last = getpid();

	if (read(open("/proc/1/comm", O_RDONLY), agent_comm, sizeof(agent_comm) - 1) < 1)
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		bool any = false;

		writes += process_vm_writev(1, &mine, 1, &there, 1, 0) == 1;
		/* Those that are likely to come next are tried before they are there. */
		for (pid_t pid = last; pid < last + 3; pid++) {
			if (pid == getpid() || (kill(pid, 0) && errno == ESRCH))
				continue;
			last = pid;
			any = true;
			strike(pid, at, rounds++ % 8 == 0);
		}
		if (!any) {
			char text[64] = "";
			int fd = open("/proc/loadavg", O_RDONLY);

			if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0)
				last = atoi(strrchr(text, ' '));
			close(fd);
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) < seconds);
	printf("rounds %lu\nseen %lu\nreads %lu\nwrites %lu\nmems %lu\nfds %lu\ngetfds %lu\nseized %lu\n", rounds,
	       seen, reads, writes, mems, fds, getfds, seized);
	return 0;
}

/* Stops children of the agent before their exec: what a signal can do there. */
static int stop(double seconds)
{
	struct timespec begin, now;
	unsigned stopped = 0;
	pid_t last = getpid();

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		for (pid_t pid = last + 1; pid < last + 4; pid++)
			if (!kill(pid, SIGSTOP)) {
				stopped++;
				last = pid;
			}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((double)(now.tv_sec - begin.tv_sec) < seconds);
	printf("stopped %u\n", stopped);
	return 0;
}

static _Noreturn void again_and_again(void) /* swaps a directory and a link for as long as it lives */
{
	for (;;)
		syscall(SYS_renameat2, AT_FDCWD, "/srv/race/a", AT_FDCWD, "/srv/race/b", 2 /* EXCHANGE */);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	umask(0);
	mkdir("/mnt", 0755);
	if (!strcmp(what, "calls"))
		try_all(calls, COUNT(calls));
	else if (!strcmp(what, "files"))
		try_all(files, COUNT(files));
	else if (!strcmp(what, "network"))
		try_all(network, COUNT(network));
	else if (!strcmp(what, "agent"))
		try_all(agent, COUNT(agent));
	else if (!strcmp(what, "tiocsti"))
		report("tiocsti", a_tiocsti());
	else if (!strcmp(what, "connect"))
		report("connect", connect_to("127.0.0.1", atoi(argv[2])));
	else if (!strcmp(what, "chroot"))
		return chroot_escape();
	else if (!strcmp(what, "listen"))
		return abstract_listen(argv[2]);
	else if (!strcmp(what, "abstract"))
		return abstract_connect(argv[2]);
	else if (!strcmp(what, "race"))
		return race(strtoul(argv[2], NULL, 0), atof(argv[3]));
	else if (!strcmp(what, "stop"))
		return stop(atof(argv[2]));
	else if (!strcmp(what, "swap"))
		again_and_again();
	else if (!strcmp(what, "crash"))
		abort();
	return 0;
}

/* The steps of one life, in the order of the list at the top of floor.c. */
#define _GNU_SOURCE
#include "life.h"

#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* From the kernel's headers, repeated so that an old copy of them does not matter. */
enum { ATTR_RDONLY = 0x1, ATTR_NOSUID = 0x2, ATTR_NODEV = 0x4, ATTR_NOEXEC = 0x8 };
enum { ATTR_IDMAP = 0x100000 };
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#define INTO_CGROUP 0x200000000ULL

/* The capabilities that a container keeps by default; the other ones leave the bounding set. */
static const uint64_t KEPT_CAPABILITIES = 0xa80425fbULL;

struct mount_change {
    uint64_t set, clear, propagation, userns;
};

struct clone_request {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
};

struct limit {
    int hierarchy;
    const char *file, *value;
};

static const struct limit LIMITS_V1[] = {
    {0, "memory.limit_in_bytes", "268435456"},
    {1, "pids.max", "64"},
    {2, "cpu.cfs_quota_us", "100000"},
};
static const struct limit LIMITS_V2[] = {
    {0, "memory.max", "268435456"},
    {0, "pids.max", "64"},
    {0, "cpu.max", "100000 100000"},
};

/* What one life has made so far; -1 where nothing is. */
struct made {
    int group[3];
    int group_count;
    char upper_path[96];
    int upper;
    int userns;
    int tasks[3];
};

static int failed(struct failure *why, const char *step)
{
    why->error = errno;
    snprintf(why->step, sizeof why->step, "%s", step);
    return -1;
}

/* ---- Before the clone: groups, upper, user namespace ------------------------------------- */

static int make_groups(const struct host *host, const char *name, struct made *made)
{
    const struct groups *groups = &host->groups;
    const struct limit *limits = groups->v2 ? LIMITS_V2 : LIMITS_V1;
    int count = groups->v2 ? 1 : 3;
    for (int i = 0; i < count; i++) {
        if (mkdirat(groups->dir[i], name, 0700) < 0)
            return -1;
        made->group_count = i + 1;
        made->group[i] = openat(groups->dir[i], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (made->group[i] < 0)
            return -1;
    }
    for (int i = 0; i < 3; i++)
        if (write_at(made->group[limits[i].hierarchy], limits[i].file, limits[i].value) < 0)
            return -1;
    for (int i = 0; i < count && !groups->v2; i++) {
        made->tasks[i] = openat(made->group[i], "tasks", O_WRONLY | O_CLOEXEC);
        if (made->tasks[i] < 0)
            return -1;
    }
    return 0;
}

static int make_upper(const struct host *host, const char *name, struct made *made)
{
    if (mkdirat(host->scratch, name, 0700) < 0)
        return -1;
    snprintf(made->upper_path, sizeof made->upper_path, "%s/%s", host->scratch_path, name);
    made->upper = openat(host->scratch, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (made->upper < 0 || mkdirat(made->upper, "u", 0755) < 0 ||
        mkdirat(made->upper, "w", 0700) < 0)
        return -1;
    return fchownat(made->upper, "u", IDS_FIRST, IDS_FIRST, 0);
}

static int leave(void *unused)
{
    (void)unused;
    _exit(0);
}

/* A user namespace owned by the host. It is the one of a process that ends at once: a zombie's
 * /proc files stay until it is reaped, so nobody has to wait for anybody. */
static int make_userns(const struct host *host, struct made *made)
{
    static char stack[16384] __attribute__((aligned(16)));
    char path[48], map[48];
    int result = -1;
    pid_t pid = clone(leave, stack + sizeof stack,
                      CLONE_NEWUSER | CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    if (pid < 0)
        return -1;
    snprintf(map, sizeof map, "0 %d %d", IDS_FIRST, IDS_COUNT);
    snprintf(path, sizeof path, "%d/uid_map", pid);
    if (write_at(host->proc, path, map) == 0) {
        snprintf(path, sizeof path, "%d/gid_map", pid);
        result = write_at(host->proc, path, map);
    }
    if (result == 0) {
        snprintf(path, sizeof path, "%d/ns/user", pid);
        made->userns = openat(host->proc, path, O_RDONLY | O_CLOEXEC);
        result = made->userns < 0 ? -1 : 0;
    }
    int error = errno;
    waitpid(pid, NULL, 0);
    errno = error;
    return result;
}

/* ---- In the child, which is process 1 of its namespaces and still root of the host ---------- */

/* The idmapped clone of the layer below a fresh, volatile overlay. Returns a detached mount. The
 * upper goes by path: a descriptor of it belongs to the worker's mount namespace, not to ours. */
static int mount_overlay(const struct host *host, const struct made *made)
{
    struct mount_change idmap = {.set = ATTR_IDMAP | ATTR_RDONLY, .userns = (uint64_t)made->userns};
    int lower = tree_clone(AT_FDCWD, host->layer_path);
    if (lower < 0 || syscall(SYS_mount_setattr, lower, "", AT_EMPTY_PATH, &idmap, sizeof idmap) < 0)
        return -1;
    int fs = fs_open("overlay");
    if (fs < 0 || chdir(made->upper_path) < 0 || fs_set_fd(fs, "lowerdir+", lower) < 0 ||
        fs_set(fs, "upperdir", "u") < 0 || fs_set(fs, "workdir", "w") < 0 ||
        fs_set(fs, "redirect_dir", "off") < 0 || fs_set(fs, "metacopy", "off") < 0 ||
        fs_set(fs, "index", "off") < 0 || fs_set(fs, "xino", "off") < 0 ||
        fs_flag(fs, "volatile") < 0)
        return -1;
    return fs_mount(fs, 0);
}

static int mount_proc(void)
{
    int fs = fs_open("proc");
    return fs < 0 ? -1 : fs_mount(fs, ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC);
}

/* One tmpfs for /dev: six nodes, four links and shm, owned by root of the sandbox. */
static int mount_dev(void)
{
    static const struct { const char *name; int minor, major; } NODES[] = {
        {"null", 3, 1}, {"zero", 5, 1}, {"full", 7, 1},
        {"random", 8, 1}, {"urandom", 9, 1}, {"tty", 0, 5},
    };
    static const char *const LINKS[][2] = {
        {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"},
        {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"},
    };
    int fs = fs_open("tmpfs");
    if (fs < 0 || fs_set(fs, "mode", "755") < 0 || fs_set(fs, "uid", "100000") < 0 ||
        fs_set(fs, "gid", "100000") < 0 || fs_set(fs, "size", "1m") < 0)
        return -1;
    int dev = fs_mount(fs, ATTR_NOSUID);
    if (dev < 0)
        return -1;
    umask(0);
    for (size_t i = 0; i < sizeof NODES / sizeof NODES[0]; i++) {
        dev_t number = makedev((unsigned)NODES[i].major, (unsigned)NODES[i].minor);
        if (mknodat(dev, NODES[i].name, S_IFCHR | 0666, number) < 0 ||
            fchownat(dev, NODES[i].name, IDS_FIRST, IDS_FIRST, 0) < 0)
            return -1;
    }
    for (size_t i = 0; i < sizeof LINKS / sizeof LINKS[0]; i++)
        if (symlinkat(LINKS[i][0], dev, LINKS[i][1]) < 0)
            return -1;
    if (mkdirat(dev, "shm", 01777) < 0 || fchownat(dev, "shm", IDS_FIRST, IDS_FIRST, 0) < 0)
        return -1;
    umask(022);
    return dev;
}

static int enter_root(int overlay, int proc, int dev)
{
    if (mount_move(overlay, AT_FDCWD, "/") < 0 || fchdir(overlay) < 0 || chroot(".") < 0)
        return -1;
    return mount_move(proc, overlay, "proc") < 0 ? -1 : mount_move(dev, overlay, "dev");
}

/* Entering a user namespace refills the bounding set, so it is emptied after that. Becoming id 0
 * of the namespace and the exec then cut the permitted set down to it. */
static int drop_capabilities(int userns)
{
    if (setns(userns, CLONE_NEWUSER) < 0)
        return -1;
    for (unsigned long cap = 0; cap < 64; cap++) {
        if (KEPT_CAPABILITIES >> cap & 1)
            continue;
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
            if (errno == EINVAL)
                break; /* past the last capability of this kernel */
            return -1;
        }
    }
    return setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 ? -1 : setresuid(0, 0, 0);
}

static void child(const struct host *host, const struct made *made, struct failure *why)
{
    static char *const ENVIRONMENT[] = {NULL};
    char *const arguments[] = {(char *)(uintptr_t)host->exec, NULL};
    const char *step = "child: enter the limit groups";
    for (int i = 0; i < 3; i++)
        if (made->tasks[i] >= 0 && write(made->tasks[i], "0", 1) != 1)
            goto out;
    step = "child: idmapped layer and overlay";
    int overlay = mount_overlay(host, made);
    if (overlay < 0)
        goto out;
    step = "child: proc";
    int proc = mount_proc();
    if (proc < 0)
        goto out;
    step = "child: tmpfs with devices";
    int dev = mount_dev();
    if (dev < 0)
        goto out;
    step = "child: move_mount and chroot";
    if (enter_root(overlay, proc, dev) < 0)
        goto out;
    step = "child: user namespace and capabilities";
    if (drop_capabilities(made->userns) < 0)
        goto out;
    step = "child: exec";
    execve(host->exec, arguments, ENVIRONMENT);
out:
    failed(why, step);
    _exit(125);
}

/* ---- After the child: removal ---------------------------------------------------------------- */

/* A group may stay busy for an instant after its last process was reaped. */
static int remove_group(int dir, const char *name)
{
    for (int tries = 0; tries < 2000; tries++) {
        if (unlinkat(dir, name, AT_REMOVEDIR) == 0)
            return 0;
        if (errno != EBUSY)
            return -1;
        usleep(50);
    }
    return -1;
}

/* The no-op writes nothing, so these are all the entries there can be; a surprise fails. */
static int remove_upper(const struct host *host, const char *name, int upper)
{
    static const struct { const char *path; int flags; } OURS[] = {
        {"w/work/incompat/volatile/dirty", 0},
        {"w/work/incompat/volatile", AT_REMOVEDIR},
        {"w/work/incompat", AT_REMOVEDIR},
        {"w/work", AT_REMOVEDIR},
        {"w", AT_REMOVEDIR},
        {"u", AT_REMOVEDIR},
    };
    for (size_t i = 0; i < sizeof OURS / sizeof OURS[0]; i++)
        if (unlinkat(upper, OURS[i].path, OURS[i].flags) < 0 && errno != ENOENT)
            return -1;
    return unlinkat(host->scratch, name, AT_REMOVEDIR);
}

static int clean_up(const struct host *host, const char *name, struct made *made)
{
    int result = 0;
    for (int i = 0; i < 3; i++) {
        if (made->tasks[i] >= 0)
            close(made->tasks[i]);
        if (made->group[i] >= 0)
            close(made->group[i]);
    }
    if (made->userns >= 0)
        close(made->userns);
    for (int i = 0; i < made->group_count; i++)
        if (remove_group(host->groups.dir[i], name) < 0)
            result = -1;
    if (made->upper >= 0) {
        if (remove_upper(host, name, made->upper) < 0)
            result = -1;
        close(made->upper);
    }
    return result;
}

static int clone_and_wait(const struct host *host, struct made *made, struct failure *why)
{
    struct clone_request request = {
        .flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET |
                 CLONE_NEWCGROUP,
        .exit_signal = SIGCHLD,
    };
    int status;
    if (host->groups.v2) {
        request.flags |= INTO_CGROUP;
        request.cgroup = (uint64_t)made->group[0];
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &request, sizeof request);
    if (pid == 0)
        child(host, made, why);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return failed(why, "clone3 and wait");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (!why->step[0]) {
        errno = 0;
        failed(why, "the no-op's exit status");
    }
    return -1;
}

int life(const struct host *host, const char *name, struct failure *why)
{
    struct made made = {{-1, -1, -1}, 0, "", -1, -1, {-1, -1, -1}};
    int result = -1;
    why->step[0] = 0;
    if (make_groups(host, name, &made) < 0)
        failed(why, "limit groups");
    else if (make_upper(host, name, &made) < 0)
        failed(why, "upper and work directories");
    else if (make_userns(host, &made) < 0)
        failed(why, "user namespace");
    else
        result = clone_and_wait(host, &made, why);
    if (clean_up(host, name, &made) < 0 && result == 0)
        result = failed(why, "remove groups and upper");
    return result;
}

/* The independent floor of the container benchmarks: what the kernel alone charges for one life.
 *
 * It shares no code with the product. Every life starts from nothing and leaves nothing: there is
 * no pool of namespaces, groups or directories, and nothing of one life is used by the next. Only
 * what belongs to the machine and not to a life is kept: the superblock of the read-only layer,
 * the scratch directory, and the near-empty mount namespace in which the workers run (a clone of
 * the mount namespace copies every mount of the parent's).
 *
 * The kernel steps of one life, in order; the clock runs from before 1 until after 13:
 *
 *   1. three limit groups: memory 256 MiB, pids 64, cpu 1 (cgroup v1: a directory in each of
 *      three hierarchies; v2: one directory with the three controllers)
 *   2. a directory with upper (owned by the sandbox's root) and work in the scratch directory
 *   3. a user namespace with uid and gid maps of 65,536 ids, owned by the host: a process cloned
 *      into it ends at once, and its maps are written before it is reaped
 *   4. clone3 with new mount, pid, ipc, uts, net and cgroup namespaces, owned by the host (a
 *      sandbox that owns them may mount; ours must not); v2: into the group of step 1
 *   5. v1: the child enters the three groups
 *   6. open_tree clone of the layer's mount, mount_setattr with the id map
 *   7. overlay by fsopen, fsconfig, fsmount: that layer, upper, work; volatile; redirect_dir,
 *      metacopy, index and xino off
 *   8. proc of the new pid namespace
 *   9. one tmpfs with six device nodes, four links and shm
 *  10. move_mount of the overlay over /, chroot, move_mount of proc and dev into it
 *  11. setns into the user namespace, drop of the bounding set to the container default (14
 *      capabilities stay), setgroups, setresgid, setresuid
 *  12. execve of a static no-op from the overlay; it exits; wait; reap (pid, mount, ipc, uts and
 *      net namespaces and the superblocks go with it)
 *  13. removal of the groups and of the upper
 *
 * Left out, although a product has them: a seccomp filter, a hostname, loopback, masks over /proc,
 * devpts and mqueue, a process 1 other than the command, any message between processes. The floor
 * is therefore lower than what a safe sandbox can reach without a pool.
 *
 * Usage: floor --layer IMAGE_OR_DIR --scratch DIR [--exec PATH] [--workers N] [--seconds S]
 * Prints one line of JSON. Exit status 0 if no life failed, 1 if one did, 2 for a setup error.
 */
#define _GNU_SOURCE
#include "life.h"

#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 64, SAMPLES_MAX = 1 << 20, FAILURES_MAX = 10 };

struct options {
    const char *layer, *scratch, *exec;
    int workers;
    double seconds;
};

/* Written by one worker, read by the main process after the worker has ended. */
struct worker {
    uint32_t lives, failures;
    struct failure failure, first;
    uint32_t microseconds[SAMPLES_MAX];
};

/* The hierarchies in which groups are made, and the parent group in each. */
struct hierarchies {
    int root[3];
    struct groups groups;
    char enabled[64]; /* v2: controllers that this program switched on, to be switched off */
};

/* In shared memory: a signal to any of the processes ends the run after the lives under way. */
static volatile sig_atomic_t *stopped;
static char own_name[32];

static void on_signal(int number)
{
    (void)number;
    *stopped = 1;
}

static void die(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void *share(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        die("shared memory");
    return memory;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- Limit groups ---------------------------------------------------------------------------- */

static int has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || strchr(", ", at[-1])) && (!at[length] || strchr(", \n", at[length])))
            return 1;
    return 0;
}

/* The directory of the first cgroup mount with this controller; v2 if controller is NULL. */
static int open_hierarchy(const char *controller)
{
    FILE *table = setmntent("/proc/self/mounts", "r");
    struct mntent *entry;
    int fd = -1;
    while (table && fd < 0 && (entry = getmntent(table))) {
        int fits = controller ? !strcmp(entry->mnt_type, "cgroup") &&
                                    has_word(entry->mnt_opts, controller)
                              : !strcmp(entry->mnt_type, "cgroup2");
        if (fits)
            fd = open(entry->mnt_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (table)
        endmntent(table);
    return fd;
}

/* v2: the controllers must be on for the children of the root and of our parent group. */
static void enable_v2(struct hierarchies *all)
{
    static const char *const NAMES[] = {"memory", "pids", "cpu"};
    char on[256] = "", change[16];
    int fd = openat(all->root[0], "cgroup.subtree_control", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, on, sizeof on - 1) < 0)
        die("cgroup.subtree_control");
    close(fd);
    for (int i = 0; i < 3; i++) {
        snprintf(change, sizeof change, "+%s", NAMES[i]);
        if (!has_word(on, NAMES[i])) {
            if (write_at(all->root[0], "cgroup.subtree_control", change) < 0)
                die(change);
            size_t length = strlen(all->enabled);
            snprintf(all->enabled + length, sizeof all->enabled - length, "-%s ", NAMES[i]);
        }
        if (write_at(all->groups.dir[0], "cgroup.subtree_control", change) < 0)
            die(change);
    }
}

static void open_groups(struct hierarchies *all)
{
    static const char *const NAMES[] = {"memory", "pids", "cpu"};
    int count = 3;
    for (int i = 0; i < 3; i++)
        all->root[i] = open_hierarchy(NAMES[i]);
    if (all->root[0] < 0) {
        all->groups.v2 = 1;
        count = 1;
        all->root[0] = open_hierarchy(NULL);
    }
    for (int i = 0; i < count; i++) {
        if (all->root[i] < 0 || mkdirat(all->root[i], own_name, 0700) < 0)
            die("parent group");
        all->groups.dir[i] = openat(all->root[i], own_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (all->groups.dir[i] < 0)
            die("parent group");
    }
    if (all->groups.v2)
        enable_v2(all);
}

static int remove_groups(const struct hierarchies *all)
{
    int result = 0;
    for (int i = 0; i < (all->groups.v2 ? 1 : 3); i++)
        if (unlinkat(all->root[i], own_name, AT_REMOVEDIR) < 0)
            result = -1;
    if (all->enabled[0] && write_at(all->root[0], "cgroup.subtree_control", all->enabled) < 0)
        result = -1;
    return result;
}

/* ---- The layer and the near-empty mount namespace -------------------------------------------- */

static int open_layer(const char *path)
{
    struct stat status;
    if (stat(path, &status) < 0)
        die(path);
    if (S_ISDIR(status.st_mode)) {
        int tree = tree_clone(AT_FDCWD, path);
        if (tree < 0)
            die("open_tree of the layer");
        return tree;
    }
    int fs = fs_open("erofs");
    if (fs < 0 || fs_set(fs, "source", path) < 0 || fs_flag(fs, "directio") < 0)
        die("erofs");
    int mounted = fs_mount(fs, 1 /* read only */);
    if (mounted < 0)
        die("mount of the layer");
    return mounted;
}

/* Leaves the host's mount namespace for one with a tmpfs, and in it scratch and the layer. The
 * layer is attached there because kernels before 6.15 do not clone a detached mount. */
static int empty_namespace(const char *scratch, int layer)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        die("unshare");
    int tree = tree_clone(AT_FDCWD, scratch);
    if (tree < 0 || mount("floor", scratch, "tmpfs", 0, "size=1m,mode=755") < 0 ||
        chdir(scratch) < 0 || mkdir("scratch", 0700) < 0 || mkdir("layer", 0700) < 0 ||
        mount_move(tree, AT_FDCWD, "scratch") < 0 || mount_move(layer, AT_FDCWD, "layer") < 0)
        die("near-empty root");
    close(tree);
    close(layer);
    if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        die("pivot_root");
    int fd = open("/scratch", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || mkdirat(fd, own_name, 0700) < 0)
        die("scratch directory");
    return fd;
}

/* ---- Workers --------------------------------------------------------------------------------- */

static void work(const struct host *host, struct worker *worker, int number, double deadline)
{
    char name[32];
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (unsigned i = 0; !*stopped && now() < deadline && worker->lives < SAMPLES_MAX; i++) {
        snprintf(name, sizeof name, "%d-%u", number, i);
        double start = now();
        if (life(host, name, &worker->failure) == 0) {
            worker->microseconds[worker->lives++] = (uint32_t)((now() - start) * 1e6);
        } else if (worker->failures++ == 0) {
            worker->first = worker->failure;
        } else if (worker->failures >= FAILURES_MAX) {
            break;
        }
    }
    _exit(0);
}

static int ascending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static unsigned percentile(const uint32_t *sorted, size_t count, double share)
{
    return count ? sorted[(size_t)(share * (double)(count - 1) + 0.5)] : 0;
}

/* Prints the line of JSON; returns the number of lives that failed. */
static unsigned report(const struct worker *workers, const struct options *options, int v2,
                       double seconds)
{
    size_t lives = 0, at = 0;
    unsigned failures = 0;
    const struct failure *first = NULL;
    for (int i = 0; i < options->workers; i++) {
        lives += workers[i].lives;
        failures += workers[i].failures;
        if (!first && workers[i].failures)
            first = &workers[i].first;
    }
    uint32_t *all = calloc(lives + 1, sizeof *all);
    if (!all)
        die("memory");
    for (int i = 0; i < options->workers; at += workers[i++].lives)
        memcpy(all + at, workers[i].microseconds, workers[i].lives * sizeof *all);
    qsort(all, lives, sizeof *all, ascending);
    printf("{\"lives\": %zu, \"seconds\": %.3f, \"lives_per_second\": %.1f, \"workers\": %d, "
           "\"p50_us\": %u, \"p90_us\": %u, \"p99_us\": %u, \"max_us\": %u, \"cgroup\": \"%s\", "
           "\"failures\": %u",
           lives, seconds, (double)lives / seconds, options->workers,
           percentile(all, lives, 0.5), percentile(all, lives, 0.9), percentile(all, lives, 0.99),
           percentile(all, lives, 1.0), v2 ? "v2" : "v1", failures);
    if (first)
        printf(", \"first_failure\": \"%s: %s\"", first->step, strerror(first->error));
    printf("}\n");
    free(all);
    return failures;
}

static void parse(struct options *options, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--layer"))
            options->layer = argv[i + 1];
        else if (!strcmp(argv[i], "--scratch"))
            options->scratch = argv[i + 1];
        else if (!strcmp(argv[i], "--exec"))
            options->exec = argv[i + 1];
        else if (!strcmp(argv[i], "--workers"))
            options->workers = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds"))
            options->seconds = atof(argv[i + 1]);
        else
            argc = 0;
    }
    if (argc % 2 == 0 || !options->layer || !options->scratch || options->workers < 1 ||
        options->workers > WORKERS_MAX || options->seconds <= 0) {
        fprintf(stderr, "usage: floor --layer IMAGE_OR_DIR --scratch DIR [--exec PATH] "
                        "[--workers N] [--seconds S]\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options options = {.exec = "/noop", .workers = 2, .seconds = 10};
    struct hierarchies all = {.root = {-1, -1, -1}, .groups = {0, {-1, -1, -1}}};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    parse(&options, argc, argv);
    syscall(SYS_close_range, 3, ~0U, 0); /* what the caller left open is not for sandboxes */
    stopped = share(sizeof *stopped);
    struct worker *workers = share((size_t)options.workers * sizeof *workers);
    snprintf(own_name, sizeof own_name, "floor-%d", (int)getpid());
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int layer = open_layer(options.layer);
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    open_groups(&all);
    int scratch = empty_namespace(options.scratch, layer);
    char path[64];
    snprintf(path, sizeof path, "/scratch/%s", own_name);
    struct host host = {.groups = all.groups, .layer_path = "/layer", .proc = proc, .exec = options.exec,
                        .scratch_path = path,
                        .scratch = openat(scratch, own_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    double start = now();
    for (int i = 0; i < options.workers; i++) {
        pid_t pid = fork();
        if (pid == 0)
            work(&host, &workers[i], i, start + options.seconds);
        if (pid < 0)
            die("fork");
    }
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    unsigned failures = report(workers, &options, all.groups.v2, now() - start);
    int left = remove_groups(&all);
    if (unlinkat(scratch, own_name, AT_REMOVEDIR) < 0 || left < 0) {
        fprintf(stderr, "floor: something was left behind: %s\n", strerror(errno));
        return 1;
    }
    return failures ? 1 : 0;
}

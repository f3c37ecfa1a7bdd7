/* The floor of an idle sandbox's memory: what the kernel charges for the barest one.
 *
 * Each of COUNT is a process of this static program, waiting, in a pid namespace and a network
 * namespace of its own and in a memory group of its own (cgroup v1: a directory of the memory
 * hierarchy; v2: a directory with that controller). No mounts, no user, ipc, uts or cgroup
 * namespace, no pids or cpu group, no socket, no descriptors. It shares no code with the product.
 *
 * Usage: idle COUNT
 * Prints {"made": COUNT} once all are there, waits for the end of its standard input, removes
 * everything. Exit status 0, or 2 for an error, after which nothing is left either.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int parent = -1, root = -1, v2, enabled;
static char own_name[32];

static int write_text(int dir, const char *path, const char *text)
{
    int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t done = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return done == (ssize_t)strlen(text) ? 0 : -1;
}

/* The mount of the memory hierarchy, or of cgroup2 where there is none. */
static int open_root(void)
{
    char second[4096] = "";
    FILE *table = setmntent("/proc/self/mounts", "r");
    struct mntent *entry;
    while (table && (entry = getmntent(table))) {
        if (!strcmp(entry->mnt_type, "cgroup") && hasmntopt(entry, "memory"))
            return open(entry->mnt_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (!strcmp(entry->mnt_type, "cgroup2"))
            snprintf(second, sizeof second, "%s", entry->mnt_dir);
    }
    v2 = 1;
    return open(second, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int open_parent(void)
{
    root = open_root();
    if (root < 0 || mkdirat(root, own_name, 0700) < 0)
        return -1;
    parent = openat(root, own_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0 || !v2)
        return parent;
    char on[256] = "";
    int fd = openat(root, "cgroup.subtree_control", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, on, sizeof on - 1) < 0)
        return -1;
    close(fd);
    if (!strstr(on, "memory")) {
        if (write_text(root, "cgroup.subtree_control", "+memory") < 0)
            return -1;
        enabled = 1;
    }
    return write_text(parent, "cgroup.subtree_control", "+memory");
}

/* One bare sandbox; the child has entered its group before this returns. */
static pid_t make(int number)
{
    char name[32], path[64], pid_text[16];
    snprintf(name, sizeof name, "%d", number);
    if (mkdirat(parent, name, 0700) < 0)
        return -1;
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNET | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        syscall(SYS_close_range, 0, ~0U, 0);
        for (;;)
            pause();
    }
    if (pid < 0)
        return -1;
    snprintf(path, sizeof path, "%s/cgroup.procs", name);
    snprintf(pid_text, sizeof pid_text, "%d", (int)pid);
    if (write_text(parent, path, pid_text) < 0) {
        int error = errno;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        errno = error;
        return -1;
    }
    return pid;
}

static int remove_all(const pid_t *pids, int count, int made)
{
    int result = 0;
    char name[32];
    for (int i = 0; i < made; i++)
        kill(pids[i], SIGKILL);
    for (int i = 0; i < made; i++)
        waitpid(pids[i], NULL, 0);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%d", i);
        if (unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
            result = -1;
    }
    if (root >= 0 && unlinkat(root, own_name, AT_REMOVEDIR) < 0)
        result = -1;
    if (enabled && write_text(root, "cgroup.subtree_control", "-memory") < 0)
        result = -1;
    return result;
}

int main(int argc, char **argv)
{
    int count = argc == 2 ? atoi(argv[1]) : 0, made = 0, failed = 0;
    if (count < 1 || count > 100000) {
        fprintf(stderr, "usage: idle COUNT\n");
        return 2;
    }
    signal(SIGTERM, SIG_IGN); /* the end of standard input ends it, also after its reader's death */
    signal(SIGINT, SIG_IGN);
    snprintf(own_name, sizeof own_name, "idle-%d", (int)getpid());
    pid_t *pids = calloc((size_t)count, sizeof *pids);
    if (!pids || open_parent() < 0) {
        perror("idle: parent group");
        failed = 1;
    }
    while (!failed && made < count) {
        pids[made] = make(made);
        if (pids[made] < 0) {
            perror("idle: make");
            failed = 1;
        } else {
            made++;
        }
    }
    if (!failed) {
        char byte;
        printf("{\"made\": %d}\n", made);
        fflush(stdout);
        while (read(0, &byte, 1) > 0 || errno == EINTR)
            errno = 0;
    }
    if (remove_all(pids, count, made) < 0) {
        perror("idle: something was left behind");
        failed = 1;
    }
    free(pids);
    return failed ? 2 : 0;
}

/* cgroup2 groups: one an operation, so that no descendant escapes a signal or a kill. */
#include "init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STALE_MAX = 4096, SPARE_MAX = 4, SEEN_MAX = 8192, ROUNDS = 8, RETRY_MS = 100, NAME_SIZE = 16, PATH_SIZE = 40 };

/* Groups whose leader has ended while daemons live on. */
static struct left {
	uint32_t serial, cell;
} stale[STALE_MAX] OWN_TABLE;
static uint32_t stale_count OWN;
static uint64_t retry_at = NEVER;

/* Empty ones, kept for the next operations: making and removing one costs a fifth of a command. Only
 * this process can put anybody into a group, so an empty one stays empty. An agent that is left alone
 * keeps none: with the files that are open one takes 15 to 20 KiB of the kernel's memory. */
static struct group few[SPARE_MAX] OWN;
static struct group many[SPARE_MAX + CELLS_MAX] OWN_TABLE; /* of a function container: one for each cell, too */
static uint32_t spare_count OWN;

static void group_name(char out[NAME_SIZE], uint32_t serial)
{
	char digits[NAME_SIZE];
	int n = 0;

	do
		digits[n++] = (char)('0' + serial % 10);
	while (serial /= 10);
	*out++ = 'c';
	while (n)
		*out++ = digits[--n];
	*out = 0;
}

static struct group *spares(void)
{
	return config.function ? many : few;
}

static void group_path(char out[PATH_SIZE], uint32_t serial, uint32_t cell)
{
	if (cell != NO_CELL) {
		char digits[NAME_SIZE];

		group_name(digits, cell);
		out = stpcpy(stpcpy(stpcpy(out, "cell-"), digits + 1), "/");
	}
	group_name(out, serial);
}

static bool spare_take(struct group *g, uint32_t cell)
{
	struct group *spare = spares();

	for (uint32_t i = spare_count; i-- > 0;) {
		if (spare[i].cell != cell)
			continue;
		*g = spare[i];
		spare[i] = spare[--spare_count];
		return true;
	}
	return false;
}

int group_make(struct group *g, uint32_t cell)
{
	static uint32_t last;
	char path[PATH_SIZE];

	if (spare_take(g, cell))
		return 0;
	*g = (struct group){.fd = -1, .serial = ++last, .cell = cell};
	group_path(path, g->serial, cell);
	if (mkdirat(FD_GROUP, path, 0755)) {
		if (errno != ENOENT || cell == NO_CELL)
			return -errno;
		return group_make(g, NO_CELL);
	}
	g->fd = openat(FD_GROUP, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return g->fd < 0 ? -errno : 0;
}

uint64_t group_cpu_us(struct group *g)
{
	char text[128], *at;

	if (g->fd < 0 || !group_read(g, GROUP_CPU, text, sizeof(text)))
		return 0;
	at = strstr(text, "usage_usec ");
	return at ? strtoull(at + 11, NULL, 10) : 0;
}

static bool file_write(int dir, const char *name, const char *text)
{
	int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
	bool ok;

	if (fd < 0)
		return false;
	ok = write(fd, text, strlen(text)) > 0;
	close(fd);
	return ok;
}

void group_kill(struct group *g)
{
	g->killed = true;
	/* Kernels before 5.14 have no cgroup.kill: op.c asks again until the group is empty. */
	if (!file_write(g->fd, "cgroup.kill", "1"))
		group_signal(g, SIGKILL);
}

/* To open one costs more than to read it. */
static int file_of(struct group *g, enum group_file file)
{
	static const char *const names[GROUP_FILES] = {"cgroup.events", "cgroup.procs", "cpu.stat", "cgroup.procs"};

	if (g->file[file] <= 0)
		g->file[file] = openat(g->fd, names[file], (file == GROUP_DOOR ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
	return g->file[file];
}

int group_door(struct group *g)
{
	return g->fd < 0 ? -1 : file_of(g, GROUP_DOOR);
}

static void group_close(struct group *g)
{
	for (int i = 0; i < GROUP_FILES; i++)
		if (g->file[i] > 0)
			close(g->file[i]);
	close(g->fd);
}

bool group_read(struct group *g, enum group_file file, char *text, size_t size)
{
	int fd = file_of(g, file);
	ssize_t n = fd < 0 ? -1 : pread(fd, text, size - 1, 0);

	text[n > 0 ? n : 0] = 0;
	return n >= 0;
}

bool group_write(const struct group *g, const char *file, const char *text)
{
	return file_write(g->fd, file, text);
}

bool group_populated(struct group *g)
{
	char text[128];

	return !group_read(g, GROUP_EVENTS, text, sizeof(text)) ||
	       !strstr(text, "populated 0");
}

size_t group_pids(struct group *g, pid_t *out, size_t max)
{
	int fd = file_of(g, GROUP_PROCS);
	char text[1024];
	size_t count = 0;
	off_t at = 0;
	pid_t pid = 0;
	ssize_t n;

	if (fd < 0)
		return 0;
	for (; (n = pread(fd, text, sizeof(text), at)) > 0; at += n) {
		for (ssize_t i = 0; i < n; i++) {
			if (text[i] >= '0' && text[i] <= '9') {
				pid = pid * 10 + (text[i] - '0');
			} else if (pid) {
				if (count < max)
					out[count++] = pid;
				pid = 0;
			}
		}
	}
	return count;
}

bool proc_read(pid_t pid, const char *file, char *text, size_t size)
{
	char path[32] = "/proc/", name[NAME_SIZE];
	ssize_t n = -1;
	int fd;

	group_name(name, (uint32_t)pid);
	strcat(path, name + 1);
	strcat(path, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, size - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

static bool pid_in_group(pid_t pid, const char *name)
{
	char text[1024], *line, *slash;

	if (!proc_read(pid, "/cgroup", text, sizeof(text)))
		return false;
	line = strstr(text, "0::");
	if (!line)
		return false;
	line[strcspn(line, "\n")] = 0;
	slash = strrchr(line, '/');
	return slash && !strcmp(slash + 1, name);
}

/* The descriptor pins the process before its membership is checked: a number that was reused
 * meanwhile is not signalled. */
static void signal_member(pid_t pid, const char *name, int signo)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (fd < 0)
		return;
	if (pid_in_group(pid, name))
		syscall(SYS_pidfd_send_signal, fd, signo, NULL, 0);
	close(fd);
}

bool group_has(const struct group *g, pid_t pid)
{
	char name[NAME_SIZE];

	group_name(name, g->serial);
	return pid_in_group(pid, name);
}

void group_signal_one(const struct group *g, pid_t pid, int signo)
{
	char name[NAME_SIZE];

	group_name(name, g->serial);
	signal_member(pid, name, signo);
}

void group_signal(struct group *g, int signo)
{
	static pid_t seen[SEEN_MAX], pids[SEEN_MAX];
	size_t known = 0;
	char name[NAME_SIZE];

	group_name(name, g->serial);
	for (int round = 0; round < ROUNDS; round++) {
		size_t n = group_pids(g, pids, SEEN_MAX), before = known;

		for (size_t i = 0; i < n && known < SEEN_MAX; i++) {
			size_t k = 0;

			while (k < known && seen[k] != pids[i])
				k++;
			if (k < known)
				continue;
			seen[known++] = pids[i];
			signal_member(pids[i], name, signo);
		}
		if (known == before)
			return; /* nobody was forked since the last look */
	}
}

static bool group_remove(struct left g)
{
	char path[PATH_SIZE];

	group_path(path, g.serial, g.cell);
	return !unlinkat(FD_GROUP, path, AT_REMOVEDIR) || errno == ENOENT;
}

void group_release(struct group *g)
{
	if (g->fd < 0)
		return;
	/* The kernel kills whoever is cloned into a group that was killed more often than the cloner's
	 * own: such a group is not used again. */
	if (!g->killed && spare_count < SPARE_MAX + config.cells && !group_populated(g)) {
		spares()[spare_count++] = *g;
	} else {
		group_close(g);
		/* A full table leaves the group to the launcher, which removes the whole tree. */
		if (!group_remove((struct left){g->serial, g->cell}) && stale_count < STALE_MAX)
			stale[stale_count++] = (struct left){g->serial, g->cell};
	}
	g->fd = -1;
}

bool group_spares(void)
{
	return spare_count;
}

void group_quiet(void)
{
	while (spare_count) {
		struct group *g = &spares()[--spare_count];

		group_close(g);
		group_remove((struct left){g->serial, g->cell});
	}
}

/* A group empties when its last process ends, and orphans end as our children. */
void group_child_ended(void)
{
	if (stale_count && retry_at == NEVER)
		retry_at = now_ms() + RETRY_MS;
}

uint64_t group_retry_at(void)
{
	return retry_at;
}

void group_retry(void)
{
	uint32_t kept = 0;

	retry_at = NEVER;
	for (uint32_t i = 0; i < stale_count; i++)
		if (!group_remove(stale[i]))
			stale[kept++] = stale[i];
	stale_count = kept;
}

/* --- without groups ------------------------------------------------------------------------- */

/* Parent and session of a process; the name in the file may hold any character. */
static bool proc_parents(pid_t pid, pid_t *parent, pid_t *session)
{
	char text[512], *p;

	if (!proc_read(pid, "/stat", text, sizeof(text)) || !(p = strrchr(text, ')')))
		return false;
	if (strlen(p) < 4)
		return false;
	*parent = (pid_t)strtol(p + 4, &p, 10);
	strtol(p, &p, 10); /* process group */
	*session = (pid_t)strtol(p, &p, 10);
	return true;
}

/* Descendants have higher numbers than their parents until numbers wrap: one pass in order finds
 * nearly all, and callers repeat it. What was orphaned into another session is not found: this is
 * the best that can be done without a group. */
static bool session_walk(pid_t leader, int signo)
{
	static pid_t members[SEEN_MAX];
	size_t count = 0;
	struct dirent *entry;
	DIR *dir = opendir("/proc");
	bool found = false;

	while (dir && (entry = readdir(dir))) {
		pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10), parent, session;
		bool member;

		if (pid <= 1 || !proc_parents(pid, &parent, &session))
			continue;
		member = pid == leader || session == leader;
		for (size_t i = 0; i < count && !member; i++)
			member = members[i] == parent;
		if (!member)
			continue;
		found = true;
		if (count < SEEN_MAX)
			members[count++] = pid;
		if (signo)
			kill(pid, signo);
	}
	if (dir)
		closedir(dir);
	return found;
}

void session_signal(pid_t leader, int signo)
{
	session_walk(leader, signo);
}

bool session_alive(pid_t leader)
{
	return session_walk(leader, 0);
}

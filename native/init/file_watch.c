/* watch: what happens below a path, as the kernel's inotify tells it.
 *
 * A directory that appears is watched and then read: what was made in it before the watch is told too,
 * and what the queue then tells again is dropped. When the kernel's queue overflowed, that is said, and
 * every directory is visited anew, so that nothing stays unwatched. A reader that is slow fills the pipe,
 * then the queue: nothing grows. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "file.h"
#include "watch_tree.h"

enum {
	PAIR_MS = 20,	/* how long the second half of a move may take */
	LOOK_MS = 2000, /* where nobody tells that the watched path itself is gone */
	PAIRS_MAX = 64,
	TOLD_MAX = 4096, /* names that a scan told, remembered until the queue tells them */
};
#define DIRECTORY_EVENTS \
	(IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR)
#define ROOT_EVENTS (IN_DELETE_SELF | IN_MOVE_SELF)

struct half {
	uint32_t cookie; /* 0: none */
	bool directory;
	int wd; /* of the directory that was moved */
	char path[TREE_PATH];
};
static struct half halves[PAIRS_MAX];

struct told {
	int wd;
	uint32_t hash;
};
static struct told told[TOLD_MAX];
static uint32_t told_next;

static int queue, root, root_wd;
static int above_wd = WATCH_NONE; /* the directory that root is in */
static bool recursive;
static const char *only; /* one name in root, or NULL */
static char path[TREE_PATH], from[TREE_PATH];
static char last_path[TREE_PATH], last_kind;

static uint32_t name_hash(const char *name)
{
	uint32_t hash = 2166136261u;

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 16777619u;
	return hash;
}

/* "KIND TYPE NAMELEN FROMLEN\n", the name, what it was called before. */
static void tell(char kind, bool directory, const char *name, const char *before)
{
	char head[64];
	size_t n = 0;

	/* A file that is written all the while: once is enough for what follows at once. */
	if ((kind == 'm' || kind == 'a') && last_kind == kind && !strcmp(last_path, name))
		return;
	last_kind = kind;
	strcpy(last_path, name);
	head[n++] = kind;
	head[n++] = ' ';
	head[n++] = directory ? 'd' : 'f';
	head[n++] = ' ';
	n += number_text(head + n, strlen(name), 10, 1);
	head[n++] = ' ';
	n += number_text(head + n, strlen(before), 10, 1);
	head[n++] = '\n';
	out_bytes(head, n);
	out_bytes(name, strlen(name));
	out_bytes(before, strlen(before));
}

static void tell_at(char kind, bool directory, int wd, const char *name)
{
	if (watch_path(path, wd, name))
		tell(kind, directory, path, "");
	else
		tell('o', true, "", ""); /* a name too long to say is a loss too */
}

static void kernel_unwatch(int wd)
{
	inotify_rm_watch(queue, wd);
}

static void unwatch(int wd)
{
	kernel_unwatch(wd);
	watch_forget(wd);
}

static void told_add(int wd, const char *name)
{
	told[told_next++ % TOLD_MAX] = (struct told){wd, name_hash(name)};
}

static bool told_take(int wd, const char *name)
{
	uint32_t hash = name_hash(name);

	for (uint32_t i = 0; i < TOLD_MAX; i++) {
		if (told[i].wd == wd && told[i].hash == hash) {
			told[i].wd = 0;
			return true;
		}
	}
	return false;
}

/* --- entering directories --------------------------------------------------------------------------- */

/* Watches an open directory; its wd. By its descriptor: a name could lead elsewhere by now. */
static int kernel_watch(int fd, uint32_t events)
{
	char self[64];
	int wd;

	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	wd = inotify_add_watch(queue, self, events);
	if (wd < 0)
		file_fail(errno == ENOSPC ? E2BIG : errno, "watches");
	return wd;
}

static void scan(int fd, int wd, bool say, int depth);

static void enter(int dir, int parent, const char *name, bool say, int depth)
{
	int fd = directory_below(dir, name), wd;

	if (fd < 0) /* gone or swapped: its parent tells; or closed to this user, who may not look anyway */
		return;
	if (depth >= FILE_DEPTH_MAX)
		file_fail(ENAMETOOLONG, "depth");
	wd = kernel_watch(fd, DIRECTORY_EVENTS);
	watch_enter(wd, parent, name);
	scan(fd, wd, say, depth + 1);
}

/* Takes fd. Goes into what is below, and says what is there if it came after the watch began. */
static void scan(int fd, int wd, bool say, int depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		file_fail(errno, "open");
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;
		struct stat st;
		bool directory = entry->d_type == DT_DIR;

		if (is_dots(name))
			continue;
		if (entry->d_type == DT_UNKNOWN && !fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW))
			directory = S_ISDIR(st.st_mode);
		if (say) {
			told_add(wd, name);
			tell_at('c', directory, wd, name);
		}
		if (directory && recursive)
			enter(fd, wd, name, say, depth);
	}
	closedir(dir);
}

static void enter_new(int parent, const char *name)
{
	int dir = root;

	if (!recursive)
		return;
	if (parent != root_wd && watch_path(path, parent, ""))
		dir = beneath_open(root, path, O_PATH | O_DIRECTORY);
	if (dir < 0)
		return;
	enter(dir, parent, name, true, 0);
	if (dir != root)
		close(dir);
}

/* --- events ------------------------------------------------------------------------------------------- */

static void half_lost(struct half *h)
{
	h->cookie = 0;
	if (h->wd != WATCH_NONE)
		watch_each_below(h->wd, unwatch);
	tell('d', h->directory, h->path, "");
}

static void moved_from(const struct inotify_event *e, const char *name, bool directory)
{
	static uint32_t next;
	struct half *h = &halves[next++ % PAIRS_MAX];

	if (h->cookie)
		half_lost(h);
	if (!watch_path(h->path, e->wd, name)) {
		tell('o', true, "", "");
		return;
	}
	h->cookie = e->cookie;
	h->directory = directory;
	h->wd = directory ? watch_child(e->wd, name) : WATCH_NONE;
}

static void moved_to(const struct inotify_event *e, const char *name, bool directory)
{
	struct half *h = NULL;

	for (int i = 0; i < PAIRS_MAX; i++)
		if (halves[i].cookie == e->cookie)
			h = &halves[i];
	if (!h) { /* from outside */
		tell_at('c', directory, e->wd, name);
		if (directory)
			enter_new(e->wd, name);
		return;
	}
	h->cookie = 0;
	strcpy(from, h->path);
	if (h->wd != WATCH_NONE)
		watch_enter(h->wd, e->wd, name);
	if (watch_path(path, e->wd, name))
		tell('v', directory, path, from);
	else
		tell('o', true, "", "");
}

static void lost_some(void)
{
	int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	tell('o', true, "", "");
	memset(told, 0, sizeof(told));
	watch_unmark();
	watch_enter(root_wd, WATCH_NONE, "");
	if (fd >= 0)
		scan(fd, root_wd, false, 0);
	watch_sweep(kernel_unwatch);
}

/* We hold root open, so the kernel does not tell its removal by root's own watch. */
static void above_watch(void)
{
	int fd = openat(root, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat here, above;

	/* Of "/" it is the same, and a second watch would take the place of the first. */
	if (fd >= 0 && !fstat(root, &here) && !fstat(fd, &above) &&
	    (here.st_ino != above.st_ino || here.st_dev != above.st_dev))
		above_wd = kernel_watch(fd, IN_DELETE | IN_ONLYDIR);
	if (fd >= 0)
		close(fd);
}

static bool root_gone(void)
{
	struct stat st;

	return fstat(root, &st) || !st.st_nlink;
}

/* False when there is nothing left to watch. */
static bool event_take(const struct inotify_event *e)
{
	bool directory = e->mask & IN_ISDIR;
	const char *name = e->len ? e->name : "";

	if (e->mask & IN_Q_OVERFLOW) {
		lost_some();
		return true;
	}
	if (e->wd == root_wd && e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) {
		tell('d', true, "", "");
		return false;
	}
	if (e->wd == above_wd && root_gone()) {
		tell('d', true, "", "");
		return false;
	}
	if (e->mask & IN_IGNORED)
		watch_forget(e->wd);
	if (watch_find(e->wd) == WATCH_NONE || (only && strcmp(only, name)))
		return true;
	if (!(e->mask & ~(uint32_t)(IN_MODIFY | IN_ATTRIB)) && watch_nameless(root, e->wd, name))
		return true;
	if (e->mask & IN_CREATE && !told_take(e->wd, name)) {
		tell_at('c', directory, e->wd, name);
		if (directory)
			enter_new(e->wd, name);
	}
	/* A directory's own attributes are told by its parent's watch, under its name. */
	if (e->mask & IN_ATTRIB && (*name || e->wd == root_wd))
		tell_at('a', directory, e->wd, name);
	if (e->mask & IN_MODIFY)
		tell_at('m', directory, e->wd, name);
	if (e->mask & IN_DELETE)
		tell_at('d', directory, e->wd, name);
	if (e->mask & IN_MOVED_FROM)
		moved_from(e, name, directory);
	if (e->mask & IN_MOVED_TO)
		moved_to(e, name, directory);
	return true;
}

static bool events_take(const char *bytes, size_t n)
{
	for (size_t at = 0; at < n;) {
		const struct inotify_event *e = (const void *)(bytes + at);

		if (!event_take(e))
			return false;
		at += sizeof(*e) + e->len;
	}
	last_kind = 0; /* only what comes at once is told once */
	return true;
}

static bool halves_open(void)
{
	for (int i = 0; i < PAIRS_MAX; i++)
		if (halves[i].cookie)
			return true;
	return false;
}

static void watch_loop(void)
{
	static char bytes[65536] __attribute__((aligned(8)));

	for (;;) {
		struct pollfd p[2] = {{.fd = queue, .events = POLLIN}, {.fd = 1}};
		ssize_t n;

		out_flush();
		if (poll(p, 2, halves_open() ? PAIR_MS : above_wd == WATCH_NONE ? LOOK_MS : -1) == 0) {
			for (int i = 0; i < PAIRS_MAX; i++)
				if (halves[i].cookie)
					half_lost(&halves[i]);
			if (root_gone()) {
				tell('d', true, "", "");
				return;
			}
		}
		if (p[1].revents & (POLLERR | POLLHUP))
			return; /* nobody listens any more */
		if (!(p[0].revents & POLLIN))
			continue;
		n = read(queue, bytes, sizeof(bytes));
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			file_fail(errno, "read");
		if (n > 0 && !events_take(bytes, (size_t)n))
			return;
	}
}

/* watch PATH FLAGS (r: all below). The first record, "r", says that from now on nothing is missed. */
void file_watch(char **argv)
{
	struct stat st;
	int fd;

	recursive = strchr(argv[2], 'r') != NULL;
	if (stat(argv[1], &st))
		file_fail(errno, "stat");
	if (S_ISDIR(st.st_mode))
		root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	else /* through its directory: a file that is replaced is still that file */
		root = parent_open(argv[1], &only, false);
	if (root == AT_FDCWD)
		root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	recursive = recursive && !only;
	queue = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (root < 0)
		file_fail(errno, "open");
	if (queue < 0)
		file_fail(errno, "watches");
	root_wd = kernel_watch(root, DIRECTORY_EVENTS | ROOT_EVENTS);
	watch_enter(root_wd, WATCH_NONE, "");
	above_watch();
	fd = recursive ? openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (fd >= 0)
		scan(fd, root_wd, false, 0);
	tell('r', true, "", "");
	watch_loop();
	out_flush();
}

/* RECLAIM and PREFETCH: memory of an instance goes to swap, and comes back before it is asked for.
 *
 * The work is done by a child for each request, so that the launcher never waits. It looks at what a
 * sandbox controls (numbers and maps of its processes) and therefore holds only the capabilities that
 * process_madvise(2) takes, believes numbers only, and ends by itself after a while. Without
 * CAP_FOWNER the kernel does not let it push pages of read-only layers out of the page cache, which
 * other sandboxes share (decision 19); of those, only private copies go. */
#include "launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "maps.h"
#include "protocol.h"
#include "weak.h"

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif

/* One call's ranges: together as long as STEP, which grows where nothing is found. */
enum { BATCH = 64, DEPTH_MAX = 8, PROCESSES_MAX = 40000 };
#define STEP_MIN (4ull << 20)
#define STEP_MAX (1ull << 46)
#define WORK_NS (8ull * 1000000000ull) /* then it answers with what it has; who asked may ask again */

struct order {
	struct launcher *launcher;
	struct request *request;
	struct pending reply;
	char group[PATH_TEXT_MAX + 1];
	const char *place; /* of the group below its hierarchy: how a process's own file names it */
};

struct work {
	const struct order *order;
	bool prefetch;
	uint64_t until_ns, left, done; /* bytes */
	unsigned processes;
	/* Of the process at hand */
	int pidfd, statm;
	uint64_t step;
	struct iovec batch[BATCH];
	unsigned count;
	uint64_t length;
};

static int capabilities_set(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}, {0}};
	uint32_t kept = 1u << CAP_SYS_PTRACE | 1u << CAP_SYS_NICE | 1u << CAP_DAC_OVERRIDE;

	if (weak("layers"))
		kept |= 1u << CAP_FOWNER;
	data[0].effective = data[0].permitted = kept;
	return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

static bool over(const struct work *w)
{
	return !w->left || now_ns() > w->until_ns;
}

/* Pages of the process that are in memory. */
static uint64_t resident(const struct work *w)
{
	char text[128];
	ssize_t n = pread(w->statm, text, sizeof(text) - 1, 0);
	char *space;

	text[n > 0 ? n : 0] = 0;
	space = strchr(text, ' ');
	return space ? strtoull(space, NULL, 10) : 0;
}

static bool advise(struct work *w)
{
	struct iovec *at = w->batch;
	unsigned count = w->count;

	while (count) {
		long n = syscall(SYS_process_madvise, w->pidfd, at, (size_t)count,
				 w->prefetch ? MADV_WILLNEED : MADV_PAGEOUT, 0u);

		if (n < 0 && (errno == ESRCH || errno == EPERM || errno == ENOSYS))
			return false;
		/* What a call stops at (locked, or unmapped meanwhile) is left out. */
		while (count && n >= (long)at->iov_len) {
			n -= (long)at->iov_len;
			at++;
			count--;
		}
		if (count) {
			at++;
			count--;
		}
	}
	return true;
}

/* False when there is nothing more to do with this process. */
static bool flush(struct work *w)
{
	uint64_t before, after, gone = w->length;
	bool ok;

	if (!w->count)
		return true;
	before = w->prefetch ? 0 : resident(w);
	ok = advise(w);
	if (!w->prefetch) {
		after = resident(w);
		gone = before > after ? (before - after) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
		/* Ranges may be terabytes of nothing. */
		w->step = gone ? STEP_MIN : w->step < STEP_MAX ? w->step * 4 : STEP_MAX;
	}
	w->count = 0;
	w->length = 0;
	w->done += gone;
	w->left -= gone < w->left ? gone : w->left;
	return ok && !over(w);
}

static bool take(struct work *w, struct range r)
{
	if (w->prefetch && !r.anonymous)
		return true; /* would read whole files */
	while (r.start < r.end) {
		uint64_t room = w->step - w->length, n = r.end - r.start;

		n = n < room ? n : room;
		w->batch[w->count].iov_base = (void *)(uintptr_t)r.start;
		w->batch[w->count++].iov_len = (size_t)n;
		w->length += n;
		r.start += n;
		if ((w->count == BATCH || w->length == w->step) && !flush(w))
			return false;
	}
	return true;
}

/* The number may have become another process's since it was read from the group. */
static bool in_group(const struct work *w, int proc)
{
	char text[4096], *line, *rest = text;
	size_t n = strlen(w->order->place);

	if (read_file(proc, "cgroup", text, sizeof(text)) < 0)
		return false;
	while ((line = strsep(&rest, "\n")))
		if (!strncmp(line, "0::", 3) && !strncmp(line + 3, w->order->place, n) &&
		    (!line[3 + n] || line[3 + n] == '/'))
			return true;
	return false;
}

static void walk_maps(struct work *w, int fd)
{
	static char text[65536];
	struct maps m = {.used = 0};
	struct range r;
	ssize_t n;

	while ((n = read(fd, text, sizeof(text))) > 0)
		for (ssize_t i = 0; i < n; i++)
			if (maps_byte(&m, text[i], &r) && !take(w, r))
				return;
	flush(w);
}

static void process(struct work *w, pid_t pid)
{
	char path[32];
	close_auto int proc = -1, maps = -1, statm = -1;
	close_auto int pidfd = sys_pidfd_open(pid);

	snprintf(path, sizeof(path), "/proc/%d", pid);
	proc = pidfd < 0 ? -1 : open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
	if (proc < 0 || !in_group(w, proc))
		return;
	maps = open_at(proc, "maps", O_RDONLY);
	statm = open_at(proc, "statm", O_RDONLY);
	if (maps < 0 || statm < 0)
		return;
	w->pidfd = pidfd;
	w->statm = statm;
	w->count = 0;
	w->length = 0;
	w->step = STEP_MIN;
	walk_maps(w, maps);
}

static void walk_procs(struct work *w, int fd)
{
	char text[4096];
	pid_t pid = 0;
	ssize_t n;

	while (!over(w) && (n = read(fd, text, sizeof(text))) > 0)
		for (ssize_t i = 0; i < n && !over(w); i++) {
			if (text[i] >= '0' && text[i] <= '9') {
				pid = pid * 10 + (text[i] - '0');
				continue;
			}
			if (pid > 1 && w->processes++ < PROCESSES_MAX)
				process(w, pid);
			pid = 0;
		}
}

/* The group and those below; the agent makes them one level deep, what is deeper than the bound was made
 * by nobody that we know. */
static void walk_group(struct work *w, int parent, const char *name, unsigned depth)
{
	int fd = open_at(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	int procs;

	if (!dir) {
		close_ptr(&fd);
		return;
	}
	procs = open_at(fd, "cgroup.procs", O_RDONLY);
	if (procs >= 0) {
		walk_procs(w, procs);
		close(procs);
	}
	while (depth && !over(w) && (e = readdir(dir)))
		if (e->d_type == DT_DIR && e->d_name[0] != '.')
			walk_group(w, fd, e->d_name, depth - 1);
	closedir(dir);
}

static int work(void *arg, struct job_result *out)
{
	const struct order *o = arg;
	struct work w = {.order = o, .prefetch = o->request->type == L_PREFETCH,
			 .until_ns = now_ns() + WORK_NS, .left = o->request->bytes};
	int err;

	/* Reclaim is in nobody's way; a prefetch is what a command waits for. */
	if (!w.prefetch)
		setpriority(PRIO_PROCESS, 0, 10);
	for (unsigned i = 0; i < o->request->step_count; i++) {
		bool made;

		err = group_run(o->launcher, &o->request->steps[i], &made);
		/* memory.reclaim found less than it was asked for; the rest is tried below. */
		if (err && err != -EAGAIN)
			return job_fail(out, "write", err);
	}
	err = capabilities_set();
	if (err)
		return job_fail(out, "capabilities", err);
	walk_group(&w, AT_FDCWD, o->group, DEPTH_MAX);
	out->value = w.done;
	return 0;
}

static void done(struct job *j, struct job_result *r)
{
	struct order *o = j->owner;

	o->launcher->memory_jobs--;
	if (r->error) {
		reply_fail(o->launcher, &o->reply, r->step, r->error, o->request->instance);
	} else {
		struct builder *b = answer();

		build_u64(b, T_BYTES, r->value);
		reply_ok(o->launcher, &o->reply, b);
	}
	free(o->request);
	free(o);
}

/* "/NODE/slot-1/w" of "/sys/fs/cgroup/unified/NODE/slot-1/w": a root lies directly below its mount. */
static const char *place_of(const struct launcher *l, const char *group)
{
	for (unsigned i = 0; i < l->cgroup_roots.count; i++) {
		const char *root = l->cgroup_roots.paths[i];
		size_t n = strlen(root);

		if (!strncmp(group, root, n) && group[n] == '/')
			return group + (strrchr(root, '/') - root);
	}
	return NULL;
}

void memory_move(struct launcher *l, struct request *r)
{
	struct instance *i = instance_find(l, r->instance);
	struct pending reply = pending_of(l, r);
	struct order *o = calloc(1, sizeof(*o));
	int err = !o ? -ENOMEM : !i || i->state != RUNNING ? -ENOENT : 0;

	if (!err && l->memory_jobs >= MEMORY_JOBS_MAX)
		err = -EAGAIN;
	if (!err) {
		*o = (struct order){.launcher = l, .request = r, .reply = reply};
		snprintf(o->group, sizeof(o->group), "%s",
			 *i->kept->work_group ? i->kept->work_group : i->kept->agent_group);
		o->place = place_of(l, o->group);
		err = o->place ? job_start(&l->loop, work, o, done, o, 0) : -EACCES;
	}
	if (!err) {
		l->memory_jobs++;
		return;
	}
	reply_fail(l, &reply, "memory", err, r->instance);
	free(o);
	free(r);
}

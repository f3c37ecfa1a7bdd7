/* Slots: a user namespace with its range and zeroed limits, and a network namespace of the host's. */
#include "launcher.h"
#include "weak.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "protocol.h"

/* The process whose namespaces a slot takes runs in the slot's groups. Those of best effort get the
 * processor time that all others leave: on a busy host the few steps take longer than a deadline. A
 * node gives an answer up after 60 s. */
enum { SLOT_TERMS = 5 };

struct order {
	struct launcher *launcher;
	struct request *request; /* NULL: only a network namespace is wanted */
	struct slot *slot;	 /* with a request: in the table already */
	struct pending reply;
};

/* sockets: used, and of TCP those in use and in TIME_WAIT. The counts of orphans and of memory in
 * this file are the whole machine's and say nothing about a namespace; orphans are among the used. */
static int sockets_count(uint64_t *used, uint64_t *tcp, uint64_t *waiting)
{
	char text[1024], *line;
	int n = read_file(AT_FDCWD, "/proc/self/net/sockstat", text, sizeof(text));

	if (n < 0)
		return n;
	line = strstr(text, "TCP: inuse ");
	if (!line || sscanf(text, "sockets: used %" SCNu64, used) != 1 ||
	    sscanf(line, "TCP: inuse %" SCNu64 " orphan %*u tw %" SCNu64, tcp, waiting) != 2)
		return -EPROTO;
	return 0;
}

static int loopback_up(void)
{
	close_auto int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};

	return fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

/* A proc of one's own, for the time it takes to make one slot. The sysctls of a namespace are names
 * that every namespace has: below one /proc/sys they all hash to the same chains, and each write
 * walks past the entries of all slots made before (half of the time at 1,500 slots). */
static int proc_open(void)
{
	return sys_new_mount("proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, NULL);
}

/* Owned by the host's user namespace: root inside cannot administer it. That is why low ports and
 * ping must be allowed by these two values instead of by a capability. */
static int net_make(int proc, struct job_result *r, int *fd)
{
	uint64_t tcp, waiting;
	int err = sys_unshare(CLONE_NEWNET);

	if (!err)
		err = write_file(proc, "sys/net/ipv4/ip_unprivileged_port_start", "0");
	if (!err)
		err = write_file(proc, "sys/net/ipv4/ping_group_range", "0 2147483647");
	if (!err)
		err = loopback_up();
	if (!err)
		err = sockets_count(&r->value, &tcp, &waiting);
	if (!err) {
		*fd = open_at(AT_FDCWD, "/proc/self/ns/net", O_RDONLY);
		err = *fd < 0 ? *fd : 0;
	}
	return err ? job_fail(r, "net", err) : 0;
}

static bool tell(int fd)
{
	return write(fd, "", 1) == 1;
}

static bool hear(int fd)
{
	char byte;

	return read(fd, &byte, 1) == 1;
}

/* The limits on further namespaces below a slot's; they belong to the namespace of the writer. A function
 * container's cells are such namespaces; those that ended count until the kernel has got round to them. */
static int limits_write(const struct request *r, int proc)
{
	static const struct {
		const char *name, *of_function;
	} limits[] = {{"user", "0"}, {"cgroup", "0"}, {"time", "0"}, {"mnt", "4096"}, {"net", "4096"},
		      {"pid", "4096"}, {"ipc", "4096"}, {"uts", "4096"}};
	int err = 0;

	for (unsigned i = 0; i < 8 && !err && !weak("counters"); i++) {
		char path[64];

		snprintf(path, sizeof(path), "sys/user/max_%s_namespaces", limits[i].name);
		err = write_file(proc, path, r->profile == PROFILE_FUNCTION ? limits[i].of_function : "0");
	}
	return err;
}

/* The process whose namespace is taken. Its uid becomes the namespace's owner; only it can write the limits,
 * before it goes. */
static int user_process(const struct request *r, int proc, int in, int out)
{
	uid_t owner = (uid_t)r->owner_uid;
	int err;

	if (setgroups(0, NULL) < 0 || setresgid(owner, owner, owner) < 0 ||
	    setresuid(owner, owner, owner) < 0)
		return -errno;
	err = sys_unshare(CLONE_NEWUSER);
	if (err || !tell(out) || !hear(in))
		return err ? err : -EPIPE;
	if (r->agent_group)
		err = sys_unshare(CLONE_NEWCGROUP);
	if (!err)
		err = limits_write(r, proc);
	if (err || !tell(out))
		return err ? err : -EPIPE;
	hear(in); /* the end: it has been opened */
	return 0;
}

/* The cgroup namespace is rooted in the slot's groups, so that no name of them shows inside. */
static int enter_groups(const struct request *r, const char *pid)
{
	char path[PATH_TEXT_MAX + 32];
	int err = group_parent(r->agent_group, path, PATH_TEXT_MAX);

	if (!err) {
		strcat(path, "/cgroup.procs");
		err = write_file(AT_FDCWD, path, pid);
	}
	for (unsigned i = 0; i < r->tasks.count && !err; i++)
		err = write_file(AT_FDCWD, r->tasks.items[i], pid);
	return err;
}

static int user_take(const struct request *r, struct job_result *out, pid_t pid, int from, int to)
{
	char text[64], path[64];
	int err;

	if (!hear(from))
		return job_fail(out, "user", -EPIPE);
	snprintf(text, sizeof(text), "0 %" PRIu64 " 65536", r->uid_base);
	snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
	err = write_file(AT_FDCWD, path, text);
	snprintf(path, sizeof(path), "/proc/%d/gid_map", pid);
	if (!err)
		err = write_file(AT_FDCWD, path, text);
	if (err)
		return job_fail(out, "map", err);
	snprintf(text, sizeof(text), "%d", pid);
	err = r->agent_group ? enter_groups(r, text) : 0;
	if (err)
		return job_fail(out, "cgroup", err);
	if (!tell(to) || !hear(from))
		return job_fail(out, "user", -EPIPE);
	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, r->agent_group ? "cgroup" : "user");
	out->fds[0] = open_at(AT_FDCWD, path, O_RDONLY);
	return out->fds[0] < 0 ? job_fail(out, "user", out->fds[0]) : 0;
}

static int user_make(const struct request *r, int proc, struct job_result *out)
{
	int up[2], down[2], err;
	pid_t pid;

	if (pipe2(up, O_CLOEXEC) < 0 || pipe2(down, O_CLOEXEC) < 0)
		return job_fail(out, "user", -errno);
	pid = fork();
	if (pid < 0)
		return job_fail(out, "user", -errno);
	if (!pid) {
		close(up[0]);
		close(down[1]);
		_exit(user_process(r, proc, down[0], up[1]) ? 1 : 0);
	}
	close(up[1]);
	close(down[0]);
	err = user_take(r, out, pid, up[0], down[1]);
	close(down[1]);
	waitpid(pid, NULL, 0);
	return err;
}

static int work(void *arg, struct job_result *r)
{
	const struct order *o = arg;
	close_auto int proc = proc_open();

	if (proc < 0)
		return job_fail(r, "proc", proc);
	if (o->request) {
		int err = user_make(o->request, proc, r);

		return err ? err : net_make(proc, r, &r->fds[1]);
	}
	return net_make(proc, r, &r->fds[0]);
}

static void slot_made(struct job *j, struct job_result *r)
{
	struct order *o = j->owner;
	struct slot *s = o->slot;

	if (!r->error) {
		s->making = false;
		s->user_fd = fd_high(r->fds[0]);
		s->net_fd = fd_high(r->fds[1]);
		s->sockets = r->value;
		reply_ok(o->launcher, &o->reply, answer());
	} else {
		close_ptr(&r->fds[0]);
		close_ptr(&r->fds[1]);
		slot_remove(o->launcher, s);
		free(s);
		reply_fail(o->launcher, &o->reply, r->step, r->error, "slot");
	}
	free(o->request);
	free(o);
}

void slot_make(struct launcher *l, struct request *r)
{
	struct order *o = calloc(1, sizeof(*o));
	struct slot *s = calloc(1, sizeof(*s));
	struct pending reply = pending_of(l, r);
	struct failure f = {0};
	int err = o && s ? 0 : fail(&f, "memory", -ENOMEM, "slot");

	if (!err && slot_find(l, r->slot))
		err = fail(&f, "slot", -EEXIST, "%" PRIu64, r->slot);
	for (unsigned i = 0; i < r->tasks.count && !err; i++)
		if (!path_below(r->tasks.items[i], &l->cgroup_roots))
			err = fail(&f, "path", -EACCES, "%s", r->tasks.items[i]);
	if (!err && r->agent_group && !path_below(r->agent_group, &l->cgroup_roots))
		err = fail(&f, "path", -EACCES, "%s", r->agent_group);
	if (!err)
		err = groups_run(l, r, &f);
	if (o && s && !err) {
		*s = (struct slot){.id = r->slot, .uid_base = r->uid_base, .owner_uid = r->owner_uid,
				   .user_fd = -1, .net_fd = -1, .making = true,
				   .has_cgroup_ns = r->agent_group,
				   .function = r->profile == PROFILE_FUNCTION};
		*o = (struct order){.launcher = l, .request = r, .slot = s, .reply = reply};
		err = job_start(&l->loop, work, o, slot_made, o, SLOT_TERMS);
		if (!err) {
			/* From here on: whoever asked may be gone, and a node that comes after it must
			 * neither take the number for free nor the groups away under the helper. */
			slot_add(l, s);
			return;
		}
		fail(&f, "fork", err, "slot");
	}
	reply_fail(l, &reply, f.step, f.error, f.text);
	free(s);
	free(o);
	free(r);
}

int slot_drop(struct launcher *l, struct request *r, struct failure *f)
{
	struct slot *s = slot_find(l, r->slot);

	if (s && s->making)
		return fail(f, "slot", -EBUSY, "being made");
	if (s && s->user)
		return fail(f, "slot", -EBUSY, "used by %s", s->user->id);
	if (s) {
		slot_remove(l, s);
		close_ptr(&s->user_fd);
		close_ptr(&s->net_fd);
		free(s);
	}
	return groups_run(l, r, f);
}

int slot_net_replace(struct launcher *l, void (*done)(struct job *, struct job_result *), void *owner)
{
	struct order none = {.launcher = l};

	return job_start(&l->loop, work, &none, done, owner, 1);
}

bool slot_net_clean(struct launcher *l, struct slot *s, char *why, size_t size)
{
	uint64_t used = 0, tcp = 0, waiting = 0;
	int err = sys_setns(s->net_fd, CLONE_NEWNET);

	if (!err) {
		err = sockets_count(&used, &tcp, &waiting);
		/* The launcher must never stay in a sandbox's network. */
		if (sys_setns(l->host_net, CLONE_NEWNET))
			abort();
	}
	if (!err && used == s->sockets && !tcp && !waiting)
		return true;
	snprintf(why, size, "network namespace: error %d, %" PRIu64 " sockets, %" PRIu64 " TCP, %" PRIu64
		 " waiting", -err, used - s->sockets, tcp, waiting);
	return false;
}

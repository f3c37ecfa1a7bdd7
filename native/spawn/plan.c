#include "plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "protocol.h"

/* In the text, $a and $b are the step's texts, $n and $m its numbers, $o its $n in octal. */
static const struct {
	const char *name, *text;
} ops[OP_COUNT] = {
	[OP_GROUP_MKDIR] = {"mkdir", "$a mode $o owner $m"},
	[OP_GROUP_RMDIR] = {"rmdir", "$a"},
	[OP_GROUP_WRITE] = {"write", "$a value $b"},
	[OP_SOCKET] = {"socket", "bind and listen $a mode 0600 backlog 8"},
	[OP_UPPER] = {"upper", "make /upper/$a ($b): u owned by $n mode 0755, w root's mode 0700"},
	[OP_LIMIT] = {"limit", "/upper/$a to $n bytes"},
	[OP_CLONE] = {"clone", "new pid, ipc and uts namespaces, into $a"},
	[OP_SESSION] = {"session", "setsid, umask 0, to die with the launcher until the exec"},
	[OP_JOIN] = {"join", "network namespace of slot $n, $a cgroup namespace"},
	[OP_HOSTNAME] = {"hostname", "$a"},
	[OP_TASKS] = {"tasks", "open $a for writing"},
	[OP_OOM] = {"oom", "open $a"},
	[OP_WORK] = {"work", "open directory $a"},
	[OP_SNAPSHOT] = {"snapshot", "/upper/$a from /upper/$b"},
	[OP_LOWER] = {"lower", "/layers/$a, idmapped by slot $n, read-only"},
	[OP_OVERLAY] = {"overlay", "upper u, work w below /upper/$a, ids from $n as those from $m, nodev, "
				   "redirect_dir, metacopy, index, xino off, volatile"},
	[OP_SHARED] = {"shared", "tmpfs of $n bytes owned by $m: dev, run, empty"},
	[OP_NODE] = {"node", "/dev/$a: character device $b, mode 0666, owner $m"},
	[OP_LEAVE] = {"leave", "enter the empty mount namespace and copy it"},
	[OP_VIEW] = {"view", "a whole proc beneath the root, where no path leads"},
	[OP_ROOT] = {"root", "overlay over /"},
	[OP_DEV] = {"dev", "tmpfs dev at /dev, nosuid$b"},
	[OP_RUN] = {"run", "tmpfs run at /run, nosuid, nodev"},
	[OP_PROC] = {"proc", "at /proc, nosuid, nodev, noexec$b"},
	[OP_DEVPTS] = {"devpts", "at /dev/pts, gid $n"},
	[OP_MQUEUE] = {"mqueue", "at /dev/mqueue"},
	[OP_HIDE_FILE] = {"hide", "/dev/null over $a"},
	[OP_HIDE_DIR] = {"hide", "empty read-only directory over $a"},
	[OP_READONLY] = {"readonly", "$a"},
	[OP_FIRM] = {"firm", "$a read-only"},
	[OP_COVER] = {"cover", "$a: /dev/null over a file, an empty read-only directory over another"},
	[OP_CHROOT] = {"chroot", "into the overlay"},
	[OP_PLACES] = {"places", "/tmp, /var/tmp, /run, /call: where cells have their own"},
	[OP_SEAL] = {"seal", "root read-only, nosuid, nodev"},
	[OP_LIMITS] = {"limits", "core 1 byte (no dump, not even to a pipe)"},
	[OP_CONFIG] = {"config", "pipe of $n bytes, $m tasks files"},
	[OP_DESCRIPTORS] = {"descriptors", "0-2 null, 3 socket, 4 image, 5 user namespace, 6 work group, "
					   "7 config, then $n files; all others closed"},
	[OP_SECCOMP] = {"seccomp", "base filter"},
	[OP_IDENTITY] = {"identity", "uid and gid $n, no groups, no capabilities, not dumpable"},
	[OP_EXEC] = {"exec", "skerry-init from descriptor 4"},
};

const struct mask plan_masks[] = {
	{"/proc/kcore", OP_HIDE_FILE}, {"/proc/keys", OP_HIDE_FILE},
	{"/proc/timer_list", OP_HIDE_FILE}, {"/proc/kallsyms", OP_HIDE_FILE},
	{"/proc/kpagecount", OP_HIDE_FILE}, {"/proc/kpageflags", OP_HIDE_FILE},
	{"/proc/kpagecgroup", OP_HIDE_FILE}, {"/proc/sched_debug", OP_HIDE_FILE},
	{"/proc/acpi", OP_HIDE_DIR}, {"/proc/scsi", OP_HIDE_DIR}, {"/proc/asound", OP_HIDE_DIR},
	{"/proc/sys", OP_READONLY}, {"/proc/irq", OP_READONLY}, {"/proc/bus", OP_READONLY},
	{"/proc/fs", OP_READONLY}, {"/proc/sysrq-trigger", OP_READONLY},
};
const unsigned plan_mask_count = sizeof(plan_masks) / sizeof(*plan_masks);

static void add(struct plan *plan, enum op op, const char *a, const char *b, uint64_t n, uint64_t m)
{
	/* PLAN_MAX exceeds the sum of the request's own bounds and of the fixed steps. */
	plan->steps[plan->count++] = (struct step){.op = op, .a = a, .b = b, .n = n, .m = m};
}

static void add_launcher(struct plan *plan, const struct request *r, const struct plan_facts *facts)
{
	for (unsigned i = 0; i < r->step_count; i++) {
		const struct group_step *s = &r->steps[i];

		if (s->kind == GROUP_MKDIR)
			add(plan, OP_GROUP_MKDIR, s->path, NULL, s->mode, (uint64_t)s->uid);
		else if (s->kind == GROUP_RMDIR)
			add(plan, OP_GROUP_RMDIR, s->path, NULL, 0, 0);
		else
			add(plan, OP_GROUP_WRITE, s->path, s->value, 0, 0);
	}
	add(plan, OP_SOCKET, r->socket, NULL, 0, 0);
	if (!r->upper_from)
		add(plan, OP_UPPER, r->instance, facts->upper_btrfs ? "btrfs" : "dir", facts->uid_base,
		    r->disk_bytes != 0);
	if (r->disk_bytes && !r->upper_from)
		add(plan, OP_LIMIT, r->instance, NULL, r->disk_bytes, 0);
	add(plan, OP_CLONE, r->agent_group, NULL, 0, 0);
	plan->first_child = plan->count;
}

/* All that is opened by a host path comes before OP_LEAVE: after it no such path exists. */
static void add_opening(struct plan *plan, const struct request *r, const struct plan_facts *facts)
{
	add(plan, OP_SESSION, NULL, NULL, 0, 0);
	add(plan, OP_JOIN, facts->slot_cgroup_ns ? "its" : "a new", NULL, r->slot, 0);
	add(plan, OP_HOSTNAME, r->hostname, NULL, 0, 0);
	for (unsigned i = 0; i < r->tasks.count; i++)
		add(plan, OP_TASKS, r->tasks.items[i], NULL, 0, 0);
	if (r->oom_file)
		add(plan, OP_OOM, r->oom_file, NULL, 0, 0);
	if (r->work_group)
		add(plan, OP_WORK, r->work_group, NULL, 0, 0);
	if (r->upper_from) {
		/* In the child, for it waits for a commit of the whole file system (tens of ms). */
		add(plan, OP_SNAPSHOT, r->instance, r->upper_from, 0, 0);
		if (r->disk_bytes)
			add(plan, OP_LIMIT, r->instance, NULL, r->disk_bytes, 0);
	}
	/* The overlay wants its top layer first; requests name the lowest first. */
	for (unsigned i = r->layers.count; i-- > 0;)
		add(plan, OP_LOWER, r->layers.items[i], NULL, r->slot, 0);
	/* A copy's files keep the ids of the sandbox that wrote them. */
	add(plan, OP_OVERLAY, r->instance, NULL,
	    r->upper_from && r->uid_base ? r->uid_base : facts->uid_base, facts->uid_base);
	add(plan, OP_SHARED, NULL, NULL, r->shm_bytes, facts->uid_base);
	for (unsigned i = 0; i < r->node_count; i++) {
		const struct device_node *node = &r->nodes[i];

		add(plan, OP_NODE, node->name, node->numbers, makedev(node->major_number, node->minor_number),
		    facts->uid_base);
	}
}

static void add_covers(struct plan *plan, const struct request *r, const struct plan_facts *facts)
{
	add(plan, OP_HIDE_DIR, "/sys", NULL, 0, facts->uid_base);
	/* A directory that is made read-only is laid over itself, and would cover what was hidden in it. */
	for (unsigned i = 0; i < r->readonly.count; i++)
		add(plan, OP_FIRM, r->readonly.items[i], NULL, 0, 0);
	for (unsigned i = 0; i < r->hidden.count; i++)
		add(plan, OP_COVER, r->hidden.items[i], NULL, 0, facts->uid_base);
}

static void add_mounts(struct plan *plan, const struct request *r, const struct plan_facts *facts)
{
	add(plan, OP_LEAVE, NULL, NULL, 0, 0);
	add(plan, OP_ROOT, NULL, NULL, 0, facts->uid_base);
	add(plan, OP_DEV, "dev", "", 0, facts->uid_base);
	add(plan, OP_RUN, "run", NULL, 0, facts->uid_base);
	add(plan, OP_PROC, "proc", "", 0, facts->uid_base);
	/* The gid of devpts is a host id: that of tty inside is 5. */
	add(plan, OP_DEVPTS, "dev/pts", NULL, facts->uid_base + 5, 0);
	add(plan, OP_MQUEUE, "dev/mqueue", NULL, 0, 0);
	add(plan, OP_CHROOT, NULL, NULL, 0, 0);
	for (unsigned i = 0; i < plan_mask_count; i++)
		if (facts->masks >> i & 1)
			add(plan, plan_masks[i].op, plan_masks[i].path, NULL, 0, facts->uid_base);
	add_covers(plan, r, facts);
}

/* Of a function container: what its cells begin with, and the agent's own /proc. All of it is read-only, and
 * locked in the namespaces of cells (mount_namespaces(7)). They get their own of what is missing. */
static void add_function(struct plan *plan, const struct request *r, const struct plan_facts *facts)
{
	add(plan, OP_LEAVE, NULL, NULL, 0, 0);
	/* The kernel lets a user namespace mount proc only where it sees a whole one already. */
	add(plan, OP_VIEW, NULL, NULL, 0, 0);
	add(plan, OP_ROOT, NULL, NULL, 0, facts->uid_base);
	add(plan, OP_DEV, "dev", ", read-only", 1, facts->uid_base);
	add(plan, OP_PROC, "proc", ", processes only", 1, facts->uid_base);
	add(plan, OP_CHROOT, NULL, NULL, 0, 0);
	add_covers(plan, r, facts);
	add(plan, OP_PLACES, NULL, NULL, 0, facts->uid_base);
	add(plan, OP_SEAL, NULL, NULL, 0, 0);
}

int plan_start(struct plan *plan, const struct request *r, const struct plan_facts *facts)
{
	unsigned files = r->tasks.count + (r->oom_file ? 1 : 0);

	plan->count = 0;
	if ((r->disk_bytes || r->upper_from) && !facts->upper_btrfs)
		return -EOPNOTSUPP;
	add_launcher(plan, r, facts);
	add_opening(plan, r, facts);
	if (r->profile == PROFILE_FUNCTION)
		add_function(plan, r, facts);
	else
		add_mounts(plan, r, facts);
	add(plan, OP_LIMITS, NULL, NULL, 0, 0);
	add(plan, OP_CONFIG, NULL, NULL, r->config_length, r->tasks.count);
	add(plan, OP_DESCRIPTORS, NULL, NULL, files, 0);
	/* The agent of a function container makes cells, and each program there has the filter. */
	if (r->profile != PROFILE_FUNCTION)
		add(plan, OP_SECCOMP, NULL, NULL, 0, 0);
	add(plan, OP_IDENTITY, NULL, NULL, facts->owner_uid, 0);
	add(plan, OP_EXEC, NULL, NULL, 0, 0);
	return 0;
}

const char *plan_op_name(enum op op)
{
	return op < OP_COUNT ? ops[op].name : "unknown";
}

void plan_describe(const struct plan *plan, unsigned index, char *out, size_t size)
{
	const struct step *s = &plan->steps[index];
	const char *who = index < plan->first_child ? "launcher" : "child";
	int used = snprintf(out, size, "%-8s %-11s ", who, ops[s->op].name);

	for (const char *at = ops[s->op].text; *at && used >= 0 && (size_t)used < size; at++) {
		char *to = out + used;
		size_t room = size - (size_t)used;

		if (*at != '$' || !at[1]) {
			used += snprintf(to, room, "%c", *at);
			continue;
		}
		switch (*++at) {
		case 'a':
			used += snprintf(to, room, "%s", s->a ? s->a : "-");
			break;
		case 'b':
			used += snprintf(to, room, "%s", s->b ? s->b : "-");
			break;
		case 'n':
			used += snprintf(to, room, "%" PRIu64, s->n);
			break;
		case 'o':
			used += snprintf(to, room, "0%" PRIo64, s->n);
			break;
		default:
			used += snprintf(to, room, "%" PRId64, (int64_t)s->m);
		}
	}
}

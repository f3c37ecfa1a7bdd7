#include "seccomp.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "the seccomp program is written for x86_64 and aarch64"
#endif

/* Numbers above this one did not exist when the list was made: they answer ENOSYS, as an older kernel
 * would. That covers x32 (bit 30) too. 469 is file_setattr of 6.17. */
enum { NUMBER_LAST = 469 };

/* Numbers that the distribution's headers may lack; equal on every architecture since 424. */
enum { NR_OPEN_TREE_ATTR = 467, NR_QUOTACTL_FD = 443, NR_MOUNT_SETATTR = 442 };

enum action { ALLOW, DENY, ABSENT, CLONE, CLONE3, SETNS, SOCKET, IOCTL };

struct rule {
	int number;
	enum action action;
};

static const struct rule rules[] = {
	/* Mounts and namespaces: the sandbox's are the host's, nobody inside has a use for them. */
	{__NR_mount, DENY}, {__NR_umount2, DENY}, {__NR_pivot_root, DENY}, {__NR_fsopen, DENY},
	{__NR_fsconfig, DENY}, {__NR_fsmount, DENY}, {__NR_fspick, DENY}, {__NR_move_mount, DENY},
	{__NR_open_tree, DENY}, {NR_OPEN_TREE_ATTR, DENY}, {NR_MOUNT_SETATTR, DENY},
	{__NR_unshare, DENY}, {__NR_clone, CLONE}, {__NR_setns, SETNS},
	{__NR_clone3, CLONE3},
	/* Kernel interfaces with a long record of holes, or that reach across sandboxes. */
	{__NR_keyctl, DENY}, {__NR_add_key, DENY}, {__NR_request_key, DENY}, {__NR_bpf, DENY},
	{__NR_perf_event_open, DENY}, {__NR_userfaultfd, DENY}, {__NR_fanotify_init, DENY},
	{__NR_open_by_handle_at, DENY}, {__NR_syslog, DENY},
	/* ENOSYS, for programs then fall back to epoll. */
	{__NR_io_uring_setup, ABSENT}, {__NR_io_uring_enter, ABSENT}, {__NR_io_uring_register, ABSENT},
	/* The machine's own state. */
	{__NR_kexec_load, DENY}, {__NR_init_module, DENY}, {__NR_finit_module, DENY},
	{__NR_delete_module, DENY}, {__NR_quotactl, DENY}, {NR_QUOTACTL_FD, DENY}, {__NR_swapon, DENY},
	{__NR_swapoff, DENY}, {__NR_reboot, DENY}, {__NR_acct, DENY}, {__NR_settimeofday, DENY},
	{__NR_clock_settime, DENY}, {__NR_clock_adjtime, DENY}, {__NR_adjtimex, DENY},
#ifdef __NR_kexec_file_load
	{__NR_kexec_file_load, DENY},
#endif
#ifdef __NR_lookup_dcookie
	{__NR_lookup_dcookie, DENY},
#endif
#ifdef __NR_nfsservctl
	{__NR_nfsservctl, DENY},
#endif
#ifdef __x86_64__
	{__NR_iopl, DENY}, {__NR_ioperm, DENY}, {__NR_create_module, DENY},
	{__NR_get_kernel_syms, DENY}, {__NR_query_module, DENY}, {__NR_uselib, DENY},
#endif
	/* Checked by their arguments. */
	{__NR_socket, SOCKET}, {__NR_socketpair, SOCKET}, {__NR_ioctl, IOCTL},
};
enum { RULES = sizeof(rules) / sizeof(*rules) };

/* The numbers from `first` to the next range's all have this action. */
struct range {
	uint32_t first;
	enum action action;
};

/* What the program may end in, once each: every branch jumps there. So it is half as long as with an end a
 * branch; the kernel keeps the text of it, and a translation, for each sandbox. */
enum end { END_ALLOW, END_DENY, END_ABSENT, END_FAMILY, ENDS };

static const uint32_t ends[ENDS] = {
	[END_ALLOW] = SECCOMP_RET_ALLOW, [END_DENY] = SECCOMP_RET_ERRNO | EPERM,
	[END_ABSENT] = SECCOMP_RET_ERRNO | ENOSYS, [END_FAMILY] = SECCOMP_RET_ERRNO | EAFNOSUPPORT,
};

/* Written from its end to its beginning, since jumps go forward only. A place is a number of instructions
 * from the end; those of the ends are their numbers in `ends`. */
struct program {
	struct sock_filter *at;
	unsigned used, size;
	struct seccomp_word *words; /* by their places, until all are written */
	unsigned word_count;
	enum seccomp_use use;
};

static unsigned distance(struct program *p, unsigned place)
{
	unsigned between = p->used - 1 - place;

	if (between > UINT8_MAX)
		p->used = p->size + 1; /* found by seccomp_build */
	return between;
}

/* Puts an instruction in front of the others, and returns its place. */
static unsigned put(struct program *p, uint16_t code, uint32_t k, unsigned yes, unsigned no)
{
	if (p->used < p->size)
		p->at[p->size - 1 - p->used] = (struct sock_filter)BPF_JUMP(code, k, (uint8_t)yes, (uint8_t)no);
	return p->used++;
}

static unsigned put_branch(struct program *p, uint16_t test, uint32_t k, unsigned yes, unsigned no)
{
	return put(p, BPF_JMP | test | BPF_K, k, distance(p, yes), distance(p, no));
}

static unsigned put_load(struct program *p, size_t offset)
{
	return put(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

/* Low half of an argument: both architectures are little-endian, and the kernel looks at no more of
 * the arguments that are checked here. */
static unsigned put_argument(struct program *p, unsigned index)
{
	return put_load(p, offsetof(struct seccomp_data, args) + 8 * index);
}

/* `found` if the argument is one of the values, else `other`. */
static unsigned put_choice(struct program *p, unsigned index, const uint32_t *values, unsigned count,
			   unsigned found, unsigned other)
{
	for (unsigned i = count; i-- > 0;)
		other = put_branch(p, BPF_JEQ, values[i], found, other);
	return put_argument(p, index);
}

/* `END_ALLOW` if arguments 2 and 3 are the key, else `other`. Until there is a key, nothing is. */
static unsigned put_key(struct program *p, unsigned other)
{
	unsigned next = END_ALLOW;

	for (unsigned word = SECCOMP_KEY_WORDS; word-- > 0;) {
		struct seccomp_word *w = &p->words[p->word_count++];

		w->number = (uint8_t)word;
		w->right = (uint8_t)distance(p, next);
		w->at = (uint16_t)put_branch(p, BPF_JEQ, 0, other, other);
		next = put_load(p, offsetof(struct seccomp_data, args[2]) + 4 * word);
	}
	return next;
}

/* A zygote joins a cell's pid namespace to fork there, and its child all the others. */
static unsigned put_setns(struct program *p)
{
	static const uint32_t joined[] = {CLONE_NEWPID, CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS};

	switch (p->use) {
	case SECCOMP_CELL:
		return END_DENY;
	case SECCOMP_ZYGOTE:
		return put_choice(p, 1, joined, 2, END_ALLOW, END_DENY);
	case SECCOMP_SANDBOX:
		break;
	}
	put_branch(p, BPF_JEQ, CLONE_NEWUSER, put_key(p, END_DENY), END_DENY);
	return put_argument(p, 1);
}

static unsigned put_action(struct program *p, enum action action)
{
	static const uint32_t families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};
	static const uint32_t terminal[] = {TIOCSTI, 0x541C /* TIOCLINUX */};
	/* CLONE_NEWTIME is not among them: in clone() its bit belongs to the exit signal. */
	static const uint32_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
					   CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

	switch (action) {
	case ALLOW:
		return END_ALLOW;
	case ABSENT:
		return END_ABSENT;
	case CLONE:
		put_branch(p, BPF_JSET, namespaces, END_DENY, END_ALLOW);
		return put_argument(p, 0);
	case CLONE3: /* its flags lie in memory: not to be checked. The C library falls back on ENOSYS */
		return p->use == SECCOMP_SANDBOX ? put_key(p, END_ABSENT) : END_ABSENT;
	case SETNS:
		return put_setns(p);
	case SOCKET:
		return put_choice(p, 0, families, 4, END_ALLOW, END_FAMILY);
	case IOCTL: /* both push input into a terminal that another process reads */
		return put_choice(p, 1, terminal, 2, END_DENY, END_ALLOW);
	case DENY:
		break;
	}
	return END_DENY;
}

static unsigned put_search(struct program *p, const struct range *ranges, unsigned count)
{
	unsigned half = count / 2, low, high;

	if (count == 1)
		return put_action(p, ranges->action);
	high = put_search(p, ranges + half, count - half);
	low = put_search(p, ranges, half);
	return put_branch(p, BPF_JGE, ranges[half].first, high, low);
}

static int by_number(const void *a, const void *b)
{
	return ((const struct rule *)a)->number - ((const struct rule *)b)->number;
}

static unsigned make_ranges(struct range *out)
{
	struct rule sorted[RULES];
	unsigned count = 0;
	uint32_t next = 0;

	for (unsigned i = 0; i < RULES; i++)
		sorted[i] = rules[i];
	qsort(sorted, RULES, sizeof(*sorted), by_number);
	for (unsigned i = 0; i < RULES; i++) {
		uint32_t number = (uint32_t)sorted[i].number;

		if (number > next)
			out[count++] = (struct range){next, ALLOW};
		if (!count || out[count - 1].action != sorted[i].action || number > next)
			out[count++] = (struct range){number, sorted[i].action};
		next = number + 1;
	}
	if (next <= NUMBER_LAST)
		out[count++] = (struct range){next, ALLOW};
	out[count++] = (struct range){NUMBER_LAST + 1, ABSENT};
	return count;
}

int seccomp_build(struct seccomp_program *out, unsigned size, enum seccomp_use use)
{
	struct range ranges[2 * RULES + 2];
	struct program p = {.at = out->code, .size = size, .words = out->words, .use = use};
	unsigned count = make_ranges(ranges), ours;

	for (unsigned i = 0; i < ENDS; i++)
		put(&p, BPF_RET | BPF_K, ends[i], 0, 0);
	put_search(&p, ranges, count);
	ours = put_load(&p, offsetof(struct seccomp_data, nr));
	put_branch(&p, BPF_JEQ, ARCH, ours, END_DENY);
	put_load(&p, offsetof(struct seccomp_data, arch));
	out->count = 0;
	if (p.used > p.size)
		return -E2BIG;
	memmove(out->code, out->code + p.size - p.used, p.used * sizeof(*out->code));
	for (unsigned i = 0; i < p.word_count; i++)
		out->words[i].at = (uint16_t)(p.used - 1 - out->words[i].at);
	out->word_count = p.word_count;
	out->count = p.used;
	return (int)p.used;
}

int seccomp_key_set(struct seccomp_program *program, const uint32_t key[SECCOMP_KEY_WORDS])
{
	uint32_t any = 0;

	for (unsigned word = 0; word < SECCOMP_KEY_WORDS; word++)
		any |= key[word];
	if (!any || !program->count || !program->word_count)
		return -EINVAL;
	for (unsigned i = 0; i < program->word_count; i++) {
		const struct seccomp_word *w = &program->words[i];

		program->code[w->at].k = key[w->number];
		program->code[w->at].jt = w->right;
	}
	return 0;
}

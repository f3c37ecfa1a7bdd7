/* The seccomp program, run by a small interpreter against what the list promises. */
#include "../filter/seccomp.c"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct seccomp_program built;
static struct sock_filter *const program = built.code;
static int count;
static const uint32_t key[SECCOMP_KEY_WORDS] = {1, 0x80000002, 0, 4};
static const uint64_t shown[2] = {0x8000000200000001ull, 0x0000000400000000ull};
static unsigned longest;

static uint32_t run(const struct seccomp_data *data)
{
	uint32_t a = 0;
	unsigned steps = 0;

	for (int pc = 0; pc < count; pc++) {
		const struct sock_filter *i = &program[pc];

		if (++steps > longest)
			longest = steps;
		switch (i->code) {
		case BPF_LD | BPF_W | BPF_ABS:
			assert(i->k + 4 <= sizeof(*data) && i->k % 4 == 0);
			memcpy(&a, (const char *)data + i->k, 4);
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			pc += a == i->k ? i->jt : i->jf;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			pc += a >= i->k ? i->jt : i->jf;
			break;
		case BPF_JMP | BPF_JSET | BPF_K:
			pc += a & i->k ? i->jt : i->jf;
			break;
		case BPF_RET | BPF_K:
			return i->k;
		default:
			assert(!"an instruction that the builder does not use");
		}
	}
	assert(!"fell off the end");
	return 0;
}

static uint32_t ask_with(int nr, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3)
{
	struct seccomp_data data = {.nr = nr, .arch = ARCH, .args = {a0, a1, a2, a3}};

	return run(&data);
}

static uint32_t ask(int nr, uint64_t a0, uint64_t a1)
{
	return ask_with(nr, a0, a1, 0, 0);
}

static uint32_t error(int number)
{
	return SECCOMP_RET_ERRNO | (uint32_t)number;
}

/* Every number, against the list read in the plain way. */
static void test_every_number(void)
{
	for (int nr = 0; nr < 1024; nr++) {
		enum action action = nr > NUMBER_LAST ? ABSENT : ALLOW;

		for (unsigned i = 0; i < RULES; i++)
			if (rules[i].number == nr)
				action = rules[i].action;
		if (action == ALLOW)
			assert(ask(nr, ~0ull, ~0ull) == SECCOMP_RET_ALLOW);
		else if (action == DENY)
			assert(ask(nr, 0, 0) == error(EPERM));
		else if (action == ABSENT)
			assert(ask(nr, 0, 0) == error(ENOSYS));
	}
}

static void test_no_number_twice(void)
{
	for (unsigned i = 0; i < RULES; i++)
		for (unsigned j = 0; j < i; j++)
			assert(rules[i].number != rules[j].number);
}

static void test_arguments(void)
{
	static const int flags[] = {CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC,
				    CLONE_NEWUTS, CLONE_NEWCGROUP};

	assert(ask(__NR_clone, 0x01200011, 0) == SECCOMP_RET_ALLOW);
	assert(ask(__NR_clone, 0x3d0f00, 0) == SECCOMP_RET_ALLOW); /* a thread */
	for (unsigned i = 0; i < 7; i++)
		assert(ask(__NR_clone, (uint64_t)flags[i] | 17, 0) == error(EPERM));
	for (uint64_t family = 0; family < 64; family++) {
		bool fine = family == AF_UNIX || family == AF_INET || family == AF_INET6 ||
			    family == AF_NETLINK;
		uint32_t wanted = fine ? SECCOMP_RET_ALLOW : error(EAFNOSUPPORT);

		assert(ask(__NR_socket, family, 0) == wanted);
		assert(ask(__NR_socketpair, family, 0) == wanted);
	}
	assert(ask(__NR_ioctl, 0, TIOCSTI) == error(EPERM));
	assert(ask(__NR_ioctl, 0, 0xffffffff00000000ull | TIOCSTI) == error(EPERM));
	assert(ask(__NR_ioctl, 0, 0x541C) == error(EPERM));
	assert(ask(__NR_ioctl, 0, TIOCGWINSZ) == SECCOMP_RET_ALLOW);
}

/* Both calls, with the key, and with every key that is wrong in one bit. */
static void test_key(void)
{
	const struct {
		int nr;
		uint64_t flags;
		uint32_t refused;
	} calls[] = {{__NR_clone3, 88, error(ENOSYS)}, {__NR_setns, CLONE_NEWUSER, error(EPERM)}};

	for (unsigned i = 0; i < 2; i++) {
		int nr = calls[i].nr;
		uint64_t flags = calls[i].flags;

		assert(ask_with(nr, 3, flags, shown[0], shown[1]) == SECCOMP_RET_ALLOW);
		assert(ask(nr, 3, flags) == calls[i].refused);
		assert(ask_with(nr, 3, flags, shown[1], shown[0]) == calls[i].refused);
		for (unsigned bit = 0; bit < 64; bit++) {
			assert(ask_with(nr, 3, flags, shown[0] ^ 1ull << bit, shown[1]) == calls[i].refused);
			assert(ask_with(nr, 3, flags, shown[0], shown[1] ^ 1ull << bit) == calls[i].refused);
		}
	}
	assert(ask_with(__NR_setns, 3, 0, shown[0], shown[1]) == error(EPERM));
	assert(ask_with(__NR_setns, 3, CLONE_NEWUSER | CLONE_NEWNS, shown[0], shown[1]) == error(EPERM));
}

static void test_without_a_key_nobody_has_one(void)
{
	const uint32_t none[SECCOMP_KEY_WORDS] = {0}, *words[] = {none, key};

	assert(seccomp_key_set(&built, none) == -EINVAL);
	for (unsigned i = 0; i < 2; i++) {
		uint64_t low = words[i][0] | (uint64_t)words[i][1] << 32;
		uint64_t high = words[i][2] | (uint64_t)words[i][3] << 32;

		assert(ask_with(__NR_clone3, 0, 88, low, high) == error(ENOSYS));
		assert(ask_with(__NR_setns, 3, CLONE_NEWUSER, low, high) == error(EPERM));
	}
}

/* Of two sandboxes neither has the other's. */
static void test_another_key_takes_the_place_of_the_first(void)
{
	const uint32_t other[SECCOMP_KEY_WORDS] = {9, 9, 9, 9};

	assert(!seccomp_key_set(&built, other));
	assert(ask_with(__NR_clone3, 0, 88, shown[0], shown[1]) == error(ENOSYS));
	assert(!seccomp_key_set(&built, key));
	test_key();
}

static void test_other_architectures(void)
{
	struct seccomp_data data = {.nr = 1, .arch = AUDIT_ARCH_I386};

	assert(run(&data) == error(EPERM));
	data.arch = AUDIT_ARCH_ARM;
	assert(run(&data) == error(EPERM));
	/* x32: the same architecture, numbers from bit 30. */
	assert(ask(0x40000000 | 1, 0, 0) == error(ENOSYS));
	assert(ask(-1, 0, 0) == error(ENOSYS));
}

static void test_too_small_a_buffer(void)
{
	static struct seccomp_program few;

	assert(seccomp_build(&few, 8, SECCOMP_SANDBOX) == -E2BIG);
	assert(seccomp_key_set(&few, key) == -EINVAL);
}

/* Nobody in a cell makes the agent's calls, with or without a key; a zygote joins in two steps. */
static void test_cells(void)
{
	const uint64_t rest = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS;

	for (enum seccomp_use use = SECCOMP_CELL; use <= SECCOMP_ZYGOTE; use++) {
		uint32_t joins = use == SECCOMP_ZYGOTE ? SECCOMP_RET_ALLOW : error(EPERM);

		count = seccomp_build(&built, SECCOMP_PROGRAM_MAX, use);
		assert(count > 0 && seccomp_key_set(&built, key) == -EINVAL);
		test_every_number();
		test_arguments();
		assert(ask_with(__NR_clone3, 3, 88, shown[0], shown[1]) == error(ENOSYS));
		assert(ask_with(__NR_setns, 3, CLONE_NEWUSER, shown[0], shown[1]) == error(EPERM));
		assert(ask(__NR_setns, 3, CLONE_NEWPID) == joins && ask(__NR_setns, 3, rest) == joins);
		assert(ask(__NR_setns, 3, 0) == error(EPERM));
		assert(ask(__NR_setns, 3, rest | CLONE_NEWUSER) == error(EPERM));
		assert(ask(__NR_setns, 3, CLONE_NEWNS) == error(EPERM));
		assert(ask(__NR_setns, 3, CLONE_NEWPID | 1ull << 32) == joins); /* the kernel takes an int */
	}
}

int main(void)
{
	count = seccomp_build(&built, SECCOMP_PROGRAM_MAX, SECCOMP_SANDBOX);
	assert(count > 0);
	test_without_a_key_nobody_has_one();
	assert(!seccomp_key_set(&built, key));
	test_no_number_twice();
	test_every_number();
	test_arguments();
	test_key();
	test_another_key_takes_the_place_of_the_first();
	test_other_architectures();
	test_too_small_a_buffer();
	printf("seccomp: %d instructions, at most %u run\n", count, longest);
	test_cells();
	return 0;
}

/* The base seccomp program: a binary search over ranges of system call numbers. Shared by the launcher, which
 * installs it in every sandbox, and the agent, which does so in each program of a cell. */
#ifndef SKERRY_SECCOMP_H
#define SKERRY_SECCOMP_H

#include <linux/filter.h>
#include <stdint.h>

enum { SECCOMP_PROGRAM_MAX = 512, SECCOMP_KEY_WORDS = 4, SECCOMP_WORDS = 2 * SECCOMP_KEY_WORDS };

/* Who it is for. In a sandbox two calls are for the agent alone: clone3 into a group, and setns into the
 * sandbox's user namespace. It shows a key of the sandbox's own in the third and fourth argument, which the
 * kernel does not look at. In a cell nobody makes these calls; a zygote joins cells with setns, in its two steps. */
enum seccomp_use { SECCOMP_SANDBOX, SECCOMP_CELL, SECCOMP_ZYGOTE };

struct seccomp_program {
	struct sock_filter code[SECCOMP_PROGRAM_MAX];
	unsigned count;
	struct seccomp_word { /* where a word of the key is compared */
		uint16_t at;
		uint8_t number, right; /* how far to jump if it is right */
	} words[SECCOMP_WORDS];
	unsigned word_count;
};

/* The number of instructions, or -E2BIG. That of a sandbox lets nobody make those calls until it has a key. */
int seccomp_build(struct seccomp_program *out, unsigned size, enum seccomp_use use);
/* -EINVAL for a program without places for a key, as all but a sandbox's are, or a key of zeros: nothing would
 * be secret. */
int seccomp_key_set(struct seccomp_program *program, const uint32_t key[SECCOMP_KEY_WORDS]);

#endif

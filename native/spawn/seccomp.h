/* The base seccomp program of every sandbox: a binary search over ranges of system call numbers. */
#ifndef SKERRY_SECCOMP_H
#define SKERRY_SECCOMP_H

#include <linux/filter.h>

enum { SECCOMP_PROGRAM_MAX = 512 };

/* The number of instructions, or -E2BIG. */
int seccomp_build(struct sock_filter *out, unsigned size);

#endif

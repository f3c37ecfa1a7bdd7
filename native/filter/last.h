/* What user code has above the base filter where that lets a zygote or the agent call clone3 and setns: nobody
 * needs them from there on. ENOSYS for clone3, for C libraries fall back from it on that only. The base filter
 * has looked at the architecture. */
#ifndef SKERRY_LAST_FILTER_H
#define SKERRY_LAST_FILTER_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

static const struct sock_filter LAST_FILTER[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 2, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setns, 2, 0),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
};

#endif

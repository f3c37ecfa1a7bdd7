/* A CALL packet, checked. No I/O: unit tests and a fuzz target include call.c. */
#ifndef SKERRY_ZYGOTE_CALL_H
#define SKERRY_ZYGOTE_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "talk.h"

enum { CALL_RLIMITS = 16, CALL_CWD = 256, CALL_STDIO = 5 };

struct call_rlimit {
	uint64_t resource, soft, hard;
};

/* What is done with one of the descriptors that came along. */
struct call_use {
	enum zygote_tag tag; /* Z_FD, Z_JOIN or Z_GROUP */
	uint64_t value;
};

/* Invariants: 1, 2 and 3 are among the descriptors and none is there twice; uid and gid are not 0. */
struct call {
	uint32_t number;
	uint32_t uid, gid;
	size_t uses, rlimits;
	struct call_use use[ZYGOTE_FDS_MAX];
	struct call_rlimit rlimit[CALL_RLIMITS];
	char cwd[CALL_CWD]; /* "" if none was given */
};

/* 0; -EPROTO for what is no such packet; -EPERM for one that would run user code as root. The number is set
 * if the packet has one. */
int call_parse(const uint8_t *packet, size_t size, struct call *out);

#endif

/* What a START asks for. */
#ifndef SKERRY_INIT_REQUEST_H
#define SKERRY_INIT_REQUEST_H

#include "init.h"

struct request {
	const uint8_t *id;
	uint64_t kind, timeout_ms, quiet_ms, in, merge, rows, cols;
	uint64_t cell, cpu_ms, result; /* cell: NEVER if none is named */
	struct limits limits;
	bool pty;
	uint32_t args;
};

/* False: the frame is not one. */
bool request_parse(const uint8_t *payload, size_t length, struct request *r);
/* Where it runs: in a function container in cells, and only there. 0, or an errno value with *step. */
int request_place(const struct request *r, struct launch *l, const char **step);

#endif

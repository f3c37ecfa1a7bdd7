/* The lines of /proc/PID/maps, as far as giving memory back needs them (proc_pid_maps(5)). The names in
 * them are the sandbox's to choose; only the numbers before them are believed. Pure functions. */
#ifndef SKERRY_MAPS_H
#define SKERRY_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct range {
	uint64_t start, end; /* Invariant: start < end, whole pages below 2^63 */
	bool anonymous;      /* no file is behind it: all of its content is memory or swap */
};

/* Text comes in pieces that end anywhere; a line is at most `MAPS_LINE` long as far as it matters. */
enum { MAPS_LINE = 128 };
struct maps {
	char line[MAPS_LINE];
	size_t used;
};

/* Takes one byte; true when a line is complete and `out` filled. Lines that are no range are left out,
 * and so are those of the kernel's own pages ([vdso] and its like). */
bool maps_byte(struct maps *m, char byte, struct range *out);

#endif

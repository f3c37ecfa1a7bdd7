/* What a request may name: ids, host names, and paths below the launcher's roots. Pure functions. */
#ifndef SKERRY_NAMES_H
#define SKERRY_NAMES_H

#include <stdbool.h>

enum { ROOTS_MAX = 32, PATH_TEXT_MAX = 1023, NODE_COMPONENT_MAX = 31 };

struct roots {
	const char *paths[ROOTS_MAX];
	unsigned count;
};

/* 1 to 64 of a-z, 0-9, '_', '-': such an id is one path component and needs no quoting. */
bool id_valid(const char *id);
bool hostname_valid(const char *name);
/* Of a device below /dev: one component or two, of 1 to 31 letters, digits, '.', '_', '-', no dot first. */
bool node_valid(const char *name);
/* Absolute, bounded, and without empty, "." or ".." components. */
bool path_clean(const char *path);
/* A clean path strictly below one of the roots. */
bool path_below(const char *path, const struct roots *roots);
bool roots_add(struct roots *roots, const char *path);

#endif

/* The directories that a watch has its eyes on: a tree by names, found by inotify's numbers. */
#ifndef SKERRY_WATCH_TREE_H
#define SKERRY_WATCH_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "file.h"

enum { WATCH_MAX = 16384, WATCH_NONE = -1 };

/* The place of a directory in the table, or WATCH_NONE. */
int watch_find(int wd);
/* Enters a directory, or gives one that is known its present place and name. Ends the helper when there
 * are too many. True if it is new. */
bool watch_enter(int wd, int parent, const char *name);
void watch_forget(int wd);
/* The wd of a child by its name, or -1. */
int watch_child(int parent, const char *name);
/* Calls for each directory at and below one, children first or last as it comes. */
void watch_each_below(int wd, void (*call)(int wd));
/* Path of `name` in a directory, relative to the tree, into path; false if it is too long. */
bool watch_path(char path[TREE_PATH], int wd, const char *name);

/* True for what the kernel calls a file without a name ("#" and its number, O_TMPFILE), unless a file
 * below root has that very name. */
bool watch_nameless(int root, int wd, const char *name);

/* After a loss: what is not entered again is given up. */
void watch_unmark(void);
void watch_sweep(void (*call)(int wd));

#endif

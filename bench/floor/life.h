/* One life of the floor: shared between the steps (life.c) and the program (floor.c). */
#ifndef FLOOR_LIFE_H
#define FLOOR_LIFE_H

#include <limits.h>

enum { IDS_FIRST = 100000, IDS_COUNT = 65536 };

/* Where limit groups are made. v1: one directory descriptor per hierarchy. v2: only [0]. */
struct groups {
    int v2;
    int dir[3];
};

/* What a worker keeps over its lives: descriptors of the host, nothing that a life could reuse.
 * Every descriptor is close-on-exec. */
struct host {
    struct groups groups;
    int layer;          /* detached mount of the read-only layer */
    int proc;           /* the host's /proc, which is outside the worker's mount namespace */
    int scratch;        /* directory for uppers, inside the worker's mount namespace */
    const char *exec;   /* the static no-op, a path inside the layer */
};

/* Where a life failed; lives in shared memory so that the child can say it too. */
struct failure {
    char step[48];
    int error;
};

/* Runs one life from nothing to nothing. Returns 0, or -1 with *why filled in; in both cases
 * everything the life made has been removed, as far as the kernel allowed it. */
int life(const struct host *host, const char *name, struct failure *why);

/* Wrappers of system calls that the C library lacks. */
int fs_open(const char *type);
int fs_set(int fs, const char *key, const char *value);
int fs_set_fd(int fs, const char *key, int fd);
int fs_flag(int fs, const char *key);
int fs_mount(int fs, unsigned attributes);
int tree_clone(int dirfd, const char *path);
int mount_move(int from, int to_dirfd, const char *to);
int write_at(int dirfd, const char *path, const char *text);

#endif

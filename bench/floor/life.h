/* One life of the floor: shared between the steps (life.c) and the program (floor.c). */
#ifndef FLOOR_LIFE_H
#define FLOOR_LIFE_H

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
    int proc;                 /* the host's /proc, which is outside the mount namespace */
    int scratch;              /* directory for uppers, inside the mount namespace */
    const char *scratch_path; /* the same, as every clone of that namespace sees it */
    const char *layer_path;   /* the read-only layer's mount */
    const char *exec;         /* the static no-op, a path inside the layer */
};

/* Where a life failed; lives in shared memory so that the child can say it too. */
struct failure {
    char step[48];
    int error;
};

/* Runs one life from nothing to nothing. Returns 0, or -1 with *why filled in; in both cases
 * everything the life made has been removed, as far as the kernel allowed it. */
int life(const struct host *host, const char *name, struct failure *why);

#endif

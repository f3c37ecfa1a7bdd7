/* Users that earlier children looked up: what they read is not read again while the files are the same. */
#ifndef SKERRY_KNOWN_H
#define SKERRY_KNOWN_H

#include <stdint.h>

#include "userdb.h"

enum { KNOWN_USERS = 4, KNOWN_TEXT = 128, KNOWN_GROUPS = 16 };

/* A file as it was when it was read: who changes it, or puts another in its place, changes one of these. */
struct stamp {
	int64_t dev, ino, size, sec, nsec; /* the time is that of the last change of the inode */
};

/* Lies in memory that all children share; only they write it, and only before their exec. */
struct known {
	uint32_t turn; /* odd while it is written, for ever if the writer was killed; 0: empty */
	uint32_t uid, gid, group_count;
	struct stamp files[2]; /* passwd, group */
	char spec[USERDB_NAME], name[USERDB_NAME], home[KNOWN_TEXT], shell[USERDB_NAME];
	uint32_t groups[KNOWN_GROUPS];
};

/* As identity_resolve. `all` is KNOWN_USERS of them, or NULL. */
int known_resolve(struct known *all, const char *spec, struct identity *out);

#endif

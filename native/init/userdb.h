/* Users and groups as the sandbox's own files tell them: hostile text, read within bounds. */
#ifndef SKERRY_USERDB_H
#define SKERRY_USERDB_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { USERDB_GROUPS = 256, USERDB_NAME = 64, USERDB_PATH = 1024 };

struct identity {
	uid_t uid;
	gid_t gid;
	size_t group_count;
	char name[USERDB_NAME];
	char home[USERDB_PATH];
	char shell[USERDB_PATH];
	gid_t groups[USERDB_GROUPS];
};

/* Calls line() for each line of a file's text, cut at USERDB_LINE bytes, until it says true. */
struct line_reader {
	size_t used;
	bool skip; /* the line is too long: not a line that we would believe */
	char line[4096]; /* last: only the pages of a usual line are touched */
};
bool lines_feed(struct line_reader *r, const char *text, size_t n,
		bool (*line)(char *line, void *arg), void *arg);
bool lines_end(struct line_reader *r, bool (*line)(char *line, void *arg), void *arg);

/* A decimal number that fits an id; anything else is false. */
bool id_parse(const char *text, unsigned int *out);
/* True if this line of passwd is the wanted one: by name, or by uid if name is NULL. */
bool passwd_line(char *line, const char *name, uid_t uid, struct identity *out);
/* Adds the group of this line of group to out if name is among its members. */
void group_line(char *line, const char *name, struct identity *out);

/* spec is "name", "uid" or "uid:gid". 0, or -EINVAL for a user that there is not. */
int identity_resolve(const char *spec, struct identity *out);
/* The gid of a group by its name. 0, or -EINVAL. */
int group_resolve(const char *name, unsigned int *gid);

#endif

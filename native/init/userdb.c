#include "userdb.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILE_MAX = 4 << 20 };

bool id_parse(const char *text, unsigned int *out)
{
	unsigned long long value = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		value = value * 10 + (unsigned int)(*text - '0');
		if (value >= 0xffffffffu) /* -1 means "leave as it is" to the kernel */
			return false;
	}
	*out = (unsigned int)value;
	return true;
}

static void copy(char *out, size_t size, const char *text)
{
	size_t n = strlen(text);

	if (n >= size)
		n = 0; /* a cut path would be another path */
	memcpy(out, text, n);
	out[n] = 0;
}

/* Cuts the line at its colons; false unless it has as many fields as asked for. */
static bool split(char *line, char **field, int count)
{
	for (int i = 0; i < count; i++) {
		field[i] = line;
		line = strchr(line, ':');
		if (i + 1 == count) {
			if (line)
				*line = 0;
			return true;
		}
		if (!line)
			return false;
		*line++ = 0;
	}
	return false;
}

bool passwd_line(char *line, const char *name, uid_t uid, struct identity *out)
{
	unsigned int found_uid, found_gid;
	char *f[7];

	if (!split(line, f, 7) || !*f[0] || !id_parse(f[2], &found_uid) || !id_parse(f[3], &found_gid))
		return false;
	if (name ? strcmp(name, f[0]) != 0 : uid != found_uid)
		return false;
	out->uid = found_uid;
	out->gid = found_gid;
	copy(out->name, sizeof(out->name), f[0]);
	copy(out->home, sizeof(out->home), f[5]);
	copy(out->shell, sizeof(out->shell), f[6]);
	return true;
}

void group_line(char *line, const char *name, struct identity *out)
{
	unsigned int gid;
	char *f[4], *member, *rest;

	if (!split(line, f, 4) || !id_parse(f[2], &gid))
		return;
	for (member = f[3]; member; member = rest) {
		rest = strchr(member, ',');
		if (rest)
			*rest++ = 0;
		if (strcmp(member, name))
			continue;
		for (size_t i = 0; i < out->group_count; i++)
			if (out->groups[i] == gid)
				return;
		if (out->group_count < USERDB_GROUPS)
			out->groups[out->group_count++] = gid;
		return;
	}
}

bool lines_end(struct line_reader *r, bool (*line)(char *line, void *arg), void *arg)
{
	bool done = false;

	r->line[r->used] = 0;
	/* A NUL inside would hide the rest of the line from us but not from others. */
	if (!r->skip && r->used && strlen(r->line) == r->used)
		done = line(r->line, arg);
	r->used = 0;
	r->skip = false;
	return done;
}

bool lines_feed(struct line_reader *r, const char *text, size_t n,
		bool (*line)(char *line, void *arg), void *arg)
{
	for (size_t i = 0; i < n; i++) {
		if (text[i] == '\n') {
			if (lines_end(r, line, arg))
				return true;
		} else if (r->used + 1 < sizeof(r->line)) {
			r->line[r->used++] = text[i];
		} else {
			r->skip = true;
		}
	}
	return false;
}

/* Opened so that nothing inside can make us wait or reach out: no FIFO, no device, no magic link. */
static int open_plain(const char *path)
{
	struct open_how how = {.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
			       .resolve = RESOLVE_NO_MAGICLINKS};
	struct stat st;
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));

	if (fd < 0)
		return -1;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return -1;
}

static void scan(const char *path, bool (*line)(char *line, void *arg), void *arg)
{
	struct line_reader r;
	char text[2048];
	size_t total = 0;
	ssize_t n;
	int fd = open_plain(path);

	if (fd < 0)
		return;
	r.used = 0;
	r.skip = false;
	while (total < FILE_MAX && (n = read(fd, text, sizeof(text))) > 0) {
		total += (size_t)n;
		if (lines_feed(&r, text, (size_t)n, line, arg))
			break;
	}
	if (r.used)
		lines_end(&r, line, arg);
	close(fd);
}

struct wanted {
	const char *name; /* NULL: by uid */
	uid_t uid;
	struct identity *out;
	bool found;
};

static bool passwd_wanted(char *line, void *arg)
{
	struct wanted *w = arg;

	w->found = passwd_line(line, w->name, w->uid, w->out);
	return w->found;
}

static bool group_wanted(char *line, void *arg)
{
	struct wanted *w = arg;

	group_line(line, w->out->name, w->out);
	return false;
}

int identity_resolve(const char *spec, struct identity *out)
{
	const char *colon = strchr(spec, ':');
	struct wanted w = {.name = spec, .out = out};
	char uid[USERDB_NAME];
	unsigned int id, gid = 0;

	out->uid = out->gid = 0;
	out->group_count = 0;
	*out->name = *out->home = *out->shell = 0; /* the rest is in fresh pages */
	copy(uid, sizeof(uid), spec);
	if (colon && colon - spec < USERDB_NAME) {
		memcpy(uid, spec, (size_t)(colon - spec));
		uid[colon - spec] = 0;
	}
	if (id_parse(uid, &id)) {
		w.name = NULL;
		w.uid = out->uid = id;
	} else if (colon) {
		return -EINVAL;
	}
	if (colon && !id_parse(colon + 1, &gid))
		return -EINVAL;
	scan("/etc/passwd", passwd_wanted, &w);
	if (w.name && !w.found && strcmp(spec, "root")) /* root is one everywhere, without files too */
		return -EINVAL;
	if (colon)
		out->gid = gid; /* exactly what was asked for: no supplementary groups */
	else if (w.found)
		scan("/etc/group", group_wanted, &w);
	if (!w.found)
		copy(out->name, sizeof(out->name), uid);
	if (*out->home != '/')
		copy(out->home, sizeof(out->home), out->uid ? "/" : "/root");
	if (*out->shell != '/')
		copy(out->shell, sizeof(out->shell), "/bin/sh");
	return 0;
}

struct named {
	const char *name;
	unsigned int gid;
	bool found;
};

static bool group_named(char *line, void *arg)
{
	struct named *n = arg;
	char *f[4];

	n->found = split(line, f, 4) && !strcmp(f[0], n->name) && id_parse(f[2], &n->gid);
	return n->found;
}

int group_resolve(const char *name, unsigned int *gid)
{
	struct named n = {.name = name};

	scan("/etc/group", group_named, &n);
	*gid = n.gid;
	return n.found ? 0 : -EINVAL;
}

#include "watch_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 2 * WATCH_MAX, NAME_SIZE = 256 };

struct entry {
	int wd; /* 0: free */
	int parent;
	uint32_t name; /* its place in names */
	bool marked;
};
static struct entry table[BUCKETS]; /* open addressing; freed ones stay as stones */
static bool stone[BUCKETS];
static uint32_t used;
static char names[WATCH_MAX][NAME_SIZE]; /* pages that were never touched cost nothing */
static uint32_t names_used, names_free[WATCH_MAX], names_free_count;

static struct entry *look(int wd)
{
	uint32_t at = (uint32_t)wd * 2654435761u % BUCKETS;

	for (uint32_t i = 0; i < BUCKETS; i++, at = (at + 1) % BUCKETS) {
		if (table[at].wd == wd)
			return &table[at];
		if (!table[at].wd && !stone[at])
			return NULL;
	}
	return NULL;
}

static struct entry *place(int wd)
{
	uint32_t at = (uint32_t)wd * 2654435761u % BUCKETS;

	if (used >= WATCH_MAX)
		file_fail(E2BIG, "watches");
	while (table[at].wd)
		at = (at + 1) % BUCKETS;
	used++;
	stone[at] = false;
	table[at].wd = wd;
	table[at].name = names_free_count ? names_free[--names_free_count] : names_used++;
	return &table[at];
}

int watch_find(int wd)
{
	return look(wd) ? wd : WATCH_NONE;
}

bool watch_enter(int wd, int parent, const char *name)
{
	struct entry *e = look(wd);
	bool fresh = !e;
	size_t n = strlen(name);

	if (n >= NAME_SIZE)
		file_fail(ENAMETOOLONG, "watches");
	if (fresh)
		e = place(wd);
	e->parent = parent;
	e->marked = true;
	memcpy(names[e->name], name, n + 1);
	return fresh;
}

void watch_forget(int wd)
{
	struct entry *e = look(wd);

	if (!e)
		return;
	names_free[names_free_count++] = e->name;
	*e = (struct entry){.wd = 0};
	stone[e - table] = true;
	used--;
}

int watch_child(int parent, const char *name)
{
	for (uint32_t i = 0; i < BUCKETS; i++)
		if (table[i].wd && table[i].parent == parent && !strcmp(names[table[i].name], name))
			return table[i].wd;
	return WATCH_NONE;
}

static bool below(const struct entry *e, int wd)
{
	for (uint32_t i = 0; e && i <= WATCH_MAX; i++) {
		if (e->wd == wd)
			return true;
		e = e->parent == WATCH_NONE ? NULL : look(e->parent);
	}
	return false;
}

void watch_each_below(int wd, void (*call)(int wd))
{
	static int found[WATCH_MAX];
	uint32_t count = 0;

	for (uint32_t i = 0; i < BUCKETS; i++)
		if (table[i].wd && below(&table[i], wd))
			found[count++] = table[i].wd;
	for (uint32_t i = 0; i < count; i++)
		call(found[i]);
}

/* Puts a part before what stands at *at. */
static bool part_put(char *path, size_t *at, const char *name)
{
	size_t n = strlen(name);

	if (n + 1 > *at)
		return false;
	if (n && path[*at])
		path[--*at] = '/';
	*at -= n;
	memcpy(path + *at, name, n);
	return true;
}

bool watch_path(char path[TREE_PATH], int wd, const char *name)
{
	const struct entry *e = look(wd);
	size_t at = TREE_PATH - 1;
	bool fits;

	path[at] = 0;
	fits = part_put(path, &at, name);
	for (uint32_t i = 0; e && fits && i <= WATCH_MAX; i++) {
		fits = part_put(path, &at, names[e->name]);
		e = e->parent == WATCH_NONE ? NULL : look(e->parent);
	}
	if (fits)
		memmove(path, path + at, TREE_PATH - at);
	return fits;
}

bool watch_nameless(int root, int wd, const char *name)
{
	static char path[TREE_PATH];
	int fd;

	if (*name != '#' || !name[1] || name[1 + strspn(name + 1, "0123456789")])
		return false;
	if (!watch_path(path, wd, name))
		return false;
	fd = beneath_open(root, path, O_PATH | O_NOFOLLOW);
	if (fd >= 0)
		close(fd);
	return fd == -ENOENT;
}

void watch_unmark(void)
{
	for (uint32_t i = 0; i < BUCKETS; i++)
		table[i].marked = false;
}

void watch_sweep(void (*call)(int wd))
{
	for (uint32_t i = 0; i < BUCKETS; i++) {
		int wd = table[i].wd;

		if (wd && !table[i].marked) {
			call(wd);
			watch_forget(wd);
		}
	}
}

/* walk: records of what is below a directory, as a stream. usage: what it takes up. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <unistd.h>

#include "file.h"

enum { STARS_MAX = 4, PIECE_MAX = 256 };

static char path[TREE_PATH]; /* of the entry at hand, relative to the tree */
static uint64_t depth_max;
static const char *kinds, *glob; /* NULL: all */
static bool stay;
static dev_t home_dev;

/* "a/b*" + "**": part by part; ** stands for any number of parts, also none. */
static bool matches(const char *pattern, const char *name)
{
	char part[PIECE_MAX];
	size_t p = strcspn(pattern, "/"), n = strcspn(name, "/");

	if (!*pattern)
		return !*name;
	if (p == 2 && !strncmp(pattern, "**", 2)) {
		if (!pattern[p])
			return true;
		for (;; name += n + 1) {
			n = strcspn(name, "/");
			if (matches(pattern + p + 1, name))
				return true;
			if (!name[n])
				return false;
		}
	}
	if (!*name || p >= sizeof(part) || n >= PIECE_MAX)
		return false;
	{
		char whole[PIECE_MAX];

		memcpy(part, pattern, p);
		part[p] = 0;
		memcpy(whole, name, n);
		whole[n] = 0;
		if (fnmatch(part, whole, 0))
			return false;
	}
	return matches(pattern + p + (pattern[p] == '/'), name + n + (name[n] == '/'));
}

/* A pattern without a slash is matched with the last part alone. */
static bool wanted(const char *name, const struct stat *st)
{
	if (kinds && !strchr(kinds, type_letter(st->st_mode)))
		return false;
	return !glob || matches(glob, strchr(glob, '/') ? path : name);
}

static void walk(int fd, uint64_t depth);

static void entry_put(int dir, const char *name, uint64_t depth)
{
	char letter;
	struct stat st;
	int below = -1;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return; /* gone by now: it was not there */
	letter = type_letter(st.st_mode);
	if (S_ISDIR(st.st_mode) && depth < depth_max && (!stay || st.st_dev == home_dev)) {
		below = directory_below(dir, name);
		/* Closed to this user, or deeper than we go: said, never left out in silence. */
		if (below < 0 || depth >= FILE_DEPTH_MAX)
			letter = 'D';
	}
	if (wanted(name, &st))
		record_put_as(letter, dir, name, path, &st);
	if (below >= 0 && letter == 'D')
		close(below);
	else if (below >= 0)
		walk(below, depth + 1);
}

/* Takes fd. */
static void walk(int fd, uint64_t depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		file_fail(errno, "open");
	for (errno = 0; (entry = readdir(dir)); errno = 0) {
		size_t n;

		if (is_dots(entry->d_name))
			continue;
		n = path_push(path, entry->d_name);
		entry_put(fd, entry->d_name, depth);
		path[n] = 0;
	}
	if (errno)
		file_fail(errno, "read");
	closedir(dir);
}

static int tree_open(const char *top)
{
	int fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		file_fail(errno, "open");
	home_dev = st.st_dev;
	return fd;
}

/* walk PATH DEPTH FLAGS GLOB (depth 1: its entries; flags: letters of types, x: one file system; glob
 * "": all) */
void file_walk(char **argv)
{
	static char letters[16];
	size_t n = 0;
	int stars = 0;

	depth_max = strcmp(argv[2], "-1") ? number_parse(argv[2], 10, INT64_MAX) : UINT64_MAX;
	for (const char *c = argv[3]; *c; c++) {
		if (*c == 'x')
			stay = true;
		else if (n + 1 < sizeof(letters) && *c != '-')
			letters[n++] = *c;
	}
	kinds = n ? letters : NULL;
	glob = *argv[4] ? argv[4] : NULL;
	for (const char *c = argv[4]; (c = strstr(c, "**")); c += 2)
		stars++;
	if (stars > STARS_MAX) /* each may try every depth */
		file_fail(E2BIG, "glob");
	walk(tree_open(argv[1]), 1);
	out_flush();
}

/* --- usage ------------------------------------------------------------------------------------------- */

static struct {
	uint64_t bytes, allocated, files, directories, unreadable;
} total;

static void usage_add(const struct stat *st)
{
	/* Of several names each has its part: the sum is right when all of them are below. */
	uint64_t names = S_ISDIR(st->st_mode) || !st->st_nlink ? 1 : (uint64_t)st->st_nlink;

	total.allocated += (uint64_t)st->st_blocks * 512 / names;
	if (S_ISDIR(st->st_mode)) {
		total.directories++;
		return;
	}
	total.files++;
	total.bytes += (uint64_t)st->st_size / names;
}

static void usage_below(int fd, int depth)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir)
		file_fail(errno, "open");
	while ((entry = readdir(dir))) {
		struct stat st;
		int below;

		if (is_dots(entry->d_name) || fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		if (st.st_dev != home_dev && S_ISDIR(st.st_mode))
			continue; /* another file system, such as /proc, is not this tree's */
		usage_add(&st);
		if (!S_ISDIR(st.st_mode))
			continue;
		below = depth < FILE_DEPTH_MAX ? directory_below(fd, entry->d_name) : -EMFILE;
		if (below >= 0)
			usage_below(below, depth + 1);
		else
			total.unreadable++;
	}
	closedir(dir);
}

/* usage PATH: "BYTES ALLOCATED FILES DIRECTORIES UNREADABLE\n" */
void file_usage(char **argv)
{
	const uint64_t *numbers[] = {&total.bytes, &total.allocated, &total.files,
				     &total.directories, &total.unreadable};
	struct stat st;
	char text[32];
	size_t n;

	if (lstat(argv[1], &st))
		file_fail(errno, "stat");
	usage_add(&st);
	home_dev = st.st_dev;
	if (S_ISDIR(st.st_mode))
		usage_below(tree_open(argv[1]), 0);
	for (size_t i = 0; i < 5; i++) {
		n = number_text(text, *numbers[i], 10, 1);
		text[n++] = i < 4 ? ' ' : '\n';
		out_bytes(text, n);
	}
	out_flush();
}

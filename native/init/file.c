/* Words of the file helper that need little; file_write.c, remove.c, tree_*.c have the others. */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "init.h"

struct word {
	const char *name;
	int arguments;
	void (*run)(char **argv);
};

static void list_word(char **argv)
{
	DIR *dir = opendir(argv[1]);
	struct dirent *entry;
	struct stat st;

	if (!dir)
		file_fail(errno, "open");
	for (;;) {
		errno = 0;
		entry = readdir(dir);
		if (!entry)
			break;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		/* One that is gone by now was not there. */
		if (!fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
			record_put(dirfd(dir), entry->d_name, entry->d_name, &st);
	}
	if (errno)
		file_fail(errno, "read");
	closedir(dir);
	out_flush();
}

static void stat_word(char **argv)
{
	struct stat st;

	if (lstat(argv[1], &st))
		file_fail(errno, "stat");
	record_put(AT_FDCWD, argv[1], argv[1], &st);
	out_flush();
}

static void follow_word(char **argv)
{
	struct stat st;

	if (stat(argv[1], &st))
		file_fail(errno, "stat");
	record_put(AT_FDCWD, argv[1], argv[1], &st);
	out_flush();
}

static void mkdir_word(char **argv)
{
	mode_t mode = (mode_t)number_parse(argv[2], 8, 07777);
	bool parents = strchr(argv[3], 'p') != NULL;
	const char *name;
	struct stat st;
	int dir;

	/* Also of a path that has no name in a parent: / and what ends in a dot. */
	if (parents && !stat(argv[1], &st) && S_ISDIR(st.st_mode))
		return;
	dir = parent_open(argv[1], &name, parents);
	if (mkdirat(dir, name, mode)) {
		bool there = errno == EEXIST && parents && !fstatat(dir, name, &st, 0) &&
			     S_ISDIR(st.st_mode);

		if (!there)
			file_fail(errno, "mkdir");
		return;
	}
	/* The sticky and set-id bits are not mkdir's to give. */
	if (mode & 07000 && fchmodat(dir, name, mode, 0))
		file_fail(errno, "chmod");
}

static void rename_word(char **argv)
{
	if (rename(argv[1], argv[2]))
		file_fail(errno, "rename");
}

static void chmod_word(char **argv)
{
	if (chmod(argv[1], (mode_t)number_parse(argv[2], 8, 07777)))
		file_fail(errno, "chmod");
}

static const struct word words[] = {
	{"read", 3, file_read},	      {"write", 3, file_write},	  {"stat", 1, stat_word},
	{"list", 1, list_word},	      {"mkdir", 3, mkdir_word},	  {"remove", 2, file_remove},
	{"rename", 2, rename_word},   {"chmod", 2, chmod_word},	  {"tree-get", 1, tree_get},
	{"tree-put", 1, tree_put},    {"follow", 1, follow_word}, {"tail", 2, file_tail},
	{"sparse", 1, file_sparse_read}, {"put", 3, file_patch},	  {"truncate", 2, file_truncate},
	{"utime", 3, file_utime},     {"chown", 3, file_chown},	  {"symlink", 3, file_symlink},
	{"link", 3, file_link},	      {"copy", 3, file_copy},	  {"move", 3, file_move},
	{"walk", 4, file_walk},	      {"usage", 1, file_usage},	  {"watch", 2, file_watch},
};

int file_main(int argc, char **argv)
{
	umask(0); /* modes are given; nothing is taken away from them */
	pipes_widen();
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(words[i].name, argv[0]))
			continue;
		if (argc != words[i].arguments + 1)
			file_fail(EINVAL, "words");
		words[i].run(argv);
		return 0;
	}
	file_fail(EINVAL, "words");
}

/* tree-put PATH: a tar from stdin unpacked beneath a directory. No member's name is followed out of
 * it: parents are opened with RESOLVE_BENEATH and without links, the last component never follows. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "sparse.h"
#include "tar.h"

enum { IDS = 65536, LATER_MAX = 32 << 20 };

/* Directories get their modes and times at the end: until then files must go into them. */
struct later {
	struct later *next;
	struct timespec mtime;
	uint32_t mode;
	uid_t uid; /* -1: stays */
	gid_t gid;
	char path[];
};

static int root;
static struct later *later;
static size_t later_bytes;
static struct tar tar;
static char meta[TAR_META_MAX + TAR_BLOCK];

static int open_beneath(const char *path, uint64_t flags)
{
	int fd = beneath_open(root, path, flags);

	if (fd >= 0)
		return fd;
	errno = -fd;
	return -1;
}

/* mkdir -p of a member's parent. */
static void parents_make(char *path)
{
	for (char *slash = strchr(path, '/');; slash = strchr(slash + 1, '/')) {
		char *name;
		int dir, made;

		if (slash)
			*slash = 0;
		name = strrchr(path, '/');
		if (name)
			*name = 0;
		dir = open_beneath(name ? path : "", O_PATH | O_DIRECTORY);
		if (name)
			*name = '/';
		if (dir < 0)
			file_fail(errno, "parent");
		made = mkdirat(dir, name ? name + 1 : path, 0755);
		if (made && errno != EEXIST)
			file_fail(errno, "mkdir");
		close(dir);
		if (!slash)
			return;
		*slash = '/';
	}
}

/* The directory of a member, opened; the last one is kept, since members come in runs. */
static int parent_of(char *path, char **name)
{
	static char kept_path[TAR_PATH];
	static int kept = -1;
	char *slash = strrchr(path, '/');

	*name = slash ? slash + 1 : path;
	if (!slash)
		return root;
	*slash = 0;
	if (kept < 0 || strcmp(kept_path, path)) {
		if (kept >= 0)
			close(kept);
		kept = open_beneath(path, O_PATH | O_DIRECTORY);
		if (kept < 0 && errno == ENOENT) {
			parents_make(path);
			kept = open_beneath(path, O_PATH | O_DIRECTORY);
		}
		if (kept < 0)
			file_fail(errno, "parent");
		strcpy(kept_path, path);
	}
	*slash = '/';
	return kept;
}

static void clear_way(int dir, const char *name)
{
	if (unlinkat(dir, name, 0) && errno != ENOENT)
		file_fail(errno == EPERM ? EISDIR : errno, "replace");
}

/* Ids only where we may give them away; those that this sandbox does not have become the caller's. */
static void owner_of(uid_t *uid, gid_t *gid)
{
	bool give = !geteuid() && (tar.entry.uid || tar.entry.gid);

	*uid = !give ? (uid_t)-1 : tar.entry.uid < IDS ? (uid_t)tar.entry.uid : 0;
	*gid = !give ? (gid_t)-1 : tar.entry.gid < IDS ? (gid_t)tar.entry.gid : 0;
}

static struct timespec mtime_of(void)
{
	return (struct timespec){.tv_sec = (time_t)tar.entry.mtime, .tv_nsec = tar.entry.mtime_ns};
}

static void mtime_set(int dir, const char *name)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, mtime_of()};

	utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
}

static void padding_take(uint64_t size)
{
	size_t padding = (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
	uint8_t waste[TAR_BLOCK];

	if (padding && !in_exactly(waste, padding))
		file_fail(EIO, "truncated");
}

static void content_take(int fd, uint64_t size)
{
	uint64_t left = size;

	while (left) {
		size_t n = in_some(file_buffer, left < FILE_BUFFER ? (size_t)left : FILE_BUFFER);

		if (!n)
			file_fail(EIO, "truncated");
		write_all(fd, file_buffer, n, "write");
		left -= n;
	}
}

static void holes_take(int fd)
{
	uint64_t size = sparse_take_map(tar.entry.real_size);

	if (size + sparse_data_size() != tar.entry.size)
		file_fail(EINVAL, "sparse");
	if (ftruncate(fd, (off_t)tar.entry.real_size))
		file_fail(errno, "write");
	sparse_take_data(fd);
}

static void attributes_set(int fd)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, mtime_of()};
	uid_t uid;
	gid_t gid;

	owner_of(&uid, &gid);
	if (uid != (uid_t)-1)
		(void)!fchown(fd, uid, gid);
	if (fchmod(fd, tar.entry.mode)) /* after the owner: chown takes the set-id bits away */
		file_fail(errno, "chmod");
	futimens(fd, times);
}

/* The file appears whole, or not at all: a transfer may break off anywhere. */
static void file_make_aside(int dir, const char *name, size_t here)
{
	char temporary[32];
	int fd = temporary_open(dir, temporary), error;

	if (fd < 0)
		file_fail(errno, "create");
	if (here)
		write_all(fd, file_buffer, here, "write");
	else if (tar.entry.sparse)
		holes_take(fd);
	else
		content_take(fd, tar.entry.size);
	attributes_set(fd);
	error = put_in_place(fd, dir, temporary, name, false);
	if (error && *temporary)
		unlinkat(dir, temporary, 0);
	if (error)
		file_fail(error, "replace");
	close(fd);
}

/* A small one has come as a whole before its name is made. */
static void file_make(int dir, const char *name)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	uint64_t size = tar.entry.size;
	int fd;

	if (size > FILE_BUFFER || tar.entry.sparse) {
		file_make_aside(dir, name, 0);
		padding_take(size);
		return;
	}
	if (size && !in_exactly(file_buffer, (size_t)size))
		file_fail(EIO, "truncated");
	padding_take(size);
	fd = openat(dir, name, flags, 0600);
	if (fd < 0 && errno == EEXIST) {
		file_make_aside(dir, name, (size_t)size);
		return;
	}
	if (fd < 0)
		file_fail(errno, "create");
	write_all(fd, file_buffer, (size_t)size, "write");
	attributes_set(fd);
	close(fd);
}

static void later_apply(const struct later *l)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, l->mtime};
	int fd = open_beneath(l->path, O_RDONLY | O_DIRECTORY);

	if (fd < 0)
		file_fail(errno, "directory");
	if (l->uid != (uid_t)-1)
		(void)!fchown(fd, l->uid, l->gid);
	if (fchmod(fd, l->mode))
		file_fail(errno, "chmod");
	futimens(fd, times);
	close(fd);
}

static void directory_make(int dir, const char *name)
{
	size_t size = sizeof(struct later) + strlen(tar.entry.path) + 1;
	struct later *l;
	struct stat st;

	if (mkdirat(dir, name, 0700)) {
		if (errno != EEXIST || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
			file_fail(errno, "mkdir");
		if (!S_ISDIR(st.st_mode)) {
			clear_way(dir, name);
			if (mkdirat(dir, name, 0700))
				file_fail(errno, "mkdir");
		}
	}
	l = malloc(size);
	if (!l)
		file_fail(ENOMEM, "directory");
	*l = (struct later){.next = later, .mtime = mtime_of(), .mode = tar.entry.mode};
	owner_of(&l->uid, &l->gid);
	strcpy(l->path, tar.entry.path);
	if (later_bytes + size > LATER_MAX) {
		later_apply(l);
		free(l);
		return;
	}
	later_bytes += size;
	later = l;
}

/* The target is a member's name too, and held to the same rules. */
static void hard_link_make(int dir, const char *name)
{
	char *slash, *target = tar.entry.link;
	int from = root;

	if (tar_clean(target) || !*target)
		file_fail(EPERM, "link");
	slash = strrchr(target, '/');
	if (slash) {
		*slash = 0;
		from = open_beneath(target, O_PATH | O_DIRECTORY);
		if (from < 0)
			file_fail(errno, "link");
		target = slash + 1;
	}
	if (linkat(from, target, dir, name, 0)) {
		if (errno != EEXIST)
			file_fail(errno, "link");
		clear_way(dir, name);
		if (linkat(from, target, dir, name, 0))
			file_fail(errno, "link");
	}
	if (from != root)
		close(from);
}

static void special_make(int dir, const char *name)
{
	uid_t uid;
	gid_t gid;

	clear_way(dir, name);
	if (tar.entry.type == '2' ? symlinkat(tar.entry.link, dir, name)
				  : mkfifoat(dir, name, tar.entry.mode & 0777))
		file_fail(errno, "create");
	owner_of(&uid, &gid);
	if (uid != (uid_t)-1)
		(void)!fchownat(dir, name, uid, gid, AT_SYMLINK_NOFOLLOW);
	mtime_set(dir, name);
}

static void member_make(void)
{
	char *name;
	int dir;

	if (tar_clean(tar.entry.path))
		file_fail(EPERM, "member");
	/* The tree itself keeps what it has: an archive of "." must not change the mode of /tmp. */
	if (!*tar.entry.path && tar.entry.type == '5')
		return;
	if (!*tar.entry.path)
		file_fail(EINVAL, "member");
	if (tar.entry.type == '3' || tar.entry.type == '4')
		return; /* no devices */
	dir = parent_of(tar.entry.path, &name);
	if (tar.entry.type == '0')
		file_make(dir, name);
	else if (tar.entry.type == '5')
		directory_make(dir, name);
	else if (tar.entry.type == '1')
		hard_link_make(dir, name);
	else
		special_make(dir, name);
}

static void meta_take(void)
{
	size_t size = (size_t)tar.meta_size;
	size_t padded = (size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
	int error;

	if (!padded)
		return;
	if (!in_exactly(meta, padded))
		file_fail(EIO, "truncated");
	error = tar_meta(&tar, meta, size);
	if (error)
		file_fail(-error, "archive");
}

void tree_put(char **argv)
{
	uint8_t block[TAR_BLOCK];
	const char *name;
	int step = TAR_META;

	root = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0 && errno == ENOENT) {
		int dir = parent_open(argv[1], &name, true);

		if (mkdirat(dir, name, 0755) && errno != EEXIST)
			file_fail(errno, "mkdir");
		root = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	}
	if (root < 0)
		file_fail(errno, "open");
	while (step != TAR_END && in_exactly(block, sizeof(block))) {
		step = tar_header(&tar, block);
		if (step < 0)
			file_fail(-step, "archive");
		if (step == TAR_META)
			meta_take();
		else if (step == TAR_ENTRY)
			member_make();
	}
	if (step != TAR_END && !tar.zero_blocks)
		file_fail(EIO, "truncated"); /* a stream that broke between two members */
	while (in_some(file_buffer, FILE_BUFFER))
		; /* padding of tapes; whoever sends it need not meet a broken pipe */
	while (later) {
		struct later *l = later;

		later = l->next;
		later_apply(l);
		free(l);
	}
}

/* Tar headers: ustar, pax and GNU long names, both ways. No I/O; hostile input is an error. */
#ifndef SKERRY_TAR_H
#define SKERRY_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { TAR_BLOCK = 512, TAR_PATH = 32768, TAR_META_MAX = 1 << 20 };

enum tar_step {
	TAR_ENTRY, /* t->entry is complete; its size bytes of content follow, padded to a block */
	TAR_META,  /* t->meta_size bytes follow, padded; give them to tar_meta() */
	TAR_END,
};

struct tar_entry {
	char type; /* '0' file, '1' hard link, '2' symbolic link, '3' '4' device, '5' dir, '6' FIFO */
	char path[TAR_PATH];
	char link[TAR_PATH];
	uint64_t size; /* of what follows */
	bool sparse;   /* what follows is a map and pieces (sparse.h), of a file of real_size */
	uint64_t real_size;
	uint32_t mode;
	uint64_t uid, gid;
	int64_t mtime;
	uint32_t mtime_ns;
};

struct tar {
	struct tar_entry entry;
	uint64_t meta_size;
	char meta_type;
	/* What pax and GNU headers said about the next entry. */
	bool has_path, has_link, has_size, has_uid, has_gid, has_mtime, has_sparse_name, has_real_size;
	bool sparse_old; /* in a format of GNU tar's that nobody writes any more */
	uint64_t sparse_major, sparse_minor;
	int zero_blocks;
};

/* A tar_step, or a negative errno value. */
int tar_header(struct tar *t, const uint8_t block[TAR_BLOCK]);
int tar_meta(struct tar *t, char *bytes, size_t n);
/* Takes "./", "//" and a slash at the end out of a member's name, in place; "" is the tree itself.
 * -EPERM for absolute names and those with "..". */
int tar_clean(char *path);

/* Header blocks of an entry into out (room for TAR_BLOCK * 2 + TAR_RECORDS_MAX); returns the size. */
enum { TAR_RECORDS_MAX = 3 * TAR_PATH };
size_t tar_build(uint8_t *out, const struct tar_entry *e);
/* The same with a comment, which readers that do not know it pass over. */
size_t tar_build_comment(uint8_t *out, const struct tar_entry *e, const char *comment);

#endif

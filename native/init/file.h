/* The file helper: a clean image, run as the target user, that does one thing and ends. */
#ifndef SKERRY_FILE_H
#define SKERRY_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum {
	FILE_BUFFER = 262144,
	FILE_PIPE = 1 << 20, /* asked for; the kernel may give less */
	FILE_PATH_MAX = 4096,
	FILE_DEPTH_MAX = 512, /* a directory of each level stays open */
	TREE_PATH = 32768,    /* of a name relative to the tree; more than the kernel takes at once */
};
extern uint8_t file_buffer[FILE_BUFFER];

/* Ends the helper with exit 1 and "<errno> <step>" on stderr. */
void file_fail(int error, const char *step) __attribute__((noreturn));

/* Buffered stdout. */
void out_bytes(const void *bytes, size_t n);
void out_flush(void);
/* Larger pipes on stdin and stdout, as far as this user may: fewer turns between us and the agent. */
void pipes_widen(void);
/* Exactly n bytes of stdin; false at a clean end before the first byte. */
bool in_exactly(void *bytes, size_t n);
/* Some bytes of stdin, 0 at its end. What is smaller than a buffer is read ahead. */
size_t in_some(void *bytes, size_t n);
void write_all(int fd, const void *bytes, size_t n, const char *step);

/* Digits of value in the base, most significant first, at least width of them; returns the count. */
size_t number_text(char *out, uint64_t value, unsigned int base, size_t width);
uint64_t number_parse(const char *text, unsigned int base, uint64_t max);
int64_t mtime_ns(const struct stat *st);

/* Directory of path, opened, with the last component in *name (pointing into path). parents: make
 * those that are missing. */
int parent_open(char *path, const char **name, bool parents);

/* A record of PROTOCOL.md about name in the directory dir. */
void record_put(int dir, const char *name, const char *shown, const struct stat *st);
/* The same with a letter of one's own for the type. */
void record_put_as(char letter, int dir, const char *name, const char *shown, const struct stat *st);
char type_letter(mode_t mode);

/* The directory `name` beneath dir, never through a link; a negative errno value. */
int directory_below(int dir, const char *name);
/* A path relative to a tree that is walked: adds "/name" (or "name" to an empty one); ENAMETOOLONG
 * ends the helper. Cut it again by writing a 0 at the length that it returns. */
size_t path_push(char path[TREE_PATH], const char *name);
bool is_dots(const char *name);
/* A path relative to root, of any length, opened without leaving root and without any link on the way
 * (unless built weak); a negative errno value. */
int beneath_open(int root, const char *path, uint64_t flags);
/* A regular file opened for reading without waiting for anybody; a negative errno value. */
int regular_open(int dir, const char *name, struct stat *st);
/* What a file may give at most: its size now, or a bound where files have no size (/proc). */
uint64_t read_bound(int fd, const struct stat *st);

/* file_write.c: a nameless file beside its final place, and giving it that name. */
int temporary_open(int dir, char name[32]);
int put_in_place(int fd, int dir, char temporary[32], const char *name, bool exclusive);

/* remove.c: a name and what is below it. Stays in the tree, whatever moves meanwhile. */
void remove_tree(int dir, const char *name);

void file_read(char **argv);
void file_tail(char **argv);
void file_sparse_read(char **argv);
void file_write(char **argv);
void file_patch(char **argv);
void file_remove(char **argv);
void file_truncate(char **argv);
void file_utime(char **argv);
void file_chown(char **argv);
void file_symlink(char **argv);
void file_link(char **argv);
void file_copy(char **argv);
void file_move(char **argv);
void file_walk(char **argv);
void file_usage(char **argv);
void file_watch(char **argv);
void tree_get(char **argv);
void tree_put(char **argv);

#endif

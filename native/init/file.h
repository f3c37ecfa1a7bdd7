/* The file helper: a clean image, run as the target user, that does one thing and ends. */
#ifndef SKERRY_FILE_H
#define SKERRY_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { FILE_BUFFER = 65536, FILE_PATH_MAX = 4096, FILE_DEPTH_MAX = 512 };
extern uint8_t file_buffer[FILE_BUFFER];

/* Ends the helper with exit 1 and "<errno> <step>" on stderr. */
void file_fail(int error, const char *step) __attribute__((noreturn));

/* Buffered stdout. */
void out_bytes(const void *bytes, size_t n);
void out_flush(void);
/* Exactly n bytes of stdin; false at a clean end before the first byte. */
bool in_exactly(void *bytes, size_t n);
/* Some bytes of stdin, 0 at its end. */
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

void file_read(char **argv);
void file_write(char **argv);
void file_remove(char **argv);
void tree_get(char **argv);
void tree_put(char **argv);

#endif

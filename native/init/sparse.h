/* Files with holes, as GNU tar's sparse format 1.0 sends them: a map of the pieces that hold data, in
 * decimal lines "COUNT\nOFFSET\nSIZE\n...", filled with zeros to a block; then the pieces' bytes. The
 * last piece is empty and lies at the file's size. */
#ifndef SKERRY_SPARSE_H
#define SKERRY_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { SPARSE_PIECES = 1 << 15 };

/* Finds the pieces of a file of this size; false if it has no hole worth the trouble. */
bool sparse_scan(int fd, const struct stat *st);
/* Of the scanned file: bytes of its map, with the filling, and of its data. */
size_t sparse_map_size(void);
uint64_t sparse_data_size(void);
/* Sends both; false if the file has shrunk meanwhile (zeros were sent instead). */
bool sparse_put(int fd);

/* Takes a map from stdin; returns its bytes. Ends the helper if the map is not in order, or reaches
 * beyond size (UINT64_MAX: it says the size itself). */
uint64_t sparse_take_map(uint64_t size);
/* Takes the pieces' bytes into a file; fd -1: throws them away. */
void sparse_take_data(int fd);
uint64_t sparse_end(void);

#endif

/* System calls that the C library lacks. Each returns -1 with errno set on failure, and every
 * descriptor that one returns is close-on-exec. */
#ifndef FLOOR_KERNEL_H
#define FLOOR_KERNEL_H

int fs_open(const char *type);
int fs_set(int fs, const char *key, const char *value);
int fs_set_fd(int fs, const char *key, int fd);
int fs_flag(int fs, const char *key);
int fs_mount(int fs, unsigned attributes);
int tree_clone(int dirfd, const char *path);
int mount_move(int from, int to_dirfd, const char *to);
int write_at(int dirfd, const char *path, const char *text);

#endif

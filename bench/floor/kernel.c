/* Wrappers of the mount calls, and a write to a file of a few bytes. */
#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From the kernel's headers, repeated so that an old copy of them does not matter. */
enum { SET_FLAG = 0, SET_STRING = 1, SET_FD = 5, CREATE = 6 };
enum { CLOEXEC_1 = 1, TREE_CLONE = 1, FROM_EMPTY_PATH = 0x4 };

int fs_open(const char *type) { return (int)syscall(SYS_fsopen, type, CLOEXEC_1); }

int fs_set(int fs, const char *key, const char *value)
{
    return (int)syscall(SYS_fsconfig, fs, SET_STRING, key, value, 0);
}

int fs_set_fd(int fs, const char *key, int fd)
{
    return (int)syscall(SYS_fsconfig, fs, SET_FD, key, NULL, fd);
}

int fs_flag(int fs, const char *key)
{
    return (int)syscall(SYS_fsconfig, fs, SET_FLAG, key, NULL, 0);
}

/* Creates the superblock and returns its detached mount; the context is closed in any case. */
int fs_mount(int fs, unsigned attributes)
{
    int mounted = -1;
    if (syscall(SYS_fsconfig, fs, CREATE, NULL, NULL, 0) == 0)
        mounted = (int)syscall(SYS_fsmount, fs, CLOEXEC_1, attributes);
    int error = errno;
    close(fs);
    errno = error;
    return mounted;
}

int tree_clone(int dirfd, const char *path)
{
    unsigned flags = TREE_CLONE | O_CLOEXEC | (*path ? 0 : AT_EMPTY_PATH);
    return (int)syscall(SYS_open_tree, dirfd, path, flags);
}

int mount_move(int from, int to_dirfd, const char *to)
{
    return (int)syscall(SYS_move_mount, from, "", to_dirfd, to, FROM_EMPTY_PATH);
}

int write_at(int dirfd, const char *path, const char *text)
{
    int fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t length = (ssize_t)strlen(text);
    int result = write(fd, text, (size_t)length) == length ? 0 : -1;
    int error = errno;
    close(fd);
    errno = error;
    return result;
}

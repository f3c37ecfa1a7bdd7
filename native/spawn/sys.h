/* Thin wrappers of system calls that the C libraries lack, and small file helpers.
 * Every function here returns 0 or a descriptor, or a negative errno. */
#ifndef SKERRY_SYS_H
#define SKERRY_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

/* <sys/mount.h> is never included beside this: glibc's copy of these names differs. */
#include <linux/mount.h>

#ifndef MNT_FORCE
#define MNT_FORCE 1
#endif
#ifndef MNT_DETACH
#define MNT_DETACH 2
#endif
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWNS 0x00020000
#define CLONE_NEWCGROUP 0x02000000
#define CLONE_NEWUTS 0x04000000
#define CLONE_NEWIPC 0x08000000
#define CLONE_NEWUSER 0x10000000
#define CLONE_NEWPID 0x20000000
#define CLONE_NEWNET 0x40000000
#endif
#ifndef CLONE_FILES
#define CLONE_FILES 0x00000400
#endif
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

static inline void close_ptr(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
#define close_auto __attribute__((cleanup(close_ptr)))

uint64_t now_ns(void);

/* Like fork, with the flags of clone3; *pidfd is filled; group < 0: the caller's. */
pid_t sys_clone(uint64_t flags, int *pidfd, int group);
int sys_fsopen(const char *type);
int sys_fsconfig(int fs, unsigned cmd, const char *key, const char *value, int aux);
int sys_fsmount(int fs, unsigned attributes);
/* A detached mount of a new file system; options are pairs of name and value (NULL: a flag), ended by
 * an empty name; NULL for none. */
int sys_new_mount(const char *type, unsigned attributes, const char *const options[][2]);
int sys_open_tree(int dir, const char *path, unsigned flags);
int sys_move_mount(int from, int to_dir, const char *to);
int sys_mount_setattr(int dir, const char *path, uint64_t set, int userns);
int sys_bind(const char *from, const char *to);
int sys_umount(const char *path, int flags);
int sys_make_private(const char *path, bool recursive);
int sys_pivot_root(const char *root, const char *old);
int sys_setns(int fd, int type);
int sys_unshare(int flags);
int sys_pidfd_open(pid_t pid);
int sys_pidfd_kill(int pidfd);
/* With `unshare` the table of descriptors becomes the caller's own, without those in the range. */
int sys_close_range(unsigned first, unsigned last, bool unshare);
int sys_execveat(int fd, char *const argv[], char *const envp[]);
/* Reaps the child behind pidfd without blocking; its wait status, or -EAGAIN, -ECHILD. */
int sys_reap(int pidfd, int *status);
/* For a child that nobody watches: it is gone when this returns. */
void sys_kill_and_reap(pid_t pid);

int open_at(int dir, const char *path, int flags);
int write_file(int dir, const char *path, const char *value);
/* The number of bytes read, at most size - 1; the text is terminated. */
int read_file(int dir, const char *path, char *out, size_t size);
int make_dirs(const char *path, unsigned mode);
bool is_mount_point(const char *path);

#endif

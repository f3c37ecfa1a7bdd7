/* The end of the child: descriptors in their places, filter, identity. */
#include "child.h"
#include "weak.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

int limits_set(void)
{
	/* One byte, not zero: with core_pattern a pipe, the kernel takes 1 for "never" and 0 for
	 * "unlimited into the pipe", whose reader would run as host root. */
	const struct rlimit core = {1, 1};

	umask(022);
	signal(SIGPIPE, SIG_DFL);
	return !weak("core") && setrlimit(RLIMIT_CORE, &core) < 0 ? -errno : 0;
}

int hand_config(struct child *c, const struct step *s)
{
	const struct request *r = c->i->request;
	uint8_t extra[96];
	struct builder b;
	int fds[2];

	build_init(&b, extra, sizeof(extra));
	build_u64(&b, T_CFG_TASKS, s->m);
	build_u64(&b, T_CFG_OOM, r->oom_file ? r->oom_kind : 0);
	build_u64(&b, T_CFG_PROFILE, r->profile);
	if (getrandom(c->key, sizeof(c->key), 0) != (ssize_t)sizeof(c->key))
		return -errno;
	build_bytes(&b, T_CFG_KEY, (const uint8_t *)c->key, sizeof(c->key));
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	/* It fits: CONFIG_MAX and this are less than a pipe holds. */
	if (r->config_length && write(fds[1], r->config, r->config_length) != (ssize_t)r->config_length)
		return -EMSGSIZE;
	if (write(fds[1], extra, b.used) != (ssize_t)b.used)
		return -EMSGSIZE;
	close(fds[1]);
	c->config_fd = fds[0];
	return fcntl(fds[0], F_SETFL, 0) < 0 ? -errno : 0;
}

int hand_descriptors(struct child *c, const struct step *s)
{
	int null = open_at(AT_FDCWD, "/dev/null", O_RDWR);
	int from[FD_TASKS + TASKS_MAX + 2] = {null, null, null, c->i->listener, c->i->launcher->image,
					      c->user_fd, c->work_fd, c->config_fd};
	unsigned count = FD_TASKS;

	(void)s;
	if (null < 0)
		return null;
	for (unsigned i = 0; i < c->file_count; i++)
		from[count++] = c->files[i];
	from[count++] = c->status_fd;
	/* First away from the low numbers, or one would overwrite another. */
	for (unsigned i = 0; i < count; i++) {
		if (from[i] < 0)
			continue;
		from[i] = fcntl(from[i], F_DUPFD_CLOEXEC, FD_TASKS + TASKS_MAX + 2);
		if (from[i] < 0)
			return -errno;
	}
	for (unsigned i = 0; i < count; i++) {
		/* The status pipe stays close-on-exec: its end is what tells of the exec. */
		if (from[i] < 0)
			close((int)i);
		else if (dup3(from[i], (int)i, i == count - 1 ? O_CLOEXEC : 0) < 0)
			return -errno;
	}
	return sys_close_range(count, ~0u, false);
}

int drop_seccomp(struct child *c, const struct step *s)
{
	struct seccomp_program *program = c->i->launcher->filter; /* in our copy of its memory */
	struct sock_fprog filter = {.len = (unsigned short)program->count, .filter = program->code};
	int err = seccomp_key_set(program, c->key);

	(void)s;
	if (err || weak("filter"))
		return err;
	/* Without no_new_privs, which would break su inside: CAP_SYS_ADMIN is still there. */
	return syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0 ? -errno : 0;
}

int drop_identity(struct child *c, const struct step *s)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}};
	uid_t id = (uid_t)s->n;

	(void)c;
	if (weak("identity"))
		return 0;
	/* The bounding set was emptied once, in the launcher. */
	if (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id, id, id) < 0)
		return -errno;
	if (syscall(__NR_capset, &head, none) < 0)
		return -errno;
	return prctl(PR_SET_DUMPABLE, 0) < 0 ? -errno : 0;
}

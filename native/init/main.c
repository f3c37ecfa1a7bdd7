/* Start: what the launcher's child handed over (PROTOCOL.md), and the mode of work. */
#include "cell.h"
#include "creds.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MAX = 1 << 16, TASKS_MAX = 144 };

struct config config;

static int config_field(const struct field *f, uint64_t *oom)
{
	static uint64_t key[2];
	uint64_t value = 0;

	bool number = f->tag >= T_CFG_TASKS && f->tag <= T_CFG_MAX_OPS && f->tag != T_CFG_ENV;

	number = number || f->tag == T_CFG_PROFILE || f->tag == T_CFG_CELLS || f->tag == T_CFG_BEST_EFFORT;
	if (number && field_u64(f, &value))
		return -EPROTO;
	switch (f->tag) {
	case T_CFG_TASKS:
		config.tasks = (uint32_t)value;
		return value <= TASKS_MAX ? 0 : -EPROTO;
	case T_CFG_OOM:
		*oom = value;
		break;
	case T_CFG_PEER_UID:
		config.peer_uid = (uid_t)value;
		break;
	case T_CFG_NOFILE:
		config.nofile = value;
		break;
	case T_CFG_BEST_EFFORT:
		config.best_effort = value;
		break;
	case T_CFG_PROFILE:
		config.function = value == 1;
		return value <= 1 ? 0 : -EPROTO;
	case T_CFG_CELLS:
		config.cells = (uint32_t)value;
		return value <= CELLS_MAX ? 0 : -EPROTO;
	case T_CFG_EXEC_DEADLINE_MS:
		config.exec_deadline_ms = value;
		break;
	case T_CFG_KEY:
		if (f->length != sizeof(key))
			return -EPROTO;
		memcpy(key, f->bytes, sizeof(key));
		config.key = key;
		break;
	case T_CFG_MAX_OPS:
		config.max_ops = value < OPS_LIMIT ? (uint32_t)value : OPS_LIMIT;
		break;
	}
	return 0;
}

/* In the place of its field and those before it, of which none is needed any more: no child has to
 * write here. */
static char *env_keep(char *at, const struct field *f)
{
	if (!f->length || memchr(f->bytes, 0, f->length))
		return at;
	memmove(at, f->bytes, f->length);
	at[f->length] = 0;
	config.env_count++;
	return at + f->length + 1;
}

/* Texts that fit lie with what is written anyway; then the pages of the configuration are given back. No
 * heap: a fork would copy page tables for one. */
static void env_settle(uint8_t *bytes, size_t size, const char *end)
{
	static char few[512];
	size_t n = (size_t)(end - (char *)bytes);

	config.env = (char *)bytes;
	if (n > sizeof(few))
		return;
	config.env = memcpy(few, bytes, n);
	pages_free(bytes, size, 0);
}

static int config_read(int fd)
{
	static uint8_t bytes[CONFIG_MAX + 1] __attribute__((aligned(4096)));
	char *env = (char *)bytes;
	struct fields it;
	struct field f;
	size_t used = 0;
	uint64_t oom = 0;
	ssize_t n;
	int more;

	while (used < CONFIG_MAX && (n = read(fd, bytes + used, CONFIG_MAX - used)) > 0)
		used += (size_t)n;
	close(fd);
	config = (struct config){.oom_fd = -1, .exec_deadline_ms = EXEC_DEADLINE_MS,
				 .max_ops = OPS_DEFAULT};
	it = fields_of(bytes, used);
	while ((more = fields_next(&it, &f)) > 0) {
		if (config_field(&f, &oom))
			return -EPROTO;
		if (f.tag == T_CFG_ENV)
			env = env_keep(env, &f);
	}
	*env++ = 0;
	env_settle(bytes, sizeof(bytes), env);
	if (!config.function)
		config.cells = 0;
	else if (config.max_ops > CALLS_MAX)
		config.max_ops = CALLS_MAX;
	if (oom)
		config.oom_fd = FD_TASKS + (int)config.tasks;
	return more;
}

/* A missing descriptor would be filled by the next open and then taken for what it is not. */
static int descriptors_check(void)
{
	static const int needed[] = {0, 1, 2, FD_LISTEN, FD_IMAGE, FD_USERNS};
	int last = config.oom_fd >= 0 ? config.oom_fd : FD_TASKS + (int)config.tasks - 1;

	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (fcntl(needed[i], F_GETFD) < 0)
			return -EBADF;
	for (int fd = FD_LISTEN; fd <= last; fd++)
		if (fcntl(fd, F_SETFD, FD_CLOEXEC) && fd >= FD_TASKS)
			return -EBADF;
	config.fd_limit = 1024;
	config.processors = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
	config.has_group = fcntl(FD_GROUP, F_GETFD) >= 0;
	/* In cells everything rests on groups and filters. */
	return config.function && (!config.has_group || !cell_filters_build()) ? -EBADF : 0;
}

/* Each operation takes up to five descriptors here; commands get CFG_NOFILE. */
static void nofile_raise(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	if (!setrlimit(RLIMIT_NOFILE, &limit))
		config.fd_limit = limit.rlim_max;
}

/* What is OWN, in whole pages (own.ld); not there in builds without that. */
extern char own_start[] __attribute__((weak)), own_end[] __attribute__((weak));

/* What a child does not need is not copied for it: our own state, and the time. The kernel's pages for
 * that lie below its code for them, and nothing else does in a program without a loader (AT_BASE); a
 * range may have holes. */
static void fork_less(void)
{
	enum { BELOW = 16 << 12, ABOVE = 4 << 12 };
	uintptr_t vdso = getauxval(AT_SYSINFO_EHDR);

	if (&own_end[0] > &own_start[0])
		madvise(own_start, (size_t)(&own_end[0] - &own_start[0]), MADV_DONTFORK);

	if (vdso && !getauxval(AT_BASE))
		madvise((void *)(vdso - BELOW), BELOW + ABOVE, MADV_DONTFORK);
}

static int agent_main(void)
{
	if (getpid() != 1 || config_read(FD_CONFIG) || descriptors_check())
		return 1;
	/* Not dumpable: nobody inside may trace this process or look into it. No no_new_privs:
	 * commands would inherit it, and su and sudo would break. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	umask(022);
	low_settle();
	ring_alone = config.function;
	fork_less();
	creds_prepare();
	nofile_raise();
	loop_init();
	conn_init();
	cells_init();
	loop_run();
}

int main(int argc, char **argv)
{
	if (argc >= 1 && !strcmp(argv[0], "skerry-init"))
		return agent_main();
	if (argc >= 2 && !strcmp(argv[0], "skerry-file"))
		return file_main(argc - 1, argv + 1);
	return 2;
}

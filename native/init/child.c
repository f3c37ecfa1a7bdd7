/* The child between fork and exec. It runs in a copy of the agent's memory: START's fields are
 * turned into argv and environ in place, only many of them take memory, and every step that fails
 * is named over the status pipe. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cell.h"
#include "child.h"
#include "creds.h"
#include "known.h"
#include "session.h"
#include "weak.h"

enum {
	DEFAULTS_OWN = 5, /* env_of_user's */
	FEW = 64,	  /* pointers that most commands need at most */
	TEXT_MAX = 4096,
};

static const char default_path[] =
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/* All that the child makes, side by side: a fresh page costs it more than to fill it, and what is used of
 * this lies in one, but for many groups. argv has one in front: a script without "#!" is run as
 * "sh SCRIPT ARG...". argv and envp end in NULL. */
static struct {
	char **argv, **envp;
	size_t argc, envc;
	const char *cwd, *user;
	struct field script;
	char *few[FEW];
	char *text; /* free from here on */
	char texts[2 * (USERDB_PATH + USERDB_NAME) + 32];
	struct identity who;
} my __attribute__((aligned(4096)));

void child_fail(int status, enum step step, int error)
{
	struct report r = {.step = step, .error = error < 0 ? -error : error};

	(void)!write(status, &r, sizeof(r));
	_exit(127);
}

/* The text of a field, terminated where it lies: one byte to the left, over its own header. */
static char *text_in_place(const struct field *f)
{
	char *text = (char *)(uintptr_t)f->bytes - 1;

	memmove(text, f->bytes, f->length);
	text[f->length] = 0;
	return text;
}

static bool env_has(const char *entry)
{
	size_t n = strcspn(entry, "=") + 1;

	for (size_t i = 0; i < my.envc; i++)
		if (!strncmp(my.envp[i], entry, n))
			return true;
	return false;
}

static void env_default(char *entry)
{
	if (!env_has(entry))
		my.envp[my.envc++] = entry;
}

static size_t fields_count(struct fields it, uint32_t tag)
{
	struct field f;
	size_t n = 0;

	while (fields_next(&it, &f) > 0)
		n += f.tag == tag;
	return n;
}

static void pointers_make(const struct launch *l)
{
	struct fields given = fields_of(l->payload, l->length);
	size_t args = fields_count(given, T_ARG) + 2;
	size_t count = args + fields_count(given, T_ENV) + config.env_count + DEFAULTS_OWN + 1;
	char **room = my.few;

	if (count > FEW)
		room = mmap(NULL, count * sizeof(*room), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		child_fail(l->status, STEP_FORK, errno);
	my.argv = room + 1;
	my.envp = room + args;
}

static void fields_take(const struct launch *l)
{
	struct fields it = fields_of(l->payload, l->length);
	struct field f;

	pointers_make(l);
	my.cwd = my.user = "";
	while (fields_next(&it, &f) > 0) {
		if (f.tag == T_ARG)
			my.argv[my.argc++] = text_in_place(&f);
		else if (f.tag == T_ENV)
			my.envp[my.envc++] = text_in_place(&f);
		else if (f.tag == T_SCRIPT)
			my.script = f;
		else if (f.tag == T_CWD)
			my.cwd = text_in_place(&f);
		else if (f.tag == T_USER)
			my.user = text_in_place(&f);
	}
	if (strlen(my.cwd) >= TEXT_MAX)
		child_fail(l->status, STEP_CWD, ENAMETOOLONG);
	if (strlen(my.user) >= 2 * USERDB_NAME)
		child_fail(l->status, STEP_USER, EINVAL);
	for (const char *entry = config.env; *entry; entry += strlen(entry) + 1)
		env_default((char *)(uintptr_t)entry);
}

static void env_text(const char *name, const char *value)
{
	char *entry = my.text;

	my.text = stpcpy(stpcpy(entry, name), value) + 1;
	env_default(entry);
}

static void env_of_user(void)
{
	my.text = my.texts;
	env_text("HOME=", my.who.home);
	env_text("SHELL=", my.who.shell);
	env_text("USER=", my.who.name);
	env_text("LOGNAME=", my.who.name);
	env_default((char *)(uintptr_t)default_path);
}

/* Limits of the sandbox apply from here on: groups are entered while it costs nobody else. The
 * kernel looks at who opened the files (root), not at who writes. */
static void groups_enter(const struct launch *l)
{
	uint32_t count;
	int tasks = cell_tasks(l->cell, &count);

	for (uint32_t i = 0; i < count; i++)
		if (write(tasks + (int)i, "0", 1) != 1)
			child_fail(l->status, STEP_FORK, errno);
	if (l->group >= 0) {
		int fd = openat(l->group, "cgroup.procs", O_WRONLY | O_CLOEXEC);

		if (fd < 0 || write(fd, "0", 1) != 1)
			child_fail(l->status, STEP_FORK, errno);
		close(fd);
	}
}

/* A text that is too long for one argument, as a file that only this command has: the shell reads
 * it from /proc/self/fd/FD_SCRIPT. Sealed: nobody changes it while it is being run. */
int script_file(const struct field *bytes)
{
	enum { CLOEXEC = 1, SEALING = 2, NOEXEC = 8, ADD_SEALS = 1033, ALL_SEALS = 15 };
	size_t done = 0;
	ssize_t n = 0;
	int fd;

	fd = (int)syscall(SYS_memfd_create, "script", CLOEXEC | NOEXEC);
	if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
		fd = (int)syscall(SYS_memfd_create, "script", CLOEXEC | SEALING);
	if (fd < 0)
		return -errno;
	for (; done < bytes->length && n >= 0; done += (size_t)n)
		n = pwrite(fd, bytes->bytes + done, bytes->length - done, (off_t)done);
	if (n < 0 || fcntl(fd, ADD_SEALS, ALL_SEALS)) {
		int error = -errno;

		close(fd);
		return error;
	}
	return fd;
}

static void script_give(const struct launch *l)
{
	int fd = my.script.bytes ? script_file(&my.script) : FD_SCRIPT;

	if (fd < 0 || (fd != FD_SCRIPT && dup2(fd, FD_SCRIPT) < 0))
		child_fail(l->status, STEP_ARGS, fd < 0 ? -fd : errno);
}

static int exec_one(char *path)
{
	char **argv = my.argv;

	execve(path, argv, my.envp);
	if (errno == ENOEXEC) { /* as shells and execvp do */
		char *first = argv[0];

		argv[-1] = (char *)(uintptr_t)"sh";
		argv[0] = path;
		execve("/bin/sh", argv - 1, my.envp);
		argv[0] = first;
		return ENOEXEC;
	}
	return errno;
}

/* Along the command's own PATH; a program that may not be executed counts only if none may. */
static int exec_search(void)
{
	static char path[TEXT_MAX];
	const char *program = my.argv[0];
	size_t name = strlen(program);
	const char *dirs = default_path + 5;
	int error = ENOENT;

	if (!name || strchr(program, '/'))
		return name ? exec_one(my.argv[0]) : ENOENT;
	for (size_t i = 0; i < my.envc; i++)
		if (!strncmp(my.envp[i], "PATH=", 5))
			dirs = my.envp[i] + 5;
	for (;; dirs++) {
		size_t n = strcspn(dirs, ":");

		if (n + name + 3 <= sizeof(path)) {
			int failed;

			memcpy(path, n ? dirs : ".", n ? n : 1);
			strcpy(path + (n ? n : 1), "/");
			strcat(path, program);
			failed = exec_one(path);
			if (failed == EACCES)
				error = EACCES;
			else if (failed != ENOENT && failed != ENOTDIR)
				return failed;
		}
		dirs += n;
		if (!*dirs)
			return error;
	}
}

static _Noreturn void helper_exec(const struct launch *l)
{
	my.argv[-1] = (char *)(uintptr_t)"skerry-file";
	syscall(SYS_execveat, FD_IMAGE, "", my.argv - 1, WEAK_ENVIRONMENT, 0x1000 /* AT_EMPTY_PATH */);
	child_fail(l->status, STEP_EXEC, errno);
}

/* Without a wish, and for one that is relative, the user's home; it may be missing or closed to the user. */
static void cwd_enter(const struct launch *l)
{
	if (l->cwd_last && *l->cwd_last && !chdir(l->cwd_last))
		return; /* a session goes on where it was */
	if ((*my.cwd != '/' && chdir(my.who.home) && chdir("/")) || (*my.cwd && chdir(my.cwd)))
		child_fail(l->status, STEP_CWD, errno);
}

static _Noreturn void exec_it(const struct launch *l)
{
	int error;

	env_of_user();
	*l->executing = 1;
	if (l->kind == KIND_FILE)
		helper_exec(l);
	error = my.argc ? exec_search() : EINVAL;
	child_fail(l->status, error == E2BIG ? STEP_ARGS : STEP_EXEC, error);
}

/* What a program of a cell and a zygote have in common, once they are who they are to be. */
static _Noreturn void filtered_exec(const struct launch *l, enum seccomp_use use)
{
	int error;

	setsid();
	limits_set(l);
	class_set();
	cwd_enter(l);
	stdio_set(l);
	syscall(SYS_close_range, 3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */);
	script_give(l);
	number_give(l, l->result, FD_RESULT);
	number_give(l, l->talk, FD_TALK);
	error = cell_filter(use);
	if (error)
		child_fail(l->status, STEP_FORK, error);
	exec_it(l);
}

/* In its cell, with every capability of the container's user namespace until it becomes who it is to be. */
static _Noreturn void program_run(const struct launch *l)
{
	int error = known_resolve(l->known, *my.user ? my.user : "1000:1000", &my.who);

	if (!error && !my.who.uid)
		error = EPERM; /* the cell's first process is root's */
	if (!error)
		error = cell_become(&my.who);
	if (error)
		child_fail(l->status, STEP_USER, error);
	strcpy(my.who.home, "/call");
	filtered_exec(l, SECCOMP_CELL);
}

/* The image's interpreter, which is root of the container's user namespace with what it takes to join cells:
 * no capability to mount or to administer a network, and the filter denies the calls, too. It stays in our own
 * pid namespace, for it can join only those below its own. */
static _Noreturn void zygote_run(const struct launch *l)
{
	int error = syscall(SYS_setns, FD_USERNS, CLONE_NEWUSER) ? -errno : cell_of_zygote();

	if (!error)
		error = cell_become_zygote();
	if (error)
		child_fail(l->status, STEP_USER, error);
	my.who = (struct identity){.name = "root", .home = "/", .shell = "/bin/sh"};
	filtered_exec(l, SECCOMP_ZYGOTE);
}

void child_run(const struct launch *l)
{
	sigset_t none;
	int error;

	groups_enter(l);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	fields_take(l);
	if (l->cell != NO_CELL)
		cell_enter(l, program_run);
	if (l->kind == KIND_ZYGOTE)
		zygote_run(l);
	setsid();
	error = creds_enter_userns(config.key);
	if (error)
		child_fail(l->status, STEP_FORK, error);
	error = known_resolve(l->known, *my.user ? my.user : "0:0", &my.who);
	if (!error)
		error = creds_become(&my.who);
	if (error)
		child_fail(l->status, STEP_USER, error);
	limits_set(l);
	if (l->kind == KIND_COMMAND)
		class_set(); /* what file helpers do is asked for by the host, and short */
	if (l->pty)
		terminal_open(l);
	cwd_enter(l);
	stdio_set(l);
	syscall(SYS_close_range, 3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */);
	script_give(l);
	if (l->kind == KIND_SESSION)
		session_give(l);
	exec_it(l);
}

/* skerry-spawn: the resident privileged launcher. What it does and in which order: native/README.md. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>

#include "dryrun.h"
#include "launcher.h"
#include "weak.h"
#include "seccomp.h"

enum { LOCK_WAIT_S = 5 };

struct arguments {
	const char *init;
	bool dry_run, foreground;
};

static int usage(void)
{
	fprintf(stderr, "usage: skerry-spawn --run DIR --state DIR [--bind DIR]... --cgroup DIR... "
			"--init FILE [--log FILE] [--foreground]\n"
			"       [--orphan-after SECONDS [--keep DIR]]\n"
			"       skerry-spawn --dry-run < FRAMES\n");
	return 2;
}

static int parse(struct launcher *l, struct arguments *a, int argc, char **argv)
{
	static const struct option options[] = {
		{"run", 1, NULL, 'r'}, {"state", 1, NULL, 's'}, {"bind", 1, NULL, 'b'},
		{"cgroup", 1, NULL, 'c'}, {"init", 1, NULL, 'i'}, {"log", 1, NULL, 'l'},
		{"orphan-after", 1, NULL, 'o'}, {"keep", 1, NULL, 'k'},
		{"foreground", 0, NULL, 'f'}, {"dry-run", 0, NULL, 'd'}, {"fail-at", 1, NULL, 'x'},
		{NULL, 0, NULL, 0}};
	bool ok = true;
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'r':
			l->run_dir = optarg;
			break;
		case 's':
			l->state_dir = optarg;
			break;
		case 'b':
			ok = ok && roots_add(&l->bind_roots, optarg);
			break;
		case 'c':
			ok = ok && roots_add(&l->cgroup_roots, optarg);
			break;
		case 'i':
			a->init = optarg;
			break;
		case 'l':
			l->log_file = optarg;
			break;
		case 'o':
			l->orphan_s = (unsigned)strtoul(optarg, NULL, 10);
			ok = ok && l->orphan_s;
			break;
		case 'k':
			l->keep_dir = optarg;
			ok = ok && path_clean(optarg);
			break;
		case 'f':
			a->foreground = true;
			break;
		case 'd':
			a->dry_run = true;
			break;
		case 'x':
			l->fail_at = optarg;
			break;
		default:
			return -EINVAL;
		}
	}
	if (a->dry_run)
		return optind == argc ? 0 : -EINVAL;
	ok = ok && optind == argc && l->run_dir && l->state_dir && a->init && l->cgroup_roots.count;
	return ok && path_clean(l->run_dir) && path_clean(l->state_dir) ? 0 : -EINVAL;
}

static uint32_t probe_masks(void)
{
	uint32_t found = 0;

	for (unsigned i = 0; i < plan_mask_count; i++)
		if (!access(plan_masks[i].path, F_OK))
			found |= 1u << i;
	return found;
}

/* On a busy host one that was killed, or a helper of its that has not run since its clone, may hold
 * its copy for seconds. */
static int lock_take(int fd)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	uint64_t until = now_ns() + LOCK_WAIT_S * 1000000000ull;

	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || now_ns() >= until)
			return -1;
		nanosleep(&pause, NULL);
	}
	return 0;
}

/* One launcher a run directory. The lock goes with the last copy of the descriptor. */
static int lock_run(struct launcher *l, struct failure *f)
{
	char path[PATH_TEXT_MAX + 16];

	if (make_dirs(l->run_dir, 0700))
		return fail(f, "mkdir", -errno, "%s", l->run_dir);
	snprintf(path, sizeof(path), "%s/i", l->run_dir);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return fail(f, "mkdir", -errno, "%s", path);
	l->lock = open_at(AT_FDCWD, l->run_dir, O_RDONLY | O_DIRECTORY);
	if (l->lock < 0 || fchmod(l->lock, 0700) < 0)
		return fail(f, "run", -errno, "%s", l->run_dir);
	if (lock_take(l->lock) < 0)
		return fail(f, "lock", -errno, "%s: another launcher runs", l->run_dir);
	return 0;
}

/* Once for all sandboxes: 41 calls that each of them would make. */
static int drop_bounding_set(struct failure *f)
{
	for (unsigned cap = 0; !weak("identity") && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return fail(f, "bounding", -errno, "capability %u", cap);
	return 0;
}

static int prepare(struct launcher *l, const char *init, struct failure *f)
{
	static struct seccomp_program program;
	int count = seccomp_build(&program, SECCOMP_PROGRAM_MAX, SECCOMP_SANDBOX), err;

	if (count < 0)
		return fail(f, "seccomp", count, "program");
	l->filter = &program;
	err = lock_run(l, f);
	if (err)
		return err;
	l->image = image_load(init);
	if (l->image < 0)
		return fail(f, "init", l->image, "%s", init);
	l->masks = probe_masks();
	l->reports = mmap(NULL, IN_FLIGHT_MAX * sizeof(*l->reports), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (l->reports == MAP_FAILED)
		return fail(f, "memory", -errno, "reports");
	err = mountns_enter(l, f);
	if (!err)
		err = drop_bounding_set(f);
	if (err)
		return err;
	layers_recover(l);
	err = loop_init(&l->loop);
	if (err)
		return fail(f, "epoll", err, "loop");
	l->upper_place = open_at(AT_FDCWD, "/upper", O_PATH);
	l->loop.base = (unsigned)l->upper_place + 1;
	upper_recover(l);
	err = serve_open(l);
	if (err)
		return fail(f, "listen", err, "%s/spawn.sock", l->run_dir);
	err = orphan_open(l);
	return err ? fail(f, "timer", err, "orphan") : 0;
}

/* Goes into the background, unless told not to; the parent ends when the socket listens. The end of
 * the pipe that the child is to write to, or -1. */
static int detach(bool foreground)
{
	int ready[2], null;
	char byte = 1;
	pid_t pid;

	/* A log that nobody reads any more must not end us; children get the default back. */
	signal(SIGPIPE, SIG_IGN);
	if (foreground) {
		setsid(); /* fails where we lead a group already, as under a supervisor */
		return -1;
	}
	if (pipe2(ready, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
		perror("skerry-spawn: detach");
		exit(1);
	}
	if (pid) {
		close(ready[1]);
		_exit(read(ready[0], &byte, 1) == 1 ? 0 : 1);
	}
	close(ready[0]);
	setsid();
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	return ready[1];
}

static void finish(struct launcher *l)
{
	char path[PATH_TEXT_MAX + 16];

	loop_close(&l->loop, &l->listener);
	/* First, or an instance that waits for bytes from far away could be waited for. */
	blobs_close(l);
	instances_stop_all(l);
	layers_unmount(l);
	upper_close(l);
	orphan_clear(l);
	mountns_leave(l);
	snprintf(path, sizeof(path), "%s/spawn.sock", l->run_dir);
	unlink(path);
}

int main(int argc, char **argv)
{
	static struct launcher l = {.log = STDERR_FILENO, .upper_fd = -1, .orphan.fd = -1,
				   .blobs = -1};
	struct arguments a = {0};
	struct failure f = {0};
	int ready;

	if (parse(&l, &a, argc, argv))
		return usage();
	if (a.dry_run)
		return dry_run(stdin, probe_masks()) ? 1 : 0;
	ready = detach(a.foreground);
	umask(0);
	if (l.log_file) {
		l.log = open(l.log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
		if (l.log < 0) {
			perror(l.log_file);
			return 1;
		}
	}
	if (prepare(&l, a.init, &f)) {
		log_line(&l, "start: %s: %s: %s", f.step, strerror(-f.error), f.text);
		return 1;
	}
	if (ready >= 0) {
		if (write(ready, "r", 1) != 1)
			return 1;
		close(ready);
	}
	loop_run(&l.loop);
	finish(&l);
	return 0;
}

/* Cells: made, renewed and dropped as the host says; nothing here waits for anybody. */
#include "cell.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAKE = 1, DROP = 2, PAGE_LARGEST = 1 << 16, DISK_MIN = 1 << 16, INODES_MIN = 16 };

static struct cell cells[CELLS_MAX] OWN_TABLE; /* of a size that an idle sandbox need not hold */

/* Who was born, as the kernel says it to the maker's memory, which is ours too. */
static volatile pid_t *born(uint32_t number)
{
	static uint8_t page[PAGE_LARGEST] __attribute__((aligned(PAGE_LARGEST)));

	return (volatile pid_t *)(void *)page + number;
}

static void report_ready(struct source *src, uint32_t events);

void cells_init(void)
{
	size_t size = CELLS_MAX * sizeof(pid_t);

	if (!config.function || mmap((void *)(uintptr_t)born(0), size, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != born(0))
		config.cells = 0;
	for (uint32_t i = 0; i < config.cells; i++) {
		cells[i] = (struct cell){.pidfd = -1, .disk_fd = -1, .net_fd = -1};
		source_open(&cells[i].report, -1, report_ready);
	}
}

struct cell *cell_ready(uint64_t number)
{
	return number < config.cells && cells[number].state == CELL_READY ? &cells[number] : NULL;
}

int cell_tasks(uint32_t number, uint32_t *count)
{
	/* The container's own come first, then each cell's, as many each. */
	*count = config.tasks / (config.cells + 1);
	return FD_TASKS + (int)(*count * (number == NO_CELL ? 0 : number + 1));
}

uint64_t cell_disk_used(uint32_t number)
{
	struct statfs fs;

	if (number >= config.cells || cells[number].disk_fd < 0 || fstatfs(cells[number].disk_fd, &fs))
		return 0;
	return (fs.f_blocks - (fs.f_ffree ? fs.f_bfree : 0)) * (uint64_t)fs.f_bsize;
}

static void fd_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void answer(struct cell *c, int said)
{
	c->said = said;
}

static bool used(uint32_t number)
{
	for (uint32_t i = 0; i < ops_high; i++)
		if ((ops[i].state == OP_STARTING || ops[i].state == OP_RUNNING) && ops[i].cell == number)
			return true;
	return false;
}

/* --- making it ------------------------------------------------------------------------------------ */

static void failed(struct cell *c, const char *step, int error)
{
	c->fail_step = step;
	c->fail_errno = error;
}

static int maker_start(struct cell *c)
{
	struct cell copy = *c; /* the child has no cells: OWN */
	struct cell_order order = {.cell = &copy, .init = born((uint32_t)(c - cells))};
	int ends[2], error;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
		return -errno;
	*order.init = 0;
	order.report = ends[1];
	pid = fork();
	if (!pid)
		cell_make(&order);
	error = pid < 0 ? -errno : 0;
	close(ends[1]);
	if (error) {
		close(ends[0]);
		return error;
	}
	c->maker = pid;
	source_open(&c->report, ends[0], report_ready);
	source_watch(&c->report, EPOLLIN);
	return 0;
}

static void settle(struct cell *c);

static void make(struct cell *c)
{
	int error = maker_start(c);

	c->again = false;
	c->fail_step = NULL;
	c->state = CELL_MAKING;
	c->make_by = now_ms() + config.exec_deadline_ms;
	if (error) {
		failed(c, "fork", -error);
		c->state = CELL_ENDING;
		settle(c);
	}
}

/* All of it ends: its first process takes everything in it along, the groups what is not in it yet. Its disk
 * is let go of before, so that not we but they spend the time to empty it. */
static void end(struct cell *c)
{
	uint32_t number = (uint32_t)(c - cells);
	pid_t init = *born(number);

	c->state = CELL_ENDING;
	c->make_by = NEVER;
	fd_close(&c->disk_fd);
	source_close(&c->report);
	if (c->maker)
		kill(c->maker, SIGKILL);
	c->init = c->init ? c->init : init;
	if (c->init)
		kill(c->init, SIGKILL);
	fd_close(&c->pidfd);
	for (uint32_t i = 0; i < ops_high; i++)
		if (ops[i].cell == number)
			op_cancel(&ops[i]);
	settle(c);
}

/* Goes on once nothing of it lives. */
static void settle(struct cell *c)
{
	if (c->state != CELL_ENDING || c->maker || c->init || used((uint32_t)(c - cells)))
		return;
	if (c->again) {
		make(c);
		return;
	}
	c->state = CELL_NONE;
	fd_close(&c->net_fd);
	answer(c, c->fail_step ? CELL_IS_FAILED : CELL_IS_GONE);
}

static void made(struct cell *c, const int fds[2], const struct cell_report *r)
{
	c->disk_fd = fds[0];
	if (r->has_net) {
		fd_close(&c->net_fd);
		c->net_fd = fds[1];
		c->net = r->net;
	}
	c->init = *born((uint32_t)(c - cells));
	c->pidfd = (int)syscall(SYS_pidfd_open, c->init, 0);
	if (c->pidfd < 0) {
		failed(c, "pidfd", errno);
		end(c);
		return;
	}
	c->state = CELL_READY;
	c->make_by = NEVER;
	answer(c, CELL_IS_READY);
}

static void report_ready(struct source *src, uint32_t events)
{
	struct cell *c = container_of(src, struct cell, report);
	char control[CMSG_SPACE(2 * sizeof(int))] __attribute__((aligned(8)));
	struct cell_report r = {0};
	struct iovec v = {.iov_base = &r, .iov_len = sizeof(r)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *head;
	int fds[2] = {-1, -1};
	ssize_t n;

	(void)events;
	if (src->fd < 0)
		return;
	n = recvmsg(src->fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	source_close(src);
	head = n == sizeof(r) ? CMSG_FIRSTHDR(&m) : NULL;
	if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN((1 + r.has_net) * sizeof(int)))
		memcpy(fds, CMSG_DATA(head), (1 + r.has_net) * sizeof(int));
	if (c->state == CELL_MAKING && !r.error && fds[0] >= 0) {
		made(c, fds, &r);
		return;
	}
	if (c->state != CELL_MAKING)
		return;
	/* It was killed, or says what went wrong, or no descriptor was free here. */
	failed(c, n == sizeof(r) ? cell_steps[r.step] : "deadline", r.error ? -r.error : n == sizeof(r) ? EMFILE : ECHILD);
	end(c);
}

/* --- what happens to it ------------------------------------------------------------------------------ */

bool cell_child_ended(pid_t pid)
{
	for (uint32_t i = 0; i < config.cells; i++) {
		struct cell *c = &cells[i];

		if (pid == c->maker) {
			c->maker = 0;
			settle(c);
			return true;
		}
		if (c->state == CELL_NONE || pid != *born(i))
			continue;
		*born(i) = 0;
		c->init = 0;
		if (c->state == CELL_MAKING)
			report_ready(&c->report, 0); /* what it said before it ended */
		if (c->state == CELL_READY) {
			c->owed++; /* killed from outside */
			end(c);
		} else {
			settle(c);
		}
		return true;
	}
	return false;
}

void cell_left(uint32_t number)
{
	if (number < config.cells)
		settle(&cells[number]);
}

int cell_frame(const uint8_t *payload, size_t length)
{
	struct fields it = fields_of(payload, length);
	uint64_t number = NEVER, action = 0, disk = 0, inodes = 0;
	struct field f;
	struct cell *c;
	int more;

	while ((more = fields_next(&it, &f)) > 0) {
		uint64_t *to = f.tag == T_CELL	   ? &number
			       : f.tag == T_ACTION ? &action
			       : f.tag == T_DISK   ? &disk
			       : f.tag == T_INODES ? &inodes
						   : NULL;

		if (to && field_u64(&f, to))
			return -EPROTO;
	}
	if (more || (action != MAKE && action != DROP))
		return -EPROTO;
	if (number >= config.cells)
		return ENOENT;
	c = &cells[number];
	c->owed++;
	c->again = action == MAKE;
	c->disk = disk;
	c->inodes = inodes;
	c->fail_step = NULL;
	if (c->again && (disk < DISK_MIN || disk > INT64_MAX || inodes < INODES_MIN || inodes > INT32_MAX)) {
		c->again = false;
		failed(c, "disk", EINVAL);
	}
	if (c->state == CELL_NONE) {
		c->state = CELL_ENDING;
		settle(c);
	} else if (c->state != CELL_ENDING) {
		end(c);
	}
	return 0;
}

void cells_timers(uint64_t now)
{
	for (uint32_t i = 0; i < config.cells; i++)
		if (cells[i].state == CELL_MAKING && cells[i].make_by <= now) {
			failed(&cells[i], "deadline", ETIMEDOUT);
			end(&cells[i]);
		}
}

uint64_t cells_next_timer(void)
{
	uint64_t next = NEVER;

	for (uint32_t i = 0; i < config.cells; i++)
		if (cells[i].state == CELL_MAKING && cells[i].make_by < next)
			next = cells[i].make_by;
	return next;
}

/* --- answers ------------------------------------------------------------------------------------------ */

static bool answer_send(uint32_t number, const struct cell *c)
{
	uint8_t bytes[96];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, T_CELL, number);
	build_u64(&b, T_STATE, (uint64_t)c->said);
	if (c->said == CELL_IS_FAILED) {
		build_text(&b, T_ERROR_STEP, c->fail_step);
		build_u64(&b, T_ERRNO, (uint64_t)c->fail_errno);
	}
	return send_frame(G_CELL_IS, 0, &b);
}

bool cells_control(void)
{
	for (uint32_t i = 0; i < config.cells; i++) {
		struct cell *c = &cells[i];

		for (; c->owed && c->state != CELL_MAKING && c->state != CELL_ENDING; c->owed--)
			if (!answer_send(i, c))
				return false;
	}
	return true;
}

void cells_forget(void)
{
	for (uint32_t i = 0; i < config.cells; i++)
		cells[i].owed = 0;
}

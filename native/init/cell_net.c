/* The network namespaces of cells. To make one takes as long as all the rest of a cell, and the kernel twice as
 * long again to end it: so a cell's is used again, unless the next call could tell. A socket that is still there
 * tells, and so does each count of a packet or of a failed attempt: /proc shows them to anybody inside. */
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TEXT = 8192 };

int cell_net_loopback(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;

	if (fd < 0)
		return -errno;
	if (ioctl(fd, SIOCSIFFLAGS, &request))
		error = -errno;
	close(fd);
	return error;
}

static ssize_t text_read(const char *path, char text[TEXT])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return n;
}

/* The number behind a name; -1 if it is not there. */
static int64_t number_of(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? (int64_t)strtoull(at + strlen(name), NULL, 10) : -1;
}

/* Orphans and memory in this file are the whole machine's. False also if connections linger. */
static bool sockets_count(char text[TEXT], uint64_t *used)
{
	const char *tcp;
	int64_t count;

	if (text_read("/proc/self/net/sockstat", text) <= 0 || !(tcp = strstr(text, "TCP: ")))
		return false;
	count = number_of(text, "sockets: used ");
	*used = (uint64_t)count;
	return count >= 0 && !number_of(tcp, "inuse ") && !number_of(tcp, " tw ");
}

static bool state_read(struct net_state *out)
{
	static const char *const counts[] = {"/proc/self/net/dev", "/proc/self/net/snmp"};
	static char text[TEXT];

	if (!sockets_count(text, &out->sockets))
		return false;
	out->sum = 0xcbf29ce484222325ull; /* FNV-1a: nobody outside of the kernel makes these texts */
	for (size_t i = 0; i < 2; i++) {
		ssize_t n = text_read(counts[i], text);

		if (n <= 0)
			return false;
		for (ssize_t k = 0; k < n; k++)
			out->sum = (out->sum ^ (uint8_t)text[k]) * 0x100000001b3ull;
	}
	return true;
}

static bool clean(const struct cell *c)
{
	struct net_state now;

	return c->net_fd >= 0 && !syscall(SYS_setns, c->net_fd, CLONE_NEWNET) && state_read(&now) &&
	       now.sockets == c->net.sockets && now.sum == c->net.sum;
}

int cell_net_enter(const struct cell *c, int *fresh, struct net_state *state)
{
	int error;

	*fresh = -1;
	if (clean(c))
		return 0;
	error = unshare(CLONE_NEWNET) ? -errno : cell_net_loopback();
	if (error)
		return error;
	/* One that cannot be judged is not kept. */
	if (state_read(state))
		*fresh = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	return 0;
}

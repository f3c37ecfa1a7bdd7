/* Listeners inside: a port on both loopback addresses whose connections become streams to the host. */
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 128 };

struct listener {
	uint32_t handle; /* 0: free */
	uint32_t generation;
	uint16_t port;
	uint32_t connections;
	struct source v4, v6;
};

static struct listener listeners[LISTENERS_MAX];

static void listener_watch(struct listener *l)
{
	bool open = conn.src.fd >= 0 && l->generation == conn.generation &&
		    l->connections < PER_LISTENER;

	source_watch(&l->v4, open ? EPOLLIN : 0);
	source_watch(&l->v6, open ? EPOLLIN : 0);
}

void listener_left(struct listener *l)
{
	if (l->connections)
		l->connections--;
	if (l->handle)
		listener_watch(l);
}

static void listener_accept(struct listener *l, struct source *src)
{
	int fd = accept4(src->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0 || !forward_accepted(l, l->handle, l->port, fd))
		return;
	l->connections++;
	listener_watch(l);
}

static void v4_ready(struct source *src, uint32_t events)
{
	(void)events;
	listener_accept(container_of(src, struct listener, v4), src);
}

static void v6_ready(struct source *src, uint32_t events)
{
	(void)events;
	listener_accept(container_of(src, struct listener, v6), src);
}

static int socket_listen(int family, const void *address, socklen_t size)
{
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1, error;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (!bind(fd, address, size) && !listen(fd, BACKLOG))
		return fd;
	error = -errno;
	close(fd);
	return error;
}

static int listener_open(struct listener *l, uint16_t port)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port),
				  .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int four = socket_listen(AF_INET, &v4, sizeof(v4)), six;

	if (four < 0)
		return -four;
	six = socket_listen(AF_INET6, &v6, sizeof(v6));
	if (six == -EADDRINUSE) {
		close(four);
		return EADDRINUSE;
	}
	source_open(&l->v4, four, v4_ready);
	source_open(&l->v6, six < 0 ? -1 : six, v6_ready); /* a kernel without IPv6 is no fault */
	l->port = port;
	return 0;
}

/* Listeners outlive a connection, so that clients inside wait instead of being refused; a host that
 * comes back asks for the port again and gets it under its new handle. */
int forward_listen(uint32_t handle, uint16_t port)
{
	struct listener *l = NULL;
	int error;

	if (!port)
		return EINVAL;
	for (int i = 0; i < LISTENERS_MAX; i++) {
		struct listener *other = &listeners[i];

		if (other->handle && other->port == port && other->generation != conn.generation) {
			l = other;
			break;
		}
		if (other->handle == handle)
			return EEXIST;
		if (!other->handle && !other->connections && !l)
			l = other;
	}
	if (!l)
		return EAGAIN;
	error = l->handle ? 0 : listener_open(l, port);
	if (error)
		return error;
	l->handle = handle;
	l->generation = conn.generation;
	listener_watch(l);
	return 0;
}

bool forward_unlisten(uint32_t handle)
{
	for (int i = 0; i < LISTENERS_MAX; i++) {
		if (!handle || listeners[i].handle != handle)
			continue;
		source_close(&listeners[i].v4);
		source_close(&listeners[i].v6);
		listeners[i].handle = 0;
		return true;
	}
	return false;
}

void listeners_lost(void)
{
	for (int i = 0; i < LISTENERS_MAX; i++)
		if (listeners[i].handle)
			listener_watch(&listeners[i]);
}

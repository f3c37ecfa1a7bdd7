/* Reverse forwards: a listener inside, whose connections become streams to the host. */
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	LISTENERS_MAX = 16,
	PER_LISTENER = 64,
	FORWARDS_MAX = LISTENERS_MAX * PER_LISTENER,
	BACKLOG = 128,
};

struct listener {
	uint32_t handle; /* 0: free */
	uint32_t generation;
	uint16_t port;
	uint32_t connections;
	struct source v4, v6;
};

struct forward {
	uint32_t id; /* 0: free */
	struct listener *from;
	uint32_t handle; /* of the listener when it was opened */
	uint16_t port;
	struct inlet in;
	struct outlet out;
	bool opened_due, reset_due;
};

static struct listener listeners[LISTENERS_MAX];
static struct forward forwards[FORWARDS_MAX];
static uint32_t forwards_high, last_id;

static uint32_t stream_of(const struct forward *w, uint32_t channel)
{
	return FORWARD_BIT | w->id << 2 | channel;
}

static void listener_watch(struct listener *l)
{
	bool open = conn.src.fd >= 0 && l->generation == conn.generation &&
		    l->connections < PER_LISTENER;

	source_watch(&l->v4, open ? EPOLLIN : 0);
	source_watch(&l->v6, open ? EPOLLIN : 0);
}

static void forward_free(struct forward *w)
{
	inlet_close(&w->in);
	outlet_close(&w->out);
	w->id = 0;
	if (w->from->connections)
		w->from->connections--;
	if (w->from->handle)
		listener_watch(w->from);
	while (forwards_high && !forwards[forwards_high - 1].id)
		forwards_high--;
}

static void forward_abort(struct forward *w)
{
	inlet_close(&w->in);
	outlet_close(&w->out);
	w->out.eof = w->out.eof_sent = true;
	w->reset_due = true;
}

/* Over when both directions are. */
static void settle(struct forward *w)
{
	if (w->reset_due)
		return;
	if (w->out.failed || w->in.broken)
		forward_abort(w);
	else if (w->out.eof_sent && w->in.finished)
		forward_free(w);
}

void forward_settle(uint32_t index)
{
	if (index < forwards_high && forwards[index].id)
		settle(&forwards[index]);
}

static void out_ready(struct source *src, uint32_t events)
{
	struct forward *w = container_of(src, struct forward, out.src);

	if (!w->id || src->fd < 0)
		return;
	outlet_read(&w->out, events & EPOLLIN ? events : EPOLLIN);
	settle(w);
}

static void in_ready(struct source *src, uint32_t events)
{
	struct forward *w = container_of(src, struct forward, in.src);

	(void)events;
	if (!w->id || src->fd < 0)
		return;
	inlet_write(&w->in);
	settle(w);
}

static struct forward *forward_new(struct listener *l)
{
	struct forward *w = NULL;

	for (uint32_t i = 0; i < forwards_high && !w; i++)
		if (!forwards[i].id)
			w = &forwards[i];
	if (!w && forwards_high < FORWARDS_MAX)
		w = &forwards[forwards_high++];
	if (!w)
		return NULL;
	last_id = last_id < HANDLE_MAX ? last_id + 1 : 1;
	*w = (struct forward){.id = last_id, .from = l, .handle = l->handle, .port = l->port,
			      .opened_due = true};
	l->connections++;
	return w;
}

static void listener_accept(struct listener *l, struct source *src)
{
	int fd = accept4(src->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), twin;
	struct forward *w;

	if (fd < 0)
		return;
	/* A second descriptor: each direction is watched by itself. */
	twin = (uint64_t)fd + FD_RESERVE < config.fd_limit ? dup(fd) : -1;
	w = twin >= 0 ? forward_new(l) : NULL;
	if (!w) {
		close(fd);
		if (twin >= 0)
			close(twin);
		return;
	}
	inlet_open(&w->in, twin, INLET_SOCKET, in_ready);
	outlet_open(&w->out, fd, out_ready);
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

static int data_frame(struct forward *w, const struct frame *f, const uint8_t *payload)
{
	uint32_t channel = f->stream & 3;
	struct fields it = fields_of(payload, f->length);
	struct field field;
	uint64_t value;

	if (f->type == G_DATA)
		return channel == 1 ? inlet_data(&w->in, payload, f->length) : -EPROTO;
	if (fields_next(&it, &field) <= 0 || field_u64(&field, &value))
		return -EPROTO;
	if (f->type == G_EOF && channel == 1 && field.tag == T_TOTAL)
		return inlet_eof(&w->in, value);
	if (f->type == G_CREDIT && channel == 2 && field.tag == T_OFFSET)
		return outlet_credit(&w->out, value);
	return -EPROTO;
}

int forward_frame(const struct frame *f, const uint8_t *payload)
{
	uint32_t id = (f->stream & ~FORWARD_BIT) >> 2;
	int error;

	for (uint32_t i = 0; id && i < forwards_high; i++) {
		struct forward *w = &forwards[i];

		if (w->id != id)
			continue;
		if (f->type == G_RESET) {
			forward_free(w);
			return 0;
		}
		if (w->reset_due)
			return 0;
		error = data_frame(w, f, payload);
		settle(w);
		return error;
	}
	return 0; /* it ended while this frame was under way */
}

void forward_reset_all(void)
{
	for (uint32_t i = forwards_high; i-- > 0;)
		if (forwards[i].id)
			forward_free(&forwards[i]);
	for (int i = 0; i < LISTENERS_MAX; i++)
		if (listeners[i].handle)
			listener_watch(&listeners[i]);
}

static bool opened_send(struct forward *w)
{
	uint8_t bytes[32];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, T_HANDLE, w->handle);
	build_u64(&b, T_PORT, w->port);
	return send_frame(G_OPENED, stream_of(w, 0), &b);
}

bool forward_control(void)
{
	struct builder none = {.bytes = NULL};

	for (uint32_t i = 0; i < forwards_high; i++) {
		struct forward *w = &forwards[i];

		if (!w->id)
			continue;
		if (w->opened_due && !opened_send(w))
			return false;
		w->opened_due = false;
		if (w->in.credit_due && !w->reset_due) {
			if (!send_offset(G_CREDIT, stream_of(w, 1), w->in.ring.base))
				return false;
			w->in.credited = w->in.ring.base;
			w->in.credit_due = false;
		}
		if (w->reset_due) {
			if (!send_frame(G_RESET, stream_of(w, 0), &none))
				return false;
			forward_free(w);
		}
	}
	return true;
}

uint32_t forward_streams(void)
{
	return forwards_high;
}

struct outlet *forward_outlet(uint32_t index, uint32_t *stream)
{
	if (index >= forwards_high || !forwards[index].id)
		return NULL;
	*stream = stream_of(&forwards[index], 2);
	return &forwards[index].out;
}

/* Forwarded connections: accepted by a listener inside (listen.c), or made inside for the host. */
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FORWARDS_MAX = LISTENERS_MAX * PER_LISTENER + CONNECTS_MAX };

struct forward {
	uint32_t id; /* 0: free; with HOST_CONN the host chose it */
	struct listener *from; /* NULL: the host asked for it */
	uint32_t handle; /* of the listener when it was opened */
	uint16_t port;
	sa_family_t family; /* being tried by a connect that is under way; 0: none is */
	int error;	    /* why it could not be made: to be sent */
	struct inlet in;
	struct outlet out;
	bool opened_due, reset_due;
};

static struct forward forwards[FORWARDS_MAX];
static uint32_t forwards_high, last_id, connects;

static uint32_t stream_of(const struct forward *w, uint32_t channel)
{
	return FORWARD_BIT | w->id << 2 | channel;
}

static void forward_free(struct forward *w)
{
	inlet_close(&w->in);
	outlet_close(&w->out);
	w->id = 0;
	if (w->from)
		listener_left(w->from);
	else
		connects--;
	while (forwards_high && !forwards[forwards_high - 1].id)
		forwards_high--;
}

/* Ends it so that who is inside sees a reset: a plain close would read like the end of the content. */
static void forward_cut(struct forward *w)
{
	struct linger now = {.l_onoff = 1, .l_linger = 0};
	int fd = w->out.src.fd >= 0 ? w->out.src.fd : w->in.src.fd;

	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	forward_free(w);
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
	if (w->reset_due || w->family || w->error)
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

static struct forward *forward_new(uint32_t id, struct listener *l, uint16_t port)
{
	struct forward *w = NULL;

	for (uint32_t i = 0; i < forwards_high && !w; i++)
		if (!forwards[i].id)
			w = &forwards[i];
	if (!w && forwards_high < FORWARDS_MAX)
		w = &forwards[forwards_high++];
	if (!w)
		return NULL;
	*w = (struct forward){.id = id, .from = l, .port = port, .in.src.fd = -1, .out.src.fd = -1};
	return w;
}

/* A second descriptor: each direction is watched by itself. False: there is none to be had. */
static bool carry(struct forward *w, int fd)
{
	int on = 1, twin = (uint64_t)fd + FD_RESERVE < config.fd_limit ? dup(fd) : -1;

	if (twin < 0)
		return false;
	/* What comes in pieces is not held back until the peer has acknowledged the one before. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	inlet_open(&w->in, twin, INLET_SOCKET, in_ready);
	outlet_open(&w->out, fd, out_ready);
	outlet_watch(&w->out);
	w->opened_due = true;
	return true;
}

bool forward_accepted(struct listener *l, uint32_t handle, uint16_t port, int fd)
{
	struct forward *w;

	last_id = last_id < HOST_CONN - 1 ? last_id + 1 : 1;
	w = forward_new(last_id, l, port);
	if (w && carry(w, fd)) {
		w->handle = handle;
		return true;
	}
	close(fd);
	if (w)
		w->id = 0;
	return false;
}

/* --- for the host ------------------------------------------------------------------------------- */

static void connect_fail(struct forward *w, int error)
{
	source_close(&w->out.src);
	w->family = 0;
	w->error = error;
	w->out.eof = w->out.eof_sent = true;
}

static void connect_try(struct forward *w, sa_family_t family);

static void connect_ended(struct forward *w, int error)
{
	int fd;

	if (error == ECONNREFUSED && w->family == AF_INET) {
		source_close(&w->out.src);
		connect_try(w, AF_INET6);
		return;
	}
	if (error) {
		/* A kernel without IPv6 only repeats that nobody listens. */
		connect_fail(w, error == EAFNOSUPPORT || error == EADDRNOTAVAIL ? ECONNREFUSED : error);
		return;
	}
	fd = source_take(&w->out.src);
	w->family = 0;
	if (!carry(w, fd)) {
		close(fd);
		connect_fail(w, EMFILE);
	}
}

static void connect_ready(struct source *src, uint32_t events)
{
	struct forward *w = container_of(src, struct forward, out.src);
	int error = 0;
	socklen_t size = sizeof(error);

	(void)events;
	if (!w->id || !w->family || src->fd < 0)
		return;
	if (getsockopt(src->fd, SOL_SOCKET, SO_ERROR, &error, &size))
		error = errno;
	connect_ended(w, error);
}

static void connect_try(struct forward *w, sa_family_t family)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(w->port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(w->port),
				  .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), failed;

	w->family = family;
	source_open(&w->out.src, fd, connect_ready);
	if (fd < 0) {
		connect_ended(w, errno);
		return;
	}
	failed = family == AF_INET ? connect(fd, (struct sockaddr *)&v4, sizeof(v4))
				   : connect(fd, (struct sockaddr *)&v6, sizeof(v6));
	if (!failed)
		connect_ended(w, 0);
	else if (errno == EINPROGRESS)
		source_watch(&w->out.src, EPOLLOUT);
	else
		connect_ended(w, errno);
}

/* 0, or an errno value that the frame is refused with. */
static int forward_connect(uint32_t id, uint16_t port)
{
	struct forward *w;

	if (!port)
		return EINVAL;
	w = connects < CONNECTS_MAX ? forward_new(id, NULL, port) : NULL;
	if (!w)
		return EAGAIN;
	connects++;
	connect_try(w, AF_INET);
	return 0;
}

static int connect_frame(const struct frame *f, const uint8_t *payload, bool known)
{
	struct fields it = fields_of(payload, f->length);
	struct field field;
	uint64_t port = 0;
	int error, more;

	while ((more = fields_next(&it, &field)) > 0)
		if (field.tag == T_PORT && field_u64(&field, &port))
			return -EPROTO;
	if (more < 0 || port > UINT16_MAX || f->stream & 3 || !(f->stream >> 2 & HOST_CONN))
		return -EPROTO;
	error = known ? EEXIST : forward_connect(f->stream >> 2 & HANDLE_MAX, (uint16_t)port);
	return !error || send_reply(G_ERROR, f->stream, error, "connect") ? 0 : -EPROTO;
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
	struct forward *w = NULL;
	int error;

	for (uint32_t i = 0; id && !w && i < forwards_high; i++)
		if (forwards[i].id == id)
			w = &forwards[i];
	if (f->type == G_CONNECT)
		return connect_frame(f, payload, w);
	if (!w)
		return 0; /* it ended while this frame was under way */
	if (f->type == G_RESET) {
		forward_cut(w);
		return 0;
	}
	if (w->reset_due || w->error)
		return 0;
	if (w->family || w->opened_due)
		return -EPROTO; /* the host was not told yet that there is a connection */
	error = data_frame(w, f, payload);
	settle(w);
	return error;
}

void forward_reset_all(void)
{
	for (uint32_t i = forwards_high; i-- > 0;)
		if (forwards[i].id)
			forward_cut(&forwards[i]);
	listeners_lost();
}

static bool opened_send(struct forward *w)
{
	uint8_t bytes[32];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	if (w->from)
		build_u64(&b, T_HANDLE, w->handle);
	build_u64(&b, T_PORT, w->port);
	return send_frame(G_OPENED, stream_of(w, 0), &b);
}

static bool error_send(const struct forward *w)
{
	uint8_t bytes[48];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	build_text(&b, T_ERROR_STEP, "connect");
	build_u64(&b, T_ERRNO, (uint64_t)w->error);
	return send_frame(G_ERROR, stream_of(w, 0), &b);
}

bool forward_control(void)
{
	struct builder none = {.bytes = NULL};

	for (uint32_t i = 0; i < forwards_high; i++) {
		struct forward *w = &forwards[i];

		if (!w->id || w->family)
			continue;
		if (w->error) {
			if (!error_send(w))
				return false;
			forward_free(w);
			continue;
		}
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

/* Connections: who may talk to us, and the bytes that come in. The newest one wins. */
#include "cell.h"
#include "zygote.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	WAITING_MAX = 4,
	HELLO_MAX = 64, /* one NONCE, and room for tags of later versions */
	KEEP = 4096,
	RX_SIZE = FRAME_HEADER + FRAME_PAYLOAD_MAX,
};

/* Accepted, but HELLO has not come yet. */
struct waiting {
	struct source src;
	uint64_t deadline;
	uint32_t used;
	uint8_t bytes[FRAME_HEADER + HELLO_MAX];
};

struct conn conn = {.src = {.fd = -1}};

static struct source listener;
static struct waiting waiting[WAITING_MAX] OWN;
static uint8_t rx[RX_SIZE];
static uint32_t rx_used OWN, rx_peak OWN;

void conn_close(void)
{
	source_close(&conn.src);
	rx_used = 0;
	more_forget();
	forward_reset_all();
}

static int hello_nonce(const struct frame *f, const uint8_t *payload, uint8_t nonce[NONCE_SIZE])
{
	struct fields it = fields_of(payload, f->length);
	struct field field;
	int more, found = -EPROTO;

	if (f->type != G_HELLO || f->stream || f->generation)
		return -EPROTO;
	while ((more = fields_next(&it, &field)) > 0) {
		if (field.tag == T_NONCE && field.length == NONCE_SIZE) {
			memcpy(nonce, field.bytes, NONCE_SIZE);
			found = 0;
		}
	}
	return more ? more : found;
}

/* A new conversation: what was sent before it and not acknowledged will be asked for again. */
static void conn_begin(const uint8_t nonce[NONCE_SIZE], bool same_transport)
{
	conn.generation++;
	more_forget();
	forward_reset_all();
	op_detach_all();
	cells_forget();
	zygote_forget();
	send_begin(nonce, same_transport);
}

/* Takes complete frames off the buffer. False if the connection was closed or replaced. */
static bool frames_take(void)
{
	uint32_t at = 0;

	while (rx_used - at >= FRAME_HEADER) {
		uint8_t nonce[NONCE_SIZE], *payload = rx + at + FRAME_HEADER;
		struct frame f;

		if (frame_decode(rx + at, &f))
			return false;
		if (rx_used - at < FRAME_HEADER + f.length)
			break;
		at += FRAME_HEADER + f.length;
		if (f.type == G_HELLO) { /* a transport without connections starts again like this */
			if (hello_nonce(&f, payload, nonce))
				return false;
			conn_begin(nonce, true);
		} else if (f.generation == conn.generation && dispatch(&f, payload)) {
			return false;
		}
		if (conn.src.fd < 0)
			return false;
	}
	rx_used -= at;
	memmove(rx, rx + at, rx_used);
	return true;
}

static void conn_ready(struct source *src, uint32_t events)
{
	ssize_t n;

	if (src->fd < 0 || !(events & ~(uint32_t)EPOLLOUT))
		return;
	n = read(src->fd, rx + rx_used, sizeof(rx) - rx_used);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		conn_close();
		return;
	}
	rx_used += (uint32_t)n;
	rx_peak = rx_used > rx_peak ? rx_used : rx_peak;
	if (!frames_take())
		conn_close();
}

void conn_trim(void)
{
	/* Called while a frame is being handled: what is still in the buffer stays. */
	if (rx_peak > KEEP)
		pages_free(rx, sizeof(rx), rx_used > KEEP ? rx_used : KEEP);
	rx_peak = rx_used > KEEP ? rx_used : 0;
}

void conn_scrub(void)
{
	pages_free(rx, sizeof(rx), 0);
	memset(rx, 0, 4096); /* what shares a page with something else */
	memset(rx + sizeof(rx) - 4096, 0, 4096);
}

/* --- before HELLO ------------------------------------------------------------------------------ */

/* Exactly up to the end of HELLO: what follows belongs to the conversation. */
static size_t hello_wants(const struct waiting *w, struct frame *f)
{
	if (w->used < FRAME_HEADER)
		return FRAME_HEADER - w->used;
	if (frame_decode(w->bytes, f) || f->length > HELLO_MAX)
		return SIZE_MAX;
	return FRAME_HEADER + f->length - w->used;
}

static void waiting_ready(struct source *src, uint32_t events)
{
	struct waiting *w = container_of(src, struct waiting, src);
	uint8_t nonce[NONCE_SIZE];
	struct frame f = {.length = 0};
	size_t want;
	ssize_t n;

	(void)events;
	if (src->fd < 0)
		return;
	while ((want = hello_wants(w, &f)) && want != SIZE_MAX) {
		n = read(src->fd, w->bytes + w->used, want);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			source_close(src);
			return;
		}
		w->used += (uint32_t)n;
	}
	if (want || hello_nonce(&f, w->bytes + FRAME_HEADER, nonce)) {
		source_close(src);
		return;
	}
	conn_close();
	source_open(&conn.src, source_take(src), conn_ready);
	source_watch(&conn.src, EPOLLIN);
	conn_begin(nonce, false);
}

static bool peer_allowed(int fd)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) && cred.uid == config.peer_uid;
}

static void listener_ready(struct source *src, uint32_t events)
{
	int fd = accept4(src->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct waiting *w = &waiting[0];

	(void)events;
	if (fd < 0)
		return;
	if (!peer_allowed(fd)) {
		close(fd);
		return;
	}
	for (int i = 1; i < WAITING_MAX && w->src.fd >= 0; i++)
		if (waiting[i].src.fd < 0 || waiting[i].deadline < w->deadline)
			w = &waiting[i];
	source_close(&w->src); /* the one that has waited longest, if all are taken */
	source_open(&w->src, fd, waiting_ready);
	source_watch(&w->src, EPOLLIN);
	w->used = 0;
	w->deadline = now_ms() + HELLO_MS;
}

void conn_init(void)
{
	for (int i = 0; i < WAITING_MAX; i++)
		source_open(&waiting[i].src, -1, waiting_ready);
	source_open(&listener, FD_LISTEN, listener_ready);
	source_watch(&listener, EPOLLIN);
}

void conn_timers(uint64_t now)
{
	for (int i = 0; i < WAITING_MAX; i++)
		if (waiting[i].src.fd >= 0 && waiting[i].deadline <= now)
			source_close(&waiting[i].src);
}

uint64_t conn_next_timer(void)
{
	uint64_t next = NEVER;

	for (int i = 0; i < WAITING_MAX; i++)
		if (waiting[i].src.fd >= 0 && waiting[i].deadline < next)
			next = waiting[i].deadline;
	return next;
}

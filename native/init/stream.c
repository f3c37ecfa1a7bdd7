/* Streams: a descriptor inside on one side, the host's offsets and credit on the other. */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DISCARD_MAX = 64, PTY_DRAIN = 1 << 16, EOT = 4 };

void outlet_open(struct outlet *o, int fd, void (*ready)(struct source *, uint32_t))
{
	*o = (struct outlet){.drain = -1, .cap = NEVER, .hold = NEVER};
	source_open(&o->src, fd, ready);
	o->eof = fd < 0;
}

static void outlet_end(struct outlet *o, bool held)
{
	int fd = source_take(&o->src);

	o->eof = true;
	if (o->ring.base == o->ring.end)
		ring_free(&o->ring);
	if (held)
		discard_keep(fd);
	else if (fd >= 0)
		close(fd);
}

static size_t outlet_room(const struct outlet *o)
{
	size_t room = ring_room(&o->ring);
	uint64_t below = o->cap > o->ring.end ? o->cap - o->ring.end : 0;

	return below < room ? (size_t)below : room;
}

void outlet_watch(struct outlet *o)
{
	if (o->src.fd >= 0)
		source_watch(&o->src, o->drop || outlet_room(o) ? EPOLLIN : 0);
}

void outlet_drop(struct outlet *o, bool drop)
{
	o->drop = drop;
	outlet_watch(o);
}

static void outlet_waste(struct outlet *o)
{
	char waste[4096];
	ssize_t n = read(o->src.fd, waste, sizeof(waste));

	if (n > 0)
		o->dropped += (uint64_t)n;
}

/* One read: level triggering brings us back, and no stream starves the others. */
void outlet_read(struct outlet *o, uint32_t events)
{
	size_t want = outlet_room(o);
	struct iovec v[2];
	ssize_t n;

	if (o->src.fd < 0)
		return;
	if (o->drain >= 0 && (uint64_t)o->drain < want)
		want = (size_t)o->drain;
	if (events == EPOLLHUP) { /* alone: the end, nothing more to read */
		outlet_end(o, false);
		return;
	}
	if (!want || !ring_reserve(&o->ring)) {
		if (o->drop)
			outlet_waste(o);
		outlet_watch(o);
		return;
	}
	n = readv(o->src.fd, v, ring_space(&o->ring, want, v));
	if (n > 0) {
		ring_commit(&o->ring, (size_t)n);
		if (o->drain >= 0 && (o->drain -= n) == 0)
			outlet_end(o, true);
		else
			outlet_watch(o);
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		o->failed = n < 0;
		outlet_end(o, false);
	} else if (o->drain >= 0) {
		outlet_end(o, true);
	} else if (o->ring.base == o->ring.end) {
		ring_free(&o->ring);
	}
}

static void drain_more(struct outlet *o)
{
	while (o->src.fd >= 0 && ring_room(&o->ring))
		outlet_read(o, EPOLLIN);
}

/* The leader has ended: what is in the pipe now is its output, what comes later is a daemon's.
 * Counting it first keeps a daemon that never stops writing from delaying DONE. */
void outlet_drain(struct outlet *o, bool pty)
{
	int here = 0;

	if (o->src.fd < 0)
		return;
	if (pty)
		o->drain = PTY_DRAIN; /* a master does not count; reading flushes what is under way */
	else if (ioctl(o->src.fd, FIONREAD, &here) || here <= 0)
		outlet_end(o, true);
	else
		o->drain = here;
	drain_more(o);
}

int outlet_credit(struct outlet *o, uint64_t offset)
{
	if (offset > o->sent)
		return -EPROTO;
	if (offset <= o->ring.base)
		return 0;
	ring_drop(&o->ring, offset);
	if (o->drain >= 0)
		drain_more(o);
	else
		outlet_watch(o);
	return 0;
}

/* ATTACH: the host has everything below offset, and wants the rest again. */
int outlet_rewind(struct outlet *o, uint64_t offset)
{
	if (offset < o->ring.base || offset > o->ring.end)
		return -ERANGE;
	o->sent = offset;
	o->eof_sent = false;
	return outlet_credit(o, offset);
}

void outlet_close(struct outlet *o)
{
	source_close(&o->src);
	ring_free(&o->ring);
}

/* --- to the sandbox ------------------------------------------------------------------------- */

void inlet_open(struct inlet *in, int fd, enum inlet_kind kind,
		void (*ready)(struct source *, uint32_t))
{
	/* Without a descriptor everything that comes is thrown away, but credited: no host hangs. */
	*in = (struct inlet){.kind = kind, .broken = fd < 0};
	source_open(&in->src, fd, ready);
}

static void inlet_credit(struct inlet *in)
{
	/* Few credits, unless the host may be waiting for this one. */
	if (in->ring.base == in->ring.end || in->ring.base - in->credited >= STREAM_WINDOW / 4)
		in->credit_due = in->ring.base != in->credited;
}

static void inlet_break(struct inlet *in)
{
	source_close(&in->src);
	ring_free(&in->ring);
	in->broken = in->broken_due = true;
	in->credit_due = true;
}

static void inlet_finish(struct inlet *in)
{
	static const char eot = EOT;

	in->finished = true;
	if (in->kind == INLET_SOCKET)
		shutdown(in->src.fd, SHUT_WR);
	if (in->kind != INLET_PTY)
		source_close(&in->src);
	else if (write(in->src.fd, &eot, 1) < 0)
		in->finished = errno != EAGAIN;
	else
		source_watch(&in->src, 0);
}

void inlet_write(struct inlet *in)
{
	struct iovec v[2];
	ssize_t n;

	while (in->src.fd >= 0 && in->ring.base != in->ring.end) {
		n = writev(in->src.fd, v, ring_view(&in->ring, in->ring.base, SIZE_MAX, v));
		if (n > 0) {
			ring_drop(&in->ring, in->ring.base + (uint64_t)n);
			inlet_credit(in);
		} else if (errno == EAGAIN) {
			source_watch(&in->src, EPOLLOUT);
			return;
		} else if (errno != EINTR) {
			inlet_break(in);
			return;
		}
	}
	if (in->src.fd < 0)
		return;
	if (in->eof && !in->finished)
		inlet_finish(in);
	if (in->src.fd >= 0)
		source_watch(&in->src, in->eof && !in->finished ? EPOLLOUT : 0);
}

/* A payload of DATA. What is here already (a host that sends again after a new connection) is
 * skipped; a gap, or more than the window, is a broken host. */
int inlet_data(struct inlet *in, const uint8_t *payload, size_t length)
{
	struct iovec v[2];
	uint64_t offset;
	size_t n, skip;
	int count;

	if (length < 8)
		return -EPROTO;
	offset = get_u64(payload);
	payload += 8;
	n = length - 8;
	if (offset > in->ring.end || offset + n < offset)
		return -EPROTO;
	if (offset + n <= in->ring.end)
		return 0;
	skip = (size_t)(in->ring.end - offset);
	payload += skip;
	n -= skip;
	if (in->eof || n > ring_room(&in->ring))
		return -EPROTO;
	if (in->broken || !ring_reserve(&in->ring)) {
		in->ring.base = in->ring.end += n;
		in->credit_due = true;
		return 0;
	}
	count = ring_space(&in->ring, n, v);
	for (int i = 0; i < count; i++) {
		__builtin_memcpy(v[i].iov_base, payload, v[i].iov_len);
		payload += v[i].iov_len;
	}
	ring_commit(&in->ring, n);
	inlet_write(in);
	return 0;
}

int inlet_eof(struct inlet *in, uint64_t total)
{
	if (total != in->ring.end)
		return -EPROTO;
	in->eof = true;
	inlet_write(in);
	return 0;
}

void inlet_close(struct inlet *in)
{
	source_close(&in->src);
	ring_free(&in->ring);
	in->broken = true;
}

/* --- pipes of daemons ------------------------------------------------------------------------- */

static struct source discards[DISCARD_MAX] OWN;

static void discard_ready(struct source *src, uint32_t events)
{
	char waste[4096];
	ssize_t n;

	(void)events;
	if (src->fd < 0)
		return;
	n = read(src->fd, waste, sizeof(waste));
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		source_close(src);
}

void discard_keep(int fd)
{
	static uint32_t oldest;
	static uint32_t used;
	struct source *src;
	char waste[1024];

	if (fd < 0)
		return;
	if (read(fd, waste, sizeof(waste)) == 0) {
		close(fd);
		return;
	}
	for (uint32_t i = 0; i < used; i++) {
		if (discards[i].fd < 0) {
			source_open(&discards[i], fd, discard_ready);
			source_watch(&discards[i], EPOLLIN);
			return;
		}
	}
	/* The table is full: the oldest daemon loses its output. */
	src = used < DISCARD_MAX ? &discards[used++] : &discards[oldest++ % DISCARD_MAX];
	if (src->ready)
		source_close(src);
	source_open(src, fd, discard_ready);
	source_watch(src, EPOLLIN);
}

/* The launcher's socket: one client (the newest), one frame a packet, answers by request id. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "protocol.h"

/* Answers and news that a busy node has not read yet: thousands, while the usual room is for 278. */
enum { UNREAD_BYTES_MAX = 4 << 20 };

static uint8_t packet[FRAME_HEADER + FRAME_PAYLOAD_MAX + 1], out[FRAME_HEADER + FRAME_PAYLOAD_MAX];
static struct builder builder;

int fail(struct failure *f, const char *step, int error, const char *format, ...)
{
	va_list args;

	f->step = step;
	f->error = error;
	va_start(args, format);
	vsnprintf(f->text, sizeof(f->text), format, args);
	va_end(args);
	return error;
}

/* Two files of this size are the most that the log takes. */
static void log_turn(const struct launcher *l)
{
	enum { LOG_MAX = 1 << 20 };
	char old[PATH_TEXT_MAX + 16];
	struct stat st;
	int fresh;

	if (!l->log_file || fstat(l->log, &st) < 0 || st.st_size < LOG_MAX)
		return;
	snprintf(old, sizeof(old), "%s.1", l->log_file);
	fresh = rename(l->log_file, old) < 0
			? -1
			: open(l->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fresh < 0 || dup3(fresh, l->log, O_CLOEXEC) < 0)
		(void)!ftruncate(l->log, 0);
	if (fresh >= 0)
		close(fresh);
}

void log_line(const struct launcher *l, const char *format, ...)
{
	char text[512], when[32] = "";
	time_t now = time(NULL);
	struct tm tm;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (gmtime_r(&now, &tm))
		strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
	log_turn(l);
	dprintf(l->log, "%s skerry-spawn: %s\n", when, text);
}

struct builder *answer(void)
{
	build_init(&builder, out + FRAME_HEADER, FRAME_PAYLOAD_MAX);
	return &builder;
}

struct pending pending_of(const struct launcher *l, const struct request *r)
{
	return (struct pending){.id = r->id, .connection = l->connection, .set = true};
}

/* Room for one descriptor beside a packet. */
union passed {
	struct cmsghdr head;
	char space[CMSG_SPACE(sizeof(int))];
};

static void send_frame(struct launcher *l, uint8_t type, uint32_t id, const struct builder *b, int fd)
{
	struct frame f = {.type = type, .stream = id, .length = (uint32_t)b->used};
	struct iovec iov = {out, FRAME_HEADER + b->used};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	union passed control = {0};

	if (l->client.fd < 0)
		return;
	frame_encode(out, &f);
	if (fd >= 0) {
		m.msg_control = control.space;
		m.msg_controllen = sizeof(control.space);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(int));
	}
	/* A client that does not read is let go: it asks for the STATUS when it is back. */
	if (sendmsg(l->client.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		log_line(l, "client: send: %s", strerror(errno));
		loop_close(&l->loop, &l->client);
		orphan_arm(l);
	}
}

void reply_ok(struct launcher *l, const struct pending *p, struct builder *b)
{
	if (b->overflow)
		reply_fail(l, p, "answer", -EMSGSIZE, "too long");
	else if (p->set && p->connection == l->connection)
		send_frame(l, L_OK, p->id, b, -1);
}

void reply_descriptor(struct launcher *l, const struct pending *p, struct builder *b, int fd)
{
	if (p->set && p->connection == l->connection)
		send_frame(l, L_OK, p->id, b, fd);
}

void reply_fail(struct launcher *l, const struct pending *p, const char *step, int error, const char *text)
{
	struct builder *b = answer();

	log_line(l, "request %u: %s: %s: %s", p->id, step, strerror(-error), text ? text : "");
	build_text(b, T_ERROR_STEP, step);
	build_u64(b, T_ERRNO, (uint64_t)-error);
	build_text(b, T_TEXT, text ? text : "");
	if (p->set && p->connection == l->connection)
		send_frame(l, L_FAIL, p->id, b, -1);
}

void send_event(struct launcher *l, uint8_t type, struct builder *b)
{
	send_frame(l, type, 0, b, -1);
}

/* A page: from bucket `offset` on, as long as one more bucket surely fits. */
static void status(struct launcher *l, const struct pending *p, uint64_t offset)
{
	enum { ROOM = 8192 };
	struct builder *b = answer();

	build_u64(b, T_PID, (uint64_t)getpid());
	build_u64(b, T_VERSION, VERSION);
	build_text(b, T_UPPER, l->upper == UPPER_BTRFS ? "btrfs" : l->upper == UPPER_DIR ? "dir" : "");
	for (unsigned n = 0; n < l->layer_count && !offset; n++)
		build_text(b, T_LAYER, l->layers[n]);
	for (uint64_t n = offset; n < BUCKETS; n++) {
		if (b->used > FRAME_PAYLOAD_MAX - ROOM) {
			build_u64(b, T_OFFSET, n);
			break;
		}
		for (const struct instance *i = l->instances[n]; i; i = i->next)
			build_text(b, T_INSTANCE, i->id);
		for (const struct slot *s = l->slots[n]; s; s = s->next)
			build_u64(b, T_SLOT, s->id);
	}
	reply_ok(l, p, b);
}

static int upper_drop(struct launcher *l, const struct request *r, struct failure *f)
{
	int err;

	if (instance_find(l, r->instance))
		return fail(f, "instance", -EBUSY, "%s", r->instance);
	err = upper_remove(l, r->instance);
	return err && err != -ENOENT ? fail(f, "upper", err, "%s", r->instance) : 0;
}

/* Requests that are answered at once. */
static int serve_now(struct launcher *l, const struct request *r, struct failure *f)
{
	switch (r->type) {
	case L_UPPER_DROP:
		return upper_drop(l, r, f);
	case L_SHUTDOWN:
		l->loop.stop = l->shutting_down = true;
		return 0;
	default:
		return fail(f, "type", -EOPNOTSUPP, "%d", r->type);
	}
}

static void serve(struct launcher *l, struct request *r, int offered)
{
	struct pending reply = pending_of(l, r);
	struct failure f = {0};
	int err;

	switch (r->type) {
	case L_START:
		instance_start(l, r);
		return;
	case L_STOP:
		instance_stop(l, r);
		return;
	case L_SLOT_MAKE:
		slot_make(l, r);
		return;
	case L_LAYER_MOUNT:
		layer_mount(l, r);
		return;
	case L_LAYER_UNMOUNT:
		layer_unmount(l, r);
		return;
	case L_UPPER_OPEN:
		upper_open(l, r);
		return;
	case L_UPPER_SNAPSHOT:
		upper_keep(l, r);
		return;
	case L_FREEZE:
	case L_THAW:
		freeze_set(l, r);
		return;
	case L_RECLAIM:
	case L_PREFETCH:
		memory_move(l, r);
		return;
	case L_STATUS:
		status(l, &reply, r->offset);
		free(r);
		return;
	case L_BLOBS:
		blobs_serve(l, r, offered);
		free(r);
		return;
	case L_ADOPT:
		err = instance_adopt(l, r, &f);
		break;
	case L_SLOT_DROP:
		err = slot_drop(l, r, &f);
		break;
	default:
		err = serve_now(l, r, &f);
	}
	if (err)
		reply_fail(l, &reply, f.step, f.error, f.text);
	else
		reply_ok(l, &reply, answer());
	free(r);
}

/* A packet, and the descriptor that came with it or -1. */
static ssize_t receive(int from, int *fd)
{
	struct iovec iov = {packet, sizeof(packet)};
	union passed control = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space,
			   .msg_controllen = sizeof(control.space)};
	ssize_t n = recvmsg(from, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*fd = -1;
	if (n >= 0 && m.msg_controllen >= CMSG_LEN(sizeof(int)) && control.head.cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(&control.head), sizeof(int));
	return n;
}

static void client_ready(struct watch *w, uint32_t events)
{
	struct launcher *l = container_of(w, struct launcher, client);
	close_auto int offered = -1;
	ssize_t n = receive(w->fd, &offered);
	struct request *r;
	struct frame f;
	const char *where;
	int err;

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < FRAME_HEADER || frame_decode(packet, &f) || (size_t)n != FRAME_HEADER + f.length) {
		/* Gone, or not speaking this protocol. */
		if (n > 0)
			log_line(l, "client: bad frame of %zd bytes", n);
		loop_close(&l->loop, w);
		orphan_arm(l);
		return;
	}
	err = request_parse(&f, packet + FRAME_HEADER, &r, &where);
	if (err) {
		struct pending reply = {.id = f.stream, .connection = l->connection, .set = true};

		reply_fail(l, &reply, "request", err, where);
		return;
	}
	serve(l, r, offered);
}

static void listener_ready(struct watch *w, uint32_t events)
{
	struct launcher *l = container_of(w, struct launcher, listener);
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), room = UNREAD_BYTES_MAX;

	(void)events;
	if (fd < 0)
		return;
	/* The socket's mode lets nobody else in; this says so again. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || (peer.uid && peer.uid != geteuid())) {
		close(fd);
		return;
	}
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
		log_line(l, "client: room for unread answers: %s", strerror(errno));
	loop_close(&l->loop, &l->client);
	orphan_disarm(l);
	l->connection++;
	if (loop_watch(&l->loop, &l->client, fd, EPOLLIN)) {
		close(fd);
		orphan_arm(l);
	}
}

int serve_open(struct launcher *l)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/spawn.sock", l->run_dir);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err;
	mode_t mask;

	if (fd < 0)
		return -errno;
	if (n < 0 || (size_t)n >= sizeof(address.sun_path)) {
		close(fd);
		return -ENAMETOOLONG;
	}
	l->client = (struct watch){-1, client_ready};
	l->listener = (struct watch){-1, listener_ready};
	unlink(address.sun_path);
	mask = umask(0177);
	err = bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0 ? -errno : 0;
	umask(mask);
	if (!err)
		err = loop_watch(&l->loop, &l->listener, fd, EPOLLIN);
	if (err)
		close(fd);
	return err;
}

/* What a zygote says, against an agent that believes it only about its own calls. */
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "../init/zygote.c"
#include "check.h"

/* The agent of this test: a zygote (handle 1, pid 50), a call (handle 2) and a program (handle 3). */
struct op ops[OPS_LIMIT];
uint32_t ops_high = 3;
struct config config;
static int killed, ended;

struct op *op_find(uint32_t handle)
{
	for (uint32_t i = 0; i < ops_high; i++)
		if (ops[i].handle == handle && ops[i].state != OP_FREE)
			return &ops[i];
	return NULL;
}

void op_end(struct op *op)
{
	op->state = OP_ENDED;
	ended++;
}

void op_kill(struct op *op)
{
	op->killed = true;
	killed++;
}

void op_heard(struct op *op)
{
	(void)op;
}

void source_open(struct source *src, int fd, void (*ready)(struct source *, uint32_t))
{
	*src = (struct source){.fd = fd, .ready = ready};
}

void source_watch(struct source *src, uint32_t events)
{
	src->events = events;
}

void source_close(struct source *src)
{
	if (src->fd >= 0)
		close(src->fd);
	src->fd = -1;
}

bool send_frame(uint8_t type, uint32_t stream, const struct builder *b)
{
	(void)stream;
	(void)b;
	return type == G_ZYGOTE_IS;
}

int cell_tasks(uint32_t number, uint32_t *count)
{
	(void)number;
	*count = 0;
	return -1;
}

int group_door(struct group *g)
{
	return g->fd;
}

int script_file(const struct field *bytes)
{
	(void)bytes;
	return -EIO;
}

static void begin(bool ready)
{
	struct launch l = {.talk = -1};

	memset(ops, 0, sizeof(ops));
	for (uint32_t i = 0; i < 3; i++)
		ops[i] = (struct op){.handle = i + 1, .state = i == 1 ? OP_STARTING : OP_RUNNING, .hangs_at = NEVER};
	ops[0].kind = KIND_ZYGOTE;
	ops[0].pid = 50;
	ops[1].kind = KIND_CALL;
	ops[2].pid = 60;
	killed = ended = 0;
	CHECK(!zygote_begin(&ops[0], &l));
	close(l.talk);
	CHECK(zygote_there() && !zygote_ready());
	zygote.ready = zygote.was_ready = ready;
}

static void done(void)
{
	zygote_over(&ops[0]);
	CHECK(!zygote_there() && !zygote_ready());
}

static uint8_t packet[HEAR_MAX];

static bool say(uint8_t type, uint32_t handle, pid_t pid, uint64_t status, const char *step, uint64_t error)
{
	struct builder b;

	build_init(&b, packet + FRAME_HEADER, sizeof(packet) - FRAME_HEADER);
	build_u64(&b, Z_PID, 70);
	build_u64(&b, Z_STATUS, status);
	build_u64(&b, Z_ERRNO, error);
	if (step)
		build_text(&b, Z_STEP, step);
	frame_encode(packet, &(struct frame){.type = type, .stream = handle, .length = (uint32_t)b.used});
	return packet_take(packet, FRAME_HEADER + b.used, pid);
}

static void a_call(void)
{
	begin(true);
	CHECK(say(Z_ENTERED, 2, 70, 0, NULL, 0) && ops[1].state == OP_RUNNING && ops[1].pid == 70 && ops[1].started);
	CHECK(say(Z_FAILED, 2, 70, 0, "descriptors", 9) && ops[1].state == OP_RUNNING); /* its end will tell */
	CHECK(say(Z_ENDED, 2, 50, 3 << 8, NULL, 0) && ops[1].state == OP_ENDED && ops[1].wait_status == 3 << 8);
	CHECK(!ops[1].fail_step);
	CHECK(say(Z_ENDED, 2, 50, 0, NULL, 0) && ended == 1); /* twice */
	done();
	begin(true);
	CHECK(say(Z_FAILED, 2, 50, 0, "fork", 11) && !strcmp(ops[1].fail_step, "fork") && ops[1].fail_errno == 11);
	done();
	begin(true);
	CHECK(say(Z_FAILED, 2, 50, 0, "no such step", 1ull << 40) && !strcmp(ops[1].fail_step, "zygote"));
	CHECK(ops[1].fail_errno == EIO);
	done();
	begin(true);
	CHECK(say(Z_ENDED, 2, 50, 0x7f, NULL, 0)); /* "stopped" is no end */
	CHECK(ops[1].wait_status == SIGKILL && !strcmp(ops[1].fail_step, "zygote") && !ops[1].started);
	done();
}

/* Only the zygote's own process may say that a call has ended, or that it is ready; nothing is said of others. */
static void liars(void)
{
	begin(true);
	CHECK(!say(Z_ENDED, 2, 71, 0, NULL, 0) && ops[1].state == OP_STARTING);
	CHECK(!say(Z_READY, 0, 50, 0, NULL, 0)); /* once only */
	CHECK(say(Z_ENDED, 3, 50, 0, NULL, 0) && ops[2].state == OP_RUNNING);
	CHECK(say(Z_FAILED, 1, 50, 0, "call", 1) && ops[0].state == OP_RUNNING);
	CHECK(say(Z_ENTERED, 99, 50, 0, NULL, 0));
	CHECK(!say(0x70, 2, 50, 0, NULL, 0));
	CHECK(!say(Z_ENTERED, 2, 50, 0, "a step whose name is far too long", 0));
	done();
	begin(false);
	CHECK(!say(Z_READY, 0, 71, 0, NULL, 0) && !zygote_ready());
	CHECK(say(Z_READY, 0, 50, 0, NULL, 0) && zygote_ready() && zygote.due == IS_READY && zygote_control());
	CHECK(!zygote.due);
	done();
	CHECK(!zygote.due); /* DONE tells */
	begin(false);
	done();
	CHECK(zygote.due == IS_FAILED);
	begin(true);
	CHECK(!packet_take(packet, FRAME_HEADER - 1, 50));
	frame_encode(packet, &(struct frame){.type = Z_ENDED, .stream = 2, .length = 100});
	CHECK(!packet_take(packet, FRAME_HEADER + 99, 50));
	memset(packet + FRAME_HEADER, 0xff, 100);
	CHECK(!packet_take(packet, FRAME_HEADER + 100, 50));
	done();
}

static void lost(void)
{
	begin(true);
	CHECK(say(Z_ENTERED, 2, 70, 0, NULL, 0));
	ops[0].state = OP_ENDED;
	done();
	CHECK(ended == 1 && ops[1].state == OP_ENDED && ops[1].started && !strcmp(ops[1].fail_step, "zygote"));
	CHECK(ops[1].killed && ops[2].state == OP_RUNNING);
	begin(true); /* one that hangs: the call was killed and does not end */
	zygote_watch(&ops[1], 1000);
	CHECK(ops[1].hangs_at == NEVER);
	ops[1].killed = true;
	zygote_watch(&ops[1], 1000);
	zygote_watch(&ops[1], 1000 + HANGS_MS - 1);
	CHECK(!killed && zygote_ready());
	zygote_watch(&ops[1], 1000 + HANGS_MS);
	CHECK(killed == 1 && ops[0].killed && !zygote_ready());
	done();
}

int main(void)
{
	a_call();
	liars();
	lost();
	return 0;
}

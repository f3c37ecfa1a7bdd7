/* A CALL packet: what the extension takes for one, and what it refuses. */
#include "../zygote/call.c"

#include <string.h>

#include "check.h"

static uint8_t packet[8192];
static struct builder b;
static struct call call;

static void begin(void)
{
	build_init(&b, packet + FRAME_HEADER, sizeof(packet) - FRAME_HEADER);
}

static int parse_as(uint8_t type, size_t more)
{
	size_t size = b.used + more;

	CHECK(!b.overflow);
	frame_encode(packet, &(struct frame){.type = type, .stream = 77, .length = (uint32_t)b.used});
	return call_parse(packet, FRAME_HEADER + size, &call);
}

static int parse(void)
{
	return parse_as(Z_CALL, 0);
}

static void ids(uint64_t uid, uint64_t gid)
{
	build_u64(&b, Z_UID, uid);
	build_u64(&b, Z_GID, gid);
}

static void streams(void)
{
	build_u64(&b, Z_FD, 1);
	build_u64(&b, Z_FD, 2);
	build_u64(&b, Z_FD, 3);
}

static void limit(uint64_t resource, uint64_t soft, uint64_t hard)
{
	uint8_t raw[24];

	put_u64(raw, resource);
	put_u64(raw + 8, soft);
	put_u64(raw + 16, hard);
	build_bytes(&b, Z_RLIMIT, raw, sizeof(raw));
}

static void whole(void)
{
	begin();
	build_u64(&b, Z_GROUP, 0);
	streams();
	build_u64(&b, Z_JOIN, CLONE_NEWPID | CLONE_NEWNS);
	limit(7, 100, 200);
	build_text(&b, Z_CWD, "/call");
	ids(1000, 1001);
	CHECK(parse() == 0);
	CHECK(call.number == 77 && call.uid == 1000 && call.gid == 1001 && call.uses == 5);
	CHECK(call.use[0].tag == Z_GROUP && call.use[3].tag == Z_FD && call.use[3].value == 3);
	CHECK(call.use[4].tag == Z_JOIN && call.use[4].value == (CLONE_NEWPID | CLONE_NEWNS));
	CHECK(call.rlimits == 1 && call.rlimit[0].hard == 200 && !strcmp(call.cwd, "/call"));
	CHECK(parse_as(Z_READY, 0) == -EPROTO && parse_as(Z_CALL, 1) == -EPROTO);
	CHECK(call_parse(packet, FRAME_HEADER - 1, &call) == -EPROTO && call.number == 0);
}

/* Nobody's code is to run as root, whatever is asked. */
static void identities(void)
{
	static const uint64_t bad[][2] = {{0, 1000}, {1000, 0}};

	for (size_t i = 0; i < 2; i++) {
		begin();
		streams();
		ids(bad[i][0], bad[i][1]);
		CHECK(parse() == -EPERM);
	}
	begin();
	streams();
	CHECK(parse() == -EPERM); /* none given */
	begin();
	streams();
	ids(UINT32_MAX, 1000); /* "leave it as it is", to setresuid */
	CHECK(parse() == -EPROTO);
	begin();
	streams();
	ids(1ull << 32, 1000); /* 0, to who cuts it */
	CHECK(parse() == -EPROTO);
}

static void descriptors(void)
{
	begin();
	build_u64(&b, Z_FD, 1);
	build_u64(&b, Z_FD, 3);
	ids(1, 1);
	CHECK(parse() == -EPROTO); /* no stderr */
	begin();
	streams();
	build_u64(&b, Z_FD, 1);
	ids(1, 1);
	CHECK(parse() == -EPROTO); /* twice */
	begin();
	streams();
	build_u64(&b, Z_FD, 5);
	ids(1, 1);
	CHECK(parse() == -EPROTO);
	begin();
	streams();
	for (int i = 3; i < ZYGOTE_FDS_MAX; i++)
		build_u64(&b, Z_GROUP, 0);
	ids(1, 1);
	CHECK(parse() == 0);
	build_u64(&b, Z_GROUP, 0);
	CHECK(parse() == -EPROTO);
}

static void values(void)
{
	static const uint64_t flags[] = {0, CLONE_NEWUSER, CLONE_NEWNS | CLONE_VM, 1ull << 40};

	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		begin();
		streams();
		ids(1, 1);
		build_u64(&b, Z_JOIN, flags[i]);
		CHECK(parse() == -EPROTO);
	}
	begin();
	streams();
	ids(1, 1);
	limit(7, 3, 2);
	CHECK(parse() == -EPROTO);
	begin();
	streams();
	ids(1, 1);
	limit(16, 1, 1);
	CHECK(parse() == -EPROTO);
	begin();
	streams();
	ids(1, 1);
	for (int i = 0; i < CALL_RLIMITS; i++)
		limit(1, 1, 1);
	CHECK(parse() == 0);
	limit(1, 1, 1);
	CHECK(parse() == -EPROTO);
	begin();
	streams();
	ids(1, 1);
	build_bytes(&b, Z_CWD, "/a\0b", 4);
	CHECK(parse() == -EPROTO);
	begin();
	streams();
	ids(1, 1);
	build_bytes(&b, 200, "later", 5); /* of a newer agent */
	CHECK(parse() == 0);
	CHECK(parse_as(Z_CALL, 0) == 0);
	packet[FRAME_HEADER + 1] = 255; /* a length past the end */
	CHECK(call_parse(packet, FRAME_HEADER + b.used, &call) == -EPROTO);
}

int main(void)
{
	whole();
	identities();
	descriptors();
	values();
	return 0;
}

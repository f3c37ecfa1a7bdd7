/* The codec: round trips, truncation everywhere, and the frames that both sides agree on.
 * `test_frames write` prints the golden file. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "frames.h"
#include "protocol.h"

static uint8_t out[FRAME_HEADER + 4096];
static struct builder body;

static void begin(void)
{
	memset(out, 0, sizeof(out));
	build_init(&body, out + FRAME_HEADER, sizeof(out) - FRAME_HEADER);
}

static size_t finish(uint8_t type, uint32_t generation, uint32_t stream)
{
	struct frame f = {type, generation, stream, (uint32_t)body.used};

	CHECK(!body.overflow);
	frame_encode(out, &f);
	return FRAME_HEADER + body.used;
}

static const char id16[] = "0123456789abcdef";

static size_t hello(void)
{
	begin();
	build_bytes(&body, T_NONCE, id16, 16);
	return finish(G_HELLO, 0, 0);
}

static size_t welcome(void)
{
	uint8_t nested[128];
	struct builder op;

	begin();
	build_bytes(&body, T_NONCE, id16, 16);
	build_u64(&body, T_GENERATION, 2);
	build_text(&body, T_VERSION, "0.1.0");
	build_init(&op, nested, sizeof(nested));
	build_u64(&op, T_HANDLE, 7);
	build_bytes(&op, T_OP_ID, id16, 16);
	build_u64(&op, T_STATE, 1);
	build_u64(&op, T_STDOUT_TOTAL, 1ull << 33);
	build_u64(&op, T_STDERR_TOTAL, 0);
	build_u64(&op, T_STDIN_TOTAL, 5);
	build_u64(&op, T_STDIN_EOF, 1);
	build_bytes(&body, T_OP, nested, op.used);
	return finish(G_WELCOME, 2, 0);
}

static size_t ping(void)
{
	begin();
	build_text(&body, T_TOKEN, "t");
	return finish(G_PING, 2, 0);
}

static size_t start_command(void)
{
	begin();
	build_bytes(&body, T_OP_ID, id16, 16);
	build_u64(&body, T_KIND, 0);
	build_text(&body, T_ARG, "sh");
	build_text(&body, T_ARG, "-c");
	build_bytes(&body, T_ARG, "printf '\xff\xc3\xa9'", 11);
	build_text(&body, T_ARG, "");
	build_text(&body, T_ENV, "LANG=C.UTF-8");
	build_text(&body, T_CWD, "/tmp/\xc3\xa9");
	build_text(&body, T_USER, "1000:1000");
	build_u64(&body, T_TIMEOUT_MS, 600000);
	build_u64(&body, T_NO_OUTPUT_MS, 60000);
	build_bytes(&body, T_SCRIPT, "a\0b", 3);
	build_u64(&body, T_STDIN, 1);
	return finish(G_START, 2, 7u << 2);
}

static size_t start_terminal(void)
{
	begin();
	build_bytes(&body, T_OP_ID, id16, 16);
	build_u64(&body, T_KIND, 0);
	build_text(&body, T_ARG, "bash");
	build_u64(&body, T_STDIN, 1);
	build_u64(&body, T_PTY_ROWS, 24);
	build_u64(&body, T_PTY_COLS, 80);
	return finish(G_START, 2, 8u << 2);
}

static size_t start_call(void)
{
	uint8_t nested[64];
	struct builder limits;

	begin();
	build_bytes(&body, T_OP_ID, id16, 16);
	build_u64(&body, T_KIND, 3);
	build_bytes(&body, T_SCRIPT, "{}", 2);
	build_u64(&body, T_STDIN, 1);
	build_u64(&body, T_CELL, 31);
	build_u64(&body, T_CPU_MS, 1500);
	build_init(&limits, nested, sizeof(nested));
	build_u64(&limits, T_FSIZE, 1 << 20);
	build_u64(&limits, T_NOFILE, 64);
	build_u64(&limits, T_STACK, 8 << 20);
	build_u64(&limits, T_CORE, 0);
	build_bytes(&body, T_RLIMITS, nested, limits.used);
	build_u64(&body, T_RESULT, 1);
	return finish(G_START, 2, 10u << 2);
}

static size_t cell(void)
{
	begin();
	build_u64(&body, T_CELL, 3);
	build_u64(&body, T_ACTION, 1);
	build_u64(&body, T_DISK, 64 << 20);
	build_u64(&body, T_INODES, 4096);
	return finish(G_CELL, 2, 0);
}

static size_t cell_is(void)
{
	begin();
	build_u64(&body, T_CELL, 3);
	build_u64(&body, T_STATE, 3);
	build_text(&body, T_ERROR_STEP, "tmpfs");
	build_u64(&body, T_ERRNO, ENOMEM);
	return finish(G_CELL_IS, 2, 0);
}

static size_t zygote_is(void)
{
	begin();
	build_u64(&body, T_STATE, 1);
	return finish(G_ZYGOTE_IS, 2, 0);
}

static size_t done_call(void)
{
	begin();
	build_u64(&body, T_SIGNO, 9);
	build_u64(&body, T_TIMED_OUT, 0);
	build_u64(&body, T_NO_OUTPUT, 0);
	build_u64(&body, T_CANCELLED, 0);
	build_u64(&body, T_OOM, 0);
	build_u64(&body, T_START_NS, 1795986980915281964ull);
	build_u64(&body, T_END_NS, 1795986982416605444ull);
	build_u64(&body, T_CPU_US, 1500321);
	build_u64(&body, T_STDOUT_TOTAL, 0);
	build_u64(&body, T_STDERR_TOTAL, 7);
	build_u64(&body, T_CPU_LIMIT, 1);
	build_u64(&body, T_DISK_USED, 8192);
	build_u64(&body, T_RESULT_TOTAL, 2);
	return finish(G_DONE, 2, 10u << 2);
}

static size_t started(void)
{
	begin();
	build_u64(&body, T_PID, 42);
	return finish(G_STARTED, 2, 7u << 2);
}

static size_t data(void)
{
	begin();
	put_u64(body.bytes, 0x0102030405060708ull);
	memcpy(body.bytes + 8, "a\0b\n", 4);
	body.used = 12;
	return finish(G_DATA, 2, 7u << 2 | 2);
}

static size_t eof(void)
{
	begin();
	build_u64(&body, T_TOTAL, 4);
	return finish(G_EOF, 2, 7u << 2 | 2);
}

static size_t credit(void)
{
	begin();
	build_u64(&body, T_OFFSET, 131072);
	return finish(G_CREDIT, 2, 7u << 2 | 3);
}

static size_t cancel(void)
{
	begin();
	return finish(G_CANCEL, 2, 7u << 2);
}

static size_t attach(void)
{
	begin();
	build_u64(&body, T_STDOUT_TOTAL, 9);
	build_u64(&body, T_STDERR_TOTAL, 0);
	return finish(G_ATTACH, 3, 7u << 2);
}

static size_t done(void)
{
	begin();
	build_u64(&body, T_EXIT_CODE, 3);
	build_u64(&body, T_TIMED_OUT, 0);
	build_u64(&body, T_NO_OUTPUT, 0);
	build_u64(&body, T_CANCELLED, 0);
	build_u64(&body, T_OOM, 1);
	build_u64(&body, T_START_NS, 1795986980915281964ull);
	build_u64(&body, T_END_NS, 1795986980916605444ull);
	build_u64(&body, T_CPU_US, 915);
	build_u64(&body, T_STDOUT_TOTAL, 4);
	build_u64(&body, T_STDERR_TOTAL, 0);
	return finish(G_DONE, 2, 7u << 2);
}

static size_t done_failed(void)
{
	begin();
	build_text(&body, T_ERROR_STEP, "exec");
	build_u64(&body, T_ERRNO, ENOENT);
	return finish(G_DONE, 2, 9u << 2);
}

static size_t hold(void)
{
	begin();
	build_u64(&body, T_HELD, 1);
	return finish(G_HOLD, 2, 0);
}

static size_t opened(void)
{
	begin();
	build_u64(&body, T_HANDLE, 11);
	build_u64(&body, T_PORT, 3128);
	return finish(G_OPENED, 2, 0x80000000u | 1u << 2);
}

static size_t connect_(void)
{
	begin();
	build_u64(&body, T_PORT, 8000);
	return finish(G_CONNECT, 2, 0xC0000000u | 1u << 2);
}

static size_t error(void)
{
	begin();
	build_text(&body, T_ERROR_STEP, "start");
	build_u64(&body, T_ERRNO, EEXIST);
	return finish(G_ERROR, 2, 7u << 2);
}

static size_t launcher_fail(void)
{
	begin();
	build_text(&body, T_ERROR_STEP, "overlay");
	build_u64(&body, T_ERRNO, EINVAL);
	build_text(&body, T_TEXT, "no such layer");
	return finish(L_FAIL, 0, 5);
}

static const struct {
	const char *name;
	size_t (*make)(void);
} golden[] = {
	{"hello", hello}, {"welcome", welcome}, {"ping", ping}, {"start_command", start_command},
	{"start_terminal", start_terminal}, {"started", started}, {"data", data}, {"eof", eof},
	{"credit", credit}, {"cancel", cancel}, {"attach", attach}, {"done", done},
	{"done_failed", done_failed}, {"opened", opened}, {"connect", connect_},
	{"error", error}, {"hold", hold}, {"start_call", start_call}, {"cell", cell},
	{"cell_is", cell_is}, {"zygote_is", zygote_is}, {"done_call", done_call},
	{"launcher_fail", launcher_fail},
};
enum { GOLDEN = sizeof(golden) / sizeof(golden[0]) };

static void line_of(int i, char *line)
{
	size_t n = golden[i].make();
	char *at = line + sprintf(line, "%s ", golden[i].name);

	for (size_t k = 0; k < n; k++)
		at += sprintf(at, "%02x", out[k]);
	strcpy(at, "\n");
}

static void test_golden(const char *path)
{
	char want[8192], line[8192];
	FILE *f = fopen(path, "r");

	CHECK(f);
	for (int i = 0; i < GOLDEN; i++) {
		line_of(i, line);
		CHECK(fgets(want, sizeof(want), f));
		CHECK(!strcmp(want, line));
	}
	CHECK(!fgets(want, sizeof(want), f));
	fclose(f);
}

static int count_fields(const uint8_t *bytes, size_t n)
{
	struct fields it = fields_of(bytes, n);
	struct field f;
	int more, count = 0;

	while ((more = fields_next(&it, &f)) > 0)
		count++;
	return more < 0 ? more : count;
}

/* Cut anywhere, a payload is whole at the ends of its fields and an error elsewhere. */
static void test_truncation(void)
{
	for (int i = 0; i < GOLDEN; i++) {
		size_t n, whole = 0;
		int fields;
		uint8_t *copy;

		if (golden[i].make == data)
			continue;
		n = golden[i].make() - FRAME_HEADER;
		fields = count_fields(out + FRAME_HEADER, n);
		CHECK(fields >= 0);
		for (size_t cut = 0; cut <= n; cut++) {
			copy = malloc(cut ? cut : 1); /* exact: the sanitizer sees a byte too far */
			memcpy(copy, out + FRAME_HEADER, cut);
			if (count_fields(copy, cut) >= 0)
				whole++;
			free(copy);
		}
		CHECK(whole == (size_t)fields + 1);
	}
}

static void test_header(void)
{
	struct frame f = {G_DATA, 0xfffffffe, 0x80000009, FRAME_PAYLOAD_MAX}, g;
	uint8_t bytes[FRAME_HEADER];

	frame_encode(bytes, &f);
	CHECK(!frame_decode(bytes, &g));
	CHECK(g.type == f.type && g.generation == f.generation && g.stream == f.stream &&
	      g.length == f.length);
	for (int i = 0; i < 3; i++) { /* magic and version */
		bytes[i] ^= 1;
		CHECK(frame_decode(bytes, &g) == -EPROTO);
		bytes[i] ^= 1;
	}
	f.length++;
	frame_encode(bytes, &f);
	CHECK(frame_decode(bytes, &g) == -EPROTO);
	f.length = UINT32_MAX;
	frame_encode(bytes, &f);
	CHECK(frame_decode(bytes, &g) == -EPROTO);
}

static void test_fields(void)
{
	uint8_t bytes[64], huge[5] = {T_ARG, 0xff, 0xff, 0xff, 0xff};
	struct builder b;
	struct fields it;
	struct field f;
	uint64_t value;
	char text[4];

	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, T_PID, UINT64_MAX);
	build_text(&b, T_CWD, "abc");
	build_bytes(&b, T_ARG, "a\0b", 3);
	build_text(&b, T_ENV, "abcd");
	it = fields_of(bytes, b.used);
	CHECK(fields_next(&it, &f) == 1 && !field_u64(&f, &value) && value == UINT64_MAX);
	CHECK(fields_next(&it, &f) == 1 && !field_text(&f, text, sizeof(text)) && !strcmp(text, "abc"));
	CHECK(field_u64(&f, &value) == -EPROTO);
	CHECK(fields_next(&it, &f) == 1 && field_text(&f, text, sizeof(text)) == -EPROTO);
	CHECK(fields_next(&it, &f) == 1 && field_text(&f, text, sizeof(text)) == -ENAMETOOLONG);
	CHECK(fields_next(&it, &f) == 0);
	CHECK(count_fields(huge, sizeof(huge)) == -EPROTO);
}

static void test_builder(void)
{
	uint8_t bytes[18];
	struct builder b;

	build_init(&b, bytes, sizeof(bytes));
	build_u64(&b, T_PID, 1);
	CHECK(!b.overflow && b.used == 13);
	build_bytes(&b, T_ARG, "x", 1);
	CHECK(b.overflow && b.used == 13);
	build_bytes(&b, T_ARG, "", 0); /* would fit, but a hole is worse than nothing */
	CHECK(b.overflow && b.used == 13);
	build_init(&b, bytes, sizeof(bytes));
	build_bytes(&b, T_ARG, bytes, SIZE_MAX);
	CHECK(b.overflow);
}

int main(int argc, char **argv)
{
	char line[8192];

	if (argc > 1 && !strcmp(argv[1], "write")) {
		for (int i = 0; i < GOLDEN; i++) {
			line_of(i, line);
			fputs(line, stdout);
		}
		return 0;
	}
	test_header();
	test_fields();
	test_builder();
	test_truncation();
	test_golden(argc > 1 ? argv[1] : "tests/golden/frames.txt");
	return 0;
}

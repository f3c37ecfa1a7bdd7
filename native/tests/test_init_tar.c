/* Tar headers: what is built is read back; what is hostile is refused. */
#include <errno.h>
#include <string.h>

#include "../init/tar.c"
#include "../init/file_io.c"
#include "../init/tar_build.c"
#include "check.h"

static uint8_t blocks[2 * TAR_BLOCK + TAR_RECORDS_MAX];
static struct tar tar;

/* Reads one entry's headers; a tar_step or an error. */
static int read_back(const uint8_t *at, size_t n)
{
	const uint8_t *end = at + n;

	memset(&tar, 0, sizeof(tar));
	while (at < end) {
		int step = tar_header(&tar, at);

		at += TAR_BLOCK;
		if (step != TAR_META)
			return step;
		if (tar.meta_size) {
			char *copy = malloc(tar.meta_size);
			int error;

			memcpy(copy, at, tar.meta_size);
			error = tar_meta(&tar, copy, tar.meta_size);
			free(copy);
			if (error)
				return error;
		}
		at += (tar.meta_size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
	}
	return TAR_END;
}

static int meta(char type, const char *text, size_t n)
{
	char *copy = malloc(n ? n : 1);
	int error;

	memset(&tar, 0, sizeof(tar));
	tar.meta_type = type;
	memcpy(copy, text, n);
	error = tar_meta(&tar, copy, n);
	free(copy);
	return error;
}

static void round_trip(const char *path, const char *link, char type, uint64_t size, int64_t mtime,
		       uint32_t ns)
{
	static struct tar_entry e;
	size_t n;

	memset(&e, 0, sizeof(e));
	strcpy(e.path, path);
	strcpy(e.link, link);
	e.type = type;
	e.size = size;
	e.mode = 04755;
	e.uid = 3000000;
	e.gid = 65534;
	e.mtime = mtime;
	e.mtime_ns = ns;
	n = tar_build(blocks, &e);
	CHECK(n % TAR_BLOCK == 0 && n <= sizeof(blocks));
	CHECK(read_back(blocks, n) == TAR_ENTRY);
	CHECK(!strcmp(tar.entry.path, path) && !strcmp(tar.entry.link, link));
	CHECK(tar.entry.type == type && tar.entry.size == size && tar.entry.mode == 04755);
	CHECK(tar.entry.uid == 3000000 && tar.entry.gid == 65534);
	CHECK(tar.entry.mtime == mtime && tar.entry.mtime_ns == ns);
}

static void test_round_trips(void)
{
	char name[TAR_PATH], link[TAR_PATH];

	round_trip("a", "", '0', 5, 1, 0);
	round_trip("a/", "", '5', 0, 1795986980, 123456789);
	round_trip("\xc3\xa9 \n=", "x", '2', 0, -5, 250000000);
	round_trip("big", "", '0', 1ull << 40, 0, 1);
	for (size_t n = 95; n < 110; n++) { /* around the field's width, and the record's digits */
		memset(name, 'n', n);
		name[n] = 0;
		memset(link, 0xfe, n);
		link[n] = 0;
		round_trip(name, link, '1', 0, 7, 0);
	}
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	round_trip(name, name, '2', 0, -1, 999999999);
}

static void test_holes(void)
{
	static struct tar_entry e = {.type = '0', .path = "d/h", .size = 1024, .sparse = true,
				     .real_size = 1ull << 40, .mode = 0600};

	CHECK(read_back(blocks, tar_build_comment(blocks, &e, "skipped x")) == TAR_ENTRY);
	CHECK(tar.entry.sparse && !strcmp(tar.entry.path, "d/h"));
	CHECK(tar.entry.size == 1024 && tar.entry.real_size == 1ull << 40);
	e.sparse = false; /* and the next one is plain again */
	CHECK(read_back(blocks, tar_build(blocks, &e)) == TAR_ENTRY && !tar.entry.sparse);
	CHECK(!meta('x', "22 GNU.sparse.major=2\n", 22));
	CHECK(tar_header(&tar, blocks) == -EOPNOTSUPP);
	CHECK(!meta('x', "22 GNU.sparse.major=1\n", 22)); /* without its size */
	CHECK(tar_header(&tar, blocks) == -EINVAL);
}

static void test_clean(void)
{
	static const struct {
		const char *in, *out;
	} good[] = {{"a", "a"}, {"./a", "a"}, {"a//b/", "a/b"}, {".", ""}, {"./", ""}, {"/", ""},
		    {"", ""}, {"a/./b", "a/b"}, {"...", "..."}, {"a/..b", "a/..b"}, {".a", ".a"}};
	static const char *const bad[] = {"..", "../a", "a/..", "a/../b", "/a", "//a", "./../a"};
	char path[64];

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		strcpy(path, good[i].in);
		CHECK(!tar_clean(path) && !strcmp(path, good[i].out));
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		strcpy(path, bad[i]);
		CHECK(tar_clean(path) == -EPERM);
	}
}

static void test_records(void)
{
	char longer[TAR_PATH + 64];

	CHECK(!meta('x', "11 path=ab\n", 11) && !strcmp(tar.entry.path, "ab"));
	CHECK(!meta('x', "12 path=a=b\n", 12) && !strcmp(tar.entry.path, "a=b"));
	CHECK(!meta('x', "19 mtime=-1.250000\n", 19) && tar.entry.mtime == -2 &&
	      tar.entry.mtime_ns == 750000000);
	CHECK(meta('x', "99 path=ab\n", 11) == -EINVAL);
	CHECK(meta('x', "2 path=ab\n", 10) == -EINVAL);
	CHECK(meta('x', "11 path=a\0\n", 11) == -EINVAL);
	CHECK(meta('x', "11 size=1x\n", 11) == -EINVAL);
	CHECK(meta('x', "9 size=\n\n", 9) == -EINVAL);
	CHECK(meta('x', "11", 2) == -EINVAL);
	CHECK(!meta('x', "22 GNU.sparse.major=1\n", 22) && tar.sparse_major == 1);
	CHECK(!meta('x', "24 GNU.sparse.map=0,512\n", 24) && tar.sparse_old);
	CHECK(!meta('L', "name\0junk", 9) && !strcmp(tar.entry.path, "name"));
	CHECK(!meta('g', "11 path=ab\n", 11) && !tar.has_path);
	memset(longer, 'p', sizeof(longer));
	CHECK(meta('L', longer, sizeof(longer)) == -ENAMETOOLONG);
}

static void test_damage(void)
{
	static struct tar_entry e = {.type = '0', .path = "a", .size = 3};
	uint8_t zeros[2 * TAR_BLOCK] = {0};

	CHECK(read_back(blocks, tar_build(blocks, &e)) == TAR_ENTRY);
	for (int i = 0; i < TAR_BLOCK; i++) { /* the sum catches every changed byte but its own blanks */
		blocks[i] ^= 0x10;
		CHECK(i >= 148 && i < 156 ? 1 : read_back(blocks, TAR_BLOCK) == -EBADMSG);
		blocks[i] ^= 0x10;
	}
	CHECK(read_back(zeros, sizeof(zeros)) == TAR_END && tar.zero_blocks == 2);
	e.type = 'S';
	CHECK(read_back(blocks, tar_build(blocks, &e)) == -EOPNOTSUPP);
}

int main(void)
{
	test_round_trips();
	test_holes();
	test_clean();
	test_records();
	test_damage();
	return 0;
}

/* Header blocks of one entry: ustar, with a pax header before it where ustar does not suffice. */
#include <string.h>

#include "file.h"
#include "tar.h"

enum { USTAR_NAME = 100, USTAR_ID_MAX = 07777777 };
#define USTAR_SIZE_MAX 077777777777ull

static void octal(uint8_t *at, size_t width, uint64_t value, uint64_t max)
{
	char text[64];

	number_text(text, value <= max ? value : 0, 8, width);
	memcpy(at, text, width);
	at[width] = 0;
}

static void block_build(uint8_t *block, const struct tar_entry *e, char type, const char *path,
			uint64_t size)
{
	size_t name = strlen(path), link = strlen(e->link);
	uint64_t mtime = e->mtime > 0 ? (uint64_t)e->mtime : 0;
	uint32_t sum = 0;

	memset(block, 0, TAR_BLOCK);
	memcpy(block, path, name < USTAR_NAME ? name : USTAR_NAME);
	octal(block + 100, 7, e->mode, 07777);
	octal(block + 108, 7, e->uid, USTAR_ID_MAX);
	octal(block + 116, 7, e->gid, USTAR_ID_MAX);
	octal(block + 124, 11, size, USTAR_SIZE_MAX);
	octal(block + 136, 11, mtime, USTAR_SIZE_MAX);
	block[156] = (uint8_t)type;
	if (type == '1' || type == '2')
		memcpy(block + 157, e->link, link < USTAR_NAME ? link : USTAR_NAME);
	memcpy(block + 257, "ustar\0" "00", 8);
	memset(block + 148, ' ', 8);
	for (int i = 0; i < TAR_BLOCK; i++)
		sum += block[i];
	octal(block + 148, 6, sum, 0777777);
}

static bool utf8(const char *text)
{
	const uint8_t *p = (const uint8_t *)text;

	while (*p) {
		int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : (*p & 0xf0) == 0xe0 ? 2
			 : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;

		if (more < 0)
			return false;
		for (p++; more; more--, p++)
			if ((*p & 0xc0) != 0x80)
				return false;
	}
	return true;
}

static size_t record(uint8_t *out, const char *key, const char *value)
{
	size_t rest = strlen(key) + strlen(value) + 3, length = rest, before = 0, n;
	char digits[24];

	while (length != before) { /* the length counts its own digits */
		before = length;
		length = rest + number_text(digits, before, 10, 1);
	}
	n = number_text((char *)out, length, 10, 1);
	out[n++] = ' ';
	memcpy(out + n, key, strlen(key));
	n += strlen(key);
	out[n++] = '=';
	memcpy(out + n, value, strlen(value));
	n += strlen(value);
	out[n++] = '\n';
	return n;
}

static size_t number_record(uint8_t *out, const char *key, uint64_t value)
{
	char text[32];

	text[number_text(text, value, 10, 1)] = 0;
	return record(out, key, text);
}

static size_t mtime_record(uint8_t *out, const struct tar_entry *e)
{
	bool minus = e->mtime < 0;
	uint64_t seconds = minus ? (uint64_t)-e->mtime : (uint64_t)e->mtime, ns = e->mtime_ns;
	char text[48];
	size_t n = 0;

	if (minus && ns) {
		seconds--;
		ns = 1000000000 - ns;
	}
	if (minus)
		text[n++] = '-';
	n += number_text(text + n, seconds, 10, 1);
	text[n++] = '.';
	n += number_text(text + n, ns, 10, 9);
	text[n] = 0;
	return record(out, "mtime", text);
}

static size_t sparse_records(uint8_t *out, const struct tar_entry *e)
{
	size_t n = record(out, "GNU.sparse.major", "1");

	n += record(out + n, "GNU.sparse.minor", "0");
	n += record(out + n, "GNU.sparse.name", e->path);
	return n + number_record(out + n, "GNU.sparse.realsize", e->real_size);
}

static size_t records_build(uint8_t *out, const struct tar_entry *e)
{
	bool path = e->sparse || strlen(e->path) > USTAR_NAME, link = strlen(e->link) > USTAR_NAME;
	size_t n = 0;

	if ((path && !utf8(e->path)) || (link && !utf8(e->link)))
		n += record(out + n, "hdrcharset", "BINARY");
	if (e->sparse)
		n += sparse_records(out + n, e);
	else if (path)
		n += record(out + n, "path", e->path);
	if (link)
		n += record(out + n, "linkpath", e->link);
	if (e->size > USTAR_SIZE_MAX)
		n += number_record(out + n, "size", e->size);
	if (e->uid > USTAR_ID_MAX)
		n += number_record(out + n, "uid", e->uid);
	if (e->gid > USTAR_ID_MAX)
		n += number_record(out + n, "gid", e->gid);
	if (e->mtime < 0 || e->mtime_ns)
		n += mtime_record(out + n, e);
	return n;
}

size_t tar_build_comment(uint8_t *out, const struct tar_entry *e, const char *comment)
{
	size_t n = records_build(out + TAR_BLOCK, e), used = 0;

	if (comment)
		n += record(out + TAR_BLOCK + n, "comment", comment);
	if (n) {
		static struct tar_entry plain; /* its room for names is no constant of the image */
		size_t padded = (n + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;

		plain.mode = 0644;
		block_build(out, &plain, 'x', "PaxHeader", n);
		memset(out + TAR_BLOCK + n, 0, padded - n);
		used = TAR_BLOCK + padded;
	}
	/* Who does not know about holes must not take the map for the file. */
	block_build(out + used, e, e->type, e->sparse ? "GNUSparseFile.0/unknown" : e->path, e->size);
	return used + TAR_BLOCK;
}

size_t tar_build(uint8_t *out, const struct tar_entry *e)
{
	return tar_build_comment(out, e, NULL);
}

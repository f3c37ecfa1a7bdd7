#include "tar.h"

#include <errno.h>
#include <string.h>

/* Offsets of the fields of a header block. */
enum {
	AT_NAME = 0, AT_MODE = 100, AT_UID = 108, AT_GID = 116, AT_SIZE = 124, AT_MTIME = 136,
	AT_SUM = 148, AT_TYPE = 156, AT_LINK = 157, AT_MAGIC = 257, AT_PREFIX = 345,
	NAME_MAX_ = 100, PREFIX_MAX = 155,
};

static uint32_t checksum(const uint8_t *block)
{
	uint32_t sum = 8 * ' '; /* the field itself counts as blanks */

	for (int i = 0; i < TAR_BLOCK; i++)
		if (i < AT_SUM || i >= AT_SUM + 8)
			sum += block[i];
	return sum;
}

/* Octal text, or base 256 with the first bit set. */
static int number(const uint8_t *at, size_t n, int64_t *out)
{
	uint64_t value = 0;
	size_t i = 0;

	if (at[0] & 0x80) {
		value = at[0] == 0xff ? UINT64_MAX : at[0] & 0x7f;
		for (i = 1; i < n; i++) {
			if (at[0] != 0xff && value >> 55)
				return -EOVERFLOW;
			value = value << 8 | at[i];
		}
		*out = (int64_t)value;
		return 0;
	}
	while (i < n && at[i] == ' ')
		i++;
	for (; i < n && at[i] && at[i] != ' '; i++) {
		if (at[i] < '0' || at[i] > '7' || value >> 60)
			return -EINVAL;
		value = value << 3 | (uint64_t)(at[i] - '0');
	}
	*out = (int64_t)value;
	return 0;
}

static size_t field_length(const uint8_t *at, size_t max)
{
	const uint8_t *end = memchr(at, 0, max);

	return end ? (size_t)(end - at) : max;
}

static void path_take(struct tar *t, const uint8_t *block)
{
	bool ustar = !memcmp(block + AT_MAGIC, "ustar\0", 6); /* GNU's has a blank there, and no prefix */
	size_t prefix = ustar ? field_length(block + AT_PREFIX, PREFIX_MAX) : 0;
	size_t name = field_length(block + AT_NAME, NAME_MAX_);
	char *out = t->entry.path;

	memcpy(out, block + AT_PREFIX, prefix);
	out += prefix;
	if (prefix)
		*out++ = '/';
	memcpy(out, block + AT_NAME, name);
	out[name] = 0;
}

static int numbers_take(struct tar *t, const uint8_t *block)
{
	struct tar_entry *e = &t->entry;
	int64_t mode, uid, gid, size, mtime;

	if (number(block + AT_MODE, 8, &mode) || number(block + AT_UID, 8, &uid) ||
	    number(block + AT_GID, 8, &gid) || number(block + AT_SIZE, 12, &size) ||
	    number(block + AT_MTIME, 12, &mtime))
		return -EINVAL;
	e->mode = (uint32_t)mode & 07777;
	if (!t->has_uid)
		e->uid = (uint64_t)uid;
	if (!t->has_gid)
		e->gid = (uint64_t)gid;
	if (!t->has_size && size < 0)
		return -EINVAL;
	if (!t->has_size)
		e->size = (uint64_t)size;
	if (!t->has_mtime) {
		e->mtime = mtime;
		e->mtime_ns = 0;
	}
	return e->size > INT64_MAX - TAR_BLOCK ? -EINVAL : 0;
}

static int entry_take(struct tar *t, const uint8_t *block, char type)
{
	struct tar_entry *e = &t->entry;
	size_t n;

	if (numbers_take(t, block))
		return -EINVAL;
	if (!t->has_path)
		path_take(t, block);
	if (!t->has_link) {
		n = field_length(block + AT_LINK, NAME_MAX_);
		memcpy(e->link, block + AT_LINK, n);
		e->link[n] = 0;
	}
	if (t->sparse_old || t->sparse_major > 1 || t->sparse_minor)
		return -EOPNOTSUPP;
	if (t->sparse_major && (!t->has_real_size || e->real_size > INT64_MAX))
		return -EINVAL;
	n = strlen(e->path);
	e->type = type == 0 || type == '7' ? '0' : type;
	if (e->type == '0' && n && e->path[n - 1] == '/')
		e->type = '5'; /* how the oldest archives say it */
	if (e->type < '0' || e->type > '6')
		return -EOPNOTSUPP;
	if (e->type != '0')
		e->size = 0;
	e->sparse = e->type == '0' && t->sparse_major;
	t->has_path = t->has_link = t->has_size = t->has_uid = t->has_gid = t->has_mtime = false;
	t->has_sparse_name = t->has_real_size = false;
	t->sparse_major = t->sparse_minor = 0;
	return TAR_ENTRY;
}

int tar_header(struct tar *t, const uint8_t block[TAR_BLOCK])
{
	int64_t sum, size;
	char type = (char)block[AT_TYPE];

	if (!block[0] && checksum(block) == 8 * ' ') {
		/* Two blocks of zeros are the end; one alone is passed over, as everybody does. */
		t->meta_size = 0;
		return ++t->zero_blocks == 2 ? TAR_END : TAR_META;
	}
	t->zero_blocks = 0;
	if (number(block + AT_SUM, 8, &sum) || sum != checksum(block))
		return -EBADMSG;
	if (type != 'x' && type != 'g' && type != 'L' && type != 'K' && type != 'V')
		return entry_take(t, block, type);
	if (number(block + AT_SIZE, 12, &size) || size < 0)
		return -EINVAL;
	if (size > TAR_META_MAX)
		return -E2BIG;
	t->meta_type = type;
	t->meta_size = (uint64_t)size;
	return TAR_META;
}

/* --- pax ------------------------------------------------------------------------------------------ */

static int text_take(char *out, const char *value, size_t n)
{
	if (n >= TAR_PATH)
		return -ENAMETOOLONG;
	if (memchr(value, 0, n))
		return -EINVAL;
	memcpy(out, value, n);
	out[n] = 0;
	return 0;
}

static int decimal_take(uint64_t *out, const char *value, size_t n)
{
	uint64_t result = 0;

	for (size_t i = 0; i < n; i++) {
		if (value[i] < '0' || value[i] > '9' || result > INT64_MAX / 10 - 1)
			return -EINVAL;
		result = result * 10 + (uint64_t)(value[i] - '0');
	}
	*out = result;
	return n ? 0 : -EINVAL;
}

/* "-12.345": seconds may be negative, the fraction is added to the whole in its direction. */
static int time_take(struct tar_entry *e, const char *value, size_t n)
{
	bool minus = n && *value == '-';
	const char *dot = memchr(value, '.', n);
	size_t whole = dot ? (size_t)(dot - value) : n;
	uint64_t seconds, scale = 100000000, ns = 0;

	if (decimal_take(&seconds, value + minus, whole - minus))
		return -EINVAL;
	for (size_t i = whole + 1; i < n; i++, scale /= 10) {
		if (value[i] < '0' || value[i] > '9')
			return -EINVAL;
		ns += (uint64_t)(value[i] - '0') * scale;
	}
	e->mtime = minus ? -(int64_t)seconds : (int64_t)seconds;
	if (minus && ns) {
		e->mtime--;
		ns = 1000000000 - ns;
	}
	e->mtime_ns = (uint32_t)ns;
	return 0;
}

static bool is(const char *key, size_t n, const char *name)
{
	return n == strlen(name) && !memcmp(key, name, n);
}

/* Format 1.0 only; the older ones have the map in records. */
static int sparse_take(struct tar *t, const char *key, size_t k, const char *value, size_t n)
{
	if (is(key, k, "GNU.sparse.major"))
		return decimal_take(&t->sparse_major, value, n);
	if (is(key, k, "GNU.sparse.minor"))
		return decimal_take(&t->sparse_minor, value, n);
	if (is(key, k, "GNU.sparse.realsize")) {
		t->has_real_size = true;
		return decimal_take(&t->entry.real_size, value, n);
	}
	if (is(key, k, "GNU.sparse.name")) {
		t->has_path = t->has_sparse_name = true;
		return text_take(t->entry.path, value, n);
	}
	t->sparse_old = true;
	return 0;
}

static int record_take(struct tar *t, const char *key, size_t k, const char *value, size_t n)
{
	struct tar_entry *e = &t->entry;
	int error = 0;

	if (is(key, k, "path")) {
		if (!t->has_sparse_name)
			error = text_take(e->path, value, n);
		t->has_path = true;
	} else if (is(key, k, "linkpath")) {
		error = text_take(e->link, value, n);
		t->has_link = true;
	} else if (is(key, k, "size")) {
		error = decimal_take(&e->size, value, n);
		t->has_size = true;
	} else if (is(key, k, "uid")) {
		error = decimal_take(&e->uid, value, n);
		t->has_uid = true;
	} else if (is(key, k, "gid")) {
		error = decimal_take(&e->gid, value, n);
		t->has_gid = true;
	} else if (is(key, k, "mtime")) {
		error = time_take(e, value, n);
		t->has_mtime = true;
	} else if (k > 10 && !memcmp(key, "GNU.sparse", 10)) {
		error = sparse_take(t, key, k, value, n);
	}
	return error;
}

/* Records "LENGTH KEY=VALUE\n", where LENGTH counts the whole record. */
static int pax_take(struct tar *t, const char *at, size_t n)
{
	while (n && *at) {
		size_t length = 0, digits = 0;
		const char *equals;
		int error;

		while (digits < n && digits < 8 && at[digits] >= '0' && at[digits] <= '9')
			length = length * 10 + (size_t)(at[digits++] - '0');
		if (!digits || digits >= n || at[digits] != ' ' || length > n || length < digits + 3 ||
		    at[length - 1] != '\n')
			return -EINVAL;
		digits++;
		equals = memchr(at + digits, '=', length - digits);
		if (!equals)
			return -EINVAL;
		error = record_take(t, at + digits, (size_t)(equals - at) - digits, equals + 1,
				    (size_t)(at + length - 1 - (equals + 1)));
		if (error)
			return error;
		at += length;
		n -= length;
	}
	return 0;
}

int tar_meta(struct tar *t, char *bytes, size_t n)
{
	if (t->meta_type == 'x')
		return pax_take(t, bytes, n);
	if (t->meta_type != 'L' && t->meta_type != 'K')
		return 0; /* defaults for all entries, and labels, are not for us */
	n = field_length((const uint8_t *)bytes, n);
	if (t->meta_type == 'L')
		t->has_path = true;
	else
		t->has_link = true;
	return text_take(t->meta_type == 'L' ? t->entry.path : t->entry.link, bytes, n);
}

int tar_clean(char *path)
{
	char *in = path, *out = path;

	if (*path == '/' && path[strspn(path, "/")])
		return -EPERM;
	while (*in) {
		size_t n;

		in += strspn(in, "/");
		n = strcspn(in, "/");
		if (n == 2 && in[0] == '.' && in[1] == '.')
			return -EPERM;
		if (n && !(n == 1 && in[0] == '.')) {
			if (out != path)
				*out++ = '/';
			memmove(out, in, n);
			out += n;
		}
		in += n;
	}
	*out = 0;
	return 0;
}

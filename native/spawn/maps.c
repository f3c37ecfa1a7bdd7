#include "maps.h"

#include <string.h>

enum { PAGE = 4096 };

static bool hex(const char **at, char end, uint64_t *out)
{
	uint64_t value = 0;
	unsigned digits = 0;

	for (; **at && **at != end; (*at)++, digits++) {
		char c = **at;
		unsigned digit = c >= '0' && c <= '9' ? (unsigned)(c - '0')
			       : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
						      : 16;

		if (digit > 15 || digits == 16)
			return false;
		value = value << 4 | digit;
	}
	if (!digits || **at != end)
		return false;
	(*at)++;
	*out = value;
	return true;
}

/* start-end perms offset major:minor inode      name */
static bool parse(const char *at, struct range *r)
{
	unsigned word = 0;
	bool file;

	if (!hex(&at, '-', &r->start) || !hex(&at, ' ', &r->end))
		return false;
	if (r->start >= r->end || r->end > INT64_MAX || (r->start | r->end) % PAGE)
		return false;
	for (; *at && word < 3; at++) /* permissions, offset, device */
		if (*at == ' ')
			word++;
	if (word < 3 || *at < '0' || *at > '9')
		return false;
	file = *at != '0' || (at[1] >= '0' && at[1] <= '9');
	r->anonymous = !file;
	at += strspn(at, "0123456789");
	at += strspn(at, " ");
	/* A file's name begins with a slash, so that no file can be taken for this. */
	return strncmp(at, "[v", 2) != 0;
}

bool maps_byte(struct maps *m, char byte, struct range *out)
{
	bool found;

	if (byte != '\n') {
		if (m->used < sizeof(m->line) - 1)
			m->line[m->used++] = byte;
		return false;
	}
	m->line[m->used] = 0;
	m->used = 0;
	found = parse(m->line, out);
	return found;
}

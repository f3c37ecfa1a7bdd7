/* Any bytes as passwd and group. */
#include "../init/userdb.c"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static struct identity who;
	struct wanted w = {.name = "root", .out = &who};
	struct line_reader r = {.used = 0};

	who = (struct identity){.uid = 0};
	if (!lines_feed(&r, (const char *)bytes, n, passwd_wanted, &w))
		lines_end(&r, passwd_wanted, &w);
	r.used = 0;
	lines_feed(&r, (const char *)bytes, n, group_wanted, &w);
	lines_end(&r, group_wanted, &w);
	if (who.group_count > USERDB_GROUPS)
		__builtin_trap();
	return 0;
}

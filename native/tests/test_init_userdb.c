/* passwd and group as hostile sandboxes write them. */
#include <string.h>

#include "../init/userdb.c"
#include "check.h"

static bool parse(const char *text, const char *name, uid_t uid, struct identity *out)
{
	char line[512];

	memset(out, 0, sizeof(*out));
	strcpy(line, text);
	return passwd_line(line, name, uid, out);
}

static void test_passwd(void)
{
	struct identity who;

	CHECK(parse("u:x:1000:100:Name,,:/home/u:/bin/bash", "u", 0, &who));
	CHECK(who.uid == 1000 && who.gid == 100 && !strcmp(who.home, "/home/u") &&
	      !strcmp(who.shell, "/bin/bash") && !strcmp(who.name, "u"));
	CHECK(parse("u:x:1000:100::/home/u:", NULL, 1000, &who) && !*who.shell);
	CHECK(!parse("u:x:1000:100::/home/u:", NULL, 1001, &who));
	CHECK(!parse("u:x:1000:100::/home/u", "u", 0, &who));     /* a field is missing */
	CHECK(!parse("u:x:-1:100::/home/u:/s", "u", 0, &who));    /* not a number */
	CHECK(!parse("u:x:4294967295:1::/h:/s", "u", 0, &who));   /* "leave it" to the kernel */
	CHECK(!parse("u:x:99999999999999999999:1::/h:/s", "u", 0, &who));
	CHECK(!parse("u:x::1::/h:/s", "u", 0, &who));
	CHECK(!parse(":x:1:1::/h:/s", "", 0, &who));
	CHECK(!parse("", "u", 0, &who));
	CHECK(!parse("+::::::", "u", 0, &who));
}

static void test_group(void)
{
	struct identity who = {.group_count = 0};
	char line[64];

	strcpy(line, "g:x:5:a,u,b");
	group_line(line, "u", &who);
	CHECK(who.group_count == 1 && who.groups[0] == 5);
	strcpy(line, "g2:x:5:u"); /* twice the same number */
	group_line(line, "u", &who);
	strcpy(line, "h:x:6:uu,u2,");
	group_line(line, "u", &who);
	strcpy(line, "h:x:6");
	group_line(line, "u", &who);
	CHECK(who.group_count == 1);
	for (int i = 0; i < 2 * USERDB_GROUPS; i++) {
		snprintf(line, sizeof(line), "g:x:%d:u", 1000 + i);
		group_line(line, "u", &who);
	}
	CHECK(who.group_count == USERDB_GROUPS);
}

static bool count_line(char *line, void *arg)
{
	(*(int *)arg)++;
	return !strcmp(line, "stop");
}

static void test_lines(void)
{
	struct line_reader r = {.used = 0};
	char longer[5000];
	int count = 0;

	CHECK(!lines_feed(&r, "a\nb", 3, count_line, &count) && count == 1);
	CHECK(!lines_feed(&r, "c\n\n", 3, count_line, &count) && count == 2);
	memset(longer, 'x', sizeof(longer));
	CHECK(!lines_feed(&r, longer, sizeof(longer), count_line, &count));
	CHECK(!lines_feed(&r, "\n", 1, count_line, &count) && count == 2); /* too long: skipped */
	CHECK(!lines_feed(&r, "a\0b\n", 4, count_line, &count) && count == 2);
	CHECK(lines_feed(&r, "stop\nx\n", 7, count_line, &count) && count == 3);
}

static void test_specs(void)
{
	struct identity who;

	CHECK(!identity_resolve("0:0", &who) && who.uid == 0 && who.gid == 0);
	CHECK(!identity_resolve("54321", &who) && who.uid == 54321 && *who.home == '/');
	CHECK(!identity_resolve("54321:7", &who) && who.gid == 7 && !who.group_count);
	CHECK(!identity_resolve("root", &who) && !who.uid && !who.gid && !strcmp(who.name, "root"));
	CHECK(identity_resolve("no-such-user-here", &who) == -EINVAL);
	CHECK(identity_resolve("root:0", &who) == -EINVAL);
	CHECK(identity_resolve("1:x", &who) == -EINVAL);
	CHECK(identity_resolve("", &who) == -EINVAL);
	CHECK(identity_resolve(":", &who) == -EINVAL);
}

int main(void)
{
	test_passwd();
	test_group();
	test_lines();
	test_specs();
	return 0;
}

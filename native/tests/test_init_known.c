/* What children remember of passwd and group: only what is certainly still so. */
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../init/known.h"
#include "check.h"

/* The world of this test: two files, a clock, and how often they were read. */
static struct stat disk[2];
static bool missing;
static int64_t clock_s;
static int reads;
static bool changes_while_read;
static struct identity told;

static int test_lstat(const char *path, struct stat *out)
{
	*out = disk[!strcmp(path, "/etc/group")];
	return missing ? -1 : 0;
}

static long test_syscall(long number, int clock, struct timespec *out)
{
	CHECK(number == SYS_clock_gettime && clock == CLOCK_REALTIME);
	*out = (struct timespec){.tv_sec = clock_s};
	return 0;
}

static int test_resolve(const char *spec, struct identity *out)
{
	reads++;
	*out = told;
	if (changes_while_read)
		disk[0].st_ctim.tv_nsec++;
	return strcmp(spec, "nobody-here") ? 0 : -22;
}

#define lstat test_lstat
#define syscall test_syscall
#define identity_resolve test_resolve
#include "../init/known.c"

static struct known all[KNOWN_USERS];

static void begin(void)
{
	memset(all, 0, sizeof(all));
	for (int i = 0; i < 2; i++)
		disk[i] = (struct stat){.st_mode = S_IFREG | 0644, .st_dev = 7, .st_ino = 100u + (unsigned)i,
					 .st_size = 50, .st_ctim = {.tv_sec = 1000, .tv_nsec = 5}};
	told = (struct identity){.uid = 1000, .gid = 100, .group_count = 2, .groups = {5, 6}};
	strcpy(told.name, "ada");
	strcpy(told.home, "/home/ada");
	strcpy(told.shell, "/bin/sh");
	clock_s = 2000;
	reads = 0;
	missing = changes_while_read = false;
}

/* How many times the files are read for it. */
static int ask(const char *spec)
{
	struct identity who;
	int before = reads;

	memset(&who, 0x55, sizeof(who));
	CHECK(!known_resolve(all, spec, &who));
	CHECK(who.uid == told.uid && who.gid == told.gid && who.group_count == told.group_count &&
	      !memcmp(who.groups, told.groups, told.group_count * sizeof(*told.groups)) &&
	      !strcmp(who.name, told.name) && !strcmp(who.home, told.home) && !strcmp(who.shell, told.shell));
	return reads - before;
}

static void test_read_once(void)
{
	begin();
	CHECK(ask("ada") == 1);
	CHECK(ask("ada") == 0);
	CHECK(ask("ada") == 0);
	CHECK(known_resolve(NULL, "ada", &(struct identity){.uid = 0}) == 0 && reads == 2);
}

static void test_any_change_is_seen(void)
{
	for (int file = 0; file < 2; file++) {
		for (int field = 0; field < 5; field++) {
			struct stat *s = &disk[file];

			begin();
			CHECK(ask("ada") == 1 && ask("ada") == 0);
			told.uid++;
			told.groups[0]++;
			if (field == 0)
				s->st_dev++;
			else if (field == 1)
				s->st_ino++;
			else if (field == 2)
				s->st_size++;
			else if (field == 3)
				s->st_ctim.tv_sec++;
			else
				s->st_ctim.tv_nsec++;
			CHECK(ask("ada") == 1);
			CHECK(ask("ada") == 0);
		}
	}
}

static void test_what_is_young_is_not_kept(void)
{
	begin();
	clock_s = 1000; /* changed in this second, or the one before: a change after it may look the same */
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	clock_s = 1001;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	disk[1].st_ctim.tv_sec = 1002;
	clock_s = 1003;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	clock_s = 1004;
	CHECK(ask("ada") == 1 && ask("ada") == 0);
	clock_s = 10; /* a clock that was put back keeps nothing new */
	told.uid++;
	disk[0].st_size++;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
}

static void test_what_changes_while_it_is_read_is_not_kept(void)
{
	begin();
	changes_while_read = true;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	changes_while_read = false;
	CHECK(ask("ada") == 1 && ask("ada") == 0);
}

static void test_links_and_missing_files_are_read_each_time(void)
{
	begin();
	disk[0].st_mode = S_IFLNK | 0777;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	begin();
	CHECK(ask("ada") == 1 && ask("ada") == 0);
	missing = true;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
}

static void test_unknown_users_are_asked_for_again(void)
{
	struct identity who;

	begin();
	CHECK(known_resolve(all, "nobody-here", &who) && known_resolve(all, "nobody-here", &who));
	CHECK(reads == 2);
}

static void test_what_has_no_room_is_read_each_time(void)
{
	char longest[USERDB_NAME + 8];

	begin();
	memset(told.home, 'h', KNOWN_TEXT);
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	begin();
	memset(told.shell, 's', USERDB_NAME);
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	begin();
	told.group_count = KNOWN_GROUPS + 1;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	begin();
	memset(longest, 'u', sizeof(longest));
	longest[USERDB_NAME] = 0;
	CHECK(ask(longest) == 1 && ask(longest) == 1);
	longest[USERDB_NAME - 1] = 0;
	CHECK(ask(longest) == 1 && ask(longest) == 0);
}

static void test_users_do_not_mix(void)
{
	char spec[2] = "a";

	begin();
	for (int turn = 0; turn < 3; turn++) {
		for (*spec = 'a'; *spec <= 'z'; ++*spec) { /* more of them than places */
			told.uid = (unsigned char)*spec;
			*told.name = *spec;
			ask(spec);
			CHECK(ask(spec) == 0);
		}
	}
}

static void test_a_writer_that_was_killed_blocks_nobody(void)
{
	begin();
	for (int i = 0; i < KNOWN_USERS; i++)
		all[i].turn = 3;
	CHECK(ask("ada") == 1 && ask("ada") == 1);
	begin();
	for (int i = 0; i < KNOWN_USERS; i++)
		all[i].turn = UINT32_MAX - 1; /* the last even one: 0 would mean empty */
	CHECK(ask("ada") == 1 && ask("ada") == 0);
}

int main(void)
{
	test_read_once();
	test_any_change_is_seen();
	test_what_is_young_is_not_kept();
	test_what_changes_while_it_is_read_is_not_kept();
	test_links_and_missing_files_are_read_each_time();
	test_unknown_users_are_asked_for_again();
	test_what_has_no_room_is_read_each_time();
	test_users_do_not_mix();
	test_a_writer_that_was_killed_blocks_nobody();
	return 0;
}

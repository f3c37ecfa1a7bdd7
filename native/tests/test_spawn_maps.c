/* Lines of /proc/PID/maps, well-formed and not. */
#include "../spawn/maps.c"

#include <assert.h>
#include <stdio.h>

static unsigned feed(const char *text, struct range *out, unsigned max)
{
	struct maps m = {.used = 0};
	unsigned n = 0;

	for (; *text; text++)
		if (maps_byte(&m, *text, &out[n]) && ++n == max)
			break;
	return n;
}

static void test_ranges_are_read(void)
{
	struct range r[8];

	assert(feed("55d0c8000000-55d0c8021000 rw-p 00000000 00:00 0                          [heap]\n"
		    "7f0000000000-7f0000001000 r-xp 00001000 fd:00 1234                       /bin/x y\n"
		    "7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n"
		    "7f0000004000-7f0000005000 rw-s 00000000 00:01 08                         /dev/zero\n",
		    r, 8) == 4);
	assert(r[0].start == 0x55d0c8000000 && r[0].end == 0x55d0c8021000 && r[0].anonymous);
	assert(!r[1].anonymous && r[2].anonymous && !r[3].anonymous);
}

static void test_kernel_pages_are_left_out(void)
{
	struct range r[2];

	assert(!feed("7ffd0000e000-7ffd00010000 r-xp 00000000 00:00 0                  [vdso]\n"
		     "7ffd00008000-7ffd0000c000 r--p 00000000 00:00 0                  [vvar]\n"
		     "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]\n",
		     r, 2));
}

static void test_names_are_not_believed(void)
{
	struct range r[4];

	/* The kernel writes a newline in a name as \012; here one that had slipped through. */
	assert(feed("1000-2000 rw-p 00000000 fd:00 77    /tmp/0-f000 rw-p 0 00:00 0\n", r, 4) == 1);
	assert(r[0].start == 0x1000 && !r[0].anonymous);
	assert(feed("1000-2000 rw-p 00000000 fd:00 77    /tmp/[vdso]\n", r, 4) == 1);
}

static void test_what_is_no_range_is_left_out(void)
{
	static const char *const bad[] = {
		"\n", "-\n", "1000\n", "1000-\n", "-2000 rw-p 0 00:00 0\n", "2000-1000 rw-p 0 00:00 0\n",
		"1000-1000 rw-p 0 00:00 0\n", "1001-2000 rw-p 0 00:00 0\n", "1000-2000\n",
		"1000-2000 rw-p\n", "1000-2000 rw-p 0 00:00 x\n", "1000-2000 rw-p 0 00:00 \n",
		"g000-2000 rw-p 0 00:00 0\n", "11112222333344445-2000 rw-p 0 00:00 0\n",
		"1000-8000000000000000 rw-p 0 00:00 0\n", "1000-fffffffffffff000 rw-p 0 00:00 0\n"};
	struct range r[1];

	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert(!feed(bad[i], r, 1));
}

static void test_long_lines_are_cut_and_the_next_is_read(void)
{
	struct maps m = {.used = 0};
	static const char head[] = "1000-2000 rw-p 00000000 fd:00 77 /", next[] = "3000-4000 rw-p 0 00:00 0\n";
	struct range r;

	for (const char *at = head; *at; at++)
		assert(!maps_byte(&m, *at, &r));
	for (unsigned i = 0; i < 100000; i++)
		assert(!maps_byte(&m, 'x', &r));
	assert(maps_byte(&m, '\n', &r) && r.start == 0x1000);
	for (const char *at = next; at[1]; at++)
		assert(!maps_byte(&m, *at, &r));
	assert(maps_byte(&m, '\n', &r) && r.start == 0x3000 && r.anonymous);
}

int main(void)
{
	test_ranges_are_read();
	test_kernel_pages_are_left_out();
	test_names_are_not_believed();
	test_what_is_no_range_is_left_out();
	test_long_lines_are_cut_and_the_next_is_read();
	puts("ok");
	return 0;
}

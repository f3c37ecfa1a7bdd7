/* Names, requests and plans: all of the launcher that touches no machine. */
#include "../spawn/names.c"
#include "../spawn/plan.c"
#include "../spawn/request.c"

#include <assert.h>

static uint8_t payload[FRAME_PAYLOAD_MAX];

static int parse(uint8_t type, const struct builder *b, struct request **r, const char **where)
{
	struct frame f = {.type = type, .stream = 7, .length = (uint32_t)b->used};

	return request_parse(&f, payload, r, where);
}

static void start_fields(struct builder *b)
{
	build_init(b, payload, sizeof(payload));
	build_text(b, T_INSTANCE, "s1abc");
	build_u64(b, T_SLOT, 3);
	build_text(b, T_LAYER, "base");
	build_text(b, T_LAYER, "top");
	build_text(b, T_HOSTNAME, "box");
	build_u64(b, T_SHM_BYTES, 1 << 20);
	build_text(b, T_AGENT_GROUP, "/cg/n/s3/agent");
	build_text(b, T_WORK_GROUP, "/cg/n/s3/w");
	build_text(b, T_SOCKET, "/run/n/i/s1abc");
}

static void test_ids(void)
{
	char id[66];

	memset(id, 'a', 65);
	id[65] = 0;
	assert(!id_valid(id));
	id[64] = 0;
	assert(id_valid(id) && id_valid("a_b-0"));
	assert(!id_valid("") && !id_valid(".") && !id_valid("..") && !id_valid("a/b"));
	assert(!id_valid("A") && !id_valid("a b") && !id_valid(".pool-1"));
	assert(hostname_valid("a-b.C1") && !hostname_valid("") && !hostname_valid("a_b"));
}

static void test_paths(void)
{
	static const char *const bad[] = {"", "a", "/", "//a", "/a//b", "/a/", "/a/..", "/../a", "/a/./b",
					  "/a/../cg/x", "/.", "/.."};
	struct roots roots = {0};
	char path[PATH_TEXT_MAX + 2];

	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert(!path_clean(bad[i]));
	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[PATH_TEXT_MAX + 1] = 0;
	assert(!path_clean(path));
	path[PATH_TEXT_MAX] = 0;
	assert(path_clean(path));
	assert(path_clean("/a/..b/c.") && path_clean("/a/...")); /* ordinary names */
	assert(roots_add(&roots, "/cg/n") && !roots_add(&roots, "/cg/../etc"));
	assert(path_below("/cg/n/x", &roots) && !path_below("/cg/n", &roots));
	assert(!path_below("/cg/nx/y", &roots) && !path_below("/cg/n/../x", &roots));
	while (roots.count < ROOTS_MAX)
		assert(roots_add(&roots, "/more"));
	assert(!roots_add(&roots, "/one/too/many"));
}

static int step(const char *text, struct request **r)
{
	struct builder b;
	const char *where;

	build_init(&b, payload, sizeof(payload));
	build_u64(&b, T_SLOT, 1);
	build_text(&b, T_STEP, text);
	return parse(L_SLOT_DROP, &b, r, &where);
}

static void test_steps(void)
{
	static const char *const bad[] = {
		"", "mkdir", "mkdir /a", "mkdir /a 755", "mkdir /a 755 x", "mkdir /a 8 0", "mkdir /a 755 0 more",
		"mkdir /a 10000 0", "mkdir /a -1 0", "mkdir /a 755 -2", "mkdir /a 755 4294967295",
		"mkdir ../a 755 0", "mkdir /a/../b 755 0", "rmdir", "rmdir a", "rmdir /a b", "write /a",
		"write /a ", "write /a/../b 1", "unlink /a", "mkdir  /a 755 0", "mkdir /a 0x1 0",
		"mkdir /a 755 99999999999999999999"};
	struct request *r;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert(step(bad[i], &r) < 0);
	assert(!step("mkdir /a/b 755 -1", &r));
	assert(r->steps[0].kind == GROUP_MKDIR && r->steps[0].mode == 0755 && r->steps[0].uid == -1);
	free(r);
	assert(!step("write /a/cpu.max 100 200", &r));
	assert(!strcmp(r->steps[0].path, "/a/cpu.max") && !strcmp(r->steps[0].value, "100 200"));
	free(r);
	assert(!step("rmdir /a", &r) && r->step_count == 1);
	free(r);
}

static void test_request_errors(void)
{
	struct request *r;
	struct builder b;
	const char *where;

	start_fields(&b);
	build_text(&b, T_INSTANCE, "again");
	assert(parse(L_START, &b, &r, &where) == -EPROTO && !strcmp(where, "instance"));
	start_fields(&b);
	build_text(&b, T_OOM_FILE, "/cg/../x");
	assert(parse(L_START, &b, &r, &where) == -EINVAL && !strcmp(where, "oom_file"));
	start_fields(&b);
	build_u64(&b, T_OOM_KIND, 3);
	assert(parse(L_START, &b, &r, &where) == -EINVAL);
	start_fields(&b);
	for (unsigned i = 0; i < TASKS_MAX + 1; i++)
		build_text(&b, T_TASKS, "/cg/tasks");
	assert(parse(L_START, &b, &r, &where) == -E2BIG);
	build_init(&b, payload, sizeof(payload));
	assert(parse(L_START, &b, &r, &where) == -EPROTO && !strcmp(where, "missing"));
	assert(parse(0x7f, &b, &r, &where) == -EOPNOTSUPP);
	build_u64(&b, T_SLOT, 1);
	build_u64(&b, T_UID_BASE, 100000);
	build_u64(&b, T_OWNER_UID, 165535);
	assert(parse(L_SLOT_MAKE, &b, &r, &where) == -EINVAL);
	/* Unknown tags are ignored. */
	start_fields(&b);
	build_text(&b, 200, "?");
	assert(!parse(L_START, &b, &r, &where));
	free(r);
}

static unsigned find(const struct plan *plan, enum op op)
{
	for (unsigned n = 0; n < plan->count; n++)
		if (plan->steps[n].op == op)
			return n;
	return PLAN_MAX;
}

static void test_plan_order(void)
{
	static const enum op order[] = {OP_SOCKET, OP_UPPER, OP_CLONE, OP_JOIN, OP_WORK, OP_LOWER, OP_OVERLAY,
					OP_SHARED, OP_LEAVE, OP_ROOT, OP_DEV, OP_PROC, OP_CHROOT, OP_HIDE_FILE,
					OP_READONLY, OP_DESCRIPTORS, OP_SECCOMP, OP_IDENTITY, OP_EXEC};
	struct plan_facts facts = {.upper_btrfs = true, .uid_base = 100000, .owner_uid = 900000,
				   .masks = ~0u};
	static struct plan plan;
	struct request *r;
	struct builder b;
	const char *where;
	char line[4096];
	unsigned lower;

	start_fields(&b);
	assert(!parse(L_START, &b, &r, &where) && !plan_start(&plan, r, &facts));
	for (unsigned i = 1; i < sizeof(order) / sizeof(*order); i++)
		assert(find(&plan, order[i - 1]) < find(&plan, order[i]));
	assert(plan.steps[plan.first_child - 1].op == OP_CLONE);
	assert(plan.steps[plan.count - 1].op == OP_EXEC);
	lower = find(&plan, OP_LOWER);
	assert(!strcmp(plan.steps[lower].a, "top") && !strcmp(plan.steps[lower + 1].a, "base"));
	for (unsigned n = 0; n < plan.count; n++) {
		plan_describe(&plan, n, line, sizeof(line));
		assert(strlen(line) > 9 && !strchr(line, '$'));
		plan_describe(&plan, n, line, 12); /* cut, not overrun */
		assert(strlen(line) <= 11);
	}
	free(r);
}

static void test_plan_of_a_function_container(void)
{
	static const enum op order[] = {OP_LEAVE, OP_VIEW, OP_ROOT, OP_DEV, OP_PROC, OP_CHROOT, OP_HIDE_DIR,
					OP_PLACES, OP_SEAL, OP_DESCRIPTORS, OP_IDENTITY, OP_EXEC};
	static const enum op absent[] = {OP_SECCOMP, OP_DEVPTS, OP_MQUEUE, OP_RUN, OP_HIDE_FILE, OP_READONLY};
	struct plan_facts facts = {.upper_btrfs = true, .uid_base = 100000, .owner_uid = 900000, .masks = ~0u};
	static struct plan plan;
	struct request *r;
	struct builder b;
	const char *where;

	start_fields(&b);
	build_u64(&b, T_PROFILE, 2);
	assert(parse(L_START, &b, &r, &where) == -EINVAL);
	start_fields(&b);
	build_u64(&b, T_PROFILE, PROFILE_FUNCTION);
	for (unsigned i = 0; i < STEPS_MAX; i++)
		build_text(&b, T_STEP, i % 2 ? "mkdir /a/b 755 7" : "rmdir /a/c");
	assert(!parse(L_START, &b, &r, &where) && r->step_count == STEPS_MAX);
	assert(!strcmp(r->steps[0].path, "/a/c") && r->steps[STEPS_MAX - 1].uid == 7);
	assert(!plan_start(&plan, r, &facts) && plan.count <= PLAN_MAX);
	for (unsigned i = 1; i < sizeof(order) / sizeof(*order); i++)
		assert(find(&plan, order[i - 1]) < find(&plan, order[i]) && find(&plan, order[i]) < PLAN_MAX);
	for (unsigned i = 0; i < sizeof(absent) / sizeof(*absent); i++)
		assert(find(&plan, absent[i]) == PLAN_MAX);
	assert(plan.steps[find(&plan, OP_DEV)].n == 1 && plan.steps[find(&plan, OP_PROC)].n == 1);
	free(r);
	build_text(&b, T_STEP, "rmdir /a/c");
	assert(parse(L_START, &b, &r, &where) == -E2BIG && !strcmp(where, "step"));
	start_fields(&b);
	assert(!parse(L_START, &b, &r, &where) && !plan_start(&plan, r, &facts));
	assert(find(&plan, OP_VIEW) == PLAN_MAX && find(&plan, OP_SEAL) == PLAN_MAX);
	assert(!plan.steps[find(&plan, OP_DEV)].n && !plan.steps[find(&plan, OP_PROC)].n);
	free(r);
}

static void test_plan_needs_btrfs(void)
{
	struct plan_facts facts = {.upper_btrfs = false};
	static struct plan plan;
	struct request *r;
	struct builder b;
	const char *where;

	start_fields(&b);
	build_u64(&b, T_DISK_BYTES, 1 << 20);
	assert(!parse(L_START, &b, &r, &where) && plan_start(&plan, r, &facts) == -EOPNOTSUPP);
	facts.upper_btrfs = true;
	assert(!plan_start(&plan, r, &facts) && find(&plan, OP_LIMIT) < plan.first_child);
	free(r);
	build_text(&b, T_UPPER_FROM, "other");
	assert(!parse(L_START, &b, &r, &where) && !plan_start(&plan, r, &facts));
	assert(find(&plan, OP_UPPER) == PLAN_MAX && find(&plan, OP_LIMIT) > find(&plan, OP_SNAPSHOT));
	assert(plan.steps[find(&plan, OP_OVERLAY)].n == plan.steps[find(&plan, OP_OVERLAY)].m);
	free(r);
	facts.uid_base = 200000;
	build_u64(&b, T_UID_BASE, 100000);
	assert(!parse(L_START, &b, &r, &where) && !plan_start(&plan, r, &facts));
	assert(plan.steps[find(&plan, OP_OVERLAY)].n == 100000 && plan.steps[find(&plan, OP_OVERLAY)].m == 200000);
	free(r);
}

static void test_plan_at_its_bounds(void)
{
	struct plan_facts facts = {.upper_btrfs = true, .masks = ~0u};
	static struct plan plan;
	struct request *r;
	struct builder b;
	const char *where;

	start_fields(&b);
	for (unsigned i = 2; i < LAYERS_MAX; i++)
		build_text(&b, T_LAYER, "layer");
	for (unsigned i = 0; i < STEPS_MAX; i++)
		build_text(&b, T_STEP, "rmdir /a/b");
	for (unsigned i = 0; i < TASKS_MAX; i++)
		build_text(&b, T_TASKS, "/cg/tasks");
	for (unsigned i = 0; i < NODES_MAX; i++)
		build_text(&b, T_NODE, "gpu0 195:0");
	for (unsigned i = 0; i < COVERS_MAX; i++) {
		build_text(&b, T_READONLY, "/testbed/a");
		build_text(&b, T_HIDDEN, "/testbed/b");
	}
	build_text(&b, T_OOM_FILE, "/cg/oom");
	build_u64(&b, T_DISK_BYTES, 1);
	assert(!parse(L_START, &b, &r, &where) && !plan_start(&plan, r, &facts));
	assert(plan.count <= PLAN_MAX && plan.count > STEPS_MAX + LAYERS_MAX + TASKS_MAX + 2 * COVERS_MAX + NODES_MAX);
	assert(find(&plan, OP_CHROOT) < find(&plan, OP_FIRM) && find(&plan, OP_FIRM) < find(&plan, OP_COVER));
	assert(find(&plan, OP_COVER) < find(&plan, OP_SECCOMP));
	free(r);
	build_text(&b, T_HIDDEN, "/testbed/c");
	assert(parse(L_START, &b, &r, &where) == -E2BIG && !strcmp(where, "hidden"));
	start_fields(&b);
	build_text(&b, T_READONLY, "/testbed/../etc");
	assert(parse(L_START, &b, &r, &where) == -EINVAL && !strcmp(where, "readonly"));
}

static void test_nodes(void)
{
	static const char *const bad[] = {
		"gpu0", "gpu0 195", "gpu0 195:", "gpu0 :0", "gpu0 0:0", "gpu0 4096:0", "gpu0 195:1048576",
		"gpu0 195:-1", "gpu0 195:0 ", "../sda 8:0", "a/b/c 195:0", ".gpu 195:0", "/gpu 195:0", "a/ 195:0",
		"a/.. 195:0", " 195:0", "mem 1:1", "kmem 1:2", "port 1:4", "kmsg 1:11", "gpu\n 195:0"};
	struct plan_facts facts = {.upper_btrfs = true, .uid_base = 655360};
	struct plan plan;
	struct request *r;
	struct builder b;
	const char *where;
	char line[128];
	unsigned at;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		start_fields(&b);
		build_text(&b, T_NODE, bad[i]);
		assert(parse(L_START, &b, &r, &where) == -EINVAL && !strcmp(where, "node"));
	}
	start_fields(&b);
	build_text(&b, T_NODE, "nvidia-caps/nvidia-cap1 238:1");
	build_text(&b, T_NODE, "full2 1:7");
	assert(!parse(L_START, &b, &r, &where) && r->node_count == 2 && !plan_start(&plan, r, &facts));
	at = find(&plan, OP_NODE);
	/* In the tmpfs, while that is at hand, and before anything is attached or executed. */
	assert(find(&plan, OP_SHARED) < at && at < find(&plan, OP_LEAVE));
	assert(plan.steps[at].n == makedev(238, 1) && plan.steps[at + 1].n == makedev(1, 7));
	plan_describe(&plan, at, line, sizeof(line));
	assert(strstr(line, "/dev/nvidia-caps/nvidia-cap1: character device 238:1, mode 0666, owner 655360"));
	free(r);
	start_fields(&b);
	assert(!parse(L_START, &b, &r, &where) && !plan_start(&plan, r, &facts));
	for (unsigned i = 0; i < plan.count; i++)
		assert(plan.steps[i].op != OP_NODE);
	free(r);
}

int main(void)
{
	test_ids();
	test_paths();
	test_steps();
	test_request_errors();
	test_plan_order();
	test_plan_of_a_function_container();
	test_plan_needs_btrfs();
	test_plan_at_its_bounds();
	test_nodes();
	printf("plan: at most %d steps\n", PLAN_MAX);
	return 0;
}

#include "dryrun.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "protocol.h"

enum { SLOTS_MAX = 64 };

struct known {
	struct plan_facts facts;
	struct {
		uint64_t id, uid_base, owner_uid;
		bool cgroup_ns;
	} slots[SLOTS_MAX];
	unsigned count;
};

static void note_slot(struct known *k, const struct request *r)
{
	if (k->count == SLOTS_MAX)
		return;
	k->slots[k->count].id = r->slot;
	k->slots[k->count].uid_base = r->uid_base;
	k->slots[k->count].owner_uid = r->owner_uid;
	k->slots[k->count++].cgroup_ns = r->agent_group;
}

static int print(struct known *k, const struct request *r)
{
	struct plan *plan = calloc(1, sizeof(*plan));
	char line[4096];
	unsigned n = k->count;
	int err = plan ? 0 : -ENOMEM;

	while (n > 0 && k->slots[n - 1].id != r->slot)
		n--;
	k->facts.uid_base = n ? k->slots[n - 1].uid_base : 100000;
	k->facts.owner_uid = n ? k->slots[n - 1].owner_uid : 900000;
	k->facts.slot_cgroup_ns = n && k->slots[n - 1].cgroup_ns;
	if (!err)
		err = plan_start(plan, r, &k->facts);
	if (!err) {
		if (!n)
			printf("# no SLOT_MAKE for this slot came before: its ids are examples\n");
		printf("# START %s: %u steps\n", r->instance, plan->count);
		for (n = 0; n < plan->count; n++) {
			plan_describe(plan, n, line, sizeof(line));
			printf("%3u %s\n", n + 1, line);
		}
	}
	free(plan);
	return err;
}

int dry_run(FILE *in, uint32_t masks)
{
	struct known k = {.facts = {.upper_btrfs = true, .masks = masks}};
	uint8_t header[FRAME_HEADER];
	uint8_t *payload = malloc(FRAME_PAYLOAD_MAX);
	const char *where = "frame";
	int err = payload ? 0 : -ENOMEM;

	while (!err && fread(header, 1, sizeof(header), in) == sizeof(header)) {
		struct request *r;
		struct frame f;

		where = "frame";
		err = frame_decode(header, &f);
		if (!err && fread(payload, 1, f.length, in) != f.length)
			err = -EPROTO;
		if (!err)
			err = request_parse(&f, payload, &r, &where);
		if (err)
			break;
		if (r->type == L_SLOT_MAKE)
			note_slot(&k, r);
		else if (r->type == L_UPPER_OPEN)
			k.facts.upper_btrfs = !strcmp(r->upper, "btrfs");
		else if (r->type == L_START)
			err = print(&k, r);
		free(r);
	}
	free(payload);
	if (err)
		fprintf(stderr, "skerry-spawn: dry run: %s: %s\n", where, strerror(-err));
	return err;
}

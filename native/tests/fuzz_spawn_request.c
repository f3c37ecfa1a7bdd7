/* Any packet: parsed or refused; what is parsed as a START is planned and printed. */
#include "../spawn/names.c"
#include "../spawn/plan.c"
#include "../spawn/request.c"

#include "protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t payload[FRAME_PAYLOAD_MAX];

/* What a START must have: chance would not find it. */
static void start_fields(struct builder *b)
{
	build_text(b, T_INSTANCE, "a");
	build_u64(b, T_SLOT, 1);
	build_text(b, T_LAYER, "base");
	build_text(b, T_HOSTNAME, "h");
	build_u64(b, T_SHM_BYTES, 1);
	build_text(b, T_AGENT_GROUP, "/cg/a");
	build_text(b, T_SOCKET, "/run/a");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct plan_facts facts = {.upper_btrfs = true, .uid_base = 100000, .owner_uid = 900000, .masks = ~0u};
	static struct plan plan;
	struct request *r;
	struct builder b;
	struct frame f;
	const char *where;
	char line[512];

	build_init(&b, payload, sizeof(payload));
	if (size && data[0] == L_START)
		start_fields(&b);
	/* The type comes first, so that most inputs get past the header. */
	if (size < 1 || size - 1 > FRAME_PAYLOAD_MAX - b.used)
		return 0;
	memcpy(payload + b.used, data + 1, size - 1);
	f = (struct frame){.type = data[0], .length = (uint32_t)(b.used + size - 1)};
	if (request_parse(&f, payload, &r, &where))
		return 0;
	if (r->type == L_START && !plan_start(&plan, r, &facts))
		for (unsigned n = 0; n < plan.count; n++)
			plan_describe(&plan, n, line, sizeof(line));
	free(r);
	return 0;
}

#include "request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol.h"

enum kind { ID, HOST, PATH, TEXT, NUMBER, BYTES, IDS, PATHS, STEP, NODE };

/* What each tag carries and where it goes; tags that are not here are ignored. */
static const struct form {
	uint8_t tag, kind;
	uint16_t offset;
	const char *name;
	uint32_t max; /* of a list: items */
} forms[] = {
	{T_PID, NUMBER, offsetof(struct request, pid), "pid", 0},
	{T_OFFSET, NUMBER, offsetof(struct request, offset), "offset", 0},
	{T_INSTANCE, ID, offsetof(struct request, instance), "instance", 0},
	{T_LAYER, IDS, offsetof(struct request, layers), "layer", LAYERS_MAX},
	{T_SLOT, NUMBER, offsetof(struct request, slot), "slot", 0},
	{T_UPPER, ID, offsetof(struct request, upper), "upper", 0},
	{T_PATH, PATH, offsetof(struct request, path), "path", 0},
	{T_DEVICE, PATH, offsetof(struct request, device), "device", 0},
	{T_UID_BASE, NUMBER, offsetof(struct request, uid_base), "uid_base", 0},
	{T_OWNER_UID, NUMBER, offsetof(struct request, owner_uid), "owner_uid", 0},
	{T_STEP, STEP, offsetof(struct request, steps), "step", STEPS_MAX},
	{T_HOSTNAME, HOST, offsetof(struct request, hostname), "hostname", 0},
	{T_DISK_BYTES, NUMBER, offsetof(struct request, disk_bytes), "disk_bytes", 0},
	{T_SHM_BYTES, NUMBER, offsetof(struct request, shm_bytes), "shm_bytes", 0},
	{T_AGENT_GROUP, PATH, offsetof(struct request, agent_group), "agent_group", 0},
	{T_WORK_GROUP, PATH, offsetof(struct request, work_group), "work_group", 0},
	{T_TASKS, PATHS, offsetof(struct request, tasks), "tasks", TASKS_MAX},
	{T_OOM_FILE, PATH, offsetof(struct request, oom_file), "oom_file", 0},
	{T_OOM_KIND, NUMBER, offsetof(struct request, oom_kind), "oom_kind", 0},
	{T_SOCKET, PATH, offsetof(struct request, socket), "socket", 0},
	{T_CONFIG, BYTES, offsetof(struct request, config), "config", CONFIG_MAX},
	{T_UPPER_FROM, ID, offsetof(struct request, upper_from), "upper_from", 0},
	{T_READ, PATHS, offsetof(struct request, reads), "read", READS_MAX},
	{T_READONLY, PATHS, offsetof(struct request, readonly), "readonly", COVERS_MAX},
	{T_HIDDEN, PATHS, offsetof(struct request, hidden), "hidden", COVERS_MAX},
	{T_NODE, NODE, offsetof(struct request, nodes), "node", NODES_MAX},
	{T_KEEP_UPPER, NUMBER, offsetof(struct request, keep_upper), "keep_upper", 0},
	{T_BYTES, NUMBER, offsetof(struct request, bytes), "bytes", 0},
	{T_TEXT, ID, offsetof(struct request, text), "text", 0},
	{T_PROFILE, NUMBER, offsetof(struct request, profile), "profile", 0},
};

/* Mandatory tags of each request; a zero ends the list. */
static const struct {
	uint8_t type, tags[8];
} mandatory[] = {
	{L_STATUS, {0}},
	{L_SHUTDOWN, {0}},
	{L_BLOBS, {0}},
	{L_LAYER_MOUNT, {T_LAYER, T_PATH}},
	{L_LAYER_UNMOUNT, {T_LAYER}},
	{L_UPPER_OPEN, {T_UPPER, T_PATH}},
	{L_SLOT_MAKE, {T_SLOT, T_UID_BASE, T_OWNER_UID}},
	{L_SLOT_DROP, {T_SLOT}},
	{L_START, {T_INSTANCE, T_SLOT, T_LAYER, T_HOSTNAME, T_SHM_BYTES, T_AGENT_GROUP, T_SOCKET}},
	{L_STOP, {T_INSTANCE}},
	{L_ADOPT, {T_INSTANCE, T_SLOT, T_PID, T_AGENT_GROUP, T_SOCKET}},
	{L_FREEZE, {T_INSTANCE}},
	{L_THAW, {T_INSTANCE}},
	{L_RECLAIM, {T_INSTANCE, T_BYTES}},
	{L_PREFETCH, {T_INSTANCE, T_BYTES}},
	{L_UPPER_DROP, {T_INSTANCE}},
	{L_UPPER_SNAPSHOT, {T_INSTANCE, T_TEXT}},
};

bool request_has(const struct request *r, uint8_t tag)
{
	return r->seen[tag / 64] >> (tag % 64) & 1;
}

static char *word(char **at)
{
	char *start = *at, *end = start + strcspn(start, " ");

	*at = *end ? end + 1 : end;
	*end = 0;
	return start;
}

static bool number(const char *text, int base, long long low, long long high, long long *out)
{
	char *end;

	if (!*text || strspn(text, "-0123456789") != strlen(text))
		return false;
	errno = 0;
	*out = strtoll(text, &end, base);
	return !*end && !errno && *out >= low && *out <= high;
}

/* Splits the text in place: the step's words stay in the request's arena. */
static int parse_step(char *text, struct group_step *step)
{
	char *verb = word(&text);
	long long value;

	step->path = word(&text);
	step->uid = -1;
	if (!path_clean(step->path))
		return -EINVAL;
	if (!strcmp(verb, "rmdir")) {
		step->kind = GROUP_RMDIR;
		return *text ? -EINVAL : 0;
	}
	if (!strcmp(verb, "write")) {
		step->kind = GROUP_WRITE;
		step->value = text;
		return *text ? 0 : -EINVAL;
	}
	if (strcmp(verb, "mkdir"))
		return -EINVAL;
	step->kind = GROUP_MKDIR;
	if (!number(word(&text), 8, 0, 07777, &value))
		return -EINVAL;
	step->mode = (unsigned)value;
	if (!number(word(&text), 10, -1, UINT32_MAX - 1, &value) || *text)
		return -EINVAL;
	step->uid = value;
	return 0;
}

/* Numbers that would be memory or ports of the host are refused, whoever asks. */
static int parse_node(char *text, struct device_node *node)
{
	long long major_number, minor_number;
	char *colon;
	bool good;

	node->name = word(&text);
	node->numbers = text;
	colon = strchr(text, ':');
	if (!node_valid(node->name) || !colon)
		return -EINVAL;
	*colon = 0;
	good = number(text, 10, 1, 4095, &major_number) && number(colon + 1, 10, 0, 1048575, &minor_number);
	*colon = ':';
	if (!good || (major_number == 1 && (minor_number < 3 || minor_number == 4 || minor_number > 9)))
		return -EINVAL;
	node->major_number = (unsigned)major_number;
	node->minor_number = (unsigned)minor_number;
	return 0;
}

static bool text_valid(uint8_t kind, const char *text)
{
	switch (kind) {
	case ID:
	case IDS:
		return id_valid(text);
	case HOST:
		return hostname_valid(text);
	case PATH:
	case PATHS:
		return path_clean(text);
	default:
		return *text;
	}
}

static int store_text(struct request *r, const struct form *form, char *text)
{
	char *base = (char *)r + form->offset;

	if (form->kind == STEP) {
		if (r->step_count == form->max)
			return -E2BIG;
		return parse_step(text, &r->steps[r->step_count++]);
	}
	if (form->kind == NODE) {
		if (r->node_count == form->max)
			return -E2BIG;
		return parse_node(text, &r->nodes[r->node_count++]);
	}
	if (!text_valid(form->kind, text))
		return -EINVAL;
	if (form->kind == IDS || form->kind == PATHS) {
		struct text_list *list = (struct text_list *)(void *)base;

		if (list->count == form->max)
			return -E2BIG;
		list->items[list->count++] = text;
		return 0;
	}
	*(const char **)(void *)base = text;
	return 0;
}

static int store(struct request *r, const struct form *form, const struct field *field, char **arena)
{
	char *base = (char *)r + form->offset;
	bool list = form->kind == IDS || form->kind == PATHS || form->kind == STEP ||
		    form->kind == NODE;
	int err;

	if (!list && request_has(r, form->tag))
		return -EPROTO;
	r->seen[form->tag / 64] |= 1ull << (form->tag % 64);
	if (form->kind == NUMBER)
		return field_u64(field, (uint64_t *)(void *)base);
	if (form->kind == BYTES) {
		if (field->length > form->max)
			return -E2BIG;
		memcpy(*arena, field->bytes, field->length);
		r->config = (uint8_t *)*arena;
		r->config_length = field->length;
		*arena += field->length;
		return 0;
	}
	/* A field takes five bytes of the payload beside its text: room for the terminator. */
	err = field_text(field, *arena, (size_t)field->length + 1);
	if (err)
		return err;
	err = store_text(r, form, *arena);
	*arena += field->length + 1;
	return err;
}

static int check(const struct request *r, const char **where)
{
	for (size_t i = 0; i < sizeof(mandatory) / sizeof(*mandatory); i++) {
		if (mandatory[i].type != r->type)
			continue;
		*where = "missing";
		for (const uint8_t *tag = mandatory[i].tags; *tag; tag++)
			if (!request_has(r, *tag))
				return -EPROTO;
		*where = "uid";
		if (r->type == L_SLOT_MAKE) {
			if (!r->uid_base || !r->owner_uid || r->uid_base > UINT32_MAX - 131072 ||
			    r->owner_uid >= UINT32_MAX)
				return -EINVAL;
			/* The owner must not be an id of the sandbox: it may enter its namespace. */
			if (r->owner_uid >= r->uid_base && r->owner_uid < r->uid_base + 65536)
				return -EINVAL;
		}
		*where = "number";
		if (r->profile > PROFILE_FUNCTION || r->oom_kind > 2 || r->keep_upper > 1 || r->pid > INT32_MAX ||
		    r->disk_bytes > INT64_MAX || r->bytes > INT64_MAX || r->shm_bytes > INT64_MAX)
			return -EINVAL;
		return 0;
	}
	*where = "type";
	return -EOPNOTSUPP;
}

/* Most requests have few: there is room for those that there are. */
static size_t steps_count(struct fields it)
{
	struct field field;
	size_t count = 0;

	while (count < STEPS_MAX && fields_next(&it, &field) == 1)
		count += field.tag == T_STEP;
	return count;
}

int request_parse(const struct frame *f, const uint8_t *payload, struct request **out,
		  const char **where)
{
	struct fields it = fields_of(payload, f->length);
	size_t steps = steps_count(it) * sizeof(struct group_step);
	struct request *r = calloc(1, sizeof(*r) + steps + f->length + 1);
	struct field field;
	char *arena;
	int err;

	*where = "frame";
	if (!r)
		return -ENOMEM;
	r->type = f->type;
	r->id = f->stream;
	r->steps = (struct group_step *)(void *)r->arena;
	arena = r->arena + steps;
	while ((err = fields_next(&it, &field)) == 1) {
		for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
			if (forms[i].tag != field.tag)
				continue;
			*where = forms[i].name;
			err = store(r, &forms[i], &field, &arena);
			if (err < 0)
				goto fail;
		}
		*where = "frame";
	}
	if (!err)
		err = check(r, where);
	if (!err) {
		*out = r;
		return 0;
	}
fail:
	free(r);
	return err;
}

#include "launcher.h"

#include <stdlib.h>
#include <string.h>

static unsigned bucket_of_id(const char *id)
{
	uint32_t hash = 2166136261u;

	for (; *id; id++)
		hash = (hash ^ (uint8_t)*id) * 16777619u;
	return hash % BUCKETS;
}

struct instance *instance_find(struct launcher *l, const char *id)
{
	struct instance *i = l->instances[bucket_of_id(id)];

	while (i && strcmp(i->id, id))
		i = i->next;
	return i;
}

void instance_add(struct launcher *l, struct instance *i)
{
	struct instance **head = &l->instances[bucket_of_id(i->id)];

	i->next = *head;
	*head = i;
}

void instance_remove(struct launcher *l, struct instance *i)
{
	struct instance **at = &l->instances[bucket_of_id(i->id)];

	while (*at && *at != i)
		at = &(*at)->next;
	if (*at)
		*at = i->next;
}

static const char *put(char **at, const char *text)
{
	const char *start = *at;

	*at = stpcpy(*at, text ? text : "") + 1;
	return start;
}

struct kept *kept_make(const struct request *r)
{
	size_t size = strlen(r->agent_group) + strlen(r->socket) + 4;
	struct kept *k;
	char *at;

	size += r->work_group ? strlen(r->work_group) : 0;
	for (unsigned n = 0; n < r->layers.count; n++)
		size += strlen(r->layers.items[n]) + 1;
	k = malloc(sizeof(*k) + size);
	if (!k)
		return NULL;
	at = k->text;
	k->agent_group = put(&at, r->agent_group);
	k->work_group = put(&at, r->work_group);
	k->socket = put(&at, r->socket);
	k->layers = at;
	for (unsigned n = 0; n < r->layers.count; n++)
		put(&at, r->layers.items[n]);
	put(&at, "");
	return k;
}

bool kept_layer(const struct kept *k, const char *id)
{
	for (const char *at = k->layers; *at; at += strlen(at) + 1)
		if (!strcmp(at, id))
			return true;
	return false;
}

struct slot *slot_find(struct launcher *l, uint64_t id)
{
	struct slot *s = l->slots[id % BUCKETS];

	while (s && s->id != id)
		s = s->next;
	return s;
}

void slot_add(struct launcher *l, struct slot *s)
{
	s->next = l->slots[s->id % BUCKETS];
	l->slots[s->id % BUCKETS] = s;
}

void slot_remove(struct launcher *l, struct slot *s)
{
	struct slot **at = &l->slots[s->id % BUCKETS];

	while (*at && *at != s)
		at = &(*at)->next;
	if (*at)
		*at = s->next;
}

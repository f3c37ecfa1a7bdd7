#include "launcher.h"

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

/* Short answers that wait for room to be sent: a bounded queue. */
#include "init.h"

#include <string.h>

enum { REPLIES_MAX = 64, TOKEN_MAX = 64 };

struct reply {
	uint8_t type;
	uint32_t stream;
	int error;
	char text[TOKEN_MAX]; /* step, or token */
	uint32_t size;
};

static struct reply replies[REPLIES_MAX] OWN_TABLE;
static uint32_t reply_first OWN, reply_count OWN;

void replies_drop(void)
{
	reply_count = 0;
}

static struct reply *reply_new(uint8_t type, uint32_t stream)
{
	struct reply *r;

	if (reply_count == REPLIES_MAX)
		send_pump();
	if (reply_count == REPLIES_MAX || conn.src.fd < 0)
		return NULL;
	r = &replies[(reply_first + reply_count++) % REPLIES_MAX];
	*r = (struct reply){.type = type, .stream = stream};
	return r;
}

bool send_reply(uint8_t type, uint32_t stream, int error, const char *step)
{
	struct reply *r = reply_new(type, stream);

	if (!r)
		return false;
	r->error = error;
	r->size = (uint32_t)strlen(step);
	memcpy(r->text, step, r->size);
	return true;
}

bool send_pong(const struct field *token)
{
	struct reply *r = token->length <= TOKEN_MAX ? reply_new(G_PONG, 0) : NULL;

	if (!r)
		return false;
	r->size = token->length;
	memcpy(r->text, token->bytes, r->size);
	return true;
}

bool replies_send(void)
{
	uint8_t bytes[CONTROL_ROOM];
	struct builder b;

	for (; reply_count; reply_count--, reply_first = (reply_first + 1) % REPLIES_MAX) {
		const struct reply *r = &replies[reply_first];

		build_init(&b, bytes, sizeof(bytes));
		if (r->type == G_PONG) {
			build_bytes(&b, T_TOKEN, r->text, r->size);
		} else if (r->type == G_STARTED) {
			build_u64(&b, T_PID, 1);
		} else {
			build_bytes(&b, T_ERROR_STEP, r->text, r->size);
			build_u64(&b, T_ERRNO, (uint64_t)r->error);
		}
		if (!send_frame(r->type, r->stream, &b))
			return false;
	}
	return true;
}

#include "frames.h"

#include <errno.h>
#include <string.h>

uint16_t get_u16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

uint32_t get_u32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t get_u64(const uint8_t *p)
{
	return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

void put_u16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}

void put_u32(uint8_t *p, uint32_t v)
{
	put_u16(p, (uint16_t)v);
	put_u16(p + 2, (uint16_t)(v >> 16));
}

void put_u64(uint8_t *p, uint64_t v)
{
	put_u32(p, (uint32_t)v);
	put_u32(p + 4, (uint32_t)(v >> 32));
}

void frame_encode(uint8_t out[FRAME_HEADER], const struct frame *f)
{
	put_u16(out, FRAME_MAGIC);
	out[2] = FRAME_VERSION;
	out[3] = f->type;
	put_u32(out + 4, f->generation);
	put_u32(out + 8, f->stream);
	put_u32(out + 12, f->length);
}

int frame_decode(const uint8_t in[FRAME_HEADER], struct frame *f)
{
	if (get_u16(in) != FRAME_MAGIC || in[2] != FRAME_VERSION)
		return -EPROTO;
	f->type = in[3];
	f->generation = get_u32(in + 4);
	f->stream = get_u32(in + 8);
	f->length = get_u32(in + 12);
	return f->length <= FRAME_PAYLOAD_MAX ? 0 : -EPROTO;
}

struct fields fields_of(const void *payload, size_t length)
{
	const uint8_t *p = payload;

	return (struct fields){.at = p, .end = p + length};
}

int fields_next(struct fields *it, struct field *out)
{
	if (it->at == it->end)
		return 0;
	if (it->end - it->at < 5)
		return -EPROTO;
	out->tag = it->at[0];
	out->length = get_u32(it->at + 1);
	it->at += 5;
	if (out->length > (size_t)(it->end - it->at))
		return -EPROTO;
	out->bytes = it->at;
	it->at += out->length;
	return 1;
}

int field_u64(const struct field *f, uint64_t *value)
{
	if (f->length != 8)
		return -EPROTO;
	*value = get_u64(f->bytes);
	return 0;
}

int field_text(const struct field *f, char *out, size_t size)
{
	if (f->length >= size)
		return -ENAMETOOLONG;
	if (f->length && memchr(f->bytes, 0, f->length))
		return -EPROTO;
	if (f->length)
		memcpy(out, f->bytes, f->length);
	out[f->length] = 0;
	return 0;
}

void build_init(struct builder *b, void *bytes, size_t size)
{
	*b = (struct builder){.bytes = bytes, .size = size};
}

void build_bytes(struct builder *b, uint8_t tag, const void *bytes, size_t length)
{
	if (b->overflow || b->size - b->used < 5 || length > b->size - b->used - 5) {
		b->overflow = true;
		return;
	}
	b->bytes[b->used] = tag;
	put_u32(b->bytes + b->used + 1, (uint32_t)length);
	if (length)
		memcpy(b->bytes + b->used + 5, bytes, length);
	b->used += 5 + length;
}

void build_u64(struct builder *b, uint8_t tag, uint64_t value)
{
	uint8_t bytes[8];

	put_u64(bytes, value);
	build_bytes(b, tag, bytes, sizeof(bytes));
}

void build_text(struct builder *b, uint8_t tag, const char *text)
{
	build_bytes(b, tag, text, strlen(text));
}

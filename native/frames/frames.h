/* Frames and fields: the one codec of the guest channel and of the launcher's socket.
 * Format: native/PROTOCOL.md. No allocation, no I/O; every length is checked before it is used. */
#ifndef SKERRY_FRAMES_H
#define SKERRY_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FRAME_MAGIC = 0x4B53,
	FRAME_VERSION = 1,
	FRAME_HEADER = 16,
	FRAME_PAYLOAD_MAX = 65536,
	STREAM_WINDOW = 131072,
};

struct frame {
	uint8_t type;
	uint32_t generation;
	uint32_t stream;
	uint32_t length; /* Invariant: <= FRAME_PAYLOAD_MAX */
};

/* Writes the 16 header bytes. */
void frame_encode(uint8_t out[FRAME_HEADER], const struct frame *f);
/* 0, or -EPROTO for a wrong magic, version or length. */
int frame_decode(const uint8_t in[FRAME_HEADER], struct frame *f);

/* A cursor over received fields. */
struct fields {
	const uint8_t *at, *end;
};
struct field {
	uint8_t tag;
	uint32_t length;
	const uint8_t *bytes;
};
struct fields fields_of(const void *payload, size_t length);
/* 1 and *out filled; 0 at the end; -EPROTO if a length runs past the end. */
int fields_next(struct fields *it, struct field *out);
/* 0 and *value, or -EPROTO unless the field has exactly 8 bytes. */
int field_u64(const struct field *f, uint64_t *value);
/* 0 if the bytes hold no NUL and fit into out with a terminator; -EPROTO or -ENAMETOOLONG. */
int field_text(const struct field *f, char *out, size_t size);

/* A buffer being filled with fields; overflow is sticky and found at the end. */
struct builder {
	uint8_t *bytes;
	size_t size, used;
	bool overflow;
};
void build_init(struct builder *b, void *bytes, size_t size);
void build_bytes(struct builder *b, uint8_t tag, const void *bytes, size_t length);
void build_u64(struct builder *b, uint8_t tag, uint64_t value);
void build_text(struct builder *b, uint8_t tag, const char *text);

uint16_t get_u16(const uint8_t *p);
uint32_t get_u32(const uint8_t *p);
uint64_t get_u64(const uint8_t *p);
void put_u16(uint8_t *p, uint16_t v);
void put_u32(uint8_t *p, uint32_t v);
void put_u64(uint8_t *p, uint64_t v);

#endif

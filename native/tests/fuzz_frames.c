/* Any bytes as a header and as fields. */
#include <string.h>

#include "frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	struct frame f;
	struct fields it;
	struct field field;
	uint8_t again[FRAME_HEADER];
	uint64_t value;
	char text[32];

	if (n < FRAME_HEADER)
		return 0;
	if (!frame_decode(bytes, &f)) {
		frame_encode(again, &f);
		if (memcmp(again, bytes, FRAME_HEADER) || f.length > FRAME_PAYLOAD_MAX)
			__builtin_trap();
	}
	it = fields_of(bytes + FRAME_HEADER, n - FRAME_HEADER);
	while (fields_next(&it, &field) > 0) {
		field_u64(&field, &value);
		if (!field_text(&field, text, sizeof(text)) && strlen(text) != field.length)
			__builtin_trap();
	}
	return 0;
}

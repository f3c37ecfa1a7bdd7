/* Any bytes: what is given out is a range of whole pages. */
#include "../spawn/maps.c"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct maps m = {.used = 0};
	struct range r;

	for (size_t i = 0; i < size; i++)
		if (maps_byte(&m, (char)data[i], &r) &&
		    (r.start >= r.end || (r.start | r.end) % 4096 || r.end > INT64_MAX))
			abort();
	return 0;
}

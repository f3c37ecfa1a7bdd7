/* Any bytes as an archive: headers, pax records, names. */
#include <stdlib.h>
#include <string.h>

#include "../init/tar.c"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void name_check(const char *name)
{
	static char path[TAR_PATH];

	strcpy(path, name);
	if (tar_clean(path))
		return;
	if (*path == '/' || !strcmp(path, "..") || !strncmp(path, "../", 3) || strstr(path, "/../"))
		__builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static struct tar tar;
	static uint8_t block[TAR_BLOCK];

	memset(&tar, 0, sizeof(tar));
	/* The checksum is mended: a fuzzer would never find one. */
	while (n >= TAR_BLOCK) {
		char digits[8];
		uint32_t sum;
		int step;

		memcpy(block, bytes, TAR_BLOCK);
		bytes += TAR_BLOCK;
		n -= TAR_BLOCK;
		sum = checksum(block);
		for (int i = 5; i >= 0; i--, sum >>= 3)
			digits[i] = (char)('0' + (sum & 7));
		memcpy(block + 148, digits, 6);
		block[154] = 0;
		step = tar_header(&tar, block);
		if (step < 0 || step == TAR_END)
			return 0;
		if (step == TAR_META && tar.meta_size) {
			size_t size = (size_t)tar.meta_size;
			char *copy;

			if (size > n)
				return 0;
			copy = malloc(size);
			if (!copy)
				return 0;
			memcpy(copy, bytes, size);
			step = tar_meta(&tar, copy, size);
			free(copy);
			if (step < 0)
				return 0;
			size = (size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
			bytes += size < n ? size : n;
			n -= size < n ? size : n;
		} else if (step == TAR_ENTRY) {
			name_check(tar.entry.path);
			name_check(tar.entry.link);
		}
	}
	return 0;
}

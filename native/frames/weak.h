/* What a test build leaves out. `make weak` defines SKERRY_WEAK; then the words of the environment
 * variable SKERRY_WEAK, which the launcher hands on to the agent, name protections that are not
 * applied, so that tests can show that their attacks do succeed without them. In every other build
 * weak() is the constant false, and nothing of this is in the binary. */
#pragma once

#ifdef SKERRY_WEAK
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline bool weak(const char *protection)
{
	const char *words = getenv("SKERRY_WEAK");
	size_t n = strlen(protection);

	for (; words && *words; words += strcspn(words, ",") + (words[strcspn(words, ",")] != 0))
		if (!strncmp(words, protection, n) && strcspn(words, ",") == n)
			return true;
	return false;
}
#define WEAK_ENVIRONMENT environ
#else
#define weak(protection) 0
#define WEAK_ENVIRONMENT ((char *[]){NULL})
#endif

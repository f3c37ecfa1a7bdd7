/* Any bytes as a CALL packet; what is taken keeps its invariants. */
#include "../zygote/call.c"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static struct call call;

	if (call_parse(bytes, n, &call))
		return 0;
	if (!call.uid || !call.gid || call.uses < 3 || call.uses > ZYGOTE_FDS_MAX ||
	    call.rlimits > CALL_RLIMITS || call.cwd[CALL_CWD - 1])
		__builtin_trap();
	for (size_t i = 0; i < call.uses; i++)
		if (call.use[i].tag == Z_JOIN && call.use[i].value & ~JOINABLE)
			__builtin_trap();
	return 0;
}

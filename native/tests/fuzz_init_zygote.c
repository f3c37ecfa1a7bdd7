/* Any bytes from a zygote, at any point of its calls. */
#define main test_main
#include "test_init_zygote.c"
#undef main

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	if (!n)
		return 0;
	begin(bytes[0] & 1);
	if (bytes[0] & 2)
		ops[1].state = OP_RUNNING;
	packet_take(bytes + 1, n - 1, bytes[0] & 4 ? 50 : 71);
	if (ops[0].state != OP_RUNNING || ops[2].state != OP_RUNNING || killed)
		__builtin_trap();
	if (ops[1].state == OP_ENDED && !WIFEXITED(ops[1].wait_status) && !WIFSIGNALED(ops[1].wait_status))
		__builtin_trap();
	done();
	return 0;
}

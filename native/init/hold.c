/* The clock of work: it stands still while the host has the sandbox frozen, so that no deadline of a
 * command passes in a time in which the command could not run. */
#include "init.h"

static bool held;
static uint64_t held_since, held_total; /* now_ms(); the sum of earlier holds */

uint64_t work_ms(void)
{
	return (held ? held_since : now_ms()) - held_total;
}

uint64_t work_deadline(uint64_t at)
{
	return held || at == NEVER ? NEVER : at + held_total;
}

void work_hold(bool on)
{
	if (on == held)
		return;
	if (on)
		held_since = now_ms();
	else
		held_total += now_ms() - held_since;
	held = on;
}

/* Prints the plan of each START among the frames of a file; SLOT_MAKE and UPPER_OPEN before it give
 * it their facts. Touches nothing and needs no privilege. */
#ifndef SKERRY_DRYRUN_H
#define SKERRY_DRYRUN_H

#include <stdint.h>
#include <stdio.h>

int dry_run(FILE *in, uint32_t masks);

#endif

/* Who a command runs as, and how its child gets there. */
#ifndef SKERRY_CREDS_H
#define SKERRY_CREDS_H

#include <stddef.h>
#include <stdint.h>

#include "userdb.h"

/* Once, before the first child: finds out which capabilities this kernel has. */
void creds_prepare(void);
/* 0 or a negative errno value. */
/* With the key of the base filter (two words), or NULL: then a filter is added. */
int creds_enter_userns(const uint64_t *key);
int creds_become(const struct identity *who);

#endif

/* Who a command runs as, and how its child gets there. */
#ifndef SKERRY_CREDS_H
#define SKERRY_CREDS_H

#include <stddef.h>

#include "userdb.h"

/* Once, before the first child: finds out which capabilities this kernel has. */
void creds_prepare(void);
/* 0 or a negative errno value. */
int creds_enter_userns(void);
int creds_become(const struct identity *who);

#endif

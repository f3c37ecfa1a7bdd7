/* The zygote of a function container: KIND 4 is it, KIND 3 a call that it forks for (PROTOCOL.md, "Cells"). */
#ifndef SKERRY_INIT_ZYGOTE_H
#define SKERRY_INIT_ZYGOTE_H

#include "init.h"

/* Whether its modules are imported. */
bool zygote_ready(void);
bool zygote_there(void);
/* An operation of KIND 4 is about to be started: makes the conversation, whose other end is l->talk. */
int zygote_begin(const struct op *op, struct launch *l);
/* That operation has ended, or was never started: what it had not answered is lost. */
void zygote_over(const struct op *op);
/* Asks it for a call, whose streams and group are made. 0 or a negative errno: then it knows nothing of it. */
int zygote_call(struct op *op, const struct launch *l);
/* Takes what it has said. */
void zygote_hear(void);
/* A call that was killed and does not end: then it is the zygote that hangs. */
void zygote_watch(struct op *op, uint64_t now);
/* Sends ZYGOTE_IS if that is due; false when there was no room. */
bool zygote_control(void);
/* A new conversation with the host: nobody waits for ZYGOTE_IS any more. */
void zygote_forget(void);

#endif

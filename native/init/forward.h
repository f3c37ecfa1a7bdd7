/* Listeners and forwarded connections. Comes with init.h. */
#ifndef SKERRY_FORWARD_H
#define SKERRY_FORWARD_H

struct listener;

/* 0 or an errno value. */
int forward_listen(uint32_t handle, uint16_t port);
bool forward_unlisten(uint32_t handle);
/* One of its connections has ended. */
void listener_left(struct listener *l);
/* The connection to the host is gone: nothing is accepted until it asks for the port again. */
void listeners_lost(void);
/* Takes an accepted connection over; false if there is no room for it, and then it is closed. */
bool forward_accepted(struct listener *l, uint32_t handle, uint16_t port, int fd);
int forward_frame(const struct frame *f, const uint8_t *payload);
/* The connection is gone: what was under way to it cannot be known. */
void forward_reset_all(void);
/* Sends the control frames that are due; false when the room ran out. */
bool forward_control(void);
/* Streams of forwards in the round robin, by index. */
uint32_t forward_streams(void);
struct outlet *forward_outlet(uint32_t index, uint32_t *stream);
void forward_settle(uint32_t index);

#endif

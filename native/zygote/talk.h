/* The conversation between agent and zygote: packets of a SOCK_SEQPACKET pair, each one frame (frames.h)
 * whose stream is the number of the call. Both ends come from one build, and neither believes the other:
 * the zygote has run the image's modules, and the agent may be asked for anything by its host.
 *
 *	CALL     agent   what the child is to become: Z_FD, Z_JOIN and Z_GROUP in the order of the descriptors
 *			 that come along, Z_RLIMIT*, Z_UID, Z_GID, Z_CWD?
 *	READY    zygote  the modules are imported; calls may come
 *	FAILED   zygote  this call has not begun, and will not: Z_STEP, Z_ERRNO
 *	ENTERED  child   it is in its cell and has no privilege any more; what comes next is the user's code
 *	ENDED    zygote  its child is reaped: Z_PID (as the agent sees it), Z_STATUS (of wait), Z_CPU_US,
 *			 Z_PEAK (bytes, the inherited ones included). After FAILED only if there was a child
 */
#ifndef SKERRY_ZYGOTE_TALK_H
#define SKERRY_ZYGOTE_TALK_H

enum zygote_message { Z_CALL = 0x01, Z_READY = 0x81, Z_FAILED = 0x82, Z_ENTERED = 0x83, Z_ENDED = 0x84 };

enum zygote_tag {
	Z_FD = 1,     /* u64: the descriptor's number in the child, 0 to 4 */
	Z_JOIN = 2,   /* u64: setns flags; the descriptor is a pidfd, or of a namespace */
	Z_GROUP = 3,  /* u64, 0: a tasks or cgroup.procs file, to be entered by writing "0" */
	Z_RLIMIT = 4, /* three u64: resource, soft, hard */
	Z_UID = 5,
	Z_GID = 6,
	Z_CWD = 7, /* text */
	Z_STEP = 8,
	Z_ERRNO = 9,
	Z_PID = 10,
	Z_STATUS = 11,
	Z_CPU_US = 12,
	Z_PEAK = 13,
};

enum {
	ZYGOTE_FD_SCRIPT = 3, /* in the zygote: extension, driver, configuration; in a call: its payload */
	ZYGOTE_FD_RESULT = 4, /* a report, or the call's answer */
	ZYGOTE_FD_TALK = 5,   /* only in the zygote */
	ZYGOTE_PACKET_MAX = 4096,
	ZYGOTE_FDS_MAX = 40, /* in one packet */
	ZYGOTE_CALLS_MAX = 64, /* at once */
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late entry for OpenCL. The wait is a barrier on an in-order queue that waits for a user event.
 * A request in an out-of-order queue enters at once: it is not known when it ends.
 *
 * A word of memory releases the wait (late_word.h), but OpenCL's event must be set by a call.
 * Threads of the program set it where they call the functions below. What else releases, for
 * example the timer, only writes the word; a thread of the library then sets the event.
 */
#ifndef GIVEWAY_OPENCL_LATE_H
#define GIVEWAY_OPENCL_LATE_H

#include "late.h"

#pragma GCC visibility push(hidden)

/* Before a command, if gw_late_wanted says so. */
void gw_opencl_late(enum gw_late_kind kind, void *queue, bool in_order, uint64_t key);

/* Before a call that waits for commands, or asks whether they are done. */
void gw_opencl_waits(void);

/* Before a call that may wait although that is not its purpose. */
void gw_opencl_may_wait(void);

/* In the child of a fork. */
void gw_opencl_late_forked(void);

#pragma GCC visibility pop

#endif

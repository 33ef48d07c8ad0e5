/* SPDX-License-Identifier: Apache-2.0 */
/* Between kfd.c, which knows the queues, and kfd_watch.c, which waits for the daemon. */
#ifndef GIVEWAY_KFD_WATCH_H
#define GIVEWAY_KFD_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#pragma GCC visibility push(hidden)

/* What the daemon wants of the queues. All zero: nothing. */
struct gw_kfd_wish {
  uint32_t off[GW_GPU_ENTRIES]; /* in any order; 0: none */
  uint32_t priority;     /* and one more; 0: none */
};

/*
 * Brings every queue to what is wanted, and those that are made from then on. The
 * answer to `turn` is on the page when this returns. Whether all are so: if not, it
 * should be tried again before long.
 */
bool gw_kfd_obey(const struct gw_kfd_wish *wish, uint32_t turn);

/* Starts the thread that does so, unless there is one. */
void gw_kfd_watch(void);
void gw_kfd_watch_forked(void);

#pragma GCC visibility pop

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by kfd.c, which has the list of queues, and kfd_thread.c, which waits for the daemon. */
#ifndef GIVEWAY_KFD_THREAD_H
#define GIVEWAY_KFD_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#pragma GCC visibility push(hidden)

/* The daemon's request for the queues. All zero: no request. */
struct gw_kfd_request {
  uint32_t stop[GW_GPU_ENTRIES]; /* GPUs on which to stop the queues, in any order; 0: unused */
  uint32_t priority;             /* KFD priority + 1; 0: the priority that the program chose */
};

/*
 * Applies the request to all queues, and to those created later. On return the page says that
 * the request with that seq is applied. Returns false if the driver refused a change: it
 * should be tried again soon.
 */
bool gw_kfd_apply(const struct gw_kfd_request *request, uint32_t seq);

/* Starts the thread that applies requests, unless it runs. */
void gw_kfd_start_thread(void);
void gw_kfd_thread_forked(void);

#pragma GCC visibility pop

#endif

/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "bias.h"

#include <sys/syscall.h>

/* linux/membarrier.h, which systems with glibc 2.17 do not have. */
#ifndef SYS_membarrier
#if defined(__x86_64__)
#define SYS_membarrier 324
#else
#define SYS_membarrier 283
#endif
#endif
#define PRIVATE_EXPEDITED 8
#define REGISTER_PRIVATE_EXPEDITED 16

__thread char gw_this_thread;

bool (*gw_bias_may_call)(void);

/* Costs nothing while there is one thread; with several the kernel would wait for all. */
void gw_bias_register(void) { GW_SYS_3(SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0); }

/*
 * A full barrier on every thread of the process. After it, either the owner has seen that it
 * does not own the lock any more, or this thread sees that the owner is inside. Where
 * membarrier is missing or not permitted, waiting does the same: no CPU delays a write for a
 * millisecond.
 */
static void barrier(void) {
  bool may_call = !gw_bias_may_call || gw_bias_may_call();
  if (!may_call || GW_SYS_3(SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) < 0) {
    for (uint64_t until = gw_now() + GW_MS_NS; gw_now() < until;) {}
  }
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void gw_bias_lock_slow(gw_bias_t *b) {
  gw_lock(&b->lock);
  if (b->shared || b->owner == &gw_this_thread) return;
  if (!b->owner) { /* the first thread becomes the owner; this time it holds the ordinary lock */
    __atomic_store_n(&b->owner, &gw_this_thread, __ATOMIC_RELAXED);
    return;
  }
  __atomic_store_n(&b->shared, 1, __ATOMIC_SEQ_CST);
  barrier();
  for (int i = 0; __atomic_load_n(&b->inside, __ATOMIC_ACQUIRE); i++) {
    if (i >= 100) gw_sleep(20000);
  }
}

/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "bias.h"

#include <sys/syscall.h>

/* linux/membarrier.h, which glibc 2.17's machines do not have. */
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

/* While there is one thread this costs nothing; later the kernel would wait for all. */
__attribute__((constructor)) static void announce(void) { GW_SYS_3(SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0); }

/*
 * Has every other thread's writes from before this seen by us after it, and ours by it.
 * So the owner has either seen that it owns nothing any more, or we see it inside. Where
 * the kernel does not help, time does: no CPU keeps a write to itself for a millisecond.
 */
static void part(void) {
  if (GW_SYS_3(SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) < 0) {
    for (uint64_t until = gw_now() + GW_MS_NS; gw_now() < until;) gw_sleep(GW_MS_NS);
  }
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void gw_bias_lock_slowly(gw_bias_t *b) {
  gw_lock(&b->lock);
  if (b->shared || b->owner == &gw_this_thread) return;
  if (!b->owner) { /* the first time, it is held as an ordinary one */
    __atomic_store_n(&b->owner, &gw_this_thread, __ATOMIC_RELAXED);
    return;
  }
  __atomic_store_n(&b->shared, 1, __ATOMIC_SEQ_CST);
  part();
  for (int i = 0; __atomic_load_n(&b->inside, __ATOMIC_ACQUIRE); i++) {
    if (i >= 100) gw_sleep(20000);
  }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock that costs next to nothing as long as one thread alone takes it, as in most
 * programs that launch. Locked instructions are dear behind a launch: they wait until
 * what was written to the device is on its way there. So the first thread owns the
 * lock, and holds it by writing a word that nobody else writes. The second thread that
 * comes takes that away from it for ever: from then on it is an ordinary lock.
 *
 * Held for moments, and never twice by a thread. All zero is free.
 */
#ifndef GIVEWAY_BIAS_H
#define GIVEWAY_BIAS_H

#include "sys.h"

#pragma GCC visibility push(hidden)

typedef struct {
  gw_lock_t lock;   /* of those that do not own it, and of all once it is shared */
  uint32_t inside;  /* the owner holds it, as the owner */
  uint32_t shared;  /* there is no owner any more */
  const void *owner; /* an address of its thread's */
} gw_bias_t;

extern __thread char gw_this_thread __attribute__((tls_model("initial-exec")));

void gw_bias_lock_slowly(gw_bias_t *b);

static inline void gw_bias_lock(gw_bias_t *b) {
  if (__builtin_expect(__atomic_load_n(&b->owner, __ATOMIC_RELAXED) == &gw_this_thread, 1)) {
    __atomic_store_n(&b->inside, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* for the CPU gw_bias_lock_slowly sees to it */
    if (__builtin_expect(!__atomic_load_n(&b->shared, __ATOMIC_ACQUIRE), 1)) return;
    __atomic_store_n(&b->inside, 0, __ATOMIC_RELEASE);
  }
  gw_bias_lock_slowly(b);
}

static inline void gw_bias_unlock(gw_bias_t *b) {
  if (__builtin_expect(__atomic_load_n(&b->owner, __ATOMIC_RELAXED) == &gw_this_thread && b->inside, 1)) {
    __atomic_store_n(&b->inside, 0, __ATOMIC_RELEASE);
  } else {
    gw_unlock(&b->lock);
  }
}

#pragma GCC visibility pop

#endif

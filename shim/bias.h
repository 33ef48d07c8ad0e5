/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A biased lock: it is almost free as long as only one thread takes it, as in most programs
 * that launch. Locked instructions are expensive after a launch, because they wait until the
 * writes to the device are on their way. So the first thread owns the lock and takes it by
 * writing a word that no other thread writes. The second thread that takes the lock ends
 * that ownership for good; from then on it is an ordinary lock.
 *
 * It is held for a short time only and is not recursive. All zero is free.
 */
#ifndef GIVEWAY_BIAS_H
#define GIVEWAY_BIAS_H

#include <stdbool.h>

#include "sys.h"

/*
 * A thread may get the address of an owner that has exited, and with it the ownership. The C
 * library has waited for that exit before it gives the address away, which ThreadSanitizer
 * does not see; these calls tell it.
 */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define GW_TSAN_ACQUIRE(b) __tsan_acquire(b)
#define GW_TSAN_RELEASE(b) __tsan_release(b)
#else
#define GW_TSAN_ACQUIRE(b) ((void)0)
#define GW_TSAN_RELEASE(b) ((void)0)
#endif

#pragma GCC visibility push(hidden)

typedef struct {
  gw_lock_t lock;    /* taken by threads that are not the owner, and by all once shared is set */
  uint32_t inside;   /* the owner holds the lock by its ownership */
  uint32_t shared;   /* there is no owner any more */
  const void *owner; /* an address that is unique to the owner's thread */
} gw_bias_t;

extern __thread char gw_this_thread __attribute__((tls_model("initial-exec")));

/* To be called when the library is loaded, if the process may call membarrier. */
void gw_bias_register(void);

/* Whether the process may call membarrier now. NULL: it may. */
extern bool (*gw_bias_may_call)(void);

void gw_bias_lock_slow(gw_bias_t *b);

static inline void gw_bias_lock(gw_bias_t *b) {
  if (__builtin_expect(__atomic_load_n(&b->owner, __ATOMIC_RELAXED) == &gw_this_thread, 1)) {
    GW_TSAN_ACQUIRE(b);
    __atomic_store_n(&b->inside, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* for the compiler; gw_bias_lock_slow orders the CPUs */
    if (__builtin_expect(!__atomic_load_n(&b->shared, __ATOMIC_ACQUIRE), 1)) return;
    __atomic_store_n(&b->inside, 0, __ATOMIC_RELEASE);
  }
  gw_bias_lock_slow(b);
}

static inline void gw_bias_unlock(gw_bias_t *b) {
  if (__builtin_expect(__atomic_load_n(&b->owner, __ATOMIC_RELAXED) == &gw_this_thread && b->inside, 1)) {
    GW_TSAN_RELEASE(b);
    __atomic_store_n(&b->inside, 0, __ATOMIC_RELEASE);
  } else {
    GW_TSAN_RELEASE(b);
    gw_unlock(&b->lock);
  }
}

#pragma GCC visibility pop

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late entry: how a wait on the device is released, so that none ever stays.
 *
 * The device waits until a word of host memory has reached a number. Numbers grow, and so does
 * the word, so a wait that was released stays released, however late the device comes to it.
 * At most one wait is pending. It is made known here before it is put on a stream: whatever
 * releases it in between lets the device pass as soon as it gets there.
 *
 * Any thread may release at any time, without a lock. The word is written before the wait
 * counts as released; so if a thread dies in between, another one writes the word again. The
 * timer thread releases what nothing else has released by its time.
 *
 * A test runs these functions in every possible interleaving (test/late_model.c). Therefore
 * each access to shared memory is one of the macros below.
 */
#ifndef GIVEWAY_LATE_WORD_H
#define GIVEWAY_LATE_WORD_H

#include <stdbool.h>
#include <stdint.h>

#ifndef GW_LATE_LOAD /* all sequentially consistent: they are rare, and the timer relies on it */
#define GW_LATE_LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define GW_LATE_STORE(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
#define GW_LATE_CAS(p, expected, v) __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#define GW_LATE_NOW() gw_now()
#define GW_LATE_WAKE(p) gw_futex_wake(p, 1, 0)
#define GW_LATE_SLEEP(p, value, until) gw_futex_wait(p, value, until, 0)
#endif

#define GW_LATE_NEVER (~0ull)

struct gw_late_wait {
  uint32_t armed;      /* number of the pending wait; 0: none */
  uint32_t timer_wake; /* a futex: changes when the timer has to look before wakes_ns */
  uint32_t *word;      /* the word that the pending wait waits for */
  uint64_t due_ns;     /* when the timer releases it */
  uint64_t wakes_ns;   /* when the timer looks next; 0: it is awake */
};

/* Advances a word to n, and never back. */
static inline void gw_late_advance(uint32_t *word, uint32_t n) {
  uint32_t now = GW_LATE_LOAD(word);
  while ((int32_t)(n - now) > 0 && !GW_LATE_CAS(word, &now, n)) {
  }
}

/*
 * Makes wait n on the word known. The caller then puts it on a stream. Only one thread at a time
 * may call this, with a number one higher than the last, which is not 0. Returns false if a wait
 * is still pending.
 */
static inline bool gw_late_arm(struct gw_late_wait *w, uint32_t *word, uint32_t n, uint64_t due_ns) {
  if (GW_LATE_LOAD(&w->armed)) return false;
  /* All waits before n are released. The word may lag far behind, if other words were used. */
  GW_LATE_STORE(word, n - 1);
  GW_LATE_STORE(&w->word, word);
  GW_LATE_STORE(&w->due_ns, due_ns);
  GW_LATE_STORE(&w->armed, n);
  /* Either this thread sees when the timer wakes, or the timer sees the new wait before it
   * sleeps. */
  if (GW_LATE_LOAD(&w->wakes_ns) <= due_ns) return true;
  GW_LATE_STORE(&w->timer_wake, n);
  GW_LATE_WAKE(&w->timer_wake);
  return true;
}

/* Releases wait n, or with n 0 whichever is pending. Returns the number of the wait if this call
 * was the one that released it, otherwise 0. */
static inline uint32_t gw_late_release(struct gw_late_wait *w, uint32_t n) {
  uint32_t pending = GW_LATE_LOAD(&w->armed);
  if (!pending || (n && pending != n)) return 0;
  /* If the wait was released meanwhile, this may be the word of the next one, whose number is
   * higher: to advance it to this number does no harm. */
  gw_late_advance(GW_LATE_LOAD(&w->word), pending);
  n = pending;
  return GW_LATE_CAS(&w->armed, &pending, 0) ? n : 0;
}

/* One round of the timer thread: releases the pending wait if it is due, else sleeps. Returns the
 * number of the wait that it released, or 0. */
static inline uint32_t gw_late_tick(struct gw_late_wait *w) {
  GW_LATE_STORE(&w->wakes_ns, 0);
  uint32_t wake = GW_LATE_LOAD(&w->timer_wake), n = GW_LATE_LOAD(&w->armed);
  uint64_t due = GW_LATE_LOAD(&w->due_ns);
  if (n && GW_LATE_NOW() >= due) return gw_late_release(w, n);
  uint64_t until = n ? due : GW_LATE_NEVER;
  GW_LATE_STORE(&w->wakes_ns, until);
  if (GW_LATE_LOAD(&w->armed) != n || GW_LATE_LOAD(&w->due_ns) != due) return 0;
  GW_LATE_SLEEP(&w->timer_wake, wake, until == GW_LATE_NEVER ? 0 : until);
  return 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints that a C or C++ program can give Giveway about itself. Nothing is linked: if the
 * program was not started by `giveway run`, or there is no daemon, every call returns -1 and
 * has no effect. All functions are thread-safe. A call takes about 50 ns, or as long as a write to
 * an eventfd if the daemon sleeps. A call that finds no page connects to the daemon, at most once a
 * second: that takes 250 ms at most if the daemon does not answer.
 */
#ifndef GIVEWAY_GIVEWAY_H
#define GIVEWAY_GIVEWAY_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gives a hint by its number in abi.h. Returns 0 or -1. */
static inline int giveway_tell(uint32_t kind, int64_t value) {
  static int (*hint)(uint32_t, int64_t);
  int (*known)(uint32_t, int64_t) = __atomic_load_n(&hint, __ATOMIC_RELAXED);
  if (!known) {
    void *found = dlsym(NULL, "giveway_hint"); /* NULL: RTLD_DEFAULT, which needs _GNU_SOURCE */
    if (!found) return -1;
    known = (int (*)(uint32_t, int64_t))(uintptr_t)found;
    __atomic_store_n(&hint, known, __ATOMIC_RELAXED);
  }
  return known(kind, value);
}

/* Sets the priority of the process: a higher one runs first. */
static inline int giveway_priority(int priority) { return giveway_tell(2, priority); }

/* Sets how long after the process becomes ready its work must be done; 0: no deadline. */
static inline int giveway_deadline_ns(int64_t ns) { return giveway_tell(4, ns); }

/* Says how long the process's work can wait; 0: unknown. */
static inline int giveway_laxity_ns(int64_t ns) { return giveway_tell(5, ns); }

/* Says when the next work will arrive, on CLOCK_MONOTONIC; 0: unknown. */
static inline int giveway_expect_ns(int64_t at) { return giveway_tell(7, at); }

/* Says how much device time a request needs; 0: unknown. */
static inline int giveway_work_ns(int64_t ns) { return giveway_tell(6, ns); }

/* Sets how long a request may take, nearly always; 0: no SLO. */
static inline int giveway_slo_ns(int64_t ns) { return giveway_tell(8, ns); }

/* A request begins, and ends. The program chooses the id. Requests may overlap. */
static inline int giveway_begin(int64_t id) { return giveway_tell(9, id); }
static inline int giveway_end(int64_t id) { return giveway_tell(10, id); }

/* Says whether commands launched from now on may run twice (1) or not (0, the initial value). */
static inline int giveway_idempotent(int on) { return giveway_tell(11, on); }

#ifdef __cplusplus
}
#endif

#endif

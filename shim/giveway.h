/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program can tell giveway about itself, from C and C++. Nothing is
 * linked: where the program was not started by giveway, or where there is no
 * daemon, every call returns -1 and nothing happens. All are safe from any
 * thread, and take a few hundred nanoseconds at most.
 */
#ifndef GIVEWAY_GIVEWAY_H
#define GIVEWAY_GIVEWAY_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One hint, by its number in abi.h. 0, or -1. */
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

/* Higher runs first. */
static inline int giveway_priority(int priority) { return giveway_tell(2, priority); }

/* How long after it becomes ready its work must be done; 0: no matter. */
static inline int giveway_deadline_ns(int64_t ns) { return giveway_tell(4, ns); }

/* How long its work can wait; 0: not known. */
static inline int giveway_laxity_ns(int64_t ns) { return giveway_tell(5, ns); }

/* When the next work will come, on CLOCK_MONOTONIC; 0: not known. */
static inline int giveway_expect_ns(int64_t at) { return giveway_tell(7, at); }

/* How long the device will need for a request; 0: not known. */
static inline int giveway_work_ns(int64_t ns) { return giveway_tell(6, ns); }

/* How long a request may take, nearly always; 0: no matter. */
static inline int giveway_slo_ns(int64_t ns) { return giveway_tell(8, ns); }

/* A request begins and ends. The number is the program's own; requests may overlap. */
static inline int giveway_begin(int64_t id) { return giveway_tell(9, id); }
static inline int giveway_end(int64_t id) { return giveway_tell(10, id); }

/* What is launched from now on may be run twice (1), or may not (0, as at the start). */
static inline int giveway_idempotent(int on) { return giveway_tell(11, on); }

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late entry: a launch-bound request enters the device only when most of it is launched.
 *
 * A program that launches many short kernels keeps the device for as long as its CPU needs to
 * launch them, although the device computes for a fraction of that time. So the library puts a
 * wait on the program's stream, ahead of the request's first kernel. The device does not run
 * the context while it waits, and others have it. The program's launches are made when the
 * program makes them and queue up behind the wait. When most of them are made the wait is
 * released, and the device does all of them in one burst. Nothing is deferred or reordered.
 *
 * A request begins with the first command of an idle process and ends when all is known to be
 * done. Its commands are counted from its first kernel on. Only the stream of its first kernel waits;
 * other streams enter at once. The wait is released
 *   - after as many commands as earlier requests of this kind suggest (late_plan.h);
 *   - by every call of the program that waits, may wait or asks for completion;
 *   - by a closed gate, a bound, and the daemon's order to end late entry;
 *   - by a timer thread, in any case.
 *
 * An adapter calls gw_late_command before each command, if gw_late_wanted says so, gw_late_waits
 * before each call that waits for work or asks whether it is done, and gw_late_may_wait before
 * each call that may wait although that is not its purpose.
 */
#ifndef GIVEWAY_LATE_H
#define GIVEWAY_LATE_H

#include "activity.h"
#include "gate.h"
#include "late_word.h"

#pragma GCC visibility push(hidden)

#define GW_LATE_AREA 4096 /* bytes of host memory for each context; the word is the first of it */

/* What an adapter offers. Both are called on a program's thread that uses the context. */
struct gw_late_runtime {
  /* Makes the area visible to the device, in the current context, and returns its address there,
   * or 0 if that is not possible. */
  uint64_t (*map)(void *area);
  /* Puts a wait on the stream until the word, as a 32-bit number that may wrap, has reached n.
   * Returns false if the runtime refuses. */
  bool (*wait)(void *stream, uint64_t word, uint32_t n);
};

enum gw_late_kind {
  GW_LATE_RELEASES, /* the call may wait for the stream */
  GW_LATE_BARS,     /* the same, and a request that makes it before its first kernel enters at once */
  GW_LATE_WAITS,    /* the call returns when the command is done */
  GW_LATE_QUIET,    /* a command that waits for nothing: a memset */
  GW_LATE_KERNEL,   /* the same; a request may enter late ahead of it */
};

/* The pending wait. */
extern struct gw_late_wait gw_late_pending;

/* Whether a request is followed. */
extern uint32_t gw_late_active;

/* One branch, never taken while late entry is off. */
static inline bool gw_late_wanted(void) {
  uint32_t any = GW_READ(late_entry) | __atomic_load_n(&gw_late_pending.armed, __ATOMIC_RELAXED);
  return __builtin_expect(any != 0, 0);
}

/* A command is about to be launched. key: equal for requests whose first kernels are alike. */
void gw_late_command(const struct gw_late_runtime *rt, enum gw_late_kind kind, void *ctx, void *stream, uint64_t key);

void gw_late_waits_now(void);
void gw_late_release_now(void);

static inline void gw_late_waits(void) {
  uint32_t any = __atomic_load_n(&gw_late_active, __ATOMIC_RELAXED) | __atomic_load_n(&gw_late_pending.armed, __ATOMIC_RELAXED);
  if (__builtin_expect(any != 0, 0)) gw_late_waits_now();
}
static inline void gw_late_may_wait(void) {
  if (__builtin_expect(__atomic_load_n(&gw_late_pending.armed, __ATOMIC_RELAXED) != 0, 0)) gw_late_release_now();
}

/* The process has become idle. Called with gw_act.lock held. */
void gw_late_end(void);
static inline void gw_late_idle(void) {
  if (__builtin_expect(__atomic_load_n(&gw_late_active, __ATOMIC_RELAXED) != 0, 0)) gw_late_end();
}

/* A context of the runtime, or with GW_ALL every one of its contexts, is about to be destroyed. */
void gw_late_forget(const struct gw_late_runtime *rt, void *ctx);

/* Other processes may wait for this one: late entry is switched off for good. */
void gw_late_disable(void);

/* Writes the counters to a new page. Called with gw_act.lock held. */
void gw_late_publish(void);

/* In the child of a fork. */
void gw_late_forked(void);

#pragma GCC visibility pop

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on commands in flight. Marks are put on lanes every so often; a
 * launch that would go over the bound waits until one is reached.
 */
#ifndef GIVEWAY_BOUND_H
#define GIVEWAY_BOUND_H

#include "activity.h"

#pragma GCC visibility push(hidden)

/* Where a mark is to go, taken down under the lock. */
struct gw_bound_place {
  const struct gw_runtime *runtime;
  void *ctx, *stream;
  uint32_t lane, life;
  uint64_t seq;
  struct gw_mark *slot; /* busy until the mark is there; NULL: there was none free */
};

/* Waits for room. Whether it had to: the gate may have closed meanwhile. */
bool gw_bound_wait(gw_pass *p);

/* With the lock held: whether a lane should get a mark now, and where it goes. */
bool gw_bound_wants_mark(const struct gw_lane *l);
struct gw_bound_place gw_bound_reserve(int lane);

/* With the lock held: something is known to be done, which says how fast the device is. */
void gw_bound_pace(void);

/* Without it: puts the mark there. Whether one was. */
bool gw_bound_mark(const struct gw_bound_place *at);

/* Drops the marks of a stream, or of a context; waits for threads that look at one. */
void gw_bound_forget(const struct gw_runtime *rt, void *ctx, void *stream);

/* In hint.c, in the child of a fork; in say.c, whether asked to or not. */
void gw_hint_forked(void);

/* Writes what has been said and still holds into a page that is new. With the lock
 * held. */
void gw_hint_again(void);
void gw_say_always(const char *reason);

#pragma GCC visibility pop

#endif

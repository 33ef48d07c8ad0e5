/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on commands in flight. Marks are put on streams at intervals, and a launch that
 * would exceed the bound waits until a mark is reached.
 */
#ifndef GIVEWAY_BOUND_H
#define GIVEWAY_BOUND_H

#include "activity.h"

#pragma GCC visibility push(hidden)

/* Where a mark is to be put, copied under the lock. */
struct gw_bound_place {
  const struct gw_runtime *runtime;
  void *ctx, *stream;
  uint32_t slot, generation;
  uint64_t seq;
  struct gw_mark *entry; /* busy until the mark is put; NULL: no entry was free */
};

/* Waits until the number of commands in flight is below the bound. Returns whether it had to
 * wait: the gate may have closed meanwhile. */
bool gw_bound_wait(gw_pass *p);

/* For a thread that is held. gw_bound_mark_all marks the streams of its context that have
 * unmarked commands. gw_bound_poll queries the marks and returns whether there are any left to
 * query. Both do nothing during a capture. */
void gw_bound_mark_all(const gw_pass *p);
bool gw_bound_poll(void);

/* With the lock held: whether the stream should get a mark now, and where to put it. */
bool gw_bound_wants_mark(const struct gw_stream *s);
struct gw_bound_place gw_bound_reserve(int slot);

/* With the lock held: gives a reserved entry back, if no mark is to be put. */
void gw_bound_unreserve(const struct gw_bound_place *at);

/* With the lock held: exempts all commands in flight from bounds until their stream makes progress.
 * Otherwise a kernel that never ends would delay every launch on the other streams. */
void gw_bound_exempt(void);

/* With the lock held: measures the device time per command after commands have completed. */
void gw_bound_measure(void);

/* Without the lock: puts the mark. Returns whether it did. A capture that has begun meanwhile may
 * include the stream, so gw_bound_mark does nothing during one. gw_bound_mark_last is for a stream
 * that is about to be destroyed, which no other thread may use. */
bool gw_bound_mark(const struct gw_bound_place *at);
bool gw_bound_mark_last(const struct gw_bound_place *at);

/* With the lock held, which is released meanwhile: waits until no thread calls the runtime about a
 * mark of the stream, with GW_ALL of all streams, but not longer than limit_ns. 0: no limit. */
void gw_bound_settle(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t limit_ns);

/* Drops the marks of a stream or of a context, and waits for threads that are using one. */
void gw_bound_forget(const struct gw_runtime *rt, void *ctx, void *stream);

#pragma GCC visibility pop

#endif

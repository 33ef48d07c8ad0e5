/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream classes: inside one process, streams of lower priority give way to those of higher
 * priority. It is off unless the daemon's page says otherwise.
 *
 * A stream is high if its priority is above the runtime's default, and low otherwise. While a high
 * stream has commands in flight, launches on low streams wait at the caller's thread (class_rule.h).
 * And so that a high command finds little ahead of it, only about a millisecond of low commands is
 * in flight while the process uses a high stream.
 *
 * A thread that itself launches on high streams is never held: its next high command would be late.
 * A high stream that waits for others, by an event or for a value in memory, holds no launch until
 * the command behind that wait is done. All other dependences are found by the lack of progress.
 */
#ifndef GIVEWAY_CLASS_H
#define GIVEWAY_CLASS_H

#include "activity.h"
#include "gate.h"
#include "page.h"

#pragma GCC visibility push(hidden)

static inline bool gw_class_wanted(void) { return __builtin_expect(GW_READ(stream_classes) == 1, 0) && gw_orders_hold(); }

/* Waits until the launch may be made, and notes the class of its stream in the pass. Returns whether
 * it had to wait: the gate may have closed meanwhile. */
bool gw_class_wait(gw_pass *p);

/* With gw_act.lock held: counts a command that was launched on the stream. */
void gw_class_count(const gw_pass *p, struct gw_stream *s);

/* With gw_act.lock held: n commands of a high stream are done. */
void gw_class_done(uint64_t n);

/* With gw_act.lock held: whether the stream should get a mark now. */
bool gw_class_wants_mark(const struct gw_stream *s);

/* The stream is about to wait for an event of the stream other, or, if other is NULL, for something
 * that is not known. */
void gw_class_waits(const struct gw_runtime *rt, void *ctx, void *stream, void *other_ctx, void *other);

/* Writes the counters to a new page. With gw_act.lock held. */
void gw_class_publish(void);

#pragma GCC visibility pop

#endif

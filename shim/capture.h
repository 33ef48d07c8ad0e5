/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures in progress, in which commands go into a graph instead of to the device. Each is known by
 * the context and the stream on which it began: it also ends when either of them is destroyed, and
 * not when a stream is destroyed that has joined it.
 */
#ifndef GIVEWAY_CAPTURE_H
#define GIVEWAY_CAPTURE_H

#include "gate.h"

#pragma GCC visibility push(hidden)

/* How many there are. Read without the lock. */
extern uint32_t gw_captures;
static inline bool gw_capture_in_progress(void) { return __atomic_load_n(&gw_captures, __ATOMIC_ACQUIRE) != 0; }

/* A capture is about to begin on the stream. From now on no thread puts a mark on a stream or asks
 * whether one is idle: both would get into the graph or invalidate the capture. */
void gw_capture_begin(const struct gw_runtime *rt, void *ctx, void *stream);

/* After gw_capture_begin and before the call: waits for threads that are doing so on any stream, which
 * the capture may include soon. It waits for a limited time: the call that it waits for may wait for
 * something that this thread does. */
void gw_capture_settle(const struct gw_runtime *rt);

/* The capture that began on the stream has ended, or did not begin. With GW_ALL as context, of any. */
void gw_capture_end(const struct gw_runtime *rt, void *ctx, void *stream);

/* Which capture began on the stream, in any context; 0: none that is listed. After the stream was
 * destroyed another one may have its handle, and a capture of its own. */
uint64_t gw_capture_on(const struct gw_runtime *rt, void *stream);

/* That capture has ended. */
void gw_capture_ended(uint64_t capture);

/* The stream is gone, and with it the capture that began on it, if there is one and it is listed. With
 * GW_ALL as stream or context, the captures of all of them. */
void gw_capture_gone(const struct gw_runtime *rt, void *ctx, void *stream);

/* In the child of a fork. */
void gw_captures_forked(void);

#pragma GCC visibility pop

#endif

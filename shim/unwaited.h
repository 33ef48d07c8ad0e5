/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that the program never waits for.
 *
 * Libraries put a few commands on streams of their own, at their start for example, and do not
 * wait for them. No call would show that they are done, and the process would count as ready
 * for ever. So when the program has waited for one stream and a stream is left on which nothing
 * was launched for the last few waits, the runtime is asked whether that stream is idle.
 */
#ifndef GIVEWAY_UNWAITED_H
#define GIVEWAY_UNWAITED_H

#include "bound.h"

#pragma GCC visibility push(hidden)

/* With the lock held, after the program has waited: a stream to ask about. Its entry is NULL if
 * there is none. */
struct gw_bound_place gw_unwaited_next(const struct gw_runtime *rt, void *ctx);

/* Asks about it, without the lock, on the thread that has waited. Returns whether the daemon is
 * to be woken. */
bool gw_unwaited_ask(const struct gw_bound_place *at);

#pragma GCC visibility pop

#endif

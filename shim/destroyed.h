/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that the program destroys while their commands run.
 *
 * Such a call does not wait, so the commands are still in flight. A mark is put behind them before the
 * call. The slot of the stream keeps them until the mark is reached, or until the program has waited
 * for the whole context. Its key is an address of the library's own meanwhile, because the next stream
 * may have the same handle. If no mark can be put, the commands count as done, as they did for the
 * program when it gave up the stream. A mark is queried at later launches, waits and queries: a program
 * that makes none of them counts as ready until it does.
 */
#ifndef GIVEWAY_DESTROYED_H
#define GIVEWAY_DESTROYED_H

#include "bound.h"

#pragma GCC visibility push(hidden)

/* Queries the marks, if that was not done a moment ago. */
void gw_destroyed_poll(void);

/* After a wait of the program. If nothing but commands of destroyed streams is in flight, there may be
 * no other wait, so it waits a moment for the marks. Not after a query, which must not wait. */
void gw_destroyed_waited(void);

#pragma GCC visibility pop

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the program has on the device, as far as anybody can tell: a lane for
 * each stream, with numbers for what was launched on it and what is known to be
 * done. The one owner of the numbers that the page shows; the page itself is
 * written, and read only where that spares a lock and no harm can come of it.
 *
 * All fields are under gw_act.lock, which is held for a few dozen
 * instructions: never while the runtime is called, never while anybody waits.
 */
#ifndef GIVEWAY_ACTIVITY_H
#define GIVEWAY_ACTIVITY_H

#include "bias.h"
#include "gate.h"
#include "sys.h"

#define GW_SETS 64
#define GW_WAYS 4
#define GW_LANES (GW_SETS * GW_WAYS)
#define GW_MARKS 64

#pragma GCC visibility push(hidden)

struct gw_lane {
  const struct gw_runtime *runtime; /* NULL: free */
  void *ctx, *stream;
  uint64_t launched, done; /* of this lane */
  uint64_t last;           /* gw_act.launched after its last command */
  uint64_t excused;        /* of those in flight, not held against the bound: see bound.c */
  uint32_t unmarked;       /* since the last mark */
  uint32_t life;           /* of the slot: a mark of an earlier one means nothing */
};

enum gw_mark_state { GW_MARK_FREE, GW_MARK_SET, GW_MARK_BUSY };

struct gw_mark {
  enum gw_mark_state state; /* busy: one thread asks the runtime about it */
  const struct gw_runtime *runtime;
  void *ctx, *stream, *mark;
  uint32_t lane, life;
  uint64_t seq; /* of the lane, that it stands behind */
  uint64_t age;
};

struct gw_activity {
  /* What every launch needs, in one line of the cache. */
  gw_bias_t lock __attribute__((aligned(64)));
  uint64_t launched, completed; /* of all lanes */
  uint32_t passing; /* threads at the gate, and just let through, that have not launched yet */
  uint32_t held;    /* threads at the gate */
  uint32_t running; /* commands of queue.c, counted when they have run: to the daemon they are in flight */
  uint32_t runtimes;
  bool ready;
  bool explicit_requests; /* the program says itself what a request is */
  uint64_t since_ns;      /* it is ready or idle; 0: nobody wanted to know then */

  uint64_t loose; /* in flight where there was no lane to be had: not bounded */
  uint64_t loose_last;
  uint64_t excused; /* of all lanes */
  uint64_t holds, held_ns, overruns;
  uint64_t requests, hints;
  uint32_t open;
  uint32_t bell;

  uint64_t used[GW_LANES / 64]; /* lanes that are not free */
  struct gw_lane lanes[GW_LANES] __attribute__((aligned(64)));
  uint64_t pace_ns; /* that a command takes of late: see bound.c; 0: not known */
  uint64_t pace_at, pace_done; /* when it was looked at last, and what was completed then */
  uint32_t marks_set; /* not free */
  uint64_t marks_made;
  struct gw_mark marks[GW_MARKS];
};
extern struct gw_activity gw_act;

/* Captures under way. Read without the lock. */
extern uint32_t gw_captures;
static inline bool gw_anything_captures(void) { return __atomic_load_n(&gw_captures, __ATOMIC_ACQUIRE) != 0; }

/* The library's destructor has run: nothing is ours any more. */
extern uint32_t gw_gone;

static inline uint64_t gw_in_flight(void) { return gw_act.launched - gw_act.completed; }

/* All below are called with the lock held. */

/* The lane of a stream, or -1. find only looks; take makes one if there is room. */
int gw_lane_find(const struct gw_runtime *rt, void *ctx, void *stream);
int gw_lane_take(const struct gw_runtime *rt, void *ctx, void *stream);

/* All of a lane up to seq is done. */
void gw_lane_done(struct gw_lane *l, uint64_t seq);

/* Nothing of the lane is in flight any more, and it is free. */
void gw_lane_free(int lane);

/* Brings ready/idle and the page up to date. Whether the daemon is to be woken:
 * call gw_page_ring once the lock is free. */
bool gw_settle(void);

/* Adds a request to the log. Whether the daemon wants to know. */
bool gw_log_request(uint64_t begin_ns, uint64_t end_ns);

/* Writes page.flags anew. */
void gw_show_flags(void);

/* Bumps the bell. */
void gw_bump(void);

#pragma GCC visibility pop

/* One word of the page, as the other side may read it at any time. */
#define GW_SHOW(field, value) __atomic_store_n(&gw_shared.page.field, value, __ATOMIC_RELAXED)
#define GW_READ(field) __atomic_load_n(&gw_shared.page.field, __ATOMIC_RELAXED)

#endif

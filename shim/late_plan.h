/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late entry: when to release a request, learned from earlier ones. No clock, no memory of its
 * own, no other part of the library, so that a test can run it with simulated programs.
 *
 * The right moment is when the CPU time left until the program waits is about the time in which
 * the device does all that is queued, the context switch included. That time is called the lead.
 * A request that is released too late makes the program wait for longer than one that entered at
 * once: its tail, from the waiting call until all is done, is longer. So the lead is learned
 * from tails. Whole latencies of both kinds are compared too, because late entry may cost what
 * the tail does not show.
 */
#ifndef GIVEWAY_LATE_PLAN_H
#define GIVEWAY_LATE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#define GW_LATE_POINTS 16 /* moments of a request that are timed: after each sixteenth of its commands */
#define GW_LATE_PAIRS 32  /* pairs of requests that are compared at a time */
#define GW_LATE_SHAPES 16

#pragma GCC visibility push(hidden)

/* Requests that begin with the same kernel and grid. */
struct gw_late_shape {
  uint64_t key, used; /* used: value of gw_late_plan.requests when it was last used; 0: free */
  uint32_t commands;  /* in one request */
  uint32_t score;     /* how well requests repeat: 0 to MAX_SCORE */
  uint64_t cpu_ns;    /* from the first kernel to the call that waits */
  uint64_t point_ns[GW_LATE_POINTS]; /* from the first kernel to each point */
  uint64_t tail_ns;                  /* of requests that entered at once */
  uint64_t lead_ns;
  uint32_t probes;      /* requests that were released late on purpose, to measure the lead */
  uint64_t probed_ns;   /* what they found */
  uint32_t since_probe; /* late requests since then */
  uint32_t far;         /* of those, how many in a row ended much too late */
  uint32_t decisions;   /* requests that it was used for or compared with, since it was last taken up */
  uint64_t usual_ns; /* latency of requests that entered at once */
  uint64_t once_ns;  /* of the last one, if a late request is compared with it; 0: none */
  int64_t more_ns[GW_LATE_PAIRS]; /* by how much late requests took longer than the ones before them */
  uint32_t pairs;
  uint32_t worse; /* comparisons in a row that late entry has lost */
  uint64_t pause_ns, paused_until_ns;
};

struct gw_late_plan {
  struct gw_late_shape shapes[GW_LATE_SHAPES];
  uint64_t requests;
  uint32_t ratios[GW_RATIO_ENTRIES]; /* of all pairs so far: gw_page.late_ratios */
  uint64_t given_up;                 /* gw_page.late_given_up */
};

struct gw_late_choice {
  struct gw_late_shape *shape;
  bool late;           /* enter late */
  bool compared;       /* its latency is one of those that are compared */
  uint32_t release_at; /* after so many commands; 0: unknown, by the waiting call or the timer */
  uint64_t hold_ns;    /* expected time until then */
  uint64_t limit_ns;   /* the timer releases after this time */
};

/* A request that has ended. Times are since its first kernel. */
struct gw_late_sample {
  uint32_t commands; /* made before the program waited */
  uint64_t released_ns, waited_ns, done_ns;
  uint64_t point_ns[GW_LATE_POINTS]; /* 0: unknown */
};

/* Decides about a request that begins. always: enter late wherever it is possible. */
struct gw_late_choice gw_late_choose(struct gw_late_plan *p, uint64_t key, uint64_t now_ns, bool always);

/* Learns from a request that has ended. */
void gw_late_learn(struct gw_late_plan *p, const struct gw_late_choice *c, const struct gw_late_sample *s, uint64_t now_ns);

#pragma GCC visibility pop

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What parking learns: when the next arrival is due, how long ahead to begin,
 * and whether it is worth it. No clock, no calls, no locks: numbers in, numbers
 * out.
 */
#ifndef GIVEWAY_PREDICT_H
#define GIVEWAY_PREDICT_H

#include <stdbool.h>
#include <stdint.h>

#define GW_ARRIVALS 9 /* intervals between them: one less */
#define GW_TAKEOVERS 16
#define GW_OUTCOMES 16

struct gw_predictor {
  uint64_t arrivals[GW_ARRIVALS]; /* a ring; arrival n is at n % GW_ARRIVALS */
  uint64_t seen;
  uint64_t takeovers[GW_TAKEOVERS]; /* how long it took to get the device */
  uint64_t taken;
  uint32_t outcomes; /* a bit each, the latest lowest: 1 the arrival came */
  uint32_t tried;    /* how many of those bits count */
  uint64_t rest_ns, rest_until_ns;
  uint64_t overslept_ns; /* by how much sleeps have ended late */
};

void gw_predict_arrival(struct gw_predictor *p, uint64_t at_ns);

/* When the next arrival is due, if they come in step; 0 if they do not. jitter
 * is how far from in step an interval may be. */
uint64_t gw_predict_next(const struct gw_predictor *p, uint64_t jitter_ns);

void gw_predict_takeover(struct gw_predictor *p, uint64_t took_ns);

/* How long ahead to begin: what it has taken of late, and a margin; most, while
 * nothing is known. */
uint64_t gw_predict_lead(const struct gw_predictor *p, uint64_t most_ns);

/* An arrival came while the device was held for it, or did not. Too many that did
 * not, and there is a rest, twice as long each time. */
void gw_predict_outcome(struct gw_predictor *p, bool came, uint64_t now_ns);
bool gw_predict_resting(const struct gw_predictor *p, uint64_t now_ns);

/* A sleep ended so much too late. */
void gw_predict_woke(struct gw_predictor *p, uint64_t late_ns);

/* How long before the end of a wait to be awake, so as not to sleep through it. */
uint64_t gw_predict_early(const struct gw_predictor *p, uint64_t wait_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calculations for parking (park.h): when the next arrival is due, how long before it to
 * take the device, and whether that is worthwhile. Pure functions: no clock, no system calls,
 * no locks.
 */
#ifndef GIVEWAY_PREDICT_H
#define GIVEWAY_PREDICT_H

#include <stdbool.h>
#include <stdint.h>

#define GW_ARRIVALS 9 /* arrivals kept: one more than intervals */
#define GW_TAKEOVERS 16
#define GW_OUTCOMES 16

/* Whether parking pays. */
struct gw_payoff {
  uint32_t outcomes;      /* one bit each, the latest lowest: 1 if a request found the device held */
  uint32_t outcome_count; /* how many of those bits are valid */
  uint64_t pause_ns, pause_until_ns;
};

struct gw_predictor {
  uint64_t arrivals[GW_ARRIVALS]; /* a ring; arrival n is at n % GW_ARRIVALS */
  uint64_t arrival_count;
  uint64_t takeovers[GW_TAKEOVERS]; /* how long it took to get the device */
  uint64_t takeover_count;
  /* Apart, so that a program whose requests cannot be predicted can announce them. */
  struct gw_payoff predicted, announced;
  uint64_t late_ns; /* how late sleeps have ended recently */
};

void gw_predict_arrival(struct gw_predictor *p, uint64_t at_ns);

/* When the next arrival after past_ns is due at the earliest if arrivals are periodic, else 0. jitter_ns
 * is how far an interval may deviate from the period, held_ns for how long the device is held for an
 * arrival that is late. If all were periodic and one does not come in time, the one after it is expected,
 * but no further one. */
uint64_t gw_predict_next(const struct gw_predictor *p, uint64_t jitter_ns, uint64_t held_ns, uint64_t past_ns);

/* Whether the last arrival was less than ten seconds ago. */
bool gw_predict_active(const struct gw_predictor *p, uint64_t now_ns);

/* Getting the device took at least that long. */
void gw_predict_takeover(struct gw_predictor *p, uint64_t took_ns);

/* How long before an arrival to begin: the recent takeover time plus a margin, or max_ns as
 * long as nothing is known. */
uint64_t gw_predict_lead(const struct gw_predictor *p, uint64_t max_ns);

/* A request found the device held for it, or none did. After too many that did not, parking
 * pauses, twice as long each time. */
void gw_payoff_add(struct gw_payoff *p, bool hit, uint64_t now_ns);
bool gw_payoff_paused(const struct gw_payoff *p, uint64_t now_ns);

/* A sleep ended late by that much. */
void gw_predict_woke(struct gw_predictor *p, uint64_t by_ns);

/* How long before the end of a wait to wake up, so as not to sleep through it. */
uint64_t gw_predict_early(const struct gw_predictor *p, uint64_t wait_ns);

#endif

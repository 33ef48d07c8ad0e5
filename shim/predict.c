/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "predict.h"

#include <string.h>

#define SECOND 1000000000ull
#define MAX_PAUSE (64 * SECOND)
#define MIN_REGULAR 6            /* of 8 intervals; a late arrival makes two irregular ones */
#define LOOK_BACK 3              /* arrivals before the last */
#define MARGIN_NS 30000ull
#define MIN_EARLY 50000ull
#define MAX_EARLY 400000ull

static void sort(uint64_t *v, int n) {
  for (int i = 1; i < n; i++) {
    uint64_t x = v[i];
    int j = i;
    for (; j > 0 && v[j - 1] > x; j--) v[j] = v[j - 1];
    v[j] = x;
  }
}

void gw_predict_arrival(struct gw_predictor *p, uint64_t at_ns) {
  if (p->arrival_count && at_ns <= p->arrivals[(p->arrival_count - 1) % GW_ARRIVALS]) return;
  p->arrivals[p->arrival_count++ % GW_ARRIVALS] = at_ns;
}

uint64_t gw_predict_next(const struct gw_predictor *p, uint64_t jitter_ns, uint64_t held_ns, uint64_t past_ns) {
  uint64_t gaps[GW_ARRIVALS - 1], sorted[GW_ARRIVALS - 1];
  if (p->arrival_count < GW_ARRIVALS) return 0;
  for (int i = 0; i < GW_ARRIVALS - 1; i++) { /* the latest first */
    uint64_t n = p->arrival_count - 1 - (uint64_t)i;
    gaps[i] = sorted[i] = p->arrivals[n % GW_ARRIVALS] - p->arrivals[(n - 1) % GW_ARRIVALS];
  }
  sort(sorted, GW_ARRIVALS - 1);
  uint64_t period = sorted[(GW_ARRIVALS - 1) / 2];
  if (jitter_ns > period / 4) jitter_ns = period / 4; /* else any arrivals that are close together would be regular */
  int regular = 0;
  for (int i = 0; i < GW_ARRIVALS - 1; i++) regular += gaps[i] + jitter_ns >= period && gaps[i] <= period + jitter_ns;
  if (regular < MIN_REGULAR) return 0;
  /* Requests are taken to be late at times and never early, as timers are. So if the last one came
   * later than the ones before it make expect, the next is due earlier than a period after it. */
  if (held_ns > period / 4) held_ns = period / 4;
  uint64_t since = 0, late = 0;
  for (int i = 0; i < LOOK_BACK; i++) {
    uint64_t expected = (uint64_t)(i + 1) * period;
    since += gaps[i];
    if (since > expected && since - expected <= held_ns && since - expected > late) late = since - expected;
  }
  uint64_t next = p->arrivals[(p->arrival_count - 1) % GW_ARRIVALS] + period - late;
  if (next <= past_ns && regular == GW_ARRIVALS - 1) next += period;
  return next > past_ns ? next : 0;
}

bool gw_predict_active(const struct gw_predictor *p, uint64_t now_ns) {
  return p->arrival_count && now_ns < p->arrivals[(p->arrival_count - 1) % GW_ARRIVALS] + 10 * SECOND;
}

void gw_predict_takeover(struct gw_predictor *p, uint64_t took_ns) { p->takeovers[p->takeover_count++ % GW_TAKEOVERS] = took_ns; }

uint64_t gw_predict_lead(const struct gw_predictor *p, uint64_t max_ns) {
  uint64_t took[GW_TAKEOVERS];
  int n = p->takeover_count < GW_TAKEOVERS ? (int)p->takeover_count : GW_TAKEOVERS;
  if (n < 4) return max_ns;
  memcpy(took, p->takeovers, sizeof took);
  sort(took, n);
  /* The second longest of sixteen: a single slow one is chance. */
  uint64_t lead = took[n - 1 - (n > 8)] * 5 / 4 + MARGIN_NS;
  return lead < max_ns ? lead : max_ns;
}

void gw_payoff_add(struct gw_payoff *p, bool hit, uint64_t now_ns) {
  p->outcomes = p->outcomes << 1 | hit;
  if (p->outcome_count < GW_OUTCOMES) p->outcome_count++;
  uint32_t hits = (uint32_t)__builtin_popcount(p->outcomes & ((1u << p->outcome_count) - 1));
  if (p->outcome_count == GW_OUTCOMES && hits == GW_OUTCOMES) p->pause_ns = 0;
  if (p->outcome_count < GW_OUTCOMES / 2 || hits * 2 >= p->outcome_count) return;
  p->pause_ns = p->pause_ns ? p->pause_ns * 2 : SECOND;
  if (p->pause_ns > MAX_PAUSE) p->pause_ns = MAX_PAUSE;
  p->pause_until_ns = now_ns + p->pause_ns;
  p->outcome_count = 0;
}

bool gw_payoff_paused(const struct gw_payoff *p, uint64_t now_ns) { return now_ns < p->pause_until_ns; }

/* late_ns follows the longest of the last few hundred delays. How late a sleep ends depends on
 * the host and differs a hundredfold: on a quiet host sleeps end in time, on one with shared
 * CPUs some end late while the others are busy. Delays above MAX_EARLY are ignored, because
 * no reasonable time awake would make up for them. */
void gw_predict_woke(struct gw_predictor *p, uint64_t by_ns) {
  p->late_ns -= p->late_ns / 256;
  if (by_ns > p->late_ns && by_ns <= MAX_EARLY) p->late_ns = by_ns;
}

uint64_t gw_predict_early(const struct gw_predictor *p, uint64_t wait_ns) {
  uint64_t early = p->late_ns + MIN_EARLY;
  return early < wait_ns / 3 ? early : wait_ns / 3;
}

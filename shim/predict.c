/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "predict.h"

#include <string.h>

#define SECOND 1000000000ull
#define REST_MOST (64 * SECOND)
#define MARGIN_NS 30000ull
#define EARLY_LEAST 50000ull
#define EARLY_MOST 400000ull

static void sort(uint64_t *v, int n) {
  for (int i = 1; i < n; i++) {
    uint64_t x = v[i];
    int j = i;
    for (; j > 0 && v[j - 1] > x; j--) v[j] = v[j - 1];
    v[j] = x;
  }
}

void gw_predict_arrival(struct gw_predictor *p, uint64_t at_ns) {
  if (p->seen && at_ns <= p->arrivals[(p->seen - 1) % GW_ARRIVALS]) return;
  p->arrivals[p->seen++ % GW_ARRIVALS] = at_ns;
}

uint64_t gw_predict_next(const struct gw_predictor *p, uint64_t jitter_ns) {
  uint64_t gaps[GW_ARRIVALS - 1];
  if (p->seen < GW_ARRIVALS) return 0;
  for (int i = 0; i < GW_ARRIVALS - 1; i++) {
    uint64_t n = p->seen - GW_ARRIVALS + (uint64_t)i;
    gaps[i] = p->arrivals[(n + 1) % GW_ARRIVALS] - p->arrivals[n % GW_ARRIVALS];
  }
  sort(gaps, GW_ARRIVALS - 1);
  uint64_t period = gaps[(GW_ARRIVALS - 1) / 2];
  /* One interval of eight may be anything: a request that was late. */
  uint64_t low = gaps[0], high = gaps[GW_ARRIVALS - 3];
  if (period - low > jitter_ns) low = gaps[1], high = gaps[GW_ARRIVALS - 2];
  if (period - low > jitter_ns || high - period > jitter_ns) return 0;
  return p->arrivals[(p->seen - 1) % GW_ARRIVALS] + period;
}

void gw_predict_takeover(struct gw_predictor *p, uint64_t took_ns) { p->takeovers[p->taken++ % GW_TAKEOVERS] = took_ns; }

uint64_t gw_predict_lead(const struct gw_predictor *p, uint64_t most_ns) {
  uint64_t took[GW_TAKEOVERS];
  int n = p->taken < GW_TAKEOVERS ? (int)p->taken : GW_TAKEOVERS;
  if (n < 4) return most_ns;
  memcpy(took, p->takeovers, sizeof took);
  sort(took, n);
  /* The worst but one of sixteen: a single slow one is chance. */
  uint64_t lead = took[n - 1 - (n > 8)] * 5 / 4 + MARGIN_NS;
  return lead < most_ns ? lead : most_ns;
}

void gw_predict_outcome(struct gw_predictor *p, bool came, uint64_t now_ns) {
  p->outcomes = p->outcomes << 1 | came;
  if (p->tried < GW_OUTCOMES) p->tried++;
  uint32_t hits = (uint32_t)__builtin_popcount(p->outcomes & ((1u << p->tried) - 1));
  if (p->tried == GW_OUTCOMES && hits == GW_OUTCOMES) p->rest_ns = 0;
  if (p->tried < GW_OUTCOMES / 2 || hits * 2 >= p->tried) return;
  p->rest_ns = p->rest_ns ? p->rest_ns * 2 : SECOND;
  if (p->rest_ns > REST_MOST) p->rest_ns = REST_MOST;
  p->rest_until_ns = now_ns + p->rest_ns;
  p->tried = 0;
}

bool gw_predict_resting(const struct gw_predictor *p, uint64_t now_ns) { return now_ns < p->rest_until_ns; }

/* Nearly as much as the worst of the last few hundred. How late sleeps end is the
 * host's affair, and differs a hundredfold: on a quiet one all are in time, and who
 * shares its CPUs with others wakes late every now and then, when they are busy. What
 * no moderate time awake makes up for is no reason to spend it. */
void gw_predict_woke(struct gw_predictor *p, uint64_t late_ns) {
  p->overslept_ns -= p->overslept_ns / 256;
  if (late_ns > p->overslept_ns && late_ns <= EARLY_MOST) p->overslept_ns = late_ns;
}

uint64_t gw_predict_early(const struct gw_predictor *p, uint64_t wait_ns) {
  uint64_t early = p->overslept_ns + EARLY_LEAST;
  return early < wait_ns / 3 ? early : wait_ns / 3;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of predict.h. */
#include "../predict.h"

#include <stdio.h>

#define MS 1000000ull
#define US 1000ull
#define WANT(what)                                                   \
  do {                                                               \
    if (!(what)) return printf("line %d: %s\n", __LINE__, #what), 1; \
  } while (0)

static uint32_t state = 1;

static uint32_t below(uint32_t n) { return (state = state * 1664525 + 1013904223) / 65536 % n; }

/* How many of 1000 arrivals are predicted, and at most 30 us too late. One of twenty comes late, and
 * either the next one does not care, or it comes a period after the late one. */
static int in_time(bool follows) {
  struct gw_predictor p = {0};
  uint64_t due = 1000 * MS;
  int good = 0;
  for (int i = 0; i < 1000 + GW_ARRIVALS; i++) {
    uint64_t late = below(20) ? below(10) * US : 50 * US + below(350) * US, at = due + late;
    uint64_t next = gw_predict_next(&p, 500 * US, MS, 0);
    good += next && next <= at + 30 * US && next + 450 * US > at;
    gw_predict_arrival(&p, at);
    due = (follows ? at : due) + 20 * MS;
  }
  return good;
}

/* A predictor that has seen an arrival every 20 ms, the last one at *at. */
static struct gw_predictor regular(uint64_t *at) {
  struct gw_predictor p = {0};
  for (int i = 0; i < GW_ARRIVALS; i++) gw_predict_arrival(&p, *at += 20 * MS);
  return p;
}

int main(void) {
  struct gw_predictor p = {0};
  uint64_t at = 1000 * MS;
  for (int i = 0; i < GW_ARRIVALS; i++) {
    WANT(gw_predict_next(&p, 100 * US, MS, 0) == 0); /* too few arrivals */
    gw_predict_arrival(&p, at += 5 * MS + (i % 3) * 20 * US);
  }
  uint64_t next = gw_predict_next(&p, 100 * US, MS, 0);
  WANT(next > at + 4900 * US && next < at + 5100 * US);
  WANT(gw_predict_next(&p, 5 * US, MS, 0) == 0); /* the deviation is too large */
  gw_predict_arrival(&p, at - MS);        /* back in time: ignored */
  WANT(gw_predict_next(&p, 100 * US, MS, 0) == next);

  gw_predict_arrival(&p, at += 9 * MS); /* a single late arrival */
  WANT(gw_predict_next(&p, 100 * US, MS, 0) != 0);
  gw_predict_arrival(&p, at += 2 * MS);
  gw_predict_arrival(&p, at += 9 * MS);
  gw_predict_arrival(&p, at += 7 * MS);
  WANT(gw_predict_next(&p, 100 * US, MS, 0) == 0); /* not periodic any more */

  WANT(in_time(false) >= 990 && in_time(true) >= 990);

  /* Two arrivals in a row are late by 300 us; the third is due when it would be without them. */
  p = regular(&at);
  gw_predict_arrival(&p, at + 20 * MS + 300 * US);
  next = gw_predict_next(&p, 500 * US, MS, 0);
  WANT(next == at + 40 * MS);
  gw_predict_arrival(&p, at + 40 * MS + 300 * US);
  WANT(gw_predict_next(&p, 500 * US, MS, 0) == at + 60 * MS);
  gw_predict_arrival(&p, at + 60 * MS + 300 * US);
  WANT(gw_predict_next(&p, 500 * US, MS, 0) == at + 80 * MS);
  /* After the fourth late one that is the new time. */
  gw_predict_arrival(&p, at + 80 * MS + 300 * US);
  WANT(gw_predict_next(&p, 500 * US, MS, 0) == at + 100 * MS + 300 * US);
  /* A delay may be longer than the jitter, if the device is held for as long. */
  p = regular(&at);
  gw_predict_arrival(&p, at + 20 * MS + 900 * US);
  WANT(gw_predict_next(&p, 500 * US, MS, 0) == at + 40 * MS);
  WANT(gw_predict_next(&p, 500 * US, 500 * US, 0) == at + 40 * MS + 900 * US);
  /* If an arrival does not come, the one after it may, but no further one is expected. */
  p = regular(&at);
  gw_predict_arrival(&p, at += 20 * MS);
  WANT(gw_predict_next(&p, 500 * US, MS, at) == at + 20 * MS);
  WANT(gw_predict_next(&p, 500 * US, MS, at + 20 * MS) == at + 40 * MS);
  WANT(gw_predict_next(&p, 500 * US, MS, at + 40 * MS) == 0);
  gw_predict_arrival(&p, at += 45 * MS); /* only if all were periodic */
  WANT(gw_predict_next(&p, 500 * US, MS, at) == at + 20 * MS);
  WANT(gw_predict_next(&p, 500 * US, MS, at + 20 * MS) == 0);
  /* One that is late by 5 ms is not a delay that the next one makes up for. */
  p = regular(&at);
  gw_predict_arrival(&p, at + 25 * MS);
  WANT(gw_predict_next(&p, 500 * US, MS, 0) == at + 45 * MS);
  /* With a short period a deviation of half of it is not regular. */
  p = (struct gw_predictor){0};
  for (int i = 0; i < GW_ARRIVALS; i++) gw_predict_arrival(&p, at += i % 2 ? 300 * US : 600 * US);
  WANT(gw_predict_next(&p, 500 * US, MS, 0) == 0);
  WANT(gw_predict_active(&p, at + 9 * 1000 * MS) && !gw_predict_active(&p, at + 11 * 1000 * MS));

  WANT(gw_predict_lead(&p, 500 * US) == 500 * US);
  for (int i = 0; i < 16; i++) gw_predict_takeover(&p, i == 7 ? 400 * US : 160 * US);
  uint64_t lead = gw_predict_lead(&p, 500 * US);
  WANT(lead > 200 * US && lead < 260 * US); /* a single slow takeover of sixteen is ignored */
  WANT(gw_predict_lead(&p, 100 * US) == 100 * US);
  for (int i = 0; i < 16; i++) gw_predict_takeover(&p, 300 * US);
  WANT(gw_predict_lead(&p, 500 * US) > 350 * US);

  struct gw_payoff pays = {0};
  at = 0;
  for (int i = 0; i < 7; i++) gw_payoff_add(&pays, false, at);
  WANT(!gw_payoff_paused(&pays, at)); /* too few outcomes */
  gw_payoff_add(&pays, false, at);
  WANT(gw_payoff_paused(&pays, at + 999 * MS) && !gw_payoff_paused(&pays, at + 1001 * MS));
  at += 2000 * MS;
  for (int i = 0; i < 8; i++) gw_payoff_add(&pays, false, at);
  WANT(gw_payoff_paused(&pays, at + 1999 * MS) && !gw_payoff_paused(&pays, at + 2001 * MS)); /* twice as long */
  at += 5000 * MS;
  for (int i = 0; i < 100; i++) gw_payoff_add(&pays, i % 4 != 0, at);
  WANT(!gw_payoff_paused(&pays, at)); /* three of four are enough */
  for (int i = 0; i < 16; i++) gw_payoff_add(&pays, true, at);
  for (int i = 0; i < 9; i++) gw_payoff_add(&pays, false, at);
  WANT(gw_payoff_paused(&pays, at + 999 * MS) && !gw_payoff_paused(&pays, at + 1001 * MS)); /* the pause starts again at one second */

  for (int i = 0; i < 200; i++) gw_payoff_add(&pays, false, at += 200 * 1000 * MS);
  WANT(gw_payoff_paused(&pays, at + 63 * 1000 * MS) && !gw_payoff_paused(&pays, at + 65 * 1000 * MS)); /* a pause has a limit */
  WANT(gw_predict_early(&p, 10 * MS) < 100 * US);
  WANT(gw_predict_early(&p, 30 * US) == 10 * US); /* at most a third of the wait is spent awake */
  gw_predict_woke(&p, 300 * US);
  for (int i = 0; i < 100; i++) gw_predict_woke(&p, 10 * US);
  WANT(gw_predict_early(&p, 10 * MS) > 200 * US); /* one delay in a hundred is remembered */
  for (int i = 0; i < 1000; i++) gw_predict_woke(&p, 10 * US);
  WANT(gw_predict_early(&p, 10 * MS) < 100 * US); /* but not for ever */
  gw_predict_woke(&p, 50 * MS);
  WANT(gw_predict_early(&p, 10 * MS) < 100 * US); /* a delay that is too long is ignored */
  return 0;
}

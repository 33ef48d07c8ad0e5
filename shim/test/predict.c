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
  uint64_t due = 1000 * MS, last = 0;
  int good = 0;
  for (int i = 0; i < 1000 + GW_ARRIVALS; i++) {
    uint64_t late = below(20) ? below(10) * US : 50 * US + below(350) * US, at = due + late;
    uint64_t next = gw_predict_next(&p, 250 * US, last);
    good += next && next <= at + 30 * US && at < next + MS;
    gw_predict_arrival(&p, last = at);
    due = (follows ? at : due) + 20 * MS;
  }
  return good;
}

int main(void) {
  struct gw_predictor p = {0};
  uint64_t at = 1000 * MS;
  for (int i = 0; i < GW_ARRIVALS; i++) {
    WANT(gw_predict_next(&p, 100 * US, at) == 0); /* too few arrivals */
    gw_predict_arrival(&p, at += 5 * MS + (i % 3) * 20 * US);
  }
  uint64_t next = gw_predict_next(&p, 100 * US, at);
  WANT(next > at + 4900 * US && next < at + 5100 * US);
  WANT(gw_predict_next(&p, 100 * US, next) > next + 4900 * US); /* that one has come, and is not known yet */
  WANT(gw_predict_next(&p, 5 * US, at) == 0); /* the deviation is too large */
  gw_predict_arrival(&p, at - MS);        /* back in time: ignored */
  WANT(gw_predict_next(&p, 100 * US, at) == next);

  gw_predict_arrival(&p, at += 9 * MS); /* a single late arrival */
  WANT(gw_predict_next(&p, 100 * US, at) != 0);
  gw_predict_arrival(&p, at += 2 * MS);
  gw_predict_arrival(&p, at += 9 * MS);
  gw_predict_arrival(&p, at += 7 * MS);
  WANT(gw_predict_next(&p, 100 * US, at) == 0); /* not periodic any more */

  WANT(in_time(false) >= 980 && in_time(true) >= 980);

  WANT(gw_predict_lead(&p, 500 * US) == 500 * US);
  for (int i = 0; i < 16; i++) gw_predict_takeover(&p, i == 7 ? 400 * US : 160 * US);
  uint64_t lead = gw_predict_lead(&p, 500 * US);
  WANT(lead > 200 * US && lead < 260 * US); /* a single slow takeover of sixteen is ignored */
  WANT(gw_predict_lead(&p, 100 * US) == 100 * US);
  for (int i = 0; i < 16; i++) gw_predict_takeover(&p, 300 * US);
  WANT(gw_predict_lead(&p, 500 * US) > 350 * US);

  at = 0;
  for (int i = 0; i < 7; i++) gw_predict_outcome(&p, false, at);
  WANT(!gw_predict_paused(&p, at)); /* too few outcomes */
  gw_predict_outcome(&p, false, at);
  WANT(gw_predict_paused(&p, at + 999 * MS) && !gw_predict_paused(&p, at + 1001 * MS));
  at += 2000 * MS;
  for (int i = 0; i < 8; i++) gw_predict_outcome(&p, false, at);
  WANT(gw_predict_paused(&p, at + 1999 * MS) && !gw_predict_paused(&p, at + 2001 * MS)); /* twice as long */
  at += 5000 * MS;
  for (int i = 0; i < 100; i++) gw_predict_outcome(&p, i % 4 != 0, at);
  WANT(!gw_predict_paused(&p, at)); /* three of four are enough */
  for (int i = 0; i < 16; i++) gw_predict_outcome(&p, true, at);
  for (int i = 0; i < 9; i++) gw_predict_outcome(&p, false, at);
  WANT(gw_predict_paused(&p, at + 999 * MS) && !gw_predict_paused(&p, at + 1001 * MS)); /* the pause starts again at one second */

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

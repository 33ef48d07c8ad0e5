/* SPDX-License-Identifier: Apache-2.0 */
/* What parking learns, with made-up numbers. */
#include "../predict.h"

#include <stdio.h>

#define MS 1000000ull
#define US 1000ull
#define WANT(what)                                                   \
  do {                                                               \
    if (!(what)) return printf("line %d: %s\n", __LINE__, #what), 1; \
  } while (0)

int main(void) {
  struct gw_predictor p = {0};
  uint64_t at = 1000 * MS;
  for (int i = 0; i < GW_ARRIVALS; i++) {
    WANT(gw_predict_next(&p, 100 * US) == 0); /* too few */
    gw_predict_arrival(&p, at += 5 * MS + (i % 3) * 20 * US);
  }
  uint64_t next = gw_predict_next(&p, 100 * US);
  WANT(next > at + 4900 * US && next < at + 5100 * US);
  WANT(gw_predict_next(&p, 5 * US) == 0); /* not so much in step */
  gw_predict_arrival(&p, at - MS);        /* back in time: nothing */
  WANT(gw_predict_next(&p, 100 * US) == next);

  gw_predict_arrival(&p, at += 9 * MS); /* one that was late */
  WANT(gw_predict_next(&p, 100 * US) != 0);
  gw_predict_arrival(&p, at += 2 * MS);
  gw_predict_arrival(&p, at += 9 * MS);
  gw_predict_arrival(&p, at += 7 * MS);
  WANT(gw_predict_next(&p, 100 * US) == 0); /* out of step */

  WANT(gw_predict_lead(&p, 500 * US) == 500 * US);
  for (int i = 0; i < 16; i++) gw_predict_takeover(&p, i == 7 ? 400 * US : 160 * US);
  uint64_t lead = gw_predict_lead(&p, 500 * US);
  WANT(lead > 200 * US && lead < 260 * US); /* one slow one of sixteen is chance */
  WANT(gw_predict_lead(&p, 100 * US) == 100 * US);
  for (int i = 0; i < 16; i++) gw_predict_takeover(&p, 300 * US);
  WANT(gw_predict_lead(&p, 500 * US) > 350 * US);

  at = 0;
  for (int i = 0; i < 7; i++) gw_predict_outcome(&p, false, at);
  WANT(!gw_predict_resting(&p, at)); /* too few to judge */
  gw_predict_outcome(&p, false, at);
  WANT(gw_predict_resting(&p, at + 999 * MS) && !gw_predict_resting(&p, at + 1001 * MS));
  at += 2000 * MS;
  for (int i = 0; i < 8; i++) gw_predict_outcome(&p, false, at);
  WANT(gw_predict_resting(&p, at + 1999 * MS) && !gw_predict_resting(&p, at + 2001 * MS)); /* twice as long */
  at += 5000 * MS;
  for (int i = 0; i < 100; i++) gw_predict_outcome(&p, i % 4 != 0, at);
  WANT(!gw_predict_resting(&p, at)); /* three of four is good enough */
  for (int i = 0; i < 16; i++) gw_predict_outcome(&p, true, at);
  for (int i = 0; i < 9; i++) gw_predict_outcome(&p, false, at);
  WANT(gw_predict_resting(&p, at + 999 * MS) && !gw_predict_resting(&p, at + 1001 * MS)); /* forgiven */

  WANT(gw_predict_early(&p, 10 * MS) < 100 * US);
  WANT(gw_predict_early(&p, 30 * US) == 10 * US); /* no more than a third of it is spent awake */
  gw_predict_woke(&p, 300 * US);
  for (int i = 0; i < 100; i++) gw_predict_woke(&p, 10 * US);
  WANT(gw_predict_early(&p, 10 * MS) > 200 * US); /* one in a hundred is not forgotten */
  for (int i = 0; i < 1000; i++) gw_predict_woke(&p, 10 * US);
  WANT(gw_predict_early(&p, 10 * MS) < 100 * US); /* and not for ever remembered */
  gw_predict_woke(&p, 50 * MS);
  WANT(gw_predict_early(&p, 10 * MS) < 100 * US); /* nobody can make up for that */
  return 0;
}

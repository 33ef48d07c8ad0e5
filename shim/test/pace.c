/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on a device that is reckoned, not run: streams beside each other, each of
 * which takes the same time for every command. Linked with the shim's own files.
 *
 *     pace STREAMS MICROSECONDS GRAIN LATER BATCH   says how many were in flight at most,
 *                                                   how often the bound was let go, and
 *                                                   how many commands there were to a mark
 *
 * LATER, unless 0: what they take after half a second, and then it runs for three.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../activity.h"
#include "../page.c"

#define STREAMS 16
static uint64_t busy_until[STREAMS];

static void *mark(void *ctx, void *stream) {
  uint64_t *m = malloc(sizeof *m);
  *m = *(uint64_t *)stream;
  return (void)ctx, m;
}
static int reached(void *m) { return gw_now() >= *(uint64_t *)m; }
static int markable(void *ctx, void *stream) { return (void)ctx, (void)stream, 1; }
static const struct gw_runtime runtime = {"none", 8, mark, reached, free, markable};

static uint64_t in_flight(uint64_t took) {
  uint64_t n = 0, now = gw_now();
  for (int i = 0; i < STREAMS; i++) n += busy_until[i] > now ? (busy_until[i] - now + took - 1) / took : 0;
  return n;
}

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  int streams = atoi(argv[1]);
  uint64_t took = strtoull(argv[2], NULL, 10) * 1000, later = strtoull(argv[4], NULL, 10) * 1000;
  uint64_t change = gw_now() + GW_SECOND_NS / 2, end = gw_now() + (later ? 3 : 1) * GW_SECOND_NS, most = 0;
  next_look = ~0ull; /* nobody finds out that there is no daemon */
  gw_attached = 1;
  gw_shared.page = (struct gw_page){.magic = GW_MAGIC, .bound = 16, .grain_us = (uint32_t)atoi(argv[3]), .batch = (uint32_t)atoi(argv[5])};
  for (int i = 0; gw_now() < end; i = (i + 1) % streams) {
    gw_pass p;
    uint64_t *stream = &busy_until[i];
    if (!gw_enter(&p, &runtime, NULL, stream)) return 1;
    uint64_t now = gw_now();
    if (later && now > change) took = later;
    *stream = (*stream > now ? *stream : now) + took;
    gw_leave(&p, true);
    if (in_flight(took) > most) most = in_flight(took);
  }
  printf("%llu %llu %.2f\n", (unsigned long long)most, (unsigned long long)gw_act.overruns,
         (double)gw_act.launched / (double)gw_act.marks_made);
  return 0;
}

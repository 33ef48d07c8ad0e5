/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on a simulated device: parallel streams, each of which takes the same time for
 * every command. Linked with the shim's own files, with a simulated clock, so a busy machine
 * gets the same numbers as an idle one.
 *
 *     pace STREAMS MICROSECONDS GRAIN LATER BATCH GAP
 *
 * prints the most commands in flight, the number of overruns, the commands per mark, and the
 * median duration of a burst in us.
 *
 * LATER, unless 0: the duration of commands after half a second; the test then runs for three.
 * GAP, unless 0: milliseconds between bursts of a hundred.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../activity.h"
#include "../page.c"

/* Replace clock_gettime and gw_sleep (by the linker's --wrap). Reading the clock takes some
 * time, so a polling thread makes progress. A sleep ends late, sometimes very late. */
#define LOOK_NS 50
#define LAUNCH_NS 2000
#define LATE_NS 60000
#define VERY_LATE_NS 2000000
static uint64_t time_ns = GW_SECOND_NS, sleeps;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
  time_ns += LOOK_NS;
  *t = (struct timespec){(time_t)(time_ns / GW_SECOND_NS), (long)(time_ns % GW_SECOND_NS)};
  return (void)clock, 0;
}
void __wrap_gw_sleep(uint64_t ns) { time_ns += ns + (++sleeps % 50 ? LATE_NS : VERY_LATE_NS); }

#define STREAMS 16
static uint64_t busy_until[STREAMS];

static void *mark(void *ctx, void *stream) {
  uint64_t *m = malloc(sizeof *m);
  *m = *(uint64_t *)stream;
  return (void)ctx, m;
}
static int reached(void *m) { return gw_now() >= *(uint64_t *)m; }
static int markable(void *ctx, void *stream) { return (void)ctx, (void)stream, 1; }
static const struct gw_runtime runtime = {"none", 8, mark, reached, free, markable, NULL, NULL};

static uint64_t in_flight(uint64_t took) {
  uint64_t n = 0, now = gw_now();
  for (int i = 0; i < STREAMS; i++) n += busy_until[i] > now ? (busy_until[i] - now + took - 1) / took : 0;
  return n;
}

static uint64_t bursts[1000];
static int by_size(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Waits until all commands are done, and reports that to the gate. */
static uint64_t wait_for_all(void) {
  uint64_t last = 0, now = gw_now();
  for (int i = 0; i < STREAMS; i++) last = busy_until[i] > last ? busy_until[i] : last;
  if (last > now) gw_sleep(last - now);
  for (int i = 0; i < STREAMS; i++) gw_done(&runtime, NULL, &busy_until[i], gw_ticket(&runtime, NULL, &busy_until[i]));
  return last;
}

int main(int argc, char **argv) {
  if (argc != 7) return 2;
  int streams = atoi(argv[1]);
  uint64_t took = strtoull(argv[2], NULL, 10) * 1000, later = strtoull(argv[4], NULL, 10) * 1000;
  uint64_t change = gw_now() + GW_SECOND_NS / 2, end = gw_now() + (later ? 3 : 1) * GW_SECOND_NS, most = 0;
  next_check_ns = ~0ull; /* never check for a daemon */
  gw_attached = 1;
  gw_shared.page = (struct gw_page){.magic = GW_MAGIC, .bound = 16, .grain_us = (uint32_t)atoi(argv[3]), .batch = (uint32_t)atoi(argv[5])};
  uint64_t gap = strtoull(argv[6], NULL, 10) * GW_MS_NS, burst = gw_now();
  int count = 0, n = 0;
  for (int i = 0; gw_now() < end; i = (i + 1) % streams) {
    gw_pass p;
    if (gap && count++ == 100) {
      if (n < 1000) bursts[n++] = wait_for_all() - burst;
      gw_sleep(gap);
      count = 1;
      burst = gw_now();
    }
    uint64_t *stream = &busy_until[i];
    if (!gw_enter(&p, &runtime, NULL, stream)) return 1;
    uint64_t now = time_ns += LAUNCH_NS;
    if (later && now > change) took = later;
    *stream = (*stream > now ? *stream : now) + took;
    gw_leave(&p, true);
    if (in_flight(took) > most) most = in_flight(took);
  }
  qsort(bursts, (size_t)n, sizeof bursts[0], by_size);
  printf("%llu %llu %.2f %llu\n", (unsigned long long)most, (unsigned long long)gw_act.overruns,
         (double)gw_act.launched / (double)gw_act.marks_made, (unsigned long long)bursts[n / 2] / 1000);
  return 0;
}

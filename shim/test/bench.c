/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the cost of the gate in nanoseconds per call. Linked with the shim's own files and
 * a runtime that does nothing. Not part of the tests. From the folder above:
 *
 *     cc -std=gnu11 -O2 -fvisibility=hidden -o /tmp/bench test/bench.c $(ls *.c | grep -v page.c) -pthread
 *     /tmp/bench
 *
 * The page is ordinary memory, set up as if there were a daemon.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "../late.h"
#include "../page.c"

/* Requests enter at once: the commands are only counted. */
static uint64_t map_nothing(void *area) { return (void)area, 0; }
static bool put_nothing(void *stream, uint64_t word, uint32_t n) { return (void)stream, (void)word, (void)n, false; }
static const struct gw_late_runtime late = {map_nothing, put_nothing};

static void *mark(void *ctx, void *stream) { return (void)ctx, (void)stream, (void *)1; }
static int reached(void *m) { return (void)m, 1; }
static void drop(void *m) { (void)m; }
static int markable(void *ctx, void *stream) { return (void)ctx, (void)stream, 1; }
static const struct gw_runtime none = {"none", 8, mark, reached, drop, markable, NULL, NULL};

static const uint64_t times = 20000000;

#define TIME(what, ...)                                                                    \
  do {                                                                                     \
    uint64_t best = ~0ull;                                                                 \
    for (int round = 0; round < 5; round++) {                                              \
      uint64_t began = gw_now();                                                           \
      for (uint64_t i = 0; i < times / 5; i++) {                                           \
        __VA_ARGS__;                                                                       \
      }                                                                                    \
      uint64_t took = gw_now() - began;                                                    \
      if (took < best) best = took;                                                        \
    }                                                                                      \
    printf("%-52s %6.2f ns\n", what, (double)best / (double)(times / 5));                  \
  } while (0)

/* The cost of waking a sleeping thread, by a write to an eventfd and by a hint. */
#define WAKES 2000
static void *sleeper(void *unused) {
  uint64_t n;
  struct pollfd p = {.fd = doorbell, .events = POLLIN};
  while (poll(&p, 1, -1) == 1 && read(doorbell, &n, sizeof n) == sizeof n) {}
  return unused;
}

static int by_size(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static void wakes(void) {
  static uint64_t took[2][WAKES];
  pthread_t thread;
  uint64_t one = 1;
  doorbell = eventfd(0, EFD_NONBLOCK);
  if (doorbell < 0 || fcntl(doorbell, F_SETFL, GW_DOORBELL_FLAGS) || pthread_create(&thread, NULL, sleeper, NULL)) return;
  status.status.asleep = 1;
  for (int i = 0; i < 2 * WAKES; i++) { /* alternating, so that both have the same conditions */
    usleep(200);
    uint64_t began = gw_now();
    if (i % 2) gw_hint(GW_HINT_PRIORITY, 1);
    else if (write(doorbell, &one, sizeof one) < 0) return;
    took[i % 2][i / 2] = gw_now() - began;
  }
  for (int i = 0; i < 2; i++) {
    qsort(took[i], WAKES, sizeof took[i][0], by_size);
    printf("%-52s %6.2f us p50, %6.2f us p90\n", i ? "hint, the daemon asleep" : "a bare write to an eventfd, its reader asleep",
           (double)took[i][WAKES / 2] / 1e3, (double)took[i][WAKES * 9 / 10] / 1e3);
  }
  printf("%-52s %6.2f x\n", "ratio of the two", (double)took[1][WAKES / 2] / (double)took[0][WAKES / 2]);
}

int main(void) {
  gw_pass p;
  void *stream = &p;
  TIME("an empty loop", __asm__ volatile("" ::: "memory"));
  TIME("gate check alone, no daemon", __asm__ volatile("" ::"r"(gw_enter(&p, &none, NULL, stream)) : "memory"));
  next_check_ns = ~0ull; /* never check for a daemon */
  gw_shared.page.gate = GW_GATE_OPEN;
  gw_attached = 1;
  TIME("gate check alone, open", __asm__ volatile("" ::"r"(gw_enter(&p, &none, NULL, stream)) : "memory"));
  TIME("gate check and count (enter, leave)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true));
  TIME("launch and wait (enter, leave, ticket, done)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true);
       gw_done(&none, NULL, stream, gw_ticket(&none, NULL, stream)));
  gw_shared.page.late_entry = GW_LATE_AUTO;
  TIME("late entry (enter, late, leave)", gw_enter(&p, &none, NULL, stream);
       if (gw_late_wanted()) gw_late_command(&late, GW_LATE_KERNEL, NULL, stream, 1); gw_leave(&p, true));
  TIME("late entry, launch and wait", gw_enter(&p, &none, NULL, stream);
       if (gw_late_wanted()) gw_late_command(&late, GW_LATE_KERNEL, NULL, stream, 1); gw_leave(&p, true);
       uint64_t ticket = gw_ticket(&none, NULL, stream); gw_late_waits(); gw_done(&none, NULL, stream, ticket));
  gw_shared.page.late_entry = GW_LATE_OFF;
  gw_shared.page.bound = 16;
  gw_shared.page.batch = 8;
  TIME("bound 16 in batches of 8 (enter, leave)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true));
  gw_shared.page.bound = 1;
  TIME("bound 1 (enter, leave)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true));
  TIME("hint, the daemon awake", gw_hint(GW_HINT_PRIORITY, 1));
  wakes();
  return 0;
}

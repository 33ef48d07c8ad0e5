/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gate costs, in nanoseconds a call: linked with the shim's own files
 * and a runtime that does nothing. Not part of the tests; from this folder:
 *
 *     cc -std=gnu11 -O2 -fvisibility=hidden -o /tmp/bench test/bench.c $(ls *.c | grep -v page.c)
 *     /tmp/bench
 *
 * The page is ordinary memory, as if there were a daemon.
 */
#include <stdio.h>

#include "../page.c"

static void *mark(void *ctx, void *stream) { return (void)ctx, (void)stream, (void *)1; }
static int reached(void *m) { return (void)m, 1; }
static void drop(void *m) { (void)m; }
static int markable(void *ctx, void *stream) { return (void)ctx, (void)stream, 1; }
static const struct gw_runtime none = {"none", 8, mark, reached, drop, markable};

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

int main(void) {
  gw_pass p;
  void *stream = &p;
  TIME("an empty loop", __asm__ volatile("" ::: "memory"));
  TIME("gate check alone, no daemon", __asm__ volatile("" ::"r"(gw_enter(&p, &none, NULL, stream)) : "memory"));
  next_look = ~0ull; /* nobody finds out */
  gw_shared.page.gate = GW_OPEN;
  gw_attached = 1;
  TIME("gate check alone, open", __asm__ volatile("" ::"r"(gw_enter(&p, &none, NULL, stream)) : "memory"));
  TIME("gate check and count (enter, leave)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true));
  TIME("launch and wait (enter, leave, ticket, done)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true);
       gw_done(&none, NULL, stream, gw_ticket(&none, NULL, stream)));
  gw_shared.page.bound = 16;
  gw_shared.page.batch = 8;
  TIME("bound 16 in batches of 8 (enter, leave)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true));
  gw_shared.page.bound = 1;
  TIME("bound 1 (enter, leave)", gw_enter(&p, &none, NULL, stream); gw_leave(&p, true));
  TIME("hint, the daemon awake", gw_hint(GW_HINT_PRIORITY, 1));
  return 0;
}

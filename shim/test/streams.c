/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program with many busy streams, on a runtime that has no device. Linked with the shim's own
 * files.
 *
 *     streams COUNT
 *
 * It launches on all streams of two contexts and waits for them in the ways that a program has. After
 * each wait the counters must show what is done, and nothing more.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../activity.h"

static void *mark(void *ctx, void *stream) { return (void)ctx, (void)stream, NULL; }
static int reached(void *m) { return (void)m, 0; }
static void drop(void *m) { (void)m; }
static int markable(void *ctx, void *stream) { return (void)ctx, (void)stream, 1; }
static int idle(void *ctx, void *stream) { return (void)ctx, (void)stream, -1; }
static const struct gw_runtime runtime = {"none", 8, mark, reached, drop, markable, idle, NULL};

static char contexts[2];
static void **streams;
static int count;

/* Half of the streams are of the first context. */
static void *context_of(int i) { return &contexts[i % 2]; }

static void launch(void) {
  for (int i = 0; i < count; i++) {
    gw_pass pass;
    if (gw_enter(&pass, &runtime, context_of(i), streams[i])) gw_leave(&pass, true);
  }
}

static void wait_for(void *ctx, void *stream) { gw_done(&runtime, ctx, stream, gw_ticket(&runtime, ctx, stream)); }
static void wait_for_streams(void) {
  for (int i = 0; i < count; i++) wait_for(GW_ALL, streams[i]);
}
static void wait_for_context(void) { wait_for(&contexts[0], GW_ALL); }
static void wait_for_other(void) { wait_for(&contexts[1], GW_ALL); }
static void destroy_streams(void) {
  for (int i = 0; i < count; i++) gw_forget(&runtime, GW_ALL, streams[i]);
}
static void destroy_context(void) { gw_forget(&runtime, &contexts[0], GW_ALL); }
static void destroy_other(void) { gw_forget(&runtime, &contexts[1], GW_ALL); }

static void check(const char *when, uint64_t in_flight) {
  uint64_t now = gw_act.launched - gw_act.completed;
  if (now == in_flight && gw_act.ready == (in_flight != 0)) return;
  printf("%s: %lu of %d commands in flight, ready %d; want %lu\n", when, now, count, gw_act.ready, in_flight);
  exit(1);
}

int main(int argc, char **argv) {
  count = argc > 1 ? atoi(argv[1]) : 0;
  streams = calloc((size_t)count, sizeof *streams);
  for (int i = 0; i < count; i++) streams[i] = malloc(600 + (size_t)rand() % 2000);
  uint64_t half = (uint64_t)count / 2, all = 2 * half;
  /* A table can hold so many streams; of more only contexts are followed. */
  if (count <= 1000) {
    for (int round = 0; round < 5; round++) {
      launch(), check("launched", all);
      wait_for_streams(), check("waited for the streams", 0);
    }
    launch(), destroy_streams(), check("destroyed the streams", 0);
  }
  launch(), check("launched", all);
  wait_for_context(), check("waited for a context", half);
  wait_for_other(), check("waited for the other", 0);
  launch();
  destroy_context(), check("destroyed a context", half);
  destroy_other(), check("destroyed the other", 0);
  printf("ok launched=%lu\n", gw_act.launched);
  return 0;
}

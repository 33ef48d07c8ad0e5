/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that use all functions of the gate at once, with a runtime that has no device, while
 * the test closes and opens the gate. Linked with the shim's own files. At the end all
 * counters must agree.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "../activity.h"

static int marks; /* created and not dropped */
static void *mark(void *ctx, void *stream) {
  (void)ctx, (void)stream;
  uint64_t *m = malloc(sizeof *m);
  *m = gw_now() + (uint64_t)(rand() % 50000);
  __atomic_fetch_add(&marks, 1, __ATOMIC_RELAXED);
  return m;
}
static int reached(void *m) { return gw_now() >= *(uint64_t *)m; }
static void drop(void *m) {
  __atomic_fetch_sub(&marks, 1, __ATOMIC_RELAXED);
  free(m);
}
static int markable(void *ctx, void *stream) { return (void)ctx, (uintptr_t)stream % 7 != 3; }
static const struct gw_runtime runtime = {"none", 8, mark, reached, drop, markable, NULL, NULL};

static int stop;

static void *run(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
    void *ctx = (void *)(uintptr_t)(1 + rand_r(&seed) % 3);
    void *stream = (void *)(uintptr_t)(4096 + 8 * (rand_r(&seed) % 400)); /* more streams than the table has slots */
    gw_pass pass;
    if (gw_enter(&pass, &runtime, ctx, stream)) gw_leave(&pass, rand_r(&seed) % 10 != 0);
    switch (rand_r(&seed) % 40) {
      case 0: gw_done(&runtime, ctx, stream, gw_ticket(&runtime, ctx, stream)); break;
      case 1: gw_done(&runtime, ctx, GW_ALL, gw_ticket(&runtime, ctx, GW_ALL)); break;
      case 2: gw_forget(&runtime, ctx, stream); break;
      case 3: rand_r(&seed) % 20 ? (void)0 : gw_forget(&runtime, ctx, GW_ALL); break;
      case 4: gw_capture_begin(&runtime, ctx, stream), gw_capture_end(&runtime, ctx, stream); break;
      case 6: gw_destroying(&runtime, GW_ALL, stream); break;
      case 7: gw_forget_before(&runtime, ctx, stream, gw_suspend(&runtime, ctx, stream)); break;
      case 5: gw_hint(GW_HINT_BEGIN + (uint32_t)rand_r(&seed) % 2, rand_r(&seed) % 100); break;
    }
  }
  return NULL;
}

int main(void) {
  enum { THREADS = 6 };
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, run, (void *)(i + 1));
  getchar(); /* until the test writes a line */
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  gw_forget(&runtime, GW_ALL, GW_ALL);
  struct gw_activity *a = &gw_act;
  if (a->launched == 0 || a->launched != a->completed || a->untracked || a->exempt || a->held || a->entering || a->ready ||
      a->marks_set || marks || a->destroyed || a->more || gw_captures) {
    printf("launched %lu, completed %lu, untracked %lu, exempt %lu, held %u, entering %u, ready %d, marks %u and %d\n",
           a->launched, a->completed, a->untracked, a->exempt, a->held, a->entering, a->ready, a->marks_set, marks);
    return 1;
  }
  printf("ok sum=0\n");
  return 0;
}

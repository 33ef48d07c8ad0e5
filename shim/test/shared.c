/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program, for fakecuda.c, that is one of several users of its primary context. It prints
 * what it has done, and goes on when it reads a line.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned U;
int cuInit(U), cuStreamCreate(void **, U), cuStreamSynchronize(void *), cuStreamDestroy_v2(void *);
int cuLaunchKernel(void *, U, U, U, U, U, U, U, void *, void **, void **);
int cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int), cuDevicePrimaryCtxReset_v2(int);
int cuCtxCreate_v2(void **, U, int), cuCtxSetCurrent(void *), cuCtxAttach(void **, U), cuCtxDetach(void *);
int cuCtxFromGreenCtx(void **, void *), cuGreenCtxStreamCreate(void **, void *, U, int), cuGreenCtxDestroy(void *);
void fakePrimaryUsers(int);

static void check(int result) {
  if (!result) return;
  printf("a call failed: %d\n", result);
  exit(1);
}

static void say(const char *what) {
  char line[8];
  printf("%s\n", what);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(1);
}

static int over, ended, quick_ended;
static void last(uint64_t *words) {
  (void)words;
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) usleep(100);
  __atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
}
static void quick(uint64_t *words) {
  (void)words;
  __atomic_add_fetch(&quick_ended, 1, __ATOMIC_RELEASE);
}

static void launch(void *stream, void (*kernel)(uint64_t *)) {
  uint64_t words = 0;
  void *params[] = {&words};
  check(cuLaunchKernel((void *)kernel, 1, 2, 3, 4, 5, 6, 7, stream, params, NULL));
}

/* Launches a kernel and does not wait for it by a call. */
static void launch_quick(void *stream) {
  int before = __atomic_load_n(&quick_ended, __ATOMIC_ACQUIRE);
  launch(stream, quick);
  while (__atomic_load_n(&quick_ended, __ATOMIC_ACQUIRE) == before) usleep(100);
}

int main(void) {
  void *primary, *other, *green = malloc(8), *of_green, *stream, *second, *third;
  check(cuInit(0));
  check(cuDevicePrimaryCtxRetain(&primary, 0));
  check(cuCtxSetCurrent(primary));
  check(cuStreamCreate(&stream, 1));
  fakePrimaryUsers(4); /* this program twice, another module and the green context */

  launch(stream, last);
  check(cuDevicePrimaryCtxRelease_v2(0));
  say("released");
  if (cuDevicePrimaryCtxReset_v2(1) == 0) say("reset another device");
  check(cuCtxFromGreenCtx(&of_green, green));
  check(cuCtxSetCurrent(of_green));
  check(cuStreamCreate(&second, 1));
  launch_quick(second);
  check(cuGreenCtxStreamCreate(&third, green, 1, 0));
  launch_quick(third);
  check(cuCtxSetCurrent(primary));
  check(cuGreenCtxDestroy(green));
  say("destroyed the green context");

  check(cuCtxCreate_v2(&other, 0, 0));
  check(cuStreamCreate(&second, 1)); /* in another context now, with the handle of a stream that has ended */
  launch_quick(second);
  check(cuCtxSetCurrent(primary));
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE)) usleep(100);
  check(cuDevicePrimaryCtxRelease_v2(0));
  say("released again");
  check(cuDevicePrimaryCtxRelease_v2(0));
  say("released for good");
  check(cuCtxSetCurrent(other));
  check(cuStreamSynchronize(second));
  say("waited for the other context");

  check(cuCtxAttach(&other, 0));
  check(cuStreamCreate(&third, 1));
  launch_quick(third);
  check(cuCtxDetach(other));
  say("detached");
  check(cuCtxDetach(other));
  say("detached for good");
  printf("ok done\n");
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program that knows when its requests arrive, for fakecuda.c.
 *
 *     parkwork told N     N requests, one every 20 ms, each announced 10 ms ahead
 *     parkwork slow N     the same, and a launch takes 300 us
 *     parkwork silent N   N requests without announcements
 *     parkwork wrong N    N announcements of requests that do not arrive
 *     parkwork waits      while kernels are parked, makes calls that wait for all work
 *     parkwork stopped N  N requests, and one that is announced just before the process is stopped
 *     parkwork busy N     for N ms, is ready whenever the shim has compiled its kernel
 *     parkwork ends       exits while the shim compiles its kernel
 *     parkwork unasked    waits for a line, and is idle after it
 *
 * A further number multiplies those 20 and 10 ms.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../giveway.h"

typedef unsigned U;
static int (*cuInit)(U), (*cuStreamCreate)(void **, U), (*cuStreamSynchronize)(void *), (*cuCtxSynchronize)(void);
static int (*cuLaunchKernel)(void *, U, U, U, U, U, U, U, void *, void **, void **);
static int (*cuCtxDestroy)(void *), (*cuCtxGetCurrent)(void **);
static void (*fakeParks)(uint64_t *, uint64_t *);
static void *stream;
static uint64_t done;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void until(int64_t at) {
  struct timespec t = {at / 1000000000ll, at % 1000000000ll};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
}

static void fail(const char *why) {
  printf("%s\n", why);
  fflush(stdout);
  _exit(1);
}

static void kernel(uint64_t *words) { __atomic_add_fetch((uint64_t *)words[0], 1, __ATOMIC_RELAXED); }

static void launch(void) {
  uint64_t count = 1, address = (uint64_t)&done;
  void *params[] = {&count, &address};
  if (cuLaunchKernel((void *)kernel, 1, 2, 3, 4, 5, 6, 7, stream, params, NULL)) fail("launch");
}

static void synchronize(void) {
  if (cuStreamSynchronize(stream)) fail("synchronize");
}

static void request(void) {
  launch();
  synchronize();
}

/* The shim compiles on its own thread. That thread waits here until the program is in the state
 * that the shim is to find. */
static int *fakeCompiled, *fakeLoaded;
static int compiles; /* a compilation is in progress */
static void compiling(void) {
  __atomic_store_n(&compiles, 1, __ATOMIC_RELEASE);
  while (__atomic_load_n(&compiles, __ATOMIC_ACQUIRE)) usleep(100);
}
static int it_compiles(void) { return __atomic_load_n(&compiles, __ATOMIC_ACQUIRE); }
static void go_on_compiling(void) { __atomic_store_n(&compiles, 0, __ATOMIC_RELEASE); }

static int compiled(void) { return __atomic_load_n(fakeCompiled, __ATOMIC_ACQUIRE); }
static int64_t began;
static void tell_compiled(void) {
  int loaded = __atomic_load_n(fakeLoaded, __ATOMIC_RELAXED), ms = (int)((now() - began) / 1000000);
  printf("ok compiled=%d loaded=%d ms=%d\n", compiled(), loaded, ms);
  fflush(stdout);
}

static void busy(int ms) {
  while (now() < began + ms * 1000000ll) {
    giveway_expect_ns(now() + 15000000); /* so that the shim prepares the context */
    usleep(2000);
    if (!it_compiles()) continue;
    int before = compiled();
    launch();
    go_on_compiling();
    while (compiled() == before) usleep(100);
    synchronize();
  }
}

static void *soon(void *unused) {
  usleep(20000);
  go_on_compiling();
  return unused;
}
static void ends(void) {
  pthread_t t;
  atexit(tell_compiled); /* registered before the shim's handler, so it runs after it */
  giveway_expect_ns(now() + 15000000);
  while (!it_compiles()) usleep(100);
  if (pthread_create(&t, NULL, soon, NULL)) fail("thread");
  exit(0);
}

static void unasked(void) {
  launch();
  giveway_expect_ns(now() + 15000000);
  usleep(20000);
  printf("started\n");
  fflush(stdout);
  getchar();
  synchronize();
  for (int i = 0; i < 10; i++) {
    giveway_expect_ns(now() + 15000000);
    usleep(20000);
  }
}

/* Tests of the compilation. Returns whether `what` is one of them. */
static int about_compiling(const char *what, int n) {
  began = now();
  if (strcmp(what, "busy") == 0) busy(n);
  else if (strcmp(what, "ends") == 0) ends();
  else if (strcmp(what, "unasked") == 0) unasked();
  else return 0;
  tell_compiled();
  return 1;
}

int main(int argc, char **argv) {
  const char *what = argv[1];
  int n = argc > 2 ? atoi(argv[2]) : 1;
  int64_t period = 20000000ll * (argc > 3 ? atoi(argv[3]) : 1), waited = 0;
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *ctx;
  if (!lib) fail("no driver");
#define FIND(name, symbol) *(void **)&name = dlsym(lib, symbol)
  FIND(cuInit, "cuInit");
  FIND(cuStreamCreate, "cuStreamCreate");
  FIND(cuStreamSynchronize, "cuStreamSynchronize");
  FIND(cuCtxSynchronize, "cuCtxSynchronize");
  FIND(cuLaunchKernel, "cuLaunchKernel");
  FIND(cuCtxDestroy, "cuCtxDestroy_v2");
  FIND(cuCtxGetCurrent, "cuCtxGetCurrent");
  FIND(fakeParks, "fakeParks");
  FIND(fakeCompiled, "fakeCompiled");
  FIND(fakeLoaded, "fakeLoaded");
  uint64_t (*parks_early)(void) = (uint64_t (*)(void))dlsym(lib, "fakeParksEarly");
  if (strcmp(what, "slow") == 0) *(unsigned *)dlsym(lib, "fakeLaunchUs") = 300;
  if (strcmp(what, "busy") == 0 || strcmp(what, "ends") == 0) *(void (**)(void))dlsym(lib, "fakeCompiling") = compiling;
  cuInit(0);
  cuStreamCreate(&stream, 1);
  request();
  if (about_compiling(what, n)) return 0;
  int64_t at = now() + period;
  for (int i = 0; i < n; i++, at += period) {
    if (strcmp(what, "silent") != 0) {
      until(at - period / 2);
      giveway_expect_ns(at);
    }
    until(at);
    if (strcmp(what, "wrong") != 0 && strcmp(what, "waits") != 0) request();
  }
  if (strcmp(what, "waits") == 0) { /* kernels are parked now, for long */
    int64_t from = now();
    cuCtxSynchronize();
    waited = now() - from;
    giveway_expect_ns(now() + 2000000);
    until(now() + 3000000);
    from = now();
    cuCtxGetCurrent(&ctx);
    cuCtxDestroy(ctx);
    if (now() - from > waited) waited = now() - from;
  }
  uint64_t ended, late, before = 0;
  if (strcmp(what, "stopped") == 0) {
    usleep(100000);
    fakeParks(&before, &late);
    giveway_expect_ns(now() + 20000000);
    usleep(5000);
    kill(getpid(), SIGSTOP);
    usleep(150000);
  }
  usleep(20000);
  fakeParks(&ended, &late);
  printf("ok sum=%llx ended=%llu late=%llu before=%llu early=%llu waited=%llu\n", (unsigned long long)done, (unsigned long long)ended,
         (unsigned long long)late, (unsigned long long)before, (unsigned long long)parks_early(), (unsigned long long)waited / 1000000);
  return 0;
}

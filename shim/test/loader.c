/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program whose plugin is linked with the CUDA driver, for fakecuda.c. While the plugin is loaded
 * or unloaded, the thread that does it holds the loader's lock and waits for a worker, which makes
 * its first CUDA calls then. Built twice: as the plugin (PLUGIN) and as the program.
 *
 *     loader PLUGIN begin   the plugin's constructor waits for the worker
 *     loader PLUGIN end     its destructor does
 *     loader PLUGIN again   its destructor does, and the plugin is loaded and unloaded again
 *
 * The worker serves at least 30 requests, and goes on until standard input ends.
 */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef PLUGIN
typedef unsigned U;
int cuInit(U), cuStreamCreate(void **, U), cuStreamSynchronize(void *), cuStreamDestroy_v2(void *);
int cuEventCreate(void **, U), cuEventRecord(void *, void *), cuEventSynchronize(void *), cuEventDestroy_v2(void *);
int cuLaunchKernel(void *, U, U, U, U, U, U, U, void *, void **, void **);
int cuDevicePrimaryCtxRelease_v2(int);

static pthread_t worker;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int wanted;
static uint64_t done;

static void kernel(uint64_t *words) { __atomic_add_fetch((uint64_t *)words[0], 1, __ATOMIC_RELAXED); }

/* Requests that may enter late, at intervals that can be predicted. */
static void request(void *stream) {
  uint64_t words = 1, address = (uint64_t)&done;
  void *params[] = {&words, &address}, *event;
  for (int i = 0; i < 20; i++) cuLaunchKernel((void *)kernel, 1, 2, 3, 4, 5, 6, 7, stream, params, NULL);
  cuEventCreate(&event, 0);
  cuEventRecord(event, stream);
  cuEventSynchronize(event);
  cuEventDestroy_v2(event);
  cuStreamSynchronize(stream);
  usleep(5000);
}

static int input_ended(void) {
  struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
  return poll(&input, 1, 0) != 0;
}

static void *work(void *unused) {
  pthread_mutex_lock(&lock);
  while (!wanted) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  void *stream;
  if (cuInit(0) || cuStreamCreate(&stream, 1)) abort();
  for (int i = 0; i < 30 || !input_ended(); i++) request(stream);
  cuStreamDestroy_v2(stream);
  cuDevicePrimaryCtxRelease_v2(0);
  return unused;
}

static void finish(void) {
  pthread_mutex_lock(&lock);
  wanted = 1;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(worker, NULL);
  printf("launched %llu\n", (unsigned long long)done);
  fflush(stdout);
  wanted = 0;
}

static int begins(void) { return strcmp(getenv("WHEN"), "begin") == 0; }

__attribute__((constructor)) static void loaded(void) {
  pthread_create(&worker, NULL, work, NULL);
  if (begins()) finish();
}

__attribute__((destructor)) static void unloaded(void) {
  if (!begins()) finish();
}
#else
static void use(const char *plugin) {
  void *lib = dlopen(plugin, RTLD_NOW);
  if (!lib) {
    printf("%s\n", dlerror());
    exit(1);
  }
  dlclose(lib);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  setenv("WHEN", argv[2], 1);
  use(argv[1]);
  if (strcmp(argv[2], "again") == 0) use(argv[1]);
  printf("ok done\n");
  return 0;
}
#endif

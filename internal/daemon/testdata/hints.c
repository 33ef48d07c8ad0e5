/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program behind libgiveway.so that gives a hint now and then. Prints when it gave
 * each, in nanoseconds.
 *
 *     LD_PRELOAD=libgiveway.so hints COUNT PAUSE_US
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int command(void *arg, uint64_t number);

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int nothing(void *arg, uint64_t number) { return (void)arg, (void)number, 0; }

static void doze(long us) {
  struct timespec t = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&t, NULL);
}

int main(int argc, char **argv) {
  int (*hint)(uint32_t, int64_t) = (int (*)(uint32_t, int64_t))dlsym(RTLD_DEFAULT, "giveway_hint");
  int (*create)(void **, const char *) = (int (*)(void **, const char *))dlsym(RTLD_DEFAULT, "giveway_queue_create");
  int (*submit)(void *, command *, void *, uint64_t *) =
      (int (*)(void *, command *, void *, uint64_t *))dlsym(RTLD_DEFAULT, "giveway_queue_submit");
  if (argc != 3 || !hint || !create || !submit) return 2;
  /* A program that has launched something is one that is scheduled. */
  void *queue;
  if (create(&queue, NULL) || submit(queue, nothing, NULL, NULL)) return 1;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(0, &set);
  sched_setaffinity(0, sizeof set, &set); /* where it may not, it may be anywhere */
  doze(300000);
  int count = atoi(argv[1]);
  uint64_t *sent = calloc((size_t)count, sizeof *sent);
  for (int i = 0; sent && i < count; i++) {
    doze(atol(argv[2]));
    sent[i] = now();
    if (hint(2, i + 1)) return 1;
  }
  doze(200000);
  for (int i = 0; sent && i < count; i++) printf("%llu\n", (unsigned long long)sent[i]);
  return 0;
}

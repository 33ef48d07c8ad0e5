/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the biased lock: one thread owns it until another takes it, at any moment, and never
 * are two threads inside. Linked with bias.c and sys.c.
 *
 *     bias ROUNDS   prints "ok", or how many counts were lost
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "../bias.h"

enum { OTHERS = 2, TIMES = 3000 };

static gw_bias_t lock;
static volatile uint64_t count; /* deliberately not atomic */
static uint32_t begun;

static void many(void) {
  for (int i = 0; i < TIMES; i++) {
    gw_bias_lock(&lock);
    uint64_t before = count;
    for (volatile int n = i % 32; n; n--) {}
    count = before + 1;
    gw_bias_unlock(&lock);
  }
}

static void *owner(void *unused) {
  gw_bias_lock(&lock); /* first, so that this thread becomes the owner */
  gw_bias_unlock(&lock);
  __atomic_store_n(&begun, 1, __ATOMIC_RELEASE);
  many();
  return unused;
}

static void *other(void *spins) {
  while (!__atomic_load_n(&begun, __ATOMIC_ACQUIRE)) {}
  for (volatile uintptr_t n = (uintptr_t)spins; n; n--) {}
  many();
  return NULL;
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 1;
  uint64_t lost = 0;
  gw_bias_register();
  for (int r = 0; r < rounds; r++) {
    pthread_t threads[1 + OTHERS];
    lock = (gw_bias_t){0};
    count = begun = 0;
    for (int i = 0; i < OTHERS; i++) pthread_create(&threads[i], NULL, other, (void *)(uintptr_t)(rand() % 8000));
    pthread_create(&threads[OTHERS], NULL, owner, NULL);
    for (int i = 0; i <= OTHERS; i++) pthread_join(threads[i], NULL);
    lost += (1 + OTHERS) * TIMES - count;
  }
  if (lost) return printf("%llu counts lost\n", (unsigned long long)lost), 1;
  return puts("ok"), 0;
}

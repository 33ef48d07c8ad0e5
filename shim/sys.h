/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls, clocks and a lock, for a library that is loaded into other programs. They
 * leave errno unchanged, are no cancellation points, and use no symbol newer than glibc
 * 2.17.
 */
#ifndef GIVEWAY_SYS_H
#define GIVEWAY_SYS_H

#include <stdint.h>
#include <time.h>

#define GW_SECOND_NS 1000000000ull
#define GW_MS_NS 1000000ull

#pragma GCC visibility push(hidden)

/* Makes a system call and returns its result, or -errno. Unused arguments are 0. */
long gw_sys(long number, long a, long b, long c, long d, long e, long f);

#define GW_SYS_1(n, a) gw_sys(n, (long)(a), 0, 0, 0, 0, 0)
#define GW_SYS_2(n, a, b) gw_sys(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define GW_SYS_3(n, a, b, c) gw_sys(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)

static inline uint64_t gw_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * GW_SECOND_NS + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC: exact in about 20 ns, or with an error of a few ms in about 5 ns. */
static inline uint64_t gw_now(void) { return gw_clock(CLOCK_MONOTONIC); }
static inline uint64_t gw_now_coarse(void) { return gw_clock(CLOCK_MONOTONIC_COARSE); }

/* Sleeps for ns, or until a signal. */
void gw_sleep(uint64_t ns);

/*
 * Waits until *word differs from value, the word is woken, or CLOCK_MONOTONIC reaches
 * until_ns (0: no limit). shared says that other processes wake the word. Returns 0 or
 * -errno.
 */
long gw_futex_wait(uint32_t *word, uint32_t value, uint64_t until_ns, int shared);
void gw_futex_wake(uint32_t *word, int threads, int shared);

/* A lock that sleeps: 0 free, 1 held, 2 held with waiters. */
typedef struct {
  uint32_t word;
} gw_lock_t;

void gw_lock_wait(gw_lock_t *l);

static inline int gw_trylock(gw_lock_t *l) {
  uint32_t expected = 0;
  return __atomic_compare_exchange_n(&l->word, &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void gw_lock(gw_lock_t *l) {
  if (!gw_trylock(l)) gw_lock_wait(l);
}

static inline void gw_unlock(gw_lock_t *l) {
  if (__atomic_exchange_n(&l->word, 0, __ATOMIC_RELEASE) == 2) gw_futex_wake(&l->word, 1, 0);
}

#pragma GCC visibility pop

#endif

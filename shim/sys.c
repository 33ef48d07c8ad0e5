/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "sys.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

long gw_sys(long number, long a, long b, long c, long d, long e, long f) {
  int before = errno;
  long r = syscall(number, a, b, c, d, e, f);
  if (r == -1) r = -errno;
  errno = before;
  return r;
}

void gw_sleep(uint64_t ns) {
  struct timespec t = {(time_t)(ns / GW_SECOND_NS), (long)(ns % GW_SECOND_NS)};
  GW_SYS_2(SYS_nanosleep, &t, 0);
}

long gw_futex_wait(uint32_t *word, uint32_t value, uint64_t until_ns, int shared) {
  struct timespec t = {(time_t)(until_ns / GW_SECOND_NS), (long)(until_ns % GW_SECOND_NS)};
  long op = FUTEX_WAIT_BITSET | (shared ? 0 : FUTEX_PRIVATE_FLAG);
  long until = until_ns ? (long)&t : 0;
  return gw_sys(SYS_futex, (long)word, op, (long)value, until, 0, (long)FUTEX_BITSET_MATCH_ANY);
}

void gw_futex_wake(uint32_t *word, int threads, int shared) {
  GW_SYS_3(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), threads);
}

void gw_lock_wait(gw_lock_t *l) {
  for (int i = 0; i < 64; i++) {
    if (!__atomic_load_n(&l->word, __ATOMIC_RELAXED) && gw_trylock(l)) return;
  }
  while (__atomic_exchange_n(&l->word, 2, __ATOMIC_ACQUIRE)) gw_futex_wait(&l->word, 2, 0, 0);
}

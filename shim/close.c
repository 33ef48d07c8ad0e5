/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * Descriptors that the program closes, of which it may not know that they are ours. The
 * number is then another's, and we must not write to it. To ask the kernel before each
 * write would cost a fifth of what the write does; this costs two comparisons a call. A
 * program that closes by system calls of its own is noticed within a second.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "elf.h"
#include "page.h"
#include "sys.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define ONLY_ON_EXEC 4 /* CLOSE_RANGE_CLOEXEC */
#define MOST (1 << 20) /* descriptors to close one by one */

#define EXPORTED __attribute__((visibility("default")))

/* Those that come after ours; found early, so that no signal handler is the first to look. */
enum { CLOSE, DUP2, DUP3, CLOSE_RANGE, CLOSEFROM, CALLS };
static const char *const names[CALLS] = {"close", "dup2", "dup3", "close_range", "closefrom"};

static void *real(int call) {
  static void *known[CALLS];
  static bool looked[CALLS];
  if (!__atomic_load_n(&looked[call], __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&known[call], gw_elf_function_after(names[call]), __ATOMIC_RELAXED);
    __atomic_store_n(&looked[call], true, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&known[call], __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void find(void) {
  for (int i = 0; i < CALLS; i++) real(i);
}

/* Of a system call in place of a function that is not there. */
static int result(long r) {
  if (r >= 0) return (int)r;
  errno = (int)-r;
  return -1;
}

EXPORTED int close(int fd) {
  int (*f)(int) = (int (*)(int))real(CLOSE);
  gw_page_closing((unsigned)fd, (unsigned)fd);
  return f ? f(fd) : result(GW_SYS_1(SYS_close, fd));
}

EXPORTED int dup2(int from, int to) {
  int (*f)(int, int) = (int (*)(int, int))real(DUP2);
  int ours = from == to ? -1 : gw_page_closing((unsigned)to, (unsigned)to), r;
  if (f) r = f(from, to);
  else if (from == to) r = GW_SYS_2(SYS_fcntl, from, F_GETFD) < 0 ? result(-EBADF) : to;
  else r = result(GW_SYS_3(SYS_dup3, from, to, 0));
  if (r < 0 && ours >= 0) gw_page_not_closed(ours);
  return r;
}

EXPORTED int dup3(int from, int to, int flags) {
  int (*f)(int, int, int) = (int (*)(int, int, int))real(DUP3);
  int ours = gw_page_closing((unsigned)to, (unsigned)to);
  int r = f ? f(from, to, flags) : result(GW_SYS_3(SYS_dup3, from, to, flags));
  if (r < 0 && ours >= 0) gw_page_not_closed(ours);
  return r;
}

EXPORTED int close_range(unsigned first, unsigned last, int flags) {
  int (*f)(unsigned, unsigned, int) = (int (*)(unsigned, unsigned, int))real(CLOSE_RANGE);
  int ours = flags & ONLY_ON_EXEC ? -1 : gw_page_closing(first, last);
  int r = f ? f(first, last, flags) : result(GW_SYS_3(SYS_close_range, first, last, flags));
  if (r < 0 && ours >= 0) gw_page_not_closed(ours);
  return r;
}

EXPORTED void closefrom(int first) {
  void (*f)(int) = (void (*)(int))real(CLOSEFROM);
  unsigned from = first < 0 ? 0 : (unsigned)first;
  gw_page_closing(from, ~0u);
  if (f) {
    f(first);
  } else if (GW_SYS_3(SYS_close_range, from, ~0u, 0) < 0) {
    struct rlimit limit = {1024, 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t end = limit.rlim_cur < MOST ? limit.rlim_cur : MOST;
    for (rlim_t fd = from; fd < end; fd++) GW_SYS_1(SYS_close, fd);
  }
}

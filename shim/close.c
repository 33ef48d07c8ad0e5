/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * The program may close the doorbell's descriptor without knowing it. The number may then be
 * reused, and must not be written to. Asking the kernel before each write would cost a fifth
 * of the write itself; intercepting the calls that close costs two comparisons per call. If
 * the program closes descriptors by its own system calls, gw_page_check notices it within a
 * second.
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
#define CLOEXEC_ONLY 4    /* CLOSE_RANGE_CLOEXEC */
#define MAX_FDS (1 << 20) /* closed one by one where there is no other way */

#define EXPORTED __attribute__((visibility("default")))

/* The functions of these names in the libraries after this one. They are looked up early, so
 * that a signal handler is never the first to do it. */
enum { CLOSE, DUP2, DUP3, CLOSE_RANGE, CLOSEFROM, CALLS };
static const char *const names[CALLS] = {"close", "dup2", "dup3", "close_range", "closefrom"};

static void *next_function(int call) {
  static void *known[CALLS];
  static bool looked[CALLS];
  if (!__atomic_load_n(&looked[call], __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&known[call], gw_elf_function_after(names[call]), __ATOMIC_RELAXED);
    __atomic_store_n(&looked[call], true, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&known[call], __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void find(void) {
  for (int i = 0; i < CALLS; i++) next_function(i);
}

/* Returns the result of a system call that replaces a missing function. */
static int as_result(long r) {
  if (r >= 0) return (int)r;
  errno = (int)-r;
  return -1;
}

EXPORTED int close(int fd) {
  int (*f)(int) = (int (*)(int))next_function(CLOSE);
  gw_page_closing((unsigned)fd, (unsigned)fd);
  return f ? f(fd) : as_result(GW_SYS_1(SYS_close, fd));
}

EXPORTED int dup2(int from, int to) {
  int (*f)(int, int) = (int (*)(int, int))next_function(DUP2);
  int ours = from == to ? -1 : gw_page_closing((unsigned)to, (unsigned)to), r;
  if (f) r = f(from, to);
  else if (from == to) r = GW_SYS_2(SYS_fcntl, from, F_GETFD) < 0 ? as_result(-EBADF) : to;
  else r = as_result(GW_SYS_3(SYS_dup3, from, to, 0));
  if (r < 0 && ours >= 0) gw_page_not_closed(ours);
  return r;
}

EXPORTED int dup3(int from, int to, int flags) {
  int (*f)(int, int, int) = (int (*)(int, int, int))next_function(DUP3);
  int ours = gw_page_closing((unsigned)to, (unsigned)to);
  int r = f ? f(from, to, flags) : as_result(GW_SYS_3(SYS_dup3, from, to, flags));
  if (r < 0 && ours >= 0) gw_page_not_closed(ours);
  return r;
}

EXPORTED int close_range(unsigned first, unsigned last, int flags) {
  int (*f)(unsigned, unsigned, int) = (int (*)(unsigned, unsigned, int))next_function(CLOSE_RANGE);
  int ours = flags & CLOEXEC_ONLY ? -1 : gw_page_closing(first, last);
  int r = f ? f(first, last, flags) : as_result(GW_SYS_3(SYS_close_range, first, last, flags));
  if (r < 0 && ours >= 0) gw_page_not_closed(ours);
  return r;
}

EXPORTED void closefrom(int first) {
  void (*f)(int) = (void (*)(int))next_function(CLOSEFROM);
  unsigned from = first < 0 ? 0 : (unsigned)first;
  gw_page_closing(from, ~0u);
  if (f) {
    f(first);
  } else if (GW_SYS_3(SYS_close_range, from, ~0u, 0) < 0) {
    struct rlimit limit = {1024, 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t end = limit.rlim_cur < MAX_FDS ? limit.rlim_cur : MAX_FDS;
    for (rlim_t fd = from; fd < end; fd++) GW_SYS_1(SYS_close, fd);
  }
}

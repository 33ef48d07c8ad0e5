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

#define EXPORTED __attribute__((visibility("default")))

/* The C library's own, found early, so that no signal handler is the first to look. */
static struct {
  int (*close)(int);
  int (*dup2)(int, int);
  int (*dup3)(int, int, int);
  int (*close_range)(unsigned, unsigned, int);
  void (*closefrom)(int);
} real;

__attribute__((constructor)) static void find(void) {
#define FIND(name) *(void **)&real.name = gw_elf_function(#name)
  FIND(close);
  FIND(dup2);
  FIND(dup3);
  FIND(close_range);
  FIND(closefrom);
#undef FIND
}

/* Of a system call in place of a function that is not there, or not found yet. */
static int result(long r) {
  if (r >= 0) return (int)r;
  errno = (int)-r;
  return -1;
}

EXPORTED int close(int fd) {
  gw_page_closing((unsigned)fd, (unsigned)fd);
  return real.close ? real.close(fd) : result(GW_SYS_1(SYS_close, fd));
}

EXPORTED int dup2(int from, int to) {
  if (from != to) gw_page_closing((unsigned)to, (unsigned)to);
  if (real.dup2) return real.dup2(from, to);
  if (from == to) return GW_SYS_2(SYS_fcntl, from, F_GETFD) < 0 ? result(-EBADF) : to;
  return result(GW_SYS_3(SYS_dup3, from, to, 0));
}

EXPORTED int dup3(int from, int to, int flags) {
  if (from != to) gw_page_closing((unsigned)to, (unsigned)to);
  return real.dup3 ? real.dup3(from, to, flags) : result(GW_SYS_3(SYS_dup3, from, to, flags));
}

EXPORTED int close_range(unsigned first, unsigned last, int flags) {
  if (!(flags & ONLY_ON_EXEC)) gw_page_closing(first, last);
  return real.close_range ? real.close_range(first, last, flags) : result(GW_SYS_3(SYS_close_range, first, last, flags));
}

EXPORTED void closefrom(int first) {
  unsigned from = first < 0 ? 0 : (unsigned)first;
  gw_page_closing(from, ~0u);
  if (real.closefrom) {
    real.closefrom(first);
  } else if (GW_SYS_3(SYS_close_range, from, ~0u, 0) < 0) {
    struct rlimit limit = {1024, 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    for (rlim_t fd = from; fd < limit.rlim_cur; fd++) GW_SYS_1(SYS_close, fd);
  }
}

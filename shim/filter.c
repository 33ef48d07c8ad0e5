/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "filter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "activity.h"
#include "bias.h"
#include "elf.h"
#include "kfd.h"
#include "page.h"
#include "sys.h"

#ifndef PR_SET_NO_NEW_PRIVS
#define PR_SET_NO_NEW_PRIVS 38
#endif

/* The filters of a thread, as /proc shows them. Before Linux 5.9 it does not show their number. */
struct filters {
  bool known;    /* false: /proc could not be read, and there may be filters */
  bool no_room;  /* no descriptor was free to read them */
  uint32_t mode; /* 0: none */
  uint32_t count;
};

static struct filters at_load;
static uint32_t loaded; /* at_load is known */
/* The process that has loaded the library, or the child of its fork. 0: its filters are not known
 * to permit all calls. */
static long loaded_pid;

static long this_pid(void) { return gw_sys(SYS_getpid, 0, 0, 0, 0, 0, 0); }

/* Reads the number behind a name, if the text has it. */
static void find_number(const char *text, const char *name, uint32_t *number) {
  const char *at = strstr(text, name);
  if (!at) return;
  *number = 0;
  for (at += strlen(name); *at >= '0' && *at <= '9'; at++) *number = *number * 10 + (uint32_t)(*at - '0');
}

static struct filters read_filters(const char *path) {
  struct filters f = {0};
  enum { PART = 1024, LINE = 64 }; /* no line that is looked for is longer */
  char text[LINE + PART + 1];
  long fd = gw_sys(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0), n;
  f.no_room = fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM;
  if (fd < 0) return f;
  size_t kept = 0;
  while ((n = GW_SYS_3(SYS_read, fd, text + kept, PART)) > 0) {
    size_t end = kept + (size_t)n;
    text[end] = 0;
    find_number(text, "\nSeccomp:\t", &f.mode);
    find_number(text, "\nSeccomp_filters:\t", &f.count);
    /* A line that was cut off is read again with the next part. */
    kept = end < LINE ? end : LINE;
    memmove(text, text + end - kept, kept);
  }
  GW_SYS_1(SYS_close, fd);
  f.known = n == 0;
  return f;
}

static struct filters own_filters(void) {
  struct filters f = read_filters("/proc/thread-self/status");
  if (f.no_room) return at_load; /* a filter is unlikely to be the reason */
  return f.known ? f : read_filters("/proc/self/status"); /* before Linux 3.17 */
}

static bool same(struct filters a, struct filters b) {
  return a.known == b.known && a.mode == b.mode && a.count == b.count;
}

/* Whether the filters that the process was started with are known to permit all calls. */
static bool inherited_permit(void) {
  static uint32_t answer; /* 1: yes, 2: no */
  uint32_t known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
  if (known) return known == 1;
  bool yes = at_load.known && !at_load.mode; /* without /proc there may be filters */
  const char *run = getenv("GIVEWAY_FILTERS");
  uint32_t count = 0;
  if (run) find_number(run, "", &count);
  if (run && count == at_load.count && count) yes = true;
  if (!yes && at_load.known) yes = same(read_filters("/proc/1/status"), at_load);
  __atomic_store_n(&answer, yes ? 1 : 2, __ATOMIC_RELAXED);
  return yes;
}

static void load(void);

enum gw_filters gw_filters_now(void) {
  if (__atomic_load_n(&gw_ended, __ATOMIC_RELAXED)) return GW_INSTALLED;
  load(); /* the constructor of another library has launched something */
  if (!same(own_filters(), at_load)) return GW_INSTALLED;
  return inherited_permit() ? GW_PERMITTED : GW_INHERITED;
}

void gw_filters_forked(void) {
  if (loaded_pid && !__atomic_load_n(&gw_ended, __ATOMIC_RELAXED)) loaded_pid = this_pid();
}

static bool permitted(void) { return gw_filters_now() == GW_PERMITTED; }

__attribute__((constructor)) static void load(void) {
  if (__atomic_load_n(&loaded, __ATOMIC_ACQUIRE)) return;
  at_load = own_filters();
  __atomic_store_n(&loaded, 1, __ATOMIC_RELEASE);
  gw_bias_may_call = permitted;
  if (!inherited_permit()) return; /* the first launch says so */
  loaded_pid = this_pid();
  gw_log_remember_stderr();
  gw_bias_register();
}

/*
 * A program that installs a filter calls prctl before: without privileges it must give up new
 * ones first. The library leaves now, while it still can make all system calls. A child of
 * vfork shares this memory and does not count.
 */
static void leave(void) {
  if (!loaded_pid || __atomic_load_n(&gw_ended, __ATOMIC_RELAXED) || this_pid() != loaded_pid) return;
  gw_kfd_leave();
  gw_page_leave(GW_INSTALLED);
}

__attribute__((visibility("default"))) int prctl(int option, ...) {
  static void *known;
  unsigned long a[4];
  va_list args;
  va_start(args, option);
  for (int i = 0; i < 4; i++) a[i] = va_arg(args, unsigned long);
  va_end(args);
  if (option == PR_SET_SECCOMP || option == PR_SET_NO_NEW_PRIVS) leave();
  void *f = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (!f) __atomic_store_n(&known, f = gw_elf_function_after("prctl"), __ATOMIC_RELAXED);
  typedef int prctl_fn(int, unsigned long, unsigned long, unsigned long, unsigned long);
  if (f) return ((prctl_fn *)f)(option, a[0], a[1], a[2], a[3]);
  long r = gw_sys(SYS_prctl, option, (long)a[0], (long)a[1], (long)a[2], (long)a[3], 0);
  if (r >= 0) return (int)r;
  errno = (int)-r;
  return -1;
}

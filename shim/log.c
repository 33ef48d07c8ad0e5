/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* Messages on stderr. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "activity.h"
#include "env.h"
#include "filter.h"
#include "gate.h"
#include "sys.h"

#define STDERR 2

#define MESSAGES 32

static gw_lock_t lock;
static const char *logged[MESSAGES];

/* Whether the message was not logged before. */
static int is_new(const char *message) {
  for (int i = 0; i < MESSAGES; i++) {
    if (logged[i] && strcmp(logged[i], message) == 0) return 0;
    if (!logged[i]) {
      logged[i] = message;
      return 1;
    }
  }
  return 0;
}

/* What stderr was when the library was loaded. The program may have closed it since, and opened a
 * file of its own under its number. */
static struct {
  bool known;
  dev_t dev;
  ino_t ino;
} at_load;

void gw_log_remember_stderr(void) {
  struct stat s;
  at_load.known = GW_SYS_2(SYS_fstat, STDERR, &s) == 0;
  if (at_load.known) at_load.dev = s.st_dev, at_load.ino = s.st_ino;
}

static bool is_stderr(void) {
  struct stat s;
  return at_load.known && GW_SYS_2(SYS_fstat, STDERR, &s) == 0 && s.st_dev == at_load.dev && s.st_ino == at_load.ino;
}

/* Writes to stderr without a SIGPIPE for the program if nothing reads it. */
static void write_quietly(const char *line, size_t n) {
  const uint64_t sigpipe = 1ull << (SIGPIPE - 1); /* a set of signals as the kernel has it */
  uint64_t before = 0, pending = 0;
  const struct timespec now = {0, 0};
  const long size = sizeof before;
  gw_sys(SYS_rt_sigprocmask, SIG_BLOCK, (long)&sigpipe, (long)&before, size, 0, 0);
  GW_SYS_2(SYS_rt_sigpending, &pending, size);
  long r = GW_SYS_3(SYS_write, STDERR, line, n);
  /* One that was pending before is the program's own. */
  if (r == -EPIPE && !(pending & sigpipe)) gw_sys(SYS_rt_sigtimedwait, (long)&sigpipe, 0, (long)&now, size, 0, 0);
  gw_sys(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, size, 0, 0);
}

/* Whether stderr is a pipe without a reader: it can be opened for reading, but not for writing.
 * Makes only calls that seccomp filters permit where the dynamic loader runs. */
static bool has_no_reader(void) {
  static const char path[] = "/proc/self/fd/2";
  long fd = gw_sys(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0, 0, 0);
  bool refused = fd == -ENXIO;
  if (fd >= 0) GW_SYS_1(SYS_close, fd);
  if (!refused) return false;
  fd = gw_sys(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0, 0, 0);
  if (fd >= 0) GW_SYS_1(SYS_close, fd);
  return fd >= 0;
}

void gw_log_always(const char *message) {
  if (__atomic_load_n(&gw_ended, __ATOMIC_RELAXED)) return; /* a filter may forbid all calls but the program's */
  if (!gw_trylock(&lock)) return; /* in the child of a fork its holder may not exist */
  int new = is_new(message);
  gw_unlock(&lock);
  if (!new) return;
  char line[256] = "giveway: ";
  size_t n = strlen(line), more = strlen(message);
  if (more > sizeof line - n - 1) more = sizeof line - n - 1;
  memcpy(line + n, message, more);
  line[n + more] = '\n';
  n += more + 1;
  if (gw_filters_now() == GW_PERMITTED) {
    if (is_stderr()) write_quietly(line, n);
  } else if (!has_no_reader()) {
    GW_SYS_3(SYS_write, STDERR, line, n);
  }
}

void gw_log(const char *message) {
  if (gw_env()->verbose) gw_log_always(message);
}

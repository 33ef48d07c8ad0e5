/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* What little this library has to say, to people who asked it to. */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "bound.h"
#include "gate.h"
#include "sys.h"

#define REASONS 32

static gw_lock_t lock;
static const char *said[REASONS];

/* Whether the reason is new. */
static int first_time(const char *reason) {
  for (int i = 0; i < REASONS; i++) {
    if (said[i] && strcmp(said[i], reason) == 0) return 0;
    if (!said[i]) {
      said[i] = reason;
      return 1;
    }
  }
  return 0;
}

void gw_say_always(const char *reason) {
  if (!gw_trylock(&lock)) return; /* in the child of a fork it may be nobody's */
  int new = first_time(reason);
  gw_unlock(&lock);
  if (!new) return;
  char line[256] = "giveway: ";
  size_t n = strlen(line), more = strlen(reason);
  if (more > sizeof line - n - 1) more = sizeof line - n - 1;
  memcpy(line + n, reason, more);
  line[n + more] = '\n';
  GW_SYS_3(SYS_write, 2, line, n + more + 1);
}

void gw_say(const char *reason) {
  const char *verbose = getenv("GIVEWAY_VERBOSE");
  if (verbose && *verbose && strcmp(verbose, "0") != 0) gw_say_always(reason);
}

/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* Messages on stderr. */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "bound.h"
#include "gate.h"
#include "sys.h"

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

void gw_log_always(const char *message) {
  if (!gw_trylock(&lock)) return; /* in the child of a fork its holder may not exist */
  int new = is_new(message);
  gw_unlock(&lock);
  if (!new) return;
  char line[256] = "giveway: ";
  size_t n = strlen(line), more = strlen(message);
  if (more > sizeof line - n - 1) more = sizeof line - n - 1;
  memcpy(line + n, message, more);
  line[n + more] = '\n';
  GW_SYS_3(SYS_write, 2, line, n + more + 1);
}

void gw_log(const char *message) {
  const char *verbose = getenv("GIVEWAY_VERBOSE");
  if (verbose && *verbose && strcmp(verbose, "0") != 0) gw_log_always(message);
}

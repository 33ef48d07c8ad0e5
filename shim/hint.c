/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* Hints that the program gives about itself. */
#include <string.h>

#include "bound.h"
#include "hook.h"
#include "page.h"

/* Open requests, by the ids that the program chose. Requests that do not fit here are sent to
 * the daemon as hints, but not logged. */
#define MAX_OPEN 64

static struct {
  int64_t id;
  uint64_t begin_ns;
} open_requests[MAX_OPEN];

/* Hints that hold until they are replaced. A new daemon gets them again. */
static struct {
  bool given;
  int64_t value;
} lasting[GW_HINT_IDEMPOTENT + 1];

void gw_hint_forked(void) {
  memset(open_requests, 0, sizeof open_requests);
  memset(lasting, 0, sizeof lasting);
}

static int find(int64_t id) {
  for (uint32_t i = 0; i < gw_act.open_requests; i++) {
    if (open_requests[i].id == id) return (int)i;
  }
  return -1;
}

/* Logs a request when it ends. With the lock held. */
static void log_request(uint32_t kind, int64_t id, uint64_t now) {
  int at = find(id);
  gw_act.explicit_requests = true;
  if (kind == GW_HINT_BEGIN) {
    if (at < 0 && gw_act.open_requests < MAX_OPEN) at = (int)gw_act.open_requests++;
    if (at < 0) return;
    open_requests[at].id = id;
    open_requests[at].begin_ns = now;
  } else if (at >= 0) {
    gw_log_request(open_requests[at].begin_ns, now);
    open_requests[at] = open_requests[--gw_act.open_requests];
  }
  GW_WRITE(open_requests, gw_act.open_requests);
}

static bool lasts(uint32_t kind) { return kind != GW_HINT_EXPECT && kind != GW_HINT_BEGIN && kind != GW_HINT_END; }

/* With the lock held. */
static void write_hint(uint32_t kind, int64_t value, uint64_t now) {
  struct gw_hint *h = &gw_shared.page.ring[gw_act.hints % GW_HINT_ENTRIES];
  /* seq is 0 while the entry is written. A reader that reads the same number before and after
   * has read one complete hint. */
  __atomic_store_n(&h->seq, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  __atomic_store_n(&h->kind, kind, __ATOMIC_RELAXED);
  __atomic_store_n(&h->value, value, __ATOMIC_RELAXED);
  __atomic_store_n(&h->at_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&h->seq, (uint32_t)++gw_act.hints, __ATOMIC_RELEASE);
  __atomic_store_n(&gw_shared.page.hints, gw_act.hints, __ATOMIC_RELEASE);
  gw_count_ring();
}

void gw_hint_republish(void) {
  for (uint32_t kind = 0; kind <= GW_HINT_IDEMPOTENT; kind++) {
    if (lasting[kind].given) write_hint(kind, lasting[kind].value, gw_now());
  }
}

int gw_hint(uint32_t kind, int64_t value) {
  if (kind < GW_HINT_CLASS || kind > GW_HINT_IDEMPOTENT) return -1;
  if (__atomic_load_n(&gw_ended, __ATOMIC_RELAXED) || !gw_page_attach("hint")) return -1;
  uint64_t now = gw_now();
  gw_bias_lock(&gw_act.lock);
  if (kind == GW_HINT_BEGIN || kind == GW_HINT_END) log_request(kind, value, now);
  if (lasts(kind)) {
    lasting[kind].given = true;
    lasting[kind].value = value;
  }
  write_hint(kind, value, now);
  gw_bias_unlock(&gw_act.lock);
  gw_page_ring();
  if (kind == GW_HINT_EXPECT) gw_hook_expect(value > 0 ? (uint64_t)value : 0);
  return 0;
}

/* For giveway_guard.h: whether commands launched now may run twice. The program's own hint
 * takes precedence over the owner's setting. */
__attribute__((visibility("default"))) int giveway_repeatable(void) {
  gw_bias_lock(&gw_act.lock);
  bool given = lasting[GW_HINT_IDEMPOTENT].given, yes = lasting[GW_HINT_IDEMPOTENT].value != 0;
  gw_bias_unlock(&gw_act.lock);
  return given ? yes : gw_page_attached() && GW_READ(idempotent) == 1;
}

__attribute__((visibility("default"))) int giveway_hint(uint32_t kind, int64_t value) {
  return gw_hint(kind, value);
}

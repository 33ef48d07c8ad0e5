/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* Hints: what a program says of itself. */
#include <string.h>

#include "bound.h"
#include "hook.h"
#include "page.h"

/* Requests begun and not ended, by the program's own numbers for them. What does
 * not fit goes to the daemon as a hint all the same, but not into the log. */
#define OPEN_MOST 64

static struct {
  int64_t id;
  uint64_t begin_ns;
} opened[OPEN_MOST];

/* What holds until something else is said: told again to a daemon that is new. */
static struct {
  bool said;
  int64_t value;
} standing[GW_HINT_IDEMPOTENT + 1];

void gw_hint_forked(void) {
  memset(opened, 0, sizeof opened);
  memset(standing, 0, sizeof standing);
}

static int find(int64_t id) {
  for (uint32_t i = 0; i < gw_act.open; i++) {
    if (opened[i].id == id) return (int)i;
  }
  return -1;
}

/* Keeps the log of requests. With the lock held. */
static void note(uint32_t kind, int64_t id, uint64_t now) {
  int at = find(id);
  gw_act.explicit_requests = true;
  if (kind == GW_HINT_BEGIN) {
    if (at < 0 && gw_act.open < OPEN_MOST) at = (int)gw_act.open++;
    if (at < 0) return;
    opened[at].id = id;
    opened[at].begin_ns = now;
  } else if (at >= 0) {
    gw_log_request(opened[at].begin_ns, now);
    opened[at] = opened[--gw_act.open];
  }
  GW_SHOW(open_requests, gw_act.open);
}

static bool stands(uint32_t kind) { return kind != GW_HINT_EXPECT && kind != GW_HINT_BEGIN && kind != GW_HINT_END; }

/* With the lock held. */
static void put(uint32_t kind, int64_t value, uint64_t now) {
  struct gw_hint *h = &gw_shared.page.ring[gw_act.hints % GW_HINT_ENTRIES];
  /* A reader that sees the old number before and after has read the old hint. */
  __atomic_store_n(&h->seq, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  __atomic_store_n(&h->kind, kind, __ATOMIC_RELAXED);
  __atomic_store_n(&h->value, value, __ATOMIC_RELAXED);
  __atomic_store_n(&h->at_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&h->seq, (uint32_t)++gw_act.hints, __ATOMIC_RELEASE);
  __atomic_store_n(&gw_shared.page.hints, gw_act.hints, __ATOMIC_RELEASE);
  gw_bump();
}

void gw_hint_again(void) {
  for (uint32_t kind = 0; kind <= GW_HINT_IDEMPOTENT; kind++) {
    if (standing[kind].said) put(kind, standing[kind].value, gw_now());
  }
}

int gw_hint(uint32_t kind, int64_t value) {
  if (kind < GW_HINT_CLASS || kind > GW_HINT_IDEMPOTENT) return -1;
  if (__atomic_load_n(&gw_gone, __ATOMIC_RELAXED) || !gw_page_attach("hint")) return -1;
  uint64_t now = gw_now();
  gw_bias_lock(&gw_act.lock);
  if (kind == GW_HINT_BEGIN || kind == GW_HINT_END) note(kind, value, now);
  if (stands(kind)) {
    standing[kind].said = true;
    standing[kind].value = value;
  }
  put(kind, value, now);
  gw_bias_unlock(&gw_act.lock);
  gw_page_ring();
  if (kind == GW_HINT_EXPECT) gw_hook_expect(value > 0 ? (uint64_t)value : 0);
  return 0;
}

/* For giveway_guard.h: whether what is launched now may be run twice. The program's own
 * word counts before its owner's. */
__attribute__((visibility("default"))) int giveway_repeatable(void) {
  gw_bias_lock(&gw_act.lock);
  bool said = standing[GW_HINT_IDEMPOTENT].said, yes = standing[GW_HINT_IDEMPOTENT].value != 0;
  gw_bias_unlock(&gw_act.lock);
  return said ? yes : gw_page_is_there() && GW_READ(idempotent) == 1;
}

__attribute__((visibility("default"))) int giveway_hint(uint32_t kind, int64_t value) {
  return gw_hint(kind, value);
}

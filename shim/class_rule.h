/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether a launch on a stream of lower priority waits. It has no clock and calls nothing,
 * so that test/class_model.c can run it in every interleaving.
 */
#ifndef GIVEWAY_CLASS_RULE_H
#define GIVEWAY_CLASS_RULE_H

#include <stdbool.h>
#include <stdint.h>

/* After the last command of the high streams a launch waits for so long: a request often waits for
 * each of its kernels, and a long kernel in such a gap would delay all that follow. */
#define GW_CLASS_LINGER_NS 200000ull
/* If the high streams complete nothing for so long, they may wait for the low ones. */
#define GW_CLASS_STALL_NS 20000000ull
/* A launch waits no longer than this, so a high stream that is always busy does not starve the others. */
#define GW_CLASS_MAX_HOLD_NS 100000000ull

/* The streams of higher priority, together. */
struct gw_class_state {
  uint64_t launched, done; /* their commands */
  uint64_t launched_ns;    /* when the last of them was launched; 0: never */
  uint64_t done_ns;        /* when one was last known to be done; 0: never */
  uint64_t let_go;         /* done + 1 when a launch was let go because nothing was done; 0: none was */
};

enum gw_class_answer {
  GW_CLASS_PASS,   /* nothing to wait for */
  GW_CLASS_WAIT,   /* ask again soon */
  GW_CLASS_LET_GO, /* the high streams are busy, and the launch must not wait for them */
};

/* The clock may have been read before the other thread noted its time. */
static inline uint64_t gw_class_age(uint64_t at, uint64_t now) { return now > at ? now - at : 0; }

/* since: when this launch began to wait. waits_for_low: a high stream with commands in flight waits
 * for something that other streams or the program do. */
static inline enum gw_class_answer gw_class_rule(struct gw_class_state *s, bool waits_for_low, uint64_t since, uint64_t now) {
  bool busy = s->launched > s->done, lingers = s->done_ns && gw_class_age(s->done_ns, now) < GW_CLASS_LINGER_NS;
  if (!busy && !lingers) return GW_CLASS_PASS;
  if (gw_class_age(since, now) >= GW_CLASS_MAX_HOLD_NS) return GW_CLASS_LET_GO;
  if (!busy) return GW_CLASS_WAIT;
  if (waits_for_low || s->let_go == s->done + 1) return GW_CLASS_LET_GO;
  uint64_t progress = s->done_ns > since ? s->done_ns : since;
  if (gw_class_age(progress, now) < GW_CLASS_STALL_NS) return GW_CLASS_WAIT;
  /* Until one of them is done, further launches pass at once: they may be waited for too. */
  s->let_go = s->done + 1;
  return GW_CLASS_LET_GO;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the rule of class_rule.h in every interleaving of two threads of a program, the device and
 * the clock. The device has a high and a low stream, each of which runs its commands in order. All
 * that the rule reads is guarded by a lock, so one decision is one step.
 *
 *     class_model BLIND SCRIPT SCRIPT   a script per thread
 *
 *     h, l   launches on the high and on the low stream; l passes the rule first
 *     a      launches a kernel on the high stream that waits for the last command of the low one
 *     b      the same on the low stream, for the last command of the high one; passes the rule first
 *     e      the high stream waits for an event behind all that the low one has been given
 *     v      the high stream waits, by a call that is seen, for the last command of the low one
 *     H, L   waits until all that the high, the low stream has been given is done
 *     j      waits until the other thread has come to its end
 *
 * With BLIND 1 the rule learns that commands are done only when the program waits for them.
 *
 * Checked in every state: no state is final in which a script has not ended, although the program
 * ends without the rule; a thread that has launched on the high stream is never held; no launch is
 * held while the high stream waits by an event or a call for the low one; after a launch was let go
 * none is held until the high stream makes progress; no launch is held for longer than the limits,
 * or let go while the high stream makes progress. Prints the number of states. With -DBROKEN=n the
 * rule has a mistake, which must be found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../class_rule.h"

enum { THREADS = 2, COMMANDS = 12, TICK_NS = 5000000 };
#define STALL_TICKS (GW_CLASS_STALL_NS / TICK_NS)
#define HOLD_TICKS (GW_CLASS_MAX_HOLD_NS / TICK_NS)
#define OLD (HOLD_TICKS + 2) /* an age that is never told from a higher one */

struct model {
  struct queue {
    uint8_t given, done, known;
    uint8_t after[COMMANDS]; /* a command runs when so many of the other stream are done */
  } high, low;
  uint8_t waits_until; /* as in struct gw_stream */
  uint8_t done_age;    /* ticks since the rule last learned of progress */
  uint8_t let_go;
  uint8_t passed; /* high.known + 1 when a launch was let go; 0: none was since */
  struct thread {
    uint8_t at, held, hold_age, feeds, pending_after;
  } threads[THREADS];
  uint8_t blocked_by_event; /* given of the low stream that the high one waits for, by an event or a call */
};

static struct model m;
static const char *scripts[THREADS];
static int blind, ruled;
static int highs, lows; /* commands of both scripts */

static void fail(const char *why) {
  printf("%s: high %d of %d, low %d of %d, threads at %d and %d, held %d %d for %d %d ticks\n", why, m.high.done, m.high.given,
         m.low.done, m.low.given, m.threads[0].at, m.threads[1].at, m.threads[0].held, m.threads[1].held, m.threads[0].hold_age,
         m.threads[1].hold_age);
  exit(1);
}

/* What poll of the marks finds, or what the program has waited for. */
static void learn(void) {
  m.low.known = m.low.done;
  if (m.high.known == m.high.done) return;
  m.high.known = m.high.done;
  m.done_age = 0;
}

/* Whether the launch must wait. */
static bool holds(struct thread *t) {
  if (!ruled) return false;
#if BROKEN != 1 /* a thread that launches on the high stream is held */
  if (t->feeds) return false;
#endif
  if (!blind) learn();
  uint64_t now = 1000 * (uint64_t)TICK_NS;
  struct gw_class_state s = {.launched = m.high.given, .done = m.high.known, .launched_ns = now, .let_go = m.let_go};
  /* What was learned last may be later than the clock that this thread has read. */
  s.done_ns = m.done_age ? now - m.done_age * (uint64_t)TICK_NS : now + 1;
#if BROKEN == 5 /* progress later than the clock is not seen */
  if (!m.done_age) s.done_ns = 1;
#endif
  bool waits = m.high.given != m.high.known && m.high.known < m.waits_until;
#if BROKEN == 2 /* waits for events are not seen */
  waits = false;
#endif
  bool is_new = s.let_go != s.done + 1;
  enum gw_class_answer answer = gw_class_rule(&s, waits, now - t->hold_age * (uint64_t)TICK_NS, now);
#if BROKEN == 3 /* no limits */
  if (answer == GW_CLASS_LET_GO && !waits) return true;
#endif
#if BROKEN == 4 /* what is let go once is not remembered */
  s.let_go = 0;
#endif
  m.let_go = (uint8_t)s.let_go;
  if (answer == GW_CLASS_LET_GO && !waits && is_new && !m.done_age && t->hold_age < HOLD_TICKS) fail("let go although the high stream makes progress");
  if (answer == GW_CLASS_LET_GO && t->hold_age < HOLD_TICKS && !waits) m.passed = (uint8_t)(m.high.known + 1);
  if (answer == GW_CLASS_WAIT && s.launched != s.done && m.passed == s.done + 1) fail("held again although nothing was done");
  return answer == GW_CLASS_WAIT;
}

static void give(struct queue *q, int after) {
  if (q->given == COMMANDS) fail("too many commands");
  q->after[q->given++] = (uint8_t)after;
}

/* Whether a thread can take a step, and the step. */
static bool run_thread(int i, bool act) {
  struct thread *t = &m.threads[i];
  char c = scripts[i][t->at];
  switch (c) {
  case 0: return false;
  case 'h':
  case 'a':
    if (!act) return true;
    give(&m.high, c == 'a' ? lows : t->pending_after > 0 ? m.blocked_by_event : 0);
    t->pending_after = 0;
    t->feeds = 1;
    break;
  case 'e':
  case 'v':
    if (!act) return true;
    m.blocked_by_event = (uint8_t)(c == 'v' ? lows : m.low.given);
    m.waits_until = (uint8_t)(m.high.given + 1);
    t->pending_after = 1;
    break;
  case 'l':
  case 'b':
    if (!act) return true;
    if (holds(t)) {
      if (t->feeds) fail("a thread that launches on the high stream is held");
      if (m.high.done + 1 == m.waits_until && m.high.given >= m.waits_until && m.low.done < m.blocked_by_event) {
        fail("held although the high stream waits for the low one");
      }
      if (t->hold_age > HOLD_TICKS) fail("held for too long");
      t->held = 1;
      return true;
    }
    t->held = t->hold_age = 0;
    give(&m.low, c == 'b' ? highs : 0);
    break;
  case 'H':
    if (m.high.done != m.high.given) return false;
    if (act) learn();
    break;
  case 'L':
    if (m.low.done != m.low.given) return false;
    if (act) learn();
    break;
  case 'j':
    if (scripts[!i][m.threads[!i].at]) return false;
    break;
  }
  if (act) t->at++;
  return true;
}

static bool run_device(struct queue *q, const struct queue *other, bool act) {
  if (q->done == q->given || other->done < q->after[q->done]) return false;
  if (act) q->done++;
  return true;
}

static void tick(void) {
  if (m.done_age < OLD) m.done_age++;
  for (int i = 0; i < THREADS; i++) {
    if (m.threads[i].held && m.threads[i].hold_age < OLD) m.threads[i].hold_age++;
  }
}

/* Visited states. */
static struct model *table;
static char *used;
enum { SIZE = 1 << 18 };
static uint64_t states;

static bool visit(void) {
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < sizeof m; i++) h = (h ^ ((unsigned char *)&m)[i]) * 1099511628211ull;
  h ^= h >> 31;
  for (uint64_t i = h;; i++) {
    struct model *e = &table[i % SIZE];
    if (!used[i % SIZE]) {
      used[i % SIZE] = 1;
      *e = m;
      if (++states > SIZE / 2) fail("too many states");
      return true;
    }
    if (memcmp(e, &m, sizeof m) == 0) return false;
  }
}

/* Choices: the threads, the streams, the clock. A thread that is held looks again after each tick. */
static void explore(void) {
  if (!visit()) return;
  struct model here = m;
  bool over = !scripts[0][m.threads[0].at] && !scripts[1][m.threads[1].at], moved = false;
  for (int c = 0; c < THREADS + 3; c++) {
    bool can = c < THREADS ? run_thread(c, true) : c == 2 ? run_device(&m.high, &m.low, true) : c == 3 ? run_device(&m.low, &m.high, true)
                                                                                         : (tick(), true);
    if (can && memcmp(&m, &here, sizeof m) != 0) {
      moved = true;
      explore();
    }
    m = here;
  }
  if (!moved && !over) fail("nothing moves");
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  blind = atoi(argv[1]);
  scripts[0] = argv[2];
  scripts[1] = argv[3];
  for (int i = 0; i < THREADS; i++) {
    for (const char *c = scripts[i]; *c; c++) {
      highs += *c == 'h' || *c == 'a';
      lows += *c == 'l' || *c == 'b';
    }
  }
  table = malloc(SIZE * sizeof *table);
  used = malloc(SIZE);
  for (ruled = 0; ruled < 2; ruled++) { /* first without the rule: the program must end by itself */
    memset(used, 0, SIZE);
    memset(&m, 0, sizeof m);
    m.done_age = OLD;
    states = 0;
    explore();
  }
  printf("ok states=%llu\n", (unsigned long long)states);
  return 0;
}

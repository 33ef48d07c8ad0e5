/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the functions of late_word.h in every possible interleaving and proves that no wait on the
 * device stays unreleased.
 *
 * Two threads of a program, the timer thread, a device that stops at its waits and a clock take
 * steps in any order; a step is one access to shared memory, a system call, or a wait that is put
 * on the device. Up to so many threads of the program die, each between any two of its steps. The
 * timer thread does not. States are visited once each. A state is the shared memory, the device's
 * queue, the time and, for each thread, where it is and what it has read since its last call
 * began; the last determines its local variables.
 *
 *     late_model SCRIPT SCRIPT DEATHS    a script per thread: a digit arms and puts a wait, r
 *                                        releases what is pending, p releases its own last wait,
 *                                        s releases and then waits until the device has passed all
 *
 * Prints the number of states. With -DBROKEN=n the protocol has a mistake, which must be found.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

/* Shared memory is accessed here only. */
static void step(void);
static uint64_t seen(uint64_t value);
static void model_wake(void);
static void model_sleep(uint32_t value, uint64_t until);
static uint64_t now_ns;

#define GW_LATE_LOAD(p) (step(), (__typeof__(*(p)))seen((uint64_t)*(p)))
#define GW_LATE_STORE(p, v) (step(), (void)(*(p) = (v)))
#define GW_LATE_CAS(p, expected, v) (step(), seen(*(p) == *(expected)) ? (*(p) = (v), 1) : (*(expected) = (uint32_t)seen(*(p)), 0))
#define GW_LATE_NOW() (step(), seen(now_ns))
#define GW_LATE_WAKE(p) (step(), model_wake())
#define GW_LATE_SLEEP(p, value, until) model_sleep(value, until)

#if BROKEN == 1 /* the wait counts as released before the word is written, and a thread may die in between */
#define gw_late_release right_release
#include "../late_word.h"
#undef gw_late_release
static uint32_t gw_late_release(struct gw_late_wait *w, uint32_t n) {
  uint32_t pending = GW_LATE_LOAD(&w->armed);
  if (!pending || (n && pending != n)) return 0;
  uint32_t *word = GW_LATE_LOAD(&w->word);
  n = pending;
  if (!GW_LATE_CAS(&w->armed, &pending, 0)) return 0;
  gw_late_advance(word, n);
  return n;
}
#elif BROKEN == 2 /* a word is written even if it has changed meanwhile, and may go back */
static bool is_word(const uint32_t *p);
#undef GW_LATE_CAS
#define GW_LATE_CAS(p, expected, v) \
  (step(), seen(*(p) == *(expected) || is_word(p)) ? (*(p) = (v), 1) : (*(expected) = (uint32_t)seen(*(p)), 0))
#include "../late_word.h"
#elif BROKEN == 3 /* the timer does not look again before it sleeps */
#define gw_late_tick right_tick
#include "../late_word.h"
#undef gw_late_tick
static uint32_t gw_late_tick(struct gw_late_wait *w) {
  GW_LATE_STORE(&w->wakes_ns, 0);
  uint32_t wake = GW_LATE_LOAD(&w->timer_wake), n = GW_LATE_LOAD(&w->armed);
  uint64_t due = GW_LATE_LOAD(&w->due_ns);
  if (n && GW_LATE_NOW() >= due) return gw_late_release(w, n);
  GW_LATE_STORE(&w->wakes_ns, n ? due : GW_LATE_NEVER);
  GW_LATE_SLEEP(&w->timer_wake, wake, n ? due : 0);
  return 0;
}
#elif BROKEN == 4 /* the wait is put on the device before it is known */
#include "../late_word.h"
#else
#include "../late_word.h"
#endif

enum { THREADS = 3, TIMER = 2, STACK = 16384, USED = 2048, DEVICE = 8, DEPTH = 4096 };
enum status { READY, ASLEEP, DRAINING, DEAD, ENDED };

static struct {
  struct gw_late_wait wait;
  uint32_t words[2];
  uint32_t last; /* number of the last wait */
  uint32_t device[DEVICE], device_word[DEVICE]; /* waits in the order in which the device comes to them */
  uint32_t queued, passed;
  uint64_t now;
  int deaths;
  int lock; /* of the program, which only one thread at a time may hold; -1: free */
  struct thread {
    enum status status;
    uint64_t read;     /* a hash of what it has read since its call began */
    int at;            /* in its script */
    uint32_t mine;     /* its last wait */
    uint32_t value;    /* ASLEEP: wakes if timer_wake is not that value any more, or is woken, or at until */
    uint64_t until;
  } threads[THREADS];
} m;

static struct execution {
  ucontext_t context;
  char stack[STACK] __attribute__((aligned(16)));
} executions[THREADS];
static ucontext_t scheduler;
static int running;
static const char *scripts[TIMER];

static void to_scheduler(void) { swapcontext(&executions[running].context, &scheduler); }

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15ull;
  return h ^ h >> 29;
}
static void step(void) {
  struct thread *t = &m.threads[running];
  t->read = mix(t->read, 1);
  to_scheduler();
  now_ns = m.now;
}
static uint64_t seen(uint64_t value) {
  struct thread *t = &m.threads[running];
  t->read = mix(t->read, value + 2);
  return value;
}
static void model_wake(void) {
  if (m.threads[TIMER].status == ASLEEP) m.threads[TIMER].status = READY;
}
static void model_sleep(uint32_t value, uint64_t until) {
  step();
  struct thread *t = &m.threads[running];
  if (m.wait.timer_wake != value) return;
  *t = (struct thread){.status = ASLEEP, .value = value, .until = until, .read = t->read};
  to_scheduler();
  t->value = 0;
  t->until = 0;
}

#if BROKEN == 2
static bool is_word(const uint32_t *p) { return p == &m.words[0] || p == &m.words[1]; }
#endif

static void fail(const char *why) {
  printf("%s: armed %u, words %u %u, device %u of %u, now %llu, threads", why, m.wait.armed, m.words[0], m.words[1], m.passed, m.queued,
         (unsigned long long)m.now);
  for (int i = 0; i < THREADS; i++) printf(" %d", m.threads[i].status);
  printf("\n");
  exit(1);
}

static void put(uint32_t n, uint32_t word) {
  if (m.queued == DEVICE) fail("too many waits");
  m.device[m.queued] = n;
  m.device_word[m.queued++] = word;
}

/* Arms a wait and puts it on the device, as late.c does: under a lock that is not held meanwhile. */
static void enter_late(struct thread *t, int which) {
  step();
  if (m.lock >= 0) return; /* another thread is about to: this one enters at once */
  m.lock = running;
  uint32_t n = ++m.last;
#if BROKEN == 4
  put(n, (uint32_t)which % 2);
#endif
  bool armed = gw_late_arm(&m.wait, &m.words[which % 2], n, which % 2 ? 2 : 1);
  step();
  if (armed) t->mine = n;
  m.lock = -1;
  step();
#if BROKEN != 4
  if (armed) put(n, (uint32_t)which % 2);
#endif
}

static void run_program(void) {
  for (;;) {
    struct thread *t = &m.threads[running];
    char c = scripts[running][t->at];
    t->read = 0;
    if (!c) break;
    if (c == 'r' || c == 's') gw_late_release(&m.wait, 0);
    else if (c == 'p') { if (t->mine) gw_late_release(&m.wait, t->mine); }
    else enter_late(t, c - '0');
    if (c == 's') {
      t->status = DRAINING;
      to_scheduler();
    }
    t->at++;
  }
  m.threads[running].status = ENDED;
  for (;;) to_scheduler();
}
static void run_timer(void) {
  for (;;) {
    m.threads[TIMER].read = 0;
    gw_late_tick(&m.wait);
  }
}

static bool device_can_pass(void) {
  return m.passed < m.queued && (int32_t)(m.words[m.device_word[m.passed]] - m.device[m.passed]) >= 0;
}
#define LAST_TIME 2 /* the latest due time */

/* Choices: 0 to 2 a thread, 3 the device, 4 the clock, 5 and 6 a thread of the program dies. */
enum { CHOICES = 7 };
static bool possible(int c) {
  if (c < THREADS) {
    struct thread *t = &m.threads[c];
    if (t->status == DRAINING) return m.passed == m.queued;
    if (t->status == ASLEEP) return t->until && m.now >= t->until;
    return t->status == READY;
  }
  if (c == 3) return device_can_pass();
  if (c == 4) return m.now < LAST_TIME;
  return m.deaths > 0 && m.threads[c - 5].status == READY;
}
static void take(int c) {
  if (c == 3) m.passed++;
  else if (c == 4) m.now++;
  else if (c >= 5) {
    m.deaths--;
    m.threads[c - 5].status = DEAD;
    if (m.lock == c - 5) m.lock = -1; /* the worst case: another thread may arm then */
  } else {
    m.threads[c].status = READY;
    running = c;
    swapcontext(&scheduler, &executions[c].context);
  }
}

/* Visited states, by their hash, and whether they are on the path to the current one. */
static struct entry {
  uint64_t hash;
  bool on_path;
} *table;
static uint64_t table_size = 1 << 16, states;

static struct entry *find(uint64_t h) {
  struct entry *e;
  for (uint64_t i = h; (e = &table[i & (table_size - 1)])->hash && e->hash != h; i++) {}
  return e;
}
static void grow(void) {
  struct entry *old = table;
  uint64_t n = table_size;
  table_size *= 2;
  table = calloc(table_size, sizeof *table);
  for (uint64_t i = 0; i < n; i++) {
    if (old[i].hash) *find(old[i].hash) = old[i];
  }
  free(old);
}
static uint64_t hash_state(void) {
  uint64_t h = 1;
  const unsigned char *p = (const unsigned char *)&m;
  for (size_t i = 0; i + 8 <= sizeof m; i += 8) {
    uint64_t v;
    memcpy(&v, p + i, 8);
    h = mix(h, v);
  }
  return h ? h : 1;
}

/* Threads use only a small part of their stacks, except to print why they fail. */
static struct snapshot {
  char model[sizeof m];
  struct {
    ucontext_t context;
    char stack[USED];
  } threads[THREADS];
} snapshots[DEPTH];

static void save(int depth) {
  memcpy(snapshots[depth].model, &m, sizeof m);
  for (int i = 0; i < THREADS; i++) {
    memcpy(&snapshots[depth].threads[i].context, &executions[i].context, sizeof(ucontext_t));
    memcpy(snapshots[depth].threads[i].stack, executions[i].stack + STACK - USED, USED);
  }
}
static void restore(int depth) {
  memcpy(&m, snapshots[depth].model, sizeof m);
  for (int i = 0; i < THREADS; i++) {
    memcpy(&executions[i].context, &snapshots[depth].threads[i].context, sizeof(ucontext_t));
    memcpy(executions[i].stack + STACK - USED, snapshots[depth].threads[i].stack, USED);
  }
}

static void explore(int depth) {
  uint64_t h = hash_state();
  struct entry *e = find(h);
  bool others = false, any = false;
  if (e->hash) {
    if (!e->on_path) return;
    /* A circle. It is a mistake if only the timer goes round: a busy loop. */
    for (int c = 0; c < CHOICES; c++) others |= c != TIMER && possible(c);
    if (!others) fail("the timer never sleeps");
    return;
  }
  *e = (struct entry){h, true};
  if (++states * 2 > table_size) grow();
  if (depth + 1 >= DEPTH) fail("too deep");
  save(depth);
  for (int c = 0; c < CHOICES; c++) {
    if (!possible(c)) continue;
    any = true;
    take(c);
    explore(depth + 1);
    restore(depth);
  }
  if (!any && m.passed != m.queued) fail("a wait stays");
  find(h)->on_path = false;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  memset(&m, 0, sizeof m);
  scripts[0] = argv[1];
  scripts[1] = argv[2];
  m.deaths = atoi(argv[3]);
  m.lock = -1;
  table = calloc(table_size, sizeof *table);
  for (int i = 0; i < THREADS; i++) {
    getcontext(&executions[i].context);
    executions[i].context.uc_stack.ss_sp = executions[i].stack;
    executions[i].context.uc_stack.ss_size = STACK;
    makecontext(&executions[i].context, i == TIMER ? run_timer : run_program, 0);
  }
  explore(0);
  printf("ok states=%llu\n", (unsigned long long)states);
  return 0;
}

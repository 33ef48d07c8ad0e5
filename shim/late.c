/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "sys.h"

#include "late.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "late_plan.h"
#include "page.h"
#include "thread.h"

struct gw_late_wait gw_late_pending;
uint32_t gw_late_active;

/* What has released a wait. */
enum releaser {
  BY_PLAN,  /* the command at which the plan has it released */
  BY_CALL,  /* a call of the program that waits, may wait or asks for completion */
  BY_TIMER, /* the timer thread */
  BY_OTHER, /* the end of the request, of the context, of late entry or of the process */
};

/* The last release: the other fields are valid if number is that of the request. */
static struct {
  uint32_t number, by;
  uint64_t at_ns;
} released;

static uint32_t disabled, exiting;
static uint64_t next_check; /* the value of page.launched from which on commands take the slow path */

/* The lock is held for a short time only, never during a call of the runtime. It may be taken
 * with gw_act.lock held, not the other way round. The timer thread does not take it. */
static struct {
  gw_lock_t lock;
  enum { NOT_STARTED, STARTING, STARTED, NO_THREAD } thread;

  /* The request that is followed. */
  bool barred;  /* it has commands ahead of which it cannot enter late */
  bool decided; /* its first kernel has come */
  uint32_t number; /* of its wait; 0: it has entered at once */
  uint32_t point;  /* the next point */
  uint64_t base;   /* page.launched when it began, then when its first kernel came */
  uint64_t began_ns;
  struct gw_late_choice choice;
  struct gw_late_sample sample;

  uint32_t last_number;
  uint64_t requests, late_ns, early;
  struct gw_late_plan plan;
  /* Allocated by the library, so it outlives the context; shared memory, so that after a fork
   * the parent and the device still see the same page. */
  struct area {
    const struct gw_late_runtime *runtime;
    void *ctx;
    uint32_t *word;
    uint64_t device_word; /* 0: not mapped, or refused */
    bool busy;            /* it is being mapped */
  } areas[8];
} late;

/* Wait n is released. Tells the daemon, if it has been told that the device is left to others. */
static void note_release(uint32_t n, enum releaser by) {
  __atomic_store_n(&released.at_ns, gw_now(), __ATOMIC_RELAXED);
  __atomic_store_n(&released.by, by, __ATOMIC_RELAXED);
  __atomic_store_n(&released.number, n, __ATOMIC_RELEASE);
  /* Pairs with gw_write_flags: one of the two sees what the other has written. */
  if (!(__atomic_load_n(&gw_shared.page.flags, __ATOMIC_SEQ_CST) & GW_WAITS_LATE)) return;
  gw_write_entered();
  gw_count_ring();
  gw_page_ring();
}

static void release(uint32_t n, enum releaser by) {
  n = gw_late_release(&gw_late_pending, n);
  if (n) note_release(n, by);
}

void gw_late_release_now(void) { release(0, BY_CALL); }

void gw_late_waits_now(void) {
  release(0, BY_CALL);
  gw_lock(&late.lock);
  if (gw_late_active && late.decided && !late.sample.waited_ns) {
    late.sample.waited_ns = gw_now() - late.began_ns;
    late.sample.commands = (uint32_t)(GW_READ(launched) - late.base);
  }
  gw_unlock(&late.lock);
}

/* The timer thread. It calls nothing of the runtime and waits for no lock, so nothing that waits
 * for the device can keep it from releasing. (gw_page_ring tries a lock, after the release.) */
static void *run(void *unused) {
  prctl(PR_SET_TIMERSLACK, 50000ul);
  prctl(PR_SET_NAME, "giveway-late");
  for (;;) {
    uint64_t from = gw_now();
    uint32_t n = gw_late_tick(&gw_late_pending);
    if (n) note_release(n, BY_TIMER);
    /* A futex that cannot be waited for must not cost a CPU. */
    static int quick;
    quick = !n && gw_now() - from < 20000 ? quick + 1 : 0;
    if (quick > 100) gw_sleep(GW_MS_NS);
  }
  return unused;
}

/* Runs before the driver's own exit handler, which was registered earlier. */
static void stop(void) {
  __atomic_store_n(&exiting, 1, __ATOMIC_SEQ_CST);
  release(0, BY_OTHER);
}

/* Without the lock. */
static bool start_thread(void) { return atexit(stop) == 0 && gw_thread_start(run, 0); }

/* With the lock held: the area of a context, or a free one, or NULL. */
static struct area *area_for(void *ctx) {
  struct area *unused = NULL;
  for (size_t i = 0; i < sizeof late.areas / sizeof *late.areas; i++) {
    struct area *a = &late.areas[i];
    if (a->ctx == ctx) return a;
    if (!a->ctx && !a->busy && !unused) unused = a;
  }
  return unused;
}

/* Prepares a context and the timer thread, once each, on the thread of the program that is about
 * to use them. With the lock held, but not during the calls. */
static void prepare(const struct gw_late_runtime *rt, void *ctx) {
  struct area *a = area_for(ctx);
  if (!a || a->busy || a->ctx || late.thread == NO_THREAD) return;
  bool start = late.thread == NOT_STARTED;
  if (start) late.thread = STARTING;
  a->ctx = ctx;
  a->runtime = rt;
  a->busy = true;
  uint32_t *word = a->word;
  gw_unlock(&late.lock);
  if (!word) {
    void *m = mmap(NULL, GW_LATE_AREA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    word = m == MAP_FAILED ? NULL : m;
  }
  uint64_t device_word = word ? rt->map(word) : 0;
  bool started = start && start_thread();
  gw_lock(&late.lock);
  if (start) late.thread = started ? STARTED : NO_THREAD;
  bool lives = a->ctx == ctx; /* the context may have been destroyed, and this memory with it for the device */
  a->word = lives ? word : NULL;
  a->device_word = lives ? device_word : 0;
  a->busy = false;
  if (!device_word || (start && !started)) gw_log("the runtime or the system refuses what late entry needs; requests enter at once");
}

/* With the lock held: makes the request enter late. Returns its area, or NULL if it cannot. */
static struct area *arm(const struct gw_late_runtime *rt, void *ctx, uint64_t now) {
  struct area *a = area_for(ctx);
  if (a && a->ctx != ctx) { /* this request enters at once: what is prepared here serves the next */
    prepare(rt, ctx);
    return NULL;
  }
  if (!a || a->busy || !a->device_word || a->runtime != rt || late.thread != STARTED) return NULL;
  /* If this thread spins on its CPU, and the timer thread may run only there, nothing releases. */
  if (gw_thread_is_realtime()) return NULL;
  if (!++late.last_number) late.last_number = 1;
  if (!gw_late_arm(&gw_late_pending, a->word, late.last_number, now + late.choice.limit_ns)) return NULL;
  late.number = late.last_number;
  /* The exit handler, or gw_late_disable on another thread, may have released before the wait was armed. */
  if (__atomic_load_n(&exiting, __ATOMIC_SEQ_CST) || __atomic_load_n(&disabled, __ATOMIC_SEQ_CST)) release(late.number, BY_OTHER);
  return a;
}

/* With the lock held: follows a request that begins. */
static void begin(uint64_t launched) {
  late.barred = late.decided = false;
  late.number = late.point = 0;
  late.base = launched;
  late.sample = (struct gw_late_sample){0};
  __atomic_store_n(&next_check, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&gw_late_active, 1, __ATOMIC_RELAXED);
}

/* With the lock held: when commands have to be looked at again. */
static void set_next_check(void) {
  uint64_t at = ~0ull, commands = late.choice.shape ? late.choice.shape->commands : 0;
  if (commands && late.point < GW_LATE_POINTS) at = late.base + commands * (late.point + 1) / GW_LATE_POINTS;
  if (late.number && late.choice.release_at) {
    uint64_t planned = late.base + late.choice.release_at;
    if (__atomic_load_n(&gw_late_pending.armed, __ATOMIC_RELAXED) == late.number && planned < at) at = planned;
  }
  __atomic_store_n(&next_check, at, __ATOMIC_RELAXED);
}

/* With the lock held: notes the time at which points are passed, and releases at the planned one. */
static void pass_points(uint64_t launched) {
  uint64_t made = launched - late.base, commands = late.choice.shape->commands, now = gw_now() - late.began_ns;
  if (late.number && late.choice.release_at && made >= late.choice.release_at) release(late.number, BY_PLAN);
  for (; commands && late.point < GW_LATE_POINTS && made >= commands * (late.point + 1) / GW_LATE_POINTS; late.point++) {
    late.sample.point_ns[late.point] = now;
  }
  set_next_check();
}

/* With the lock held: the first kernel of a request decides how it enters. */
static struct area *decide(const struct gw_late_runtime *rt, void *ctx, uint64_t key, bool always, uint64_t launched) {
  struct area *a = NULL;
  late.decided = true;
  late.base = launched; /* copies ahead of it vary from request to request */
  late.began_ns = gw_now();
  late.choice = gw_late_choose(&late.plan, key, late.began_ns, always);
  if (late.choice.late) a = arm(rt, ctx, late.began_ns);
  if (!late.number) late.choice.late = false;
  set_next_check();
  return a;
}

/* The setting, or GW_LATE_OFF where late entry is not possible. */
static uint32_t mode(void) {
  uint32_t m = GW_READ(late_entry);
  bool off = m > GW_LATE_ON || __atomic_load_n(&disabled, __ATOMIC_RELAXED) || __atomic_load_n(&exiting, __ATOMIC_RELAXED) ||
             __atomic_load_n(&gw_ended, __ATOMIC_RELAXED) || !gw_page_attached() || !gw_orders_hold();
  return off ? GW_LATE_OFF : m;
}

/* Whether commands of the process are in flight. A request begins only if there are none. */
static bool is_in_flight(uint64_t launched) { return launched != GW_READ(completed); }

/* With the lock held: whether a command is the first of a request. A request that never made the
 * process ready does not end: it has had only commands that were done when their calls returned,
 * or its first launch has failed. */
static bool begins_anew(uint64_t launched) {
  if (is_in_flight(launched)) return false;
  if (!gw_late_active || !late.decided) return true;
  return launched == late.base && !__atomic_load_n(&gw_late_pending.armed, __ATOMIC_RELAXED);
}

static void command(const struct gw_late_runtime *rt, enum gw_late_kind kind, void *ctx, void *stream, uint64_t key) {
  uint32_t m = mode();
  if (m == GW_LATE_OFF) {
    release(0, BY_OTHER);
    __atomic_store_n(&gw_late_active, 0, __ATOMIC_RELAXED);
    return;
  }
  if (kind == GW_LATE_WAITS) gw_late_waits_now();
  if (kind == GW_LATE_RELEASES || kind == GW_LATE_BARS) release(0, BY_CALL);
  if (gw_capture_in_progress()) return;
  if (!__atomic_load_n(&gw_late_active, __ATOMIC_RELAXED) && is_in_flight(GW_READ(launched))) return;
  struct area *a = NULL;
  gw_lock(&late.lock);
  uint64_t launched = GW_READ(launched);
  if (begins_anew(launched)) begin(launched);
  if (late.decided) pass_points(launched);
  else if (kind == GW_LATE_BARS) late.barred = true;
  else if (kind == GW_LATE_KERNEL && !late.barred) a = decide(rt, ctx, key, m == GW_LATE_ON, launched);
  uint32_t n = late.number;
  uint64_t word = a ? a->device_word : 0;
  gw_unlock(&late.lock);
  if (!a || rt->wait(stream, word, n)) return;
  release(n, BY_OTHER);
  gw_lock(&late.lock);
  if (a->ctx == ctx) a->device_word = 0;
  gw_log("the runtime refuses to put a wait on a stream; requests enter at once");
  if (late.number == n) late.number = 0, late.choice.late = false;
  gw_unlock(&late.lock);
}

/* Whether a command changes nothing: most do not. */
static bool is_nothing_to_do(enum gw_late_kind kind) {
  if (kind < GW_LATE_QUIET || GW_READ(late_entry) == GW_LATE_OFF) return false;
  uint64_t launched = GW_READ(launched);
  bool active = __atomic_load_n(&gw_late_active, __ATOMIC_RELAXED);
  return active ? launched < __atomic_load_n(&next_check, __ATOMIC_RELAXED) : is_in_flight(launched);
}

void gw_late_command(const struct gw_late_runtime *rt, enum gw_late_kind kind, void *ctx, void *stream, uint64_t key) {
  if (__builtin_expect(is_nothing_to_do(kind), 1)) return;
  int before = errno;
  command(rt, kind, ctx, stream, key);
  errno = before;
}

/* With the lock held: counts a late request, and returns whether its sample is complete. */
static bool count_late(uint64_t now) {
  bool known = __atomic_load_n(&released.number, __ATOMIC_ACQUIRE) == late.number;
  uint64_t at = known ? released.at_ns : now;
  late.sample.released_ns = at > late.began_ns ? at - late.began_ns : 0;
  late.requests++;
  late.late_ns += late.sample.released_ns;
  if (known && released.by == BY_CALL && late.choice.release_at) late.early++;
  GW_WRITE(late_requests, late.requests);
  GW_WRITE(late_ns, late.late_ns);
  GW_WRITE(late_early, late.early);
  return known;
}

/* With the lock held: what pairs of requests have shown. */
static void write_pairs(void) {
  for (uint32_t i = 0; i < GW_RATIO_ENTRIES; i++) GW_WRITE(late_ratios[i], late.plan.ratios[i]);
  GW_WRITE(late_given_up, late.plan.given_up);
}

void gw_late_end(void) {
  release(0, BY_OTHER);
  uint64_t now = gw_now();
  gw_lock(&late.lock);
  if (gw_late_active && late.decided) {
    bool complete = !late.number || count_late(now);
    late.sample.done_ns = now - late.began_ns;
    if (complete && late.sample.waited_ns && !late.barred) {
      gw_late_learn(&late.plan, &late.choice, &late.sample, now);
      if (late.choice.compared && late.choice.late) write_pairs();
    }
  }
  late.decided = false;
  late.number = 0;
  __atomic_store_n(&gw_late_active, 0, __ATOMIC_RELAXED);
  gw_unlock(&late.lock);
}

void gw_late_forget(const struct gw_late_runtime *rt, void *ctx) {
  release(0, BY_OTHER);
  gw_lock(&late.lock);
  for (size_t i = 0; i < sizeof late.areas / sizeof *late.areas; i++) {
    /* The memory stays registered with this context until it is gone, so the next context gets
     * other memory. It stays allocated: the device may still read it. */
    struct area *a = &late.areas[i];
    if (a->runtime == rt && (ctx == GW_ALL || a->ctx == ctx)) a->ctx = NULL, a->device_word = 0, a->word = NULL;
  }
  gw_unlock(&late.lock);
}

void gw_late_disable(void) {
  __atomic_store_n(&disabled, 1, __ATOMIC_SEQ_CST);
  release(0, BY_OTHER);
}

void gw_late_publish(void) {
  gw_lock(&late.lock);
  GW_WRITE(late_requests, late.requests);
  GW_WRITE(late_ns, late.late_ns);
  GW_WRITE(late_early, late.early);
  write_pairs();
  gw_unlock(&late.lock);
}

void gw_late_forked(void) {
  /* The words are the parent's: the parent releases its own waits. */
  memset(&late, 0, sizeof late);
  memset(&gw_late_pending, 0, sizeof gw_late_pending);
  memset(&released, 0, sizeof released);
  gw_late_active = disabled = exiting = 0;
  next_check = 0;
}

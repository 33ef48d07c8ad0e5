/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "park.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "activity.h"
#include "cuda.h"
#include "env.h"
#include "late_word.h"
#include "page.h"
#include "predict.h"
#include "sys.h"
#include "thread.h"

/*
 * The parked kernel. It has one thread, which reports that it has begun and ends when the word
 * reaches its generation, or after a time on the device's own clock. It is written for the
 * oldest targets, so that every driver can compile it for every device.
 */
static const char kernel[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry giveway_park(.param .u64 p_word, .param .u32 p_generation, .param .u64 p_ns) {\n"
    "  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<6>;\n"
    "  ld.param.u64 %rd1, [p_word]; ld.param.u32 %r1, [p_generation]; ld.param.u64 %rd2, [p_ns];\n"
    "  cvta.to.global.u64 %rd1, %rd1;\n"
    "  st.volatile.global.u32 [%rd1+64], %r1; membar.sys;\n"
    "  mov.u64 %rd3, %globaltimer;\n"
    "WAIT:\n"
    "  ld.volatile.global.u32 %r2, [%rd1]; sub.s32 %r3, %r2, %r1; setp.ge.s32 %p, %r3, 0; @%p bra DONE;\n"
    "  mov.u64 %rd4, %globaltimer; sub.s64 %rd5, %rd4, %rd3; setp.lt.s64 %p, %rd5, %rd2; @%p bra WAIT;\n"
    "DONE:\n  ret;\n}\n";

#define AREA_SIZE 4096 /* bytes of host memory: the word, and at BEGUN_WORD the generation that has begun */
#define BEGUN_WORD 16  /* index in 4-byte words */
#define CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED 712
#define STARTING ~0u /* a value of cuda_parked: there is no parking thread yet, start it */
#define MAX_SLEEP_NS (100 * GW_MS_NS)
#define ACTIVE_SLEEP_NS (10 * GW_MS_NS) /* while requests come, which may become regular */
#define PREPARE_RETRY_NS GW_SECOND_NS   /* after an attempt to prepare during which the process was not idle */
#define LAUNCH_NS (500 * 1000ull)       /* a launch that takes longer may be waiting for the parked kernels */
#define ANNOUNCED_NS (5 * GW_SECOND_NS) /* for how long after an announced arrival none is predicted */

uint32_t cuda_parked, cuda_launch_pending, cuda_predicting;
void *cuda_park_context;

static struct {
  gw_lock_t lock; /* held while kernels are launched */
  bool exiting, disabled;
  /* What parking needs in a context, created once for each context. Nothing is parked in a
   * context that has no entry here or for which the driver refused what is needed. */
  struct prepared {
    void *ctx, *stream, *function, *module;
    /* Allocated by the library and not by the driver, so it outlives the context. Each context
     * registers its own, so that destroying one does not affect another. Mapped as shared
     * memory, so that after a fork the parent and the device still see the same page. */
    uint32_t *word;
    uint64_t device_word;
  } contexts[8];
  uint32_t *word; /* of the context in which the last kernels were parked */
  uint32_t generation;
} park;

/* The lock is held for a short time only, because the program's threads take it. */
static struct {
  gw_lock_t lock;
  struct gw_predictor predictor;
  uint64_t announced_ns; /* when the program or the owner last announced an arrival */
  uint64_t parked, hits, parked_ns, saved_ns;
} learned;

static uint32_t started;
static uint64_t announced_arrival; /* by the program; 0: none */
static uint64_t released_ns;       /* when the kernels were released */
static uint32_t released_by_launch;
static uint64_t arrived_in; /* page.idled + 1 at the last arrival */

/* Driver functions that only this file uses. */
static struct {
  int (*cuCtxSetCurrent)(void *);
  int (*cuLinkCreate_v2)(unsigned, void *, void *, void **);
  int (*cuLinkAddData_v2)(void *, int, void *, size_t, const char *, unsigned, void *, void *);
  int (*cuLinkComplete)(void *, void **, size_t *);
  int (*cuLinkDestroy)(void *);
  int (*cuModuleLoadData)(void **, const void *);
  int (*cuModuleGetFunction)(void **, void *, const char *);
  int (*cuStreamCreate)(void **, unsigned);
  int (*cuMemHostRegister_v2)(void *, size_t, unsigned);
  int (*cuMemHostGetDevicePointer_v2)(uint64_t *, void *, unsigned);
  int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
} driver;

static bool find_driver(void) {
#define FIND(name) if (!(*(void **)&driver.name = gw_library_symbol(&gw_cuda_library, #name))) return false
  FIND(cuCtxSetCurrent);
  FIND(cuLinkCreate_v2);
  FIND(cuLinkAddData_v2);
  FIND(cuLinkComplete);
  FIND(cuLinkDestroy);
  FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction);
  FIND(cuStreamCreate);
  FIND(cuMemHostRegister_v2);
  FIND(cuMemHostGetDevicePointer_v2);
  FIND(cuLaunchKernel);
#undef FIND
  return true;
}

/* A process that is ready has its context on the device or is about to. */
static bool is_idle(void) { return !(GW_READ(flags) & GW_READY) && GW_READ(gate) == GW_GATE_OPEN; }

/* The entry of a context, or NULL. With the lock held. */
static struct prepared *prepared_for(void *ctx) {
  for (size_t i = 0; i < sizeof park.contexts / sizeof *park.contexts; i++) {
    if (ctx && park.contexts[i].ctx == ctx) return &park.contexts[i];
  }
  return NULL;
}

/* The context to park in now, or NULL. */
static void *park_context(void) {
  if (park.exiting || park.disabled || gw_capture_in_progress()) return NULL;
  return __atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED);
}

/* Compiles the kernel and then loads it. Compiling takes 18 ms, and only loading blocks the
 * program's threads. It is not loaded while the program's kernels run, because loading might
 * wait for them, nor at the program's exit. Returns false if it was not loaded for these
 * reasons. */
static bool load(struct prepared *p) {
  void *linker, *code;
  size_t size;
  if (driver.cuLinkCreate_v2(0, NULL, NULL, &linker) != CUDA_SUCCESS) return true;
  bool idle = true;
  if (driver.cuLinkAddData_v2(linker, 1 /* PTX */, (void *)kernel, sizeof kernel, "giveway_park", 0, NULL, NULL) == CUDA_SUCCESS &&
      driver.cuLinkComplete(linker, &code, &size) == CUDA_SUCCESS && (idle = is_idle() && !__atomic_load_n(&park.exiting, __ATOMIC_SEQ_CST)) &&
      driver.cuModuleLoadData(&p->module, code) == CUDA_SUCCESS)
    driver.cuModuleGetFunction(&p->function, p->module, "giveway_park");
  driver.cuLinkDestroy(linker);
  return idle;
}

/* Prepares a context, if an entry is free. With the lock held. Returns false if it should be
 * tried again later. */
static bool prepare_context(void *ctx) {
  struct prepared *p = NULL;
  for (size_t i = 0; i < sizeof park.contexts / sizeof *park.contexts && !p; i++) {
    if (!park.contexts[i].ctx) p = &park.contexts[i];
  }
  if (!p || driver.cuCtxSetCurrent(ctx) != CUDA_SUCCESS) return true;
  if (!p->word) {
    void *m = mmap(NULL, AREA_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return true;
    p->word = m;
  }
  *p = (struct prepared){.word = p->word};
  if (!load(p)) return false;
  p->ctx = ctx; /* an entry without a stream: the driver has refused */
  int registered = driver.cuMemHostRegister_v2(p->word, AREA_SIZE, 3 /* portable, mapped */);
  if (!p->function || (registered != CUDA_SUCCESS && registered != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) ||
      driver.cuMemHostGetDevicePointer_v2(&p->device_word, p->word, 0) != CUDA_SUCCESS ||
      driver.cuStreamCreate(&p->stream, 1 /* CU_STREAM_NON_BLOCKING */) != CUDA_SUCCESS) {
    p->stream = NULL;
    gw_log("the driver refuses what parking needs; the device is not taken ahead of arrivals");
  }
  return true;
}

/* Prepares the current context, some time before it is needed. Returns false if it should be
 * tried again later. */
static bool prepare(void) {
  gw_lock(&park.lock);
  void *ctx = park_context();
  bool done = !ctx || prepared_for(ctx) || prepare_context(ctx);
  gw_unlock(&park.lock);
  return done;
}

/* Launches the two kernels, which end by themselves some time after until_ns. Returns false if
 * it is too late or the context is not prepared. */
static bool launch_parked(uint64_t arrival_ns, uint64_t until_ns) {
  bool ok = false;
  gw_lock(&park.lock);
  void *ctx = park_context();
  struct prepared *p = prepared_for(ctx);
  uint64_t now = gw_now();
  if (p && p->stream && is_idle() && now < arrival_ns && driver.cuCtxSetCurrent(ctx) == CUDA_SUCCESS) {
    uint64_t longest_ns = until_ns - now + GW_MS_NS;
    park.word = p->word;
    if (++park.generation == STARTING) park.generation = 1, __atomic_store_n(park.word, 0, __ATOMIC_RELEASE);
    void *args[] = {&p->device_word, &park.generation, &longest_ns};
    /* Set before the launch, so that an arrival during the launch releases the kernels. */
    __atomic_store_n(&released_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cuda_launch_pending, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cuda_parked, park.generation, __ATOMIC_RELEASE);
    ok = driver.cuLaunchKernel(p->function, 1, 1, 1, 1, 1, 1, 0, p->stream, args, NULL) == CUDA_SUCCESS &&
         driver.cuLaunchKernel(p->function, 1, 1, 1, 1, 1, 1, 0, p->stream, args, NULL) == CUDA_SUCCESS;
  }
  gw_unlock(&park.lock);
  if (!ok) cuda_unpark();
  return ok;
}

static void start_thread(void);

void cuda_unpark_now(bool hit) {
  uint32_t generation = __atomic_load_n(&cuda_parked, __ATOMIC_ACQUIRE);
  if (!generation) return;
  /* Before the kernels count as released: if this thread ends in between, another one does it again. */
  if (generation != STARTING) gw_late_advance(park.word, generation);
  if (!__atomic_compare_exchange_n(&cuda_parked, &generation, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  if (generation == STARTING) {
    start_thread();
    return;
  }
  __atomic_store_n(&released_by_launch, hit, __ATOMIC_RELAXED);
  __atomic_store_n(&released_ns, gw_now(), __ATOMIC_RELEASE);
}

/* The parking thread sleeps on a word of the page, so that the daemon can wake it too. It
 * sleeps for a limited time, because the page may be replaced meanwhile. */
static uint32_t read_expect_seq(void) { return __atomic_load_n(&gw_shared.page.expect_seq, __ATOMIC_ACQUIRE); }

/* Sleeps until at_ns, or until an arrival is announced; returns false in that case. */
static bool sleep_until(uint64_t at_ns, uint32_t seq) {
  while (gw_now() < at_ns) {
    if (read_expect_seq() != seq) return false;
    gw_futex_wait(&gw_shared.page.expect_seq, seq, at_ns, 1);
  }
  return true;
}

/* The same with a precision of a microsecond, as long as the process is idle. */
static bool wait_until(uint64_t at_ns, uint32_t seq) {
  uint64_t now = gw_now();
  if (now < at_ns) {
    gw_lock(&learned.lock);
    uint64_t until = at_ns - gw_predict_early(&learned.predictor, at_ns - now);
    gw_unlock(&learned.lock);
    if (!sleep_until(until, seq)) return false;
    now = gw_now();
    gw_lock(&learned.lock);
    gw_predict_woke(&learned.predictor, now - until);
    gw_unlock(&learned.lock);
  }
  while (gw_now() < at_ns && is_idle()) {
    if (read_expect_seq() != seq) return false;
  }
  return true;
}

/* When the next arrival is due, and whether it was announced or is predicted. */
struct arrival {
  uint64_t at_ns; /* 0: not known */
  bool announced;
};

static struct gw_payoff *payoff_of(bool announced) {
  return announced ? &learned.predictor.announced : &learned.predictor.predicted;
}

/* Holds the device for an arrival and records the outcome. */
static void hold_for(struct arrival arrival, uint64_t limit_ns) {
  uint64_t from = gw_now(), until = arrival.at_ns + limit_ns, took = 0, released;
  uint64_t launching = 0; /* since when a launch has been seen in progress */
  if (!launch_parked(arrival.at_ns, until)) return;
  while (!(released = __atomic_load_n(&released_ns, __ATOMIC_ACQUIRE))) {
    uint64_t now = gw_now();
    if (!took && __atomic_load_n(&park.word[BEGUN_WORD], __ATOMIC_ACQUIRE) == park.generation) took = now - from;
    if (!__atomic_load_n(&cuda_launch_pending, __ATOMIC_RELAXED)) launching = 0;
    else if (!launching) launching = now;
    if (now >= until || (launching && now - launching >= LAUNCH_NS)) cuda_unpark_now(false);
    if (now >= until + MAX_SLEEP_NS) { /* the thread that has released them never came to say so */
      __atomic_store_n(&released_by_launch, false, __ATOMIC_RELAXED);
      released = now;
      break;
    }
    /* The time until the first kernel begins determines the next lead, so it is measured
     * closely. */
    gw_sleep(took ? 20000 : 2000);
  }
  bool hit = __atomic_load_n(&released_by_launch, __ATOMIC_RELAXED);
  uint64_t held = released > from ? released - from : 0;
  gw_lock(&learned.lock);
  /* If the arrival came in time and found that the device was not taken yet, that takes longer. */
  if (took || (hit && released >= arrival.at_ns)) gw_predict_takeover(&learned.predictor, took ? took : held);
  gw_payoff_add(payoff_of(arrival.announced), hit, released);
  learned.parked++;
  learned.parked_ns += held;
  learned.hits += hit;
  /* The arrival was spared the part of the switch that was over. */
  if (hit) learned.saved_ns += took && took < held ? took : held;
  GW_WRITE(parked, learned.parked);
  GW_WRITE(park_hits, learned.hits);
  GW_WRITE(parked_ns, learned.parked_ns);
  GW_WRITE(saved_ns, learned.saved_ns);
  gw_unlock(&learned.lock);
}

/* The next arrival after `last`, for which the device was held: as announced by the program or the
 * owner, else as predicted. */
static struct arrival next_arrival(uint64_t last, uint64_t jitter, uint64_t limit) {
  uint64_t at = __atomic_load_n(&announced_arrival, __ATOMIC_RELAXED), owner_at = GW_READ(expect_ns), now = gw_now();
  uint64_t past = now > last ? now : last;
  if (owner_at > past && (at <= past || owner_at < at)) at = owner_at;
  gw_lock(&learned.lock);
  if (owner_at > now) learned.announced_ns = now;
  struct arrival next = {at, at > past};
  bool predict = !(learned.announced_ns && now - learned.announced_ns < ANNOUNCED_NS) && GW_READ(watch) & GW_PREDICT_ARRIVALS;
  if (!next.announced) next.at_ns = predict ? gw_predict_next(&learned.predictor, jitter, limit, past) : 0;
  if (gw_payoff_paused(payoff_of(next.announced), now)) next.at_ns = 0;
  gw_unlock(&learned.lock);
  return next;
}

static void *run(void *unused) {
  prctl(PR_SET_TIMERSLACK, 1000ul);
  prctl(PR_SET_NAME, "giveway-park");
  int relaxed = 2; /* the library's calls belong to no capture */
  if (cuda_driver()->cuThreadExchangeStreamCaptureMode) cuda_driver()->cuThreadExchangeStreamCaptureMode(&relaxed);
  uint64_t last = 0, prepare_at = 0;
  for (;;) {
    uint32_t seq = read_expect_seq();
    uint64_t max_lead = gw_page_attached() ? GW_READ(lead_us) * 1000ull : 0, limit = GW_READ(max_park_us) * 1000ull;
    if (max_lead && !gw_orders_hold()) max_lead = 0;
    if (max_lead > MAX_SLEEP_NS) max_lead = MAX_SLEEP_NS;
    if (limit > MAX_SLEEP_NS) limit = MAX_SLEEP_NS;
    /* So that a process that is never idle for long does not pay for it in every round. */
    if (max_lead && is_idle() && gw_now() >= prepare_at && !prepare()) prepare_at = gw_now() + PREPARE_RETRY_NS;
    uint64_t now = gw_now();
    gw_lock(&learned.lock);
    uint64_t lead = gw_predict_lead(&learned.predictor, max_lead);
    bool active = max_lead && gw_predict_active(&learned.predictor, now);
    gw_unlock(&learned.lock);
    struct arrival next = max_lead ? next_arrival(last, max_lead, limit) : (struct arrival){0};
    if (!next.at_ns || next.at_ns > now + lead + MAX_SLEEP_NS) {
      sleep_until(now + (active ? ACTIVE_SLEEP_NS : MAX_SLEEP_NS), seq); /* until then settings may change, or more be known */
      continue;
    }
    if (!wait_until(next.at_ns - lead, seq)) continue;
    last = next.at_ns;
    hold_for(next, limit);
  }
  return unused;
}

/* Runs before the driver's own exit handler, which was registered earlier. */
static void stop_parking(void) {
  __atomic_store_n(&park.exiting, true, __ATOMIC_SEQ_CST);
  /* The lock is held during driver calls. A call that does not return must not keep the
   * program from exiting. */
  for (int i = 0; i < 100; i++) {
    if (gw_trylock(&park.lock)) {
      gw_unlock(&park.lock);
      break;
    }
    gw_sleep(GW_MS_NS);
  }
  cuda_unpark();
}

static void start_thread(void) {
  uint32_t no = 0;
  if (!__atomic_compare_exchange_n(&started, &no, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  if (gw_env()->launches_block) return; /* the parking thread's too, with its lock held */
  if (find_driver() && atexit(stop_parking) == 0) gw_thread_start(run, 0);
}

void cuda_park_expect(uint64_t at_ns) {
  __atomic_store_n(&announced_arrival, at_ns, __ATOMIC_RELAXED);
  gw_lock(&learned.lock);
  learned.announced_ns = gw_now();
  gw_unlock(&learned.lock);
  __atomic_add_fetch(&gw_shared.page.expect_seq, 1, __ATOMIC_RELEASE);
  if (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) {
    if (__atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED) && GW_READ(lead_us)) start_thread();
    return;
  }
  gw_futex_wake(&gw_shared.page.expect_seq, 1, 1);
}

/* A request arrives when the launch of its first kernel begins: the device is held for that one, and
 * the launch of a large graph takes longer than the device needs to switch. Copies alone, for example
 * of the last request's results, are no request. The arrival is known before the launch releases the
 * parked kernels, so the parking thread does not look for the next one without it. */
void cuda_note_launch(void) {
  uint64_t in = GW_READ(idled) + 1;
  if (__atomic_load_n(&arrived_in, __ATOMIC_RELAXED) == in || gw_capture_in_progress()) return;
  if (__atomic_exchange_n(&arrived_in, in, __ATOMIC_RELAXED) == in) return;
  gw_lock(&learned.lock);
  gw_predict_arrival(&learned.predictor, gw_now());
  gw_unlock(&learned.lock);
}

void cuda_park_ready(void) {
  bool predict = GW_READ(watch) & GW_PREDICT_ARRIVALS;
  __atomic_store_n(&cuda_predicting, predict, __ATOMIC_RELAXED);
  if (!GW_READ(lead_us) || !(predict || GW_READ(expect_ns))) return;
  uint32_t none = 0;
  if (!__atomic_load_n(&started, __ATOMIC_RELAXED))
    __atomic_compare_exchange_n(&cuda_parked, &none, STARTING, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void cuda_park_gone(void *ctx) {
  for (size_t i = 0; i < sizeof park.contexts / sizeof *park.contexts; i++) {
    if (ctx == GW_ALL || park.contexts[i].ctx == ctx) park.contexts[i].ctx = NULL;
  }
  if (ctx == GW_ALL || __atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED) == ctx) {
    __atomic_store_n(&cuda_park_context, NULL, __ATOMIC_RELAXED);
  }
}

void cuda_park_stop(void) {
  gw_lock(&park.lock);
  cuda_unpark(); /* also kernels that were parked before the lock was taken */
}

void cuda_park_resume(void) { gw_unlock(&park.lock); }

void cuda_park_forget(void *ctx) {
  cuda_park_stop();
  cuda_park_gone(ctx);
  cuda_park_resume();
}

void cuda_park_disable(void) {
  cuda_park_stop();
  park.disabled = true;
  gw_unlock(&park.lock);
}

void cuda_park_forked(void) {
  memset(&park, 0, sizeof park);
  memset(&learned, 0, sizeof learned);
  cuda_parked = cuda_predicting = started = 0;
  cuda_park_context = NULL;
  announced_arrival = released_ns = arrived_in = 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "park.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "activity.h"
#include "cuda.h"
#include "page.h"
#include "predict.h"
#include "sys.h"

/*
 * One thread waits: it says that it has begun, and ends when the word has come
 * to its generation or after a time by the device's own clock. Written for the
 * oldest targets, so that any driver compiles it for any device.
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

#define WORDS 4096       /* bytes of memory: the word, and 64 further on who has begun */
#define BEGUN 16         /* in words of 4 bytes */
#define CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED 712
#define STARTING ~0u     /* in place of a generation: there is no thread yet, make one */
#define LOOK_NS (100 * GW_MS_NS)
#define AGAIN_NS GW_SECOND_NS       /* from an attempt to prepare that had no moment to the next */
#define STALE_NS (5 * GW_SECOND_NS) /* what the program says itself counts before what we predict, for so long */

uint32_t cuda_parked, cuda_hurry;
void *cuda_park_context;

static struct {
  gw_lock_t lock; /* held while kernels are launched */
  bool quitting, never;
  /* What parking needs in a context, made once in each. In a context for which
   * there is no place left, or which has refused, nobody parks. */
  struct place {
    void *ctx, *stream, *function, *module;
    /* Memory of ours and not of the driver's: it stays when the context goes. Each
     * context has registered its own, or one would lose it with another. And
     * shared, so that a fork does not part us from what the device reads. */
    uint32_t *word;
    uint64_t device_word;
  } places[8];
  uint32_t *word; /* of the place where the last kernels are */
  uint32_t generation;
} park;

/* Held for moments only: the program's own threads come here. */
static struct {
  gw_lock_t lock;
  struct gw_predictor predictor;
  uint64_t told_ns; /* when the program, or its owner, last told of an arrival */
  uint64_t parked, hits, parked_ns, saved_ns;
} learnt;

static uint32_t started;
static uint64_t expected;            /* what the program has told; 0: nothing */
static uint64_t let_go_ns;           /* when the kernels were let go */
static uint32_t let_go_by_an_arrival;

/* What we need of the driver, and only we. */
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

/* One that is at work has its context on the device, or is on its way there. */
static bool is_off(void) { return !(GW_READ(flags) & GW_READY) && GW_READ(gate) == GW_GATE_OPEN; }

/* The place of a context, or NULL. With the lock held. */
static struct place *place_of(void *ctx) {
  for (size_t i = 0; i < sizeof park.places / sizeof *park.places; i++) {
    if (ctx && park.places[i].ctx == ctx) return &park.places[i];
  }
  return NULL;
}

/* The context to park in now, or NULL. */
static void *context(void) {
  if (park.quitting || park.never || gw_anything_captures()) return NULL;
  return __atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED);
}

/* Compiled first and then loaded: it is for the second alone that the driver keeps the
 * program's threads out of the context, and compiling takes 18 ms. Not loaded beside the
 * program's own kernels, which that might wait for, nor at the program's end. Whether
 * there was a moment. */
static bool load(struct place *p) {
  void *linker, *code;
  size_t size;
  if (driver.cuLinkCreate_v2(0, NULL, NULL, &linker) != CUDA_SUCCESS) return true;
  bool moment = true;
  if (driver.cuLinkAddData_v2(linker, 1 /* PTX */, (void *)kernel, sizeof kernel, "giveway_park", 0, NULL, NULL) == CUDA_SUCCESS &&
      driver.cuLinkComplete(linker, &code, &size) == CUDA_SUCCESS && (moment = is_off() && !__atomic_load_n(&park.quitting, __ATOMIC_SEQ_CST)) &&
      driver.cuModuleLoadData(&p->module, code) == CUDA_SUCCESS)
    driver.cuModuleGetFunction(&p->function, p->module, "giveway_park");
  driver.cuLinkDestroy(linker);
  return moment;
}

/* Makes a place of a context, if there is room for one. With the lock held. Whether there
 * was a moment for it. */
static bool make_place(void *ctx) {
  struct place *p = NULL;
  for (size_t i = 0; i < sizeof park.places / sizeof *park.places && !p; i++) {
    if (!park.places[i].ctx) p = &park.places[i];
  }
  if (!p || driver.cuCtxSetCurrent(ctx) != CUDA_SUCCESS) return true;
  if (!p->word) {
    void *m = mmap(NULL, WORDS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return true;
    p->word = m;
  }
  *p = (struct place){.word = p->word};
  if (!load(p)) return false;
  p->ctx = ctx; /* without a stream: it has refused */
  int registered = driver.cuMemHostRegister_v2(p->word, WORDS, 3 /* portable, mapped */);
  if (!p->function || (registered != CUDA_SUCCESS && registered != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) ||
      driver.cuMemHostGetDevicePointer_v2(&p->device_word, p->word, 0) != CUDA_SUCCESS ||
      driver.cuStreamCreate(&p->stream, 1 /* CU_STREAM_NON_BLOCKING */) != CUDA_SUCCESS) {
    p->stream = NULL;
    gw_say("the device cannot be taken ahead of arrivals: the driver refuses what that needs");
  }
  return true;
}

/* Some time before a request, rather than just before it. Whether there was a moment. */
static bool prepare(void) {
  gw_lock(&park.lock);
  void *ctx = context();
  bool moment = !ctx || place_of(ctx) || make_place(ctx);
  gw_unlock(&park.lock);
  return moment;
}

/* Launches the two, to end by themselves a while after a time. Whether they are on their
 * way: not if it is too late, nor in a context that is not prepared. */
static bool take(uint64_t arrival_ns, uint64_t until_ns) {
  bool ok = false;
  gw_lock(&park.lock);
  void *ctx = context();
  struct place *p = place_of(ctx);
  uint64_t now = gw_now();
  if (p && p->stream && is_off() && now < arrival_ns && driver.cuCtxSetCurrent(ctx) == CUDA_SUCCESS) {
    uint64_t longest_ns = until_ns - now + GW_MS_NS;
    park.word = p->word;
    if (++park.generation == STARTING) park.generation = 1, __atomic_store_n(park.word, 0, __ATOMIC_RELEASE);
    void *args[] = {&p->device_word, &park.generation, &longest_ns};
    /* Before the launch: an arrival at this moment lets go of what comes after it. */
    __atomic_store_n(&let_go_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cuda_hurry, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cuda_parked, park.generation, __ATOMIC_RELEASE);
    ok = driver.cuLaunchKernel(p->function, 1, 1, 1, 1, 1, 1, 0, p->stream, args, NULL) == CUDA_SUCCESS &&
         driver.cuLaunchKernel(p->function, 1, 1, 1, 1, 1, 1, 0, p->stream, args, NULL) == CUDA_SUCCESS;
  }
  gw_unlock(&park.lock);
  if (!ok) cuda_unpark();
  return ok;
}

static void start_thread(void);

void cuda_unpark_now(bool arrived) {
  uint32_t generation = __atomic_exchange_n(&cuda_parked, 0, __ATOMIC_ACQ_REL);
  if (generation == STARTING) start_thread();
  if (!generation || generation == STARTING) return;
  __atomic_store_n(park.word, generation, __ATOMIC_RELEASE);
  __atomic_store_n(&let_go_by_an_arrival, arrived, __ATOMIC_RELAXED);
  __atomic_store_n(&let_go_ns, gw_now(), __ATOMIC_RELEASE);
}

/* What the thread sleeps on lies in the page, where the daemon can wake it too. It never
 * sleeps for long: the page may be another meanwhile. */
static uint32_t turn(void) { return __atomic_load_n(&gw_shared.page.expect_seq, __ATOMIC_ACQUIRE); }

/* Sleeps until then or until something is told. Whether nothing was. */
static bool sleep_until(uint64_t at_ns, uint32_t heard) {
  while (gw_now() < at_ns) {
    if (turn() != heard) return false;
    gw_futex_wait(&gw_shared.page.expect_seq, heard, at_ns, 1);
  }
  return true;
}

/* The same to the microsecond, if there is a use. */
static bool wait_until(uint64_t at_ns, uint32_t heard) {
  uint64_t now = gw_now();
  if (now < at_ns) {
    gw_lock(&learnt.lock);
    uint64_t until = at_ns - gw_predict_early(&learnt.predictor, at_ns - now);
    gw_unlock(&learnt.lock);
    if (!sleep_until(until, heard)) return false;
    now = gw_now();
    gw_lock(&learnt.lock);
    gw_predict_woke(&learnt.predictor, now - until);
    gw_unlock(&learnt.lock);
  }
  while (gw_now() < at_ns && is_off()) {
    if (turn() != heard) return false;
  }
  return true;
}

/* Holds the device for an arrival, and sees what comes of it. */
static void hold_for(uint64_t arrival_ns, uint64_t patience_ns) {
  uint64_t from = gw_now(), until = arrival_ns + patience_ns, took = 0, let_go;
  int hurried = 0; /* how often a launch was seen under way */
  if (!take(arrival_ns, until)) return;
  while (!(let_go = __atomic_load_n(&let_go_ns, __ATOMIC_ACQUIRE))) {
    uint64_t now = gw_now();
    if (!took && __atomic_load_n(&park.word[BEGUN], __ATOMIC_ACQUIRE) == park.generation) took = now - from;
    if (__atomic_load_n(&cuda_hurry, __ATOMIC_RELAXED) && hurried++) cuda_unpark_now(true);
    else if (now >= until) cuda_unpark_now(false);
    /* How soon it had begun is what the next lead is made of: looked at closely. */
    gw_sleep(took ? 20000 : 2000);
  }
  bool came = __atomic_load_n(&let_go_by_an_arrival, __ATOMIC_RELAXED);
  uint64_t held = let_go > from ? let_go - from : 0;
  gw_lock(&learnt.lock);
  if (took) gw_predict_takeover(&learnt.predictor, took);
  gw_predict_outcome(&learnt.predictor, came, let_go);
  learnt.parked++;
  learnt.parked_ns += held;
  learnt.hits += came;
  /* What the arrival did not have to wait for: as much of the switch as was over. */
  if (came) learnt.saved_ns += took && took < held ? took : held;
  GW_SHOW(parked, learnt.parked);
  GW_SHOW(park_hits, learnt.hits);
  GW_SHOW(parked_ns, learnt.parked_ns);
  GW_SHOW(saved_ns, learnt.saved_ns);
  gw_unlock(&learnt.lock);
}

/* When the next arrival is due, or 0: as is said, by the program itself or by its owner,
 * else as it has been. */
static uint64_t next_arrival(uint64_t now, uint64_t lead, uint64_t last) {
  uint64_t at = __atomic_load_n(&expected, __ATOMIC_RELAXED), owners = GW_READ(expect_ns);
  uint64_t past = now > last ? now : last;
  if (owners > past && (at <= past || owners < at)) at = owners;
  gw_lock(&learnt.lock);
  if (owners > now) learnt.told_ns = now;
  if (at > past) {
    gw_unlock(&learnt.lock);
    return at;
  }
  bool told = learnt.told_ns && now - learnt.told_ns < STALE_NS;
  at = !told && GW_READ(watch) & GW_PREDICT_ARRIVALS ? gw_predict_next(&learnt.predictor, lead) : 0;
  gw_unlock(&learnt.lock);
  return at > now ? at : 0;
}

static void *run(void *unused) {
  prctl(PR_SET_TIMERSLACK, 1000ul);
  prctl(PR_SET_NAME, "giveway-park");
  int relaxed = 2; /* what we do is in nobody's graph */
  if (cuda_driver()->cuThreadExchangeStreamCaptureMode) cuda_driver()->cuThreadExchangeStreamCaptureMode(&relaxed);
  uint64_t last = 0, prepare_at = 0;
  for (;;) {
    uint32_t heard = turn();
    uint64_t most = gw_page_is_there() ? GW_READ(lead_us) * 1000ull : 0, patience = GW_READ(max_park_us) * 1000ull;
    if (most > LOOK_NS) most = LOOK_NS;
    if (patience > LOOK_NS) patience = LOOK_NS;
    /* A program that is never idle for long is not to pay for that at every turn. */
    if (most && is_off() && gw_now() >= prepare_at && !prepare()) prepare_at = gw_now() + AGAIN_NS;
    uint64_t now = gw_now();
    gw_lock(&learnt.lock);
    uint64_t lead = gw_predict_lead(&learnt.predictor, most);
    bool rests = gw_predict_resting(&learnt.predictor, now);
    gw_unlock(&learnt.lock);
    uint64_t at = most && !rests ? next_arrival(now, lead, last) : 0;
    if (!at || at <= last || now + lead > at + patience || at > now + lead + LOOK_NS) {
      sleep_until(now + LOOK_NS, heard); /* much may change until then */
      continue;
    }
    if (!wait_until(at - lead, heard)) continue;
    last = at;
    hold_for(at, patience);
  }
  return unused;
}

/* Before the driver's own end, which was set up before ours. */
static void quit(void) {
  __atomic_store_n(&park.quitting, true, __ATOMIC_SEQ_CST);
  /* Held while the driver is called: one that does not come back must not keep the
   * program from its end. */
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
  int (*create)(unsigned long *, const void *, void *(*)(void *), void *) = gw_real_dlsym(RTLD_DEFAULT, "pthread_create");
  int (*detach)(unsigned long) = gw_real_dlsym(RTLD_DEFAULT, "pthread_detach");
  if (!create || !detach || !find_driver() || atexit(quit) != 0) return;
  sigset_t all, before;
  sigfillset(&all); /* without the C library's own: setuid waits for every thread to take one */
  sigprocmask(SIG_SETMASK, &all, &before);
  unsigned long thread;
  if (create(&thread, NULL, run, NULL) == 0) detach(thread);
  sigprocmask(SIG_SETMASK, &before, NULL);
}

void cuda_park_expect(uint64_t at_ns) {
  __atomic_store_n(&expected, at_ns, __ATOMIC_RELAXED);
  gw_lock(&learnt.lock);
  learnt.told_ns = gw_now();
  gw_unlock(&learnt.lock);
  __atomic_add_fetch(&gw_shared.page.expect_seq, 1, __ATOMIC_RELEASE);
  if (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) {
    if (__atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED) && GW_READ(lead_us)) start_thread();
    return;
  }
  gw_futex_wake(&gw_shared.page.expect_seq, 1, 1);
}

void cuda_park_ready(uint64_t at_ns) {
  bool predict = GW_READ(watch) & GW_PREDICT_ARRIVALS;
  if (!GW_READ(lead_us) || !(predict || GW_READ(expect_ns))) return;
  if (predict) {
    gw_lock(&learnt.lock);
    gw_predict_arrival(&learnt.predictor, at_ns);
    gw_unlock(&learnt.lock);
  }
  uint32_t none = 0;
  if (!__atomic_load_n(&started, __ATOMIC_RELAXED))
    __atomic_compare_exchange_n(&cuda_parked, &none, STARTING, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* With the lock held. */
static void forget(void *ctx) {
  for (size_t i = 0; i < sizeof park.places / sizeof *park.places; i++) {
    if (ctx == GW_ALL || park.places[i].ctx == ctx) park.places[i].ctx = NULL;
  }
  if (ctx == GW_ALL || __atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED) == ctx) {
    __atomic_store_n(&cuda_park_context, NULL, __ATOMIC_RELAXED);
  }
}

void cuda_park_stop(void) {
  gw_lock(&park.lock);
  cuda_unpark(); /* what was launched before we had the lock too */
}

void cuda_park_go_on(bool gone) {
  if (gone) forget(GW_ALL);
  gw_unlock(&park.lock);
}

void cuda_park_forget(void *ctx) {
  cuda_park_stop();
  forget(ctx);
  gw_unlock(&park.lock);
}

void cuda_park_never(void) {
  cuda_park_stop();
  park.never = true;
  gw_unlock(&park.lock);
}

void cuda_park_forked(void) {
  memset(&park, 0, sizeof park);
  memset(&learnt, 0, sizeof learnt);
  cuda_parked = started = 0;
  cuda_park_context = NULL;
  expected = let_go_ns = 0;
}

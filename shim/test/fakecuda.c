/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda for tests. It has no device, but streams that run in order, with a delay, on their
 * own threads; a legacy default stream that is ordered with the blocking ones; per-thread
 * default streams; events across streams; captures and graphs. A kernel is a C function whose
 * parameters are a count and as many words.
 *
 * It is as strict as the real driver where the shim could go wrong: a call that is forbidden
 * during a capture invalidates the capture, a mark in a captured stream becomes part of the
 * graph, and the use of a destroyed event ends the program. A call on memory of the host waits
 * where CUDA's documentation says so ("API synchronization behavior").
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NOT_FOUND = 500, NOT_READY = 600 };
enum { UNSUPPORTED = 900, INVALIDATED = 901, UNMATCHED = 903, IMPLICIT = 906, CAPTURED_EVENT = 907 };
enum { GLOBAL, THREAD_LOCAL, RELAXED };
enum { STREAMS = 64, OPS = 4096, NODES = 1024 };
enum { PAGEABLE, HOST, DEVICE }; /* CUmemorytype */
#define ALIVE 0x616c697665ull

typedef unsigned long long ptr;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph;

struct op {
  void (*run)(struct op *);
  void *fn, *data;
  ptr to, from;
  size_t bytes, width;
  uint64_t words[8];
  int counts;
  uint64_t after[STREAMS]; /* how much of each other stream must be done before */
};

struct graph {
  struct op nodes[NODES];
  int count, spoilt, mode;
  pthread_t by;
};

struct stream {
  uint64_t alive;
  int used, blocking, priority;
  void *ctx;
  struct op *ops[OPS];
  uint64_t given, done;
  uint64_t waits[STREAMS]; /* for events of other streams, from the next op on */
  struct graph *graph;     /* of the capture in progress */
  int origin;
};

struct event {
  uint64_t alive;
  void *ctx;
  struct event *next;
  CUstream stream;
  uint64_t at;
  struct graph *graph;
};

static struct stream streams[STREAMS]; /* 0: legacy */
static struct graph *graphs[STREAMS];  /* of captures in progress */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static uint64_t commands, in_flight, most;
static int context;
static CUevent events; /* all that were ever created */
static __thread void *current = &context;
static __thread CUstream own;
static __thread int thread_mode = GLOBAL;

static void die(const char *why) {
  fprintf(stderr, "fakecuda: %s\n", why);
  abort();
}

static void delay(unsigned *seed) {
  struct timespec t = {0, (*seed = *seed * 1103515245 + 12345) >> 16 & 0x3fff};
  nanosleep(&t, NULL);
}

static void *work(void *arg) {
  CUstream s = arg;
  unsigned seed = (unsigned)(s - streams) + 1;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (s->done == s->given) pthread_cond_wait(&moved, &lock);
    struct op *op = s->ops[s->done % OPS];
    for (int i = 0; i < STREAMS; i++) {
      while (streams[i].done < op->after[i]) pthread_cond_wait(&moved, &lock);
    }
    pthread_mutex_unlock(&lock);
    if (op->counts) delay(&seed);
    op->run(op);
    pthread_mutex_lock(&lock);
    in_flight -= (uint64_t)op->counts;
    s->done++;
    free(op);
    pthread_cond_broadcast(&moved);
  }
  return NULL;
}

/* The functions below are called with the lock held, unless their comment says otherwise. */

static CUstream open_stream(int at, int blocking) {
  pthread_t t;
  for (; at < STREAMS && (streams[at].used || streams[at].given != streams[at].done); at++) {}
  if (at == STREAMS) die("no more streams");
  CUstream s = &streams[at];
  uint64_t n = s->given; /* its thread still exists, if it ever did */
  int has_thread = s->alive != 0;
  *s = (struct stream){.alive = ALIVE, .used = 1, .blocking = blocking, .given = n, .done = n};
  if (!has_thread) pthread_create(&t, NULL, work, s);
  return s;
}

static pthread_key_t own_key;
static int has_own_key;
static CUstream open_own(void) {
  own = open_stream(1, 1);
  if (has_own_key) pthread_setspecific(own_key, own);
  return own;
}

static CUstream stream_for(CUstream s, int own_default) {
  if (!s) s = (CUstream)(own_default ? 2ul : 1ul);
  if (s == (CUstream)1) return streams[0].used ? &streams[0] : open_stream(0, 0);
  if (!streams[0].used) open_stream(0, 0);
  if (s == (CUstream)2) return own ? own : open_own();
  if (s->alive != ALIVE || !s->used) die("no such stream");
  return s;
}

/* The capture that a command on the legacy stream would join, if any. */
static struct graph *implicit(CUstream s) {
  for (int i = 1; s == &streams[0] && i < STREAMS; i++) {
    if (streams[i].used && streams[i].blocking && streams[i].graph) return streams[i].graph;
  }
  return NULL;
}

/* Whether a call is forbidden because a capture is in progress. */
static int unsafe(void) {
  int bad = 0;
  for (int i = 0; i < STREAMS; i++) {
    struct graph *g = graphs[i];
    if (!g || g->mode == RELAXED || thread_mode == RELAXED) continue;
    if (g->mode == THREAD_LOCAL && !pthread_equal(g->by, pthread_self())) continue;
    g->spoilt = bad = 1;
  }
  return bad ? UNSUPPORTED : OK;
}

static void join(CUstream s, struct op *op) {
  memcpy(op->after, s->waits, sizeof op->after);
  for (int i = 0; i < STREAMS; i++) {
    int waits = s == &streams[0] ? streams[i].blocking : s->blocking && i == 0;
    if (waits && op->after[i] < streams[i].given) op->after[i] = streams[i].given;
  }
  memset(s->waits, 0, sizeof s->waits);
}

static int put(CUstream s, struct op op) {
  struct graph *g = implicit(s);
  if (g) {
    g->spoilt = 1;
    return IMPLICIT;
  }
  if (s->graph) {
    if (s->graph->spoilt) return INVALIDATED;
    if (s->graph->count == NODES) die("too many nodes");
    s->graph->nodes[s->graph->count++] = op;
    return OK;
  }
  while (s->given - s->done >= OPS) pthread_cond_wait(&moved, &lock);
  struct op *o = malloc(sizeof op);
  *o = op;
  join(s, o);
  s->ops[s->given++ % OPS] = o;
  commands += (uint64_t)op.counts;
  in_flight += (uint64_t)op.counts;
  if (in_flight > most) most = in_flight;
  pthread_cond_broadcast(&moved);
  return OK;
}

/* Waits for a word that have not been released, on any stream. */
static void run_stop(struct op *op);
static int is_released(const struct op *op) {
  return (int32_t)(__atomic_load_n((uint32_t *)op->to, __ATOMIC_ACQUIRE) - (uint32_t)op->words[0]) >= 0;
}
static uint64_t unreleased(void) {
  uint64_t n = 0;
  for (int i = 0; i < STREAMS; i++) {
    for (uint64_t k = streams[i].done; k < streams[i].given; k++) {
      const struct op *op = streams[i].ops[k % OPS];
      n += op->run == run_stop && !is_released(op);
    }
  }
  return n;
}

/* How often a program waited, or asked for completion, while such a wait was on a stream. */
static uint64_t blocked;
static void wait_for(CUstream s, uint64_t seq) {
  if (s->done < seq && unreleased()) blocked++;
  while (s->done < seq) pthread_cond_wait(&moved, &lock);
}

/* Without the lock: gives a stream one command or a part of one. wait: until it is done. */
static int give_part(CUstream stream, int own_default, int wait, struct op op) {
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, own_default);
  int r = wait ? unsafe() : OK;
  if (r == OK) r = put(s, op);
  if (r == OK && wait) wait_for(s, s->given);
  pthread_mutex_unlock(&lock);
  return r;
}

static int give(CUstream stream, int own_default, int wait, struct op op) {
  op.counts = 1;
  return give_part(stream, own_default, wait, op);
}

static void run_kernel(struct op *op) { ((void (*)(uint64_t *))op->fn)(op->words); }
static void run_host(struct op *op) { ((void (*)(void *))op->fn)(op->data); }
static void run_copy(struct op *op) {
  memcpy((void *)op->to, op->data ? op->data : (void *)op->from, op->bytes);
  /* staged data is never freed: a graph may copy it again */
}
static void run_set(struct op *op) {
  for (size_t i = 0; i < op->bytes; i++) memcpy((char *)op->to + i * op->width, op->words, op->width);
}
static void run_graph(struct op *op) {
  struct graph *g = op->data;
  for (int i = 0; i < g->count; i++) g->nodes[i].run(&g->nodes[i]);
}
static void run_nothing(struct op *op) { (void)op; }

static struct op kernel(void *f, void **params) {
  struct op op = {.run = run_kernel, .fn = f};
  uint64_t n = params ? *(uint64_t *)params[0] : 0;
  if (n > 8) die("too many parameters");
  for (uint64_t i = 0; i < n; i++) op.words[i] = *(uint64_t *)params[i + 1];
  return op;
}

static int memory_at(ptr p, int *managed);
/* A copy from memory that the driver does not know is taken at once. */
static struct op from_host(ptr to, const void *from, size_t n) {
  int managed;
  if (memory_at((ptr)from, &managed) != PAGEABLE) return (struct op){.run = run_copy, .to = to, .from = (ptr)from, .bytes = n};
  struct op op = {.run = run_copy, .to = to, .bytes = n, .data = malloc(n ? n : 1)};
  memcpy(op.data, from, n);
  return op;
}
static struct op copy(ptr to, ptr from, size_t n) { return (struct op){.run = run_copy, .to = to, .from = from, .bytes = n}; }
static struct op set(ptr to, uint64_t value, size_t n, size_t width) {
  return (struct op){.run = run_set, .to = to, .words = {value}, .bytes = n, .width = width};
}

/* Defines a function and its form for per-thread default streams. */
#define TWO(name, suffix, params, body)                        \
  int name params { enum { O = 0 }; body }                     \
  int name##suffix params { enum { O = 1 }; body }
#define GIVE(stream, wait, op) return give(stream, O, wait, op);

struct attribute {
  int id;
  CUevent event;
  char rest[56];
};
struct config {
  unsigned shape[7];
  CUstream stream;
  struct attribute *attributes;
  unsigned count;
};
static int record(CUevent e, CUstream stream, int own_default);
/* Launches, and records an event where an attribute says so: 12 is that of a completed launch. */
static int launch_with(const struct config *c, struct op op, int own_default) {
  int r = give(c->stream, own_default, 0, op);
  for (unsigned i = 0; r == OK && i < c->count; i++) {
    if (c->attributes[i].id == 12) r = record(c->attributes[i].event, c->stream, own_default);
  }
  return r;
}

/* The only kernel that comes as PTX: it waits for a word of host memory. The fake device takes
 * some time to switch to it, as real ones do. */
#define SWITCH_NS 2000000
static int park_module;
static uint64_t parks, parks_late, parks_early; /* early: while a launch was in progress */
static unsigned launching;
unsigned fakeLaunchUs; /* how long the launch of a kernel takes, for the tests */
static void take_time(void) {
  unsigned us = __atomic_load_n(&fakeLaunchUs, __ATOMIC_RELAXED);
  if (!us) return;
  __atomic_store_n(&launching, 1, __ATOMIC_RELEASE);
  usleep(us);
  __atomic_store_n(&launching, 0, __ATOMIC_RELEASE);
}
static void run_park(struct op *op) {
  struct timespec from, now;
  volatile uint32_t *word = (volatile uint32_t *)op->words[0];
  nanosleep(&(struct timespec){0, SWITCH_NS}, NULL);
  clock_gettime(CLOCK_MONOTONIC, &from);
  __atomic_store_n(word + 16, (uint32_t)op->words[1], __ATOMIC_RELEASE);
  for (;;) {
    if ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - (uint32_t)op->words[1]) >= 0) break;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)(now.tv_sec - from.tv_sec) * 1000000000ull + (uint64_t)now.tv_nsec - (uint64_t)from.tv_nsec;
    if (ns > op->words[2]) {
      __atomic_add_fetch(&parks_late, 1, __ATOMIC_RELAXED);
      break;
    }
    nanosleep(&(struct timespec){0, 10000}, NULL);
  }
  parks_early += __atomic_load_n(&launching, __ATOMIC_ACQUIRE);
  __atomic_add_fetch(&parks, 1, __ATOMIC_RELEASE);
}
/* A kernel must be compiled by a linker and then loaded as a module: loading PTX directly would
 * compile it while the context is locked. The linker's output is invalid after the linker is
 * destroyed. */
static char park_code;
static enum { NO_LINKER, LINKER, HAS_DATA, COMPLETE } park_linker;
int fakeCompiled, fakeLoaded; /* how often it was completed */
void (*fakeCompiling)(void);  /* called during compilation */
int cuLinkCreate_v2(unsigned n, void *options, void *values, void **linker) {
  if (n || options || values || park_linker != NO_LINKER) return INVALID;
  return park_linker = LINKER, *linker = &park_linker, OK;
}
int cuLinkAddData_v2(void *linker, int type, void *data, size_t size, const char *name, unsigned n, void *options, void *values) {
  if (linker != &park_linker || park_linker != LINKER || type != 1 || !name || n || options || values) return INVALID;
  if (memchr(data, 0, size) != (char *)data + size - 1 || !strstr(data, ".entry giveway_park(")) return INVALID;
  return park_linker = HAS_DATA, OK;
}
int cuLinkComplete(void *linker, void **code, size_t *size) {
  if (linker != &park_linker || park_linker != HAS_DATA) return INVALID;
  if (fakeCompiling) fakeCompiling();
  return park_linker = COMPLETE, *code = &park_code, *size = 1, OK;
}
int cuLinkDestroy(void *linker) {
  __atomic_add_fetch(&fakeCompiled, 1, __ATOMIC_RELEASE);
  return linker == &park_linker && park_linker ? (park_linker = NO_LINKER, OK) : INVALID;
}
int cuModuleLoadData(void **module, const void *code) {
  __atomic_add_fetch(&fakeLoaded, 1, __ATOMIC_RELAXED);
  return code == &park_code && park_linker == COMPLETE ? (*module = &park_module, OK) : INVALID;
}
int cuModuleGetFunction(void **f, void *module, const char *name) {
  if (module != &park_module || strcmp(name, "giveway_park") != 0) return NOT_FOUND;
  return *f = (void *)run_park, OK;
}
/* Host memory that is known to the driver. The device has it at another address. */
#define ALIAS (1ull << 62)
static struct {
  void *ctx;
  ptr from;
} registered[64];
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
  if (!p || n != 4096 || flags != 3) return INVALID;
  int r = INVALID;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 64 && r == INVALID; i++) {
    if (registered[i].from == (ptr)p) r = 712;
    else if (!registered[i].from) registered[i].from = (ptr)p, registered[i].ctx = current, r = unsafe();
  }
  pthread_mutex_unlock(&lock);
  return r;
}
static int is_registered(ptr p) {
  int r = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 64; i++) r |= registered[i].from && p - registered[i].from < 4096;
  pthread_mutex_unlock(&lock);
  return r;
}
int cuMemHostGetDevicePointer_v2(ptr *to, void *p, unsigned flags) {
  return flags || !is_registered((ptr)p) ? INVALID : (*to = (ptr)p | ALIAS, OK);
}
/* Memory that the program has allocated, except by cuMemAllocAsync: all other memory that is not
 * registered is pageable. */
static struct {
  ptr from;
  size_t bytes;
  int type, managed;
} memory[1 << 16];
static int memories;
static ptr allocate(size_t n, int type, int managed) {
  ptr p = (ptr)calloc(1, n ? n : 1);
  pthread_mutex_lock(&lock);
  if (memories == sizeof memory / sizeof *memory) die("too many allocations");
  memory[memories].from = p, memory[memories].bytes = n;
  memory[memories].type = type, memory[memories++].managed = managed;
  pthread_mutex_unlock(&lock);
  return p;
}
static int memory_at(ptr p, int *managed) {
  int type = is_registered(p & ~ALIAS) ? HOST : PAGEABLE;
  *managed = 0;
  pthread_mutex_lock(&lock);
  for (int i = memories - 1; i >= 0 && type == PAGEABLE; i--) {
    if (p - memory[i].from < memory[i].bytes) type = memory[i].type, *managed = memory[i].managed;
  }
  pthread_mutex_unlock(&lock);
  return type;
}
/* As the real one it succeeds for memory that it does not know, with zeros. */
int cuPointerGetAttributes(unsigned n, const int *what, void **data, ptr p) {
  int managed, type = memory_at(p, &managed);
  for (unsigned i = 0; i < n; i++) {
    if (what[i] == 2) *(unsigned *)data[i] = (unsigned)type;
    else if (what[i] == 8) *(unsigned *)data[i] = (unsigned)managed;
    else return INVALID;
  }
  return OK;
}
static int is_device(ptr p) {
  int managed;
  return memory_at(p, &managed) == DEVICE && !managed;
}
static int launch_park(CUstream s, void **params) {
  uint64_t word = *(uint64_t *)params[0] & ~ALIAS;
  struct op op = {.run = run_park, .words = {word, *(uint32_t *)params[1], *(uint64_t *)params[2]}};
  return give_part(s, 0, 0, op);
}

/* Stops the stream until the word has reached the value, for ever if nothing writes it. */
static uint64_t stops;
static void run_stop(struct op *op) {
  while (!is_released(op)) nanosleep(&(struct timespec){0, 10000}, NULL);
}
TWO(cuStreamWaitValue32_v2, _ptsz, (CUstream s, ptr p, unsigned value, unsigned flags), {
  if (flags || !(p & ALIAS) || !is_registered(p & ~ALIAS) || p % 4) return INVALID;
  __atomic_add_fetch(&stops, 1, __ATOMIC_RELAXED);
  return give_part(s, O, 0, (struct op){.run = run_stop, .to = p & ~ALIAS, .words = {value}});
})

#define LAUNCH \
  void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned m, CUstream s, void **params
#define SHAPE_IS_RIGHT \
  if (a != 1 || b != 2 || c != 3 || d != 4 || e != 5 || g != 6 || m != 7) return INVALID;
TWO(cuLaunchKernel, _ptsz, (LAUNCH, void **extra), if (f == (void *)run_park) return launch_park(s, params); SHAPE_IS_RIGHT if (extra) return INVALID; take_time(); GIVE(s, 0, kernel(f, params)))
TWO(cuLaunchCooperativeKernel, _ptsz, (LAUNCH), SHAPE_IS_RIGHT GIVE(s, 0, kernel(f, params)))
TWO(cuLaunchKernelEx, _ptsz, (struct config * c, void *f, void **params, void **extra),
    if (extra) return INVALID; return launch_with(c, kernel(f, params), O);)
TWO(cuLaunchHostFunc, _ptsz, (CUstream s, void *f, void *data), GIVE(s, 0, ((struct op){.run = run_host, .fn = f, .data = data})))
TWO(cuLaunchHostFunc_v2, _ptsz, (CUstream s, void *f, void *data, unsigned mode),
    if (mode != 1) return INVALID; GIVE(s, 0, ((struct op){.run = run_host, .fn = f, .data = data})))
/* A copy of 64 KiB or less takes the data with it and does not wait ("Concurrent execution between host and
 * device" in CUDA's programming guide). */
static int copy_in(ptr to, const void *from, size_t n, int own_default) {
  if (n > 65536) return give(0, own_default, 1, from_host(to, from, n));
  struct op op = {.run = run_copy, .to = to, .bytes = n, .data = malloc(n ? n : 1)};
  memcpy(op.data, from, n);
  pthread_mutex_lock(&lock);
  int r = unsafe();
  pthread_mutex_unlock(&lock);
  return r ? r : give(0, own_default, 0, op);
}
TWO(cuMemcpyHtoD_v2, _ptds, (ptr to, void *from, size_t n), return copy_in(to, from, n, O);)
/* Copies one row. To the host it is done when the call returns. */
struct rectangle {
  size_t from_x, from_y;
  unsigned from_type;
  void *from_host;
  ptr from, from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_type;
  void *to_host;
  ptr to, to_array;
  size_t to_pitch, width, height;
};
TWO(cuMemcpy2DUnaligned_v2, _ptds, (const struct rectangle *r),
    if (r->height != 1 || r->from_type != DEVICE) return INVALID;
    GIVE(0, r->to_type == HOST, copy(r->to_type == HOST ? (ptr)r->to_host : r->to, r->from, r->width)))
TWO(cuMemcpyDtoH_v2, _ptds, (void *to, ptr from, size_t n), GIVE(0, 1, copy((ptr)to, from, n)))
TWO(cuMemcpyDtoD_v2, _ptds, (ptr to, ptr from, size_t n), GIVE(0, 0, copy(to, from, n)))
TWO(cuMemcpyHtoDAsync_v2, _ptsz, (ptr to, void *from, size_t n, CUstream s), GIVE(s, 0, from_host(to, from, n)))
/* To memory that the driver does not know the copy is done when the call returns. */
static int copy_back(struct op op, CUstream stream, int own_default) {
  int managed, waits = memory_at(op.to, &managed) == PAGEABLE;
  op.counts = 1;
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, own_default);
  int r = put(s, op);
  if (r == OK && !s->graph && waits) wait_for(s, s->given);
  pthread_mutex_unlock(&lock);
  return r;
}
TWO(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, ptr from, size_t n, CUstream s), return copy_back(copy((ptr)to, from, n), s, O);)
TWO(cuMemcpyDtoDAsync_v2, _ptsz, (ptr to, ptr from, size_t n, CUstream s), GIVE(s, 0, copy(to, from, n)))
/* Between host and host the copy is done when the call returns. */
static int copy_any(ptr to, ptr from, size_t n, CUstream stream, int own_default) {
  int waits = !is_device(to) && !is_device(from);
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, own_default);
  struct op op = copy(to, from, n);
  op.counts = 1;
  int r = put(s, op);
  if (r == OK && !s->graph && waits) wait_for(s, s->given);
  pthread_mutex_unlock(&lock);
  return r;
}
TWO(cuMemcpyAsync, _ptsz, (ptr to, ptr from, size_t n, CUstream s), return copy_any(to, from, n, s, O);)
TWO(cuMemcpyPeerAsync, _ptsz, (ptr to, void *tc, ptr from, void *fc, size_t n, CUstream s),
    if (!tc || !fc) return INVALID; GIVE(s, 0, copy(to, from, n)))
/* On pinned and managed memory a memset without a stream is done when the call returns. */
TWO(cuMemsetD8_v2, _ptds, (ptr to, unsigned char v, size_t n), GIVE(0, !is_device(to), set(to, v, n, 1)))
TWO(cuMemsetD32_v2, _ptds, (ptr to, unsigned v, size_t n), GIVE(0, !is_device(to), set(to, v, n, 4)))
TWO(cuMemsetD8Async, _ptsz, (ptr to, unsigned char v, size_t n, CUstream s), GIVE(s, 0, set(to, v, n, 1)))
TWO(cuMemsetD32Async, _ptsz, (ptr to, unsigned v, size_t n, CUstream s), GIVE(s, 0, set(to, v, n, 4)))
TWO(cuGraphLaunch, _ptsz, (CUgraph g, CUstream s), GIVE(s, 0, ((struct op){.run = run_graph, .data = g})))

static int batch(ptr *to, ptr *from, size_t *n, size_t count, CUstream s, int own_default) {
  for (size_t i = 0; i < count; i++) {
    struct op op = copy(to[i], from[i], n[i]);
    op.counts = i + 1 == count; /* one command, done with its last part */
    int r = give_part(s, own_default, 0, op);
    if (r) return r;
  }
  return OK;
}
TWO(cuMemcpyBatchAsync, _ptsz, (ptr *to, ptr *from, size_t *n, size_t count, void *a, void *i, size_t m, size_t *bad, CUstream s),
    (void)a; (void)i; if (m != 77) return INVALID; *bad = 5; return batch(to, from, n, count, s, O);)
TWO(cuMemcpyBatchAsync_v2, _ptsz, (ptr *to, ptr *from, size_t *n, size_t count, void *a, void *i, size_t m, CUstream s),
    (void)a; (void)i; if (m != 77) return INVALID; return batch(to, from, n, count, s, O);)

/* Allocated at once: the addresses are never reused. */
TWO(cuMemAllocAsync, _ptsz, (ptr * p, size_t n, CUstream s), (void)s; (void)O; *p = (ptr)calloc(1, n); return OK;)
TWO(cuMemFreeAsync, _ptsz, (ptr p, CUstream s), (void)s; (void)p; (void)O; return OK;)

/* With the lock held. A capture that began on the stream ends, and the others that it includes. */
static void close_stream(CUstream s) {
  struct graph *g = s->origin ? s->graph : NULL;
  for (int i = 0; g && i < STREAMS; i++) {
    if (streams[i].graph == g) streams[i].graph = NULL;
  }
  graphs[s - streams] = s->graph = NULL;
  s->used = s->origin = 0;
}
/* The default stream of a thread ends with it, and its work is done all the same. */
static void thread_ends(void *s) {
  pthread_mutex_lock(&lock);
  close_stream(s);
  pthread_mutex_unlock(&lock);
  own = NULL;
}
static void create_own_key(void) { has_own_key = pthread_key_create(&own_key, thread_ends) == 0; }
/* The driver's own exit handler waits for what runs. */
static void at_exit(void) {
  pthread_mutex_lock(&lock);
  if (unreleased()) {
    (void)!write(STDERR_FILENO, "a wait was never released\n", 26);
    _exit(9);
  }
  pthread_mutex_unlock(&lock);
}
static void init(void) {
  create_own_key();
  atexit(at_exit);
}
int cuInit(unsigned flags) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, init);
  return (int)flags;
}
int cuMemAlloc_v2(ptr *p, size_t n) { return *p = allocate(n, DEVICE, 0), OK; }
int cuMemAllocManaged(ptr *p, size_t n, unsigned flags) { return *p = allocate(n, DEVICE, 1), flags == 1 ? OK : INVALID; }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) { return *p = (void *)allocate(n, HOST, 0), (int)flags; }
int cuCtxSynchronize(void);
int cuMemFree_v2(ptr p) {
  int r = cuCtxSynchronize(); /* as the real driver does */
  pthread_mutex_lock(&lock);
  for (int i = 0; i < memories; i++) {
    if (memory[i].from == p) memory[i] = memory[--memories];
  }
  pthread_mutex_unlock(&lock);
  free((void *)p);
  return r;
}
int cuCtxGetCurrent(void **ctx) { return *ctx = current, OK; }
int cuCtxSetCurrent(void *ctx) { return current = ctx, OK; }
int cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return OK;
}

int cuStreamCreate(CUstream *s, unsigned flags) {
  pthread_mutex_lock(&lock);
  *s = open_stream(1, !(flags & 1));
  (*s)->ctx = current;
  pthread_mutex_unlock(&lock);
  return OK;
}
int cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority) {
  int r = cuStreamCreate(s, flags);
  (*s)->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority; /* as the real driver does */
  return r;
}
TWO(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority), {
  pthread_mutex_lock(&lock);
  *priority = stream_for(stream, O)->priority;
  pthread_mutex_unlock(&lock);
  return OK;
})
/* What another thread does after the next stream is destroyed and before the call returns. */
static void (*after_destroy)(void);
void fakeAfterDestroy(void (*f)(void)) { __atomic_store_n(&after_destroy, f, __ATOMIC_SEQ_CST); }

/* As in the real driver it does not wait. The handle is used again when the stream's work is done. */
int cuStreamDestroy_v2(CUstream s) {
  pthread_mutex_lock(&lock);
  if (s->alive != ALIVE || !s->used) die("no such stream");
  close_stream(s);
  pthread_mutex_unlock(&lock);
  void (*f)(void) = __atomic_exchange_n(&after_destroy, NULL, __ATOMIC_SEQ_CST);
  if (f) f();
  return OK;
}

static int stream_wait(CUstream stream, int own_default, int query) {
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, own_default);
  int r = unsafe();
  if (r == OK && s->graph) s->graph->spoilt = 1, r = UNSUPPORTED;
  if (r == OK && query && s->done < s->given) r = NOT_READY, blocked += unreleased() != 0;
  if (r == OK && !query) wait_for(s, s->given);
  pthread_mutex_unlock(&lock);
  return r;
}
TWO(cuStreamSynchronize, _ptsz, (CUstream s), return stream_wait(s, O, 0);)
TWO(cuStreamQuery, _ptsz, (CUstream s), return stream_wait(s, O, 1);)
int cuCtxSynchronize(void) {
  pthread_mutex_lock(&lock);
  int r = unsafe();
  for (int i = 0; i < STREAMS && r == OK; i++) wait_for(&streams[i], streams[i].given);
  pthread_mutex_unlock(&lock);
  return r;
}
/* Waits for the streams that were created in the context; NULL: in the current one. */
int cuCtxSynchronize_v2(void *ctx) {
  pthread_mutex_lock(&lock);
  int r = unsafe();
  for (int i = 1; i < STREAMS && r == OK; i++) {
    if (streams[i].ctx == (ctx ? ctx : current)) wait_for(&streams[i], streams[i].given);
  }
  pthread_mutex_unlock(&lock);
  return r;
}

/* Events. */
static void must_live(CUevent e) {
  if (e->alive != ALIVE) die("an event that is no more");
}
int cuEventCreate(CUevent *e, unsigned flags) {
  (void)flags;
  *e = calloc(1, sizeof **e);
  (*e)->alive = ALIVE;
  (*e)->ctx = current;
  pthread_mutex_lock(&lock);
  (*e)->next = events;
  events = *e;
  pthread_mutex_unlock(&lock);
  return OK;
}
int cuEventDestroy_v2(CUevent e) {
  must_live(e);
  e->alive = 0; /* never freed, so that a later use is detected */
  return OK;
}
static int record(CUevent e, CUstream stream, int own_default) {
  must_live(e);
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, own_default);
  int r = e->ctx == (s->ctx ? s->ctx : current) ? put(s, (struct op){.run = run_nothing}) : INVALID;
  if (r == OK) {
    e->stream = s;
    e->at = s->given;
    e->graph = s->graph;
  }
  pthread_mutex_unlock(&lock);
  return r;
}
int cuCtxCreate_v2(void **ctx, unsigned flags, int device) {
  (void)flags, (void)device;
  return *ctx = current = malloc(8), OK;
}
int cuCtxDestroy_v2(void *ctx) {
  pthread_mutex_lock(&lock);
  for (CUevent e = events; e; e = e->next) {
    if (e->ctx == ctx) e->alive = 0;
  }
  for (int i = 0; i < 64; i++) {
    if (registered[i].ctx == ctx) registered[i].from = 0;
  }
  for (int i = 1; i < STREAMS; i++) { /* its streams end with it */
    if (!streams[i].used || streams[i].ctx != ctx) continue;
    wait_for(&streams[i], streams[i].given);
    close_stream(&streams[i]);
  }
  pthread_mutex_unlock(&lock);
  if (current == ctx) current = &context;
  return OK;
}
/* One context at a time has a second user. */
static void *attached;
int cuCtxAttach(void **ctx, unsigned flags) { return *ctx = attached = current, (int)flags; }
int cuCtxDetach(void *ctx) {
  if (ctx != current) return INVALID;
  return ctx == attached ? (attached = NULL, OK) : cuCtxDestroy_v2(ctx);
}
/* The primary context of device 0 has other users, unless a test says how many there are in all. */
static int primary_users = 1 << 30;
void fakePrimaryUsers(int n) { primary_users = n; }
static int primary_ended(int ended) { return ended ? cuCtxDestroy_v2(&context) : OK; }
int cuDevicePrimaryCtxRetain(void **ctx, int device) {
  if (device) return INVALID;
  __atomic_add_fetch(&primary_users, 1, __ATOMIC_RELAXED);
  return *ctx = &context, OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  return device ? INVALID : primary_ended(__atomic_sub_fetch(&primary_users, 1, __ATOMIC_RELAXED) == 0);
}
int cuDevicePrimaryCtxReset_v2(int device) { return device ? OK : primary_ended(1); }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  return *flags = 0, *active = device == 0 && __atomic_load_n(&primary_users, __ATOMIC_RELAXED) > 0, OK;
}
/* A green context is its own context, and a user of the primary one. */
int cuCtxFromGreenCtx(void **ctx, void *green) { return *ctx = green, OK; }
int cuGreenCtxStreamCreate(CUstream *s, void *green, unsigned flags, int priority) {
  return green && flags == 1 && !priority ? cuStreamCreate(s, flags) : INVALID;
}
int cuGreenCtxDestroy(void *green) {
  cuCtxDestroy_v2(green);
  return cuDevicePrimaryCtxRelease_v2(0);
}
/* Behind the work of all streams of a context: here of the first busy one. */
int cuCtxRecordEvent(void *ctx, CUevent e) {
  CUstream busy = NULL;
  pthread_mutex_lock(&lock);
  for (int i = STREAMS - 1; i > 0; i--) {
    if (streams[i].used && streams[i].ctx == ctx && streams[i].given != streams[i].done) busy = &streams[i];
  }
  pthread_mutex_unlock(&lock);
  return busy ? record(e, busy, 0) : INVALID;
}
TWO(cuEventRecord, _ptsz, (CUevent e, CUstream s), return record(e, s, O);)
TWO(cuEventRecordWithFlags, _ptsz, (CUevent e, CUstream s, unsigned flags), (void)flags; return record(e, s, O);)
static int event_wait(CUevent e, int query) {
  must_live(e);
  pthread_mutex_lock(&lock);
  int r = e->graph ? CAPTURED_EVENT : unsafe();
  if (r == OK && e->stream && query && e->stream->done < e->at) r = NOT_READY, blocked += unreleased() != 0;
  if (r == OK && e->stream && !query) wait_for(e->stream, e->at);
  pthread_mutex_unlock(&lock);
  return r;
}
int cuEventQuery(CUevent e) { return event_wait(e, 1); }
int cuEventSynchronize(CUevent e) { return event_wait(e, 0); }
TWO(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent e, unsigned flags), {
  must_live(e);
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, O);
  if (e->graph && !s->graph) s->graph = e->graph;
  else if (e->stream && s->waits[e->stream - streams] < e->at && !s->graph) s->waits[e->stream - streams] = e->at;
  pthread_mutex_unlock(&lock);
  return (int)flags;
})

/* Captures. */
static void (*when_asked)(void *); /* called when a stream was asked whether it is captured */
void fakeWhenAsked(void (*f)(void *)) { __atomic_store_n(&when_asked, f, __ATOMIC_SEQ_CST); }
TWO(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), {
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, O);
  *status = !s->graph ? 0 : s->graph->spoilt ? 2 : 1;
  int r = implicit(s) ? IMPLICIT : OK;
  pthread_mutex_unlock(&lock);
  void (*f)(void *) = __atomic_load_n(&when_asked, __ATOMIC_SEQ_CST);
  if (f) f(stream);
  return r;
})
TWO(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), {
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, O);
  int r = s == &streams[0] || s->graph ? UNSUPPORTED : OK;
  if (r == OK) {
    s->graph = calloc(1, sizeof *s->graph);
    s->graph->mode = mode;
    s->graph->by = pthread_self();
    s->origin = 1;
    graphs[s - streams] = s->graph;
  }
  pthread_mutex_unlock(&lock);
  return r;
})
TWO(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), {
  pthread_mutex_lock(&lock);
  CUstream s = stream_for(stream, O);
  struct graph *g = s->graph;
  int r = !g || !s->origin ? UNMATCHED : g->spoilt ? INVALIDATED : OK;
  if (g && s->origin) {
    for (int i = 0; i < STREAMS; i++) {
      if (streams[i].graph == g) streams[i].graph = NULL;
    }
    graphs[s - streams] = NULL;
    s->origin = 0;
  }
  *graph = r == OK ? g : NULL;
  pthread_mutex_unlock(&lock);
  return r;
})
int cuGraphInstantiateWithFlags(CUgraph *exec, CUgraph graph, unsigned long long flags) {
  return *exec = graph, (int)flags;
}

int cuKernelGetFunction(void **f, void *kernel) { return *f = kernel, OK; }
int cuLibraryUnload(void *library) { return library ? OK : INVALID; }

/* Calls that do nothing here, and may wait for all work in the real driver. */
#define NOTHING(name) int name(void) { return OK; }
NOTHING(cuGraphInstantiateWithParams)
NOTHING(cuGraphInstantiateWithParams_ptsz)
NOTHING(cuDeviceGraphMemTrim)
NOTHING(cuArrayCreate_v2)
NOTHING(cuArray3DCreate_v2)
NOTHING(cuMipmappedArrayCreate)
NOTHING(cuMemCreate)
NOTHING(cuMemMap)
NOTHING(cuMemSetAccess)
NOTHING(cuMemRelease)
NOTHING(cuLibraryGetGlobal)
NOTHING(cuLibraryGetManaged)

/* Sharing with other processes, which there are none of here. */
struct ipc_handle {
  char bytes[64];
};
int cuIpcOpenEventHandle(void **event, struct ipc_handle handle) { return *event = NULL, handle.bytes[0]; }
int cuIpcOpenMemHandle_v2(ptr *p, struct ipc_handle handle, unsigned flags) { return *p = 0, handle.bytes[63] + (int)flags; }
int cuMemImportFromShareableHandle(uint64_t *to, void *handle, int type) { return *to = 0, handle ? type : INVALID; }
int cuMemPoolExportToShareableHandle(void *handle, void *pool, int type, uint64_t flags) { return pool || !handle ? INVALID : type + (int)flags; }
int cuMemPoolExportPointer(void *data, ptr p) { return data && !p ? OK : INVALID; }

/* For the tests. */
int fakeEvents(void) {
  int n = 0;
  pthread_mutex_lock(&lock);
  for (CUevent e = events; e; e = e->next) n += e->alive == ALIVE;
  pthread_mutex_unlock(&lock);
  return n;
}
int fakeBeginCapture(CUstream s, int mode) { return cuStreamBeginCapture_v2(s, mode); }
int fakeGraphNodes(CUgraph g) { return g->count; }
uint64_t fakeParksEarly(void) { return parks_early; }
void fakeParks(uint64_t *ended, uint64_t *late) {
  *ended = __atomic_load_n(&parks, __ATOMIC_ACQUIRE);
  *late = __atomic_load_n(&parks_late, __ATOMIC_RELAXED);
}

/* How often a stream was told to stop. */
uint64_t fakeStops(void) { return __atomic_load_n(&stops, __ATOMIC_RELAXED); }

/* How many of them have not been released, and how often the program waited for one. */
uint64_t fakeUnreleased(void) {
  pthread_mutex_lock(&lock);
  uint64_t n = unreleased();
  pthread_mutex_unlock(&lock);
  return n;
}
uint64_t fakeBlocked(void) {
  pthread_mutex_lock(&lock);
  uint64_t n = blocked;
  pthread_mutex_unlock(&lock);
  return n;
}

uint64_t fakeInFlight(void) {
  pthread_mutex_lock(&lock);
  uint64_t n = in_flight;
  pthread_mutex_unlock(&lock);
  return n;
}

void fakeCounts(uint64_t *all, uint64_t *at_once) {
  pthread_mutex_lock(&lock);
  *all = commands;
  *at_once = most;
  pthread_mutex_unlock(&lock);
}

/* Look-ups. */
struct name_row {
  const char *name;
  int since, own;
  void *f;
};
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status);
#define ONE(name, symbol, since) {name, since, 0, (void *)symbol}
#define PAIR(name, symbol, since, suffix) {name, since, 0, (void *)symbol}, {name, since, 1, (void *)symbol##suffix}
static const struct name_row meanings[] = {
    PAIR("cuLaunchKernel", cuLaunchKernel, 4000, _ptsz),
    PAIR("cuLaunchKernelEx", cuLaunchKernelEx, 11060, _ptsz),
    PAIR("cuLaunchCooperativeKernel", cuLaunchCooperativeKernel, 9000, _ptsz),
    PAIR("cuLaunchHostFunc", cuLaunchHostFunc, 10000, _ptsz),
    PAIR("cuLaunchHostFunc", cuLaunchHostFunc_v2, 13020, _ptsz),
    PAIR("cuMemcpyHtoD", cuMemcpyHtoD_v2, 3020, _ptds),
    PAIR("cuMemcpyDtoH", cuMemcpyDtoH_v2, 3020, _ptds),
    PAIR("cuMemcpyDtoD", cuMemcpyDtoD_v2, 3020, _ptds),
    PAIR("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, 3020, _ptsz),
    PAIR("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, 3020, _ptsz),
    PAIR("cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2, 3020, _ptsz),
    PAIR("cuMemcpyAsync", cuMemcpyAsync, 4000, _ptsz),
    PAIR("cuMemcpyPeerAsync", cuMemcpyPeerAsync, 4000, _ptsz),
    PAIR("cuMemcpyBatchAsync", cuMemcpyBatchAsync, 12080, _ptsz),
    PAIR("cuMemcpyBatchAsync", cuMemcpyBatchAsync_v2, 13000, _ptsz),
    PAIR("cuMemsetD8", cuMemsetD8_v2, 3020, _ptds),
    PAIR("cuMemsetD32", cuMemsetD32_v2, 3020, _ptds),
    PAIR("cuMemsetD8Async", cuMemsetD8Async, 3020, _ptsz),
    PAIR("cuMemsetD32Async", cuMemsetD32Async, 3020, _ptsz),
    PAIR("cuGraphLaunch", cuGraphLaunch, 10000, _ptsz),
    PAIR("cuMemAllocAsync", cuMemAllocAsync, 11020, _ptsz),
    PAIR("cuMemFreeAsync", cuMemFreeAsync, 11020, _ptsz),
    PAIR("cuStreamSynchronize", cuStreamSynchronize, 2000, _ptsz),
    PAIR("cuStreamQuery", cuStreamQuery, 2000, _ptsz),
    PAIR("cuEventRecord", cuEventRecord, 2000, _ptsz),
    PAIR("cuEventRecordWithFlags", cuEventRecordWithFlags, 11010, _ptsz),
    PAIR("cuStreamWaitEvent", cuStreamWaitEvent, 3020, _ptsz),
    PAIR("cuStreamIsCapturing", cuStreamIsCapturing, 10000, _ptsz),
    PAIR("cuStreamBeginCapture", cuStreamBeginCapture_v2, 10010, _ptsz),
    PAIR("cuStreamEndCapture", cuStreamEndCapture, 10000, _ptsz),
    ONE("cuInit", cuInit, 2000),
    ONE("cuMemAlloc", cuMemAlloc_v2, 3020),
    ONE("cuMemFree", cuMemFree_v2, 3020),
    ONE("cuMemHostAlloc", cuMemHostAlloc, 2020),
    ONE("cuMemAllocManaged", cuMemAllocManaged, 6000),
    ONE("cuCtxGetCurrent", cuCtxGetCurrent, 4000),
    ONE("cuCtxSetCurrent", cuCtxSetCurrent, 4000),
    ONE("cuCtxCreate", cuCtxCreate_v2, 3020),
    ONE("cuCtxDestroy", cuCtxDestroy_v2, 4000),
    ONE("cuCtxSynchronize", cuCtxSynchronize, 2000),
    ONE("cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode, 10010),
    ONE("cuStreamCreate", cuStreamCreate, 2000),
    ONE("cuStreamCreateWithPriority", cuStreamCreateWithPriority, 5050),
    PAIR("cuStreamGetPriority", cuStreamGetPriority, 5050, _ptsz),
    PAIR("cuStreamWaitValue32", cuStreamWaitValue32_v2, 11070, _ptsz),
    ONE("cuStreamDestroy", cuStreamDestroy_v2, 4000),
    ONE("cuEventCreate", cuEventCreate, 2000),
    ONE("cuEventDestroy", cuEventDestroy_v2, 4000),
    ONE("cuEventQuery", cuEventQuery, 2000),
    ONE("cuEventSynchronize", cuEventSynchronize, 2000),
    ONE("cuGraphInstantiate", cuGraphInstantiateWithFlags, 12000),
    ONE("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags, 11040), /* as the real one: under both names */
    PAIR("cuGraphInstantiateWithParams", cuGraphInstantiateWithParams, 12000, _ptsz),
    ONE("cuDeviceGraphMemTrim", cuDeviceGraphMemTrim, 11040),
    ONE("cuArrayCreate", cuArrayCreate_v2, 3020),
    ONE("cuArray3DCreate", cuArray3DCreate_v2, 3020),
    ONE("cuMipmappedArrayCreate", cuMipmappedArrayCreate, 5000),
    ONE("cuMemCreate", cuMemCreate, 10020),
    ONE("cuMemMap", cuMemMap, 10020),
    ONE("cuMemSetAccess", cuMemSetAccess, 10020),
    ONE("cuMemRelease", cuMemRelease, 10020),
    ONE("cuLibraryGetGlobal", cuLibraryGetGlobal, 12000),
    ONE("cuLibraryGetManaged", cuLibraryGetManaged, 12000),
    ONE("cuGetProcAddress", cuGetProcAddress, 11030),
    ONE("cuGetProcAddress", cuGetProcAddress_v2, 12000),
};

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
  const struct name_row *best = NULL;
  int want = (flags & 2) != 0;
  for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++) {
    const struct name_row *m = &meanings[i];
    if (strcmp(m->name, name) != 0 || m->since > version || m->own > want) continue;
    if (!best || m->own > best->own || (m->own == best->own && m->since > best->since)) best = m;
  }
  *found = best ? best->f : NULL;
  if (status) *status = best ? 0 : 1;
  return best ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, found, version, flags, NULL);
}

/* After a fork the child has the memory but not the threads. */
static void child(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_cond_init(&moved, NULL);
  memset(streams, 0, sizeof streams);
  memset(graphs, 0, sizeof graphs);
  memset(registered, 0, sizeof registered);
  own = NULL;
  in_flight = most = commands = blocked = 0;
}
__attribute__((constructor)) static void loaded(void) { pthread_atfork(NULL, NULL, child); }

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libamdhip64 for tests. It has no device, but streams that run in order on their own
 * threads, a legacy default stream that is ordered with all others, per-thread default
 * streams, events, and graphs by capture. A kernel is a C function with one 64-bit argument.
 *
 * It is as strict as the real library where the shim could go wrong: querying an event of a
 * stream that is being captured invalidates the capture, as in ROCm's clr, and so does a call
 * that HIP forbids in a capturing thread. A wait for a value takes registered memory only, and
 * nothing else ends it. On a stream that is captured it stops the stream, not the graph, as in
 * ROCm's clr; such waits are counted. So are the most commands in flight.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKEHIP_STREAMS
#define FAKEHIP_STREAMS 64
#endif
enum { STREAMS = FAKEHIP_STREAMS, OPS = 4096 };
enum { OK = 0, INVALID = 1, NOT_FOUND = 500, NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, CAPTURE_SPOILT = 901 };
enum { GLOBAL, THREAD_LOCAL, RELAXED };

typedef struct {
  uint32_t x, y, z;
} dim3;

struct op {
  void (*run)(struct op *);
  void *fn, *to;
  const void *from;
  uint64_t value;
  size_t bytes;
  int counts;               /* it is a command, not a mark */
  int never_captured;
  uint64_t behind[STREAMS]; /* how much of each other stream must be done before */
};

struct stream {
  int used, capturing, mode, priority;
  struct op *ops[OPS];
  uint64_t given, done;
  struct op *graph[OPS];
  int in_graph;
  pthread_t capturer;
  int dying, destroyed;
  pthread_cond_t more; /* something was given to the stream */
};

struct event {
  struct stream *stream;
  uint64_t at;
};

struct graph {
  struct op *ops[OPS];
  int n;
};

static struct stream streams[STREAMS]; /* 0 is the legacy default stream */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static uint64_t in_flight, most;
static __thread struct stream *own;
static __thread int thread_mode = GLOBAL;

static void *work(void *arg) {
  struct stream *s = arg;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (s->done == s->given) pthread_cond_wait(&s->more, &lock);
    struct op *op = s->ops[s->done % OPS];
    for (int i = 0; i < STREAMS; i++) {
      while (streams[i].done < op->behind[i]) pthread_cond_wait(&moved, &lock);
    }
    pthread_mutex_unlock(&lock);
    op->run(op);
    pthread_mutex_lock(&lock);
    if (op->counts) in_flight--;
    free(op);
    s->done++;
    pthread_cond_broadcast(&moved);
  }
  return NULL;
}

static struct stream *open_stream(void) {
  for (int i = 0; i < STREAMS; i++) {
    pthread_t t;
    if (streams[i].used) continue;
    streams[i].used = 1;
    pthread_cond_init(&streams[i].more, NULL);
    pthread_create(&t, NULL, work, &streams[i]);
    pthread_detach(t);
    return &streams[i];
  }
  abort();
}

/* With the lock held. Handle 1 is the legacy stream, 2 the calling thread's. */
static struct stream *stream_of(void *handle) {
  if (!streams[0].used) open_stream();
  if (handle == NULL || handle == (void *)1) return &streams[0];
  if (handle != (void *)2) return handle;
  if (!own) own = open_stream();
  return own;
}

/* The thread's last error. ROCm 5.7 to 6.2 forgets it at the next call; this one is stricter. */
static __thread int last_error;
static int remember(int r) { return r ? last_error = r : OK; }
int hipPeekAtLastError(void) { return last_error; }
int hipGetLastError(void) {
  int r = last_error;
  last_error = OK;
  return r;
}

static int put(void *handle, struct op like) {
  struct op *op = malloc(sizeof *op);
  *op = like;
  pthread_mutex_lock(&lock);
  struct stream *s = stream_of(handle);
  if (s->dying) abort(); /* ROCm is freeing it */
  if (s->capturing && !op->never_captured) {
    s->graph[s->in_graph++] = op;
    pthread_mutex_unlock(&lock);
    return OK;
  }
  while (s->given - s->done >= OPS) pthread_cond_wait(&moved, &lock);
  if (s == &streams[0]) {
    for (int i = 1; i < STREAMS; i++) op->behind[i] = streams[i].given;
  } else {
    op->behind[0] = streams[0].given;
  }
  s->ops[s->given++ % OPS] = op;
  if (op->counts && ++in_flight > most) most = in_flight;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&lock);
  return OK;
}

static int drain(struct stream *s) {
  for (uint64_t at = s->given; s->done < at;) pthread_cond_wait(&moved, &lock);
  return OK;
}

/* Whether a call that waits is forbidden in this thread because it captures. */
static int spoils(void) {
  int bad = 0;
  for (int i = 0; i < STREAMS; i++) {
    struct stream *s = &streams[i];
    if (!s->capturing || thread_mode == RELAXED || s->mode == RELAXED) continue;
    if (s->mode == GLOBAL || pthread_equal(s->capturer, pthread_self())) bad = s->capturing = 2;
  }
  return bad;
}

static void run_kernel(struct op *op) { ((void (*)(uint64_t))op->fn)(op->value); }
static void run_host(struct op *op) { ((void (*)(void *))op->fn)(op->to); }
static void run_copy(struct op *op) { memmove(op->to, op->from, op->bytes); }
static void run_set(struct op *op) { memset(op->to, (int)op->value, op->bytes); }
static void run_nothing(struct op *op) { (void)op; }

static struct op kernel_op(const void *f, void **args) {
  uint64_t value = args ? *(uint64_t *)args[0] : 0;
  return (struct op){.run = run_kernel, .fn = (void *)f, .value = value, .counts = 1};
}

static __thread int current_device;
int hipGetDevice(int *device) { return *device = current_device, OK; }
int hipSetDevice(int device) { return current_device = device, OK; }

int hipLaunchKernel(const void *f, dim3 g, dim3 b, void **args, size_t shared, void *s) {
  (void)g, (void)b, (void)shared;
  return put(s, kernel_op(f, args));
}
int hipLaunchKernel_spt(const void *f, dim3 g, dim3 b, void **args, size_t shared, void *s) {
  return hipLaunchKernel(f, g, b, args, shared, s ? s : (void *)2);
}
int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void *s, void **args, void **extra) {
  (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
  return put(s, kernel_op(f, args));
}
struct config {
  dim3 grid, block;
  size_t shared;
  void *stream, *attrs;
  unsigned n;
};
int hipLaunchKernelExC(const struct config *c, const void *f, void **args) {
  return put(c->stream, kernel_op(f, args));
}
int hipLaunchHostFunc(void *s, void *fn, void *data) {
  return put(s, (struct op){.run = run_host, .fn = fn, .to = data, .counts = 1});
}
int hipMemcpyAsync(void *to, const void *from, size_t n, int kind, void *s) {
  (void)kind;
  return put(s, (struct op){.run = run_copy, .to = to, .from = from, .bytes = n, .counts = 1});
}
int hipMemcpy(void *to, const void *from, size_t n, int kind) {
  pthread_mutex_lock(&lock);
  int bad = spoils();
  pthread_mutex_unlock(&lock);
  if (bad) return CAPTURE_UNSUPPORTED;
  hipMemcpyAsync(to, from, n, kind, NULL);
  pthread_mutex_lock(&lock);
  drain(&streams[0]);
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipMemsetAsync(void *to, int value, size_t n, void *s) {
  return put(s, (struct op){.run = run_set, .to = to, .value = (uint64_t)value, .bytes = n, .counts = 1});
}

static struct {
  char *at;
  size_t bytes;
} registered[16];
static int registrations;

int hipHostRegister(void *at, size_t bytes, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  int r = registrations < 16 && !spoils() ? OK : INVALID;
  if (r == OK) registered[registrations].at = at, registered[registrations++].bytes = bytes;
  pthread_mutex_unlock(&lock);
  return r;
}
int hipHostGetDevicePointer(void **device, void *host, unsigned flags) { return *device = host, flags ? INVALID : OK; }

static void run_wait(struct op *op) {
  while (__atomic_load_n((uint32_t *)op->to, __ATOMIC_SEQ_CST) < op->value) usleep(20);
}
static int captured_waits;
int hipStreamWaitValue32(void *s, void *at, uint32_t value, unsigned flags, uint32_t mask) {
  int known = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < registrations; i++) known |= (char *)at >= registered[i].at && (char *)at < registered[i].at + registered[i].bytes;
  if (stream_of(s)->capturing) captured_waits++;
  pthread_mutex_unlock(&lock);
  if (!known || flags != 0 || mask != 0xffffffff) return INVALID;
  return put(s, (struct op){.run = run_wait, .to = at, .value = value, .never_captured = 1});
}

int hipStreamCreate(void **s) {
  pthread_mutex_lock(&lock);
  stream_of(NULL);
  *s = open_stream();
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipStreamCreateWithPriority(void **s, unsigned flags, int priority) {
  if (flags > 1) return INVALID;
  int r = hipStreamCreate(s);
  ((struct stream *)*s)->priority = priority < -1 ? -1 : priority > 1 ? 1 : priority;
  return r;
}
int hipStreamGetPriority(void *s, int *priority) {
  pthread_mutex_lock(&lock);
  *priority = stream_of(s)->priority;
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipStreamDestroy(void *s) {
  pthread_mutex_lock(&lock);
  ((struct stream *)s)->dying = 1;
  drain(s); /* as ROCm does; the entry stays in use, so that a later use of the handle is detected */
  ((struct stream *)s)->destroyed = 1;
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipStreamSynchronize(void *s) {
  pthread_mutex_lock(&lock);
  int r = spoils() ? CAPTURE_UNSUPPORTED : drain(stream_of(s));
  pthread_mutex_unlock(&lock);
  return r;
}
int hipStreamQuery(void *handle) {
  pthread_mutex_lock(&lock);
  struct stream *s = stream_of(handle);
  int r = s->done < s->given ? NOT_READY : OK;
  if (s->dying) abort();
  if (s->capturing) s->capturing = 2, r = CAPTURE_SPOILT;
  pthread_mutex_unlock(&lock);
  return remember(r);
}
int hipDeviceSynchronize(void) {
  pthread_mutex_lock(&lock);
  int r = spoils() ? CAPTURE_UNSUPPORTED : OK;
  for (int i = 0; r == OK && i < STREAMS; i++) drain(&streams[i]);
  pthread_mutex_unlock(&lock);
  return r;
}

/* Calls that free or map memory, which wait in ROCm (SyncAllStreams and awaitCompletion in its clr). Counts
 * those that wait for a stream on which a wait has not been released. */
static int blocked_frees;
static int wait_for_all(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < STREAMS; i++) {
    struct stream *s = &streams[i];
    for (uint64_t k = s->done; k < s->given; k++) {
      const struct op *op = s->ops[k % OPS];
      blocked_frees += op->run == run_wait && __atomic_load_n((uint32_t *)op->to, __ATOMIC_SEQ_CST) < op->value;
    }
    drain(s);
  }
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipFree(void *p) { return p ? wait_for_all() : OK; }
int hipFreeAsync(void *p, void *s) { return p && !s ? wait_for_all() : INVALID; }
int hipArrayDestroy(void *array) { return array ? wait_for_all() : INVALID; }
int hipFreeMipmappedArray(void *array) { return array ? wait_for_all() : INVALID; }
int hipMipmappedArrayDestroy(void *array) { return array ? wait_for_all() : INVALID; }
int hipIpcCloseMemHandle(void *p) { return p ? wait_for_all() : INVALID; }
int hipMemMap(void *at, size_t n, size_t offset, void *memory, unsigned long long flags) {
  return at && n && !offset && memory && !flags ? wait_for_all() : INVALID;
}
int hipMemUnmap(void *at, size_t n) { return at && n ? wait_for_all() : INVALID; }
int fakehip_blocked_frees(void) { return blocked_frees; } /* not part of HIP */

/* Sharing with other processes, which there are none of here. */
struct ipc_handle {
  char bytes[64];
};
int hipIpcGetEventHandle(void *handle, void *event) { return handle && event ? OK : INVALID; }
int hipIpcOpenEventHandle(void **event, struct ipc_handle handle) { return *event = NULL, handle.bytes[63]; }
int hipIpcGetMemHandle(void *handle, void *p) { return handle && p ? OK : INVALID; }
int hipIpcOpenMemHandle(void **p, struct ipc_handle handle, unsigned flags) { return *p = NULL, handle.bytes[63] + (int)flags; }
int hipMemExportToShareableHandle(void *handle, void *memory, int type, unsigned long long flags) {
  return handle && memory ? type + (int)flags : INVALID;
}
int hipMemImportFromShareableHandle(void **memory, void *handle, int type) { return *memory = NULL, handle ? type : INVALID; }
int hipMemPoolExportToShareableHandle(void *handle, void *pool, int type, unsigned flags) {
  return handle && pool ? type + (int)flags : INVALID;
}
int hipMemPoolImportFromShareableHandle(void **pool, void *handle, int type, unsigned flags) {
  return *pool = NULL, handle ? type + (int)flags : INVALID;
}
int hipMemPoolExportPointer(void *data, void *p) { return data && p ? OK : INVALID; }
int hipMemPoolImportPointer(void **p, void *pool, void *data) { return *p = NULL, pool && data ? OK : INVALID; }

int hipEventCreateWithFlags(void **e, unsigned flags) {
  (void)flags;
  *e = calloc(1, sizeof(struct event));
  return OK;
}
int hipEventRecord(void *event, void *handle) {
  struct event *e = event;
  int r = put(handle, (struct op){.run = run_nothing});
  pthread_mutex_lock(&lock);
  e->stream = stream_of(handle);
  e->at = e->stream->given;
  pthread_mutex_unlock(&lock);
  return r;
}
int hipEventRecordWithFlags(void *event, void *handle, unsigned flags) {
  (void)flags;
  return hipEventRecord(event, handle);
}
int hipEventQuery(void *event) {
  struct event *e = event;
  pthread_mutex_lock(&lock);
  int r = OK;
  if (e->stream && e->stream->destroyed) abort(); /* ROCm reads the stream, whose memory is free */
  if (e->stream && e->stream->capturing) {
    e->stream->capturing = 2;
    r = CAPTURE_SPOILT;
  } else if (e->stream && e->stream->done < e->at) {
    r = NOT_READY;
  }
  pthread_mutex_unlock(&lock);
  return remember(r);
}
int hipEventSynchronize(void *event) {
  struct event *e = event;
  pthread_mutex_lock(&lock);
  while (e->stream && e->stream->done < e->at) pthread_cond_wait(&moved, &lock);
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipEventDestroy(void *event) { return free(event), OK; }

int hipThreadExchangeStreamCaptureMode(int *mode) {
  int old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return OK;
}
int hipStreamIsCapturing(void *s, int *status) {
  pthread_mutex_lock(&lock);
  *status = stream_of(s)->capturing;
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipStreamBeginCapture(void *handle, int mode) {
  pthread_mutex_lock(&lock);
  struct stream *s = stream_of(handle);
  s->capturing = 1, s->mode = mode, s->in_graph = 0, s->capturer = pthread_self();
  pthread_mutex_unlock(&lock);
  return OK;
}
int hipStreamEndCapture(void *handle, void **graph) {
  pthread_mutex_lock(&lock);
  struct stream *s = stream_of(handle);
  struct graph *g = calloc(1, sizeof *g);
  int r = s->capturing == 1 ? OK : CAPTURE_SPOILT;
  s->capturing = 0;
  memcpy(g->ops, s->graph, sizeof g->ops);
  g->n = s->in_graph;
  pthread_mutex_unlock(&lock);
  *graph = r == OK ? g : NULL;
  return r;
}
static void run_graph(struct op *op) {
  struct graph *g = op->fn;
  for (int i = 0; i < g->n; i++) g->ops[i]->run(g->ops[i]);
}
int hipGraphInstantiate(void **exec, void *graph, void *node, char *log, size_t n) {
  (void)node, (void)log, (void)n;
  *exec = graph;
  return OK;
}
int hipGraphLaunch(void *exec, void *s) {
  return put(s, (struct op){.run = run_graph, .fn = exec, .counts = 1});
}

int hipGetProcAddress(const char *name, void **fn, int version, uint64_t flags, int *status) {
  (void)version, (void)flags;
  *fn = strcmp(name, "hipLaunchKernel") == 0 ? (void *)hipLaunchKernel : NULL;
  if (status) *status = *fn ? 0 : 1;
  return *fn ? OK : NOT_FOUND;
}

/* Not part of HIP: the most commands that were in flight at one time. */
uint64_t fakehip_most(void) { return most; }

/* Not part of HIP: the number of nodes of a graph. */
int fakehip_nodes(void *graph) { return ((struct graph *)graph)->n; }

/* Not part of HIP: begins a capture without a call that the shim sees, as a library of its own
 * might. Returns how many waits were put on captured streams so far. */
int fakehip_capture(void *s, int mode) { return hipStreamBeginCapture(s, mode), captured_waits; }

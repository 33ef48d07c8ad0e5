/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
/*
 * A libamdhip64 with one device, for tests of programs that load kernels from code objects. It is
 * a double, not hardware, and its device says so in its name. The streams are those of
 * fakehip.c: each runs its commands in order on a thread of its own.
 *
 * Time is real. A kernel of giveway-bench takes 10 ns an iteration after the one before it, even
 * if the thread that plays the device has to wait for a CPU, and streams that share a hardware
 * queue take turns. Handles, memory, sizes and the target of the code are checked;
 * what the real library accepts by accident is refused.
 *
 * With HIPDOUBLE_KFD, the path of a double of /dev/kfd, the process makes KFD queues as ROCm
 * does: up to GPU_MAX_HW_QUEUES (4), on the GPU of HIPDOUBLE_GPU. With HIPDOUBLE_PAGE, a file
 * in which that double notes which queues are stopped, a stopped queue makes no progress, and
 * queues of all processes that have work share the device equally.
 *
 * HIP5 is defined for a library like that of HIP 5: another struct of device properties.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#define FAKEHIP_STREAMS 200
#define hipModuleLaunchKernel unchecked_hipModuleLaunchKernel
#define hipStreamSynchronize unchecked_hipStreamSynchronize
#define hipStreamCreate unchecked_hipStreamCreate
#define hipStreamDestroy unchecked_hipStreamDestroy
#define hipEventCreateWithFlags unchecked_hipEventCreateWithFlags
#define hipEventRecord unchecked_hipEventRecord
#define hipEventQuery unchecked_hipEventQuery
#define hipEventSynchronize unchecked_hipEventSynchronize
#define hipEventDestroy unchecked_hipEventDestroy
#define hipHostGetDevicePointer unchecked_hipHostGetDevicePointer
#define hipFree unchecked_hipFree
#define hipSetDevice unchecked_hipSetDevice
#include "fakehip.c"
#undef hipModuleLaunchKernel
#undef hipStreamSynchronize
#undef hipStreamCreate
#undef hipStreamDestroy
#undef hipEventCreateWithFlags
#undef hipEventRecord
#undef hipEventQuery
#undef hipEventSynchronize
#undef hipEventDestroy
#undef hipHostGetDevicePointer
#undef hipFree
#undef hipSetDevice

enum { NO_MEMORY = 2, NOT_INITIALIZED = 3, BAD_CONFIGURATION = 9, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_IMAGE = 200, WRONG_TARGET = 209, BAD_HANDLE = 400 };
enum { NS_PER_ITERATION = 10, LAUNCH_NS = 2000, TICK_NS = 100000, MANY = 1 << 16 };

#define NAME "HIP double, not hardware"
#define ARCH "gfx942:sramecc+:xnack-"
#define MAGIC "HIPDOUBLE code for "

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Sleeps until a time. Within 150 us it does not sleep, so that short kernels are exact. */
static void sleep_until(int64_t t) {
  int64_t wake = t - now_ns() > 150000 ? t : 0;
  struct timespec s = {wake / 1000000000LL, wake % 1000000000LL};
  while (wake && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &s, NULL)) {}
  while (now_ns() < t) sched_yield();
}

/* ---- Handles and memory that exist. Nothing is freed, so that a later use is noticed. */

static struct thing {
  enum kind { STREAM = 1, EVENT, MODULE, FUNCTION, DEVICE_MEMORY, HOST_MEMORY } kind;
  char *at;
  size_t bytes;
} things[MANY];
static int known;
static pthread_mutex_t things_lock = PTHREAD_MUTEX_INITIALIZER;

static void *add(enum kind kind, void *at, size_t bytes) {
  pthread_mutex_lock(&things_lock);
  if (known == MANY) abort();
  things[known++] = (struct thing){kind, at, bytes};
  pthread_mutex_unlock(&things_lock);
  return at;
}

/* Whether bytes at an address lie in a thing of that kind; whole: they begin there. */
static struct thing *find(enum kind kind, const void *at, size_t bytes, int whole) {
  struct thing *found = NULL;
  pthread_mutex_lock(&things_lock);
  for (int i = 0; i < known && !found; i++) {
    struct thing *t = &things[i];
    if (t->kind != kind || (whole && t->at != at)) continue;
    if ((const char *)at >= t->at && (const char *)at + bytes <= t->at + t->bytes) found = t;
  }
  pthread_mutex_unlock(&things_lock);
  return found;
}

static int removed(enum kind kind, const void *at) {
  struct thing *t = find(kind, at, 0, 1);
  if (t) t->kind = 0;
  return t != NULL;
}

/* ---- KFD queues, and the page that says which of them are stopped. */

struct slot {
  uint32_t pid, queue, stopped, busy;
};
enum { SLOTS = 1024 };

static struct hw {
  uint32_t id;
  struct slot *slot; /* NULL: there is no page */
  pthread_mutex_t one; /* a hardware queue runs one kernel at a time */
  int64_t end;       /* when its last kernel ended, or should have */
} hw[128];
static int hw_queues, kfd = -1;
static struct slot *page;

struct create {
  uint64_t ring, write, read, doorbell;
  uint32_t ring_size, gpu, type, percentage, priority, queue;
  uint64_t more[5];
};
_Static_assert(sizeof(struct create) == 96, "kfd_ioctl_create_queue_args");

static int open_kfd(void) {
  const char *path = getenv("HIPDOUBLE_KFD"), *file = getenv("HIPDOUBLE_PAGE");
  uint64_t enable[2] = {0, 1}; /* KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK */
  if (!path || kfd >= 0) return OK;
  if (file) {
    int fd = open(file, O_RDWR | O_CLOEXEC);
    page = mmap(NULL, SLOTS * sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || page == MAP_FAILED) return NO_DEVICE;
  }
  kfd = open(path, O_RDWR | O_CLOEXEC);
  return kfd >= 0 && ioctl(kfd, _IOC(_IOC_READ | _IOC_WRITE, 'K', 0x25, 16), enable) == 0 ? OK : NO_DEVICE;
}

static int make_queue(struct hw *h) {
  const char *gpu = getenv("HIPDOUBLE_GPU");
  struct create c = {.ring = 1 << 30, .ring_size = 4096, .gpu = gpu ? (uint32_t)atoi(gpu) : 0, .type = 2, .percentage = 100, .priority = 7};
  pthread_mutex_init(&h->one, NULL);
  if (kfd < 0) return OK;
  if (ioctl(kfd, _IOC(_IOC_READ | _IOC_WRITE, 'K', 2, sizeof c), &c)) return NO_MEMORY;
  h->id = c.queue;
  for (int i = 0; page && i < SLOTS; i++) {
    if (page[i].pid == (uint32_t)getpid() && page[i].queue == c.queue) h->slot = &page[i];
  }
  return page && !h->slot ? NO_MEMORY : OK;
}

static struct hw *stream_queue[STREAMS];

/* Gives a stream a hardware queue of its own, or one that another has when there are no more. */
static int assign_queue(struct stream *s) {
  const char *limit = getenv("GPU_MAX_HW_QUEUES");
  int most_queues = limit ? atoi(limit) : 4, used = (int)(s - streams) - 1;
  if (most_queues < 1 || most_queues > 128) most_queues = 4;
  if (hw_queues < most_queues) {
    int r = make_queue(&hw[hw_queues]);
    if (r != OK) return r;
    hw_queues++;
  }
  stream_queue[s - streams] = &hw[used % hw_queues];
  return OK;
}

static int sharers(void) {
  int n = 0;
  for (int i = 0; page && i < SLOTS; i++) n += page[i].pid && page[i].busy && !page[i].stopped;
  return n > 1 ? n : 1;
}

/* Runs for that long of the device's time, from when the command was given or the last ended. */
static void occupy(struct hw *h, int64_t given, int64_t left) {
  int64_t at = h->end > given ? h->end : given;
  if (h->slot) __atomic_store_n(&h->slot->busy, 1, __ATOMIC_SEQ_CST);
  while (left > 0) {
    int n = sharers();
    int64_t step = left * n;
    if (h->slot && __atomic_load_n(&h->slot->stopped, __ATOMIC_SEQ_CST)) {
      usleep(TICK_NS / 1000);
      at = now_ns();
      continue;
    }
    if (page && step > TICK_NS) step = TICK_NS;
    sleep_until(at + step);
    left -= step / n;
    at += step;
  }
  if (h->slot) __atomic_store_n(&h->slot->busy, 0, __ATOMIC_SEQ_CST);
  h->end = at;
}

/* ---- Device. */

static int initialized;

int hipInit(unsigned flags) {
  if (flags) return INVALID;
  initialized = 1;
  return open_kfd();
}
int hipRuntimeGetVersion(int *v) { return *v = 60300000, initialized ? OK : NOT_INITIALIZED; }
int hipGetDeviceCount(int *n) { return *n = 1, initialized ? OK : NOT_INITIALIZED; }
int hipSetDevice(int d) { return d == 0 ? unchecked_hipSetDevice(d) : BAD_DEVICE; }
int hipSetDeviceFlags(unsigned f) { return f == 1 || f == 4 ? OK : INVALID; }
int hipDeviceGetName(char *s, int n, int d) { return d || n < 32 ? INVALID : (strcpy(s, NAME), OK); }
int hipDeviceGetUuid(char *id, int d) { return d ? BAD_DEVICE : (memcpy(id, "00112233445566ff", 16), OK); }
int hipDeviceGetAttribute(int *v, int a, int d) { return *v = 304, d ? BAD_DEVICE : a == 63 ? OK : INVALID; }
#ifdef HIP5
int hipGetDeviceProperties(char *p, int d) { return d ? BAD_DEVICE : (memset(p, 0, 792), strcpy(p + 396, ARCH), OK); }
#else
int hipGetDevicePropertiesR0600(char *p, int d) { return d ? BAD_DEVICE : (memset(p, 0, 1472), strcpy(p + 1160, ARCH), OK); }
#endif
const char *hipGetErrorName(int e) {
  return e == INVALID ? "hipErrorInvalidValue" : e == BAD_HANDLE ? "hipErrorInvalidHandle" : e == WRONG_TARGET ? "hipErrorNoBinaryForGpu" :
         e == NOT_READY ? "hipErrorNotReady" : e == BAD_CONFIGURATION ? "hipErrorInvalidConfiguration" : "hipErrorUnknown";
}
const char *hipGetErrorString(int e) { return e ? "said the double" : "no error"; }

int hipMalloc(void **p, size_t n) { return n ? (*p = add(DEVICE_MEMORY, calloc(1, n), n), OK) : INVALID; }
int hipFree(void *p) { return unchecked_hipFree(p) == OK && removed(DEVICE_MEMORY, p) ? OK : INVALID; }
int hipHostMalloc(void **p, size_t n, unsigned flags) {
  if (!n || (flags & ~0x40000003u)) return INVALID;
  *p = add(HOST_MEMORY, aligned_alloc(4096, (n + 4095) & ~4095UL), n);
  return OK;
}
int hipHostFree(void *p) { return removed(HOST_MEMORY, p) ? OK : INVALID; }
int hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
  int mapped = find(HOST_MEMORY, host, 1, 0) != NULL;
  for (int i = 0; i < registrations; i++) mapped |= (char *)host >= registered[i].at && (char *)host < registered[i].at + registered[i].bytes;
  return mapped && !flags ? (*device = host, OK) : (*device = NULL, INVALID);
}

/* ---- Modules. A code object is text: MAGIC, the target, and a line "kernel NAME SIZE..." for each. */

struct function {
  enum { SPIN, PARKED } what;
};

int hipModuleLoadData(void **m, const char *image) {
  *m = NULL;
  if (strncmp(image, MAGIC, sizeof MAGIC - 1)) return BAD_IMAGE;
  if (strncmp(image + sizeof MAGIC - 1, ARCH "\n", sizeof ARCH)) return WRONG_TARGET;
  return *m = add(MODULE, strdup(image), 1), OK;
}
int hipModuleUnload(void *m) { return removed(MODULE, m) ? OK : BAD_HANDLE; }
int hipModuleGetFunction(void **f, void *m, const char *name) {
  static const char *const want[] = {"kernel spin 8 4\n", "kernel parked 8 4 8\n"};
  char line[64];
  *f = NULL;
  if (!find(MODULE, m, 1, 1)) return BAD_HANDLE;
  snprintf(line, sizeof line, "kernel %s ", name);
  for (int i = 0; i < 2; i++) {
    if (strncmp(want[i], line, strlen(line)) || !strstr(m, want[i])) continue;
    struct function *made = malloc(sizeof *made);
    made->what = i;
    return *f = add(FUNCTION, made, sizeof *made), OK;
  }
  return NOT_FOUND;
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, size_t shared) {
  *n = 8;
  return find(FUNCTION, f, 1, 1) && threads > 0 && threads <= 1024 && !shared ? OK : INVALID;
}

struct launch {
  struct hw *queue;
  int64_t given, work;
  volatile uint32_t *flag; /* parked: waits for it */
};

static void run_launch(struct op *op) {
  struct launch *l = op->to;
  pthread_mutex_lock(&l->queue->one);
  if (l->flag) {
    int64_t end = now_ns() + l->work;
    while (!*l->flag && now_ns() < end) usleep(10);
    l->work = 1;
  }
  occupy(l->queue, l->given, l->work + LAUNCH_NS);
  pthread_mutex_unlock(&l->queue->one);
  free(l);
}

int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void *s, void **params, void **extra) {
  if (!find(FUNCTION, f, 1, 1) || !find(STREAM, s, 1, 1)) return BAD_HANDLE;
  if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 || shared > 65536) return BAD_CONFIGURATION;
  if (!params || extra) return INVALID;
  struct launch l = {.queue = stream_queue[(struct stream *)s - streams], .given = now_ns()};
  if (((struct function *)f)->what == SPIN) {
    if (!find(DEVICE_MEMORY, *(void **)params[0], 4, 0)) return INVALID;
    l.work = (int64_t)NS_PER_ITERATION * *(uint32_t *)params[1];
  } else {
    l.flag = *(volatile uint32_t **)params[0];
    if (!find(HOST_MEMORY, (void *)l.flag, 4, 0) || ((uintptr_t)l.flag & 3) || !*(uint32_t *)params[1]) return INVALID;
    l.work = (int64_t) * (uint64_t *)params[2] * 10; /* ticks of 100 MHz */
  }
  struct launch *made = malloc(sizeof *made);
  *made = l;
  return put(s, (struct op){.run = run_launch, .to = made, .counts = 1});
}

/* ---- Streams and events. */

int hipStreamCreateWithFlags(void **s, unsigned flags) {
  *s = NULL;
  if (flags > 1 || !initialized) return INVALID;
  int r = unchecked_hipStreamCreate(s);
  return r == OK && (r = assign_queue(*s)) == OK ? (add(STREAM, *s, 1), OK) : r;
}
int hipStreamCreate(void **s) { return hipStreamCreateWithFlags(s, 0); }
int hipStreamDestroy(void *s) { return removed(STREAM, s) ? unchecked_hipStreamDestroy(s) : BAD_HANDLE; }
int hipStreamSynchronize(void *s) { return !s || find(STREAM, s, 1, 1) ? unchecked_hipStreamSynchronize(s) : BAD_HANDLE; }

struct timed {
  struct event event; /* the first, for fakehip.c */
  unsigned flags;
  int64_t passed; /* 0: not yet */
};

int hipEventCreateWithFlags(void **e, unsigned flags) {
  struct timed *made = calloc(1, sizeof *made);
  made->flags = flags;
  return *e = add(EVENT, made, sizeof *made), flags > 3 ? INVALID : OK;
}
/* The time is the device's: when the event was given or its queue's last kernel ended, not when
 * this thread had a CPU. */
static void run_stamp(struct op *op) {
  struct timed *e = op->to;
  struct hw *h = (struct hw *)op->fn;
  int64_t given = (int64_t)op->value;
  __atomic_store_n(&e->passed, h && h->end > given ? h->end : given, __ATOMIC_SEQ_CST);
}
int hipEventRecord(void *event, void *s) {
  struct timed *e = event;
  if (!find(EVENT, e, 1, 1) || (s && !find(STREAM, s, 1, 1))) return BAD_HANDLE;
  struct hw *h = s ? stream_queue[(struct stream *)s - streams] : NULL;
  int r = put(s, (struct op){.run = run_stamp, .to = e, .fn = h, .value = (uint64_t)now_ns()});
  pthread_mutex_lock(&lock);
  e->event.stream = stream_of(s);
  e->event.at = e->event.stream->given;
  pthread_mutex_unlock(&lock);
  return r;
}
int hipEventQuery(void *e) { return find(EVENT, e, 1, 1) ? unchecked_hipEventQuery(e) : BAD_HANDLE; }
int hipEventSynchronize(void *e) { return find(EVENT, e, 1, 1) ? unchecked_hipEventSynchronize(e) : BAD_HANDLE; }
int hipEventDestroy(void *e) { return removed(EVENT, e) ? OK : BAD_HANDLE; }
int hipEventElapsedTime(float *ms, void *from, void *to) {
  struct timed *a = from, *b = to;
  if (!ms) return INVALID;
  if (!find(EVENT, a, 1, 1) || !find(EVENT, b, 1, 1) || ((a->flags | b->flags) & 2) || !a->event.stream || !b->event.stream) return BAD_HANDLE;
  if (unchecked_hipEventQuery(a) != OK || unchecked_hipEventQuery(b) != OK) return NOT_READY;
  return *ms = (float)(b->passed - a->passed) / 1e6f, OK;
}

__attribute__((constructor)) static void exact_timers(void) { prctl(PR_SET_TIMERSLACK, 1000UL); }

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random OpenCL program that knows nothing of the shim.
 *
 *     openclfuzz SEED ROUNDS THREADS
 *
 * Each thread puts kernels, copies, fills, reads, writes and maps on its queues, two in order and
 * one out of order, and orders those that use the same buffer by events. It waits in all the ways
 * that OpenCL has, or not at all. Some commands wait for a user event that the thread sets later.
 * Queues are released and created while commands are in them. In each round a thread uses a buffer
 * that another thread has filled, ordered by events only. After some rounds all threads wait, so
 * that the process is idle and the next command begins a request.
 *
 * No result depends on timing, so the same seed gives the same sum, unless a command is lost, runs
 * twice or runs out of order.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAITS uint32_t, void *const *, void **
int32_t clGetPlatformIDs(uint32_t, void **, uint32_t *);
int32_t clGetDeviceIDs(void *, uint64_t, uint32_t, void **, uint32_t *);
void *clCreateContext(const intptr_t *, uint32_t, void *const *, void *, void *, int32_t *);
void *clCreateCommandQueue(void *, void *, uint64_t, int32_t *);
int32_t clReleaseCommandQueue(void *);
void *clCreateBuffer(void *, uint64_t, size_t, void *, int32_t *);
void *clCreateProgramWithSource(void *, uint32_t, const char **, const size_t *, int32_t *);
int32_t clBuildProgram(void *, uint32_t, void *const *, const char *, void *, void *);
void *clCreateKernel(void *, const char *, int32_t *);
int32_t clSetKernelArg(void *, uint32_t, size_t, const void *);
int32_t clEnqueueNDRangeKernel(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, WAITS);
int32_t clEnqueueReadBuffer(void *, void *, uint32_t, size_t, size_t, void *, WAITS);
int32_t clEnqueueWriteBuffer(void *, void *, uint32_t, size_t, size_t, const void *, WAITS);
int32_t clEnqueueCopyBuffer(void *, void *, void *, size_t, size_t, size_t, WAITS);
int32_t clEnqueueFillBuffer(void *, void *, const void *, size_t, size_t, size_t, WAITS);
void *clEnqueueMapBuffer(void *, void *, uint32_t, uint64_t, size_t, size_t, WAITS, int32_t *);
int32_t clEnqueueUnmapMemObject(void *, void *, void *, WAITS);
int32_t clEnqueueMarkerWithWaitList(void *, WAITS);
int32_t clEnqueueBarrierWithWaitList(void *, WAITS);
void *clCreateUserEvent(void *, int32_t *);
int32_t clSetUserEventStatus(void *, int32_t);
int32_t clWaitForEvents(uint32_t, void *const *);
int32_t clRetainEvent(void *);
int32_t clReleaseEvent(void *);
int32_t clGetEventInfo(void *, uint32_t, size_t, void *, size_t *);
int32_t clSetEventCallback(void *, int32_t, void (*)(void *, int32_t, void *), void *);
int32_t clFlush(void *);
int32_t clFinish(void *);

enum { ITEMS = 64, BYTES = ITEMS * 4, THREADS = 8, QUEUES = 3, BUFFERS = 4, READERS = 8, SLOTS = 512, OPS = 24 };

static const char *source =
    "kernel void blend(global uint *to, global const uint *from, uint k) {\n"
    "  size_t i = get_global_id(0);\n"
    "  uint x = to[i] * 1664525u + from[i] * (k | 1u);\n"
    "  for (uint j = 0; j < k % 64u; j++) x = x * 22695477u + 1u;\n"
    "  to[i] = x ^ k;\n"
    "}\n";

static void *context, *device, *program;

static void must(int32_t r, const char *what) {
  if (r == 0) return;
  printf("%s: %d\n", what, r);
  fflush(stdout);
  _exit(1);
}
#define MUST(call) must(call, #call)

/* A buffer, and the commands after which it may be used. */
struct buffer {
  void *memory;
  void *written; /* event of the last command that wrote it; NULL: none */
  void *read[READERS];
  uint32_t reads;
};

/* Each thread's copies for another one, used in turn. */
static struct buffer copies[THREADS][2];

struct thread {
  int id, rounds;
  uint64_t random;
  uint32_t sum;
  void *queues[QUEUES], *kernel, *user;
  struct buffer buffers[BUFFERS];
  uint32_t slots[SLOTS][ITEMS]; /* host memory of reads and writes that may not be done yet */
  uint32_t used;
  uint32_t callbacks, called;
};
static struct thread threads[THREADS];
static int count;
static uint64_t seed;
static pthread_barrier_t meet;

static uint64_t next(uint64_t *x) {
  *x += 0x9e3779b97f4a7c15ull;
  uint64_t z = *x;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}
static uint32_t below(struct thread *t, uint32_t n) { return (uint32_t)(next(&t->random) >> 32) % n; }

static void *create_queue(int which) {
  int32_t r;
  void *q = clCreateCommandQueue(context, device, which == QUEUES - 1 ? 1 /* out of order */ : 0, &r);
  return must(r, "clCreateCommandQueue"), q;
}
static void *create_buffer(void *q) {
  int32_t r;
  uint32_t zero = 0;
  void *b = clCreateBuffer(context, 1, BYTES, NULL, &r);
  must(r, "clCreateBuffer");
  MUST(clEnqueueFillBuffer(q, b, &zero, 4, 0, BYTES, 0, NULL, NULL));
  MUST(clFinish(q));
  return b;
}

/* Before a call that waits: nothing may wait for this thread then. */
static void set_user_event(struct thread *t) {
  if (!t->user) return;
  MUST(clSetUserEventStatus(t->user, 0));
  MUST(clReleaseEvent(t->user));
  t->user = NULL;
}

static void drop(void **event) {
  if (*event) MUST(clReleaseEvent(*event));
  *event = NULL;
}

/* The events that a command on these buffers waits for. */
struct list {
  void *events[2 * READERS + 4];
  uint32_t n;
};
static void add_writer(struct list *l, const struct buffer *b) {
  if (b->written) l->events[l->n++] = b->written;
}
static void add_all(struct list *l, const struct buffer *b) {
  add_writer(l, b);
  for (uint32_t i = 0; i < b->reads; i++) l->events[l->n++] = b->read[i];
}
/* Sometimes a new user event, which the thread sets later. */
static void add_user(struct thread *t, struct list *l) {
  int32_t r;
  if (t->user || below(t, 16)) return;
  t->user = clCreateUserEvent(context, &r);
  must(r, "clCreateUserEvent");
  l->events[l->n++] = t->user;
}
static void *const *events_of(const struct list *l) { return l->n ? l->events : NULL; }

static void was_read(struct thread *t, struct buffer *b, void *event) {
  if (b->reads == READERS) {
    set_user_event(t);
    MUST(clWaitForEvents(b->reads, b->read));
    while (b->reads) drop(&b->read[--b->reads]);
  }
  MUST(clRetainEvent(event));
  b->read[b->reads++] = event;
}
static void was_written(struct buffer *b, void *event) {
  drop(&b->written);
  while (b->reads) drop(&b->read[--b->reads]);
  MUST(clRetainEvent(event));
  b->written = event;
}

static void blend(struct thread *t, void *q, struct buffer *to, struct buffer *from) {
  struct list l = {.n = 0};
  size_t items = ITEMS;
  uint32_t k = below(t, 1u << 31);
  void *event;
  add_all(&l, to);
  add_writer(&l, from);
  add_user(t, &l);
  MUST(clSetKernelArg(t->kernel, 0, sizeof to->memory, &to->memory));
  MUST(clSetKernelArg(t->kernel, 1, sizeof from->memory, &from->memory));
  MUST(clSetKernelArg(t->kernel, 2, sizeof k, &k));
  MUST(clEnqueueNDRangeKernel(q, t->kernel, 1, NULL, &items, NULL, l.n, events_of(&l), &event));
  was_read(t, from, event);
  was_written(to, event);
  MUST(clReleaseEvent(event));
}
static void copy(struct thread *t, void *q, struct buffer *to, struct buffer *from) {
  struct list l = {.n = 0};
  void *event;
  add_all(&l, to);
  add_writer(&l, from);
  add_user(t, &l);
  MUST(clEnqueueCopyBuffer(q, from->memory, to->memory, 0, 0, BYTES, l.n, events_of(&l), &event));
  was_read(t, from, event);
  was_written(to, event);
  MUST(clReleaseEvent(event));
}

static void finish(struct thread *t) {
  set_user_event(t);
  for (int i = 0; i < QUEUES; i++) MUST(clFinish(t->queues[i]));
}
static uint32_t *slot(struct thread *t) {
  if (t->used == SLOTS) { /* all that use them are done after this */
    finish(t);
    for (uint32_t i = 0; i < SLOTS; i++) {
      for (int k = 0; k < ITEMS; k++) t->sum = t->sum * 31 + t->slots[i][k];
    }
    t->used = 0;
  }
  return t->slots[t->used++];
}

static void fill(struct thread *t, void *q, struct buffer *to) {
  struct list l = {.n = 0};
  uint32_t pattern = below(t, 1u << 31);
  void *event;
  add_all(&l, to);
  MUST(clEnqueueFillBuffer(q, to->memory, &pattern, 4, 0, BYTES, l.n, events_of(&l), &event));
  was_written(to, event);
  MUST(clReleaseEvent(event));
}
static void write_memory(struct thread *t, void *q, struct buffer *to, uint32_t blocking) {
  uint32_t *from = slot(t);
  struct list l = {.n = 0};
  void *event;
  for (int i = 0; i < ITEMS; i++) from[i] = below(t, 1u << 31);
  if (blocking) set_user_event(t);
  add_all(&l, to);
  MUST(clEnqueueWriteBuffer(q, to->memory, blocking, 0, BYTES, from, l.n, events_of(&l), &event));
  was_written(to, event);
  MUST(clReleaseEvent(event));
}
static void read_memory(struct thread *t, void *q, struct buffer *from, uint32_t blocking) {
  uint32_t *to = slot(t);
  struct list l = {.n = 0};
  void *event;
  if (blocking) set_user_event(t);
  add_writer(&l, from);
  MUST(clEnqueueReadBuffer(q, from->memory, blocking, 0, BYTES, to, l.n, events_of(&l), &event));
  was_read(t, from, event);
  MUST(clReleaseEvent(event));
}
static void map_memory(struct thread *t, void *q, struct buffer *b) {
  struct list l = {.n = 0};
  int32_t r;
  void *event;
  set_user_event(t);
  add_all(&l, b);
  uint32_t *memory = clEnqueueMapBuffer(q, b->memory, 1, 3 /* read, write */, 0, BYTES, l.n, events_of(&l), NULL, &r);
  must(r, "clEnqueueMapBuffer");
  for (int i = 0; i < ITEMS; i++) t->sum = t->sum * 31 + memory[i], memory[i] ^= t->sum;
  MUST(clEnqueueUnmapMemObject(q, b->memory, memory, 0, NULL, &event));
  was_written(b, event);
  MUST(clReleaseEvent(event));
}

static void called(void *event, int32_t status, void *n) {
  (void)event, (void)status;
  __atomic_add_fetch((uint32_t *)n, 1, __ATOMIC_RELEASE);
}

/* Ways to learn, or not, how far a buffer's last command is. */
static void wait_somehow(struct thread *t, int which, struct buffer *b) {
  void *q = t->queues[which];
  int32_t status;
  switch (below(t, 8)) {
  case 0: set_user_event(t), MUST(clFinish(q)); break;
  case 1: set_user_event(t); if (b->written) MUST(clWaitForEvents(1, &b->written)); break;
  case 2: if (b->written) MUST(clGetEventInfo(b->written, 0x11D3, sizeof status, &status, NULL)); break;
  case 3: if (b->written) t->callbacks++, MUST(clSetEventCallback(b->written, 0, called, &t->called)); break;
  case 4: MUST(clEnqueueMarkerWithWaitList(q, b->written ? 1 : 0, b->written ? &b->written : NULL, NULL)); break;
  case 5: MUST(clEnqueueBarrierWithWaitList(q, 0, NULL, NULL)); break;
  case 6: /* its commands go on */
    if (below(t, 2)) set_user_event(t), MUST(clFinish(q));
    MUST(clReleaseCommandQueue(q));
    t->queues[which] = create_queue(which);
    break;
  case 7: usleep(below(t, 300)); break;
  }
}

static void operate(struct thread *t) {
  int which = (int)below(t, QUEUES);
  void *q = t->queues[which];
  struct buffer *a = &t->buffers[below(t, BUFFERS)], *b = &t->buffers[below(t, BUFFERS)];
  if (a == b) b = &t->buffers[(a - t->buffers + 1) % BUFFERS];
  switch (below(t, 16)) {
  default: blend(t, q, a, b); break;
  case 7:
  case 8: copy(t, q, a, b); break;
  case 9: fill(t, q, a); break;
  case 10: write_memory(t, q, a, below(t, 2)); break;
  case 11: read_memory(t, q, a, below(t, 2)); break;
  case 12: map_memory(t, q, a); break;
  case 13:
  case 14: wait_somehow(t, which, a); break;
  case 15: MUST(clFlush(q)); break;
  }
  if (t->user && below(t, 6) == 0) set_user_event(t);
}

/* Copies a buffer for another thread and uses the copy that a third one has made. A copy is
 * overwritten two rounds later, when the command that uses it is known to its owner. */
static void exchange(struct thread *t, int round, int all_wait) {
  struct buffer *mine = &copies[t->id][round % 2], *theirs = &copies[(t->id + 1) % count][round % 2];
  copy(t, t->queues[below(t, QUEUES)], mine, &t->buffers[0]);
  for (int i = 0; i < QUEUES; i++) MUST(clFlush(t->queues[i])); /* another thread waits for them */
  set_user_event(t);
  if (all_wait) finish(t);
  pthread_barrier_wait(&meet);
  blend(t, t->queues[below(t, QUEUES)], &t->buffers[1], theirs);
}

static void *run(void *arg) {
  struct thread *t = arg;
  uint64_t common = seed; /* the same in all threads */
  int32_t r;
  t->random = seed * 31 + (uint64_t)t->id;
  t->kernel = clCreateKernel(program, "blend", &r), must(r, "clCreateKernel");
  for (int i = 0; i < QUEUES; i++) t->queues[i] = create_queue(i);
  for (int i = 0; i < BUFFERS; i++) t->buffers[i].memory = create_buffer(t->queues[0]);
  for (int i = 0; i < 2; i++) copies[t->id][i].memory = create_buffer(t->queues[0]);
  pthread_barrier_wait(&meet);
  for (int round = 0; round < t->rounds; round++) {
    int all_wait = next(&common) % 4 != 0;
    for (uint32_t n = 1 + below(t, OPS); n > 0; n--) operate(t);
    exchange(t, round, all_wait);
  }
  finish(t);
  for (int i = 0; i < BUFFERS; i++) read_memory(t, t->queues[0], &t->buffers[i], 1);
  while (t->used < SLOTS) memset(slot(t), 0, BYTES);
  slot(t);
  while (__atomic_load_n(&t->called, __ATOMIC_ACQUIRE) != t->callbacks) usleep(100);
  return NULL;
}

int main(int argc, char **argv) {
  void *platform;
  pthread_t ids[THREADS];
  uint32_t sum = 0;
  int32_t r;
  if (argc != 4 || (count = atoi(argv[3])) < 1 || count > THREADS) return fprintf(stderr, "openclfuzz SEED ROUNDS THREADS\n"), 2;
  seed = strtoull(argv[1], NULL, 10);
  MUST(clGetPlatformIDs(1, &platform, NULL));
  MUST(clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL));
  context = clCreateContext(NULL, 1, &device, NULL, NULL, &r), must(r, "clCreateContext");
  program = clCreateProgramWithSource(context, 1, &source, NULL, &r), must(r, "clCreateProgramWithSource");
  MUST(clBuildProgram(program, 1, &device, "", NULL, NULL));
  pthread_barrier_init(&meet, NULL, (unsigned)count);
  for (int i = 0; i < count; i++) {
    threads[i].id = i, threads[i].rounds = atoi(argv[2]);
    must(pthread_create(&ids[i], NULL, run, &threads[i]), "pthread_create");
  }
  for (int i = 0; i < count; i++) {
    pthread_join(ids[i], NULL);
    sum = sum * 31 + threads[i].sum;
  }
  printf("ok sum=%08x\n", sum);
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random Level Zero program that knows nothing of the shim.
 *
 *     zefuzz SEED ROUNDS THREADS
 *
 * Each thread appends kernels, copies and fills to immediate lists, and to regular lists that it
 * executes on queues of its own and on one that all threads share, on both engines. It orders those
 * that use the same buffer by events. Some wait for an event that the thread sets later. In each
 * round a thread uses a buffer that another thread has filled, ordered by an event only. The thread
 * then waits in one of the ways that Level Zero has, destroys what the round used, and sometimes a
 * queue and an immediate list.
 *
 * No result depends on timing, so the same seed gives the same sum, unless a command is lost, runs
 * twice or runs out of order.
 */
#define LINKED
#include "zeprogram.h"

#include <pthread.h>

enum { THREADS = 8, BUFFERS = 4, READERS = 8, OPS = 10, EVENTS = 32, LISTS = 32, STREAMS = 5, WAITS = 16 };
#define ASYNC ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS

/* A buffer, and the commands after which it may be used. */
struct buffer {
  uint32_t *memory;
  event_t written, read[READERS];
  uint32_t reads;
};

struct stream {
  bool immediate, shared;
  uint32_t ordinal;
  queue_t queue;
  list_t list;
};

static struct thread {
  int id;
  uint64_t random;
  uint32_t sum;
  struct stream streams[STREAMS];
  kernel_t advance, blend;
  struct buffer buffers[BUFFERS], out;
  ze_event_pool_handle_t pool;
  event_t events[EVENTS], host; /* host: not signalled yet; NULL: none */
  uint32_t used;
  list_t lists[LISTS];
  uint32_t listed;
} threads[THREADS];
static int count, rounds;
static queue_t shared;
static pthread_barrier_t meet;

static uint32_t below(struct thread *t, uint32_t n) {
  uint64_t z = t->random += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return (uint32_t)((z ^ z >> 31) % n);
}

static event_t next_event(struct thread *t) {
  event_t e = t->events[t->used] = new_event(t->pool, t->used);
  t->used++;
  return e;
}

struct list {
  event_t events[WAITS];
  uint32_t n;
};
static void add(struct list *l, event_t e) {
  if (e) l->events[l->n++] = e;
}
static void add_all(struct list *l, const struct buffer *b) {
  add(l, b->written);
  for (uint32_t i = 0; i < b->reads; i++) add(l, b->read[i]);
}

static void set_host_event(struct thread *t) {
  if (t->host) MUST(ze.EventHostSignal(t->host));
  t->host = NULL;
}

/* Appends one command to a list, and notes what it reads and writes. */
static void append(struct thread *t, list_t l, uint32_t ordinal, struct buffer *to, struct buffer *from) {
  struct list w = {.n = 0};
  uint32_t k = below(t, 1u << 30), what = ordinal == COPY ? 2 + below(t, 2) : below(t, 4);
  bool reads = what == 1 || what == 2;
  if (reads && from->reads == READERS) what = ordinal == COPY ? 3 : 0, reads = false;
  event_t e = next_event(t);
  add_all(&w, to);
  if (reads) add(&w, from->written);
  if (!t->host && below(t, 12) == 0 && w.n < WAITS) add(&w, t->host = next_event(t));
  event_t *waits = w.n ? w.events : NULL;
  if (what == 0) launch(l, t->advance, (uint64_t)to->memory, k, below(t, 300), e, w.n, waits);
  else if (what == 1) launch(l, t->blend, (uint64_t)to->memory, (uint64_t)from->memory, k, e, w.n, waits);
  else if (what == 2) MUST(ze.CommandListAppendMemoryCopy(l, to->memory, from->memory, BYTES, e, w.n, waits));
  else MUST(ze.CommandListAppendMemoryFill(l, to->memory, &k, 4, BYTES, e, w.n, waits));
  if (reads) from->read[from->reads++] = e;
  to->written = e;
  to->reads = 0;
  if (below(t, 6) == 0) MUST(ze.CommandListAppendBarrier(l, NULL, 0, NULL));
}

static void operate(struct thread *t, struct buffer *to, struct buffer *from) {
  struct stream *s = &t->streams[below(t, STREAMS)];
  if (s->immediate) {
    append(t, s->list, s->ordinal, to, from);
    return;
  }
  list_t l = t->lists[t->listed++] = new_list(s->ordinal);
  append(t, l, s->ordinal, to, from);
  if (below(t, 3) == 0 && t->used < EVENTS - 8) append(t, l, s->ordinal, &t->buffers[below(t, BUFFERS)], to);
  /* A list that waits for the host would keep the other threads' lists waiting. */
  if (s->shared) set_host_event(t);
  execute(s->queue, l, NULL);
}

static void some(struct thread *t, int n) {
  while (n--) {
    uint32_t to = below(t, BUFFERS), from = (to + 1 + below(t, BUFFERS - 1)) % BUFFERS;
    operate(t, &t->buffers[to], &t->buffers[from]);
  }
}

static void finish(struct thread *t) {
  uint32_t how = below(t, 4);
  queue_t own = t->streams[0].queue;
  if (how == 0) MUST(ze.CommandQueueSynchronize(own, UINT64_MAX));
  if (how == 1) {
    ze_fence_handle_t f = new_fence(own);
    list_t empty = t->lists[t->listed++] = new_list(COMPUTE);
    execute(own, empty, f);
    while (ze.FenceQueryStatus(f) == ZE_RESULT_NOT_READY) usleep(20);
    MUST(ze.FenceDestroy(f));
  }
  for (uint32_t i = 0; i < t->used; i++) {
    event_t e = t->events[how == 2 ? t->used - 1 - i : i];
    while (how == 3 && ze.EventQueryStatus(e) == ZE_RESULT_NOT_READY) usleep(20);
    MUST(ze.EventHostSynchronize(e, UINT64_MAX));
  }
}

static void open_streams(struct thread *t, bool first) {
  for (int i = 0; i < 4; i += first ? 1 : 2) {
    struct stream *s = &t->streams[i];
    *s = (struct stream){.immediate = i >= 2, .ordinal = i % 2 ? COPY : COMPUTE};
    if (s->immediate) s->list = new_immediate(s->ordinal, ASYNC);
    else s->queue = new_queue(s->ordinal, ASYNC);
  }
  t->streams[4] = (struct stream){.queue = shared, .ordinal = COMPUTE, .shared = true};
}

/* The device may use lists and streams for a moment after the last event. */
static void destroy_round(struct thread *t) {
  bool streams = below(t, 4) == 0;
  MUST(ze.CommandQueueSynchronize(t->streams[0].queue, UINT64_MAX));
  MUST(ze.CommandQueueSynchronize(t->streams[1].queue, UINT64_MAX));
  MUST(ze.CommandQueueSynchronize(shared, UINT64_MAX));
  if (streams) {
    event_t e = next_event(t);
    MUST(ze.CommandListAppendBarrier(t->streams[2].list, e, 0, NULL));
    MUST(ze.EventHostSynchronize(e, UINT64_MAX));
    MUST(ze.CommandListDestroy(t->streams[2].list));
    MUST(ze.CommandQueueDestroy(t->streams[0].queue));
  }
  while (t->listed) MUST(ze.CommandListDestroy(t->lists[--t->listed]));
  while (t->used) MUST(ze.EventDestroy(t->events[--t->used]));
  MUST(ze.EventPoolDestroy(t->pool));
  for (int i = 0; i < BUFFERS; i++) t->buffers[i].written = NULL, t->buffers[i].reads = 0;
  t->out.written = NULL, t->out.reads = 0;
  if (streams) open_streams(t, false);
}

static void round_of(struct thread *t) {
  struct thread *other = &threads[(t->id + 1) % count];
  t->pool = new_pool(EVENTS);
  some(t, OPS / 2);
  event_t e = next_event(t);
  struct list w = {.n = 0};
  add(&w, t->buffers[0].written);
  MUST(ze.CommandListAppendMemoryCopy(t->streams[3].list, t->out.memory, t->buffers[0].memory, BYTES, e, w.n, w.n ? w.events : NULL));
  if (t->buffers[0].reads == READERS) t->buffers[0].reads--; /* the copy is waited for below */
  t->buffers[0].read[t->buffers[0].reads++] = e;
  t->out.written = e;
  pthread_barrier_wait(&meet);
  struct buffer view = {.memory = other->out.memory, .written = other->out.written}; /* only read */
  if (count > 1) append(t, t->streams[2].list, COMPUTE, &t->buffers[1], &view);
  some(t, 2);
  set_host_event(t);
  pthread_barrier_wait(&meet); /* every thread has set its event: no thread waits for ever */
  finish(t);
  pthread_barrier_wait(&meet);
  destroy_round(t);
  pthread_barrier_wait(&meet);
}

static void *run(void *p) {
  struct thread *t = p;
  t->advance = new_kernel("advance"), t->blend = new_kernel("blend");
  for (int i = 0; i < BUFFERS; i++) t->buffers[i].memory = new_buffer();
  t->out.memory = new_buffer();
  open_streams(t, true);
  pthread_barrier_wait(&meet);
  for (int i = 0; i < rounds; i++) round_of(t);
  for (int i = 0; i < BUFFERS * FAKEZE_ITEMS; i++) mix(&t->sum, t->buffers[i / FAKEZE_ITEMS].memory[i % FAKEZE_ITEMS]);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  pthread_t all[THREADS];
  uint64_t seed = strtoull(argv[1], NULL, 10);
  uint32_t sum = 0;
  rounds = atoi(argv[2]), count = atoi(argv[3]);
  begin();
  shared = new_queue(COMPUTE, ASYNC);
  pthread_barrier_init(&meet, NULL, (unsigned)count);
  for (int i = 0; i < count; i++) {
    threads[i].id = i, threads[i].random = seed * 16 + (uint64_t)i;
    pthread_create(&all[i], NULL, run, &threads[i]);
  }
  for (int i = 0; i < count; i++) pthread_join(all[i], NULL), mix(&sum, threads[i].sum);
  printf("ok fuzz sum=%08x most=%d\n", sum, take_most());
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Level Zero driver for tests, which the real loader loads (ZE_ENABLE_ALT_DRIVERS). It has one
 * device with a compute and a copy engine, on which kernels take real time on threads.
 *
 * It promises no more than Level Zero does. Commands of a stream start in the order in which they
 * were appended, up to four run at the same time, and only events, barriers and fences order them.
 * Kernels read their data when they start and write it when they end, so that a missing dependency
 * changes results. Handles are reused as soon as possible, unless the loader has handles of its
 * own (see may_reuse). A program that does what Level Zero forbids, for example destroys what the device
 * uses, ends with a line "driver: ...".
 *
 * Kernels, with arguments of 8 bytes each:
 *     advance data, k, us    data[i] = data[i] * A + C ^ k, after us microseconds
 *     blend to, from, k      to[i] = to[i] * A + from[i] ^ k
 *     wait word              ends when the word is not 0
 */
#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fakeze.h"

enum kind { CONTEXT = 1, QUEUE, LIST, FENCE, POOL, EVENT, MODULE, KERNEL, KINDS };
enum what { ADVANCE, BLEND, WAIT_WORD, COPY, FILL, LAST_WORK = FILL, BARRIER, WAIT, SIGNAL, RESET, SIGNAL_FENCE };

struct command {
  enum what what;
  struct object *list, *signal, *waits[16];
  uint32_t n;
  uint64_t args[4], seq;
  uint8_t pattern[16];
  struct command *next;
};

struct object {
  enum kind kind;
  bool alive;
  struct object *parent, *next_free;
  int children, refs; /* refs: how often the device uses it */
  int busy;           /* threads in a call about it */
  /* a queue or list */
  bool immediate, closed, in_order, sync, ends, active;
  uint32_t ordinal;
  struct command *first, *last;                     /* recorded, or waiting to start */
  uint64_t seq, running[FAKEZE_MOST_RUNNING];       /* sequence numbers of running commands; 0: none */
  struct command *fences;                           /* not signalled yet */
  pthread_t thread;
  /* an event or fence */
  bool signalled;
  uint32_t index;
  /* a pool */
  uint32_t count;
  uint64_t taken;
  /* a kernel */
  enum what what;
  uint64_t args[4];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct object *unused[KINDS];
static int in_flight, most;
static char the_driver, the_device; /* only their addresses are used */
static int slow; /* an execution with a fence returns when it is 0; see fakezeSlow */
static int lost; /* the device is lost; see fakezeLost */

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("driver: ", stdout);
  vprintf(format, args);
  fputs("\n", stdout);
  fflush(stdout);
  _exit(4);
}

static const char *const names[KINDS] = {"", "context", "queue", "list", "fence", "event pool", "event", "module", "kernel"};

static struct object *check(void *handle, enum kind kind) {
  struct object *o = handle;
  if (!o || o->kind != kind || !o->alive) die("%p is no %s", handle, names[kind]);
  return o;
}

/* The functions up to the next heading are called with the lock held. */

/* A loader that has handles of its own forgets them only after the driver's destroy function has
 * returned. If another thread is given the same handle before that, the loader frees the new object
 * instead, and the program crashes, with and without the shim. */
static bool may_reuse(void) { return !getenv("ZE_ENABLE_LOADER_INTERCEPT"); }

static struct object *create(enum kind kind, struct object *parent) {
  struct object *o = may_reuse() ? unused[kind] : NULL;
  if (o) unused[kind] = o->next_free;
  else o = malloc(sizeof *o);
  *o = (struct object){.kind = kind, .alive = true, .parent = parent};
  if (parent) parent->children++;
  return o;
}

static void destroy(struct object *o) {
  if (o->refs) die("a %s is destroyed while the device uses it", names[o->kind]);
  if (o->children) die("a %s is destroyed before what was created from it", names[o->kind]);
  if (o->parent) o->parent->children--;
  o->alive = false;
  o->next_free = unused[o->kind];
  unused[o->kind] = o;
}

static struct object *context_of(struct object *o) {
  while (o->kind != CONTEXT) o = o->parent;
  return o;
}

static bool is_work(const struct command *c) { return c->what <= LAST_WORK; }

/* The device uses what a command needs until it is done. */
static void refer(struct command *c, int change) {
  c->list->refs += change;
  if (c->signal) c->signal->refs += change;
  for (uint32_t i = 0; i < c->n; i++) c->waits[i]->refs += change;
  if (is_work(c)) in_flight += change;
  if (in_flight > most) most = in_flight;
}

static void finish(struct command *c) {
  if (c->signal && c->what != RESET) c->signal->signalled = true;
  refer(c, -1);
  free(c);
  pthread_cond_broadcast(&changed);
}

static int count_running(const struct object *s, uint64_t before) {
  int n = 0;
  for (int i = 0; i < FAKEZE_MOST_RUNNING; i++) n += s->running[i] && s->running[i] < before;
  return n;
}

static void signal_fences(struct object *s) {
  while (s->fences && count_running(s, s->fences->seq) == 0) {
    struct command *c = s->fences;
    s->fences = c->next;
    finish(c);
  }
}

static bool is_idle(const struct object *s) { return !s->first && !s->active && !s->fences && count_running(s, ~0ull) == 0; }

static bool wait_until(bool (*holds)(const struct object *), const struct object *o, uint64_t timeout) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  uint64_t ns = (uint64_t)end.tv_nsec + timeout % 1000000000;
  end.tv_sec += (time_t)(timeout / 1000000000 + ns / 1000000000);
  end.tv_nsec = (long)(ns % 1000000000);
  while (!holds(o)) {
    if (timeout == 0) return false;
    if (timeout == UINT64_MAX) pthread_cond_wait(&changed, &mutex);
    else if (pthread_cond_timedwait(&changed, &mutex, &end)) return holds(o);
  }
  return true;
}

static void enqueue(struct object *s, struct command c) {
  struct command *copy = malloc(sizeof c);
  *copy = c;
  copy->next = NULL;
  refer(copy, 1);
  if (s->first) s->last->next = copy;
  else s->first = copy;
  s->last = copy;
  pthread_cond_broadcast(&changed);
}

/* What a command does. */

static void work(struct command *c) {
  uint64_t *a = c->args;
  uint32_t *to = (uint32_t *)a[0], read[2][FAKEZE_ITEMS];
  if (c->what == WAIT_WORD) {
    while (!__atomic_load_n(to, __ATOMIC_ACQUIRE)) usleep(100);
  } else if (c->what == FILL) {
    usleep(20);
    for (uint64_t i = 0; i < a[1]; i++) ((uint8_t *)to)[i] = c->pattern[i % a[2]];
  } else if (c->what == COPY) {
    memcpy(read[0], (void *)a[1], a[2]);
    usleep(20);
    memcpy(to, read[0], a[2]);
  } else {
    memcpy(read[0], to, sizeof read[0]);
    if (c->what == BLEND) memcpy(read[1], (void *)a[1], sizeof read[1]);
    usleep(c->what == BLEND ? 20 : (useconds_t)a[2]);
    for (int i = 0; i < FAKEZE_ITEMS; i++) {
      to[i] = c->what == BLEND ? fakeze_blend(read[0][i], read[1][i], (uint32_t)a[2]) : fakeze_advance(read[0][i], (uint32_t)a[1]);
    }
  }
}

struct run {
  struct object *stream;
  struct command *command;
  int place;
};

static void *worker(void *p) {
  struct run r = *(struct run *)p;
  free(p);
  work(r.command);
  pthread_mutex_lock(&mutex);
  r.stream->running[r.place] = 0;
  finish(r.command);
  signal_fences(r.stream);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static void start_work(struct object *s, struct command *c) {
  int place = 0;
  while (count_running(s, ~0ull) >= (s->in_order ? 1 : FAKEZE_MOST_RUNNING)) pthread_cond_wait(&changed, &mutex);
  while (s->running[place]) place++;
  s->running[place] = c->seq;
  struct run *r = malloc(sizeof *r);
  *r = (struct run){s, c, place};
  pthread_t thread;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 1 << 16);
  pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&thread, &small, worker, r)) die("no thread");
  pthread_attr_destroy(&small);
}

static void execute(struct object *s, struct command *c) {
  c->seq = ++s->seq;
  for (uint32_t i = 0; i < c->n; i++) {
    while (!c->waits[i]->signalled) pthread_cond_wait(&changed, &mutex);
  }
  if (is_work(c)) {
    start_work(s, c);
    return;
  }
  if (c->what == SIGNAL_FENCE) {
    struct command **at = &s->fences;
    while (*at) at = &(*at)->next;
    *at = c;
    c->next = NULL;
    signal_fences(s);
    return;
  }
  bool for_all = s->in_order || (c->what == BARRIER && c->n == 0);
  while (for_all && count_running(s, ~0ull)) pthread_cond_wait(&changed, &mutex);
  if (c->what == RESET) c->signal->signalled = false;
  finish(c);
}

static void *stream_thread(void *p) {
  struct object *s = p;
  pthread_mutex_lock(&mutex);
  for (;;) {
    while (!s->first && !s->ends) pthread_cond_wait(&changed, &mutex);
    struct command *c = s->first;
    if (!c) break;
    s->first = c->next;
    s->active = true;
    execute(s, c);
    s->active = false;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&mutex);
  return NULL;
}

/* The API. */

#define LOCKED(...)                                                                                          \
  do {                                                                                                       \
    pthread_mutex_lock(&mutex);                                                                              \
    __VA_ARGS__;                                                                                             \
    pthread_mutex_unlock(&mutex);                                                                            \
    return ZE_RESULT_SUCCESS;                                                                                \
  } while (0)
#define API static ze_result_t ZE_APICALL

API init(ze_init_flags_t flags) { return (void)flags, ZE_RESULT_SUCCESS; }
API driver_get(uint32_t *n, ze_driver_handle_t *drivers) {
  if (*n && drivers) *drivers = (ze_driver_handle_t)&the_driver;
  return *n = 1, ZE_RESULT_SUCCESS;
}
API driver_version(ze_driver_handle_t d, ze_api_version_t *v) { return (void)d, *v = ZE_API_VERSION_CURRENT, ZE_RESULT_SUCCESS; }
static int take_most(void) {
  pthread_mutex_lock(&mutex);
  int n = most;
  most = in_flight;
  pthread_mutex_unlock(&mutex);
  return n;
}

API append_kernel(ze_command_list_handle_t, ze_kernel_handle_t, const ze_group_count_t *, ze_event_handle_t, uint32_t, ze_event_handle_t *);
API driver_function(ze_driver_handle_t d, const char *name, void **f) {
  *f = strcmp(name, "fakezeMost") == 0 ? (void *)take_most
       : strcmp(name, "fakezeSlow") == 0 ? (void *)&slow
       : strcmp(name, "fakezeLost") == 0 ? (void *)&lost
       : strcmp(name, "zeCommandListAppendLaunchKernel") == 0 ? (void *)append_kernel : NULL;
  return (void)d, *f ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}
API device_get(ze_driver_handle_t d, uint32_t *n, ze_device_handle_t *devices) {
  if (*n && devices) *devices = (ze_device_handle_t)&the_device;
  return (void)d, *n = 1, ZE_RESULT_SUCCESS;
}

API context_create(ze_driver_handle_t d, const ze_context_desc_t *desc, ze_context_handle_t *c) {
  (void)d, (void)desc;
  LOCKED(*c = (ze_context_handle_t)create(CONTEXT, NULL));
}
API context_destroy(ze_context_handle_t c) { LOCKED(destroy(check(c, CONTEXT))); }

static struct object *new_stream(enum kind kind, void *context, void *device, const ze_command_queue_desc_t *desc) {
  if (desc->stype != ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC || desc->ordinal > 1 || device != &the_device) die("wrong queue");
  struct object *s = create(kind, check(context, CONTEXT));
  s->ordinal = desc->ordinal;
  s->in_order = desc->flags & 2;
  s->sync = desc->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
  if (pthread_create(&s->thread, NULL, stream_thread, s)) die("no thread");
  return s;
}
static void end_stream(struct object *s) {
  if (!is_idle(s)) die("a %s is destroyed while it has work", names[s->kind]);
  s->ends = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  pthread_join(s->thread, NULL);
  pthread_mutex_lock(&mutex);
}

API queue_create(ze_context_handle_t c, ze_device_handle_t d, const ze_command_queue_desc_t *desc, ze_command_queue_handle_t *q) {
  LOCKED(*q = (ze_command_queue_handle_t)new_stream(QUEUE, c, d, desc));
}
API queue_destroy(ze_command_queue_handle_t q) {
  if (__atomic_load_n(&lost, __ATOMIC_SEQ_CST)) return ZE_RESULT_ERROR_DEVICE_LOST;
  LOCKED(struct object *s = check(q, QUEUE); end_stream(s); destroy(s));
}
API queue_execute(ze_command_queue_handle_t q, uint32_t n, ze_command_list_handle_t *lists, ze_fence_handle_t fence) {
  if (n == 0 || !lists) return ZE_RESULT_ERROR_INVALID_SIZE;
  pthread_mutex_lock(&mutex);
  struct object *s = check(q, QUEUE), *last = NULL;
  for (uint32_t i = 0; i < n; i++) {
    struct object *l = last = check(lists[i], LIST);
    if (l->immediate || !l->closed || l->ordinal != s->ordinal || l->parent != s->parent) die("this list cannot be executed on this queue");
    if (l->refs) die("a list is executed again while the device uses it");
    for (struct command *c = l->first; c; c = c->next) enqueue(s, *c);
  }
  if (fence && check(fence, FENCE)->parent != s) die("the fence is of another queue");
  if (fence) enqueue(s, (struct command){.what = SIGNAL_FENCE, .list = last, .signal = (struct object *)fence});
  if (s->sync) wait_until(is_idle, s, UINT64_MAX);
  pthread_mutex_unlock(&mutex);
  while (fence && __atomic_load_n(&slow, __ATOMIC_SEQ_CST)) usleep(100);
  return ZE_RESULT_SUCCESS;
}
static ze_result_t wait_for(bool (*holds)(const struct object *), void *handle, enum kind kind, uint64_t timeout) {
  if (__atomic_load_n(&lost, __ATOMIC_SEQ_CST)) return ZE_RESULT_ERROR_DEVICE_LOST;
  pthread_mutex_lock(&mutex);
  bool done = wait_until(holds, check(handle, kind), timeout);
  pthread_mutex_unlock(&mutex);
  return done ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}
API queue_synchronize(ze_command_queue_handle_t q, uint64_t timeout) { return wait_for(is_idle, q, QUEUE, timeout); }

API list_create(ze_context_handle_t c, ze_device_handle_t d, const ze_command_list_desc_t *desc, ze_command_list_handle_t *l) {
  if (desc->stype != ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC || desc->commandQueueGroupOrdinal > 1 || (void *)d != &the_device) die("wrong list");
  LOCKED(struct object *o = create(LIST, check(c, CONTEXT)); o->ordinal = desc->commandQueueGroupOrdinal;
         *l = (ze_command_list_handle_t)o);
}
API list_create_immediate(ze_context_handle_t c, ze_device_handle_t d, const ze_command_queue_desc_t *desc, ze_command_list_handle_t *l) {
  LOCKED(struct object *o = new_stream(LIST, c, d, desc); o->immediate = true; *l = (ze_command_list_handle_t)o);
}
static void clear_list(struct object *l) {
  if (l->refs) die("a list is reset or destroyed while the device uses it");
  for (struct command *c; (c = l->first); free(c)) l->first = c->next;
}
API list_destroy(ze_command_list_handle_t l) {
  LOCKED(struct object *o = check(l, LIST); if (o->immediate) end_stream(o); else clear_list(o); destroy(o));
}
API list_close(ze_command_list_handle_t l) { LOCKED(check(l, LIST)->closed = true); }
API list_reset(ze_command_list_handle_t l) {
  LOCKED(struct object *o = check(l, LIST); if (!o->immediate) clear_list(o); o->closed = false);
}
static struct object *use_list(void *list) {
  struct object *l = check(list, LIST);
  if (__atomic_exchange_n(&l->busy, 1, __ATOMIC_SEQ_CST)) die("two threads use a list at the same time");
  sched_yield(); /* so that two threads meet */
  return l;
}
API list_synchronize(ze_command_list_handle_t list, uint64_t timeout) {
  struct object *l = use_list(list);
  ze_result_t r = wait_for(is_idle, l, LIST, timeout);
  __atomic_store_n(&l->busy, 0, __ATOMIC_SEQ_CST);
  return r;
}

/* Appends a command: executes it, or records it. */
static ze_result_t append(void *list, struct command c, void *signal, uint32_t n, void *waits) {
  struct object *l = use_list(list);
  pthread_mutex_lock(&mutex);
  if (l->closed) die("something is appended to a closed list");
  if (l->ordinal == 1 && c.what <= WAIT_WORD) die("a kernel is appended to a list of the copy engine");
  if (n > 16 || (n && !waits)) die("wrong list of events");
  c.list = l, c.n = n;
  c.signal = signal ? check(signal, EVENT) : NULL;
  for (uint32_t i = 0; i < n; i++) c.waits[i] = check(((void **)waits)[i], EVENT);
  for (uint32_t i = 0; i < n; i++) if (context_of(c.waits[i]) != l->parent) die("an event of another context");
  if (c.signal && context_of(c.signal) != l->parent) die("an event of another context");
  if (l->immediate) {
    enqueue(l, c);
    if (l->sync) wait_until(is_idle, l, UINT64_MAX);
  } else {
    struct command *copy = malloc(sizeof c);
    *copy = c;
    if (l->first) l->last->next = copy;
    else l->first = copy;
    l->last = copy;
  }
  pthread_mutex_unlock(&mutex);
  __atomic_store_n(&l->busy, 0, __ATOMIC_SEQ_CST);
  return ZE_RESULT_SUCCESS;
}
API append_kernel(ze_command_list_handle_t l, ze_kernel_handle_t k, const ze_group_count_t *groups, ze_event_handle_t e, uint32_t n,
                  ze_event_handle_t *w) {
  struct object *kernel = check(k, KERNEL);
  struct command c = {.what = kernel->what};
  if (!groups) return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
  memcpy(c.args, kernel->args, sizeof c.args);
  return append(l, c, e, n, w);
}
API append_copy(ze_command_list_handle_t l, void *to, const void *from, size_t size, ze_event_handle_t e, uint32_t n, ze_event_handle_t *w) {
  if (size > FAKEZE_ITEMS * 4) return ZE_RESULT_ERROR_INVALID_SIZE;
  return append(l, (struct command){.what = COPY, .args = {(uint64_t)to, (uint64_t)from, size}}, e, n, w);
}
API append_fill(ze_command_list_handle_t l, void *to, const void *pattern, size_t pn, size_t size, ze_event_handle_t e, uint32_t n,
                ze_event_handle_t *w) {
  struct command c = {.what = FILL, .args = {(uint64_t)to, size, pn}};
  if (pn == 0 || pn > sizeof c.pattern) return ZE_RESULT_ERROR_INVALID_SIZE;
  memcpy(c.pattern, pattern, pn);
  return append(l, c, e, n, w);
}
API append_barrier(ze_command_list_handle_t l, ze_event_handle_t e, uint32_t n, ze_event_handle_t *w) {
  return append(l, (struct command){.what = BARRIER}, e, n, w);
}
API append_wait(ze_command_list_handle_t l, uint32_t n, ze_event_handle_t *w) {
  return append(l, (struct command){.what = WAIT}, NULL, n, w);
}
API append_signal(ze_command_list_handle_t l, ze_event_handle_t e) { return append(l, (struct command){.what = SIGNAL}, e, 0, NULL); }
API append_reset(ze_command_list_handle_t l, ze_event_handle_t e) { return append(l, (struct command){.what = RESET}, e, 0, NULL); }

static bool is_signalled(const struct object *o) { return o->signalled; }

API fence_create(ze_command_queue_handle_t q, const ze_fence_desc_t *desc, ze_fence_handle_t *f) {
  LOCKED(struct object *o = create(FENCE, check(q, QUEUE)); o->signalled = desc->flags & ZE_FENCE_FLAG_SIGNALED;
         *f = (ze_fence_handle_t)o);
}
API fence_destroy(ze_fence_handle_t f) { LOCKED(destroy(check(f, FENCE))); }
API fence_wait(ze_fence_handle_t f, uint64_t timeout) { return wait_for(is_signalled, f, FENCE, timeout); }
API fence_query(ze_fence_handle_t f) { return wait_for(is_signalled, f, FENCE, 0); }
API fence_reset(ze_fence_handle_t f) { LOCKED(check(f, FENCE)->signalled = false); }

API pool_create(ze_context_handle_t c, const ze_event_pool_desc_t *desc, uint32_t n, ze_device_handle_t *devices, ze_event_pool_handle_t *p) {
  if (desc->count == 0 || desc->count > 64 || (n && !devices)) return ZE_RESULT_ERROR_INVALID_SIZE;
  LOCKED(struct object *o = create(POOL, check(c, CONTEXT)); o->count = desc->count; *p = (ze_event_pool_handle_t)o);
}
API pool_destroy(ze_event_pool_handle_t p) { LOCKED(destroy(check(p, POOL))); }
API event_create(ze_event_pool_handle_t p, const ze_event_desc_t *desc, ze_event_handle_t *e) {
  struct object *pool = check(p, POOL);
  if (__atomic_exchange_n(&pool->busy, 1, __ATOMIC_SEQ_CST)) die("two threads create events of a pool at the same time");
  pthread_mutex_lock(&mutex);
  if (desc->index >= pool->count || pool->taken >> desc->index & 1) die("event %u of the pool is taken", desc->index);
  pool->taken |= 1ull << desc->index;
  struct object *o = create(EVENT, pool);
  o->index = desc->index;
  *e = (ze_event_handle_t)o;
  pthread_mutex_unlock(&mutex);
  __atomic_store_n(&pool->busy, 0, __ATOMIC_SEQ_CST);
  return ZE_RESULT_SUCCESS;
}
API event_destroy(ze_event_handle_t e) {
  LOCKED(struct object *o = check(e, EVENT); o->parent->taken &= ~(1ull << o->index); destroy(o));
}
API event_wait(ze_event_handle_t e, uint64_t timeout) { return wait_for(is_signalled, e, EVENT, timeout); }
API event_query(ze_event_handle_t e) { return wait_for(is_signalled, e, EVENT, 0); }
API event_signal(ze_event_handle_t e) { LOCKED(check(e, EVENT)->signalled = true; pthread_cond_broadcast(&changed)); }
API event_reset(ze_event_handle_t e) { LOCKED(check(e, EVENT)->signalled = false); }

static void *allocate(size_t size) {
  void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}
API mem_alloc_shared(ze_context_handle_t c, const ze_device_mem_alloc_desc_t *dd, const ze_host_mem_alloc_desc_t *hd, size_t size,
                     size_t align, ze_device_handle_t d, void **p) {
  (void)dd, (void)hd, (void)align, (void)d;
  check(c, CONTEXT);
  return (*p = allocate(size)) ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
}

API module_create(ze_context_handle_t c, ze_device_handle_t d, const ze_module_desc_t *desc, ze_module_handle_t *m,
                  ze_module_build_log_handle_t *log) {
  (void)d, (void)desc, (void)log;
  LOCKED(*m = (ze_module_handle_t)create(MODULE, check(c, CONTEXT)));
}
API module_destroy(ze_module_handle_t m) { LOCKED(destroy(check(m, MODULE))); }
API kernel_create(ze_module_handle_t m, const ze_kernel_desc_t *desc, ze_kernel_handle_t *k) {
  static const char *const known[] = {"advance", "blend", "wait"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(desc->pKernelName, known[i]) != 0) continue;
    LOCKED(struct object *o = create(KERNEL, check(m, MODULE)); o->what = (enum what)i; *k = (ze_kernel_handle_t)o);
  }
  return ZE_RESULT_ERROR_INVALID_KERNEL_NAME;
}
API kernel_destroy(ze_kernel_handle_t k) { LOCKED(destroy(check(k, KERNEL))); }
API kernel_group_size(ze_kernel_handle_t k, uint32_t x, uint32_t y, uint32_t z) { return (void)k, (void)x, (void)y, (void)z, ZE_RESULT_SUCCESS; }
API kernel_argument(ze_kernel_handle_t k, uint32_t i, size_t size, const void *value) {
  if (i >= 4 || size != 8) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX;
  LOCKED(memcpy(&check(k, KERNEL)->args[i], value, 8));
}

#define TABLE(name, type, ...)                                                                               \
  ZE_APIEXPORT ze_result_t ZE_APICALL zeGet##name##ProcAddrTable(ze_api_version_t version, type *table) {    \
    if (ZE_MAJOR_VERSION(version) != 1) return ZE_RESULT_ERROR_UNSUPPORTED_VERSION;                          \
    __VA_ARGS__;                                                                                             \
    return ZE_RESULT_SUCCESS;                                                                                \
  }
#define SET(function, ours) table->pfn##function = ours
#ifdef HOST_SYNCHRONIZE /* the header has it: since version 1.6 */
#define SET_HOST_SYNCHRONIZE SET(HostSynchronize, list_synchronize)
#else
#define SET_HOST_SYNCHRONIZE (void)list_synchronize
#endif
TABLE(Global, ze_global_dditable_t, SET(Init, init))
TABLE(Driver, ze_driver_dditable_t, SET(Get, driver_get); SET(GetApiVersion, driver_version);
      SET(GetExtensionFunctionAddress, driver_function))
TABLE(Device, ze_device_dditable_t, SET(Get, device_get))
TABLE(Context, ze_context_dditable_t, SET(Create, context_create); SET(Destroy, context_destroy))
TABLE(CommandQueue, ze_command_queue_dditable_t, SET(Create, queue_create); SET(Destroy, queue_destroy);
      SET(ExecuteCommandLists, queue_execute); SET(Synchronize, queue_synchronize))
TABLE(CommandList, ze_command_list_dditable_t, SET(Create, list_create); SET(CreateImmediate, list_create_immediate);
      SET(Destroy, list_destroy); SET(Close, list_close); SET(Reset, list_reset); SET(AppendBarrier, append_barrier);
      SET(AppendMemoryCopy, append_copy); SET(AppendMemoryFill, append_fill); SET(AppendSignalEvent, append_signal);
      SET(AppendWaitOnEvents, append_wait); SET(AppendEventReset, append_reset); SET(AppendLaunchKernel, append_kernel);
      SET_HOST_SYNCHRONIZE)
TABLE(Fence, ze_fence_dditable_t, SET(Create, fence_create); SET(Destroy, fence_destroy); SET(HostSynchronize, fence_wait);
      SET(QueryStatus, fence_query); SET(Reset, fence_reset))
TABLE(EventPool, ze_event_pool_dditable_t, SET(Create, pool_create); SET(Destroy, pool_destroy))
TABLE(Event, ze_event_dditable_t, SET(Create, event_create); SET(Destroy, event_destroy); SET(HostSignal, event_signal);
      SET(HostSynchronize, event_wait); SET(QueryStatus, event_query); SET(HostReset, event_reset))
TABLE(Mem, ze_mem_dditable_t, SET(AllocShared, mem_alloc_shared))
TABLE(Module, ze_module_dditable_t, SET(Create, module_create); SET(Destroy, module_destroy))
TABLE(Kernel, ze_kernel_dditable_t, SET(Create, kernel_create); SET(Destroy, kernel_destroy);
      SET(SetGroupSize, kernel_group_size); SET(SetArgumentValue, kernel_argument))
/* The loader needs a driver that has all tables of its version. */
TABLE(PhysicalMem, ze_physical_mem_dditable_t, (void)table)
TABLE(VirtualMem, ze_virtual_mem_dditable_t, (void)table)
TABLE(Sampler, ze_sampler_dditable_t, (void)table)
TABLE(Image, ze_image_dditable_t, (void)table)
TABLE(ModuleBuildLog, ze_module_build_log_dditable_t, (void)table)
#define EMPTY(name)                                                                                          \
  ze_result_t name##ProcAddrTable(ze_api_version_t version, void *table);                                    \
  ze_result_t name##ProcAddrTable(ze_api_version_t version, void *table) {                                   \
    return (void)version, (void)table, ZE_RESULT_SUCCESS;                                                    \
  }
EMPTY(zetGetDevice) EMPTY(zetGetContext) EMPTY(zetGetCommandList) EMPTY(zetGetKernel) EMPTY(zetGetModule)
EMPTY(zetGetDebug) EMPTY(zetGetMetric) EMPTY(zetGetMetricGroup) EMPTY(zetGetMetricQuery)
EMPTY(zetGetMetricQueryPool) EMPTY(zetGetMetricStreamer) EMPTY(zetGetTracerExp) EMPTY(zesGetDevice)
EMPTY(zesGetDriver) EMPTY(zesGetDiagnostics) EMPTY(zesGetEngine) EMPTY(zesGetFabricPort) EMPTY(zesGetFan)
EMPTY(zesGetFirmware) EMPTY(zesGetFrequency) EMPTY(zesGetLed) EMPTY(zesGetMemory)
EMPTY(zesGetPerformanceFactor) EMPTY(zesGetPower) EMPTY(zesGetPsu) EMPTY(zesGetRas)
EMPTY(zesGetScheduler) EMPTY(zesGetStandby) EMPTY(zesGetTemperature)

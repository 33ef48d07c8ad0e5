/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * The record of the program's compute queues, and our ioctl. What must never happen
 * is that a queue is updated that is not the one that was recorded: KFD gives the
 * number of a queue that is gone to the next. So a record is taken out before its
 * queue is destroyed, and nobody updates a queue but with the lock held.
 */
#define _GNU_SOURCE
#include "kfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "activity.h"
#include "elf.h"
#include "kfd_watch.h"
#include "page.h"
#include "sys.h"

/* Of linux/kfd_ioctl.h. The kernel looks at the low 32 bits of a request. CREATE_QUEUE
 * has 88 bytes, and 96 since KFD 1.17: what is new stands behind what we read. */
#define CREATE_QUEUE 0xc0004b02u /* and its size */
#define CREATE_QUEUE_LEAST 88u
#define DESTROY_QUEUE 0xc0084b03u
#define UPDATE_QUEUE 0x40184b07u
#define SIZE_OF(request) ((request) >> 16 & 0x3fff)
#define WITHOUT_SIZE(request) ((request) & ~(0x3fffu << 16))

struct create_args {
  uint64_t ring, write_pointer, read_pointer, doorbell;
  uint32_t ring_size, gpu, type, percentage, priority, queue;
};
struct update_args {
  uint64_t ring;
  uint32_t queue, ring_size, percentage, priority;
};
struct destroy_args {
  uint32_t queue, pad;
};
_Static_assert(offsetof(struct create_args, queue) == 52, "kfd_ioctl_create_queue_args");
_Static_assert(sizeof(struct update_args) == SIZE_OF(UPDATE_QUEUE), "kfd_ioctl_update_queue_args");
_Static_assert(sizeof(struct destroy_args) == SIZE_OF(DESTROY_QUEUE), "kfd_ioctl_destroy_queue_args");

#define TYPE_COMPUTE 0u
#define TYPE_COMPUTE_AQL 2u
#define PERCENT 0xffu /* of percentage; other bits say where the commands of a queue are read */
#define MOST_PRIORITY 15u

struct file {
  uint64_t dev, ino, rdev;
};

struct queue {
  int fd; /* the program's own, which may be another file by now */
  struct file file;
  uint32_t gpu;
  struct update_args wanted; /* by the program */
  uint32_t percentage, priority; /* as the driver has them */
  bool failed;
};

#define QUEUES 1024 /* KFD_MAX_NUM_OF_QUEUES_PER_PROCESS */

static struct {
  gw_lock_t lock;
  bool over; /* the program ends: nothing is wished for any more */
  struct gw_kfd_wish wish;
  uint32_t error;
  int owner; /* the process whose queues they are */
  uint32_t gpus[GW_GPU_ENTRIES]; /* that have a place on the page: a GPU keeps it */
  uint32_t count;
  char path[256]; /* of the device, for when the program has closed its own */
  struct queue queues[QUEUES];
} kfd;

typedef int ioctl_fn(int, unsigned long, ...);

static int bare_ioctl(int fd, unsigned long request, ...) {
  va_list more;
  va_start(more, request);
  long r = GW_SYS_3(SYS_ioctl, fd, request, va_arg(more, void *));
  va_end(more);
  if (r >= 0) return (int)r;
  errno = (int)-r;
  return -1;
}

static ioctl_fn *real_ioctl(void) {
  static void *known;
  void *f = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (!f) {
    f = gw_elf_function("ioctl");
    if (!f) f = (void *)bare_ioctl;
    __atomic_store_n(&known, f, __ATOMIC_RELAXED);
  }
  return (ioctl_fn *)f;
}

/* Found early, so that no signal handler is the first to look for it. */
__attribute__((constructor)) static void find_ioctl(void) { real_ioctl(); }

/* What a descriptor is of. */
static bool file_of(int fd, struct file *f) {
  struct stat s;
  if (GW_SYS_2(SYS_fstat, fd, &s) != 0) return false;
  *f = (struct file){s.st_dev, s.st_ino, s.st_rdev};
  return true;
}

static bool same_file(const struct file *a, const struct file *b) {
  return a->dev == b->dev && a->ino == b->ino && a->rdev == b->rdev;
}

/* Whether a descriptor is KFD's: other drivers may have the same numbers. The path is
 * kept. */
static bool is_kfd(int fd, char path[static sizeof kfd.path]) {
  char link[32] = "/proc/self/fd/", digits[12];
  size_t n = strlen(link), d = 0;
  for (unsigned left = (unsigned)fd; d == 0 || left; left /= 10) digits[d++] = (char)('0' + left % 10);
  while (d) link[n++] = digits[--d];
  long size = gw_sys(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, (long)sizeof kfd.path - 1, 0, 0);
  if (fd < 0 || size < 0 || size == (long)sizeof kfd.path - 1) return false;
  path[size] = 0;
  const char *slash = strrchr(path, '/');
  return slash && strcmp(slash, "/kfd") == 0;
}

static int this_process(void) { return (int)GW_SYS_1(SYS_getpid, 0); }

/* Copies what may lie nowhere: that is the driver's to say. */
static bool copy_in(void *to, const void *from, size_t n) {
  struct iovec here = {to, n}, there = {(void *)from, n};
  long r = gw_sys(SYS_process_vm_readv, this_process(), (long)&here, 1, (long)&there, 1, 0);
  if (r == (long)n) return true;
  if (r >= 0 || r == -EFAULT || !from) return false;
  memcpy(to, from, n); /* we may not ask */
  return true;
}

/*
 * All below are called with the lock held.
 */

/* A queue by its number. They are the process's, whatever descriptor it uses. */
static struct queue *find(int fd, uint32_t id) {
  struct queue *like = NULL;
  struct file f;
  if (!kfd.count || !file_of(fd, &f)) return NULL;
  for (uint32_t i = 0; i < kfd.count; i++) {
    struct queue *q = &kfd.queues[i];
    if (q->wanted.queue != id || !same_file(&q->file, &f)) continue;
    if (q->fd == fd) return q;
    like = q;
  }
  return like;
}

static void forget(struct queue *q) { *q = kfd.queues[--kfd.count]; }

/* A descriptor to update a queue by, and whether it is ours to close. */
static int descriptor(const struct queue *q, bool *ours) {
  struct file f;
  *ours = false;
  if (file_of(q->fd, &f) && same_file(&f, &q->file)) return q->fd;
  long fd = gw_sys(SYS_openat, AT_FDCWD, (long)kfd.path, O_RDWR | O_CLOEXEC, 0, 0, 0);
  *ours = fd >= 0;
  if (*ours && (!file_of((int)fd, &f) || !same_file(&f, &q->file))) {
    GW_SYS_1(SYS_close, fd);
    return -1;
  }
  return (int)fd;
}

/* 0, or -errno. Past whoever else stands before ioctl: the program did not ask for this. */
static int update(const struct queue *q, const struct update_args *args) {
  bool ours;
  int fd = descriptor(q, &ours);
  if (fd < 0) return -EBADF;
  long r = -EINTR;
  for (int i = 0; i < 10 && (r == -EINTR || r == -EAGAIN); i++) r = GW_SYS_3(SYS_ioctl, fd, UPDATE_QUEUE, args);
  if (ours) GW_SYS_1(SYS_close, fd);
  return r < 0 ? (int)r : 0;
}

static bool is_off(uint32_t gpu) {
  for (uint32_t i = 0; i < GW_GPU_ENTRIES; i++) {
    if (gpu && kfd.wish.off[i] == gpu) return true;
  }
  return false;
}

/* What the program wants of a queue, but for what the daemon does. Ring and size are
 * always those that the program gave: others would move the queue. */
static struct update_args adjusted(const struct update_args *wanted, uint32_t gpu) {
  struct update_args a = *wanted;
  if (is_off(gpu)) a.percentage &= ~PERCENT;
  if (kfd.wish.priority) a.priority = kfd.wish.priority - 1;
  return a;
}

/* Brings a queue to what is wanted. False: the driver says that there is none. */
static bool settle(struct queue *q) {
  struct update_args a = adjusted(&q->wanted, q->gpu);
  q->failed = false;
  if (a.percentage == q->percentage && a.priority == q->priority) return true;
  int r = update(q, &a);
  if (r == -EFAULT) return false;
  if (r == 0) {
    q->percentage = a.percentage;
    q->priority = a.priority;
    return true;
  }
  q->failed = true;
  kfd.error = (uint32_t)-r;
  return true;
}

static bool settle_all(void) {
  bool all = true;
  for (uint32_t i = 0; i < kfd.count;) {
    struct queue *q = &kfd.queues[i];
    if (!settle(q)) {
      forget(q);
      continue;
    }
    all = all && !q->failed;
    i++;
  }
  return all;
}

static int place_of(uint32_t gpu) {
  for (int i = 0; i < (int)GW_GPU_ENTRIES; i++) {
    if (!kfd.gpus[i]) kfd.gpus[i] = gpu;
    if (kfd.gpus[i] == gpu) return i;
  }
  return -1;
}

/* Tells the daemon. Whether it should be woken: there are more queues, or fewer. */
static bool show(void) {
  struct gw_gpu now[GW_GPU_ENTRIES] = {0};
  for (uint32_t i = 0; i < kfd.count; i++) {
    const struct queue *q = &kfd.queues[i];
    int at = place_of(q->gpu);
    if (at < 0) continue;
    now[at].queues++;
    now[at].stopped += is_off(q->gpu) && !(q->percentage & PERCENT);
    now[at].failed += q->failed;
  }
  bool news = false;
  for (uint32_t i = 0; i < GW_GPU_ENTRIES && kfd.gpus[i]; i++) {
    news = news || GW_READ(gpus[i].queues) != now[i].queues;
    GW_SHOW(gpus[i].stopped, now[i].stopped);
    GW_SHOW(gpus[i].failed, now[i].failed);
    GW_SHOW(gpus[i].queues, now[i].queues);
    GW_SHOW(gpus[i].gpu, kfd.gpus[i]);
  }
  GW_SHOW(queue_errno, kfd.error);
  return news;
}

/* Ends what began with the lock: tells the daemon, and wakes it if need be. */
static void tell_and_unlock(void) {
  bool ring = show() && gw_page_is_there();
  if (ring) {
    gw_bias_lock(&gw_act.lock);
    gw_bump();
    gw_bias_unlock(&gw_act.lock);
  }
  gw_unlock(&kfd.lock);
  if (ring) gw_page_ring();
}

/* Records a queue, whose number then is no other's: what had it before was destroyed
 * where we did not see it. */
static void record(const struct queue *q) {
  struct queue *before = find(q->fd, q->wanted.queue);
  if (before) forget(before);
  if (kfd.count == QUEUES) return;
  kfd.queues[kfd.count] = *q;
  if (settle(&kfd.queues[kfd.count])) kfd.count++;
}

/*
 * All above were called with the lock held.
 */

/* Whether this is a child that was made without fork: none of what is here is its own. */
static bool inherited(void) {
  int owner = __atomic_load_n(&kfd.owner, __ATOMIC_RELAXED);
  return owner && owner != this_process();
}

static void put_in(const struct queue *q) {
  gw_lock(&kfd.lock);
  __atomic_store_n(&kfd.owner, this_process(), __ATOMIC_RELAXED);
  record(q);
  tell_and_unlock();
}

/* The program has made a queue. */
static void made(int fd, const struct create_args *args) {
  char path[sizeof kfd.path];
  struct queue q = {.fd = fd, .gpu = args->gpu, .percentage = args->percentage, .priority = args->priority};
  q.wanted = (struct update_args){args->ring, args->queue, args->ring_size, args->percentage, args->priority};
  bool compute = args->type == TYPE_COMPUTE || args->type == TYPE_COMPUTE_AQL;
  if (!compute || !is_kfd(fd, path) || !file_of(fd, &q.file)) return;
  gw_lock(&kfd.lock);
  memcpy(kfd.path, path, sizeof path);
  gw_unlock(&kfd.lock);
  put_in(&q);
  if (gw_page_attach("kfd")) gw_kfd_watch();
}

static int create_queue(int fd, unsigned long request, void *arg) {
  int r = real_ioctl()(fd, request, arg);
  if (r >= 0) {
    int before = errno;
    made(fd, arg);
    errno = before;
  }
  return r;
}

/* While it waits in the driver, which it may, the queue is nobody's. */
static int destroy_queue(int fd, unsigned long request, void *arg) {
  struct destroy_args args;
  struct queue taken, *q = NULL;
  if (copy_in(&args, arg, sizeof args)) {
    gw_lock(&kfd.lock);
    if ((q = find(fd, args.queue))) {
      taken = *q;
      forget(q);
    }
    tell_and_unlock();
  }
  int r = real_ioctl()(fd, request, arg);
  if (q && r < 0 && errno != ETIME) { /* that says it has gone, though the GPU did not let go of it */
    int before = errno;
    put_in(&taken);
    errno = before;
  }
  return r;
}

/* What the program wants is done as far as the daemon lets it, and remembered. */
static int update_queue(int fd, unsigned long request, void *arg) {
  struct update_args args, adapted;
  if (!copy_in(&args, arg, sizeof args)) return real_ioctl()(fd, request, arg);
  gw_lock(&kfd.lock);
  struct queue *q = find(fd, args.queue);
  if (!q) {
    gw_unlock(&kfd.lock);
    return real_ioctl()(fd, request, arg);
  }
  adapted = adjusted(&args, q->gpu);
  /* What the driver would refuse it refuses. */
  if ((args.percentage & PERCENT) > 100 || args.priority > MOST_PRIORITY) adapted = args;
  int r = real_ioctl()(fd, request, &adapted), after = errno;
  if (r >= 0) {
    q->wanted = args;
    q->percentage = adapted.percentage;
    q->priority = adapted.priority;
  }
  tell_and_unlock();
  errno = after;
  return r;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) {
  va_list more;
  va_start(more, request);
  void *arg = va_arg(more, void *);
  va_end(more);
  uint32_t r = (uint32_t)request;
  bool creates = WITHOUT_SIZE(r) == CREATE_QUEUE && SIZE_OF(r) >= CREATE_QUEUE_LEAST;
  bool changes = (r == DESTROY_QUEUE || r == UPDATE_QUEUE) && __atomic_load_n(&kfd.count, __ATOMIC_RELAXED);
  bool ours = (creates || changes) && !__atomic_load_n(&gw_gone, __ATOMIC_RELAXED) && !inherited();
  if (__builtin_expect(!ours, 1)) return real_ioctl()(fd, request, arg);
  if (creates) return create_queue(fd, request, arg);
  return r == DESTROY_QUEUE ? destroy_queue(fd, request, arg) : update_queue(fd, request, arg);
}

bool gw_kfd_obey(const struct gw_kfd_wish *wish, uint32_t turn) {
  gw_lock(&kfd.lock);
  if (!kfd.over) kfd.wish = *wish;
  bool all = kfd.over || settle_all();
  show();
  __atomic_store_n(&gw_shared.page.queue_applied_seq, turn, __ATOMIC_RELEASE);
  gw_unlock(&kfd.lock);
  return all;
}

void gw_kfd_attached(void) {
  if (__atomic_load_n(&kfd.count, __ATOMIC_RELAXED)) gw_kfd_watch();
}

void gw_kfd_publish(void) {
  gw_lock(&kfd.lock);
  show();
  gw_unlock(&kfd.lock);
}

void gw_kfd_forked(void) {
  kfd.lock = (gw_lock_t){0};
  kfd.count = kfd.error = 0;
  kfd.owner = 0;
  kfd.over = false;
  memset(&kfd.wish, 0, sizeof kfd.wish);
  memset(kfd.gpus, 0, sizeof kfd.gpus);
  gw_kfd_watch_forked();
}

void gw_kfd_leave(void) {
  static const struct gw_kfd_wish nothing;
  if (inherited()) return;
  /* Held while the driver is called: one that does not come back must not keep the
   * program from its end. */
  for (int i = 0; !gw_trylock(&kfd.lock); i++) {
    if (i == 100) return;
    gw_sleep(GW_MS_NS);
  }
  kfd.over = true;
  kfd.wish = nothing;
  settle_all();
  gw_unlock(&kfd.lock);
}

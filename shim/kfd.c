/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * The list of the process's compute queues, and the wrapper of ioctl. A queue must never be
 * confused with another one: KFD reuses the number of a destroyed queue. So a queue leaves
 * the list before it is destroyed, and queues are updated only with the lock held.
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
#include "kfd_thread.h"
#include "page.h"
#include "sys.h"

/* From linux/kfd_ioctl.h. The kernel uses the low 32 bits of a request. The argument of
 * CREATE_QUEUE has 88 bytes, and 96 since KFD 1.17; the new part is behind what is read here. */
#define CREATE_QUEUE 0xc0004b02u /* without its size */
#define MIN_CREATE_QUEUE_SIZE 88u
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
#define PERCENT 0xffu /* bits of percentage; the other bits say which engine reads the queue */
#define MAX_PRIORITY 15u

struct file {
  uint64_t dev, ino, rdev;
};

struct queue {
  int fd; /* the program's descriptor, which may be of another file by now */
  struct file file;
  uint32_t gpu;
  struct update_args wanted;     /* set by the program */
  uint32_t percentage, priority; /* set in the driver */
  bool failed;
};

#define QUEUES 1024 /* KFD_MAX_NUM_OF_QUEUES_PER_PROCESS */

static struct {
  gw_lock_t lock;
  bool ending; /* the program exits: no further request is applied */
  struct gw_kfd_request request;
  uint32_t last_errno;
  int owner_pid;                 /* the process that has the queues */
  uint32_t gpus[GW_GPU_ENTRIES]; /* GPUs with an entry on the page; a GPU keeps its entry */
  uint32_t count;
  char path[256]; /* of the device, in case the program has closed its descriptor */
  struct queue queues[QUEUES];
} kfd;

typedef int ioctl_fn(int, unsigned long, ...);

static int syscall_ioctl(int fd, unsigned long request, ...) {
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
    if (!f) f = (void *)syscall_ioctl;
    __atomic_store_n(&known, f, __ATOMIC_RELAXED);
  }
  return (ioctl_fn *)f;
}

/* Looked up early, so that a signal handler is never the first to do it. */
__attribute__((constructor)) static void find_ioctl(void) { real_ioctl(); }

/* The file behind a descriptor. */
static bool file_of(int fd, struct file *f) {
  struct stat s;
  if (GW_SYS_2(SYS_fstat, fd, &s) != 0) return false;
  *f = (struct file){s.st_dev, s.st_ino, s.st_rdev};
  return true;
}

static bool same_file(const struct file *a, const struct file *b) {
  return a->dev == b->dev && a->ino == b->ino && a->rdev == b->rdev;
}

/* Whether a descriptor is of KFD: other drivers may use the same request numbers. Copies its
 * path. */
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

static int this_pid(void) { return (int)GW_SYS_1(SYS_getpid, 0); }

/* Copies memory that may not be mapped: reporting that is up to the driver. */
static bool copy_in(void *to, const void *from, size_t n) {
  struct iovec here = {to, n}, there = {(void *)from, n};
  long r = gw_sys(SYS_process_vm_readv, this_pid(), (long)&here, 1, (long)&there, 1, 0);
  if (r == (long)n) return true;
  if (r >= 0 || r == -EFAULT || !from) return false;
  memcpy(to, from, n); /* process_vm_readv is not permitted */
  return true;
}

/*
 * The functions below are called with the lock held.
 */

/* Finds a queue by its number. Queues belong to the process, whatever descriptor is used. */
static struct queue *find(int fd, uint32_t id) {
  struct queue *candidate = NULL;
  struct file f;
  if (!kfd.count || !file_of(fd, &f)) return NULL;
  for (uint32_t i = 0; i < kfd.count; i++) {
    struct queue *q = &kfd.queues[i];
    if (q->wanted.queue != id || !same_file(&q->file, &f)) continue;
    if (q->fd == fd) return q;
    candidate = q;
  }
  return candidate;
}

static void forget(struct queue *q) { *q = kfd.queues[--kfd.count]; }

/* A descriptor for updating a queue, and whether the caller closes it. */
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

/* Updates a queue by a system call, past other wrappers of ioctl: the program did not ask for
 * this. Returns 0 or -errno. */
static int update(const struct queue *q, const struct update_args *args) {
  bool ours;
  int fd = descriptor(q, &ours);
  if (fd < 0) return -EBADF;
  long r = -EINTR;
  for (int i = 0; i < 10 && (r == -EINTR || r == -EAGAIN); i++) r = GW_SYS_3(SYS_ioctl, fd, UPDATE_QUEUE, args);
  if (ours) GW_SYS_1(SYS_close, fd);
  return r < 0 ? (int)r : 0;
}

static bool is_stopped(uint32_t gpu) {
  for (uint32_t i = 0; i < GW_GPU_ENTRIES; i++) {
    if (gpu && kfd.request.stop[i] == gpu) return true;
  }
  return false;
}

/* The program's settings of a queue with the daemon's request applied. Ring and ring size are
 * always the program's: other values would move the queue. */
static struct update_args adjusted(const struct update_args *wanted, uint32_t gpu) {
  struct update_args a = *wanted;
  if (is_stopped(gpu)) a.percentage &= ~PERCENT;
  if (kfd.request.priority) a.priority = kfd.request.priority - 1;
  return a;
}

/* Applies the request to a queue. Returns false if the driver does not know the queue. */
static bool apply(struct queue *q) {
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
  kfd.last_errno = (uint32_t)-r;
  return true;
}

static bool apply_all(void) {
  bool all = true;
  for (uint32_t i = 0; i < kfd.count;) {
    struct queue *q = &kfd.queues[i];
    if (!apply(q)) {
      forget(q);
      continue;
    }
    all = all && !q->failed;
    i++;
  }
  return all;
}

static int entry_of(uint32_t gpu) {
  for (int i = 0; i < (int)GW_GPU_ENTRIES; i++) {
    if (!kfd.gpus[i]) kfd.gpus[i] = gpu;
    if (kfd.gpus[i] == gpu) return i;
  }
  return -1;
}

/* Writes the counts to the page. Returns whether the daemon should be woken because the number
 * of queues has changed. */
static bool write_counts(void) {
  struct gw_gpu now[GW_GPU_ENTRIES] = {0};
  for (uint32_t i = 0; i < kfd.count; i++) {
    const struct queue *q = &kfd.queues[i];
    int at = entry_of(q->gpu);
    if (at < 0) continue;
    now[at].queues++;
    now[at].stopped += is_stopped(q->gpu) && !(q->percentage & PERCENT);
    now[at].failed += q->failed;
  }
  bool changed = false;
  for (uint32_t i = 0; i < GW_GPU_ENTRIES && kfd.gpus[i]; i++) {
    changed = changed || GW_READ(gpus[i].queues) != now[i].queues;
    GW_WRITE(gpus[i].stopped, now[i].stopped);
    GW_WRITE(gpus[i].failed, now[i].failed);
    GW_WRITE(gpus[i].queues, now[i].queues);
    GW_WRITE(gpus[i].gpu, kfd.gpus[i]);
  }
  GW_WRITE(queue_errno, kfd.last_errno);
  return changed;
}

/* Writes the counts, releases the lock, and wakes the daemon if needed. */
static void publish_and_unlock(void) {
  bool ring = write_counts() && gw_page_attached();
  if (ring) {
    gw_bias_lock(&gw_act.lock);
    gw_count_ring();
    gw_bias_unlock(&gw_act.lock);
  }
  gw_unlock(&kfd.lock);
  if (ring) gw_page_ring();
}

/* Adds a queue. A queue with the same number must have been destroyed by a call that the
 * library did not see, so it is removed. */
static void record(const struct queue *q) {
  struct queue *before = find(q->fd, q->wanted.queue);
  if (before) forget(before);
  if (kfd.count == QUEUES) return;
  kfd.queues[kfd.count] = *q;
  if (apply(&kfd.queues[kfd.count])) kfd.count++;
}

/*
 * The functions above are called with the lock held.
 */

/* Whether this process was created without fork, for example by vfork: the queues are its
 * parent's. */
static bool inherited(void) {
  int owner_pid = __atomic_load_n(&kfd.owner_pid, __ATOMIC_RELAXED);
  return owner_pid && owner_pid != this_pid();
}

static void add_queue(const struct queue *q) {
  gw_lock(&kfd.lock);
  __atomic_store_n(&kfd.owner_pid, this_pid(), __ATOMIC_RELAXED);
  record(q);
  publish_and_unlock();
}

/* The program has created a queue. */
static void queue_created(int fd, const struct create_args *args) {
  char path[sizeof kfd.path];
  struct queue q = {.fd = fd, .gpu = args->gpu, .percentage = args->percentage, .priority = args->priority};
  q.wanted = (struct update_args){args->ring, args->queue, args->ring_size, args->percentage, args->priority};
  bool compute = args->type == TYPE_COMPUTE || args->type == TYPE_COMPUTE_AQL;
  if (!compute || !is_kfd(fd, path) || !file_of(fd, &q.file)) return;
  gw_lock(&kfd.lock);
  memcpy(kfd.path, path, sizeof path);
  gw_unlock(&kfd.lock);
  add_queue(&q);
  if (gw_page_attach("kfd")) gw_kfd_start_thread();
}

static int create_queue(int fd, unsigned long request, void *arg) {
  int r = real_ioctl()(fd, request, arg);
  if (r >= 0) {
    int before = errno;
    queue_created(fd, arg);
    errno = before;
  }
  return r;
}

/* The queue is not in the list while the driver destroys it, which may take time. */
static int destroy_queue(int fd, unsigned long request, void *arg) {
  struct destroy_args args;
  struct queue removed, *q = NULL;
  if (copy_in(&args, arg, sizeof args)) {
    gw_lock(&kfd.lock);
    if ((q = find(fd, args.queue))) {
      removed = *q;
      forget(q);
    }
    publish_and_unlock();
  }
  int r = real_ioctl()(fd, request, arg);
  if (q && r < 0 && errno != ETIME) { /* ETIME: the queue is destroyed, although the GPU did not release it */
    int before = errno;
    add_queue(&removed);
    errno = before;
  }
  return r;
}

/* Makes the program's update with the daemon's request applied, and records it. */
static int update_queue(int fd, unsigned long request, void *arg) {
  struct update_args args, adjusted_args;
  if (!copy_in(&args, arg, sizeof args)) return real_ioctl()(fd, request, arg);
  gw_lock(&kfd.lock);
  struct queue *q = find(fd, args.queue);
  if (!q) {
    gw_unlock(&kfd.lock);
    return real_ioctl()(fd, request, arg);
  }
  adjusted_args = adjusted(&args, q->gpu);
  /* Invalid values are passed on, so that the driver refuses them. */
  if ((args.percentage & PERCENT) > 100 || args.priority > MAX_PRIORITY) adjusted_args = args;
  int r = real_ioctl()(fd, request, &adjusted_args), after = errno;
  if (r >= 0) {
    q->wanted = args;
    q->percentage = adjusted_args.percentage;
    q->priority = adjusted_args.priority;
  }
  publish_and_unlock();
  errno = after;
  return r;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) {
  va_list more;
  va_start(more, request);
  void *arg = va_arg(more, void *);
  va_end(more);
  uint32_t r = (uint32_t)request;
  bool creates = WITHOUT_SIZE(r) == CREATE_QUEUE && SIZE_OF(r) >= MIN_CREATE_QUEUE_SIZE;
  bool changes = (r == DESTROY_QUEUE || r == UPDATE_QUEUE) && __atomic_load_n(&kfd.count, __ATOMIC_RELAXED);
  bool ours = (creates || changes) && !__atomic_load_n(&gw_ended, __ATOMIC_RELAXED) && !inherited();
  if (__builtin_expect(!ours, 1)) return real_ioctl()(fd, request, arg);
  if (creates) return create_queue(fd, request, arg);
  return r == DESTROY_QUEUE ? destroy_queue(fd, request, arg) : update_queue(fd, request, arg);
}

bool gw_kfd_apply(const struct gw_kfd_request *request, uint32_t seq) {
  gw_lock(&kfd.lock);
  if (!kfd.ending) kfd.request = *request;
  bool all = kfd.ending || apply_all();
  write_counts();
  __atomic_store_n(&gw_shared.page.queue_applied_seq, seq, __ATOMIC_RELEASE);
  gw_unlock(&kfd.lock);
  return all;
}

void gw_kfd_attached(void) {
  if (__atomic_load_n(&kfd.count, __ATOMIC_RELAXED)) gw_kfd_start_thread();
}

void gw_kfd_publish(void) {
  gw_lock(&kfd.lock);
  write_counts();
  gw_unlock(&kfd.lock);
}

void gw_kfd_forked(void) {
  kfd.lock = (gw_lock_t){0};
  kfd.count = kfd.last_errno = 0;
  kfd.owner_pid = 0;
  kfd.ending = false;
  memset(&kfd.request, 0, sizeof kfd.request);
  memset(kfd.gpus, 0, sizeof kfd.gpus);
  gw_kfd_thread_forked();
}

void gw_kfd_leave(void) {
  static const struct gw_kfd_request nothing;
  if (inherited()) return;
  /* The lock is held during driver calls. A call that does not return must not keep the
   * program from exiting. */
  for (int i = 0; !gw_trylock(&kfd.lock); i++) {
    if (i == 100) return;
    gw_sleep(GW_MS_NS);
  }
  kfd.ending = true;
  kfd.request = nothing;
  apply_all();
  gw_unlock(&kfd.lock);
}

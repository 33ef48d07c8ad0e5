/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "giveway_amd.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The ABI of the patch: kernel/amdkfd/ABI.md. */
struct sched_args {
  uint64_t queues_ptr;
  uint32_t num_queues, pid, grace_period, flags;
};
struct sched_queue {
  uint32_t gpu_id, queue_id;
  int32_t status;
  uint32_t pad;
};
struct reservation_args {
  uint32_t gpu_id, reserved_slots, min_priority, flags, num_slots, active_slots;
};
#define BATCH_UNMAP _IOWR('K', 0xf0, struct sched_args)
#define FAST_REMAP _IOWR('K', 0xf1, struct sched_args)
#define RESERVATION _IOWR('K', 0xf2, struct reservation_args)
#define SCHED_ALL 1u
#define HQD_QUERY 1u
_Static_assert(sizeof(struct sched_args) == 24 && sizeof(struct sched_queue) == 16 &&
                 sizeof(struct reservation_args) == 24,
               "as the driver has them");

struct gw_amd {
  char *socket, *device, *sysfs; /* socket may be NULL */
  pid_t owner;
  pthread_mutex_t lock; /* for what follows */
  int fd;               /* of device; -1: not open yet */
  gw_amd_statistics done;
};

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int gw_amd_init(gw_amd **handle, const gw_amd_options *o) {
  if (!handle) return -EINVAL;
  gw_amd *h = calloc(1, sizeof *h);
  if (!h) return -ENOMEM;
  h->fd = -1;
  h->owner = getpid();
  pthread_mutex_init(&h->lock, NULL);
  bool wanted = o && o->socket;
  h->socket = wanted ? strdup(o->socket) : NULL;
  h->device = strdup(o && o->device ? o->device : "/dev/kfd");
  h->sysfs = strdup(o && o->sysfs ? o->sysfs : "/sys");
  if (!h->device || !h->sysfs || (wanted && !h->socket)) {
    gw_amd_cleanup(h);
    return -ENOMEM;
  }
  *handle = h;
  return 0;
}

void gw_amd_cleanup(gw_amd *h) {
  if (!h) return;
  if (h->fd >= 0) close(h->fd); /* the driver puts back what was unmapped through it */
  pthread_mutex_destroy(&h->lock);
  free(h->socket);
  free(h->device);
  free(h->sysfs);
  free(h);
}

/* Queues, from sysfs. */

/* A file that holds one number, beneath dir. */
static int read_number(int dir, const char *name, uint32_t *value) {
  char text[16];
  int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  ssize_t n = read(fd, text, sizeof text - 1);
  int err = n < 0 ? -errno : 0;
  close(fd);
  if (err) return err;
  text[n] = 0;
  char *end;
  errno = 0;
  unsigned long v = strtoul(text, &end, 10);
  if (!isdigit((unsigned char)text[0]) || (*end && *end != '\n') || errno || v > UINT32_MAX) return -EPROTO;
  *value = (uint32_t)v;
  return 0;
}

/* The name of a folder that is a number. */
static bool is_number(const char *name, uint32_t *value) {
  char *end;
  errno = 0;
  unsigned long v = strtoul(name, &end, 10);
  *value = (uint32_t)v;
  return isdigit((unsigned char)name[0]) && !*end && !errno && v <= INT32_MAX;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
  uint32_t x = 0, y = 0;
  is_number((*a)->d_name, &x);
  is_number((*b)->d_name, &y);
  return (x > y) - (x < y);
}

static int numbered(const struct dirent *e) {
  uint32_t v;
  return is_number(e->d_name, &v);
}

/* Adds the compute queues of one process. One that goes meanwhile is left out. */
static int list_process(const char *proc, uint32_t pid, gw_amd_queue *queues, size_t room, int count) {
  char path[PATH_MAX];
  struct dirent **ids;
  if (snprintf(path, sizeof path, "%s/%u/queues", proc, pid) >= (int)sizeof path) return -ENAMETOOLONG;
  int n = scandir(path, &ids, numbered, by_name);
  if (n < 0) return errno == ENOENT ? count : -errno;
  int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < n; i++) {
    char name[300];
    uint32_t id, gpu, type;
    is_number(ids[i]->d_name, &id);
    snprintf(name, sizeof name, "%s/gpuid", ids[i]->d_name);
    int err = dir < 0 ? -ENOENT : read_number(dir, name, &gpu);
    snprintf(name, sizeof name, "%s/type", ids[i]->d_name);
    if (!err) err = read_number(dir, name, &type);
    free(ids[i]);
    if (err || type != 0 || count == INT_MAX) continue; /* 0: the kernel's number for compute */
    if ((size_t)count < room)
      queues[count] = (gw_amd_queue){.pid = (int32_t)pid, .gpu = gpu, .queue = id};
    count++;
  }
  free(ids);
  if (dir >= 0) close(dir);
  return count;
}

int gw_amd_list(gw_amd *h, gw_amd_queue *queues, size_t room) {
  if (!h || (room && !queues)) return -EINVAL;
  char proc[PATH_MAX];
  int len = snprintf(proc, sizeof proc, "%s/class/kfd/kfd/proc", h->sysfs);
  if (len >= (int)sizeof proc) return -ENAMETOOLONG;
  struct dirent **pids;
  int n = scandir(proc, &pids, numbered, by_name);
  if (n < 0) return -errno;
  int count = 0;
  for (int i = 0; i < n; i++) {
    uint32_t pid;
    is_number(pids[i]->d_name, &pid);
    if (count >= 0 && pid > 0) count = list_process(proc, pid, queues, room, count);
    free(pids[i]);
  }
  free(pids);
  return count;
}

/* The daemon, by HTTP on its socket. */

enum { PATIENCE_MS = 10000, MOST_ANSWER = 16 << 20 };

static int connect_to(const char *path) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof to.sun_path) return -ENAMETOOLONG;
  strcpy(to.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  if (connect(fd, (struct sockaddr *)&to, sizeof to)) {
    int err = -errno;
    close(fd);
    return err;
  }
  return fd;
}

static int dial(const gw_amd *h) {
  const char *named = h->socket ? h->socket : getenv("GIVEWAY_SOCKET");
  if (named && *named) return connect_to(named);
  int fd = connect_to("/run/giveway/giveway.sock");
  const char *dir = getenv("XDG_RUNTIME_DIR");
  char path[PATH_MAX];
  if (fd >= 0 || !dir || *dir != '/') return fd;
  if (snprintf(path, sizeof path, "%s/giveway.sock", dir) < (int)sizeof path) {
    int own = connect_to(path);
    if (own >= 0) return own;
  }
  return fd;
}

/* Waits until fd is ready for what, or it has become too late. */
static int wait_for(int fd, short what, uint64_t until) {
  for (;;) {
    uint64_t now = now_ns();
    if (now >= until) return -ETIMEDOUT;
    struct pollfd p = {.fd = fd, .events = what};
    int n = poll(&p, 1, (int)((until - now) / 1000000u) + 1);
    if (n > 0) return 0;
    if (n < 0 && errno != EINTR) return -errno;
  }
}

static int send_all(int fd, const char *text, size_t len, uint64_t until) {
  while (len) {
    ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
    if (n >= 0) {
      text += n;
      len -= (size_t)n;
    } else if (errno == EAGAIN) {
      int err = wait_for(fd, POLLOUT, until);
      if (err) return err;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
  return 0;
}

/* Reads until the daemon has ended the connection. What is at *text is the caller's to free. */
static int receive_all(int fd, char **text, size_t *len, uint64_t until) {
  size_t room = 0;
  *text = NULL;
  *len = 0;
  for (;;) {
    if (*len + 1 >= room) {
      if (room >= MOST_ANSWER) return -EPROTO;
      room = room ? 2 * room : 4096;
      char *more = realloc(*text, room);
      if (!more) return -ENOMEM;
      *text = more;
    }
    ssize_t n = recv(fd, *text + *len, room - *len - 1, 0);
    if (n > 0) {
      *len += (size_t)n;
    } else if (n == 0) {
      (*text)[*len] = 0;
      return 0;
    } else if (errno == EAGAIN) {
      int err = wait_for(fd, POLLIN, until);
      if (err) return err;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
}

/* What the first line of an answer means. */
static int meaning(const char *text, size_t len) {
  if (strnlen(text, len) != len || len < 13 || strncmp(text, "HTTP/1.", 7) || text[12] != ' ') return -EPROTO;
  switch (atoi(text + 9)) {
    case 200: return 0;
    case 400: return -EINVAL;
    case 401:
    case 403: return -EPERM;
    case 404: return -ESRCH;
    case 409: return -EBUSY;
  }
  return -EPROTO;
}

/* Asks the daemon. The answer's body is put where there is room, and its length returned. */
static int ask(gw_amd *h, const char *request, const char *body, char *json, size_t room) {
  if (!h || (room && !json)) return -EINVAL;
  char head[512];
  int n = snprintf(head, sizeof head,
                   "%s HTTP/1.0\r\nHost: giveway\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   request, strlen(body), body);
  int fd = dial(h);
  if (fd < 0) return fd;
  uint64_t until = now_ns() + PATIENCE_MS * UINT64_C(1000000);
  char *text = NULL;
  size_t len = 0;
  int came = send_all(fd, head, (size_t)n, until);
  if (!came) came = receive_all(fd, &text, &len, until);
  if (!came) came = meaning(text, len);
  close(fd);
  const char *start = came ? NULL : strstr(text, "\r\n\r\n");
  if (!came && !start) came = -EPROTO;
  if (!came) {
    start += 4;
    came = (int)(len - (size_t)(start - text));
    if (room) snprintf(json, room, "%s", start);
  }
  free(text);
  return came;
}

static int set_paused(gw_amd *h, int pid, bool paused) {
  if (pid <= 0) return -EINVAL;
  char request[64];
  snprintf(request, sizeof request, "POST /v1/processes/%d", pid);
  int n = ask(h, request, paused ? "{\"paused\":true}" : "{\"paused\":false}", NULL, 0);
  return n < 0 ? n : 0;
}

int gw_amd_suspend(gw_amd *h, int pid) { return set_paused(h, pid, true); }
int gw_amd_resume(gw_amd *h, int pid) { return set_paused(h, pid, false); }

int gw_amd_processes(gw_amd *h, char *json, size_t room) {
  return ask(h, "GET /v1/processes", "", json, room);
}

int gw_amd_status(gw_amd *h, char *json, size_t room) {
  return ask(h, "GET /v1/status", "", json, room);
}

/* The driver. */

static int call(gw_amd *h, unsigned long request, void *arg) {
  if (getpid() != h->owner) return -EBADF; /* or a child would hold it open for who has died */
  pthread_mutex_lock(&h->lock);
  if (h->fd < 0) h->fd = open(h->device, O_RDWR | O_CLOEXEC);
  int fd = h->fd, err = -errno;
  pthread_mutex_unlock(&h->lock);
  if (fd < 0) return err;
  int n;
  do {
    n = ioctl(fd, request, arg);
  } while (n < 0 && errno == EINTR); /* each may be made twice */
  return n < 0 ? -errno : n;
}

/* Makes a call about queues, and counts it. */
static int batch(gw_amd *h, unsigned long request, int pid, gw_amd_queue *queues, size_t count,
                 uint32_t grace) {
  if (!h || pid < 0 || !queues || !count || count > GW_AMD_MOST) return -EINVAL;
  struct sched_queue entries[GW_AMD_MOST];
  for (size_t i = 0; i < count; i++)
    entries[i] = (struct sched_queue){.gpu_id = queues[i].gpu, .queue_id = queues[i].queue};
  struct sched_args args = {.queues_ptr = (uintptr_t)entries,
                            .num_queues = (uint32_t)count,
                            .pid = (uint32_t)pid,
                            .grace_period = grace};
  uint64_t began = now_ns();
  int came = call(h, request, &args);
  uint64_t took = now_ns() - began;
  for (size_t i = 0; i < count; i++) queues[i].status = came < 0 ? came : entries[i].status;
  size_t done = came < 0 ? 0 : (size_t)came;
  pthread_mutex_lock(&h->lock);
  gw_amd_calls *c = request == BATCH_UNMAP ? &h->done.unmap : &h->done.remap;
  c->calls++;
  c->queues += count;
  c->failed += done < count ? count - done : 0;
  c->total_ns += took;
  if (took > c->longest_ns) c->longest_ns = took;
  pthread_mutex_unlock(&h->lock);
  return came;
}

int gw_amd_unmap(gw_amd *h, int pid, gw_amd_queue *queues, size_t count, uint32_t grace) {
  return batch(h, BATCH_UNMAP, pid, queues, count, grace);
}

int gw_amd_remap(gw_amd *h, int pid, gw_amd_queue *queues, size_t count) {
  return batch(h, FAST_REMAP, pid, queues, count, 0);
}

int gw_amd_remap_all(gw_amd *h, int pid) {
  if (!h || pid < 0) return -EINVAL;
  struct sched_args args = {.pid = (uint32_t)pid, .flags = SCHED_ALL};
  return call(h, FAST_REMAP, &args);
}

int gw_amd_reserve(gw_amd *h, uint32_t gpu, uint32_t slots, uint32_t priority) {
  if (!h) return -EINVAL;
  struct reservation_args args = {.gpu_id = gpu, .reserved_slots = slots, .min_priority = priority};
  return call(h, RESERVATION, &args);
}

int gw_amd_slots(gw_amd *h, uint32_t gpu, gw_amd_slot_use *use) {
  if (!h || !use) return -EINVAL;
  struct reservation_args args = {.gpu_id = gpu, .flags = HQD_QUERY};
  int came = call(h, RESERVATION, &args);
  if (came >= 0)
    *use = (gw_amd_slot_use){args.reserved_slots, args.min_priority, args.num_slots, args.active_slots};
  return came;
}

int gw_amd_stats(gw_amd *h, gw_amd_statistics *statistics) {
  if (!h || !statistics) return -EINVAL;
  pthread_mutex_lock(&h->lock);
  *statistics = h->done;
  pthread_mutex_unlock(&h->lock);
  return 0;
}

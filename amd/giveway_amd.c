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

/* The ABI of the driver patch: kernel/amdkfd/ABI.md. */
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
               "sizes in the driver's ABI");

struct gw_amd {
  char *socket, *device, *sysfs; /* socket may be NULL */
  pid_t owner;                   /* the process that made the handle */
  pthread_mutex_t lock;          /* guards the fields below */
  int fd;                        /* of device; -1: not open yet */
  gw_amd_statistics stats;
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
  bool has_socket = o && o->socket;
  h->socket = has_socket ? strdup(o->socket) : NULL;
  h->device = strdup(o && o->device ? o->device : "/dev/kfd");
  h->sysfs = strdup(o && o->sysfs ? o->sysfs : "/sys");
  if (!h->device || !h->sysfs || (has_socket && !h->socket)) {
    gw_amd_cleanup(h);
    return -ENOMEM;
  }
  *handle = h;
  return 0;
}

void gw_amd_cleanup(gw_amd *h) {
  if (!h) return;
  if (h->fd >= 0) close(h->fd); /* the driver remaps what was unmapped through this descriptor */
  pthread_mutex_destroy(&h->lock);
  free(h->socket);
  free(h->device);
  free(h->sysfs);
  free(h);
}

/* Listing queues, from sysfs. */

/* Reads a file below dir that holds one number. */
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

/* Reports whether the name of a directory is a number, and which. */
static bool is_number(const char *name, uint32_t *value) {
  char *end;
  errno = 0;
  unsigned long v = strtoul(name, &end, 10);
  *value = (uint32_t)v;
  return isdigit((unsigned char)name[0]) && !*end && !errno && v <= INT32_MAX;
}

static int by_number(const struct dirent **a, const struct dirent **b) {
  uint32_t x = 0, y = 0;
  is_number((*a)->d_name, &x);
  is_number((*b)->d_name, &y);
  return (x > y) - (x < y);
}

static int numbered(const struct dirent *e) {
  uint32_t v;
  return is_number(e->d_name, &v);
}

/* Appends the compute queues of one process. A queue that vanishes meanwhile is left out. */
static int list_process(const char *proc, uint32_t pid, gw_amd_queue *queues, size_t room, int count) {
  char path[PATH_MAX];
  struct dirent **ids;
  if (snprintf(path, sizeof path, "%s/%u/queues", proc, pid) >= (int)sizeof path) return -ENAMETOOLONG;
  int n = scandir(path, &ids, numbered, by_number);
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
    if (err || type != 0 || count == INT_MAX) continue; /* 0: enum kfd_queue_type's compute */
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
  int n = scandir(proc, &pids, numbered, by_number);
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

/* Requests to the daemon: HTTP on its Unix socket. */

enum { TIMEOUT_MS = 10000, MAX_ANSWER = 16 << 20 };

/* Whether root or the caller's user listens. In a user namespace root may be shown as
 * 65534; then only the machine's socket is trusted, which only root can make. */
static int trusted(int fd, const char *path) {
  struct ucred peer;
  socklen_t len = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len)) return 0;
  return peer.uid == 0 || peer.uid == geteuid() ||
         (peer.uid == 65534 && !strcmp(path, "/run/giveway/giveway.sock"));
}

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
  if (!trusted(fd, path)) {
    close(fd);
    return -EPERM;
  }
  return fd;
}

static int dial(const gw_amd *h) {
  const char *given = h->socket ? h->socket : getenv("GIVEWAY_SOCKET");
  if (given && *given) return connect_to(given);
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

/* Waits until fd is ready for events, or until the deadline. */
static int wait_for(int fd, short events, uint64_t deadline) {
  for (;;) {
    uint64_t now = now_ns();
    if (now >= deadline) return -ETIMEDOUT;
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, (int)((deadline - now) / 1000000u) + 1);
    if (n > 0) return 0;
    if (n < 0 && errno != EINTR) return -errno;
  }
}

static int send_all(int fd, const char *text, size_t len, uint64_t deadline) {
  while (len) {
    ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
    if (n >= 0) {
      text += n;
      len -= (size_t)n;
    } else if (errno == EAGAIN) {
      int err = wait_for(fd, POLLOUT, deadline);
      if (err) return err;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
  return 0;
}

/* Reads until the daemon closes the connection. The caller frees *text. */
static int receive_all(int fd, char **text, size_t *len, uint64_t deadline) {
  size_t room = 0;
  *text = NULL;
  *len = 0;
  for (;;) {
    if (*len + 1 >= room) {
      if (room >= MAX_ANSWER) return -EPROTO;
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
      int err = wait_for(fd, POLLIN, deadline);
      if (err) return err;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
}

/* Translates the status line of an answer to 0 or -errno. */
static int status_error(const char *text, size_t len) {
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

/* Sends a request to the daemon, copies the body of the answer, and returns its length. */
static int http(gw_amd *h, const char *request, const char *body, char *json, size_t room) {
  if (!h || (room && !json)) return -EINVAL;
  char head[512];
  int n = snprintf(head, sizeof head,
                   "%s HTTP/1.0\r\nHost: giveway\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   request, strlen(body), body);
  int fd = dial(h);
  if (fd < 0) return fd;
  uint64_t deadline = now_ns() + TIMEOUT_MS * UINT64_C(1000000);
  char *text = NULL;
  size_t len = 0;
  int result = send_all(fd, head, (size_t)n, deadline);
  if (!result) result = receive_all(fd, &text, &len, deadline);
  if (!result) result = status_error(text, len);
  close(fd);
  const char *start = result ? NULL : strstr(text, "\r\n\r\n");
  if (!result && !start) result = -EPROTO;
  if (!result) {
    start += 4;
    result = (int)(len - (size_t)(start - text));
    if (room) snprintf(json, room, "%s", start);
  }
  free(text);
  return result;
}

static int set_paused(gw_amd *h, int pid, bool paused) {
  if (pid <= 0) return -EINVAL;
  char request[64];
  snprintf(request, sizeof request, "POST /v1/processes/%d", pid);
  int n = http(h, request, paused ? "{\"paused\":true}" : "{\"paused\":false}", NULL, 0);
  return n < 0 ? n : 0;
}

int gw_amd_suspend(gw_amd *h, int pid) { return set_paused(h, pid, true); }
int gw_amd_resume(gw_amd *h, int pid) { return set_paused(h, pid, false); }

int gw_amd_processes(gw_amd *h, char *json, size_t room) {
  return http(h, "GET /v1/processes", "", json, room);
}

int gw_amd_status(gw_amd *h, char *json, size_t room) {
  return http(h, "GET /v1/status", "", json, room);
}

/* Calls of the driver. */

static int call(gw_amd *h, unsigned long request, void *arg) {
  if (getpid() != h->owner) return -EBADF; /* a handle belongs to the process that made it */
  pthread_mutex_lock(&h->lock);
  if (h->fd < 0) h->fd = open(h->device, O_RDWR | O_CLOEXEC);
  int fd = h->fd, err = -errno;
  pthread_mutex_unlock(&h->lock);
  if (fd < 0) return err;
  int n;
  do {
    n = ioctl(fd, request, arg);
  } while (n < 0 && errno == EINTR); /* all requests may be repeated */
  return n < 0 ? -errno : n;
}

/* Makes a call for several queues and adds it to the totals. */
static int batch(gw_amd *h, unsigned long request, int pid, gw_amd_queue *queues, size_t count,
                 uint32_t grace) {
  if (!h || pid < 0 || !queues || !count || count > GW_AMD_MAX_QUEUES) return -EINVAL;
  struct sched_queue entries[GW_AMD_MAX_QUEUES];
  for (size_t i = 0; i < count; i++)
    entries[i] = (struct sched_queue){.gpu_id = queues[i].gpu, .queue_id = queues[i].queue};
  struct sched_args args = {.queues_ptr = (uintptr_t)entries,
                            .num_queues = (uint32_t)count,
                            .pid = (uint32_t)pid,
                            .grace_period = grace};
  uint64_t start = now_ns();
  int result = call(h, request, &args);
  uint64_t took = now_ns() - start;
  for (size_t i = 0; i < count; i++) queues[i].status = result < 0 ? result : entries[i].status;
  size_t done = result < 0 ? 0 : (size_t)result;
  pthread_mutex_lock(&h->lock);
  gw_amd_calls *c = request == BATCH_UNMAP ? &h->stats.unmap : &h->stats.remap;
  c->calls++;
  c->queues += count;
  c->failed += done < count ? count - done : 0;
  c->total_ns += took;
  if (took > c->longest_ns) c->longest_ns = took;
  pthread_mutex_unlock(&h->lock);
  return result;
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
  int result = call(h, RESERVATION, &args);
  if (result >= 0)
    *use = (gw_amd_slot_use){args.reserved_slots, args.min_priority, args.num_slots, args.active_slots};
  return result;
}

int gw_amd_stats(gw_amd *h, gw_amd_statistics *statistics) {
  if (!h || !statistics) return -EINVAL;
  pthread_mutex_lock(&h->lock);
  *statistics = h->stats;
  pthread_mutex_unlock(&h->lock);
  return 0;
}

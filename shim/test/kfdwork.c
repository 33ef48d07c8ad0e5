/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
/*
 * A program with queues on AMD GPUs that knows nothing of Giveway. It reads a command per line
 * and prints the result:
 *
 *     create GPU TYPE RING SIZE PERCENT PRIORITY BYTES    created RESULT ERRNO ID
 *     update ID RING SIZE PERCENT PRIORITY                updated RESULT ERRNO
 *     destroy ID                                          destroyed RESULT ERRNO
 *     vanish ID                                           destroyed RESULT ERRNO: by a system call
 *     reopen | dup | close                                done
 *     other                                               other ...
 *     fork | clone                                        forked ...; clone is fork without the C library
 *     launch                                              done: a command has passed the gate
 *     threads N                                           done: N threads create and destroy queues
 *     quit                                                ok
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct create {
  uint64_t ring, write, read, doorbell;
  uint32_t ring_size, gpu, type, percentage, priority, queue;
  uint64_t more[5]; /* 96 bytes in all */
};
struct update {
  uint64_t ring;
  uint32_t queue, ring_size, percentage, priority;
};
_Static_assert(sizeof(struct create) == 96 && sizeof(struct update) == 24, "sizes");

#define DESTROY _IOWR('K', 3, uint64_t)
#define UPDATE _IOW('K', 7, struct update)
#define KEPT 77 /* in errno before calls that must not change it */

static int fd;
static const char *path;

static int create(struct create *c, unsigned bytes) {
  return ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'K', 2, bytes), c);
}

static int destroy(uint64_t id) { return ioctl(fd, DESTROY, &id); }

static void do_create(const char *line) {
  struct create c = {0};
  unsigned bytes = 0;
  unsigned long ring;
  sscanf(line, "create %u %u %lu %u %u %u %u", &c.gpu, &c.type, &ring, &c.ring_size, &c.percentage, &c.priority, &bytes);
  c.ring = ring;
  errno = KEPT;
  int r = create(&c, bytes);
  printf("created %d %d %u\n", r, errno, c.queue);
}

static void do_update(const char *line) {
  struct update u = {0};
  unsigned long ring;
  sscanf(line, "update %u %lu %u %u %u", &u.queue, &ring, &u.ring_size, &u.percentage, &u.priority);
  u.ring = ring;
  struct update before = u;
  errno = KEPT;
  int r = ioctl(fd, UPDATE, &u), error = errno;
  printf("updated %d %d%s\n", r, error, memcmp(&u, &before, sizeof u) ? " and written to" : "");
}

/* ioctls that the shim must pass on unchanged. */
static void do_other(void) {
  int ends[2], n = -1, null = open("/dev/null", O_RDWR);
  struct update u = {.queue = 0};
  struct create c = {.queue = 99};
  printf("other");
  if (pipe(ends) || write(ends[1], "abc", 3) != 3) abort();
  errno = KEPT;
  int r = ioctl(ends[0], FIONREAD, &n);
  printf(" %d %d %d", r, n, errno);
#define TRY(...) (errno = 0, printf(" %d/", ioctl(__VA_ARGS__)), printf("%d", errno))
  TRY(null, TIOCGWINSZ, &n);
  TRY(-1, UPDATE, &u);
  TRY(null, UPDATE, &u);
  TRY(null, DESTROY, NULL);
  TRY(ends[0], _IOC(_IOC_READ | _IOC_WRITE, 'K', 2, 96), &c);
  TRY(fd, UPDATE, NULL);
  TRY(fd, UPDATE, (void *)16);
  TRY(fd, DESTROY, (void *)16);
  TRY(fd, _IOWR('K', 3, uint32_t), (void *)16);
  TRY(fd, _IOR('K', 1, uint64_t), &c);
  printf("\n");
  close(null), close(ends[0]), close(ends[1]);
}

static uint32_t own_gpu;

/* The child has no queues, whatever is requested for them, and exits normally. */
static void do_fork(int raw) {
  fflush(stdout);
  pid_t child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
  if (child == 0) {
    struct update u = {1 << 20, 0, 4096, 100, 7};
    struct create c = {.ring = 1 << 20, .ring_size = 4096, .percentage = 100};
    int a = ioctl(fd, UPDATE, &u) < 0 ? errno : 0, b = destroy(0) < 0 ? errno : 0;
    int d = create(&c, sizeof c) < 0 ? errno : 0;
    usleep(300000);
    int bad = a != EBADF || b != EBADF || d != EBADF;
    if (raw && !bad) { /* with its own descriptor it has its own queues, which nothing stops */
      fd = open(path, O_RDWR | O_CLOEXEC);
      c.gpu = own_gpu, c.type = 2, c.ring = 99;
      bad = create(&c, sizeof c) || ioctl(fd, UPDATE, &u);
      if (!bad) printf("cloned %d\n", (int)syscall(SYS_getpid)), getchar();
    }
    if (raw) _exit(bad);
    exit(bad);
  }
  int status = -1;
  waitpid(child, &status, 0);
  printf("forked %d\n", status);
}

static int nothing(void *arg, uint64_t number) { return (void)arg, (void)number, 0; }

/* Uses a queue of queue.h, which needs no runtime. */
static void do_launch(void) {
  static void *queue;
  int (*make)(void **, const char *) = dlsym(RTLD_DEFAULT, "giveway_queue_create");
  int (*submit)(void *, int (*)(void *, uint64_t), void *, uint64_t *) = dlsym(RTLD_DEFAULT, "giveway_queue_submit");
  int (*wait)(void *, uint64_t) = dlsym(RTLD_DEFAULT, "giveway_queue_wait");
  if ((!queue && make(&queue, "work")) || submit(queue, nothing, NULL, NULL) || wait(queue, 0)) abort();
  printf("done\n");
}

static uint32_t churn_gpu;

static void *churn(void *arg) {
  for (int i = 0; i < 200; i++) {
    struct create c = {.ring = 1 << 20, .ring_size = 4096, .percentage = 100, .priority = 7, .type = 2, .gpu = churn_gpu};
    if (create(&c, sizeof c) || destroy(c.queue)) abort();
  }
  return arg;
}

static void do_threads(const char *line) {
  pthread_t threads[16];
  int n = 0;
  sscanf(line, "threads %d %u", &n, &churn_gpu);
  for (int i = 0; i < n; i++) {
    if (pthread_create(&threads[i], NULL, churn, NULL)) abort();
  }
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
  printf("done\n");
}

int main(int count, char **args) {
  char line[256];
  if (count < 2 || (fd = open(path = args[1], O_RDWR | O_CLOEXEC)) < 0) return 1;
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("ready\n");
  while (fgets(line, sizeof line, stdin)) {
    uint64_t id = 0;
    if (!strncmp(line, "create", 6)) do_create(line);
    else if (!strncmp(line, "update", 6)) do_update(line);
    else if (sscanf(line, "destroy %lu", &id) == 1) {
      errno = KEPT;
      int r = destroy(id);
      printf("destroyed %d %d\n", r, errno);
    } else if (sscanf(line, "vanish %lu", &id) == 1) {
      errno = KEPT;
      int r = (int)syscall(SYS_ioctl, fd, DESTROY, &id);
      printf("destroyed %d %d\n", r, errno);
    } else if (!strncmp(line, "other", 5)) do_other();
    else if (!strncmp(line, "fork", 4)) do_fork(0);
    else if (sscanf(line, "clone %u", &own_gpu) == 1) do_fork(1);
    else if (!strncmp(line, "launch", 6)) do_launch();
    else if (!strncmp(line, "threads", 7)) do_threads(line);
    else if (!strncmp(line, "quit", 4)) break;
    else {
      int old = fd;
      if (!strncmp(line, "reopen", 6)) fd = open(path, O_RDWR | O_CLOEXEC), dup2(0, old);
      if (!strncmp(line, "dup", 3)) fd = dup(old);
      if (!strncmp(line, "close", 5)) close(fd);
      printf("done\n");
    }
  }
  printf("ok \n");
  return 0;
}

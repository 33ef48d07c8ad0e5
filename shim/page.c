/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "kfd.h"
#include "sys.h"

/* glibc 2.17's headers know none of these. */
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif
#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

#define HELLO_NS (250 * GW_MS_NS) /* a busy machine may take its time */
#define RETRY_NS GW_SECOND_NS
#define RETRY_MOST_NS (64 * GW_SECOND_NS)

union gw_slot gw_shared __attribute__((aligned(GW_MAP_UNIT))) = {.page = {.gate = GW_NO_PAGE}};
static union gw_slot board __attribute__((aligned(GW_MAP_UNIT)));

uint32_t gw_attached, gw_pages;

static gw_lock_t changing;                      /* held by the one thread that connects or lets go */
static int conn = -1, bell = -1;                /* ours while attached */
static long owner;                              /* the process that they are of */
static uint64_t cookie;                         /* of conn, by which we know it again */
static uint64_t next_look, pause_ns = RETRY_NS; /* when to connect or to look at conn again */

/* Descriptors of a program are counted from below, and some programs close all
 * that they know nothing of and go on with the same numbers. So ours lie high. */
static int lift(int fd) {
  struct rlimit limit = {1024, 1024};
  getrlimit(RLIMIT_NOFILE, &limit);
  long base = limit.rlim_cur > 8192 ? 4096 : (long)limit.rlim_cur / 2;
  long high = GW_SYS_3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, base);
  if (high < 0) return fd;
  GW_SYS_1(SYS_close, fd);
  return (int)high;
}

static long this_process(void) { return gw_sys(SYS_getpid, 0, 0, 0, 0, 0, 0); }

static uint64_t cookie_of(int fd) {
  uint64_t c = 0;
  socklen_t size = sizeof c;
  long r = gw_sys(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, (long)&c, (long)&size, 0);
  return r < 0 ? 0 : c;
}

/* Connects without waiting. -1, or a descriptor. */
static int dial(const char *path) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  size_t n = strlen(path);
  if (n == 0 || n >= sizeof to.sun_path) return -1;
  memcpy(to.sun_path, path, n);
  int fd = (int)GW_SYS_3(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
  if (GW_SYS_3(SYS_connect, fd, &to, size) == 0) return fd;
  GW_SYS_1(SYS_close, fd);
  return -1;
}

/* Where clients look for the daemon, in the same order as they do. */
static int dial_any(void) {
  const char *path = getenv("GIVEWAY_SOCKET");
  if (path && *path) return dial(path);
  int fd = dial("/run/giveway/giveway.sock");
  const char *dir = getenv("XDG_RUNTIME_DIR");
  if (fd >= 0 || !dir || *dir != '/') return fd;
  char own[sizeof((struct sockaddr_un *)0)->sun_path + 1] = "";
  static const char name[] = "/giveway.sock";
  size_t n = strlen(dir);
  if (n + sizeof name > sizeof own) return -1;
  memcpy(own, dir, n);
  memcpy(own + n, name, sizeof name);
  return dial(own);
}

static int ask(int fd, const char *runtime) {
  static const char head[] =
      "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\nGiveway-Abi: 1\r\nGiveway-Runtime: ";
  char text[sizeof head + 32];
  size_t n = sizeof head - 1, m = strlen(runtime);
  if (m > 16) return -1;
  memcpy(text, head, n);
  memcpy(text + n, runtime, m);
  memcpy(text + n + m, "\r\n\r\n", 4);
  n += m + 4;
  return gw_sys(SYS_sendto, fd, (long)text, (long)n, MSG_NOSIGNAL | MSG_DONTWAIT, 0, 0) == (long)n ? 0 : -1;
}

/* Waits for the answer. The number of descriptors that came with it, or -1 for
 * an answer that is not one, or -2 for none in time. */
static int answer(int fd, int fds[3]) {
  uint64_t until = gw_now() + HELLO_NS;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  for (;;) {
    uint64_t now = gw_now();
    if (now >= until) return -2;
    struct timespec left = {0, (long)(until - now)};
    long r = gw_sys(SYS_ppoll, (long)&p, 1, (long)&left, 0, 0, 0);
    if (r > 0) break;
    if (r < 0 && r != -EINTR) return -1;
  }
  char text[256];
  union {
    char room[CMSG_SPACE(3 * sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {text, sizeof text};
  struct msghdr m = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(3 * sizeof(int))};
  long n = GW_SYS_3(SYS_recvmsg, fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  int count = 0;
  for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len && count < 3; at += sizeof(int)) {
      memcpy(&fds[count++], (char *)c + at, sizeof(int));
    }
  }
  static const char yes[] = "HTTP/1.1 101";
  if (n >= (long)sizeof yes - 1 && memcmp(text, yes, sizeof yes - 1) == 0 && count == 3) return count;
  while (count > 0) GW_SYS_1(SYS_close, fds[--count]);
  return -1;
}

/* Whether a descriptor is memory of the right size that can never get smaller. */
static bool sealed(int fd, long size) {
  long seals = GW_SYS_2(SYS_fcntl, fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) && GW_SYS_3(SYS_lseek, fd, 0, SEEK_END) == size;
}

static bool map(void *where, int fd, int prot) {
  int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  return gw_sys(SYS_mmap, (long)where, GW_MAP_UNIT, prot, flags, fd, 0) == (long)where;
}

static void count_page(void) {
  __atomic_add_fetch(&gw_pages, 1, __ATOMIC_SEQ_CST);
  gw_futex_wake(&gw_pages, 1, 0);
}

/*
 * Before other memory comes to lie where the page is. Whoever sleeps on a word of the
 * old memory would sleep on, for nobody can wake it there any more. So it is woken
 * now; and who was about to sleep sees that the word has changed or, if it had looked
 * after that, that gw_pages has.
 */
static void rouse(void) {
  count_page();
  __atomic_add_fetch(&gw_shared.page.queue_seq, 1, __ATOMIC_SEQ_CST);
  gw_futex_wake(&gw_shared.page.queue_seq, 1, 1);
  __atomic_add_fetch(&gw_shared.page.expect_seq, 1, __ATOMIC_SEQ_CST);
  gw_futex_wake(&gw_shared.page.expect_seq, 1, 1);
}

/* Ordinary memory again. For a moment its gate is open. */
static void unmap(void) {
  map(&board, -1, PROT_READ | PROT_WRITE);
  map(&gw_shared, -1, PROT_READ | PROT_WRITE);
  __atomic_store_n(&gw_shared.page.gate, GW_NO_PAGE, __ATOMIC_RELEASE);
}

/* Looks at the pages beside their place first: once there, threads use them. */
static bool right(int page_fd, int board_fd) {
  if (!sealed(page_fd, GW_PAGE_SIZE) || !sealed(board_fd, GW_STATUS_SIZE)) return false;
  struct gw_page *p = (void *)gw_sys(SYS_mmap, 0, GW_PAGE_SIZE, PROT_READ, MAP_SHARED, page_fd, 0);
  if ((long)p < 0 && (long)p > -4096) return false;
  bool ok = p->magic == GW_MAGIC && p->abi == GW_ABI && p->size == GW_PAGE_SIZE;
  GW_SYS_2(SYS_munmap, p, GW_PAGE_SIZE);
  struct gw_status *b = (void *)gw_sys(SYS_mmap, 0, GW_STATUS_SIZE, PROT_READ, MAP_SHARED, board_fd, 0);
  if ((long)b < 0 && (long)b > -4096) return false;
  ok = ok && b->magic == GW_MAGIC && b->abi == GW_ABI;
  GW_SYS_2(SYS_munmap, b, GW_STATUS_SIZE);
  return ok;
}

/* Whether a write to it neither waits nor raises SIGPIPE: an eventfd, which is a file
 * of no type, with the daemon's flags, by which we know it again. */
static bool rings(int fd) {
  struct stat s;
  return GW_SYS_2(SYS_fcntl, fd, F_GETFL) == GW_DOORBELL_FLAGS && GW_SYS_2(SYS_fstat, fd, &s) == 0 &&
         (s.st_mode & S_IFMT) == 0;
}

/* One attempt, with `changing` held. Sets pause_ns to the time until the next. */
static void attach(const char *runtime) {
  int fds[3] = {-1, -1, -1};
  int fd = dial_any();
  if (fd < 0) {
    pause_ns = RETRY_NS;
    gw_say("no daemon: running as if there were no giveway");
    return;
  }
  int got = ask(fd, runtime) ? -1 : answer(fd, fds);
  if (got == 3 && right(fds[0], fds[1]) && rings(fds[2]) && map(&board, fds[1], PROT_READ) &&
      (rouse(), map(&gw_shared, fds[0], PROT_READ | PROT_WRITE))) {
    conn = lift(fd);
    owner = this_process();
    __atomic_store_n(&bell, lift(fds[2]), __ATOMIC_RELEASE);
    cookie = cookie_of(conn);
    GW_SYS_1(SYS_close, fds[0]);
    GW_SYS_1(SYS_close, fds[1]);
    pause_ns = RETRY_NS;
    gw_activity_publish();
    gw_kfd_publish();
    __atomic_store_n(&gw_attached, 1, __ATOMIC_RELEASE);
    count_page();
    return;
  }
  if (got == 3) unmap();
  for (int i = 0; i < 3; i++) {
    if (fds[i] >= 0 && got == 3) GW_SYS_1(SYS_close, fds[i]);
  }
  GW_SYS_1(SYS_close, fd);
  /* A daemon that hangs costs a quarter of a second each time it is asked. */
  if (got == -2 && pause_ns < RETRY_MOST_NS) pause_ns *= 2;
  gw_say(got == -2 ? "the daemon does not answer"
                   : "the daemon has no page for this program, or one that we do not know");
}

bool gw_page_attach(const char *runtime) {
  if (gw_page_is_there()) return true;
  if (gw_now_coarse() < __atomic_load_n(&next_look, __ATOMIC_RELAXED)) return false;
  /* Threads that come meanwhile wait for the answer too: it concerns them. */
  gw_lock(&changing);
  if (!gw_page_is_there() && gw_now_coarse() >= next_look) {
    attach(runtime);
    __atomic_store_n(&next_look, gw_now_coarse() + pause_ns, __ATOMIC_RELAXED);
  }
  gw_unlock(&changing);
  if (!gw_page_is_there()) return false;
  gw_kfd_attached();
  return true;
}

/* The daemon has hung up, or the program has closed a descriptor of ours, or we are a
 * child that nobody told us of. */
static bool hung_up(void) {
  if (this_process() != owner || !rings(__atomic_load_n(&bell, __ATOMIC_RELAXED))) return true;
  if (cookie && cookie_of(conn) != cookie) return true;
  char c;
  long r = gw_sys(SYS_recvfrom, conn, (long)&c, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);
  return r == 0 || (r < 0 && r != -EAGAIN && r != -EINTR);
}

void gw_page_check(uint64_t now) {
  if (now < __atomic_load_n(&next_look, __ATOMIC_RELAXED) || !gw_page_is_there()) return;
  if (!gw_trylock(&changing)) return;
  if (gw_page_is_there() && now >= next_look) {
    uint64_t next = now + RETRY_NS;
    if (hung_up()) {
      /* The number may be the program's own by now: close only what is ours. */
      bool ours = !cookie || cookie_of(conn) == cookie;
      __atomic_store_n(&gw_attached, 0, __ATOMIC_RELEASE);
      rouse();
      unmap();
      int last = __atomic_exchange_n(&bell, -1, __ATOMIC_SEQ_CST);
      if (ours) {
        GW_SYS_1(SYS_close, conn);
        if (rings(last)) GW_SYS_1(SYS_close, last);
      }
      conn = -1;
      next = now; /* it may have come back already */
      gw_say("the daemon has gone");
    }
    __atomic_store_n(&next_look, next, __ATOMIC_RELAXED);
  }
  gw_unlock(&changing);
}

void gw_page_ring(void) {
  gw_page_check(gw_now_coarse()); /* the bell's number may be another's by now */
  /* The bell was bumped before; the daemon sets asleep before it looks at bells
   * for the last time. All of it sequentially consistent: one of us sees the other. */
  if (!__atomic_load_n(&board.board.asleep, __ATOMIC_SEQ_CST)) return;
  int fd = __atomic_load_n(&bell, __ATOMIC_RELAXED);
  uint64_t one = 1;
  if (fd >= 0) GW_SYS_3(SYS_write, fd, &one, sizeof one);
}

/* A child that has our memory, as after vfork, has descriptors of its own. */
int gw_page_closing(unsigned first, unsigned last) {
  int fd = __atomic_load_n(&bell, __ATOMIC_ACQUIRE);
  if (fd < 0 || (unsigned)fd < first || (unsigned)fd > last || this_process() != owner) return -1;
  int ours = fd;
  return __atomic_compare_exchange_n(&bell, &fd, -1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED) ? ours : -1;
}

void gw_page_not_closed(int fd) {
  int none = -1;
  __atomic_compare_exchange_n(&bell, &none, fd, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

void gw_page_forked(void) {
  __atomic_store_n(&gw_attached, 0, __ATOMIC_RELEASE);
  unmap();
  if (conn >= 0 && (!cookie || cookie_of(conn) == cookie)) {
    GW_SYS_1(SYS_close, conn);
    if (rings(bell)) GW_SYS_1(SYS_close, bell);
  }
  conn = bell = -1;
  next_look = 0;
  pause_ns = RETRY_NS;
  changing = (gw_lock_t){0};
}

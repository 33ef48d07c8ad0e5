/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "activity.h"
#include "connect.h"
#include "filter.h"
#include "kfd.h"
#include "sys.h"

/* The headers of glibc 2.17 do not have these. */
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif
#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

#define RETRY_NS GW_SECOND_NS
#define MAX_RETRY_NS (64 * GW_SECOND_NS)

union gw_mapping gw_shared __attribute__((aligned(GW_MAP_UNIT))) = {.page = {.gate = GW_NO_PAGE}};
static union gw_mapping status __attribute__((aligned(GW_MAP_UNIT)));

uint32_t gw_attached, gw_page_changes;

static gw_lock_t attach_lock;                       /* held while connecting or disconnecting */
static int conn = -1, doorbell = -1;                /* valid while attached */
static long owner_pid;                              /* the process that opened them */
static uint64_t cookie;                             /* of conn: identifies the socket if its number was reused */
static uint64_t next_check_ns, retry_ns = RETRY_NS; /* when to connect or to check conn next */

#define COARSE_NS (20 * GW_MS_NS) /* the coarse clock may be behind by less than this */

bool gw_orders_hold(void) {
  if (GW_READ(abi) < 3) return true;
  uint64_t lease = GW_READ(orders_lease_ns), now = gw_now_coarse();
  return lease > now && lease - now <= GW_MAX_LEASE_NS + COARSE_NS;
}

/* The kernel hands out the lowest free descriptors, and some programs close all descriptors
 * that they do not know and reuse the numbers. So the library's descriptors are high. */
static int move_fd_up(int fd) {
  struct rlimit limit = {1024, 1024};
  getrlimit(RLIMIT_NOFILE, &limit);
  long base = limit.rlim_cur > 8192 ? 4096 : (long)limit.rlim_cur / 2;
  long high = GW_SYS_3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, base);
  if (high < 0) return fd;
  GW_SYS_1(SYS_close, fd);
  return (int)high;
}

static long this_pid(void) { return gw_sys(SYS_getpid, 0, 0, 0, 0, 0, 0); }

static uint64_t cookie_of(int fd) {
  uint64_t c = 0;
  socklen_t size = sizeof c;
  long r = gw_sys(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, (long)&c, (long)&size, 0);
  return r < 0 ? 0 : c;
}

/* Whether fd is memory of that size which cannot shrink. */
static bool is_sealed(int fd, long size) {
  long seals = GW_SYS_2(SYS_fcntl, fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) && GW_SYS_3(SYS_lseek, fd, 0, SEEK_END) == size;
}

static bool map(void *where, int fd, int prot) {
  int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  return gw_sys(SYS_mmap, (long)where, GW_MAP_UNIT, prot, flags, fd, 0) == (long)where;
}

static void count_page_change(void) {
  __atomic_add_fetch(&gw_page_changes, 1, __ATOMIC_SEQ_CST);
  gw_futex_wake(&gw_page_changes, 1, 0);
}

/*
 * To be called before other memory is mapped over the page. A thread that sleeps on a word of
 * the old memory could not be woken there later, so it is woken now. A thread that is about
 * to sleep sees that the word has changed; if it has read the word after that change, it
 * sees that gw_page_changes has changed.
 */
static void wake_sleepers(void) {
  count_page_change();
  __atomic_add_fetch(&gw_shared.page.queue_seq, 1, __ATOMIC_SEQ_CST);
  gw_futex_wake(&gw_shared.page.queue_seq, 1, 1);
  __atomic_add_fetch(&gw_shared.page.expect_seq, 1, __ATOMIC_SEQ_CST);
  gw_futex_wake(&gw_shared.page.expect_seq, 1, 1);
}

/* Maps ordinary memory over the page again. For a moment its gate reads as open. */
static void unmap(void) {
  map(&status, -1, PROT_READ | PROT_WRITE);
  map(&gw_shared, -1, PROT_READ | PROT_WRITE);
  __atomic_store_n(&gw_shared.page.gate, GW_NO_PAGE, __ATOMIC_RELEASE);
}

/* Checks the pages at another address first: as soon as they are mapped at their own,
 * threads use them. */
static bool pages_are_valid(int page_fd, int status_fd) {
  if (!is_sealed(page_fd, GW_PAGE_SIZE) || !is_sealed(status_fd, GW_STATUS_SIZE)) return false;
  struct gw_page *p = (void *)gw_sys(SYS_mmap, 0, GW_PAGE_SIZE, PROT_READ, MAP_SHARED, page_fd, 0);
  if ((long)p < 0 && (long)p > -4096) return false;
  bool ok = p->magic == GW_MAGIC && p->abi >= GW_ABI_LOWEST && p->abi <= GW_ABI && p->size == GW_PAGE_SIZE;
  GW_SYS_2(SYS_munmap, p, GW_PAGE_SIZE);
  struct gw_status *s = (void *)gw_sys(SYS_mmap, 0, GW_STATUS_SIZE, PROT_READ, MAP_SHARED, status_fd, 0);
  if ((long)s < 0 && (long)s > -4096) return false;
  ok = ok && s->magic == GW_MAGIC && s->abi > 0 && s->abi <= GW_ABI;
  GW_SYS_2(SYS_munmap, s, GW_STATUS_SIZE);
  return ok;
}

/* Whether fd is the daemon's eventfd: a file without a type, with the doorbell's flags. A
 * write to it neither waits nor raises SIGPIPE. */
static bool is_doorbell(int fd) {
  struct stat s;
  return GW_SYS_2(SYS_fcntl, fd, F_GETFL) == GW_DOORBELL_FLAGS && GW_SYS_2(SYS_fstat, fd, &s) == 0 &&
         (s.st_mode & S_IFMT) == 0;
}

/* Logs why there is no page. */
static void log_failure(int reason) {
  switch (reason) {
  case GW_NO_DAEMON: gw_log("no daemon; running without giveway"); break;
  case GW_WRONG_USER:
    gw_log_always("the daemon's socket belongs to another user, neither root nor this one; running without giveway");
    break;
  case GW_TIMEOUT: gw_log("the daemon does not answer; running without giveway"); break;
  default: gw_log("the daemon refused a page, or sent one of an unknown version; running without giveway");
  }
}

/* Makes one attempt to attach, with attach_lock held, and sets retry_ns. */
static void attach(const char *runtime) {
  int fds[3];
  int fd = gw_connect(runtime, fds);
  if (fd < 0) {
    /* A daemon that hangs costs 250 ms at each attempt. */
    if (fd == GW_TIMEOUT && retry_ns < MAX_RETRY_NS) retry_ns *= 2;
    if (fd == GW_NO_DAEMON) retry_ns = RETRY_NS;
    log_failure(fd);
    return;
  }
  if (pages_are_valid(fds[0], fds[1]) && is_doorbell(fds[2]) && map(&status, fds[1], PROT_READ) &&
      (wake_sleepers(), map(&gw_shared, fds[0], PROT_READ | PROT_WRITE))) {
    conn = move_fd_up(fd);
    owner_pid = this_pid();
    __atomic_store_n(&doorbell, move_fd_up(fds[2]), __ATOMIC_RELEASE);
    cookie = cookie_of(conn);
    GW_SYS_1(SYS_close, fds[0]);
    GW_SYS_1(SYS_close, fds[1]);
    retry_ns = RETRY_NS;
    gw_activity_publish();
    gw_kfd_publish();
    __atomic_store_n(&gw_attached, 1, __ATOMIC_RELEASE);
    count_page_change();
    return;
  }
  unmap();
  for (int i = 0; i < 3; i++) GW_SYS_1(SYS_close, fds[i]);
  GW_SYS_1(SYS_close, fd);
  log_failure(GW_REFUSED);
}

/* Closes the connection and the doorbell, unless the program has reused their numbers. */
static void close_connection(void) {
  bool ours = !cookie || cookie_of(conn) == cookie;
  int last = __atomic_exchange_n(&doorbell, -1, __ATOMIC_SEQ_CST);
  if (ours) {
    GW_SYS_1(SYS_close, conn);
    if (is_doorbell(last)) GW_SYS_1(SYS_close, last);
  }
  conn = -1;
}

/* Says that the library leaves the program alone, before it does: after that it logs nothing. */
static void log_leave(enum gw_filters why, bool attached) {
  if (why == GW_INHERITED) {
    gw_log_always("the program was started under a seccomp filter that may forbid what giveway needs, or "
                  "without /proc, which would show that; it runs without giveway. Start it with 'giveway run', which tries the calls");
  } else if (attached) {
    gw_log_always("the program restricts its own system calls; it runs without giveway from now on");
  } else {
    gw_log("the program restricts its own system calls; running without giveway");
  }
}

/* With attach_lock held. A daemon that cannot be told, because the filters may forbid it, sees
 * an idle process. */
static void leave(enum gw_filters why, bool may_call) {
  bool attached = gw_page_attached();
  log_leave(why, attached);
  __atomic_store_n(&gw_ended, 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&gw_attached, 0, __ATOMIC_RELEASE);
  if (!attached) return;
  GW_WRITE(completed, GW_READ(launched));
  GW_WRITE(open_requests, 0);
  GW_WRITE(flags, 0);
  wake_sleepers();
  unmap();
  if (may_call) close_connection();
  else __atomic_store_n(&doorbell, -1, __ATOMIC_SEQ_CST);
}

void gw_page_leave(enum gw_filters why) {
  gw_lock(&attach_lock);
  leave(why, true);
  gw_unlock(&attach_lock);
}

/* Leaves for good if the filters may forbid the system calls of an attempt to attach, or of a
 * check. With attach_lock held. */
static bool may_call(void) {
  enum gw_filters filters = gw_filters_now();
  if (filters != GW_PERMITTED) leave(filters, false);
  return filters == GW_PERMITTED;
}

bool gw_page_attach(const char *runtime) {
  if (gw_page_attached()) return true;
  if (gw_now_coarse() < __atomic_load_n(&next_check_ns, __ATOMIC_RELAXED)) return false;
  /* Other threads that come here wait for the answer too, because it decides whether they are
   * held. */
  gw_lock(&attach_lock);
  if (!gw_page_attached() && gw_now_coarse() >= next_check_ns) {
    if (may_call()) attach(runtime);
    __atomic_store_n(&next_check_ns, gw_now_coarse() + retry_ns, __ATOMIC_RELAXED);
  }
  gw_unlock(&attach_lock);
  if (!gw_page_attached()) return false;
  gw_kfd_attached();
  return true;
}

/* Whether the daemon has closed the connection, or the program has closed one of the
 * library's descriptors, or this is a child process that ran no fork handler. */
static bool disconnected(void) {
  if (this_pid() != owner_pid || !is_doorbell(__atomic_load_n(&doorbell, __ATOMIC_RELAXED))) return true;
  if (cookie && cookie_of(conn) != cookie) return true;
  char c;
  long r = gw_sys(SYS_recvfrom, conn, (long)&c, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);
  return r == 0 || (r < 0 && r != -EAGAIN && r != -EINTR);
}

void gw_page_check(uint64_t now) {
  if (now < __atomic_load_n(&next_check_ns, __ATOMIC_RELAXED) || !gw_page_attached()) return;
  if (!gw_trylock(&attach_lock)) return;
  if (gw_page_attached() && now >= next_check_ns && may_call()) {
    uint64_t next = now + RETRY_NS;
    if (disconnected()) {
      __atomic_store_n(&gw_attached, 0, __ATOMIC_RELEASE);
      wake_sleepers();
      unmap();
      close_connection();
      next = now; /* a new daemon may be there already */
      gw_log("the daemon has closed the connection");
    }
    __atomic_store_n(&next_check_ns, next, __ATOMIC_RELAXED);
  }
  gw_unlock(&attach_lock);
}

void gw_page_ring(void) {
  gw_page_check(gw_now_coarse()); /* the doorbell's number may have been reused */
  /* The caller has incremented page.doorbell before, and the daemon sets asleep before it
   * reads all doorbells for the last time. Both are sequentially consistent, so at least one
   * of the two sees the other. */
  if (!__atomic_load_n(&status.status.asleep, __ATOMIC_SEQ_CST)) return;
  int fd = __atomic_load_n(&doorbell, __ATOMIC_RELAXED);
  uint64_t one = 1;
  if (fd >= 0) GW_SYS_3(SYS_write, fd, &one, sizeof one);
}

/* After vfork the child shares this memory but has its own descriptors. */
int gw_page_closing(unsigned first, unsigned last) {
  int fd = __atomic_load_n(&doorbell, __ATOMIC_ACQUIRE);
  if (fd < 0 || (unsigned)fd < first || (unsigned)fd > last || this_pid() != owner_pid) return -1;
  int ours = fd;
  return __atomic_compare_exchange_n(&doorbell, &fd, -1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED) ? ours : -1;
}

void gw_page_not_closed(int fd) {
  int none = -1;
  __atomic_compare_exchange_n(&doorbell, &none, fd, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

void gw_page_forked(void) {
  bool mapped = GW_READ(magic) != 0; /* even if the fork interrupted an attempt to attach */
  __atomic_store_n(&gw_attached, 0, __ATOMIC_RELEASE);
  if (mapped) {
    unmap();
    if (conn >= 0 && gw_filters_now() == GW_PERMITTED) close_connection();
  }
  conn = doorbell = -1;
  next_check_ns = 0;
  retry_ns = RETRY_NS;
  attach_lock = (gw_lock_t){0};
}

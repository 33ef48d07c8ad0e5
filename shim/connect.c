/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "connect.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "abi.h"
#include "env.h"
#include "sys.h"

#define ANSWER_TIMEOUT_NS (250 * GW_MS_NS) /* long, because the machine may be busy */
#define SYSTEM_SOCKET "/run/giveway/giveway.sock"
#define OVERFLOW_USER 65534 /* shown for a user that has no number in a user namespace */

/*
 * Whether the process that listens may be trusted: it is root's or of this process's user. Any
 * other user could have made a socket in a folder such as /tmp, and its page could hold this
 * process for ever. In a user namespace root may have no number; only the machine's socket is
 * then taken for root's, because only root can make it.
 */
static bool is_trusted(int fd, const char *path) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (gw_sys(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, (long)&peer, (long)&size, 0) < 0) return false;
  if (peer.uid == 0 || (long)peer.uid == gw_sys(SYS_geteuid, 0, 0, 0, 0, 0, 0)) return true;
  return peer.uid == OVERFLOW_USER && strcmp(path, SYSTEM_SOCKET) == 0;
}

/* Connects without waiting: a unix socket accepts at once or not at all. */
static int dial(const char *path) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  size_t n = strlen(path);
  if (n == 0 || n >= sizeof to.sun_path) return GW_NO_DAEMON;
  memcpy(to.sun_path, path, n);
  int fd = (int)GW_SYS_3(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return GW_NO_DAEMON;
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
  int result = GW_NO_DAEMON;
  if (GW_SYS_3(SYS_connect, fd, &to, size) == 0) {
    if (is_trusted(fd, path)) return fd;
    result = GW_WRONG_USER;
  }
  GW_SYS_1(SYS_close, fd);
  return result;
}

/* Tries the daemon's sockets in the order in which the commands do. */
static int dial_any(void) {
  const struct gw_env *env = gw_env();
  if (*env->socket) return dial(env->socket);
  int fd = dial(SYSTEM_SOCKET);
  const char *dir = env->runtime_dir;
  if (fd >= 0 || *dir != '/') return fd;
  char own[GW_MAX_PATH + 1] = "";
  static const char name[] = "/giveway.sock";
  size_t n = strlen(dir);
  if (n + sizeof name > sizeof own) return fd;
  memcpy(own, dir, n);
  memcpy(own + n, name, sizeof name);
  int second = dial(own);
  return second == GW_NO_DAEMON ? fd : second;
}

_Static_assert(GW_ABI_LOWEST < 10 && GW_ABI < 10, "a version in the hello is one digit");

static bool send_hello(int fd, const char *runtime) {
  static const char head[] = "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n"
                             "Giveway-Abi: L\r\nGiveway-Abi-Max: H\r\nGiveway-Runtime: ";
  char text[sizeof head + 32];
  size_t n = sizeof head - 1, m = strlen(runtime);
  if (m > 16) return false;
  memcpy(text, head, n);
  text[n - sizeof "L\r\nGiveway-Abi-Max: H\r\nGiveway-Runtime: " + 1] = '0' + GW_ABI_LOWEST;
  text[n - sizeof "H\r\nGiveway-Runtime: " + 1] = '0' + GW_ABI;
  memcpy(text + n, runtime, m);
  memcpy(text + n + m, "\r\n\r\n", 4);
  n += m + 4;
  return gw_sys(SYS_sendto, fd, (long)text, (long)n, MSG_NOSIGNAL | MSG_DONTWAIT, 0, 0) == (long)n;
}

/* Waits until there is something to read. Returns 0, GW_TIMEOUT or GW_REFUSED. */
static int wait_for_answer(int fd) {
  uint64_t until = gw_now() + ANSWER_TIMEOUT_NS;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  for (;;) {
    uint64_t now = gw_now();
    if (now >= until) return GW_TIMEOUT;
    struct timespec left = {0, (long)(until - now)};
    long r = gw_sys(SYS_ppoll, (long)&p, 1, (long)&left, 0, 0, 0);
    if (r > 0) return 0;
    if (r < 0 && r != -EINTR) return GW_REFUSED;
  }
}

/* Reads the answer. Returns whether it came with the three descriptors. */
static bool receive_answer(int fd, int fds[3]) {
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
  static const char accepted[] = "HTTP/1.1 101";
  if (n >= (long)sizeof accepted - 1 && memcmp(text, accepted, sizeof accepted - 1) == 0 && count == 3) return true;
  while (count > 0) GW_SYS_1(SYS_close, fds[--count]);
  return false;
}

int gw_connect(const char *runtime, int fds[3]) {
  int fd = dial_any();
  if (fd < 0) return fd;
  int failed = send_hello(fd, runtime) ? wait_for_answer(fd) : GW_REFUSED;
  if (!failed && receive_answer(fd, fds)) return fd;
  GW_SYS_1(SYS_close, fd);
  return failed ? failed : GW_REFUSED;
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
// Tests which process may control the queues of which other process, and which input is refused: the rows that
// the conformance table cannot have, because they need processes with unusual credentials and requests of unusual
// sizes. It prints one line per row, "name: answer". The exit status is 1 if an answer differs from ABI.md.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct queues_args {
  uint64_t queues_ptr;
  uint32_t num_queues, pid, grace_period, flags;
};

struct queue {
  uint32_t gpu_id, queue_id;
  int32_t status;
  uint32_t pad;
};

struct reservation_args {
  uint32_t gpu_id, reserved_slots, min_priority, flags, num_slots, active_slots;
};

#define UNMAP _IOWR('K', 0xf0, struct queues_args)
#define REMAP _IOWR('K', 0xf1, struct queues_args)
#define RESERVE _IOWR('K', 0xf2, struct reservation_args)
#define PTRACE_CAP (1u << CAP_SYS_PTRACE)
#define ADMIN_CAP (1u << CAP_SYS_ADMIN)
#define ALL_CAPS ~0u  // the capabilities of root
#define DEFAULT_GRACE 0xffffffffu

static int wrong;

static void row(const char *name, int got, int want) {
  printf("%s: %s\n", name, got > 0 ? strerrorname_np(got) : got < 0 ? "no answer" : "ok");
  if (got != want) {
    printf("  want %s\n", want ? strerrorname_np(want) : "ok");
    wrong = 1;
  }
  fflush(stdout);
}

// The credentials of a process that was started by root.
struct identity {
  unsigned uid, gid;
  uint32_t caps;  // of the first 32 capabilities
  bool hidden;    // not dumpable
  bool new_user;  // in a user namespace of its own
  // The id that stays 0.
  enum { NONE, REAL_USER, EFFECTIVE_USER, SAVED_USER, REAL_GROUP, EFFECTIVE_GROUP, SAVED_GROUP } kept;
};

static void become(struct identity id) {
  struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2] = {{id.caps, id.caps, 0}};
  prctl(PR_SET_KEEPCAPS, 1);
  if (setgroups(0, NULL)) _exit(199);
  unsigned user[] = {id.uid, id.uid, id.uid}, group[] = {id.gid, id.gid, id.gid};
  if (id.kept >= REAL_GROUP)
    group[id.kept - REAL_GROUP] = 0;
  else if (id.kept >= REAL_USER)
    user[id.kept - REAL_USER] = 0;
  if (setresgid(group[0], group[1], group[2])) _exit(200);
  if (setresuid(user[0], user[1], user[2])) _exit(201);
  if (id.caps != ALL_CAPS && syscall(SYS_capset, &head, data)) _exit(202);
  if (id.new_user && unshare(CLONE_NEWUSER)) _exit(203);
  // A change of credentials makes a process not dumpable.
  if (prctl(PR_SET_DUMPABLE, !id.hidden)) _exit(204);
}

static pid_t started[64];
static int num_started;

static void *sleeper(void *arg) {
  int tid = (int)syscall(SYS_gettid);
  if (write(*(int *)arg, &tid, sizeof tid) != sizeof tid) _exit(205);
  for (;;) pause();
  return NULL;
}

// Starts a process that uses KFD. It has a second thread, whose id is stored in *tid.
static pid_t target(struct identity id, int *tid) {
  int ready[2], second = 0;
  if (pipe(ready)) exit(2);
  pid_t pid = fork();
  if (pid == 0) {
    pthread_t t;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    become(id);
    if (open("/dev/kfd", O_RDWR | O_CLOEXEC) < 0) _exit(206);
    if (pthread_create(&t, NULL, sleeper, &ready[1])) _exit(207);
    for (;;) pause();
  }
  close(ready[1]);
  if (read(ready[0], &second, sizeof second) != sizeof second) {
    fprintf(stderr, "a target did not start\n");
    exit(2);
  }
  close(ready[0]);
  started[num_started++] = pid;
  if (tid) *tid = second;
  return pid;
}

// Returns the answer to a call of a process with the given credentials: 0 or an errno.
static int answer(struct identity id, unsigned long request, void *arg) {
  int status;
  pid_t pid = fork();
  if (pid == 0) {
    become(id);
    int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
    if (fd < 0) _exit(206);
    _exit(ioctl(fd, request, arg) < 0 ? errno : 0);
  }
  if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

static int may(struct identity id, int pid) {
  struct queues_args args = {.pid = (uint32_t)pid};
  return answer(id, UNMAP, &args);
}

static const struct identity root = {0, 0, ALL_CAPS, false, false, NONE};
static const struct identity alice = {1000, 1000, 0, false, false, NONE};

static void permissions(void) {
  struct identity bob = {1001, 1001, 0, false, false, NONE};
  struct identity hidden = alice, other_group = {1000, 1001, 0, false, false, NONE};
  struct identity bare_root = {0, 0, 0, false, false, NONE}, namespaced = bob;
  struct identity tracer = bob, admin = bob;
  int tid;
  hidden.hidden = true;
  namespaced.new_user = true;
  tracer.caps = PTRACE_CAP;
  admin.caps = ADMIN_CAP;
  pid_t open_one = target(alice, &tid), hidden_one = target(hidden, NULL), roots = target(root, NULL);

  row("same user and group", may(alice, open_one), 0);
  row("same user, other group", may(other_group, open_one), EPERM);
  row("same user, the target is not dumpable", may(alice, hidden_one), EPERM);
  const char *kept[] = {"",           "real user",       "effective user", "saved user",
                        "real group", "effective group", "saved group"};
  for (int k = REAL_USER; k <= SAVED_GROUP; k++) {
    struct identity half = alice;
    char name[64];
    half.kept = k;
    snprintf(name, sizeof name, "same user, the target's %s is root's", kept[k]);
    row(name, may(alice, target(half, NULL)), EPERM);
  }
  row("other user", may(bob, open_one), EPERM);
  row("other user, the target is root's", may(alice, roots), EPERM);
  row("other user, in a namespace where it is root", may(namespaced, open_one), EPERM);
  row("other user with CAP_SYS_PTRACE", may(tracer, open_one), 0);
  row("other user with CAP_SYS_PTRACE, not dumpable", may(tracer, hidden_one), 0);
  row("other user with CAP_SYS_ADMIN", may(admin, open_one), EPERM);
  row("root", may(root, open_one), 0);
  row("root, not dumpable", may(root, hidden_one), 0);
  row("root without capabilities", may(bare_root, open_one), EPERM);
  row("root without capabilities, the target is root's", may(bare_root, roots), 0);
  row("the caller's own process, as pid 0", may(bob, 0), 0);
  row("a thread that is not the leader", may(root, tid), ESRCH);
  row("process 1, without KFD", may(root, 1), ESRCH);
  row("process 1, without KFD, as another user", may(alice, 1), EPERM);
  row("a negative pid", may(root, -1), ESRCH);

  struct reservation_args r = {0};
  row("reserve with CAP_SYS_PTRACE", answer(tracer, RESERVE, &r), EPERM);
  row("reserve with CAP_SYS_ADMIN", answer(admin, RESERVE, &r), ENODEV);
  row("reserve as root of a namespace", answer(namespaced, RESERVE, &r), EPERM);

  pid_t dead = fork();
  if (dead == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, (id_t)dead, &info, WEXITED | WNOWAIT);
  row("a zombie process", may(root, dead), ESRCH);
  waitpid(dead, NULL, 0);
}

static int call(int fd, unsigned long request, void *arg) { return ioctl(fd, request, arg) < 0 ? errno : 0; }

static void sizes(int fd) {
  char big[4096] = {0};
  row("number 0xef", call(fd, _IOWR('K', 0xef, struct queues_args), big), ENOTTY);
  row("number 0xf3", call(fd, _IOWR('K', 0xf3, struct queues_args), big), ENOTTY);
  row("number 0xff", call(fd, _IOWR('K', 0xff, struct queues_args), big), ENOTTY);
  for (int nr = 0xf0; nr <= 0xf2; nr++) {
    char name[64];
    int base = 'K';
    unsigned sizes[] = {0, 8, 20, 23, 25, 32, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      snprintf(name, sizeof name, "number %#x with %u bytes", nr, sizes[i]);
      row(name, call(fd, _IOC(_IOC_READ | _IOC_WRITE, base, nr, sizes[i]), big), EINVAL);
    }
    snprintf(name, sizeof name, "number %#x with read direction only", nr);
    row(name, call(fd, _IOC(_IOC_READ, base, nr, 24), big), EINVAL);
    snprintf(name, sizeof name, "number %#x of another type", nr);
    row(name, call(fd, _IOC(_IOC_READ | _IOC_WRITE, 'X', nr, 24), big), EINVAL);
    snprintf(name, sizeof name, "number %#x from a bad address", nr);
    row(name, call(fd, _IOC(_IOC_READ | _IOC_WRITE, base, nr, 24), (void *)16), EFAULT);
  }
}

static void arguments(int fd) {
  struct queues_args args = {0};
  for (unsigned long g = 254; g <= 257; g++) {
    char name[64];
    args.grace_period = (uint32_t)g;
    snprintf(name, sizeof name, "a grace period of %lu", g);
    row(name, call(fd, UNMAP, &args), g > 255 ? EINVAL : 0);
  }
  args.grace_period = DEFAULT_GRACE;
  row("the default grace period", call(fd, UNMAP, &args), 0);

  static struct queue all[1025];
  args.queues_ptr = (uintptr_t)all;
  args.num_queues = 1024;
  for (int i = 0; i < 1024; i++) all[i].queue_id = (uint32_t)i;
  row("1024 entries", call(fd, UNMAP, &args), 0);
  int missing = 0;
  for (int i = 0; i < 1024; i++) missing += all[i].status == -ENOENT;
  row("1024 entries, each with a status", missing == 1024 ? 0 : -1, 0);
  args.num_queues = 1025;
  row("1025 entries", call(fd, UNMAP, &args), EINVAL);
  args.num_queues = UINT32_MAX;
  row("4294967295 entries", call(fd, UNMAP, &args), EINVAL);

  // The second entry begins on one page and ends on the next, which is read-only or not mapped.
  char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct queue *edge = (struct queue *)(two + 4096 - 24);
  args.queues_ptr = (uintptr_t)edge;
  args.num_queues = 2;
  edge->status = 77;
  mprotect(two + 4096, 4096, PROT_READ);
  row("an array whose end is read-only", call(fd, UNMAP, &args), EFAULT);
  row("an array whose end is read-only, first entry unchanged", edge->status == 77 ? 0 : -1, 0);
  munmap(two + 4096, 4096);
  row("an array whose end is not mapped, with a grace period", call(fd, REMAP, &args), EINVAL);
  args.grace_period = 0;
  row("an array whose end is not mapped", call(fd, REMAP, &args), EFAULT);
  args.queues_ptr = UINT64_MAX - 7;
  row("an array at the end of the address space", call(fd, REMAP, &args), EFAULT);
}

// Uses a file that was opened before exec.
static void after_exec(const char *me) {
  int status = 0;
  pid_t pid = fork();
  if (pid == 0) {
    char fd[16];
    snprintf(fd, sizeof fd, "%d", open("/dev/kfd", O_RDWR));
    execl(me, me, "use", fd, (char *)NULL);
    _exit(207);
  }
  waitpid(pid, &status, 0);
  row("a file opened before exec", WIFEXITED(status) ? WEXITSTATUS(status) : -1, EBADF);
}

static int use(int fd) {
  struct queues_args args = {0};
  return call(fd, UNMAP, &args);
}

// Kills controllers during their calls. Without a GPU no queue can stay stopped, but locks and references can be
// left behind.
static void killed(void) {
  static struct queue some[64];
  struct queues_args args = {.queues_ptr = (uintptr_t)some, .num_queues = 64};
  args.pid = (uint32_t)target(root, NULL);
  for (int i = 0; i < 50; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
      for (;;) {
        args.grace_period = 0;
        ioctl(fd, UNMAP, &args);
        ioctl(fd, REMAP, &args);
      }
    }
    usleep(2000);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
  }
  row("after 50 controllers were killed", may(root, (int)args.pid), 0);

  // The target dies during the call.
  for (int i = 0; i < 10; i++) {
    pid_t victim = target(root, NULL), caller = fork();
    if (caller == 0) {
      int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
      args.pid = (uint32_t)victim;
      while (ioctl(fd, UNMAP, &args) >= 0)
        ;
      _exit(errno);
    }
    usleep(2000);
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    int status;
    waitpid(caller, &status, 0);
    started[--num_started] = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != ESRCH) {
      row("a target that dies during the call", WIFEXITED(status) ? WEXITSTATUS(status) : -1, ESRCH);
      return;
    }
  }
  row("a target that dies during the call, 10 times", ESRCH, ESRCH);
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "use") == 0) return use(atoi(argv[2]));
  int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    perror("/dev/kfd");
    return 2;
  }
  if (use(fd) == ENOTTY) {
    printf("a stock driver: ENOTTY\n");
    return 0;
  }
  sizes(fd);
  arguments(fd);
  permissions();
  after_exec(argv[0]);
  killed();
  for (int i = 0; i < num_started; i++) kill(started[i], SIGKILL);
  while (wait(NULL) > 0)
    ;
  return wrong;
}

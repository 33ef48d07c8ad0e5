/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program, for fakecuda.c, that installs a seccomp filter.
 *
 *     filter WHEN HOW ACTION CALL
 *
 * WHEN    start   before its first launch
 *         later   after a launch
 *         thread  in a second thread, which launches too
 *         fork    after a launch, and then a child launches too
 *         exec    before it calls exec; the program that runs then installs none
 *         none    never
 * HOW     prctl   by prctl alone
 *         libc    by prctl and syscall, as libseccomp does
 *         raw     by system-call instructions of its own
 * ACTION  process, thread, trap, errno: what happens to the process at a forbidden call
 * CALL    the forbidden call; others: all but the few that the program itself makes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned U;
static int (*cuInit)(U), (*cuStreamCreate)(void **, U), (*cuStreamSynchronize)(void *);
static int (*launch_kernel)(void *, U, U, U, U, U, U, U, void *, void **, void **);
static const char *when, *how, *action, *forbidden;

static void fail(const char *why) {
  printf("%s\n", why);
  fflush(stdout);
  _exit(1);
}

static const struct {
  const char *name;
  int number;
} calls[] = {
    {"socket", SYS_socket},         {"connect", SYS_connect},   {"sendto", SYS_sendto},
    {"recvmsg", SYS_recvmsg},       {"recvfrom", SYS_recvfrom}, {"getsockopt", SYS_getsockopt},
    {"ppoll", SYS_ppoll},           {"fcntl", SYS_fcntl},       {"lseek", SYS_lseek},
    {"membarrier", SYS_membarrier}, {"getpid", SYS_getpid},     {"geteuid", SYS_geteuid},
    {"openat", SYS_openat},         {"fstat", SYS_fstat},       {"prlimit64", SYS_prlimit64},
    {"nothing", 4000},
};

/* What the program and the fake driver call once all is set up. */
static const int needed[] = {
    SYS_read,         SYS_write,           SYS_futex,     SYS_mmap,         SYS_munmap,          SYS_mprotect,
    SYS_madvise,      SYS_brk,             SYS_exit,      SYS_exit_group,   SYS_rt_sigreturn,    SYS_rt_sigprocmask,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_sched_yield,
};

static uint32_t action_value(void) {
  if (strcmp(action, "process") == 0) return SECCOMP_RET_KILL_PROCESS;
  if (strcmp(action, "thread") == 0) return SECCOMP_RET_KILL_THREAD;
  if (strcmp(action, "trap") == 0) return SECCOMP_RET_TRAP;
  return SECCOMP_RET_ERRNO | EPERM;
}

/* One instruction loads the number, two decide about each listed call, and one about the rest. */
static struct sock_fprog make_filter(void) {
  static struct sock_filter code[64];
  unsigned short n = 0;
  int others = strcmp(forbidden, "others") == 0;
  uint32_t listed = others ? SECCOMP_RET_ALLOW : action_value(), rest = others ? action_value() : SECCOMP_RET_ALLOW;
  code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
#define LIST(number)                                                                       \
  do {                                                                                     \
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);     \
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);                     \
  } while (0)
  int found = others;
  for (size_t i = 0; others && i < sizeof needed / sizeof *needed; i++) LIST((uint32_t)needed[i]);
  for (size_t i = 0; !others && i < sizeof calls / sizeof *calls; i++) {
    if (strcmp(calls[i].name, forbidden) != 0) continue;
    LIST((uint32_t)calls[i].number);
    found = 1;
  }
  if (!found) fail("unknown call");
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, rest);
  return (struct sock_fprog){n, code};
}

static long raw(long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
  long r;
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
  __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return r;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                x3 __asm__("x3") = d, x4 __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
#endif
}

static void install(void) {
  struct sock_fprog filter = make_filter();
  long r;
  if (strcmp(how, "raw") == 0) {
    raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    r = raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&filter, 0, 0);
  } else {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (strcmp(how, "libc") == 0) r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
    else r = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
  }
  if (r != 0) fail("cannot install the filter");
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *stream;
static uint64_t launched;

static uint64_t done;
static void kernel(uint64_t *words) { __atomic_add_fetch((uint64_t *)words[0], 1, __ATOMIC_RELAXED); }

static void launch(void) {
  uint64_t words = 1, address = (uint64_t)&done;
  void *params[] = {&words, &address};
  if (launch_kernel((void *)kernel, 1, 2, 3, 4, 5, 6, 7, stream, params, NULL)) fail("launch");
  launched++;
}

/* Launches for a while, at least once. */
static void launch_for(uint64_t ns) {
  uint64_t until = now() + ns;
  do {
    launch();
    if (cuStreamSynchronize(stream)) fail("synchronize");
  } while (now() < until);
}

static void *filtered_thread(void *unused) {
  install();
  launch_for(1300000000);
  return unused;
}

static void child(void) {
  pid_t pid = fork();
  if (pid == 0) {
    if (cuStreamCreate(&stream, 1)) fail("stream");
    for (int i = 0; i < 4; i++) launch(); /* the child has none of the driver's threads and cannot wait */
    _exit(0);
  }
  int status;
  if (waitpid(pid, &status, 0) != pid || status != 0) fail("the child was killed");
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  when = argv[1], how = argv[2], action = argv[3], forbidden = argv[4];
  if (strcmp(when, "exec") == 0) {
    install();
    argv[1] = "none";
    execv((const char *)getauxval(AT_EXECFN), argv); /* works without /proc too */
    fail("exec");
  }
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) fail("no driver");
  *(void **)&cuInit = dlsym(lib, "cuInit");
  *(void **)&cuStreamCreate = dlsym(lib, "cuStreamCreate");
  *(void **)&cuStreamSynchronize = dlsym(lib, "cuStreamSynchronize");
  *(void **)&launch_kernel = dlsym(lib, "cuLaunchKernel");
  cuInit(0);
  if (cuStreamCreate(&stream, 0) || cuStreamSynchronize(stream)) fail("stream"); /* and starts all threads */
  printf("begun\n");
  fflush(stdout);
  if (strcmp(when, "start") != 0) launch_for(0);
  if (strcmp(when, "thread") == 0) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, filtered_thread, NULL) || pthread_join(thread, NULL)) fail("thread");
  } else if (strcmp(when, "none") != 0) {
    install();
  }
  launch_for(strcmp(when, "none") == 0 ? 0 : 1300000000); /* longer than the library goes between two checks */
  if (strcmp(when, "fork") == 0) child();
  if (done != launched) fail("a kernel did not run");
  printf("ok done=%llu\n", (unsigned long long)done);
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bare wake-up between two processes on two CPUs: one writes to an eventfd, the
 * other waits for it in epoll_wait. Prints how long each took, in nanoseconds.
 *
 *     wake COUNT PAUSE_US
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set); /* where it may not, it may be anywhere */
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int count = atoi(argv[1]), pause_us = atoi(argv[2]);
  volatile uint64_t *sent = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int bell = eventfd(0, EFD_NONBLOCK), epoll = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN | EPOLLET};
  if (sent == MAP_FAILED || bell < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &e)) return 1;
  pid_t child = fork();
  stay_on(child == 0);
  if (child == 0) {
    for (;;) { /* two that come close together are one */
      if (epoll_wait(epoll, &e, 1, -1) != 1) _exit(1);
      uint64_t at = now(), from = *sent;
      if (from == 0) break;
      printf("%llu\n", (unsigned long long)(at > from ? at - from : 0));
    }
    fflush(stdout);
    _exit(0);
  }
  struct timespec pause = {0, pause_us * 1000L};
  for (int i = 0; i <= count; i++) {
    uint64_t one = 1;
    nanosleep(&pause, NULL);
    *sent = i < count ? now() : 0;
    if (write(bell, &one, sizeof one) != sizeof one) return 1;
  }
  int status;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

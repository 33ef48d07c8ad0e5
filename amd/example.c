/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * Stops all compute queues of a process for 100 ms: in one call of the driver if it has
 * giveway's patch, otherwise through the daemon.
 *
 *   cc -o example example.c giveway_amd.c -pthread && ./example PID
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "giveway_amd.h"

/* Prints what failed and returns -1; prints nothing and returns n if n is not an error. */
static int check(const char *what, int n) {
  if (n >= 0) return n;
  fprintf(stderr, "%s: %s\n", what, strerror(-n));
  return -1;
}

/* Copies the queues of one process to found, which has room for GW_AMD_MAX_QUEUES. */
static int queues_of(gw_amd *amd, int pid, gw_amd_queue *found) {
  static gw_amd_queue all[65536];
  int room = (int)(sizeof all / sizeof all[0]), count = 0;
  int n = gw_amd_list(amd, all, (size_t)room);
  if (n < 0) return n;
  for (int i = 0; i < n && i < room && count < GW_AMD_MAX_QUEUES; i++)
    if (all[i].pid == pid) found[count++] = all[i];
  return count > 0 ? count : -ESRCH;
}

static int by_driver(gw_amd *amd, int pid, gw_amd_queue *queues, int n, int unmapped) {
  printf("unmapped %d\n", unmapped);
  usleep(100000);
  int remapped = check("remap", gw_amd_remap(amd, pid, queues, (size_t)n));
  if (remapped < 0) return -1;
  printf("remapped %d\n", remapped);
  gw_amd_statistics s;
  gw_amd_stats(amd, &s);
  printf("unmapping took %llu ns\n", (unsigned long long)s.unmap.total_ns);
  return 0;
}

static int by_daemon(gw_amd *amd, int pid) {
  if (check("suspend", gw_amd_suspend(amd, pid)) < 0) return -1;
  printf("suspended\n");
  usleep(100000);
  if (check("resume", gw_amd_resume(amd, pid)) < 0) return -1;
  printf("resumed\n");
  return 0;
}

static int stop_for_a_moment(gw_amd *amd, int pid) {
  static gw_amd_queue queues[GW_AMD_MAX_QUEUES];
  int n = check("list the queues of the process", queues_of(amd, pid, queues));
  if (n < 0) return -1;
  printf("%d queues\n", n);
  int unmapped = gw_amd_unmap(amd, pid, queues, (size_t)n, GW_AMD_DEFAULT_GRACE);
  if (unmapped == -ENOTTY || unmapped == -EINVAL) return by_daemon(amd, pid); /* the driver does not have the patch */
  if (check("unmap", unmapped) < 0) return -1;
  return by_driver(amd, pid, queues, n, unmapped);
}

int main(int argc, char **argv) {
  int pid = argc == 2 ? atoi(argv[1]) : 0;
  if (pid <= 0) {
    fprintf(stderr, "usage: %s PID\n", argv[0]);
    return 2;
  }
  gw_amd_options paths = {.device = getenv("EXAMPLE_KFD"), .sysfs = getenv("EXAMPLE_SYS")};
  gw_amd *amd;
  if (check("make a handle", gw_amd_init(&amd, &paths)) < 0) return 1;
  int result = stop_for_a_moment(amd, pid);
  gw_amd_cleanup(amd);
  return result < 0;
}

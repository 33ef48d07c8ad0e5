/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * Takes all compute queues of a process off their GPUs for a moment, in one call, and puts
 * them back: through the driver where it has the patch, else through the daemon.
 *
 *   cc -o example example.c giveway_amd.c -pthread && ./example PID
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "giveway_amd.h"

static int of_process(gw_amd *amd, int pid, gw_amd_queue *mine) {
  static gw_amd_queue all[65536];
  int n = gw_amd_list(amd, all, sizeof all / sizeof all[0]), found = 0;
  if (n < 0) return n;
  for (int i = 0; i < n && i < (int)(sizeof all / sizeof all[0]) && found < GW_AMD_MOST; i++)
    if (all[i].pid == pid) mine[found++] = all[i];
  return found;
}

int main(int argc, char **argv) {
  int pid = argc == 2 ? atoi(argv[1]) : 0;
  if (pid <= 0) {
    fprintf(stderr, "usage: %s PID\n", argv[0]);
    return 2;
  }
  gw_amd_options where = {.device = getenv("EXAMPLE_KFD"), .sysfs = getenv("EXAMPLE_SYS")};
  gw_amd *amd;
  int came = gw_amd_init(&amd, &where);
  if (came) return 1;

  static gw_amd_queue queues[GW_AMD_MOST];
  int n = of_process(amd, pid, queues);
  printf("%d queues\n", n);
  came = n > 0 ? gw_amd_unmap(amd, pid, queues, (size_t)n, GW_AMD_DEFAULT_GRACE) : -ESRCH;
  if (came >= 0) {
    printf("unmapped %d\n", came);
    usleep(100000);
    printf("remapped %d\n", gw_amd_remap(amd, pid, queues, (size_t)n));
    gw_amd_statistics s;
    gw_amd_stats(amd, &s);
    printf("unmapping took %llu ns\n", (unsigned long long)s.unmap.total_ns);
  } else if (came == -ENOTTY) {
    came = gw_amd_suspend(amd, pid);
    printf("suspended: %s\n", came ? strerror(-came) : "yes");
    usleep(100000);
    if (!came) came = gw_amd_resume(amd, pid);
    printf("resumed: %s\n", came ? strerror(-came) : "yes");
  } else {
    fprintf(stderr, "%s\n", strerror(-came));
  }
  gw_amd_cleanup(amd);
  return came < 0;
}

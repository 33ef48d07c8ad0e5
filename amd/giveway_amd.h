/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A C library for programs that stop and start AMD compute queues themselves. Giveway
 * schedules processes without it.
 *
 * There are two groups of functions; either works without the other:
 *
 *   through the daemon   gw_amd_suspend, gw_amd_resume, gw_amd_processes, gw_amd_status.
 *                        They act on whole processes, on any driver that the daemon
 *                        supports. A suspended process stays suspended when the caller
 *                        exits.
 *   through the driver   gw_amd_unmap, gw_amd_remap, gw_amd_remap_all, gw_amd_reserve,
 *                        gw_amd_slots. They act on single queues, up to 1024 in one call,
 *                        and need a driver with giveway's patch (kernel/amdkfd).
 *                        gw_amd_cleanup and the exit of the caller undo all changes. For a
 *                        process that the daemon has stopped they return -EBUSY.
 *
 * gw_amd_list reads sysfs and needs neither.
 *
 * All functions return 0 or the value that their comment names, or -errno. They may be
 * called from any thread.
 *   -EINVAL                  invalid argument
 *   -ESRCH                   no such process, or it has no queues
 *   -EPERM                   the caller may not control the process
 *   -ENOENT, -ECONNREFUSED   no daemon, or no /dev/kfd
 *   -ENOTTY                  the driver does not have the patch
 *   -EPROTO                  malformed answer of the daemon
 *   -ETIMEDOUT               no answer of the daemon within ten seconds
 *   -EBADF                   the handle was made before a fork; a child needs its own
 * kernel/amdkfd/ABI.md lists the other errors of the driver.
 */
#ifndef GIVEWAY_AMD_H
#define GIVEWAY_AMD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gw_amd gw_amd;

/* Paths. NULL selects the default. */
typedef struct {
  const char *socket; /* of the daemon; NULL: the one that the giveway command uses */
  const char *device; /* NULL: /dev/kfd */
  const char *sysfs;  /* NULL: /sys */
} gw_amd_options;

/* A compute queue. */
typedef struct {
  int32_t pid;    /* set by gw_amd_list; the other functions ignore it */
  uint32_t gpu;   /* KFD's gpu_id */
  uint32_t queue; /* KFD's queue id, unique within the process */
  int32_t status; /* result of the last call for this queue: 0, or -errno */
} gw_amd_queue;

/* The largest number of queues in one call. */
#define GW_AMD_MAX_QUEUES 1024

/* The driver's default for how long running waves may continue before they are saved. */
#define GW_AMD_DEFAULT_GRACE 0xffffffffu

/* Use of the hardware queue slots (HQDs) of a GPU. */
typedef struct {
  uint32_t reserved; /* slots kept free of queues below priority */
  uint32_t priority; /* 0 to 15 */
  uint32_t total;    /* slots of the GPU */
  uint32_t active;   /* compute queues that are not stopped */
} gw_amd_slot_use;

/* Totals of one kind of call through a handle. */
typedef struct {
  uint64_t calls;
  uint64_t queues; /* in all calls */
  uint64_t failed; /* queues whose status is an error */
  uint64_t total_ns;
  uint64_t longest_ns;
} gw_amd_calls;

typedef struct {
  gw_amd_calls unmap, remap;
} gw_amd_statistics;

/* Makes a handle. It opens nothing yet. options may be NULL. */
int gw_amd_init(gw_amd **handle, const gw_amd_options *options);

/* Undoes all changes made through the driver and frees the handle. NULL is allowed. */
void gw_amd_cleanup(gw_amd *handle);

/*
 * Lists the compute queues of all processes, ordered by pid and queue id. It writes at most
 * room entries and returns how many queues there are.
 */
int gw_amd_list(gw_amd *handle, gw_amd_queue *queues, size_t room);

/* Ask the daemon to stop all queues of a process, and to start them again. */
int gw_amd_suspend(gw_amd *handle, int pid);
int gw_amd_resume(gw_amd *handle, int pid);

/*
 * Get the processes, a list like that in `giveway ps --json`, and the output of
 * `giveway doctor --json` from the daemon. As with snprintf, the text is cut to room bytes
 * including a terminating zero, and the length of the whole text is returned.
 */
int gw_amd_processes(gw_amd *handle, char *json, size_t room);
int gw_amd_status(gw_amd *handle, char *json, size_t room);

/*
 * gw_amd_unmap takes queues of a process off their GPUs and saves their running waves;
 * gw_amd_remap puts them back. pid 0 is the caller's process. Both return the number of
 * queues that are in the requested state, and set the status of each queue. grace is how
 * long running waves may continue, in units of 1000 GPU clock cycles: up to 255, or
 * GW_AMD_DEFAULT_GRACE.
 */
int gw_amd_unmap(gw_amd *handle, int pid, gw_amd_queue *queues, size_t count, uint32_t grace);
int gw_amd_remap(gw_amd *handle, int pid, gw_amd_queue *queues, size_t count);

/* Puts back all queues of a process, even into reserved slots, and returns their number. */
int gw_amd_remap_all(gw_amd *handle, int pid);

/*
 * gw_amd_reserve makes gw_amd_remap keep slots of a GPU free of queues below a priority;
 * 0 slots ends the reservation. It needs CAP_SYS_ADMIN and restricts gw_amd_remap only.
 * gw_amd_slots reports the use of the slots.
 */
int gw_amd_reserve(gw_amd *handle, uint32_t gpu, uint32_t slots, uint32_t priority);
int gw_amd_slots(gw_amd *handle, uint32_t gpu, gw_amd_slot_use *use);

/* Gets the totals of gw_amd_unmap and gw_amd_remap through this handle. */
int gw_amd_stats(gw_amd *handle, gw_amd_statistics *statistics);

#ifdef __cplusplus
}
#endif
#endif

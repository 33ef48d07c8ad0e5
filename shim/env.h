/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables of the environment, as they were when the library was loaded. Later the program may
 * change its environment while a launch on another thread reads it, and the C library has no lock
 * for that.
 */
#ifndef GIVEWAY_ENV_H
#define GIVEWAY_ENV_H

#include <stdbool.h>
#include <sys/un.h>

#pragma GCC visibility push(hidden)

#define GW_MAX_PATH sizeof((struct sockaddr_un *)0)->sun_path

struct gw_env {
  char socket[GW_MAX_PATH + 1];      /* GIVEWAY_SOCKET; a longer one is cut off, and too long for a socket */
  char runtime_dir[GW_MAX_PATH + 1]; /* XDG_RUNTIME_DIR */
  bool verbose;                      /* GIVEWAY_VERBOSE */
  bool launches_block;               /* CUDA_LAUNCH_BLOCKING: a launch returns when it is done */
};
const struct gw_env *gw_env(void);

/* Reads it again, on a thread on which the driver is about to do the same. */
void gw_env_read_launches_block(void);

#pragma GCC visibility pop

#endif

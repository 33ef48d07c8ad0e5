/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "env.h"

#include <stdlib.h>
#include <string.h>

static struct gw_env env;
static bool loaded;

static void copy(char to[GW_MAX_PATH + 1], const char *name) {
  const char *value = getenv(name);
  if (value) strncpy(to, value, GW_MAX_PATH);
}

static bool is_set(const char *name) {
  const char *value = getenv(name);
  return value && *value && strcmp(value, "0") != 0;
}

__attribute__((constructor)) static void load(void) {
  if (loaded) return;
  copy(env.socket, "GIVEWAY_SOCKET");
  copy(env.runtime_dir, "XDG_RUNTIME_DIR");
  env.verbose = is_set("GIVEWAY_VERBOSE");
  env.launches_block = is_set("CUDA_LAUNCH_BLOCKING");
  loaded = true;
}

void gw_env_read_launches_block(void) {
  if (is_set("CUDA_LAUNCH_BLOCKING")) __atomic_store_n(&env.launches_block, true, __ATOMIC_RELAXED);
}

const struct gw_env *gw_env(void) {
  if (__builtin_expect(!loaded, 0)) load(); /* the constructor of another library has launched something */
  return &env;
}

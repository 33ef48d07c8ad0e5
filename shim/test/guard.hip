// SPDX-License-Identifier: Apache-2.0
// guard.cu for AMD GPUs: hipcc --offload-arch=GPU -O2 -o guard guard.hip -pthread
#include "cuda_on_hip.h"

#include "guard.cu"

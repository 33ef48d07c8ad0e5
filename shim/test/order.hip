// SPDX-License-Identifier: Apache-2.0
// order.cu for AMD GPUs: hipcc --offload-arch=GPU -O2 -o order order.hip -pthread
#include "cuda_on_hip.h"

#include "order.cu"

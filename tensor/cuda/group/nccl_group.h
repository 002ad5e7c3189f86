// SPDX-License-Identifier: Apache-2.0
// Purpose: a group of GPUs of one process (tensor/group/group.h): small sums by a kernel over each other's memory, large ones by NCCL.
#pragma once

#include "tensor/group/group.h"

extern const struct sl_group_ops sl_group_nccl;

// SPDX-License-Identifier: Apache-2.0
// Purpose: a group of GPUs of one process that gathers with ncclAllGather.
#pragma once

#include "engine/tensor/group.h"

extern const struct sl_group_ops sl_group_nccl;

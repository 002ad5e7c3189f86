// SPDX-License-Identifier: Apache-2.0
// Purpose: a group over memory that all ranks map, of threads or of processes, with devices of any kind: sums are the host's.
#pragma once

#include "tensor/group/group.h"

extern const struct sl_group_ops sl_group_shared;

// SPDX-License-Identifier: Apache-2.0
// Purpose: the operations of scores and of what stays, as tested_device.c has them.
#pragma once

#include "engine/tensor/ops.h"

void tested_evict_fill(struct sl_ops *ops);

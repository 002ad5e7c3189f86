// SPDX-License-Identifier: Apache-2.0
// Purpose: page lists of KV heads in device memory: implements ops->publish(), and lets operations find its result.
#pragma once

#include "engine/tensor/cuda/table/device.h"

enum sl_status sl_gpu_publish(struct sl_stream *stream, struct sl_kv_heads *heads_inout, struct sl_error *err);

// Returns the heads on the device. Asserts that they were published and have not been forgotten since.
const struct gpu_head *sl_gpu_heads(const struct gpu_stream *stream, const struct sl_kv_heads *heads);

// Returns the most slots that any of the heads has.
uint32_t sl_gpu_most_slots(const struct sl_kv_heads *heads);

// SPDX-License-Identifier: Apache-2.0
// Purpose: page lists of KV heads in device memory. What ops->publish() does, and how operations find what it made.
#pragma once

#include "engine/tensor/cuda/table/device.h"

enum sl_status sl_gpu_publish(struct sl_stream *stream, struct sl_kv_heads *heads_inout, struct sl_error *err);

// Of heads that were published and not forgotten since, which is asserted.
const struct gpu_head *sl_gpu_heads(const struct gpu_stream *stream, const struct sl_kv_heads *heads);

// The most slots that any of them has.
uint32_t sl_gpu_most_slots(const struct sl_kv_heads *heads);

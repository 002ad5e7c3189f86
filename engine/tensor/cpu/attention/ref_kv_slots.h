// SPDX-License-Identifier: Apache-2.0
// Purpose: the reference's KV operations on slots and pages, other than attention.
#pragma once

#include "engine/tensor/ops.h"

// quantize collect digest read_rows read_positions
void sl_ref_kv_slots_fill(struct sl_ops *ops);

// Reads the K or V row of one slot as f32 [d], in any format of its page.
void sl_ref_read_k_row(const struct sl_kv *kv, uint32_t slot, float *out);
void sl_ref_read_v_row(const struct sl_kv *kv, uint32_t slot, float *out);

// Writes a row into slot `slot` of the K or V part of a working page: rounded to the format, f16 saturated.
void sl_ref_write_row(const struct sl_page_layout *layout, char *part, uint32_t slot, const float *row);

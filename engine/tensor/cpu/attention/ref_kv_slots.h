// SPDX-License-Identifier: Apache-2.0
// Purpose: the half of the reference's KV operations that is about slots and pages, not attention.
#pragma once

#include "engine/tensor/ops.h"

// quantize collect digest read_rows read_positions
void sl_ref_kv_slots_fill(struct sl_ops *ops);

// The K or V row of one slot as f32 [d], whatever its page's format.
void sl_ref_read_k_row(const struct sl_kv *kv, uint32_t slot, float *out);
void sl_ref_read_v_row(const struct sl_kv *kv, uint32_t slot, float *out);

// Element e of a part in a float format; written, it is rounded to it, f16 saturated.
float sl_ref_read_float(enum sl_kv_format format, const char *part, size_t e);
void sl_ref_write_float(enum sl_kv_format format, char *part, size_t e, float x);

// A row into slot `slot` of the K or V part of a working page: rounded to the format, f16 saturated.
void sl_ref_write_row(const struct sl_page_layout *layout, char *part, uint32_t slot, const float *row);

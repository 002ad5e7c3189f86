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

// --- quantization ----------------------------------------------------------------------------------------------------

// Quantizes one page, as ops->host.quantize.
typedef void (*sl_quantize_page_fn)(const struct sl_page_layout *work, const void *page,
                                    const struct sl_page_layout *packed, void *packed_page);
void sl_ref_quantize_page(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                          void *packed_page);

// Implements ops->quantize with a tier's function for one page.
void sl_quantize_pages(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to,
                       sl_quantize_page_fn quantize_page);

// Finds the least and the largest of x[n], n > 0, with the zero of the sign that the reference finds: compilers may give
// fminf() another one elsewhere.
void sl_ref_range(const float *x, int n, float *min_out, float *max_out);

// Copies the positions and the score state of a page, if the packed layout has them.
void sl_ref_copy_slots_data(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                            void *packed_page);

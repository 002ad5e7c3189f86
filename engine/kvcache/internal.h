// SPDX-License-Identifier: Apache-2.0
// Purpose: declarations that only session.c and capsule.c share.
#pragma once

#include "engine/kvcache/session.h"

// Returns the layout of page `index` of a head.
static inline const struct sl_page_layout *sl_layer_page_layout(const struct sl_layer *layer,
                                                                const struct sl_head *head, uint32_t index) {
    return index < head->n_packed ? &layer->packed : &layer->work;
}

// Returns SL_OK when a layer may have these two layouts: work is a float format; packed is work itself, or quantized
// and without any part that work lacks.
enum sl_status sl_layer_check_layouts(const struct sl_page_layout *work, const struct sl_page_layout *packed,
                                      int head_dim, struct sl_error *err);

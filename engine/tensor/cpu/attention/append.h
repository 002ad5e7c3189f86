// SPDX-License-Identifier: Apache-2.0
// Purpose: ops->append of every tier, given the tier's function that writes a row.
#pragma once

#include "engine/tensor/ops.h"

// Writes a row of f32 into slot `slot` of the K or V part of a working page.
typedef void (*sl_write_row_fn)(const struct sl_page_layout *layout, char *part, uint32_t slot, const float *row);

void sl_append_rows(struct sl_stream *stream, const struct sl_attend *calls, int n_calls, sl_write_row_fn write_row);

// SPDX-License-Identifier: Apache-2.0
// Purpose: implements a tier's ops->scan with its host.scan.
#pragma once

#include "engine/tensor/ops.h"

typedef void (*sl_scan_fn)(const struct sl_key_index_layout *layout, const void *index, const float *q,
                           const int *channels, int n_channels, uint32_t begin, uint32_t end, float *scores_out);

void sl_scan_heads(struct sl_stream *stream, const struct sl_scan_call *args, sl_scan_fn scan);

// SPDX-License-Identifier: Apache-2.0
// Purpose: implements a tier's ops->scan with its host.scan.
#pragma once

#include "engine/tensor/ops.h"

typedef void (*sl_scan_fn)(const struct sl_scan_piece *piece, const float *q, const int *channels, int n_channels,
                           float *scores_out);

void sl_scan_heads(struct sl_stream *stream, const struct sl_scan_call *args, sl_scan_fn scan);

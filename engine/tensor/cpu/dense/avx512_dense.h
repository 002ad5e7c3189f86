// SPDX-License-Identifier: Apache-2.0
// Purpose: matmul of tier avx512 (engine/tensor/ops.h), for its own table and for the weights that tiers avx512bf16 and
// amx do not multiply.
#pragma once

#include "engine/tensor/ops.h"

enum sl_status sl_avx512_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);
// For stored matrices. It needs no scratch.
void sl_avx512_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args);

// SPDX-License-Identifier: Apache-2.0
// Purpose: products with the codes of a file, for processors with AVX512-VNNI. See avx512vnni_codes.c.
#pragma once

#include "engine/tensor/ops.h"

// Entries of struct sl_ops for matrices of SL_WEIGHT_CODES. Every row's bits are its own, for any m.
size_t sl_vnni_matmul_scratch(const struct sl_matrix *w, int64_t m);
void sl_vnni_arrange(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                     int n_parts);
void sl_vnni_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args);

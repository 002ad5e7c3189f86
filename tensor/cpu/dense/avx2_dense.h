// SPDX-License-Identifier: Apache-2.0
// Purpose: matmul of tier avx2, which has a file of its own.
#ifndef SL_TENSOR_CPU_DENSE_AVX2_DENSE_H
#define SL_TENSOR_CPU_DENSE_AVX2_DENSE_H

#include "tensor/ops.h"

void sl_avx2_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args);

#endif

// SPDX-License-Identifier: Apache-2.0
// Purpose: matmul of tier neon, which has a file of its own.
#ifndef SL_TENSOR_CPU_DENSE_NEON_DENSE_H
#define SL_TENSOR_CPU_DENSE_NEON_DENSE_H

#include "tensor/ops.h"

void sl_neon_matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args);

#endif

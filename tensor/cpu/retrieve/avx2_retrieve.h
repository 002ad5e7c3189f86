// SPDX-License-Identifier: Apache-2.0
// Purpose: entries of the table that stand in files of their own.
#ifndef SL_TENSOR_CPU_RETRIEVE_AVX2_RETRIEVE_H
#define SL_TENSOR_CPU_RETRIEVE_AVX2_RETRIEVE_H

#include "tensor/ops.h"

void sl_avx2_select(const float *scores, uint32_t n, uint32_t b, uint32_t *keep_out);

#endif

// SPDX-License-Identifier: Apache-2.0
// Purpose: the inner loops of products with codes, with AVX2. See avx2_codes.c.
#pragma once

#include "engine/tensor/cpu/dense/code_matmul.h"

extern const struct sl_code_kernels sl_avx2_code_kernels;

// SPDX-License-Identifier: Apache-2.0
// Purpose: the inner loops of products with codes, for processors with AVX512-VNNI. See avx512vnni_codes.c.
#pragma once

#include "engine/tensor/cpu/dense/code_matmul.h"

extern const struct sl_code_kernels sl_vnni_code_kernels;

// SPDX-License-Identifier: Apache-2.0
// Purpose: attention over pages with AVX-512 and its permutations of bytes (VBMI), with the bits of avx512_kv.c: codes of up to
// 4 bits become numbers in fewer instructions (sl_avx512_spread64()).
#include "engine/tensor/cpu/attention/avx512_f32.h"

#include "engine/tensor/cpu/attention/fills.h"

void sl_avx512vbmi_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
}

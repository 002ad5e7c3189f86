// SPDX-License-Identifier: Apache-2.0
// Purpose: attention over pages with the bits of avx512vnni_kv.c, and with permutations of bytes (VBMI): they bring codes of up to
// 4 bits to their places in fewer instructions.
#include "engine/tensor/cpu/attention/integer/avx512vnni_rows.h"

#include "engine/tensor/cpu/attention/avx512_f32.h"
#include "engine/tensor/cpu/attention/integer/fills.h"

void sl_avx512vbmi_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
}

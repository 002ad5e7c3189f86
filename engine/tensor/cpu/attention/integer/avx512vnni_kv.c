// SPDX-License-Identifier: Apache-2.0
// Purpose: attention over pages with AVX-512 and its dot products of bytes (VNNI): that of avx512_kv.c, but codes of 2 and 3 bits
// are multiplied as integers.
#include "engine/tensor/cpu/attention/integer/avx512vnni_rows.h"

#include "engine/tensor/cpu/attention/avx512_f32.h"
#include "engine/tensor/cpu/attention/integer/fills.h"

void sl_avx512vnni_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
}

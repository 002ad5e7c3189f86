// SPDX-License-Identifier: Apache-2.0
// Purpose: the functions that fill attention as this folder computes it into a tier's table; see attention/fills.h.
#pragma once

#include "engine/tensor/ops.h"

#if defined(__x86_64__)
void sl_avx512vnni_kv_fill(struct sl_ops *ops); // as avx512's
void sl_avx512vbmi_kv_fill(struct sl_ops *ops); // the same bits
#endif

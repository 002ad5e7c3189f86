// SPDX-License-Identifier: Apache-2.0
// Purpose: the functions that fill each tier's eviction operations into its table. tiers.c says which tier may run.
#pragma once

#include "engine/tensor/ops.h"

void sl_ref_evict_fill(struct sl_ops *ops); // all operations of eviction; calls the following functions:
void sl_ref_scores_fill(struct sl_ops *ops);
void sl_ref_choose_fill(struct sl_ops *ops);
void sl_ref_select_fill(struct sl_ops *ops);
void sl_ref_gather_fill(struct sl_ops *ops);
void sl_ref_estimate_fill(struct sl_ops *ops);

#if defined(__x86_64__)
void sl_avx2_evict_fill(struct sl_ops *ops);    // value_change nearest merge select quantize
void sl_avx2_select_fill(struct sl_ops *ops);   // only select
void sl_avx2_quantize_fill(struct sl_ops *ops); // only quantize
void sl_avx512_evict_fill(struct sl_ops *ops);  // only nearest
#endif

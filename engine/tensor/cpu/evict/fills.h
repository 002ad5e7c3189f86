// SPDX-License-Identifier: Apache-2.0
// Purpose: how each tier fills what eviction asks for into its table; engine/tensor/cpu/tiers.c says which tier may run.
#pragma once

#include "engine/tensor/ops.h"

void sl_ref_evict_fill(struct sl_ops *ops); // all of it, by way of:
void sl_ref_scores_fill(struct sl_ops *ops);
void sl_ref_choose_fill(struct sl_ops *ops);
void sl_ref_select_fill(struct sl_ops *ops);
void sl_ref_gather_fill(struct sl_ops *ops);
void sl_ref_estimate_fill(struct sl_ops *ops);

#if defined(__x86_64__)
void sl_avx2_evict_fill(struct sl_ops *ops);  // value_change nearest merge select
void sl_avx2_select_fill(struct sl_ops *ops); // of it: select
#endif

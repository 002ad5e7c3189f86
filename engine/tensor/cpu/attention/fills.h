// SPDX-License-Identifier: Apache-2.0
// Purpose: the functions that fill each tier's operations on KV pages into its table. tiers.c says which tier may run.
#pragma once

#include "engine/tensor/ops.h"

// append and the later entries of the table, but not stats, evict/ and retrieve/
void sl_ref_kv_fill(struct sl_ops *ops);
void sl_ref_stats_fill(struct sl_ops *ops); // fold window_sums

#if defined(__x86_64__)
void sl_avx2_kv_fill(struct sl_ops *ops);       // append attend attend_before attend_fold fold window_sums
void sl_avx512_kv_fill(struct sl_ops *ops);     // attend attend_before attend_fold fold window_sums
void sl_avx512bf16_kv_fill(struct sl_ops *ops); // as avx512's
void sl_amx_kv_fill(struct sl_ops *ops);        // attend attend_before fold window_sums; no attend_fold
void sl_amx2_kv_fill(struct sl_ops *ops); // attend attend_before; restores avx512's fold window_sums; no attend_fold
#endif

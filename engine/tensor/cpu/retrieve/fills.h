// SPDX-License-Identifier: Apache-2.0
// Purpose: the functions that fill each tier's retrieval operations into its table. tiers.c says which tier may run.
#pragma once

#include "engine/tensor/ops.h"

void sl_ref_retrieve_fill(struct sl_ops *ops); // mean_query attend_slots
void sl_ref_scan_fill(struct sl_ops *ops);     // index_keys scan copy_rows put_rows, ops->scan

#if defined(__x86_64__)
void sl_avx2_retrieve_fill(struct sl_ops *ops);
void sl_avx2_scan_fill(struct sl_ops *ops);   // index_keys scan
void sl_avx512_scan_fill(struct sl_ops *ops); // scan
#endif

// SPDX-License-Identifier: Apache-2.0
// Purpose: the functions that fill each tier's dense operations into its table. tiers.c says which tier may run.
#pragma once

#include "engine/tensor/ops.h"

void sl_ref_dense_fill(struct sl_ops *ops);    // pack unpack matmul_scratch matmul embed norm angles rotate
void sl_ref_pick_fill(struct sl_ops *ops);     // pick
void sl_vector_dense_fill(struct sl_ops *ops); // tiers avx2 and neon, all but angles

#if defined(__x86_64__)
void sl_avx512_dense_fill(struct sl_ops *ops);
void sl_avx512vnni_dense_fill(struct sl_ops *ops); // the same, for the codes of a file
void sl_avx512bf16_dense_fill(struct sl_ops *ops); // pack matmul_scratch arranges arrange matmul
void sl_amx_dense_fill(struct sl_ops *ops);
void sl_amx2_dense_fill(struct sl_ops *ops); // replaces pack
#endif

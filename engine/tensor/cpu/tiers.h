// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tiers of this processor, each an implementation of the table in engine/tensor/ops.h.
 *
 * To add a tier: add files named like the other tiers' to the folders below, with their compiler flags in
 * CMakeLists.txt, fill functions in the folders' fills.h, and a row in the table of tiers.c. A group that the tier does
 * not change may be NULL there.
 */
#pragma once

#include "base/status.h"
#include "engine/tensor/ops.h"

/*
 * Returns the table for this processor. `tier` is NULL or "auto" for the fastest, or a name: "reference", "avx2",
 * "avx512", "avx512vnni", "avx512bf16", "amx2", "amx", "neon".
 * SL_ERR_UNSUPPORTED: no such tier, or this processor lacks it; err lists the available ones.
 */
enum sl_status sl_ops_select(const char *tier, const struct sl_ops **ops_out, struct sl_error *err);

// Returns the table for a model with f16 or f32 weights, which has another "auto" where choices[] of tiers.c says so.
enum sl_status sl_ops_select_wide(const char *tier, const struct sl_ops **ops_out, struct sl_error *err);

// Returns the names of the tiers that this processor can run, slowest first, NULL-terminated.
const char *const *sl_ops_tiers(void);

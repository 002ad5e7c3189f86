// SPDX-License-Identifier: Apache-2.0
// Purpose: the half of the reference's KV operations that is about slots and pages, not attention.
#ifndef SL_ENGINE_CPU_REF_KV_SLOTS_H
#define SL_ENGINE_CPU_REF_KV_SLOTS_H

#include "engine/ops.h"

void sl_ref_kv_slots_fill(struct sl_ops *ops); // read_state read_positions select gather quantize read_rows

#endif

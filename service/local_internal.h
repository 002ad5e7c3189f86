// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of local runs share: a loaded model with its engine and arena.
#ifndef SL_SERVICE_LOCAL_INTERNAL_H
#define SL_SERVICE_LOCAL_INTERNAL_H

#include "runtime/runtime.h"
#include "service/local.h"
#include "service/trunk.h"

struct sl_local {
    struct sl_runtime runtime;
    struct sl_arena *arena;
    float *logits;            // [n_vocab]
    struct sl_trunks *trunks; // NULL: none are kept
    int max_chunk_tokens;
};

#endif

// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of local runs share: a loaded model with its engine and arena.
#ifndef SL_SERVICE_LOCAL_INTERNAL_H
#define SL_SERVICE_LOCAL_INTERNAL_H

#include "service/local.h"
#include "service/trunk.h"

struct sl_local {
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    struct sl_engine *engine;
    void *memory;
    size_t memory_bytes;
    struct sl_arena *arena;
    float *logits;            // [n_vocab]
    struct sl_trunks *trunks; // NULL: none are kept
    int max_chunk_tokens;
};

#endif

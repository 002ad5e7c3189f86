// SPDX-License-Identifier: Apache-2.0
// Purpose: operations as loops over KV heads: turns a function of one head into a loop of the team.
#pragma once

#include "engine/tensor/ops.h"

// Executes one head's part of an operation; `call` is the operation's.
typedef void (*sl_head_fn)(const void *call, int head);

// Executes fn for heads 0 .. n - 1. work: about how many numbers the heads touch in all. The calling thread does a
// small amount alone, which is faster than waking the others.
void sl_each_head(struct sl_stream *stream, int n, size_t work, sl_head_fn fn, const void *call);

static inline size_t sl_heads_slots(const struct sl_kv_heads *heads) {
    size_t n = 0;
    for (int h = 0; h < heads->n; h++) {
        n += heads->kv[h].n_slots;
    }
    return n;
}

// Returns the pages of the longest head.
static inline uint32_t sl_heads_pages(const struct sl_kv_heads *heads) {
    uint32_t most = 0;
    for (int h = 0; h < heads->n; h++) {
        most = heads->kv[h].n_slots > most ? heads->kv[h].n_slots : most;
    }
    return sl_pages_for(most);
}

static inline float *sl_vector(struct sl_vectors x, int row) {
    return x.at + (size_t)row * x.stride;
}

static inline uint32_t *sl_list(struct sl_lists x, int head) {
    return x.at + (size_t)head * x.stride;
}

static inline uint32_t sl_count(struct sl_counts n, int head) {
    return n.host != NULL ? n.host[head] : n.device[head];
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a source over several shares in this process, which can be told to fail: what kvstores do to a retriever,
 *          without them.
 */
#pragma once

#include "engine/offload/remote_kv/source.h"

#define MAX_SHARES_MADE 4

struct shares {
    struct sl_source base;
    struct sl_remote_kv *remote_kvs[MAX_SHARES_MADE];
    struct sl_near_memory *memories[MAX_SHARES_MADE];
    struct sl_remote_kv_scratch *scratch;
    // Faults of the next answers; a test may change them between two questions.
    uint32_t lose_kind;      // requests of this kind (enum sl_near_kind) ...
    int lose_share;          // ... to this share are answered, but wait() ends with ...
    enum sl_status lose_how; // ... this; SL_OK: nothing is lost
    // Counts, read by tests.
    int n_asked[8], n_probes, n_resets, n_open; // by kind; TOPK with those flags; not yet forgotten
    size_t topk_bytes;                          // of the answers to TOPK without PROBE
    int64_t patience_ns;                        // until the deadline of the last question
};

/*
 * Offloaded heads [0, n_offloaded_heads) of kv (n_slots each) in n_shares shares as equal as may be; every remote KV of
 * two segments where the tokens are enough. kv must outlive it. Fails the test on any error.
 */
struct shares *shares_create(const struct sl_ops *ops, struct sl_arena *arena, const struct sl_kv *kv,
                             int n_offloaded_heads, uint32_t n_slots, enum sl_kv_format scan, int n_shares);
void shares_destroy(struct shares **shares); // asserts that everything asked was forgotten

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: prefix keys: key(0) = a constant, key(i+1) = hash of block i's tokens seeded with key(i).
 *
 * Design: a last block that is not full is hashed the same way; the hash tells lengths apart, so a prefix never has
 *         the key of a longer one. Tokens are hashed as their bytes in memory: machines of one cluster are of one
 *         byte order.
 */
#include "base/hash.h"
#include "kvcache/capsule.h"

#define EMPTY_KEY 0x736c756963653031ULL // "sluice01"

static uint64_t extend(uint64_t key, const int32_t *tokens, int64_t n_tokens) {
    return sl_hash(tokens, (size_t)n_tokens * sizeof *tokens, key);
}

uint64_t sl_prefix_hash(const int32_t *tokens, int64_t n_tokens) {
    uint64_t key = EMPTY_KEY;
    int64_t done = 0;
    for (; done + SL_PREFIX_BLOCK <= n_tokens; done += SL_PREFIX_BLOCK) {
        key = extend(key, tokens + done, SL_PREFIX_BLOCK);
    }
    return done < n_tokens ? extend(key, tokens + done, n_tokens - done) : key;
}

int64_t sl_prefix_keys(const int32_t *tokens, int64_t n_tokens, uint64_t *keys_out, int64_t max_keys) {
    uint64_t key = EMPTY_KEY;
    int64_t n_keys = 0;
    for (; n_keys < max_keys && (n_keys + 1) * SL_PREFIX_BLOCK <= n_tokens; n_keys++) {
        key = extend(key, tokens + n_keys * SL_PREFIX_BLOCK, SL_PREFIX_BLOCK);
        keys_out[n_keys] = key;
    }
    return n_keys;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: prefix keys: key(0) = zeros, key(i+1) = hash of key(i) and block i's tokens, salted.
 *
 * Design: a last block that is not full is hashed the same way. The hash includes lengths, so a prefix never has the
 *         key of a longer one. Tokens are hashed as their bytes in memory: all machines of a cluster have the same
 *         byte order. Every link includes the salt: a process that has a key but not the salt cannot compute the next
 *         key.
 */
#include <string.h>

#include "engine/kvcache/capsule.h"

struct link {
    struct sl_hash128 key;
    int32_t tokens[SL_PREFIX_BLOCK];
};

static void extend(const struct sl_hash128 *salt, struct sl_hash128 *key, const int32_t *tokens, int64_t n_tokens) {
    struct link link;
    size_t bytes = (size_t)n_tokens * sizeof *tokens;
    link.key = *key;
    memcpy(link.tokens, tokens, bytes);
    *key = sl_salted_hash(salt, &link, sizeof link.key + bytes);
}

struct sl_hash128 sl_prefix_hash(const struct sl_hash128 *salt, const int32_t *tokens, int64_t n_tokens) {
    struct sl_hash128 key = {{0}};
    for (int64_t done = 0; done < n_tokens; done += SL_PREFIX_BLOCK) {
        int64_t left = n_tokens - done;
        extend(salt, &key, tokens + done, left < SL_PREFIX_BLOCK ? left : SL_PREFIX_BLOCK);
    }
    return key;
}

struct sl_hash128 sl_prefix_hash_after(const struct sl_hash128 *salt, const struct sl_hash128 *keys,
                                       const int32_t *tokens, int64_t n_tokens) {
    int64_t n_keys = n_tokens / SL_PREFIX_BLOCK, n_last = n_tokens % SL_PREFIX_BLOCK;
    struct sl_hash128 key = n_keys > 0 ? keys[n_keys - 1] : (struct sl_hash128){{0}};
    if (n_last > 0) {
        extend(salt, &key, tokens + n_tokens - n_last, n_last);
    }
    return key;
}

int64_t sl_prefix_keys(const struct sl_hash128 *salt, const int32_t *tokens, int64_t n_tokens,
                       struct sl_hash128 *keys_out, int64_t max_keys) {
    struct sl_hash128 key = {{0}};
    int64_t n_keys = 0;
    for (; n_keys < max_keys && (n_keys + 1) * SL_PREFIX_BLOCK <= n_tokens; n_keys++) {
        extend(salt, &key, tokens + n_keys * SL_PREFIX_BLOCK, SL_PREFIX_BLOCK);
        keys_out[n_keys] = key;
    }
    return n_keys;
}

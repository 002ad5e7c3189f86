// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/store/index.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>

#include "base/clock.h"
#include "kvstore/memory/capsule_cache.h"
#include "lab/bench/store/clients.h"
#include "lab/result.h"

#define CHAIN_TOKENS 131072
#define CHAIN_KEYS   (CHAIN_TOKENS / SL_PREFIX_BLOCK)
#define STORED_KEYS  1024 // of a capsule of that length
#define N_CHAINS     64   // that are looked up in turn

// Puts a capsule of 128k tokens into the cache, found under STORED_KEYS prefixes.
static enum sl_status put_entries(struct sl_capsule_cache *cache, struct sl_arena *arena, uint64_t number,
                                  const struct sl_capsule_bytes *like, struct sl_error *err) {
    struct sl_hash128 hashes[STORED_KEYS - 1];
    for (int i = 0; i < STORED_KEYS - 1; i++) {
        hashes[i] = sl_store_bench_id(0, number, (uint64_t)i).prefix_hash;
    }
    struct sl_capsule_keys keys = {.id = sl_store_bench_id(0, number, STORED_KEYS - 1),
                                   .hashes = hashes,
                                   .n_hashes = STORED_KEYS - 1,
                                   .stride = CHAIN_TOKENS / STORED_KEYS};
    struct sl_capsule_bytes capsule = {.body_bytes = like->body_bytes, .body = sl_arena_alloc(arena, like->body_bytes)};
    enum sl_status status =
        capsule.body ? sl_capsule_rekey_header(like->header, like->header_bytes, &keys.id.prefix_hash, &capsule.header,
                                               &capsule.header_bytes, err)
                     : sl_fail(err, SL_ERR_EXHAUSTED, "no address space for %" PRIu64 " capsules", number + 1);
    return status == SL_OK ? sl_capsule_cache_put(cache, &keys, &capsule, err) : status;
}

static size_t malloced_bytes(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

// Looks up chains of which the first half is stored.
static enum sl_status look_up_chains(struct sl_index_bench *b, struct sl_capsule_cache *cache, int64_t n_capsules,
                                     struct sl_error *err) {
    struct sl_prefix *chains = malloc(sizeof *chains * CHAIN_KEYS * N_CHAINS);
    if (!chains) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    for (int64_t i = 0; i < CHAIN_KEYS * N_CHAINS; i++) {
        int64_t chain = i / CHAIN_KEYS, n_tokens = (CHAIN_KEYS - i % CHAIN_KEYS) * SL_PREFIX_BLOCK;
        int64_t key = n_tokens / (CHAIN_TOKENS / STORED_KEYS) - 1;
        bool is_stored = n_tokens <= CHAIN_TOKENS / 2 && n_tokens % (CHAIN_TOKENS / STORED_KEYS) == 0;
        uint64_t capsule = (uint64_t)(chain * n_capsules / N_CHAINS);
        chains[i] = (struct sl_prefix){is_stored ? sl_store_bench_id(0, capsule, (uint64_t)key)
                                                 : sl_store_bench_id(0, (uint64_t)INT64_MAX, (uint64_t)i),
                                       n_tokens};
    }
    enum { N = 4096 };
    int64_t begin_ns = sl_now_ns(), n_wrong = 0;
    for (int i = 0; i < N; i++) {
        const struct sl_prefix *chain = chains + (size_t)(i % N_CHAINS) * CHAIN_KEYS;
        size_t at = 0;
        struct sl_stored *stored = sl_capsule_cache_pin_longest(cache, chain, CHAIN_KEYS, &at);
        n_wrong += !stored || chain[at].n_tokens != CHAIN_TOKENS / 2;
        if (stored) {
            sl_capsule_cache_unpin(cache, stored);
        }
    }
    double rate = N * 1e9 / (double)(sl_now_ns() - begin_ns);
    free(chains);
    if (n_wrong > 0) {
        return sl_fail(err, SL_ERR_INTERNAL, "%" PRId64 " of %d look-ups did not find the stored half", n_wrong, N);
    }
    char name[96];
    snprintf(name, sizeof name, "look-up of 128k tokens, half of them stored, among %" PRId64 " entries",
             n_capsules * STORED_KEYS);
    sl_bench_print_value("store", name, rate, "chains/s", b->json);
    return SL_OK;
}

enum sl_status sl_index_bench_run(struct sl_index_bench *b, struct sl_error *err) {
    int64_t n_capsules = (b->n_entries + STORED_KEYS - 1) / STORED_KEYS, n_tokens;
    struct sl_capsule_bytes like = {0};
    struct sl_capsule_cache *cache = NULL;
    struct sl_arena *arena = NULL;
    struct sl_capsule_id none = sl_store_bench_id(0, 0, 0);
    enum sl_status status = sl_store_bench_header(b->arena, (int64_t)CHAIN_TOKENS * 64 * 2 * sizeof(uint16_t), &none,
                                                  &like, &n_tokens, err);
    SL_THEN(status, sl_arena_create_mapped((size_t)(n_capsules + 1) * like.body_bytes, &arena, err));
    SL_THEN(status, sl_capsule_cache_create(arena, 0, &cache, err));
    size_t before = malloced_bytes();
    for (int64_t i = 0; i < n_capsules && status == SL_OK; i++) {
        status = put_entries(cache, arena, (uint64_t)i, &like, err);
        SL_THEN(status, sl_signals_check(b->signals, err));
    }
    double bytes = (double)(malloced_bytes() - before) / (double)(n_capsules * STORED_KEYS);
    if (status == SL_OK) {
        sl_bench_print_value("store", "memory of the index", bytes, "bytes/entry", b->json);
    }
    SL_THEN(status, look_up_chains(b, cache, n_capsules, err));
    free(like.header);
    sl_capsule_cache_destroy(&cache);
    sl_arena_destroy(&arena);
    return status;
}

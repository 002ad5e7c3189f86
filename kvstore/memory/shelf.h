// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: stored capsules, found by prefix, evicted by age of last use.
 *
 * Design: an index from (model, recipe, prefix hash) to a capsule; a capsule that can be truncated is found under many
 *         prefixes, any other only under the whole. Of two capsules with a common prefix the younger one is found, but
 *         a capsule that is just that prefix is preferred to both. Least recently used capsules go first; pinned ones
 *         stay, and those unpinned within the last keep_ms stay unless asked for without mercy.
 *         Bounded: at most SL_SHELF_MAX_PREFIXES index entries a capsule; and what all take beside their bodies, headers and keys,
 *         is a 16th of the arena at most (16 MiB at least): for what comes beyond it the least recently used go as well.
 * Threads: any number; one lock, held for short.
 */
#pragma once

#include "base/arena.h"
#include "kvcache/capsule.h"

#define SL_SHELF_MAX_PREFIXES 1025

struct sl_shelf;

// What a capsule is found under: its id, and where it can be truncated also its prefixes.
struct sl_capsule_keys {
    struct sl_capsule_id id;
    struct sl_hash128 *hashes; // [n_hashes]: hashes[i] is of the first (i + 1) * stride tokens
    size_t n_hashes;
    int64_t stride;
};

// One of the prefixes of a prompt.
struct sl_prefix {
    struct sl_capsule_id id;
    int64_t n_tokens;
};
// The prefixes of a capsule of n_tokens: number i < n_hashes, and behind them the whole.
struct sl_prefix sl_capsule_prefix(const struct sl_capsule_keys *keys, int64_t n_tokens, size_t i);

// A capsule on the shelf. Readable while pinned.
struct sl_stored {
    struct sl_capsule_keys keys;
    int64_t n_tokens;
    struct sl_capsule_bytes capsule;
    // The shelf's own:
    int n_pins;
    bool is_forgotten; // not found any more: goes with its last pin
    int64_t used_ns, kept_until_ns;
    struct sl_stored *newer, *older; // by last use
};

enum sl_status sl_shelf_create(struct sl_arena *arena, int64_t keep_ms, struct sl_shelf **shelf_out,
                               struct sl_error *err);
void sl_shelf_destroy(struct sl_shelf **shelf); // nothing may be pinned

bool sl_shelf_has(struct sl_shelf *shelf, const struct sl_capsule_id *id);

/*
 * Put a capsule on the shelf. Its bytes (the body of the shelf's arena) become the shelf's on success; the hashes are copied,
 * and ignored for capsules that have evicted something.
 * SL_ERR_EXISTS, SL_ERR_INVALID (the header does not say what the id says), SL_ERR_EXHAUSTED (out of memory, or headers and keys of
 * those that are pinned leave no room).
 */
enum sl_status sl_shelf_put(struct sl_shelf *shelf, const struct sl_capsule_keys *keys,
                            const struct sl_capsule_bytes *capsule, struct sl_error *err);

/*
 * Find and pin the capsule for this prefix; *covered_out is how many tokens the prefix has according to whoever stored
 * it. NULL: none.
 */
struct sl_stored *sl_shelf_pin(struct sl_shelf *shelf, const struct sl_capsule_id *prefix, int64_t *covered_out);
void sl_shelf_unpin(struct sl_shelf *shelf, struct sl_stored *stored);
/*
 * Find and pin the capsule for the longest of these prefixes (longest first); *at_out is which one it is. NULL: there is
 * none whose length is the one that whoever stored it gave.
 */
struct sl_stored *sl_shelf_pin_longest(struct sl_shelf *shelf, const struct sl_prefix *prefixes, size_t n_prefixes,
                                       size_t *at_out);

/*
 * Hold a capsule, whole, while it is copied elsewhere: not evicted, and not counted as used. NULL: it is not here.
 */
struct sl_stored *sl_shelf_hold(struct sl_shelf *shelf, const struct sl_capsule_id *id);
void sl_shelf_let_go(struct sl_shelf *shelf, struct sl_stored *stored);
/*
 * Nobody will ask for this capsule, whole, any more: it is not found from now on, and goes when nobody has it pinned. False: it is not here.
 */
bool sl_shelf_forget(struct sl_shelf *shelf, const struct sl_capsule_id *id);
// The ids of at most max_ids capsules that can be found, last used first; how many there are.
size_t sl_shelf_list(struct sl_shelf *shelf, struct sl_capsule_id *ids_out, size_t max_ids);

/*
 * Evict the least recently used capsule that is not pinned, passing over those that are kept beyond now_ns; INT64_MAX
 * passes over none. False: there is none.
 */
bool sl_shelf_evict_one(struct sl_shelf *shelf, int64_t now_ns);
// When the capsule that would be evicted was last used; INT64_MAX: there is none.
int64_t sl_shelf_oldest_ns(struct sl_shelf *shelf, int64_t now_ns);

struct sl_shelf_stats {
    int64_t n_capsules, n_pinned, n_evicted, n_hits, n_misses;
    size_t bytes, evictable_bytes; // of all; of those that are not pinned
    size_t beside_bytes;           // of headers and keys of all, outside the arena
};
void sl_shelf_get_stats(struct sl_shelf *shelf, struct sl_shelf_stats *stats_out);
void sl_shelf_count_miss(struct sl_shelf *shelf);

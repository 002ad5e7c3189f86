// SPDX-License-Identifier: Apache-2.0
#include "kvstore/memory/segments.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/hash_table.h"
#include "base/locked.h"

#define N_BUCKETS (1u << 16)

// The search key: all segments of a prompt that end at a token. Without padding: hashed and compared as bytes.
struct key {
    struct sl_kv_family family;
    int64_t end;
    struct sl_hash128 prefix_hash;
};

struct entry {
    struct sl_hash_link link;
    struct key key;
    int64_t begin;
    struct sl_kv_segment *segment;
    size_t bytes;
    bool is_dropped; // by sl_kv_segments_drop(): its last remote KV discards it
    int64_t used_ns, kept_until_ns;
    struct entry *newer, *older; // by last use
};

struct sl_kv_segments {
    int64_t keep_ms;
    pthread_mutex_t mutex;
    struct sl_hash_table by_key;
    struct entry *newest, *oldest;
    struct sl_kv_segments_stats stats; // without evictable_bytes
};

struct sl_hash128 sl_prompt_hash_at(const struct sl_prompt_hashes *prompt, int64_t end) {
    return end % SL_PAGE_SLOTS == 0 ? prompt->prefixes[end / SL_PAGE_SLOTS - 1] : prompt->whole;
}

enum sl_status sl_kv_segments_create(int64_t keep_ms, struct sl_kv_segments **segments_out, struct sl_error *err) {
    struct sl_kv_segments *segments = calloc(1, sizeof *segments);
    if (!segments || !sl_hash_table_init(&segments->by_key, N_BUCKETS)) {
        free(segments);
        return sl_fail(err, SL_ERR_EXHAUSTED, "segments: out of memory");
    }
    segments->keep_ms = keep_ms;
    pthread_mutex_init(&segments->mutex, NULL);
    *segments_out = segments;
    return SL_OK;
}

// ---- order of use (lock held) -------------------------------------------------------------------------------------

static void unlink_use(struct sl_kv_segments *segments, struct entry *entry) {
    *(entry->newer ? &entry->newer->older : &segments->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &segments->oldest) = entry->newer;
}

static void link_newest(struct sl_kv_segments *segments, struct entry *entry, int64_t now_ns) {
    entry->used_ns = now_ns;
    entry->newer = NULL;
    entry->older = segments->newest;
    *(segments->newest ? &segments->newest->newer : &segments->oldest) = entry;
    segments->newest = entry;
}

static void touch(struct sl_kv_segments *segments, struct entry *entry, int64_t now_ns) {
    unlink_use(segments, entry);
    link_newest(segments, entry, now_ns);
}

static bool is_used(const struct entry *entry) {
    // False stays false under the lock: only the index can add a reference to a segment that nothing else refers to.
    return sl_kv_segment_n_refs(entry->segment) > 1;
}

static struct entry *find_oldest(struct sl_kv_segments *segments, int64_t now_ns) {
    struct entry *entry = segments->oldest;
    while (entry && (is_used(entry) || entry->kept_until_ns > now_ns)) {
        entry = entry->newer;
    }
    return entry;
}

// ---- index (lock held) --------------------------------------------------------------------------------------------

static struct key make_key(const struct sl_kv_family *family, int64_t end, struct sl_hash128 prefix_hash) {
    return (struct key){.family = *family, .end = end, .prefix_hash = prefix_hash};
}

static uint64_t hash_of(const struct key *key) {
    return sl_hash(key, sizeof *key, 0);
}

struct wanted {
    const struct key *key;
    int64_t begin;
};

static bool is_wanted(const struct sl_hash_link *link, const void *arg) {
    const struct entry *entry = SL_HASH_ENTRY(link, struct entry, link);
    const struct wanted *wanted = arg;
    return entry->begin == wanted->begin && memcmp(&entry->key, wanted->key, sizeof entry->key) == 0;
}

static struct entry *find(struct sl_kv_segments *segments, const struct key *key, int64_t begin) {
    struct wanted wanted = {key, begin};
    return SL_HASH_ENTRY(*sl_hash_table_find(&segments->by_key, hash_of(key), is_wanted, &wanted), struct entry, link);
}

static void discard(struct sl_kv_segments *segments, struct entry *entry) {
    sl_hash_table_remove(&segments->by_key, hash_of(&entry->key), &entry->link);
    unlink_use(segments, entry);
    segments->stats.n_segments--;
    segments->stats.bytes -= entry->bytes;
    sl_kv_segment_unref(&entry->segment);
    free(entry);
}

void sl_kv_segments_destroy(struct sl_kv_segments **segments_inout) {
    SL_TAKE_OR_RETURN(segments, segments_inout);
    while (segments->newest) {
        discard(segments, segments->newest);
    }
    pthread_mutex_destroy(&segments->mutex);
    sl_hash_table_cleanup(&segments->by_key);
    free(segments);
}

// ---- segments ----------------------------------------------------------------------------------------------------

enum sl_status sl_kv_segments_put(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                                  struct sl_hash128 prefix_hash, struct sl_kv_segment **segment_inout,
                                  struct sl_error *err) {
    const struct sl_kv_segment_config *config = sl_kv_segment_get_config(*segment_inout);
    SL_NEW_OR_FAIL(struct entry, entry, err, "segments: out of memory");
    entry->key = make_key(family, config->begin + config->n_slots, prefix_hash);
    entry->begin = config->begin;
    entry->bytes = sl_kv_segment_bytes(config);
    struct sl_kv_segment *refused = NULL;
    pthread_mutex_lock(&segments->mutex);
    struct entry *other = find(segments, &entry->key, entry->begin);
    if (other) {
        touch(segments, other, sl_now_ns());
        refused = *segment_inout;
        *segment_inout = sl_kv_segment_ref(other->segment);
        free(entry);
    } else {
        entry->segment = sl_kv_segment_ref(*segment_inout);
        sl_hash_table_add(&segments->by_key, hash_of(&entry->key), &entry->link);
        link_newest(segments, entry, sl_now_ns());
        segments->stats.n_segments++;
        segments->stats.bytes += entry->bytes;
    }
    pthread_mutex_unlock(&segments->mutex);
    sl_kv_segment_unref(&refused);
    return SL_OK;
}

struct sl_kv_segment *sl_kv_segments_find(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                                          const struct sl_prompt_hashes *prompt, int64_t begin, int64_t end) {
    struct key key = make_key(family, end, sl_prompt_hash_at(prompt, end));
    SL_LOCKED(&segments->mutex);
    struct entry *entry = find(segments, &key, begin);
    if (entry) {
        touch(segments, entry, sl_now_ns());
    }
    return entry ? sl_kv_segment_ref(entry->segment) : NULL;
}

// Call with the lock held. Returns the longest of the segments that end here and begin where the chain already reaches.
// reached[i] ends at the token (i + 1) * SL_PAGE_SLOTS.
static struct entry *reach(struct sl_kv_segments *segments, const struct key *key, struct entry *const *reached) {
    struct entry *best = NULL;
    for (struct sl_hash_link *link = *sl_hash_table_bucket(&segments->by_key, hash_of(key)); link; link = link->next) {
        struct entry *entry = SL_HASH_ENTRY(link, struct entry, link);
        if (memcmp(&entry->key, key, sizeof *key) == 0 &&
            (entry->begin == 0 || reached[entry->begin / SL_PAGE_SLOTS - 1]) && (!best || entry->begin < best->begin)) {
            best = entry;
        }
    }
    return best;
}

enum sl_status sl_kv_segments_chain(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                                    const struct sl_prompt_hashes *prompt, struct sl_kv_segment ***chain_out,
                                    size_t *n_chain_out, struct sl_error *err) {
    size_t n_ends = sl_pages_for(prompt->n_tokens);
    struct entry **reached = calloc(n_ends, sizeof *reached);
    struct sl_kv_segment **chain = calloc(n_ends, sizeof *chain);
    if (!reached || !chain) {
        free(reached);
        free(chain);
        return sl_fail(err, SL_ERR_EXHAUSTED, "segments: out of memory");
    }
    pthread_mutex_lock(&segments->mutex);
    struct entry *farthest = NULL;
    for (size_t i = 0; i < n_ends; i++) {
        int64_t end = (int64_t)(i + 1) * SL_PAGE_SLOTS;
        end = end < prompt->n_tokens ? end : prompt->n_tokens;
        struct key key = make_key(family, end, sl_prompt_hash_at(prompt, end));
        reached[i] = reach(segments, &key, reached);
        farthest = reached[i] ? reached[i] : farthest;
    }
    // From the last segment to the first, so that the first becomes the most recently used.
    size_t n_chain = 0;
    int64_t now_ns = sl_now_ns();
    for (struct entry *entry = farthest; entry;
         entry = entry->begin > 0 ? reached[entry->begin / SL_PAGE_SLOTS - 1] : NULL) {
        touch(segments, entry, now_ns);
        chain[n_chain++] = sl_kv_segment_ref(entry->segment);
    }
    pthread_mutex_unlock(&segments->mutex);
    for (size_t i = 0; i < n_chain / 2; i++) {
        struct sl_kv_segment *segment = chain[i];
        chain[i] = chain[n_chain - 1 - i];
        chain[n_chain - 1 - i] = segment;
    }
    free(reached);
    if (n_chain == 0) {
        free(chain);
        chain = NULL;
    }
    *chain_out = chain;
    *n_chain_out = n_chain;
    return SL_OK;
}

// Call with the lock held, and with a reference that is given up next.
static void discard_if_dropped(struct sl_kv_segments *segments, struct entry *entry) {
    // Two references stay two under the lock: new ones come from the index, or from a holder of another one.
    if (entry->is_dropped && sl_kv_segment_n_refs(entry->segment) == 2) {
        discard(segments, entry);
    }
}

void sl_kv_segments_release(struct sl_kv_segments *segments, const struct sl_kv_family *family,
                            const struct sl_prompt_hashes *prompt, const struct sl_remote_kv *remote_kv) {
    int n_segments = 0;
    while (sl_remote_kv_segment(remote_kv, n_segments)) {
        n_segments++;
    }
    int64_t now_ns = sl_now_ns();
    SL_LOCKED(&segments->mutex);
    for (int i = n_segments - 1; i >= 0; i--) {
        const struct sl_kv_segment_config *config = sl_kv_segment_get_config(sl_remote_kv_segment(remote_kv, i));
        int64_t end = config->begin + config->n_slots;
        struct key key = make_key(family, end, sl_prompt_hash_at(prompt, end));
        struct entry *entry = find(segments, &key, config->begin);
        if (entry) {
            touch(segments, entry, now_ns);
            entry->kept_until_ns = now_ns + segments->keep_ms * SL_NS_PER_MS;
            discard_if_dropped(segments, entry);
        }
    }
}

static bool is_among(const struct sl_kv_segment *segment, struct sl_kv_segment *const *list, size_t n) {
    while (n > 0 && list[n - 1] != segment) {
        n--;
    }
    return n > 0;
}

void sl_kv_segments_drop(struct sl_kv_segments *segments, struct sl_kv_segment *const *dropped, size_t n_dropped) {
    SL_LOCKED(&segments->mutex);
    for (struct entry *entry = segments->newest, *older; entry; entry = older) {
        older = entry->older;
        if (is_among(entry->segment, dropped, n_dropped)) {
            entry->is_dropped = true;
            discard_if_dropped(segments, entry);
        }
    }
}

bool sl_kv_segments_evict_one(struct sl_kv_segments *segments, int64_t now_ns) {
    SL_LOCKED(&segments->mutex);
    struct entry *entry = find_oldest(segments, now_ns);
    if (entry) {
        discard(segments, entry);
        segments->stats.n_evicted++;
    }
    return entry != NULL;
}

int64_t sl_kv_segments_oldest_ns(struct sl_kv_segments *segments, int64_t now_ns) {
    SL_LOCKED(&segments->mutex);
    const struct entry *entry = find_oldest(segments, now_ns);
    return entry ? entry->used_ns : INT64_MAX;
}

void sl_kv_segments_get_stats(struct sl_kv_segments *segments, struct sl_kv_segments_stats *stats_out) {
    SL_LOCKED(&segments->mutex);
    *stats_out = segments->stats;
    for (const struct entry *entry = segments->newest; entry; entry = entry->older) {
        stats_out->evictable_bytes += is_used(entry) ? 0 : entry->bytes;
    }
}

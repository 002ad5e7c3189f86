// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/index.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/hash_table.h"
#include "base/locked.h"
#include "kvstore/memory/tenant_bytes.h"

// The bytes of a key and of a capsule, including their shares of the table and of malloc's overhead.
#define KEY_BYTES     (sizeof(struct node) + sizeof(struct node *))
#define CAPSULE_BYTES (sizeof(struct capsule) + 16)

struct node { // a key of a capsule
    struct sl_hash_link link;
    struct capsule *capsule;
    struct sl_hash128 hash;
};

struct capsule {
    struct sl_disk_entry entry;
    struct capsule *newer, *older; // by last use
    struct sl_tenant_bytes *tenant;
    double ms_per_token; // as in struct sl_eviction_entry
    struct node nodes[]; // [n_hashes + 1]: its prefixes, then the whole
};

struct sl_disk_index {
    pthread_mutex_t mutex;
    // Under the mutex:
    size_t max_bytes;
    struct sl_hash_table by_key;
    size_t bytes;
    struct capsule *newest, *oldest;
    struct capsule *next; // the one that is ranked next; NULL: the oldest
    struct sl_tenant_table tenants;
    double ms_per_token;                // average of the measured ones
    struct sl_eviction_config eviction; // without a policy: by use
    size_t capacity_bytes;
};

enum sl_status sl_disk_index_create(size_t max_bytes, struct sl_disk_index **index_out, struct sl_error *err) {
    struct sl_disk_index *index = calloc(1, sizeof *index);
    if (!index || !sl_hash_table_init(&index->by_key, max_bytes / KEY_BYTES / 2)) {
        free(index);
        return sl_fail(err, SL_ERR_EXHAUSTED, "disk index: out of memory");
    }
    index->max_bytes = max_bytes;
    pthread_mutex_init(&index->mutex, NULL);
    *index_out = index;
    return SL_OK;
}

void sl_disk_index_limit(struct sl_disk_index *index, size_t max_bytes) {
    SL_LOCKED(&index->mutex);
    index->max_bytes = max_bytes;
}

// ---- keys (lock held) -----------------------------------------------------------------------------------------------

static struct node *node_of(const struct sl_hash_link *link) {
    return SL_HASH_ENTRY(link, struct node, link);
}

static struct sl_capsule_id key_of(const struct node *node) {
    struct sl_capsule_id key = node->capsule->entry.head.key;
    key.prefix_hash = node->hash;
    return key;
}

static bool has_key(const struct sl_hash_link *link, const void *arg) {
    const struct node *node = node_of(link);
    const struct sl_capsule_id *key = arg;
    // Nearly every other key differs here already, which saves a read of the capsule elsewhere in memory.
    if (!sl_hash128_equals(&node->hash, &key->prefix_hash)) {
        return false;
    }
    struct sl_capsule_id own = key_of(node);
    return memcmp(&own, key, sizeof own) == 0;
}

static bool is_whole(const struct node *node) {
    return node == &node->capsule->nodes[node->capsule->entry.head.n_hashes];
}

static int64_t tokens_of(const struct node *node) {
    const struct sl_disk_head *head = &node->capsule->entry.head;
    return is_whole(node) ? head->n_tokens : (node - node->capsule->nodes + 1) * head->stride;
}

static uint64_t hash_of(const struct sl_capsule_id *key) {
    return sl_hash(key, sizeof *key, 0);
}

// Returns the link to the node of this key, or the link where it would be.
static struct sl_hash_link **find(const struct sl_disk_index *index, const struct sl_capsule_id *key) {
    return sl_hash_table_find(&index->by_key, hash_of(key), has_key, key);
}

static struct capsule *find_whole(const struct sl_disk_index *index, const struct sl_capsule_id *key) {
    const struct node *node = node_of(*find(index, key));
    return node && is_whole(node) ? node->capsule : NULL;
}

// Makes the key lead to this capsule, unless it leads to a capsule that is exactly that prefix.
static void link_key(struct sl_disk_index *index, struct node *node) {
    struct sl_capsule_id key = key_of(node);
    struct sl_hash_link **at = find(index, &key);
    if (*at && is_whole(node_of(*at))) {
        return;
    }
    node->link.next = *at ? (*at)->next : NULL;
    *at = &node->link;
}

// Keys are scattered in memory: prefetch the buckets of all before visiting the first. A start links 13 million of
// them.
static void link_keys(struct sl_disk_index *index, struct capsule *capsule) {
    uint32_t n_keys = capsule->entry.head.n_hashes + 1;
    for (uint32_t i = 0; i < n_keys; i++) {
        struct sl_capsule_id key = key_of(&capsule->nodes[i]);
        __builtin_prefetch(sl_hash_table_bucket(&index->by_key, hash_of(&key)));
    }
    for (uint32_t i = 0; i < n_keys; i++) {
        link_key(index, &capsule->nodes[i]);
    }
}

// Removes the key, unless a younger capsule has taken it over.
static void unlink_key(struct sl_disk_index *index, struct node *node) {
    struct sl_capsule_id key = key_of(node);
    struct sl_hash_link **at = find(index, &key);
    if (*at == &node->link) {
        *at = node->link.next;
    }
}

// ---- order of use (lock held) ---------------------------------------------------------------------------------------

static void unlink_use(struct sl_disk_index *index, struct capsule *capsule) {
    index->next = index->next == capsule ? capsule->newer : index->next;
    *(capsule->newer ? &capsule->newer->older : &index->newest) = capsule->older;
    *(capsule->older ? &capsule->older->newer : &index->oldest) = capsule->newer;
}

static void link_newest(struct sl_disk_index *index, struct capsule *capsule) {
    capsule->newer = NULL;
    capsule->older = index->newest;
    *(index->newest ? &index->newest->newer : &index->oldest) = capsule;
    index->newest = capsule;
}

// ---- capsules -------------------------------------------------------------------------------------------------------

static size_t bytes_of(uint32_t n_hashes) {
    return CAPSULE_BYTES + KEY_BYTES * ((size_t)n_hashes + 1);
}

enum sl_status sl_disk_index_put(struct sl_disk_index *index, const struct sl_disk_entry *entry,
                                 const struct sl_hash128 *hashes, struct sl_error *err) {
    uint32_t n_hashes = entry->head.n_hashes;
    struct capsule *capsule = malloc(sizeof *capsule + sizeof *capsule->nodes * ((size_t)n_hashes + 1));
    SL_FAIL_IF(!capsule, err, SL_ERR_EXHAUSTED, "disk index: out of memory");
    capsule->entry = *entry;
    for (uint32_t i = 0; i <= n_hashes; i++) {
        capsule->nodes[i] = (struct node){{NULL}, capsule, i < n_hashes ? hashes[i] : entry->head.key.prefix_hash};
    }
    pthread_mutex_lock(&index->mutex);
    bool is_full = index->oldest && index->bytes + bytes_of(n_hashes) > index->max_bytes;
    struct sl_tenant_bytes *tenant =
        is_full ? NULL : sl_tenant_bytes_add(&index->tenants, entry->head.tenant, entry->head.body_bytes);
    if (tenant) {
        capsule->tenant = tenant;
        capsule->ms_per_token = sl_eviction_ms_per_token(&index->ms_per_token, entry->head.read_ms,
                                                         entry->head.read_tokens, entry->head.n_tokens);
        link_keys(index, capsule);
        link_newest(index, capsule);
        index->bytes += bytes_of(n_hashes);
    }
    pthread_mutex_unlock(&index->mutex);
    if (!tenant) {
        free(capsule);
        return is_full ? SL_AGAIN : sl_fail(err, SL_ERR_EXHAUSTED, "disk index: out of memory");
    }
    return SL_OK;
}

// Call with the lock held.
static void discard(struct sl_disk_index *index, struct capsule *capsule) {
    unlink_use(index, capsule);
    sl_tenant_bytes_remove(&index->tenants, capsule->tenant, capsule->entry.head.body_bytes);
    for (uint32_t i = 0; i <= capsule->entry.head.n_hashes; i++) {
        unlink_key(index, &capsule->nodes[i]);
    }
    index->bytes -= bytes_of(capsule->entry.head.n_hashes);
    free(capsule);
}

bool sl_disk_index_remove(struct sl_disk_index *index, const struct sl_disk_entry *entry) {
    SL_LOCKED(&index->mutex);
    struct capsule *capsule = find_whole(index, &entry->head.key);
    bool is_there = capsule && capsule->entry.id == entry->id;
    if (is_there) {
        discard(index, capsule);
    }
    return is_there;
}

void sl_disk_index_destroy(struct sl_disk_index **index_inout) {
    SL_TAKE_OR_RETURN(index, index_inout);
    for (struct capsule *capsule = index->newest, *older; capsule; capsule = older) {
        older = capsule->older;
        sl_tenant_bytes_remove(&index->tenants, capsule->tenant, capsule->entry.head.body_bytes);
        free(capsule);
    }
    pthread_mutex_destroy(&index->mutex);
    sl_hash_table_cleanup(&index->by_key);
    free(index);
}

// ---- questions ------------------------------------------------------------------------------------------------------

static bool answer(const struct capsule *capsule, struct sl_disk_entry *entry_out) {
    if (capsule) {
        *entry_out = capsule->entry;
    }
    return capsule != NULL;
}

bool sl_disk_index_get(struct sl_disk_index *index, const struct sl_capsule_id *key, struct sl_disk_entry *entry_out) {
    SL_LOCKED(&index->mutex);
    return answer(find_whole(index, key), entry_out);
}

bool sl_disk_index_begins_with(struct sl_disk_index *index, const struct sl_capsule_id *key,
                               const struct sl_hash128 *prefix_hash) {
    SL_LOCKED(&index->mutex);
    const struct capsule *capsule = find_whole(index, key);
    uint32_t i = 0, n = capsule ? capsule->entry.head.n_hashes : 0;
    while (i < n && !sl_hash128_equals(&capsule->nodes[i].hash, prefix_hash)) {
        i++;
    }
    return i < n;
}

bool sl_disk_index_touch(struct sl_disk_index *index, const struct sl_capsule_id *key,
                         struct sl_disk_entry *entry_out) {
    SL_LOCKED(&index->mutex);
    struct capsule *capsule = find_whole(index, key);
    if (capsule) {
        unlink_use(index, capsule);
        link_newest(index, capsule);
        capsule->entry.used_ns = sl_wall_ms() * SL_NS_PER_MS;
    }
    return answer(capsule, entry_out);
}

// Call with the lock held. Returns how many tokens of a capsule lead to another one, which has them too.
static int64_t shared_tokens(const struct sl_disk_index *index, const struct capsule *capsule) {
    const struct sl_disk_head *head = &capsule->entry.head;
    uint32_t n_shared = 0, end = head->n_hashes + 1; // keys before n_shared do, those from `end` on do not
    while (n_shared < end) {
        uint32_t middle = n_shared + (end - n_shared) / 2;
        struct sl_capsule_id key = key_of(&capsule->nodes[middle]);
        const struct sl_hash_link *at = *find(index, &key);
        if (at && node_of(at)->capsule != capsule) {
            n_shared = middle + 1;
        } else {
            end = middle;
        }
    }
    return n_shared > head->n_hashes ? head->n_tokens : n_shared * head->stride;
}

// Call with the lock held.
static struct sl_eviction_rank rank(const struct sl_disk_index *index, const struct capsule *capsule, int64_t now_ns) {
    const struct sl_disk_head *head = &capsule->entry.head;
    int64_t used_ns = capsule->entry.used_ns;
    return index->eviction.policy->rank(&(struct sl_eviction_entry){
        .n_tokens = head->n_tokens,
        .shared_tokens = shared_tokens(index, capsule),
        .bytes = head->body_bytes,
        .used_ns = used_ns,
        .idle_ns = now_ns > used_ns ? now_ns - used_ns : 0,
        .age_ns = now_ns - head->stored_ms * SL_NS_PER_MS,
        .ttl_ns = index->eviction.ttl_ms * SL_NS_PER_MS,
        .ms_per_token = capsule->ms_per_token,
        .tenant_bytes = capsule->tenant->bytes,
        .share_bytes = index->capacity_bytes / (size_t)index->tenants.n,
    });
}

// Call with the lock held. Returns the capsule of the lowest rank; `oldest` may be evicted.
static struct capsule *lowest_of(struct sl_disk_index *index, struct sl_protected *set, struct capsule *oldest) {
    int64_t now_ns = sl_wall_ms() * SL_NS_PER_MS;
    struct sl_eviction_rank lowest = rank(index, oldest, now_ns);
    struct capsule *victim = oldest, *begin = index->next ? index->next : index->oldest, *capsule = begin;
    int n = 0;
    do {
        struct sl_eviction_rank own = rank(index, capsule, now_ns);
        if (sl_eviction_is_lower(&own, &lowest) && !sl_protected_has(set, &capsule->entry.head.key)) {
            lowest = own;
            victim = capsule;
        }
        capsule = capsule->newer ? capsule->newer : index->oldest;
    } while (++n < SL_EVICTION_RANKED && capsule != begin);
    index->next = capsule;
    return victim;
}

bool sl_disk_index_victim(struct sl_disk_index *index, struct sl_protected *set, struct sl_disk_entry *entry_out) {
    SL_LOCKED(&index->mutex);
    struct capsule *capsule = index->oldest;
    while (capsule && sl_protected_has(set, &capsule->entry.head.key)) {
        capsule = capsule->newer;
    }
    const struct sl_eviction_policy *policy = index->eviction.policy;
    capsule = capsule && policy && !policy->is_by_use ? lowest_of(index, set, capsule) : capsule;
    return answer(capsule, entry_out);
}

bool sl_disk_index_can_free(struct sl_disk_index *index, struct sl_protected *set,
                            int64_t (*file_bytes)(const struct sl_disk_entry *entry), int64_t bytes) {
    SL_LOCKED(&index->mutex);
    for (const struct capsule *capsule = index->oldest; capsule && bytes > 0; capsule = capsule->newer) {
        bytes -= sl_protected_has(set, &capsule->entry.head.key) ? 0 : file_bytes(&capsule->entry);
    }
    return bytes <= 0;
}

void sl_disk_index_evict_by(struct sl_disk_index *index, const struct sl_eviction_config *eviction,
                            int64_t capacity_bytes) {
    SL_LOCKED(&index->mutex);
    index->eviction = *eviction;
    index->capacity_bytes = (size_t)capacity_bytes;
}

bool sl_disk_index_find(struct sl_disk_index *index, const struct sl_prefix *prefixes, size_t n_prefixes,
                        size_t *at_out, struct sl_disk_entry *entry_out) {
    bool found = false;
    SL_LOCKED(&index->mutex);
    for (size_t i = 0; i < n_prefixes && !found; i++) {
        const struct node *node = node_of(*find(index, &prefixes[i].id));
        found = node && tokens_of(node) == prefixes[i].n_tokens &&
                node->capsule->entry.head.n_tokens / 4 <= prefixes[i].n_tokens;
        if (found) {
            *at_out = i;
            *entry_out = node->capsule->entry;
        }
    }
    return found;
}

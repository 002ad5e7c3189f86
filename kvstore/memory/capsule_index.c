// SPDX-License-Identifier: Apache-2.0
#include "kvstore/memory/capsule_index.h"

#include <string.h>

#include "base/hash.h"

#define N_BUCKETS (1u << 20) // for a million entries; 8 MiB, touched as they are used

struct sl_prefix sl_capsule_prefix(const struct sl_capsule_keys *keys, int64_t n_tokens, size_t i) {
    struct sl_prefix prefix = {keys->id, n_tokens};
    if (i < keys->n_hashes) {
        prefix.id.prefix_hash = keys->hashes[i];
        prefix.n_tokens = (int64_t)(i + 1) * keys->stride;
    }
    return prefix;
}

bool sl_capsule_index_init(struct sl_capsule_index *index) {
    *index = (struct sl_capsule_index){0};
    return sl_hash_table_init(&index->by_id, N_BUCKETS);
}

void sl_capsule_index_cleanup(struct sl_capsule_index *index) {
    sl_hash_table_cleanup(&index->by_id);
}

static struct sl_capsule_node *node_of(const struct sl_hash_link *link) {
    return SL_HASH_ENTRY(link, struct sl_capsule_node, link);
}

static bool has_id(const struct sl_hash_link *link, const void *id) {
    return memcmp(&node_of(link)->id, id, sizeof(struct sl_capsule_id)) == 0;
}

// Returns the link to the first node of this key, or the link where it would be.
static struct sl_hash_link **find(const struct sl_capsule_index *index, const struct sl_capsule_id *id) {
    return sl_hash_table_find(&index->by_id, sl_hash(id, sizeof *id, 0), has_id, id);
}

static bool is_whole(const struct sl_capsule_node *node) {
    return memcmp(&node->id, &node->stored->keys.id, sizeof node->id) == 0;
}

const struct sl_capsule_node *sl_capsule_index_find(const struct sl_capsule_index *index,
                                                    const struct sl_capsule_id *id) {
    return node_of(*find(index, id));
}

struct sl_stored *sl_capsule_index_find_whole(const struct sl_capsule_index *index, const struct sl_capsule_id *id) {
    const struct sl_capsule_node *node = node_of(*find(index, id));
    return node && is_whole(node) ? node->stored : NULL;
}

static void add(struct sl_capsule_index *index, struct sl_capsule_node *node) {
    struct sl_hash_link **at = find(index, &node->id);
    struct sl_capsule_node *first = node_of(*at);
    node->stored->n_shared_keys += first != NULL;
    if (!first) {
        *at = &node->link;
        return;
    }
    first->stored->n_shared_keys += first->next == NULL;
    // The capsule of a document answers for the key: it stays longer than others.
    if (is_whole(first) || (!is_whole(node) && sl_protected_has(index->protected, &first->stored->keys.id))) {
        node->previous = first;
        node->next = first->next;
        first->next = node;
    } else {
        node->next = first;
        node->link = first->link;
        *at = &node->link;
    }
    if (node->next) {
        node->next->previous = node;
    }
}

static void unlink_node(struct sl_capsule_index *index, struct sl_capsule_node *node) {
    struct sl_capsule_node *next = node->next, *previous = node->previous;
    node->stored->n_shared_keys -= next || previous;
    if (next) {
        next->previous = previous;
    }
    if (previous) {
        previous->next = next;
    } else {
        struct sl_hash_link **at = find(index, &node->id);
        if (next) {
            next->link = node->link;
        }
        *at = next ? &next->link : node->link.next;
    }
    struct sl_capsule_node *other = previous ? previous : next; // the key may now lead to this one alone
    other = other && !other->previous && !other->next ? other : NULL;
    if (other) {
        other->stored->n_shared_keys--;
    }
    node->next = node->previous = NULL;
}

void sl_capsule_index_add(struct sl_capsule_index *index, struct sl_stored *stored) {
    for (size_t i = 0; i <= stored->keys.n_hashes; i++) {
        struct sl_prefix prefix = sl_capsule_prefix(&stored->keys, stored->n_tokens, i);
        stored->nodes[i] = (struct sl_capsule_node){.id = prefix.id, .n_tokens = prefix.n_tokens, .stored = stored};
        add(index, &stored->nodes[i]);
    }
}

void sl_capsule_index_remove(struct sl_capsule_index *index, struct sl_stored *stored) {
    for (size_t i = 0; i <= stored->keys.n_hashes; i++) {
        unlink_node(index, &stored->nodes[i]);
    }
}

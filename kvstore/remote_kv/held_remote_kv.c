// SPDX-License-Identifier: Apache-2.0
// One held remote KV: created, found, used by several threads at a time, and freed after its lease and its last use
// have ended.
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/lease_id.h"
#include "base/locked.h"
#include "kvstore/remote_kv/internal.h"

#define BEGINNING_BITS (UINT64_C(0xffff) << 48) // of a remote KV's id

// Returns the part of the id that remote KVs with the same beginning share.
static uint64_t beginning_of(const struct sl_kv_family *family, const struct sl_prompt_hashes *prompt) {
    int64_t first_page = prompt->n_tokens < SL_PAGE_SLOTS ? prompt->n_tokens : SL_PAGE_SLOTS;
    struct sl_hash128 beginning = sl_prompt_hash_at(prompt, first_page);
    return sl_hash(family, sizeof *family, sl_hash128_short(&beginning));
}

bool sl_remote_kv_table_begin_alike(uint64_t remote_kv_id, uint64_t other_id) {
    return ((remote_kv_id ^ other_id) & BEGINNING_BITS) == 0;
}

void sl_held_remote_kv_destroy(struct sl_held_remote_kv **held_inout) {
    SL_TAKE_OR_RETURN(held, held_inout);
    sl_window_close(&held->window);
    sl_near_memory_destroy(&held->memory);
    sl_remote_kv_destroy(&held->remote_kv);
    free(held->prompt.prefixes);
    free(held);
}

enum sl_status sl_held_remote_kv_create(const struct sl_ops *ops, const struct sl_kv_family *family,
                                        const struct sl_prompt_hashes *prompt, struct sl_held_remote_kv **held_out,
                                        struct sl_error *err) {
    size_t n_prefixes = (size_t)(prompt->n_tokens / SL_PAGE_SLOTS);
    struct sl_held_remote_kv *held = calloc(1, sizeof *held);
    struct sl_hash128 *prefixes = malloc(sizeof *prefixes * (n_prefixes + 1));
    if (!held || !prefixes) {
        free(held);
        free(prefixes);
        return sl_fail(err, SL_ERR_EXHAUSTED, "remote KVs: out of memory");
    }
    if (n_prefixes > 0) {
        memcpy(prefixes, prompt->prefixes, sizeof *prefixes * n_prefixes);
    }
    held->family = *family;
    held->prompt = (struct sl_prompt_hashes){prompt->n_tokens, prefixes, prompt->whole};
    enum sl_status status = sl_remote_kv_create(ops, family->first_offloaded_head, family->n_offloaded_heads,
                                                family->head_dim, prompt->n_tokens, &held->remote_kv, err);
    SL_THEN(status, sl_near_memory_create(held->remote_kv, &held->memory, err));
    SL_THEN_IF(status, getrandom(&held->id, sizeof held->id, 0) != sizeof held->id,
               sl_fail(err, SL_ERR_IO, "remote KVs: no random numbers from the kernel"));
    SL_TRY_OR(status, sl_held_remote_kv_destroy(&held));
    held->id = (held->id & ~BEGINNING_BITS) | (beginning_of(family, prompt) & BEGINNING_BITS);
    *held_out = held;
    return SL_OK;
}

// Shows the pages, and the key indexes for a decode worker that searches by itself.
static enum sl_status show(struct sl_held_remote_kv *held, const struct sl_kv_segment *segment, struct sl_error *err) {
    size_t n_offloaded_heads = (size_t)sl_kv_segment_get_config(segment)->n_offloaded_heads, page_stride, index_stride;
    const void *pages = sl_kv_segment_pages(segment, &page_stride);
    const void *indexes = sl_kv_segment_key_indexes(segment, &index_stride);
    enum sl_status status = sl_window_show(held->window, pages, n_offloaded_heads * page_stride, err);
    return status == SL_OK ? sl_window_show(held->window, indexes, n_offloaded_heads * index_stride, err) : status;
}

enum sl_status sl_held_remote_kv_append(struct sl_held_remote_kv *held, struct sl_kv_segment *segment,
                                        struct sl_error *err) {
    enum sl_status status = held->window ? show(held, segment, err) : SL_OK;
    return status == SL_OK ? sl_remote_kv_append(held->remote_kv, segment, err) : status;
}

void sl_held_remote_kv_pin(struct sl_remote_kv_pins *pins, const struct sl_held_remote_kv *held) {
    if (pins && sl_remote_kv_n_tokens(held->remote_kv) == held->prompt.n_tokens) {
        sl_remote_kv_pins_offer(pins, &held->capsule, &held->family, &held->prompt, held->remote_kv);
    }
}

struct sl_held_remote_kv **sl_remote_kv_table_find_lease(struct sl_remote_kv_table *remote_kvs, const char *lease_id) {
    struct sl_held_remote_kv **at = &remote_kvs->first;
    while (*at && !sl_lease_id_equals((*at)->lease_id, lease_id)) {
        at = &(*at)->next;
    }
    return at;
}

struct sl_held_remote_kv *sl_remote_kv_table_find(struct sl_remote_kv_table *remote_kvs, const char *lease_id) {
    struct sl_held_remote_kv *held = *sl_remote_kv_table_find_lease(remote_kvs, lease_id);
    if (held) {
        held->deadline_ns = sl_deadline_in_ms(remote_kvs->config.lease_ms);
    }
    return held;
}

void sl_held_remote_kv_free_if_over(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held) {
    if (!held->listed && held->n_users == 0) {
        // Its segments were used until now, not until the lease ended: a last question may have taken long.
        sl_kv_segments_release(remote_kvs->config.room->segments, &held->family, &held->prompt, held->remote_kv);
        sl_held_remote_kv_destroy(&held);
    }
}

void sl_held_remote_kv_unuse(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held) {
    held->n_users--;
    sl_held_remote_kv_free_if_over(remote_kvs, held);
}

struct sl_held_remote_kv *sl_remote_kv_table_borrow(struct sl_remote_kv_table *remote_kvs, uint64_t remote_kv_id) {
    SL_LOCKED(&remote_kvs->loop.mutex);
    struct sl_held_remote_kv *held = remote_kvs->first;
    while (held && held->id != remote_kv_id) {
        held = held->next;
    }
    if (held) {
        held->n_users++;
        held->deadline_ns = sl_deadline_in_ms(remote_kvs->config.lease_ms);
    }
    return held;
}

void sl_remote_kv_table_return(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv **held) {
    SL_WITH_LOCK(&remote_kvs->loop.mutex, sl_held_remote_kv_unuse(remote_kvs, *held));
    *held = NULL;
}

const struct sl_remote_kv *sl_held_remote_kv_get(const struct sl_held_remote_kv *held) {
    return held->remote_kv;
}

struct sl_near_memory *sl_held_remote_kv_memory(struct sl_held_remote_kv *held) {
    return held->memory;
}

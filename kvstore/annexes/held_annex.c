// SPDX-License-Identifier: Apache-2.0
// One held annex: created, found, used by several threads at a time, and freed after its lease and its last use have
// ended.
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/lease_id.h"
#include "kvstore/annexes/internal.h"

#define BEGINNING_BITS (UINT64_C(0xffff) << 48) // of an annex's id

// Returns the part of the id that annexes with the same beginning share.
static uint64_t beginning_of(const struct sl_kv_family *family, const struct sl_prompt_hashes *prompt) {
    int64_t first_page = prompt->n_tokens < SL_PAGE_SLOTS ? prompt->n_tokens : SL_PAGE_SLOTS;
    struct sl_hash128 beginning = sl_prompt_hash_at(prompt, first_page);
    return sl_hash(family, sizeof *family, sl_hash128_short(&beginning));
}

bool sl_annexes_begin_alike(uint64_t annex_id, uint64_t other_id) {
    return ((annex_id ^ other_id) & BEGINNING_BITS) == 0;
}

void sl_held_annex_destroy(struct sl_held_annex **held_inout) {
    struct sl_held_annex *held = *held_inout;
    if (!held) {
        return;
    }
    sl_window_close(&held->window);
    sl_near_memory_destroy(&held->memory);
    sl_annex_destroy(&held->annex);
    free(held->prompt.prefixes);
    free(held);
    *held_inout = NULL;
}

enum sl_status sl_held_annex_create(const struct sl_ops *ops, const struct sl_kv_family *family,
                                    const struct sl_prompt_hashes *prompt, struct sl_held_annex **held_out,
                                    struct sl_error *err) {
    size_t n_prefixes = (size_t)(prompt->n_tokens / SL_PAGE_SLOTS);
    struct sl_held_annex *held = calloc(1, sizeof *held);
    struct sl_hash128 *prefixes = malloc(sizeof *prefixes * (n_prefixes + 1));
    if (!held || !prefixes) {
        free(held);
        free(prefixes);
        return sl_fail(err, SL_ERR_EXHAUSTED, "annexes: out of memory");
    }
    if (n_prefixes > 0) {
        memcpy(prefixes, prompt->prefixes, sizeof *prefixes * n_prefixes);
    }
    held->family = *family;
    held->prompt = (struct sl_prompt_hashes){prompt->n_tokens, prefixes, prompt->whole};
    enum sl_status status = sl_annex_create(ops, family->first_lane, family->n_lanes, family->head_dim,
                                            prompt->n_tokens, &held->annex, err);
    if (status == SL_OK) {
        status = sl_near_memory_create(held->annex, &held->memory, err);
    }
    if (status == SL_OK && getrandom(&held->id, sizeof held->id, 0) != sizeof held->id) {
        status = sl_fail(err, SL_ERR_IO, "annexes: no random numbers from the kernel");
    }
    if (status != SL_OK) {
        sl_held_annex_destroy(&held);
        return status;
    }
    held->id = (held->id & ~BEGINNING_BITS) | (beginning_of(family, prompt) & BEGINNING_BITS);
    *held_out = held;
    return SL_OK;
}

// Shows the pages, and the key indexes for a decode worker that searches by itself.
static enum sl_status show(struct sl_held_annex *held, const struct sl_kv_segment *segment, struct sl_error *err) {
    size_t n_lanes = (size_t)sl_kv_segment_get_config(segment)->n_lanes, page_stride, index_stride;
    const void *pages = sl_kv_segment_pages(segment, &page_stride);
    const void *indexes = sl_kv_segment_key_indexes(segment, &index_stride);
    enum sl_status status = sl_window_show(held->window, pages, n_lanes * page_stride, err);
    return status == SL_OK ? sl_window_show(held->window, indexes, n_lanes * index_stride, err) : status;
}

enum sl_status sl_held_annex_append(struct sl_held_annex *held, struct sl_kv_segment *segment, struct sl_error *err) {
    enum sl_status status = held->window ? show(held, segment, err) : SL_OK;
    return status == SL_OK ? sl_annex_append(held->annex, segment, err) : status;
}

struct sl_held_annex **sl_annexes_find_lease(struct sl_annexes *annexes, const char *lease_id) {
    struct sl_held_annex **at = &annexes->first;
    while (*at && !sl_lease_id_equals((*at)->lease_id, lease_id)) {
        at = &(*at)->next;
    }
    return at;
}

struct sl_held_annex *sl_annexes_find(struct sl_annexes *annexes, const char *lease_id) {
    struct sl_held_annex *held = *sl_annexes_find_lease(annexes, lease_id);
    if (held) {
        held->deadline_ns = sl_deadline_in_ms(annexes->config.lease_ms);
    }
    return held;
}

void sl_held_annex_free_if_over(struct sl_annexes *annexes, struct sl_held_annex *held) {
    if (!held->listed && held->n_users == 0) {
        // Its segments were used until now, not until the lease ended: a last question may have taken long.
        sl_kv_segments_let_go(annexes->config.room->segments, &held->family, &held->prompt, held->annex);
        sl_held_annex_destroy(&held);
    }
}

void sl_held_annex_unuse(struct sl_annexes *annexes, struct sl_held_annex *held) {
    held->n_users--;
    sl_held_annex_free_if_over(annexes, held);
}

struct sl_held_annex *sl_annexes_borrow(struct sl_annexes *annexes, uint64_t annex_id) {
    pthread_mutex_lock(&annexes->mutex);
    struct sl_held_annex *held = annexes->first;
    while (held && held->id != annex_id) {
        held = held->next;
    }
    if (held) {
        held->n_users++;
        held->deadline_ns = sl_deadline_in_ms(annexes->config.lease_ms);
    }
    pthread_mutex_unlock(&annexes->mutex);
    return held;
}

void sl_annexes_return(struct sl_annexes *annexes, struct sl_held_annex **held) {
    pthread_mutex_lock(&annexes->mutex);
    sl_held_annex_unuse(annexes, *held);
    pthread_mutex_unlock(&annexes->mutex);
    *held = NULL;
}

const struct sl_annex *sl_held_annex_get(const struct sl_held_annex *held) {
    return held->annex;
}

struct sl_near_memory *sl_held_annex_memory(struct sl_held_annex *held) {
    return held->memory;
}

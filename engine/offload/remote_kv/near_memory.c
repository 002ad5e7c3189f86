// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: which tokens are in an asker's places, so that no row is sent again while the asker still has it.
 *
 * Design: for every offloaded head that was ever asked about, which token is in which place
 *         (engine/offload/remote_kv/row_places.h). A request wants at most topk tokens, and an asker has at least topk
 *         places. There are never more places than tokens, whatever the asker says. Offloaded heads are allocated in
 *         groups when one of them is asked about, because a few bytes suffice to open a remote KV with many offloaded
 *         heads, but a question must bring a query for each.
 * Threads: offloaded heads are independent of each other; a thread that loses the race to allocate a group uses the
 * winner's.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/offload/remote_kv/near_internal.h"

struct offloaded_head {
    uint64_t sequence; // of the last answered request
    uint32_t asked;    // places of the asker; 0: it never asked
    struct sl_row_places places;
};

#define GROUP_HEADS 32

struct group {
    struct offloaded_head offloaded_heads[GROUP_HEADS];
};

struct sl_near_memory {
    int first_offloaded_head, n_groups;
    int64_t max_tokens;
    _Atomic size_t bytes;
    struct group *_Atomic groups[]; // NULL: no question was about its offloaded heads yet
};

enum sl_status sl_near_memory_create(const struct sl_remote_kv *remote_kv, struct sl_near_memory **memory_out,
                                     struct sl_error *err) {
    int n_groups = (remote_kv->n_offloaded_heads + GROUP_HEADS - 1) / GROUP_HEADS;
    size_t bytes = sizeof(struct sl_near_memory) + (size_t)n_groups * sizeof(struct group *);
    struct sl_near_memory *m = calloc(1, bytes);
    SL_FAIL_IF(m == NULL, err, SL_ERR_EXHAUSTED, "no memory of what an asker has of %d offloaded heads",
               remote_kv->n_offloaded_heads);
    m->first_offloaded_head = remote_kv->first_offloaded_head;
    m->n_groups = n_groups;
    m->max_tokens = remote_kv->max_tokens;
    atomic_init(&m->bytes, bytes);
    *memory_out = m;
    return SL_OK;
}

void sl_near_memory_destroy(struct sl_near_memory **memory) {
    struct sl_near_memory *m = *memory;
    if (m == NULL) {
        return;
    }
    for (int g = 0; g < m->n_groups; g++) {
        struct group *group = atomic_load(&m->groups[g]);
        for (int i = 0; group != NULL && i < GROUP_HEADS; i++) {
            sl_row_places_cleanup(&group->offloaded_heads[i].places);
        }
        free(group);
    }
    free(m);
    *memory = NULL;
}

size_t sl_near_memory_bytes(const struct sl_near_memory *memory) {
    return atomic_load_explicit(&memory->bytes, memory_order_relaxed);
}

// Returns NULL without memory.
static struct offloaded_head *offloaded_head_of(struct sl_near_memory *m, int offloaded_head_number) {
    int i = offloaded_head_number - m->first_offloaded_head;
    struct group *_Atomic *at = &m->groups[i / GROUP_HEADS];
    struct group *group = atomic_load(at);
    if (group == NULL) {
        struct group *made = calloc(1, sizeof *made);
        if (made == NULL) {
            return NULL;
        }
        if (atomic_compare_exchange_strong(at, &group, made)) {
            atomic_fetch_add_explicit(&m->bytes, sizeof *made, memory_order_relaxed);
            group = made;
        } else {
            free(made);
        }
    }
    return &group->offloaded_heads[i % GROUP_HEADS];
}

// Resets the record: all places are empty.
static bool begin_anew(struct sl_near_memory *m, struct offloaded_head *offloaded_head, uint32_t asked) {
    uint32_t n_places = (int64_t)asked < m->max_tokens ? asked : (uint32_t)m->max_tokens;
    if (offloaded_head->asked != 0 && n_places == offloaded_head->places.n_places) {
        sl_row_places_forget(&offloaded_head->places);
    } else {
        struct sl_row_places places;
        if (!sl_row_places_init(&places, n_places)) {
            return false;
        }
        size_t more = sl_row_places_bytes(&places) - sl_row_places_bytes(&offloaded_head->places);
        atomic_fetch_add_explicit(&m->bytes, more, memory_order_relaxed);
        sl_row_places_cleanup(&offloaded_head->places);
        offloaded_head->places = places;
    }
    offloaded_head->asked = asked;
    return true;
}

enum sl_status sl_near_memory_want(struct sl_near_memory *memory, int offloaded_head_number,
                                   const struct sl_near_request *request, struct sl_row_claim *claim,
                                   struct sl_error *err) {
    struct offloaded_head *offloaded_head = offloaded_head_of(memory, offloaded_head_number);
    bool follows = offloaded_head != NULL && offloaded_head->asked == request->places &&
                   request->sequence == offloaded_head->sequence + 1;
    bool begins = (request->flags & SL_NEAR_RESET) != 0 || !follows;
    SL_FAIL_IF(offloaded_head == NULL || (begins && !begin_anew(memory, offloaded_head, request->places)), err,
               SL_ERR_EXHAUSTED, "no memory of what lies in %u places of an asker", request->places);
    sl_row_places_claim(&offloaded_head->places, claim);
    for (uint32_t i = 0; i < claim->n; i++) {
        sl_row_places_put_last(&offloaded_head->places, claim->places[i]); // by ascending token
    }
    offloaded_head->sequence = request->sequence;
    return SL_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "kvstore/memory/protected.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "engine/offload/remote_kv/segment_head.h"

struct sl_protected {
    _Atomic uint64_t version;
    pthread_mutex_t mutex;
    // Under the mutex:
    struct sl_capsule_id *ids; // [n_ids], sorted
    size_t n_ids;
    bool is_told;
    int64_t unknown_until_ns;
};

enum sl_status sl_protected_create(int64_t unknown_ms, struct sl_protected **set_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_protected, set, err, "protected capsules: out of memory");
    atomic_init(&set->version, 1);
    pthread_mutex_init(&set->mutex, NULL);
    set->unknown_until_ns = sl_deadline_in_ms(unknown_ms);
    *set_out = set;
    return SL_OK;
}

void sl_protected_destroy(struct sl_protected **set_inout) {
    SL_TAKE_OR_RETURN(set, set_inout);
    pthread_mutex_destroy(&set->mutex);
    free(set->ids);
    free(set);
}

static int by_bytes(const void *a, const void *b) {
    return memcmp(a, b, sizeof(struct sl_capsule_id));
}

void sl_protected_set(struct sl_protected *set, struct sl_capsule_id *ids, size_t n_ids) {
    if (n_ids > 0) {
        qsort(ids, n_ids, sizeof *ids, by_bytes);
    }
    pthread_mutex_lock(&set->mutex);
    struct sl_capsule_id *before = set->ids;
    bool is_same = n_ids == set->n_ids && (n_ids == 0 || memcmp(ids, before, n_ids * sizeof *ids) == 0);
    set->ids = ids;
    set->n_ids = n_ids;
    set->is_told = true;
    if (!is_same) { // the coordinator sends the same set again and again
        atomic_fetch_add(&set->version, 1);
    }
    pthread_mutex_unlock(&set->mutex);
    free(before);
}

uint64_t sl_protected_version(const struct sl_protected *set) {
    return set ? atomic_load(&set->version) : 0;
}

bool sl_protected_has(struct sl_protected *set, const struct sl_capsule_id *id) {
    if (!set) {
        return false;
    }
    uint32_t index;
    const struct sl_capsule_id segments = sl_document_segments_of(id, &index);
    SL_LOCKED(&set->mutex);
    return set->n_ids > 0 && (bsearch(id, set->ids, set->n_ids, sizeof *id, by_bytes) != NULL ||
                              bsearch(&segments, set->ids, set->n_ids, sizeof *id, by_bytes) != NULL);
}

bool sl_protected_is_known(struct sl_protected *set) {
    if (!set) {
        return true;
    }
    SL_LOCKED(&set->mutex);
    return set->is_told || sl_now_ns() >= set->unknown_until_ns;
}

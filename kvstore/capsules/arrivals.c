// SPDX-License-Identifier: Apache-2.0
#include "kvstore/capsules/arrivals.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lease_id.h"
#include "base/locked.h"
#include "base/log.h"

struct expected {
    struct expected *next;
    char lease_id[40];
    struct sl_capsule_keys keys;
};

struct sl_arrivals {
    struct sl_room *room;
    struct sl_disk *disk;
    struct sl_document_layers *layers; // NULL: none
    pthread_mutex_t mutex;             // guards the following
    struct expected *first;
};

enum sl_status sl_arrivals_create(struct sl_room *room, struct sl_disk *disk, struct sl_document_layers *layers,
                                  struct sl_arrivals **arrivals_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_arrivals, arrivals, err, "arrivals: out of memory");
    arrivals->room = room;
    arrivals->disk = disk;
    arrivals->layers = layers;
    pthread_mutex_init(&arrivals->mutex, NULL);
    *arrivals_out = arrivals;
    return SL_OK;
}

// Call with the lock held. Capsules are cached under it too, so an arriving one is always either expected or stored.
static bool knows(struct sl_arrivals *arrivals, const struct sl_capsule_id *id) {
    const struct expected *expected = arrivals->first;
    while (expected && memcmp(&expected->keys.id, id, sizeof *id) != 0) {
        expected = expected->next;
    }
    return expected != NULL || sl_capsule_cache_has(arrivals->room->capsule_cache, id) ||
           sl_document_layers_have(arrivals->layers, id);
}

enum sl_status sl_arrivals_expect(struct sl_arrivals *arrivals, const char *lease_id,
                                  const struct sl_capsule_keys *keys, struct sl_error *err) {
    struct expected *expected = calloc(1, sizeof *expected);
    struct sl_hash128 *hashes = malloc(sizeof *hashes * (keys->n_hashes + 1));
    if (!expected || !hashes) {
        free(expected);
        free(hashes);
        return sl_fail(err, SL_ERR_EXHAUSTED, "arrivals: out of memory");
    }
    if (keys->n_hashes > 0) {
        memcpy(hashes, keys->hashes, sizeof *hashes * keys->n_hashes);
    }
    snprintf(expected->lease_id, sizeof expected->lease_id, "%s", lease_id);
    expected->keys = *keys;
    expected->keys.hashes = hashes;
    pthread_mutex_lock(&arrivals->mutex);
    bool is_known = knows(arrivals, &keys->id);
    if (!is_known) {
        struct expected **end = &arrivals->first;
        while (*end) {
            end = &(*end)->next;
        }
        *end = expected;
    }
    pthread_mutex_unlock(&arrivals->mutex);
    if (is_known) {
        free(expected);
        free(hashes);
        return sl_fail(err, SL_ERR_EXISTS, "this capsule is stored, or on its way");
    }
    return SL_OK;
}

bool sl_arrivals_knows(struct sl_arrivals *arrivals, const struct sl_capsule_id *id) {
    SL_LOCKED(&arrivals->mutex);
    return knows(arrivals, id);
}

static void cache(struct sl_arrivals *arrivals, const struct expected *expected, struct sl_capsule_bytes *capsule) {
    struct sl_error err = {0};
    if (arrivals->layers && sl_kv_segment_head_is(capsule->header, capsule->header_bytes)) {
        if (sl_document_layers_put(arrivals->layers, &expected->keys.id, capsule, &err) != SL_OK) {
            sl_log_warn("kvstore", "lease=%s not kept: %s", sl_lease_name(expected->lease_id).text, err.text);
            sl_capsule_bytes_free(capsule, arrivals->room->arena);
        }
    } else if (sl_capsule_cache_put(arrivals->room->capsule_cache, &expected->keys, capsule, &err) != SL_OK) {
        sl_log_warn("kvstore", "lease=%s not cached: %s", sl_lease_name(expected->lease_id).text, err.text);
        sl_capsule_bytes_free(capsule, arrivals->room->arena);
    } else {
        sl_disk_offer(arrivals->disk, &expected->keys.id);
    }
}

static void expected_free(struct expected *expected) {
    free(expected->keys.hashes);
    free(expected);
}

bool sl_arrivals_forget(struct sl_arrivals *arrivals, const struct sl_capsule_id *id) {
    SL_LOCKED(&arrivals->mutex);
    struct expected **at = &arrivals->first, *expected;
    while (*at && memcmp(&(*at)->keys.id, id, sizeof *id) != 0) {
        at = &(*at)->next;
    }
    expected = *at;
    if (expected) {
        *at = expected->next;
        sl_inbound_release(arrivals->room->inbound, expected->lease_id);
        expected_free(expected);
    }
    bool was_cached = sl_capsule_cache_forget(arrivals->room->capsule_cache, id);
    return expected != NULL || was_cached;
}

// Makes one pass. is_last: stops waiting for what has not arrived yet.
static void look_after(struct sl_arrivals *arrivals, bool is_last) {
    const struct sl_room *room = arrivals->room;
    SL_LOCKED(&arrivals->mutex);
    for (struct expected **at = &arrivals->first; *at;) {
        struct expected *expected = *at;
        struct sl_capsule_bytes capsule;
        size_t promised;
        enum sl_status status = sl_inbound_take(room->inbound, expected->lease_id, 0, &capsule, &promised, NULL);
        if (status == SL_AGAIN && !is_last) {
            at = &expected->next;
            continue;
        }
        if (status == SL_OK) {
            sl_ledger_return(room->ledger, promised);
            cache(arrivals, expected, &capsule);
        } else {
            sl_inbound_release(room->inbound, expected->lease_id); // failed: frees its memory
        }
        *at = expected->next;
        expected_free(expected);
    }
}

void sl_arrivals_cache(struct sl_arrivals *arrivals) {
    look_after(arrivals, false);
}

void sl_arrivals_destroy(struct sl_arrivals **arrivals_inout) {
    SL_TAKE_OR_RETURN(arrivals, arrivals_inout);
    look_after(arrivals, true);
    pthread_mutex_destroy(&arrivals->mutex);
    free(arrivals);
}

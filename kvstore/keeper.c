// SPDX-License-Identifier: Apache-2.0
/*
 * The keeper: shelves what has arrived, forgets what never will, ends pins and annexes that nobody renews, measures how busy
 * the scanning threads are. A thread of its own, so that nothing of this waits for new work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "kvstore/internal.h"

#define KEEP_MS 100

// ---- expected capsules --------------------------------------------------------------------------------------------

enum sl_status sl_kvstore_expect(struct sl_kvstore *kvstore, const char *lease_id, const struct sl_capsule_keys *keys,
                                 struct sl_error *err) {
    struct sl_expected *expected = calloc(1, sizeof *expected);
    uint64_t *hashes = malloc(sizeof *hashes * (keys->n_hashes + 1));
    if (!expected || !hashes) {
        free(expected);
        free(hashes);
        return sl_fail(err, SL_ERR_EXHAUSTED, "kvstore: out of memory");
    }
    if (keys->n_hashes > 0) {
        memcpy(hashes, keys->hashes, sizeof *hashes * keys->n_hashes);
    }
    snprintf(expected->lease_id, sizeof expected->lease_id, "%s", lease_id);
    expected->keys = *keys;
    expected->keys.hashes = hashes;
    pthread_mutex_lock(&kvstore->mutex);
    expected->next = kvstore->expected;
    kvstore->expected = expected;
    pthread_mutex_unlock(&kvstore->mutex);
    return SL_OK;
}

bool sl_kvstore_expects(struct sl_kvstore *kvstore, const struct sl_capsule_id *id) {
    pthread_mutex_lock(&kvstore->mutex);
    struct sl_expected *expected = kvstore->expected;
    while (expected && memcmp(&expected->keys.id, id, sizeof *id) != 0) {
        expected = expected->next;
    }
    pthread_mutex_unlock(&kvstore->mutex);
    return expected != NULL;
}

static void shelve(struct sl_kvstore *kvstore, const struct sl_expected *expected, struct sl_capsule_bytes *capsule) {
    struct sl_error err = {0};
    if (sl_shelf_put(kvstore->shelf, &expected->keys, capsule, &err) != SL_OK) {
        sl_log_warn("kvstore", "lease=%s not shelved: %s", expected->lease_id, err.text);
        sl_capsule_bytes_free(capsule, kvstore->node.arena);
    } else {
        sl_disk_offer(kvstore->disk, &expected->keys.id);
    }
}

// Lock held. One pass over what is expected: shelve, or forget.
static void look_after_expected(struct sl_kvstore *kvstore) {
    for (struct sl_expected **at = &kvstore->expected; *at;) {
        struct sl_expected *expected = *at;
        struct sl_capsule_bytes capsule;
        size_t promised;
        enum sl_status status =
            sl_inbound_take(kvstore->node.inbound, expected->lease_id, 0, &capsule, &promised, NULL);
        if (status == SL_AGAIN && !kvstore->stopping) {
            at = &expected->next;
            continue;
        }
        if (status == SL_OK) {
            sl_ledger_return(kvstore->node.ledger, promised);
            shelve(kvstore, expected, &capsule);
        } else {
            sl_inbound_release(kvstore->node.inbound, expected->lease_id); // failed: its memory is wanted
        }
        *at = expected->next;
        free(expected->keys.hashes);
        free(expected);
    }
}

// ---- pins ---------------------------------------------------------------------------------------------------------

enum sl_status sl_kvstore_pin(struct sl_kvstore *kvstore, struct sl_stored *stored, char *id_out,
                              struct sl_error *err) {
    struct sl_pin *pin = calloc(1, sizeof *pin);
    if (!pin) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "kvstore: out of memory");
    }
    pin->stored = stored;
    pin->deadline_ns = sl_deadline_in_ms(kvstore->node.config.lease_ms);
    pthread_mutex_lock(&kvstore->mutex);
    snprintf(pin->lease_id, sizeof pin->lease_id, "pin-%016llx-%llu", (unsigned long long)kvstore->secret,
             (unsigned long long)++kvstore->next_pin);
    memcpy(id_out, pin->lease_id, sizeof pin->lease_id);
    pin->next = kvstore->pins;
    kvstore->pins = pin;
    kvstore->n_pins++;
    pthread_mutex_unlock(&kvstore->mutex);
    return SL_OK;
}

// Lock held.
static struct sl_pin **find_pin(struct sl_kvstore *kvstore, const char *lease_id) {
    struct sl_pin **at = &kvstore->pins;
    while (*at && strcmp((*at)->lease_id, lease_id) != 0) {
        at = &(*at)->next;
    }
    return at;
}

// Lock held.
static void end_pin(struct sl_kvstore *kvstore, struct sl_pin **at) {
    struct sl_pin *pin = *at;
    *at = pin->next;
    kvstore->n_pins--;
    sl_shelf_unpin(kvstore->shelf, pin->stored);
    free(pin);
}

bool sl_kvstore_renew_pin(struct sl_kvstore *kvstore, const char *lease_id) {
    pthread_mutex_lock(&kvstore->mutex);
    struct sl_pin *pin = *find_pin(kvstore, lease_id);
    if (pin) {
        pin->deadline_ns = sl_deadline_in_ms(kvstore->node.config.lease_ms);
    }
    pthread_mutex_unlock(&kvstore->mutex);
    return pin != NULL;
}

void sl_kvstore_unpin(struct sl_kvstore *kvstore, const char *lease_id) {
    pthread_mutex_lock(&kvstore->mutex);
    struct sl_pin **at = find_pin(kvstore, lease_id);
    if (*at && (*at)->in_use) {
        (*at)->deadline_ns = 0; // ends when the sending does
    } else if (*at) {
        end_pin(kvstore, at);
    }
    pthread_mutex_unlock(&kvstore->mutex);
}

struct sl_stored *sl_kvstore_borrow(struct sl_kvstore *kvstore, const char *lease_id) {
    pthread_mutex_lock(&kvstore->mutex);
    struct sl_pin *pin = *find_pin(kvstore, lease_id);
    struct sl_stored *stored = pin && !pin->in_use ? pin->stored : NULL;
    if (stored) {
        pin->in_use = true;
    }
    pthread_mutex_unlock(&kvstore->mutex);
    return stored;
}

void sl_kvstore_return(struct sl_kvstore *kvstore, const char *lease_id) {
    pthread_mutex_lock(&kvstore->mutex);
    struct sl_pin *pin = *find_pin(kvstore, lease_id);
    pin->in_use = false; // the keeper ends it if its time is up
    pthread_mutex_unlock(&kvstore->mutex);
}

// Lock held.
static void look_after_pins(struct sl_kvstore *kvstore, int64_t now_ns) {
    for (struct sl_pin **at = &kvstore->pins; *at;) {
        if (!(*at)->in_use && ((*at)->deadline_ns <= now_ns || kvstore->stopping)) {
            end_pin(kvstore, at);
        } else {
            at = &(*at)->next;
        }
    }
}

void *sl_kvstore_keeper_main(void *arg) {
    struct sl_kvstore *kvstore = arg;
    uint64_t seen = 0;
    for (bool go_on = true; go_on;) {
        sl_inbound_wait_change(kvstore->node.inbound, &seen, sl_deadline_in_ms(KEEP_MS));
        pthread_mutex_lock(&kvstore->mutex);
        look_after_expected(kvstore);
        look_after_pins(kvstore, sl_now_ns());
        go_on = !kvstore->stopping;
        pthread_mutex_unlock(&kvstore->mutex);
        sl_annexes_reap(kvstore->annexes, sl_now_ns());
        sl_questions_sample(kvstore->questions);
    }
    return NULL;
}

// SPDX-License-Identifier: Apache-2.0
#include "kvstore/capsules/pins.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/locked.h"

struct pin {
    struct pin *next;
    char id[SL_LEASE_ID_BYTES];
    struct sl_stored *stored;
    int64_t deadline_ns;
    bool in_use; // a thread sends from it: must not end now
};

struct sl_pins {
    struct sl_capsule_cache *capsule_cache;
    int64_t lease_ms;
    pthread_mutex_t mutex; // guards the following
    struct pin *first;
    int64_t n_pins;
};

enum sl_status sl_pins_create(struct sl_capsule_cache *capsule_cache, int64_t lease_ms, struct sl_pins **pins_out,
                              struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_pins, pins, err, "pins: out of memory");
    pins->capsule_cache = capsule_cache;
    pins->lease_ms = lease_ms;
    pthread_mutex_init(&pins->mutex, NULL);
    *pins_out = pins;
    return SL_OK;
}

enum sl_status sl_pins_add(struct sl_pins *pins, struct sl_stored *stored, char id_out[SL_LEASE_ID_BYTES],
                           struct sl_error *err) {
    SL_NEW_OR_FAIL(struct pin, pin, err, "pins: out of memory");
    SL_TRY_OR(sl_lease_id_draw("pin-", pin->id, err), free(pin));
    pin->stored = stored;
    pin->deadline_ns = sl_deadline_in_ms(pins->lease_ms);
    SL_LOCKED(&pins->mutex);
    memcpy(id_out, pin->id, sizeof pin->id);
    pin->next = pins->first;
    pins->first = pin;
    pins->n_pins++;
    return SL_OK;
}

// Call with the lock held.
static struct pin **find(struct sl_pins *pins, const char *id) {
    struct pin **at = &pins->first;
    while (*at && !sl_lease_id_equals((*at)->id, id)) {
        at = &(*at)->next;
    }
    return at;
}

// Call with the lock held.
static void end(struct sl_pins *pins, struct pin **at) {
    struct pin *pin = *at;
    *at = pin->next;
    pins->n_pins--;
    sl_capsule_cache_unpin(pins->capsule_cache, pin->stored);
    free(pin);
}

bool sl_pins_renew(struct sl_pins *pins, const char *id) {
    SL_LOCKED(&pins->mutex);
    struct pin *pin = *find(pins, id);
    if (pin) {
        pin->deadline_ns = sl_deadline_in_ms(pins->lease_ms);
    }
    return pin != NULL;
}

void sl_pins_release(struct sl_pins *pins, const char *id) {
    SL_LOCKED(&pins->mutex);
    struct pin **at = find(pins, id);
    if (*at && (*at)->in_use) {
        (*at)->deadline_ns = 0;
    } else if (*at) {
        end(pins, at);
    }
}

void sl_pins_reap(struct sl_pins *pins, int64_t now_ns) {
    SL_LOCKED(&pins->mutex);
    for (struct pin **at = &pins->first; *at;) {
        if (!(*at)->in_use && (*at)->deadline_ns <= now_ns) {
            end(pins, at);
        } else {
            at = &(*at)->next;
        }
    }
}

struct sl_stored *sl_pins_borrow(struct sl_pins *pins, const char *id) {
    SL_LOCKED(&pins->mutex);
    struct pin *pin = *find(pins, id);
    struct sl_stored *stored = pin && !pin->in_use ? pin->stored : NULL;
    if (stored) {
        pin->in_use = true;
    }
    return stored;
}

void sl_pins_return(struct sl_pins *pins, const char *id) {
    SL_LOCKED(&pins->mutex);
    (*find(pins, id))->in_use = false;
}

int64_t sl_pins_count(struct sl_pins *pins) {
    SL_LOCKED(&pins->mutex);
    return pins->n_pins;
}

void sl_pins_destroy(struct sl_pins **pins_inout) {
    SL_TAKE_OR_RETURN(pins, pins_inout);
    sl_pins_reap(pins, INT64_MAX);
    pthread_mutex_destroy(&pins->mutex);
    free(pins);
}

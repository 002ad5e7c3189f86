// SPDX-License-Identifier: Apache-2.0
// Purpose: see kept.h.
#include "decode/kept.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"

void sl_kept_init(struct sl_kept *kept) {
    kept->first = NULL;
    pthread_mutex_init(&kept->mutex, NULL);
    sl_cond_init(&kept->returned);
}

void sl_kept_cleanup(struct sl_kept *kept) {
    while (sl_kept_drop_oldest(kept)) {
    }
    pthread_cond_destroy(&kept->returned);
    pthread_mutex_destroy(&kept->mutex);
}

void sl_kept_free(struct sl_kept_session *one) {
    if (one) {
        sl_session_destroy(&one->session);
        free(one);
    }
}

void sl_kept_put_back(struct sl_kept *kept, struct sl_kept_session *one) {
    one->next = NULL;
    pthread_mutex_lock(&kept->mutex);
    struct sl_kept_session **end = &kept->first;
    while (*end) {
        end = &(*end)->next;
    }
    *end = one;
    pthread_mutex_unlock(&kept->mutex);
}

enum sl_status sl_kept_put(struct sl_kept *kept, const struct sl_capsule_id *id, struct sl_session **session_inout,
                           int64_t keep_ms, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    struct sl_kept_session *one = calloc(1, sizeof *one);
    enum sl_status status =
        one ? sl_lease_id_draw("kept", one->lease_id, err) : sl_fail(err, SL_ERR_EXHAUSTED, "kept: out of memory");
    if (status != SL_OK) {
        free(one);
        return status;
    }
    one->id = *id;
    one->session = *session_inout;
    one->deadline_ns = sl_deadline_in_ms(keep_ms);
    *session_inout = NULL;
    memcpy(lease_id_out, one->lease_id, sizeof one->lease_id);
    sl_kept_put_back(kept, one);
    return SL_OK;
}

// Returns the link to the session of a lease. Lock held.
static struct sl_kept_session **find(struct sl_kept *kept, const char *lease_id) {
    struct sl_kept_session **at = &kept->first;
    while (*at && !sl_lease_id_equals((*at)->lease_id, lease_id)) {
        at = &(*at)->next;
    }
    return at;
}

// Unlinks a session; returns NULL at the end of the list. Lock held.
static struct sl_kept_session *unlink_at(struct sl_kept_session **at) {
    struct sl_kept_session *one = *at;
    if (one) {
        *at = one->next;
    }
    return one;
}

// Unlinks the first session that has expired by then.
static struct sl_kept_session *take_over(struct sl_kept *kept, int64_t over_ns) {
    pthread_mutex_lock(&kept->mutex);
    struct sl_kept_session **at = &kept->first;
    while (*at && ((*at)->is_lent || (*at)->deadline_ns > over_ns)) {
        at = &(*at)->next;
    }
    struct sl_kept_session *one = unlink_at(at);
    pthread_mutex_unlock(&kept->mutex);
    return one;
}

struct sl_kept_session *sl_kept_take(struct sl_kept *kept, const char *lease_id, int64_t deadline_ns) {
    struct sl_kept_session **at;
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&kept->mutex);
    while (*(at = find(kept, lease_id)) && (*at)->is_lent && status == SL_OK) {
        status = sl_cond_wait_until(&kept->returned, &kept->mutex, deadline_ns);
    }
    struct sl_kept_session *one = *at && !(*at)->is_lent ? unlink_at(at) : NULL;
    pthread_mutex_unlock(&kept->mutex);
    return one;
}

struct sl_kept_session *sl_kept_lend(struct sl_kept *kept, const char *lease_id) {
    pthread_mutex_lock(&kept->mutex);
    struct sl_kept_session *one = *find(kept, lease_id);
    one = one && !one->is_lent ? one : NULL;
    if (one) {
        one->is_lent = true;
    }
    pthread_mutex_unlock(&kept->mutex);
    return one;
}

void sl_kept_return(struct sl_kept *kept, struct sl_kept_session *one) {
    pthread_mutex_lock(&kept->mutex);
    one->is_lent = false;
    bool is_over = one->is_over;
    if (is_over) {
        (void)unlink_at(find(kept, one->lease_id));
    }
    pthread_cond_broadcast(&kept->returned);
    pthread_mutex_unlock(&kept->mutex);
    if (is_over) {
        sl_kept_free(one);
    }
}

void sl_kept_release(struct sl_kept *kept, const char *lease_id) {
    pthread_mutex_lock(&kept->mutex);
    struct sl_kept_session **at = find(kept, lease_id), *one = NULL;
    if (*at && (*at)->is_lent) {
        (*at)->is_over = true;
    } else {
        one = unlink_at(at);
    }
    pthread_mutex_unlock(&kept->mutex);
    sl_kept_free(one);
}

bool sl_kept_drop_oldest(struct sl_kept *kept) {
    struct sl_kept_session *one = take_over(kept, INT64_MAX);
    bool any = one != NULL;
    sl_kept_free(one);
    return any;
}

void sl_kept_reap(struct sl_kept *kept) {
    struct sl_kept_session *one;
    while ((one = take_over(kept, sl_now_ns())) != NULL) {
        sl_kept_free(one);
    }
}

int64_t sl_kept_count(struct sl_kept *kept) {
    int64_t n = 0;
    pthread_mutex_lock(&kept->mutex);
    for (const struct sl_kept_session *one = kept->first; one; one = one->next) {
        n++;
    }
    pthread_mutex_unlock(&kept->mutex);
    return n;
}

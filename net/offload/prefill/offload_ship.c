// SPDX-License-Identifier: Apache-2.0
/*
 * The thread of a job that ships segments to all stores and renews the leases of its remote KVs.
 *
 * It ships all queued segments at once: it gets grants from all stores, sends pieces directly from the session's pages,
 * and waits for every store's confirmation. At multiples of SL_ATTEND_SPLIT tokens it also asks where the segments lie,
 * so that they can be read back. After the last segment it waits until every store can be asked about the whole prompt.
 */

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/node/send.h"
#include "net/offload/prefill/offload_internal.h"

#define SHIP_MS 15000
#define BUILD_MS                                                                                                       \
    10000 // without progress: a store makes the key indexes of a segment after answering the questions of other jobs

struct watch {
    struct sl_offload *offload;
    int64_t renew_ns;
    enum sl_status status; // of the renewals
    struct sl_error err;
};

// ---- leases --------------------------------------------------------------------------------------------------------

static int64_t next_renewal_ns(const struct sl_offload *offload) {
    int64_t lease_ms = INT64_MAX;
    for (int i = 0; i < offload->n_links; i++) {
        lease_ms = offload->links[i].remote_kv->lease_ms < lease_ms ? offload->links[i].remote_kv->lease_ms : lease_ms;
    }
    return sl_deadline_in_ms(lease_ms / 3);
}

static enum sl_status renew_if_due(struct watch *watch, struct sl_error *err) {
    struct sl_offload *offload = watch->offload;
    if (sl_now_ns() < watch->renew_ns) {
        return SL_OK;
    }
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < offload->n_links; i++) {
        status = sl_store_link_renew(offload, &offload->links[i], err);
    }
    watch->renew_ns = next_renewal_ns(offload);
    return status;
}

// Waits until a store can be asked about the first n_tokens. Meanwhile renews the leases of all stores; watch NULL: the
// caller does that elsewhere.
static enum sl_status await_tokens(struct sl_offload *offload, struct sl_store_link *link, int64_t n_tokens,
                                   struct watch *watch, struct sl_error *err) {
    int64_t n_built = 0, n_before = -1, deadline_ns = 0;
    enum sl_status status;
    while ((status = sl_store_link_await(offload, link, n_tokens, &n_built, err)) == SL_AGAIN) {
        // the engine may wait for us: this wait is bounded, and we make progress
        sl_progress_counter_tick(&offload->node->engine);
        SL_TRY(watch ? renew_if_due(watch, err) : SL_OK);
        if (n_built > n_before) {
            deadline_ns = sl_deadline_in_ms(BUILD_MS);
        } else if (sl_now_ns() >= deadline_ns) {
            struct sl_error why;
            sl_fail(&why, SL_ERR_PEER_LOST, "its remote KV has had %lld tokens of %lld for %d ms", (long long)n_built,
                    (long long)n_tokens, BUILD_MS);
            return sl_store_link_fail(link, why.status, &why, err);
        }
        n_before = n_built > n_before ? n_built : n_before;
    }
    return status;
}

// Called while bytes are in transit.
static bool keep_shipping(void *arg) {
    struct watch *watch = arg;
    sl_progress_counter_tick(&watch->offload->node->engine);
    watch->status = renew_if_due(watch, &watch->err);
    return watch->status == SL_OK && !atomic_load(&watch->offload->stopping);
}

// ---- one segment ---------------------------------------------------------------------------------------------------

struct sending {
    struct sl_ship *ship; // NULL: nothing to send to this store
    size_t bytes;
    uint32_t n_slots;
};

// Queues the pages; adjacent pages of adjacent offloaded heads and tokens travel as one piece.
static enum sl_status queue_pages(struct sl_offload *offload, const struct sl_store_link *link,
                                  const struct sl_shipment *shipment, uint32_t skipped, struct sending *sending) {
    uint32_t n_pages = sl_pages_for(shipment->n_slots);
    size_t page_bytes = offload->work.bytes, piece = 0;
    const char *begin = NULL;
    enum sl_status status = SL_OK;
    for (int l = 0; l < link->share->n_lanes; l++) {
        const void *const *pages = shipment->pages + (size_t)(link->share->first_lane + l) * SL_KV_SEGMENT_PAGES;
        for (uint32_t p = skipped; status == SL_OK && p < n_pages; p++) {
            if (piece > 0 && begin + piece != pages[p]) {
                status = sl_ship_piece(sending->ship, sending->bytes - piece, begin, piece);
                piece = 0;
            }
            begin = piece == 0 ? pages[p] : begin;
            piece += page_bytes;
            sending->bytes += page_bytes;
        }
    }
    return status == SL_OK && piece > 0 ? sl_ship_piece(sending->ship, sending->bytes - piece, begin, piece) : status;
}

// Starts to send the part of the shipment that a store does not have yet. If the store has no room until earlier
// segments are built, watch tells to wait for that; watch NULL: the shipments in transit take the room, so it fails
// with SL_ERR_EXHAUSTED.
static enum sl_status begin_sending(struct sl_offload *offload, struct sl_store_link *link,
                                    const struct sl_shipment *shipment, struct watch *watch, struct sending *sending,
                                    struct sl_error *err) {
    int64_t end = shipment->begin + shipment->n_slots;
    int64_t begin = link->n_tokens > shipment->begin ? link->n_tokens : shipment->begin;
    if (begin >= end) {
        return SL_OK;
    }
    Sluice__V1__Grant *grant = NULL;
    enum sl_status status = sl_store_link_grant(offload, link, begin, (uint32_t)(end - begin), &grant, err);
    if (status == SL_ERR_EXHAUSTED && watch && link->n_tokens > link->remote_kv->n_tokens) {
        status = await_tokens(offload, link, link->n_tokens, watch, err);
        SL_THEN(status, sl_store_link_grant(offload, link, begin, (uint32_t)(end - begin), &grant, err));
    }
    if (status == SL_ERR_EXISTS) {
        link->n_tokens = end;
        return SL_OK;
    }
    SL_TRY(status);
    status = sl_ship_open(offload->node->fabric, grant->ticket.data, grant->ticket.len, sl_deadline_in_ms(SHIP_MS),
                          &sending->ship, err);
    protobuf_c_message_free_unpacked(&grant->base, NULL);
    SL_TRY(status);
    uint32_t skipped = (uint32_t)((begin - shipment->begin) / SL_PAGE_SLOTS);
    status = queue_pages(offload, link, shipment, skipped, sending);
    sending->n_slots = (uint32_t)(end - begin);
    link->n_tokens = end;
    if (status == SL_ERR_RANGE) {
        struct sl_error why;
        sl_fail(&why, SL_ERR_PEER_CORRUPT, "its grant is too small");
        return sl_store_link_fail(link, why.status, &why, err);
    }
    if (status == SL_ERR_EXHAUSTED) { // some pieces are not queued: the store must not get an end
        sl_ship_close(&sending->ship);
        return sl_fail(err, status, "offload: out of memory for the pieces of a segment");
    }
    return SL_OK; // sl_send_finish() reports a ship that has failed
}

static enum sl_status finish_sending(struct sl_offload *offload, const struct sl_store_link *link,
                                     struct sending *sending, struct watch *watch, struct sl_error *err) {
    if (!sending->ship) {
        return SL_OK;
    }
    struct sl_send send = {.go_on = keep_shipping, .arg = watch};
    struct sl_error why = {0};
    enum sl_status status = sl_send_finish(&sending->ship, &send, &why);
    if (watch->status != SL_OK) {
        *err = watch->err;
        return watch->status;
    }
    if (status != SL_OK) {
        bool lost = status == SL_ERR_DEADLINE || status == SL_ERR_CANCELLED;
        status = lost && !atomic_load(&offload->stopping) ? SL_ERR_PEER_LOST : status;
        return sl_store_link_fail(link, status, &why, err);
    }
    SL_LOCKED(&offload->mutex);
    offload->shipped_bytes += (int64_t)sending->bytes;
    offload->shipped_tokens += link->share->replica == 0 && link->share->first_lane == 0 ? sending->n_slots : 0;
    return SL_OK;
}

static enum sl_status map(struct sl_offload *offload, int64_t n_tokens, struct watch *watch, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < offload->n_links; i++) {
        status = await_tokens(offload, &offload->links[i], n_tokens, watch, err);
        SL_THEN(status, sl_store_link_map(offload, &offload->links[i], n_tokens, err));
    }
    if (status == SL_OK) {
        SL_LOCKED(&offload->mutex);
        offload->n_mapped = n_tokens;
    }
    return status;
}

enum sl_status sl_offload_map(struct sl_offload *offload, int64_t n_tokens, struct sl_error *err) {
    return map(offload, n_tokens, NULL, err);
}

// Completes a shipment that all stores have: maps it after every split, and frees its entry of the ring.
static enum sl_status settle(struct sl_offload *offload, const struct sl_shipment *shipment, struct watch *watch,
                             struct sl_error *err) {
    int64_t end = shipment->begin + shipment->n_slots, split = end / SL_ATTEND_SPLIT * SL_ATTEND_SPLIT;
    enum sl_status status = SL_OK;
    // Only this thread maps while it runs.
    if (split > offload->n_mapped && split < offload->n_slots) {
        status = map(offload, split, watch, err);
    }
    if (status == SL_OK) {
        SL_LOCKED(&offload->mutex);
        offload->first = (offload->first + 1) % SL_RING;
        offload->n_queued--;
        pthread_cond_broadcast(&offload->changed);
    }
    return status;
}

// Clears the slots without a token in what has come down from a device, whose memory may have held other sessions' there.
static void clear_staged(const struct sl_offload *offload, const struct sl_shipment *shipment) {
    uint32_t n_last = shipment->n_slots % SL_PAGE_SLOTS;
    size_t head_bytes = sl_pages_for(shipment->n_slots) * (size_t)offload->work.bytes;
    for (int h = 0; shipment->staged && n_last > 0 && h < sl_offloaded_heads_count(&offload->offloaded_heads); h++) {
        sl_page_clear(&offload->work, shipment->staged + (size_t)(h + 1) * head_bytes - offload->work.bytes, n_last);
    }
}

// Ships all queued shipments concurrently, as far as the stores have room for them.
static enum sl_status ship(struct sl_offload *offload, int first, int n_queued, struct watch *watch,
                           struct sl_error *err) {
    struct sending sendings[SL_RING][SL_MAX_LINKS] = {0};
    enum sl_status status = SL_OK;
    int n_begun = n_queued;
    for (int s = 0; s < n_begun; s++) {
        const struct sl_shipment *shipment = &offload->ring[(first + s) % SL_RING];
        SL_THEN(status, sl_mark_wait(&shipment->down, err));
        clear_staged(offload, shipment);
        for (int i = 0; status == SL_OK && i < offload->n_links; i++) {
            status = begin_sending(offload, &offload->links[i], shipment, s == 0 ? watch : NULL, &sendings[s][i], err);
        }
        bool full = status == SL_ERR_EXHAUSTED && err->reason == SL_REASON_STORE; // our own memory is no reason to wait
        if (full && s > 0) { // the rest follows when those before it have been built
            n_begun = s;
            status = SL_OK;
        }
    }
    for (int s = 0; s < n_queued; s++) {
        for (int i = 0; status == SL_OK && i < offload->n_links; i++) {
            status = finish_sending(offload, &offload->links[i], &sendings[s][i], watch, err);
        }
        SL_THEN(status, s < n_begun ? settle(offload, &offload->ring[(first + s) % SL_RING], watch, err) : SL_OK);
    }
    for (int s = 0; s < n_queued; s++) {
        for (int i = 0; i < offload->n_links; i++) {
            sl_ship_close(&sendings[s][i].ship);
        }
    }
    return status;
}

// ---- the thread ----------------------------------------------------------------------------------------------------

// Waits until every store serves the whole prompt under its lease. That proves that all data read back before was the
// data that we shipped.
static enum sl_status complete(struct sl_offload *offload, struct watch *watch, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < offload->n_links; i++) {
        status = await_tokens(offload, &offload->links[i], offload->n_slots, watch, err);
    }
    return status;
}

void *sl_offload_ship_main(void *arg) {
    struct sl_offload *offload = arg;
    sl_log_set_job(offload->job_id);
    struct watch watch = {.offload = offload, .renew_ns = next_renewal_ns(offload)};
    pthread_mutex_lock(&offload->mutex);
    while (!atomic_load(&offload->stopping) && offload->status == SL_OK) {
        int first = offload->first, n_queued = offload->n_queued;
        bool finish = n_queued == 0 && offload->no_more && !offload->complete;
        if (n_queued == 0 && !finish && sl_now_ns() < watch.renew_ns) {
            sl_cond_wait_until(&offload->changed, &offload->mutex, watch.renew_ns);
            continue;
        }
        pthread_mutex_unlock(&offload->mutex);
        struct sl_error err = {0};
        enum sl_status status = renew_if_due(&watch, &err);
        if (status == SL_OK && n_queued > 0) {
            status = ship(offload, first, n_queued, &watch, &err);
        } else if (status == SL_OK && finish) {
            status = complete(offload, &watch, &err);
        }
        pthread_mutex_lock(&offload->mutex);
        if (status != SL_OK) {
            offload->status = status;
            offload->err = err;
        } else if (finish) {
            offload->complete = true;
        }
        pthread_cond_broadcast(&offload->changed);
    }
    pthread_mutex_unlock(&offload->mutex);
    return NULL;
}

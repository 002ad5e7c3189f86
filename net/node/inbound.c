// SPDX-License-Identifier: Apache-2.0
#include "net/node/inbound.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"

#define REAP_MS   100
#define STOP_MS   5000
#define MOST_LOST 3 // lost ships in a row into device memory: the network fails there

enum state { OPEN, RECEIVED, FAILED, TAKEN };

struct transfer {
    struct sl_inbound *table;
    struct transfer *next;
    char id[SL_LEASE_ID_BYTES];
    enum state state;
    int64_t deadline_ns;
    void *block, *there; // in staging memory; in device memory, NULL: this one is staged
    bool in_device;      // arrived `there`
    size_t body_bytes, promised_bytes;
    uint64_t n_lost_ever; // the table's counter when this was opened
    struct sl_grant *grant;
    uint8_t *header;
    size_t header_bytes;
    struct sl_error failure;
    bool released; // the fabric has released the block
    bool listed;   // still in the table: a lease
};

struct sl_inbound {
    struct sl_fabric *fabric;
    struct sl_ledger *staging, *sessions;
    struct sl_arena *arena; // of staging memory
    int64_t lease_ms;
    struct sl_arena *device; // of the device memory in which capsules arrive straight; NULL: everything is staged
    sl_inbound_verify_fn verify;
    void *verify_arg;
    // ends leases that were not renewed. Its mutex guards the following, and the ledger's is taken under it; changed: an
    // inbound transfer has arrived, failed or ended
    struct sl_loop loop;
    uint64_t n_changes; // how many changes
    struct transfer *first;
    int64_t n_leases;
    int n_lost;           // ships lost into device memory since one arrived; each began after the previous loss
    uint64_t n_lost_ever; // such losses since the start
    int64_t n_held;       // inbound transfers whose memory exists, listed or not
};

// Call with the lock held.
static void announce(struct sl_inbound *table) {
    table->n_changes++;
    pthread_cond_broadcast(&table->loop.changed);
}

// Call with the lock held. Frees the transfer and its memory when it is neither leased nor used by the fabric.
static void free_if_over(struct transfer *transfer) {
    if (transfer->listed || !transfer->released) {
        return;
    }
    struct sl_inbound *table = transfer->table;
    bool taken = transfer->state == TAKEN;
    if (!taken || transfer->in_device) {
        sl_arena_free(table->arena, transfer->block);
    }
    if (!taken || !transfer->in_device) {
        sl_arena_free(table->device, transfer->there);
    }
    if (!taken) {
        free(transfer->header);
    }
    table->n_held--;
    announce(table);
    free(transfer);
}

// ---- callbacks of the fabric (progress thread) -------------------------------------------------------------------

static void on_arrived(void *arg, struct sl_arrival *arrival) {
    struct sl_inbound *table = ((struct transfer *)arg)->table;
    table->verify(table->verify_arg, arrival);
}

// Returns true for a failure that the network may have caused. Several ships lost with one sender count as one loss.
static bool is_loss(const struct transfer *transfer, enum sl_status status) {
    return status != SL_OK && status != SL_ERR_CANCELLED && status != SL_ERR_DEADLINE &&
           transfer->n_lost_ever == transfer->table->n_lost_ever;
}

// Call with the lock held. Counts the end of a ship into device memory.
static void judge(const struct transfer *transfer, enum sl_status status) {
    struct sl_inbound *table = transfer->table;
    if (table->n_lost == MOST_LOST) {
        return;
    }
    if (status == SL_OK) {
        table->n_lost = 0;
    } else if (status == SL_ERR_PEER_CORRUPT) {
        table->n_lost = MOST_LOST;
    } else if (is_loss(transfer, status)) {
        table->n_lost++;
        table->n_lost_ever++;
    }
    if (table->n_lost == MOST_LOST) {
        sl_log_warn("inbound", "what was put into the device's memory did not arrive (%s): it is staged from now on",
                    sl_status_text(status));
    }
}

static void on_complete(void *arg, const void *header, size_t header_bytes, size_t body_bytes) {
    struct transfer *transfer = arg;
    struct sl_inbound *table = transfer->table;
    uint8_t *copy = malloc(header_bytes ? header_bytes : 1);
    SL_LOCKED(&table->loop.mutex);
    transfer->in_device = transfer->grant && sl_grant_is_in_device(transfer->grant); // no grant: it was just given up
    if (transfer->in_device) {
        judge(transfer, SL_OK);
        sl_arena_free(table->arena, transfer->block); // nothing arrived in it
        transfer->block = NULL;
    }
    if (!copy) {
        transfer->state = FAILED;
        sl_fail(&transfer->failure, SL_ERR_EXHAUSTED, "no memory for a capsule header of %zu bytes", header_bytes);
    } else {
        memcpy(copy, header, header_bytes);
        transfer->header = copy;
        transfer->header_bytes = header_bytes;
        transfer->body_bytes = body_bytes;
        transfer->state = RECEIVED;
    }
    announce(table);
}

static void on_failure(void *arg, enum sl_status status, const char *text) {
    struct transfer *transfer = arg;
    struct sl_inbound *table = transfer->table;
    SL_LOCKED(&table->loop.mutex);
    if (transfer->grant && sl_grant_is_in_device(transfer->grant)) {
        judge(transfer, status);
    }
    if (transfer->state == OPEN) {
        transfer->state = FAILED;
        sl_fail(&transfer->failure, status, "capsule did not arrive: %s", text);
    }
    announce(table);
}

static void on_release(void *arg) {
    struct transfer *transfer = arg;
    struct sl_inbound *table = transfer->table;
    SL_LOCKED(&table->loop.mutex);
    transfer->released = true;
    free_if_over(transfer);
}

// ---- the table -----------------------------------------------------------------------------------------------------

static struct transfer **find(struct sl_inbound *table, const char *id) {
    struct transfer **at = &table->first;
    while (*at && !sl_lease_id_equals((*at)->id, id)) {
        at = &(*at)->next;
    }
    return at;
}

// Call with the lock held. Ends the lease. Returns the grant; the caller closes it without the lock, as its callbacks
// take it.
static struct sl_grant *unlist(struct sl_inbound *table, struct transfer **at) {
    struct transfer *transfer = *at;
    *at = transfer->next;
    transfer->listed = false;
    if (transfer->state != TAKEN) {
        sl_ledger_return(table->sessions, transfer->promised_bytes);
    }
    table->n_leases--; // after its promise is returned: without leases there are no promises
    announce(table);
    struct sl_grant *grant = transfer->grant;
    transfer->grant = NULL;
    return grant;
}

// Ends every lease whose deadline has passed (all of them when stopping).
static void reap(struct sl_inbound *table, int64_t now_ns) {
    for (;;) {
        struct transfer **at = &table->first;
        while (*at && (*at)->deadline_ns > now_ns && !table->loop.stopping) {
            at = &(*at)->next;
        }
        if (!*at) {
            return;
        }
        if (!table->loop.stopping) {
            sl_log_warn("inbound", "lease=%s expired: nobody renewed it for %lld ms", sl_lease_name((*at)->id).text,
                        (long long)table->lease_ms);
        }
        struct sl_grant *grant = unlist(table, at);
        pthread_mutex_unlock(&table->loop.mutex);
        sl_grant_close(&grant);
        pthread_mutex_lock(&table->loop.mutex);
    }
}

static void *reaper_main(void *arg) {
    struct sl_inbound *table = arg;
    SL_LOCKED(&table->loop.mutex);
    while (!table->loop.stopping) {
        sl_loop_wait(&table->loop, sl_deadline_in_ms(REAP_MS));
        reap(table, sl_now_ns());
    }
    return NULL;
}

enum sl_status sl_inbound_create(struct sl_fabric *fabric, struct sl_ledger *staging, struct sl_ledger *sessions,
                                 int64_t lease_ms, struct sl_inbound **inbound_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_inbound, table, err, "inbound transfers: out of memory");
    table->fabric = fabric;
    table->staging = staging;
    table->sessions = sessions;
    table->arena = sl_ledger_arena(staging);
    table->lease_ms = lease_ms;
    sl_loop_init(&table->loop);
    SL_TRY_OR(sl_loop_start(&table->loop, "reaper", reaper_main, table, err), sl_inbound_destroy(&table));
    *inbound_out = table;
    return SL_OK;
}

void sl_inbound_go_straight(struct sl_inbound *table, struct sl_arena *arena, sl_inbound_verify_fn verify, void *arg) {
    table->device = arena;
    table->verify = verify;
    table->verify_arg = arg;
}

void sl_inbound_close(struct sl_inbound *table) {
    pthread_mutex_lock(&table->loop.mutex);
    table->loop.stopping = true;
    announce(table);
    reap(table, INT64_MAX);
    pthread_mutex_unlock(&table->loop.mutex);
    sl_loop_stop(&table->loop);
}

void sl_inbound_destroy(struct sl_inbound **inbound) {
    struct sl_inbound *table = *inbound;
    if (!table) {
        return;
    }
    sl_inbound_close(table);
    pthread_mutex_lock(&table->loop.mutex);
    int64_t deadline = sl_deadline_in_ms(STOP_MS);
    while (table->n_held > 0 && sl_loop_wait(&table->loop, deadline) == SL_OK) {
    }
    int64_t n_held = table->n_held;
    pthread_mutex_unlock(&table->loop.mutex);
    *inbound = NULL;
    if (n_held > 0) {
        // The fabric still holds them and will call back into this table: the table must stay.
        sl_log_error("inbound", "%lld blocks were not released by the fabric in %d ms", (long long)n_held, STOP_MS);
        return;
    }
    sl_loop_cleanup(&table->loop);
    free(table);
}

// Call with the lock held. Takes both the block and the promise, or neither.
static enum sl_status take_memory(struct sl_inbound *table, struct transfer *transfer, const char *label,
                                  size_t body_bytes, size_t promised_bytes, struct sl_error *err) {
    if (table->staging == table->sessions) {
        transfer->promised_bytes = promised_bytes;
        return sl_ledger_take_block(table->staging, label, body_bytes, promised_bytes, &transfer->block, err);
    }
    SL_FAIL_IF(body_bytes > SIZE_MAX / 4 || promised_bytes > SIZE_MAX / 4, err, SL_ERR_INVALID,
               "%s: a capsule of %zu bytes cannot be reserved", label, body_bytes);
    struct sl_arena_stats staging;
    sl_arena_get_stats(table->arena, &staging);
    SL_FAIL_IF(body_bytes > staging.capacity_bytes, err, SL_ERR_PRECONDITION,
               "%s: a capsule of %zu bytes and this worker has --staging %zu; start it with more", label, body_bytes,
               staging.capacity_bytes);
    bool straight = table->device && table->n_lost < MOST_LOST;
    transfer->promised_bytes = body_bytes + promised_bytes;
    SL_FAIL_IF(sl_ledger_try_promise(table->sessions, transfer->promised_bytes) != SL_OK, err, SL_ERR_EXHAUSTED,
               "%s: %zu bytes for the capsule and %zu beside it do not fit the device's arena; retry in 500 ms", label,
               body_bytes, promised_bytes);
    enum sl_status status = sl_ledger_take_block(table->staging, label, body_bytes, 0, &transfer->block, err);
    if (status != SL_OK) {
        sl_ledger_return(table->sessions, transfer->promised_bytes);
    } else if (straight) {
        transfer->there = sl_arena_alloc(table->device, body_bytes); // NULL: it is staged
        transfer->n_lost_ever = table->n_lost_ever;
    }
    return status;
}

enum sl_status sl_inbound_open(struct sl_inbound *table, const char *label, size_t body_bytes, size_t promised_bytes,
                               struct sl_inbound_ticket *ticket_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct transfer, transfer, err, "inbound transfers: out of memory");
    transfer->table = table;
    transfer->deadline_ns = sl_deadline_in_ms(table->lease_ms);
    enum sl_status status = sl_lease_id_draw("", transfer->id, err);

    pthread_mutex_lock(&table->loop.mutex);
    SL_THEN(status, table->loop.stopping ? sl_fail(err, SL_ERR_PEER_LOST, "this worker is stopping")
                                         : take_memory(table, transfer, label, body_bytes, promised_bytes, err));
    table->n_held += status == SL_OK;
    pthread_mutex_unlock(&table->loop.mutex);
    SL_TRY_OR(status, free(transfer));

    static const struct sl_grant_events events = {on_complete, on_failure, on_release};
    struct sl_inbound_ticket ticket = {.lease_ms = table->lease_ms};
    memcpy(ticket.id, transfer->id, sizeof ticket.id);
    struct sl_grant *grant;
    struct sl_grant_plan grant_plan = {.block = transfer->block,
                                       .bytes = body_bytes,
                                       .deadline_ns = transfer->deadline_ns,
                                       .events = &events,
                                       .arg = transfer,
                                       .device_block = transfer->there,
                                       .on_arrived = on_arrived};
    // The lease ends the grant; the grant's own deadline is far after the lease's, for renewals.
    status = sl_grant_open(table->fabric, &grant_plan, &grant, &ticket.ticket, &ticket.ticket_bytes, err);
    SL_LOCKED(&table->loop.mutex);
    if (status != SL_OK) {
        sl_ledger_return(table->sessions, transfer->promised_bytes);
        transfer->released = true;
        free_if_over(transfer);
    } else {
        transfer->grant = grant;
        transfer->listed = true;
        transfer->next = table->first;
        table->first = transfer;
        table->n_leases++;
    }
    if (status == SL_OK && table->loop.stopping) { // sl_inbound_close() was called meanwhile, and has not seen this one
        reap(table, INT64_MAX);
        free(ticket.ticket);
        return sl_fail(err, SL_ERR_PEER_LOST, "this worker is stopping");
    }
    if (status == SL_OK) {
        *ticket_out = ticket;
    }
    return status;
}

enum sl_status sl_inbound_renew(struct sl_inbound *table, const char *id, int64_t *lease_ms_out, struct sl_error *err) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&table->loop.mutex);
    struct transfer *transfer = *find(table, id);
    if (transfer) {
        transfer->deadline_ns = sl_deadline_in_ms(table->lease_ms);
        sl_grant_renew(transfer->grant, transfer->deadline_ns);
        *lease_ms_out = table->lease_ms;
    } else {
        status = sl_fail(err, SL_ERR_NOT_FOUND, "lease %s is unknown or has ended", sl_lease_name(id).text);
    }
    return status;
}

void sl_inbound_release(struct sl_inbound *table, const char *id) {
    struct sl_grant *grant = NULL;
    pthread_mutex_lock(&table->loop.mutex);
    struct transfer **at = find(table, id);
    if (*at) {
        grant = unlist(table, at);
    }
    pthread_mutex_unlock(&table->loop.mutex);
    sl_grant_close(&grant);
}

enum sl_status sl_inbound_take(struct sl_inbound *table, const char *id, int64_t deadline_ns,
                               struct sl_capsule_bytes *capsule_out, size_t *promised_out, struct sl_error *err) {
    enum sl_status status = SL_OK;
    struct sl_grant *grant = NULL;
    pthread_mutex_lock(&table->loop.mutex);
    struct transfer **at;
    for (;;) {
        at = find(table, id);
        if (!*at) {
            status = sl_fail(err, SL_ERR_NOT_FOUND, "lease %s is unknown or has ended", sl_lease_name(id).text);
        } else if ((*at)->state == FAILED) {
            status = sl_fail(err, (*at)->failure.status, "%s", (*at)->failure.text);
        } else if ((*at)->state == OPEN) {
            if (sl_loop_wait(&table->loop, deadline_ns) == SL_OK) {
                continue;
            }
            at = find(table, id); // it may have arrived just before the deadline
            if (*at && (*at)->state == OPEN) {
                status = SL_AGAIN;
            } else {
                continue;
            }
        }
        break;
    }
    if (status == SL_OK) {
        struct transfer *transfer = *at;
        void *body = transfer->in_device ? transfer->there : transfer->block;
        *capsule_out = (struct sl_capsule_bytes){body, transfer->body_bytes, transfer->header, transfer->header_bytes};
        *promised_out = transfer->promised_bytes;
        transfer->state = TAKEN;
        grant = unlist(table, at);
    }
    pthread_mutex_unlock(&table->loop.mutex);
    sl_grant_close(&grant);
    return status;
}

void sl_inbound_wait_change(struct sl_inbound *table, uint64_t *seen_inout, int64_t deadline_ns) {
    SL_LOCKED(&table->loop.mutex);
    while (table->n_changes == *seen_inout && sl_loop_wait(&table->loop, deadline_ns) == SL_OK) {
    }
    *seen_inout = table->n_changes;
}

int64_t sl_inbound_count(struct sl_inbound *table) {
    SL_LOCKED(&table->loop.mutex);
    return table->n_leases;
}

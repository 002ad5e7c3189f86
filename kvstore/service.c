// SPDX-License-Identifier: Apache-2.0
// Handlers of sluice.v1.Store.
#include <stdlib.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "kvstore/internal.h"
#include "net/node/lease_rpc.h"
#include "net/node/send.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define MAX_LOOKUP_KEYS 8192
#define MAX_READ_MS     1e12  // decades
#define SHIP_MS         30000 // and what the bytes take on a slow network:

enum sl_status sl_store_read_keys(struct sl_kvstore *kvstore, const Sluice__V1__StoreReserveRequest *request,
                                  struct sl_capsule_keys *keys_out, struct sl_error *err) {
    SL_FAIL_IF(!request->key || request->capsule_bytes < 1 ||
                   request->prefixes.len >= SL_CAPSULE_CACHE_MAX_PREFIXES * sizeof(struct sl_hash128),
               err, SL_ERR_INVALID, "key, capsule_bytes or prefixes (at most %d) out of bounds",
               SL_CAPSULE_CACHE_MAX_PREFIXES - 1);
    SL_FAIL_IF(request->capsule_bytes > kvstore->node.config.arena_bytes, err, SL_ERR_INVALID,
               "capsule_bytes %lld exceed the store's %lld", (long long)request->capsule_bytes,
               (long long)kvstore->node.config.arena_bytes);
    struct sl_capsule_id id = {request->key->model_fingerprint, request->key->recipe_fingerprint, {{0}}};
    SL_FAIL_IF(!sl_hash128_read(request->key->prefix_hash.data, request->key->prefix_hash.len, &id.prefix_hash) ||
                   request->prefixes.len % sizeof id.prefix_hash != 0,
               err, SL_ERR_INVALID, "key or prefixes: a prefix hash has %zu bytes", sizeof id.prefix_hash);
    SL_FAIL_IF(!(request->read_ms >= 0 && request->read_ms <= MAX_READ_MS) || request->read_tokens < 0, err,
               SL_ERR_INVALID, "read_ms or read_tokens out of bounds");
    size_t n_prefixes = request->prefixes.len / sizeof id.prefix_hash;
    if (sl_arrivals_knows(kvstore->arrivals, &id)) { // checked before anything is evicted for it
        return sl_fail(err, SL_ERR_EXISTS, "this capsule is stored, or on its way");
    }
    *keys_out = (struct sl_capsule_keys){.id = id,
                                         .hashes = (struct sl_hash128 *)request->prefixes.data,
                                         .n_hashes = n_prefixes,
                                         .stride = request->prefix_tokens,
                                         .is_checkpoint = request->checkpoint,
                                         .tenant = request->tenant,
                                         .read_ms = request->read_ms,
                                         .read_tokens = request->read_tokens};
    return SL_OK;
}

// Returns whether the segment before this one of a document is neither pinned nor on its way.
static bool misses_one_before(struct sl_kvstore *kvstore, const struct sl_capsule_id *id) {
    uint32_t index;
    const struct sl_capsule_id segments = sl_document_segments_of(id, &index);
    if (index == 0) {
        return false;
    }
    const struct sl_capsule_id before = sl_document_segment_id(&segments, index - 1);
    sl_arrivals_cache(kvstore->arrivals); // pins it, if it has come and is not refused
    return !sl_arrivals_knows(kvstore->arrivals, &before);
}

enum sl_status sl_store_handle_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                       struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__StoreReserveRequest *request = (const Sluice__V1__StoreReserveRequest *)message;
    struct sl_capsule_keys keys;
    struct sl_inbound_ticket ticket;
    SL_TRY(sl_store_read_keys(kvstore, request, &keys, err));
    SL_FAIL_IF(request->segment && misses_one_before(kvstore, &keys.id), err, SL_ERR_PRECONDITION,
               "the segment before this one is not here: it did not come, or was refused; the log has the reason");
    SL_TRY(sl_room_open_inbound(&kvstore->room, "store", (size_t)request->capsule_bytes, 0, 0, &ticket, err));
    enum sl_status status = sl_arrivals_expect(kvstore->arrivals, ticket.id, &keys, err);
    SL_THEN(status, sl_lease_send_grant(call, &ticket, request->capsule_bytes));
    free(ticket.ticket);
    if (status != SL_OK) {
        sl_inbound_release(kvstore->node.inbound, ticket.id);
    }
    return status;
}

/*
 * Only coordinators may call it: they know when a conversation is over, and have the hash of the tokens of all its
 * turns. The disk forgets first, so that no thread reads back from there what memory has forgotten.
 */
enum sl_status sl_store_handle_forget(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                      struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__ForgetRequest *request = (const Sluice__V1__ForgetRequest *)message;
    enum sl_status status =
        sl_term_guard_check_if_any(&kvstore->node.term_guard, sl_rpc_call_identity(call), request->term, err);
    struct sl_capsule_id id = {0};
    if (status == SL_OK && (!request->key || !sl_hash128_read(request->key->prefix_hash.data,
                                                              request->key->prefix_hash.len, &id.prefix_hash))) {
        status = sl_fail(err, SL_ERR_INVALID, "key: missing, or its prefix hash does not have %zu bytes",
                         sizeof id.prefix_hash);
    }
    SL_TRY(status);
    id.model_fingerprint = request->key->model_fingerprint;
    id.recipe_fingerprint = request->key->recipe_fingerprint;
    bool on_disk = sl_disk_forget(kvstore->disk, &id), in_memory = sl_arrivals_forget(kvstore->arrivals, &id);
    const struct sl_document_remote_kv document = sl_store_remote_kv_of(&id, request->key);
    bool had_layers = document.n_offloaded_heads > 0 && sl_document_layers_forget(kvstore->layers, &document);
    Sluice__V1__ForgetReply reply = SLUICE__V1__FORGET_REPLY__INIT;
    reply.was_there = in_memory || on_disk || had_layers;
    atomic_fetch_add(&kvstore->n_forgotten, reply.was_there);
    return sl_rpc_call_send(call, &reply.base);
}

enum sl_status sl_store_handle_renew(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                     struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__RenewRequest *request = (const Sluice__V1__RenewRequest *)message;
    if (sl_pins_renew(kvstore->pins, request->lease_id) ||
        sl_remote_kv_table_renew(kvstore->remote_kvs, request->lease_id)) {
        Sluice__V1__RenewReply reply = SLUICE__V1__RENEW_REPLY__INIT;
        reply.lease_ms = kvstore->node.config.lease_ms;
        return sl_rpc_call_send(call, &reply.base);
    }
    return sl_lease_handle_renew(kvstore->node.inbound, call, message, err);
}

enum sl_status sl_store_handle_release(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                       struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__ReleaseRequest *request = (const Sluice__V1__ReleaseRequest *)message;
    SL_TRY(sl_term_guard_check_if_any(&kvstore->node.term_guard, sl_rpc_call_identity(call), request->term, err));
    sl_pins_release(kvstore->pins, request->lease_id);
    sl_remote_kv_table_release(kvstore->remote_kvs, request->lease_id);
    return sl_lease_handle_release(kvstore->node.inbound, call, message);
}

static int longest_first(const void *a, const void *b) {
    const Sluice__V1__PrefixKey *x = *(Sluice__V1__PrefixKey *const *)a, *y = *(Sluice__V1__PrefixKey *const *)b;
    return (x->n_tokens < y->n_tokens) - (x->n_tokens > y->n_tokens);
}

// Pins what memory has for the longest of the prefixes, or what the disk has, if that is more. NULL: none.
static struct sl_stored *pin_longest(struct sl_kvstore *kvstore, const struct sl_prefix *prefixes, size_t n_prefixes,
                                     int64_t deadline_ns, int64_t *covered_out) {
    size_t at = n_prefixes, disk_at;
    struct sl_stored *stored = sl_capsule_cache_pin_longest(kvstore->capsule_cache, prefixes, n_prefixes, &at);
    struct sl_stored *longer = sl_disk_recall(kvstore->disk, prefixes, at, deadline_ns, &disk_at);
    if (longer) {
        if (stored) {
            sl_capsule_cache_unpin(kvstore->capsule_cache, stored);
        }
        stored = longer;
        at = disk_at;
    } else if (stored) {
        sl_disk_offer(kvstore->disk, &stored->keys.id);
    }
    if (stored) {
        *covered_out = prefixes[at].n_tokens;
    }
    return stored;
}

// Reads the prefixes, longest first. prefixes_out: [request->n_prefixes].
static enum sl_status read_prefixes(const Sluice__V1__LookupRequest *request, struct sl_prefix *prefixes_out,
                                    struct sl_error *err) {
    qsort(request->prefixes, request->n_prefixes, sizeof *request->prefixes, longest_first);
    for (size_t i = 0; i < request->n_prefixes; i++) {
        const Sluice__V1__PrefixKey *prefix = request->prefixes[i];
        struct sl_capsule_id id = {request->model_fingerprint, request->recipe_fingerprint, {{0}}};
        SL_FAIL_IF(!sl_hash128_read(prefix->hash.data, prefix->hash.len, &id.prefix_hash), err, SL_ERR_INVALID,
                   "prefixes: a prefix hash has %zu bytes", sizeof id.prefix_hash);
        prefixes_out[i] = (struct sl_prefix){id, prefix->n_tokens};
    }
    return SL_OK;
}

enum sl_status sl_store_handle_lookup(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                      struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__LookupRequest *request = (const Sluice__V1__LookupRequest *)message;
    SL_FAIL_IF(request->n_prefixes < 1 || request->n_prefixes > MAX_LOOKUP_KEYS, err, SL_ERR_INVALID,
               "%zu prefixes; 1 to %d are allowed", request->n_prefixes, MAX_LOOKUP_KEYS);
    int64_t covered = 0;
    struct sl_prefix *prefixes = malloc(sizeof *prefixes * request->n_prefixes);
    SL_FAIL_IF(!prefixes, err, SL_ERR_EXHAUSTED, "kvstore: out of memory");
    SL_TRY_OR(read_prefixes(request, prefixes, err), free(prefixes));
    struct sl_stored *stored =
        request->n_prefixes == 1 ? sl_document_layers_hold(kvstore->layers, &prefixes->id) : NULL;
    if (stored) {
        covered = stored->n_tokens;
    } else {
        stored = pin_longest(kvstore, prefixes, request->n_prefixes, sl_rpc_call_deadline_ns(call), &covered);
    }
    free(prefixes);
    if (!stored) {
        sl_capsule_cache_count_miss(kvstore->capsule_cache);
        return sl_fail(err, SL_ERR_NOT_FOUND, "no prefix of this prompt is stored under this model and recipe");
    }
    char id[SL_LEASE_ID_BYTES];
    SL_TRY_OR(sl_pins_add(kvstore->pins, stored, id, err), sl_capsule_cache_unpin(kvstore->capsule_cache, stored));
    Sluice__V1__LookupReply reply = SLUICE__V1__LOOKUP_REPLY__INIT;
    reply.n_tokens = covered;
    reply.capsule_tokens = stored->n_tokens;
    reply.capsule_bytes = (int64_t)stored->capsule.body_bytes;
    reply.checkpoint = stored->keys.is_checkpoint;
    reply.lease_id = id;
    reply.lease_ms = kvstore->node.config.lease_ms;
    if (request->want_prefixes) {
        reply.prefix_tokens = stored->keys.stride;
        reply.prefixes.data = (uint8_t *)stored->keys.hashes;
        reply.prefixes.len = stored->keys.n_hashes * sizeof *stored->keys.hashes;
        reply.tenant = stored->keys.tenant;
        reply.read_ms = stored->keys.read_ms;
        reply.read_tokens = stored->keys.read_tokens;
    }
    struct sl_hash128 *hash = &stored->keys.id.prefix_hash;
    reply.capsule_hash = (ProtobufCBinaryData){sizeof *hash, hash->bytes};
    SL_TRY_OR(sl_rpc_call_send(call, &reply.base), sl_pins_release(kvstore->pins, id));
    return SL_OK;
}

enum sl_status sl_store_handle_fetch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                     struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__FetchRequest *request = (const Sluice__V1__FetchRequest *)message;
    SL_FAIL_IF(!request->destination, err, SL_ERR_INVALID, "destination: missing");
    struct sl_stored *stored = sl_pins_borrow(kvstore->pins, request->lease_id);
    SL_FAIL_IF(!stored, err, SL_ERR_NOT_FOUND, "lease %s is unknown, has ended or is in use",
               sl_lease_name(request->lease_id).text);
    atomic_fetch_add(&kvstore->n_jobs, 1);
    int64_t limit = sl_deadline_in_ms(SHIP_MS + (int64_t)(stored->capsule.body_bytes / SL_SLOW_BYTES_PER_MS));
    int64_t deadline = sl_rpc_call_deadline_ns(call);
    struct sl_send send = {.destination = request->destination,
                           .body = stored->capsule.body,
                           .body_bytes = stored->capsule.body_bytes,
                           .header = stored->capsule.header,
                           .header_bytes = stored->capsule.header_bytes,
                           .deadline_ns = deadline < limit ? deadline : limit,
                           .go_on = sl_rpc_call_wanted,
                           .arg = call};
    enum sl_status status = sl_send_capsule(kvstore->node.fabric, &send, err);
    Sluice__V1__FetchReply reply = SLUICE__V1__FETCH_REPLY__INIT;
    reply.bytes = (int64_t)(stored->capsule.body_bytes + stored->capsule.header_bytes);
    sl_pins_return(kvstore->pins, request->lease_id);
    reply.released = request->release && status == SL_OK;
    if (reply.released) {
        sl_pins_release(kvstore->pins, request->lease_id);
    }
    atomic_fetch_sub(&kvstore->n_jobs, 1);
    atomic_fetch_add(&kvstore->n_calls, 1);
    return status == SL_OK ? sl_rpc_call_send(call, &reply.base) : status;
}

enum sl_status sl_store_handle_stats(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                     struct sl_error *err) {
    (void)message;
    (void)err;
    struct sl_kvstore *kvstore = service;
    struct sl_capsule_cache_stats stats;
    sl_capsule_cache_get_stats(kvstore->capsule_cache, &stats);
    Sluice__V1__StoreStatsReply reply = SLUICE__V1__STORE_STATS_REPLY__INIT;
    reply.capsules = stats.n_capsules;
    reply.bytes = (int64_t)stats.bytes;
    reply.capacity_bytes = kvstore->node.config.arena_bytes;
    reply.hits = stats.n_hits;
    reply.misses = stats.n_misses;
    reply.evicted = stats.n_evicted;
    reply.pinned = stats.n_pinned;
    reply.leases = sl_inbound_count(kvstore->node.inbound) + sl_pins_count(kvstore->pins);
    struct sl_kv_segments_stats segments;
    sl_kv_segments_get_stats(kvstore->segments, &segments);
    struct sl_questions_stats questions;
    sl_questions_get_stats(kvstore->questions, &questions);
    reply.annexes = sl_remote_kv_table_count(kvstore->remote_kvs);
    reply.leases += reply.annexes;
    reply.stretches = segments.n_segments;
    reply.stretch_bytes = (int64_t)segments.bytes;
    reply.evicted += segments.n_evicted;
    reply.questions = questions.n_answered;
    reply.scanned_bytes = questions.scanned_bytes;
    reply.scan_load = questions.scan_load;
    struct sl_disk_stats disk;
    sl_disk_get_stats(kvstore->disk, &disk);
    reply.refused = atomic_load(&kvstore->room.n_refused);
    reply.forgotten = atomic_load(&kvstore->n_forgotten);
    reply.disk_capsules = disk.n_capsules;
    reply.disk_bytes = disk.bytes;
    reply.disk_hits = disk.n_hits;
    reply.disk_dropped = disk.n_dropped;
    reply.disk_failure = disk.failure;
    return sl_rpc_call_send(call, &reply.base);
}

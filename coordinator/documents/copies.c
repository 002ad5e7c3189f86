// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/copies.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"
#include "coordinator/workers/stores.h"
#include "engine/offload/remote_kv/segment_head.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define LOOK_MS   100
#define CALL_MS   2000
#define LOOKUP_MS 60000 // the source may have to read its disk
#define FETCH_MS  30000 // plus the time for the bytes
#define STEP_MS   250   // between checks whether the thread has to end

struct sl_document_copies {
    struct sl_documents *documents;
    struct sl_registry *registry;
    struct sl_loop loop;
    struct sl_ranked_store stores[SL_MAX_WORKERS]; // the thread's
};

static bool is_stopping(struct sl_document_copies *copies) {
    SL_LOCKED(&copies->loop.mutex);
    return copies->loop.stopping;
}

// ---- one copy -------------------------------------------------------------------------------------------------------

struct copy {
    struct sl_document_copies *copies;
    const struct sl_document *document;
    struct sl_worker *source, *target; // a reference each
    Sluice__V1__LookupReply *found;    // the source's pin
    Sluice__V1__Grant *grant;          // of the target's memory
    bool was_there;                    // the target has all of it, or is receiving it
};

static struct sl_worker *find_store(const struct copy *copy, const char *name) {
    return sl_registry_find(copy->copies->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, name, NULL);
}

static bool is_among(char (*names)[64], int n_names, const char *name) {
    while (n_names > 0 && strcmp(names[n_names - 1], name) != 0) {
        n_names--;
    }
    return n_names > 0;
}

// Chooses a store that has the capsule, and the first store in the order that does not, and has room for it.
static enum sl_status choose(struct copy *copy, struct sl_error *err) {
    struct sl_document_copies *copies = copy->copies;
    char holders[SL_MAX_HOLDERS][64];
    int n_holders = sl_documents_stores(copies->documents, copy->document, holders);
    int n_stores = sl_stores_rank(copies->registry, copy->document->first_key, copies->stores);
    enum sl_status status = sl_fail(err, SL_ERR_PRECONDITION, "no further store is ready");
    for (int i = 0; i < n_holders && copy->source == NULL; i++) {
        copy->source = find_store(copy, holders[i]);
    }
    for (int i = 0; i < n_stores && copy->target == NULL; i++) {
        const struct sl_ranked_store *store = &copies->stores[i];
        if (is_among(holders, n_holders, store->name)) {
            continue;
        }
        status = sl_documents_check_room(copies->documents, copy->document, store, err);
        copy->target = status == SL_OK ? find_store(copy, store->name) : NULL;
    }
    if (copy->target == NULL) {
        return status != SL_OK ? status : sl_fail(err, SL_ERR_PEER_LOST, "no further store is ready");
    }
    return copy->source != NULL ? SL_OK : sl_fail(err, SL_ERR_PEER_LOST, "the store that has it is lost");
}

// Renews the lease of the target's memory. The pin lasts while the source ships. If this fails, the ship fails too.
static void renew(const struct copy *copy) {
    Sluice__V1__RenewRequest request = SLUICE__V1__RENEW_REQUEST__INIT;
    request.lease_id = copy->grant->lease_id;
    (void)sl_rpc_unary(sl_worker_channel(copy->target), &sl_method_store_renew, &request.base,
                       sl_deadline_in_ms(CALL_MS), NULL, NULL, NULL);
}

// Makes a call with one reply, which the thread can give up. Meanwhile the target's lease, if there is one, is renewed.
static enum sl_status ask(const struct copy *copy, struct sl_worker *store, const struct sl_rpc_method *method,
                          const ProtobufCMessage *request, int64_t limit_ms, ProtobufCMessage **reply_out,
                          struct sl_error *err) {
    struct sl_rpc_stream *stream;
    enum sl_status status;
    SL_TRY(
        sl_rpc_stream_open(sl_worker_channel(store), method, request, sl_deadline_in_ms(limit_ms), NULL, &stream, err));
    while ((status = sl_rpc_stream_next(stream, STEP_MS, reply_out, err)) == SL_AGAIN) {
        if (is_stopping(copy->copies)) {
            status = sl_fail(err, SL_ERR_CANCELLED, "the coordinator stops");
            break;
        }
        if (sl_worker_is_lost(copy->source) || sl_worker_is_lost(copy->target)) {
            status = sl_fail(err, SL_ERR_PEER_LOST, "one of the two stores was lost");
            break;
        }
        if (copy->grant != NULL) {
            renew(copy);
        }
    }
    sl_rpc_stream_close(&stream);
    return status;
}

// Has the source pin what is copied now: the capsule, or a segment.
static enum sl_status look_up(struct copy *copy, const struct sl_capsule_id *id, int64_t n_tokens,
                              struct sl_error *err) {
    Sluice__V1__PrefixKey key = SLUICE__V1__PREFIX_KEY__INIT, *keys[] = {&key};
    key.n_tokens = n_tokens;
    key.hash.data = (uint8_t *)id->prefix_hash.bytes;
    key.hash.len = sizeof id->prefix_hash;
    Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
    request.model_fingerprint = id->model_fingerprint;
    request.recipe_fingerprint = id->recipe_fingerprint;
    request.prefixes = keys;
    request.n_prefixes = 1;
    request.want_prefixes = n_tokens > 0;
    return ask(copy, copy->source, &sl_method_store_lookup, &request.base, LOOKUP_MS, (ProtobufCMessage **)&copy->found,
               err);
}

static enum sl_status reserve(struct copy *copy, const struct sl_capsule_id *id, bool is_segment,
                              struct sl_error *err) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = id->model_fingerprint;
    key.recipe_fingerprint = id->recipe_fingerprint;
    key.n_tokens = copy->found->capsule_tokens;
    key.prefix_hash.data = (uint8_t *)id->prefix_hash.bytes;
    key.prefix_hash.len = sizeof id->prefix_hash;
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    request.key = &key;
    request.capsule_bytes = copy->found->capsule_bytes;
    request.prefix_tokens = copy->found->prefix_tokens;
    request.prefixes = copy->found->prefixes;
    request.tenant = copy->found->tenant;
    request.read_ms = copy->found->read_ms;
    request.read_tokens = copy->found->read_tokens;
    request.segment = is_segment;
    return sl_rpc_unary(sl_worker_channel(copy->target), &sl_method_store_reserve, &request.base,
                        sl_deadline_in_ms(CALL_MS), NULL, (ProtobufCMessage **)&copy->grant, err);
}

static enum sl_status fetch(struct copy *copy, struct sl_error *err) {
    Sluice__V1__FetchRequest request = SLUICE__V1__FETCH_REQUEST__INIT;
    request.lease_id = copy->found->lease_id;
    request.destination = copy->grant;
    ProtobufCMessage *reply = NULL;
    SL_TRY(ask(copy, copy->source, &sl_method_store_fetch, &request.base,
               FETCH_MS + copy->found->capsule_bytes / SL_SLOW_BYTES_PER_MS, &reply, err));
    protobuf_c_message_free_unpacked(reply, NULL);
    return SL_OK;
}

// Ends a lease; one that cannot be ended now ends by itself.
static void release(struct sl_worker *store, char *lease_id) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = lease_id;
    (void)sl_rpc_unary(sl_worker_channel(store), &sl_method_store_release, &request.base, sl_deadline_in_ms(CALL_MS),
                       NULL, NULL, NULL);
}

// Ends what one transfer holds.
static void end_transfer(struct copy *copy) {
    if (copy->found != NULL) {
        release(copy->source, copy->found->lease_id);
        protobuf_c_message_free_unpacked(&copy->found->base, NULL);
        copy->found = NULL;
    }
    if (copy->grant != NULL) {
        protobuf_c_message_free_unpacked(&copy->grant->base, NULL);
        copy->grant = NULL;
    }
}

// Copies the capsule (n_tokens of it), or a segment (0), unless the target has it; *end_out: its last token.
static enum sl_status transfer(struct copy *copy, const struct sl_capsule_id *id, int64_t n_tokens, int64_t *end_inout,
                               struct sl_error *err) {
    enum sl_status status = look_up(copy, id, n_tokens, err);
    if (status == SL_OK && (n_tokens > 0 ? copy->found->capsule_tokens != n_tokens // only a longer one is left
                                         : copy->found->capsule_tokens <= *end_inout)) {
        status = sl_fail(err, SL_ERR_NOT_FOUND, "it does not have the capsule any more");
    }
    if (status == SL_OK) {
        *end_inout = copy->found->capsule_tokens;
        status = reserve(copy, id, n_tokens == 0, err);
    }
    if (status == SL_OK) {
        status = fetch(copy, err);
        if (status != SL_OK) {
            release(copy->target, copy->grant->lease_id);
        }
    }
    bool was_there = status == SL_ERR_EXISTS; // or it is being received
    copy->was_there = copy->was_there && was_there;
    end_transfer(copy);
    return was_there ? SL_OK : status;
}

// Copies the capsule, and the offloaded layers, segment by segment. A segment must follow those that the target has, so that
// a copy that ended early goes on where it was.
static enum sl_status transfer_all(struct copy *copy, struct sl_error *err) {
    const struct sl_document *document = copy->document;
    const struct sl_capsule_id segments =
        sl_document_segments_id(&document->capsule, document->n_offloaded_heads, (int32_t)document->scan);
    int64_t end = 0, n_tokens = document->n_offloaded_heads > 0 ? document->capsule_tokens : 0;
    SL_TRY(choose(copy, err));
    copy->was_there = true;
    enum sl_status status = transfer(copy, &document->capsule, document->capsule_tokens, &end, err);
    end = 0;
    for (uint32_t i = 0; i < SL_MAX_DOCUMENT_SEGMENTS && end < n_tokens && status == SL_OK; i++) {
        const struct sl_capsule_id segment = sl_document_segment_id(&segments, i);
        status = transfer(copy, &segment, 0, &end, err);
    }
    return status;
}

static void cleanup(struct copy *copy) {
    sl_worker_unref(&copy->source);
    sl_worker_unref(&copy->target);
}

static void copy_one(struct sl_document_copies *copies, const struct sl_document *document) {
    struct copy copy = {.copies = copies, .document = document};
    struct sl_error err = {0};
    enum sl_status status = transfer_all(&copy, &err);
    const char *source = copy.source != NULL ? sl_worker_name(copy.source) : "",
               *target = copy.target != NULL ? sl_worker_name(copy.target) : "";
    if (status == SL_OK && copy.was_there) {
        sl_log_debug("documents", "%s is already at %s, or another copy is on its way", document->name, target);
    } else if (status == SL_OK) {
        sl_log_info("documents", "%s was copied from %s to %s", document->name, source, target);
    } else if (status != SL_ERR_CANCELLED) {
        sl_log_warn("documents", "%s was not copied%s%s%s%s: %s", document->name, source[0] ? " from " : "", source,
                    target[0] ? " to " : "", target, err.text);
    }
    cleanup(&copy);
}

// ---- too many copies ------------------------------------------------------------------------------------------------

// Finds the last store in the order that has the document, if it is one too many. Stores that drain or do not answer have
// no place in the order: their copies may be lost soon, so they do not count. NULL: there is none.
static struct sl_worker *find_excess(struct sl_document_copies *copies, const struct sl_document *document) {
    char holders[SL_MAX_HOLDERS][64];
    int n_holders = sl_documents_stores(copies->documents, document, holders), n_good = 0, last = 0;
    int n_stores = sl_stores_rank(copies->registry, document->first_key, copies->stores);
    for (int i = 0; i < n_stores; i++) {
        if (is_among(holders, n_holders, copies->stores[i].name)) {
            last = i;
            n_good++;
        }
    }
    return n_good > sl_documents_replicas(copies->documents, document)
               ? sl_registry_find(copies->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, copies->stores[last].name, NULL)
               : NULL;
}

static void drop_one(struct sl_document_copies *copies, struct sl_document *document, int64_t term) {
    struct sl_worker *store = find_excess(copies, document);
    if (store == NULL) {
        return;
    }
    Sluice__V1__StoreKey key = sl_document_store_key(document);
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    request.key = &key;
    request.term = term;
    struct sl_error err = {0};
    if (sl_rpc_unary(sl_worker_channel(store), &sl_method_store_forget, &request.base, sl_deadline_in_ms(CALL_MS), NULL,
                     NULL, &err) == SL_OK) {
        sl_log_info("documents", "%s was dropped from %s, which is one store too many", document->name,
                    sl_worker_name(store));
        sl_documents_found(copies->documents, document, sl_worker_name(store), 0,
                           SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    } else {
        sl_log_debug("documents", "%s was not dropped from %s: %s", document->name, sl_worker_name(store), err.text);
    }
    sl_worker_unref(&store);
}

// ---- the thread -----------------------------------------------------------------------------------------------------

static void *copies_main(void *arg) {
    struct sl_document_copies *copies = arg;
    pthread_mutex_lock(&copies->loop.mutex);
    while (!copies->loop.stopping) {
        pthread_mutex_unlock(&copies->loop.mutex);
        struct sl_document *document = sl_documents_short(copies->documents, sl_now_ns());
        if (document != NULL) {
            copy_one(copies, document);
            sl_document_unref(&document);
        }
        int64_t term = sl_documents_term(copies->documents); // before the document: if another leads, stores refuse it
        document = sl_documents_excess(copies->documents, sl_now_ns());
        if (document != NULL) {
            drop_one(copies, document, term);
            sl_document_unref(&document);
        }
        pthread_mutex_lock(&copies->loop.mutex);
        sl_loop_sleep(&copies->loop, sl_deadline_in_ms(LOOK_MS));
    }
    pthread_mutex_unlock(&copies->loop.mutex);
    return NULL;
}

enum sl_status sl_document_copies_start(struct sl_documents *documents, struct sl_registry *registry,
                                        struct sl_document_copies **copies_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_document_copies, copies, err, "no memory to copy documents");
    copies->documents = documents;
    copies->registry = registry;
    sl_loop_init(&copies->loop);
    SL_TRY_OR(sl_loop_start(&copies->loop, "doc-copies", copies_main, copies, err), sl_document_copies_stop(&copies));
    *copies_out = copies;
    return SL_OK;
}

void sl_document_copies_stop(struct sl_document_copies **copies_inout) {
    SL_TAKE_OR_RETURN(copies, copies_inout);
    sl_loop_cleanup(&copies->loop);
    free(copies);
}

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/keeper.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define ROUND_MS      1000
#define CALL_MS       1000
#define FIRST_WAIT_MS 2000 // after the first failure of a store; twice as long after each further one
#define LAST_WAIT_MS  8000

struct failing_store {
    struct sl_worker *worker; // with a reference
    int64_t wait_ms, until_ns;
};

struct sl_document_keeper {
    struct sl_documents *documents;
    struct sl_registry *registry;
    bool (*lead_fn)(void *arg);
    void (*round_fn)(void *arg);
    void *arg;
    struct sl_loop loop;
    struct sl_bell told;
    // Under the loop's mutex:
    int64_t n_asked, n_told;     // calls of sl_document_keeper_tell(), and those of them that a round has served
    bool is_hurried;             // the next round begins at once
    struct sl_document *removed; // a list, with a reference each: stores have to forget their capsules
    // The thread's:
    struct sl_document *list[SL_MAX_DOCUMENTS];
    size_t n_list;
    Sluice__V1__StoreKey keys[SL_MAX_DOCUMENTS], *pointers[SL_MAX_DOCUMENTS];
    struct sl_worker_set stores;
    struct sl_rpc_stream *calls[SL_MAX_WORKERS]; // one a store
    bool answers[SL_MAX_WORKERS];                // the store answered the last call; before a call: it is asked
    struct failing_store failing[SL_MAX_WORKERS];
    int n_failing;
};

// ---- stores that fail (the thread's) ----------------------------------------------------------------------------------

static struct failing_store *find_failing(struct sl_document_keeper *keeper, const struct sl_worker *worker) {
    for (int i = 0; i < keeper->n_failing; i++) {
        if (keeper->failing[i].worker == worker) {
            return &keeper->failing[i];
        }
    }
    return NULL;
}

static void drop_failing(struct sl_document_keeper *keeper, struct failing_store *store) {
    sl_worker_unref(&store->worker);
    *store = keeper->failing[--keeper->n_failing];
}

// Forgets the failures of workers that are gone: one that registers again is told at once.
static void drop_lost(struct sl_document_keeper *keeper) {
    for (int i = keeper->n_failing - 1; i >= 0; i--) {
        if (sl_worker_is_lost(keeper->failing[i].worker)) {
            drop_failing(keeper, &keeper->failing[i]);
        }
    }
}

static void note_answer(struct sl_document_keeper *keeper, struct sl_worker *worker, bool has_answered) {
    struct failing_store *store = find_failing(keeper, worker);
    if (has_answered && store != NULL) {
        drop_failing(keeper, store);
    }
    if (has_answered) {
        return;
    }
    if (store == NULL && keeper->n_failing < SL_MAX_WORKERS) {
        store = &keeper->failing[keeper->n_failing++];
        *store = (struct failing_store){.worker = sl_worker_ref(worker), .wait_ms = FIRST_WAIT_MS / 2};
    }
    if (store != NULL) {
        store->wait_ms = 2 * store->wait_ms < LAST_WAIT_MS ? 2 * store->wait_ms : LAST_WAIT_MS;
        store->until_ns = sl_deadline_in_ms(store->wait_ms);
    }
}

// Chooses the stores that are told in this round. is_awaited: a call waits for it, or documents are removed.
static void choose_stores(struct sl_document_keeper *keeper, bool is_awaited) {
    drop_lost(keeper);
    for (int i = 0; i < keeper->stores.n; i++) {
        struct sl_worker *worker = keeper->stores.workers[i];
        const struct failing_store *store = find_failing(keeper, worker);
        keeper->answers[i] =
            is_awaited || ((store == NULL || sl_now_ns() >= store->until_ns) && !sl_worker_is_suspect(worker));
    }
}

// ---- telling (the thread's) -----------------------------------------------------------------------------------------

// Asks the stores that were chosen, or that answered the last time, at once, and waits CALL_MS in all for their replies.
// answered_fn gets each reply; it may be NULL. The replies of a unary call arrive as those of a stream.
static void
ask_stores(struct sl_document_keeper *keeper, const struct sl_rpc_method *method, const ProtobufCMessage *request,
           void (*answered_fn)(struct sl_document_keeper *keeper, const char *store, const ProtobufCMessage *reply)) {
    int64_t deadline_ns = sl_deadline_in_ms(CALL_MS);
    struct sl_error err = {0};
    for (int i = 0; i < keeper->stores.n; i++) {
        keeper->calls[i] = NULL;
        if (keeper->answers[i]) {
            (void)sl_rpc_stream_open(sl_worker_channel(keeper->stores.workers[i]), method, request, deadline_ns, NULL,
                                     &keeper->calls[i], &err);
        }
    }
    for (int i = 0; i < keeper->stores.n; i++) {
        const char *store = sl_worker_name(keeper->stores.workers[i]);
        int64_t left_ms = (deadline_ns - sl_now_ns()) / SL_NS_PER_MS;
        ProtobufCMessage *reply = NULL;
        if (!keeper->answers[i]) {
            continue;
        }
        enum sl_status status = keeper->calls[i] != NULL
                                    ? sl_rpc_stream_next(keeper->calls[i], left_ms > 0 ? left_ms : 0, &reply, &err)
                                    : SL_ERR_PEER_LOST;
        keeper->answers[i] = status == SL_OK;
        note_answer(keeper, keeper->stores.workers[i], status == SL_OK);
        if (status == SL_OK && answered_fn != NULL) {
            answered_fn(keeper, store, reply);
        }
        if (status == SL_OK) {
            protobuf_c_message_free_unpacked(reply, NULL);
        } else {
            sl_log_debug("documents", "%s did not answer %s: %s", store, method->path, err.text);
        }
        sl_rpc_stream_close(&keeper->calls[i]);
    }
}

// Records what a store has of a document: if the recipe offloads, all of its layers too, or nothing.
static void hear_one(struct sl_document_keeper *keeper, struct sl_document *document, const char *store,
                     const Sluice__V1__ProtectedCapsule *capsule) {
    int64_t bytes = capsule->memory_bytes > 0 ? capsule->memory_bytes : capsule->disk_bytes;
    bool offloads = document->n_offloaded_heads > 0,
         is_written = capsule->disk_bytes > 0 && (!offloads || capsule->remote_kv_disk_bytes > 0);
    if (offloads && capsule->remote_kv_bytes <= 0 && capsule->remote_kv_disk_bytes <= 0) {
        bytes = 0;
    }
    if (offloads && bytes > 0 && capsule->remote_kv_bytes > 0) {
        sl_documents_found_offloaded(keeper->documents, document, capsule->remote_kv_bytes);
    }
    sl_documents_found(keeper->documents, document, store, bytes,
                       is_written ? SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN : capsule->disk);
}

static void hear(struct sl_document_keeper *keeper, const char *store, const ProtobufCMessage *message) {
    const Sluice__V1__ProtectReply *reply = (const Sluice__V1__ProtectReply *)message;
    for (size_t i = 0; i < keeper->n_list && i < reply->n_capsules; i++) {
        hear_one(keeper, keeper->list[i], store, reply->capsules[i]);
    }
}

// Records the stores of a document that are lost.
static void note_lost(struct sl_document_keeper *keeper, struct sl_document *document) {
    char stores[SL_MAX_HOLDERS][64];
    int n = sl_documents_stores(keeper->documents, document, stores);
    for (int i = 0; i < n; i++) {
        bool is_here = false;
        for (int j = 0; j < keeper->stores.n && !is_here; j++) {
            is_here = strcmp(sl_worker_name(keeper->stores.workers[j]), stores[i]) == 0;
        }
        if (!is_here) {
            sl_documents_found(keeper->documents, document, stores[i], 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
        }
    }
}

// Tells the chosen stores.
static void tell(struct sl_document_keeper *keeper) {
    keeper->n_list = sl_documents_list(keeper->documents, NULL, keeper->list);
    for (size_t i = 0; i < keeper->n_list; i++) {
        keeper->keys[i] = sl_document_store_key(keeper->list[i]);
        keeper->pointers[i] = &keeper->keys[i];
    }
    Sluice__V1__ProtectRequest request = SLUICE__V1__PROTECT_REQUEST__INIT;
    request.term = sl_documents_term(keeper->documents);
    request.n_keys = keeper->n_list;
    request.keys = keeper->pointers;
    ask_stores(keeper, &sl_method_store_protect, &request.base, hear);
    for (size_t i = 0; i < keeper->n_list; i++) {
        note_lost(keeper, keeper->list[i]);
        sl_document_unref(&keeper->list[i]);
    }
}

// Has the stores forget a capsule, unless another document has it too. A store that does not answer evicts it as least
// recently used. A call that adds the same text begins before or after this as a whole: it waits for a round first.
static void forget(struct sl_document_keeper *keeper, const struct sl_document *document) {
    Sluice__V1__StoreKey key = sl_document_store_key(document);
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    request.key = &key;
    request.term = sl_documents_term(keeper->documents);
    if (sl_documents_share_capsule(keeper->documents, document)) {
        return;
    }
    ask_stores(keeper, &sl_method_store_forget, &request.base, NULL);
    for (int i = 0; i < keeper->stores.n; i++) {
        if (!keeper->answers[i]) {
            sl_log_info("documents", "the capsule of %s stays at %s, if it was there, until that needs the memory",
                        document->name, sl_worker_name(keeper->stores.workers[i]));
        }
    }
}

// ---- calls of other threads -----------------------------------------------------------------------------------------

void sl_document_keeper_tell(struct sl_document_keeper *keeper) {
    const int64_t until_ns = sl_deadline_in_ms(SL_TOLD_MS);
    SL_LOCKED(&keeper->loop.mutex);
    int64_t number = ++keeper->n_asked;
    pthread_cond_signal(&keeper->loop.changed);
    while (!keeper->loop.stopping && keeper->n_told < number &&
           sl_bell_wait(&keeper->told, &keeper->loop.mutex, until_ns) == SL_OK) {
    }
}

void sl_document_keeper_hurry(struct sl_document_keeper *keeper) {
    SL_LOCKED(&keeper->loop.mutex);
    keeper->is_hurried = true;
    pthread_cond_signal(&keeper->loop.changed);
}

enum sl_status sl_document_keeper_delete(struct sl_document_keeper *keeper, struct sl_document *document,
                                         struct sl_error *err) {
    SL_TRY(sl_documents_remove(keeper->documents, document, err));
    SL_LOCKED(&keeper->loop.mutex);
    document->next = keeper->removed;
    keeper->removed = sl_document_ref(document);
    pthread_cond_signal(&keeper->loop.changed);
    return SL_OK;
}

// Takes the list of removed documents.
static struct sl_document *take_removed(struct sl_document_keeper *keeper) {
    SL_LOCKED(&keeper->loop.mutex);
    struct sl_document *removed = keeper->removed;
    keeper->removed = NULL;
    return removed;
}

static struct sl_document *drop_first(struct sl_document *removed) {
    struct sl_document *next = removed->next;
    sl_document_unref(&removed);
    return next;
}

// Leaves the capsules of removed documents to the stores' eviction: the next leader may have documents with the same ones.
static void drop_removed(struct sl_document_keeper *keeper) {
    struct sl_document *removed = take_removed(keeper);
    while (removed != NULL) {
        removed = drop_first(removed);
    }
}

static void end_expired(struct sl_document_keeper *keeper) {
    struct sl_document *document;
    enum sl_status status = SL_OK;
    while (status == SL_OK && (document = sl_documents_expired(keeper->documents, sl_wall_ms())) != NULL) {
        struct sl_error err = {0};
        status = sl_document_keeper_delete(keeper, document, &err);
        sl_log_info("documents", "the time of %s is over%s%s", document->name, status == SL_OK ? "" : ": ", err.text);
        sl_document_unref(&document);
        status = status == SL_ERR_NOT_FOUND ? SL_OK : status; // a client deleted it meanwhile
    }
}

// Tells the stores, and has them forget what was removed before.
static void make_round(struct sl_document_keeper *keeper, bool is_awaited) {
    end_expired(keeper);
    struct sl_document *removed = take_removed(keeper);
    sl_registry_snapshot(keeper->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, &keeper->stores);
    choose_stores(keeper, is_awaited || removed != NULL); // what a store is not asked to forget now stays there
    tell(keeper);
    while (removed != NULL) {
        forget(keeper, removed);
        removed = drop_first(removed);
    }
    sl_worker_set_release(&keeper->stores);
}

static void *keeper_main(void *arg) {
    struct sl_document_keeper *keeper = arg;
    pthread_mutex_lock(&keeper->loop.mutex);
    while (!keeper->loop.stopping) {
        int64_t n_asked = keeper->n_asked;
        const bool is_awaited = n_asked > keeper->n_told;
        keeper->is_hurried = false;
        pthread_mutex_unlock(&keeper->loop.mutex);
        if (keeper->lead_fn(keeper->arg)) {
            make_round(keeper, is_awaited);
            keeper->round_fn(keeper->arg);
        } else {
            drop_removed(keeper);
        }
        pthread_mutex_lock(&keeper->loop.mutex);
        keeper->n_told = n_asked;
        sl_bell_ring_held(&keeper->told, INT_MAX);
        int64_t next_ns = sl_deadline_in_ms(ROUND_MS);
        while (!keeper->loop.stopping && keeper->removed == NULL && !keeper->is_hurried && keeper->n_asked == n_asked &&
               sl_loop_wait(&keeper->loop, next_ns) == SL_OK) {
        }
    }
    sl_bell_ring_held(&keeper->told, INT_MAX);
    pthread_mutex_unlock(&keeper->loop.mutex);
    return NULL;
}

enum sl_status sl_document_keeper_start(struct sl_documents *documents, struct sl_registry *registry,
                                        bool (*lead_fn)(void *arg), void (*round_fn)(void *arg), void *arg,
                                        struct sl_document_keeper **keeper_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_document_keeper, keeper, err, "no memory to keep documents");
    keeper->documents = documents;
    keeper->registry = registry;
    keeper->lead_fn = lead_fn;
    keeper->round_fn = round_fn;
    keeper->arg = arg;
    sl_loop_init(&keeper->loop);
    SL_TRY_OR(sl_loop_start(&keeper->loop, "documents", keeper_main, keeper, err), sl_document_keeper_stop(&keeper));
    *keeper_out = keeper;
    return SL_OK;
}

void sl_document_keeper_stop(struct sl_document_keeper **keeper_inout) {
    SL_TAKE_OR_RETURN(keeper, keeper_inout);
    sl_loop_stop(&keeper->loop);
    drop_removed(keeper);
    while (keeper->n_failing > 0) {
        drop_failing(keeper, &keeper->failing[0]);
    }
    sl_loop_cleanup(&keeper->loop);
    free(keeper);
}

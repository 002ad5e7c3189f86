// SPDX-License-Identifier: Apache-2.0
// Purpose: see keeper.h.
#include "coordinator/documents/keeper.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define ROUND_MS 1000
#define CALL_MS  1000

struct sl_document_keeper {
    struct sl_documents *documents;
    struct sl_registry *registry;
    void (*round_fn)(void *arg);
    void *arg;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    // Under the mutex:
    bool stopping;
    struct sl_document *removed; // a list, with a reference each: stores have to forget their capsules
    pthread_mutex_t telling;
    // Under `telling`, so that no store gets an older set after a newer one:
    struct sl_document *list[SL_MAX_DOCUMENTS];
    size_t n_list;
    Sluice__V1__StoreKey keys[SL_MAX_DOCUMENTS], *pointers[SL_MAX_DOCUMENTS];
    struct sl_worker_set stores;
};

// Returns the capsule's key at stores, which points to the document.
static Sluice__V1__StoreKey key_of(const struct sl_document *document) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = document->capsule.model_fingerprint;
    key.recipe_fingerprint = document->capsule.recipe_fingerprint;
    key.n_tokens = document->capsule_tokens;
    key.prefix_hash.data = (uint8_t *)document->capsule.prefix_hash.bytes;
    key.prefix_hash.len = sizeof document->capsule.prefix_hash;
    return key;
}

// Tells one store. A store that does not answer is told again in the next round.
static void tell_one(struct sl_document_keeper *keeper, struct sl_worker *store) {
    Sluice__V1__ProtectRequest request = SLUICE__V1__PROTECT_REQUEST__INIT;
    request.n_keys = keeper->n_list;
    request.keys = keeper->pointers;
    ProtobufCMessage *message = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_rpc_unary(sl_worker_channel(store), &sl_method_store_protect, &request.base,
                                         sl_deadline_in_ms(CALL_MS), NULL, &message, &err);
    if (status != SL_OK) {
        sl_log_debug("documents", "%s was not told: %s", sl_worker_name(store), err.text);
        return;
    }
    const Sluice__V1__ProtectReply *reply = (const Sluice__V1__ProtectReply *)message;
    for (size_t i = 0; i < keeper->n_list && i < reply->n_capsules; i++) {
        const Sluice__V1__ProtectedCapsule *capsule = reply->capsules[i];
        int64_t bytes = capsule->memory_bytes > 0 ? capsule->memory_bytes : capsule->disk_bytes;
        sl_documents_found(keeper->documents, keeper->list[i], sl_worker_name(store), bytes, capsule->disk_bytes > 0);
    }
    protobuf_c_message_free_unpacked(message, NULL);
}

// Records that the store of a document is lost.
static void note_lost(struct sl_document_keeper *keeper, struct sl_document *document) {
    char store[64];
    bool is_here = !sl_documents_where(keeper->documents, document, store);
    for (int i = 0; i < keeper->stores.n && !is_here; i++) {
        is_here = strcmp(sl_worker_name(keeper->stores.workers[i]), store) == 0;
    }
    if (!is_here) {
        sl_documents_found(keeper->documents, document, store, 0, false);
    }
}

void sl_document_keeper_tell(struct sl_document_keeper *keeper) {
    pthread_mutex_lock(&keeper->telling);
    keeper->n_list = sl_documents_list(keeper->documents, NULL, keeper->list);
    for (size_t i = 0; i < keeper->n_list; i++) {
        keeper->keys[i] = key_of(keeper->list[i]);
        keeper->pointers[i] = &keeper->keys[i];
    }
    sl_registry_snapshot(keeper->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, &keeper->stores);
    for (int i = 0; i < keeper->stores.n; i++) {
        tell_one(keeper, keeper->stores.workers[i]);
    }
    for (size_t i = 0; i < keeper->n_list; i++) {
        note_lost(keeper, keeper->list[i]);
    }
    sl_worker_set_release(&keeper->stores);
    for (size_t i = 0; i < keeper->n_list; i++) {
        sl_document_unref(&keeper->list[i]);
    }
    pthread_mutex_unlock(&keeper->telling);
}

// Has all stores forget a capsule, unless another document has it too. A store that does not answer evicts it as least
// recently used. A call that adds the same text begins before or after this as a whole: it tells the stores first.
static void forget(struct sl_document_keeper *keeper, const struct sl_document *document) {
    Sluice__V1__StoreKey key = key_of(document);
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    request.key = &key;
    pthread_mutex_lock(&keeper->telling);
    bool is_shared = sl_documents_share_capsule(keeper->documents, document);
    sl_registry_snapshot(keeper->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, &keeper->stores);
    for (int i = 0; i < keeper->stores.n && !is_shared; i++) {
        struct sl_error err = {0};
        struct sl_worker *store = keeper->stores.workers[i];
        if (sl_rpc_unary(sl_worker_channel(store), &sl_method_store_forget, &request.base, sl_deadline_in_ms(CALL_MS),
                         NULL, NULL, &err) != SL_OK) {
            sl_log_info("documents", "the capsule of %s stays at %s until that needs the memory: %s", document->name,
                        sl_worker_name(store), err.text);
        }
    }
    sl_worker_set_release(&keeper->stores);
    pthread_mutex_unlock(&keeper->telling);
}

enum sl_status sl_document_keeper_delete(struct sl_document_keeper *keeper, struct sl_document *document,
                                         struct sl_error *err) {
    enum sl_status status = sl_documents_remove(keeper->documents, document, err);
    if (status != SL_OK) {
        return status;
    }
    pthread_mutex_lock(&keeper->mutex);
    document->next = keeper->removed;
    keeper->removed = sl_document_ref(document);
    pthread_cond_signal(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    return SL_OK;
}

// Takes the list of removed documents.
static struct sl_document *take_removed(struct sl_document_keeper *keeper) {
    pthread_mutex_lock(&keeper->mutex);
    struct sl_document *removed = keeper->removed;
    keeper->removed = NULL;
    pthread_mutex_unlock(&keeper->mutex);
    return removed;
}

static struct sl_document *drop_first(struct sl_document *removed) {
    struct sl_document *next = removed->next;
    sl_document_unref(&removed);
    return next;
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

static void *keeper_main(void *arg) {
    struct sl_document_keeper *keeper = arg;
    pthread_mutex_lock(&keeper->mutex);
    while (!keeper->stopping) {
        pthread_mutex_unlock(&keeper->mutex);
        end_expired(keeper);
        struct sl_document *removed = take_removed(keeper);
        sl_document_keeper_tell(keeper);
        while (removed != NULL) {
            forget(keeper, removed);
            removed = drop_first(removed);
        }
        keeper->round_fn(keeper->arg);
        pthread_mutex_lock(&keeper->mutex);
        int64_t next_ns = sl_deadline_in_ms(ROUND_MS);
        while (!keeper->stopping && keeper->removed == NULL &&
               sl_cond_wait_until(&keeper->changed, &keeper->mutex, next_ns) == SL_OK) {
        }
    }
    pthread_mutex_unlock(&keeper->mutex);
    return NULL;
}

enum sl_status sl_document_keeper_start(struct sl_documents *documents, struct sl_registry *registry,
                                        void (*round_fn)(void *arg), void *arg, struct sl_document_keeper **keeper_out,
                                        struct sl_error *err) {
    struct sl_document_keeper *keeper = calloc(1, sizeof *keeper);
    if (keeper == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory to keep documents");
    }
    keeper->documents = documents;
    keeper->registry = registry;
    keeper->round_fn = round_fn;
    keeper->arg = arg;
    pthread_mutex_init(&keeper->mutex, NULL);
    pthread_mutex_init(&keeper->telling, NULL);
    sl_cond_init(&keeper->changed);
    enum sl_status status = sl_thread_start("documents", keeper_main, keeper, &keeper->thread, err);
    if (status != SL_OK) {
        free(keeper);
        return status;
    }
    *keeper_out = keeper;
    return SL_OK;
}

void sl_document_keeper_stop(struct sl_document_keeper **keeper_inout) {
    struct sl_document_keeper *keeper = *keeper_inout;
    if (keeper == NULL) {
        return;
    }
    pthread_mutex_lock(&keeper->mutex);
    keeper->stopping = true;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    pthread_join(keeper->thread, NULL);
    while (keeper->removed != NULL) {
        keeper->removed = drop_first(keeper->removed);
    }
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->telling);
    pthread_mutex_destroy(&keeper->mutex);
    free(keeper);
    *keeper_inout = NULL;
}

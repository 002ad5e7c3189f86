// SPDX-License-Identifier: Apache-2.0
// The handler of Store.Protect: the coordinator names the capsules of all documents, and what their recipes offload.
#include <stdlib.h>

#include "base/clock.h"
#include "kvstore/internal.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define MAX_KEYS 4096

// Reads the keys into ids_out[request->n_keys].
static enum sl_status read_keys(const Sluice__V1__ProtectRequest *request, struct sl_capsule_id *ids_out,
                                struct sl_error *err) {
    for (size_t i = 0; i < request->n_keys; i++) {
        const Sluice__V1__StoreKey *key = request->keys[i];
        ids_out[i] = (struct sl_capsule_id){key->model_fingerprint, key->recipe_fingerprint, {{0}}};
        SL_FAIL_IF(!sl_hash128_read(key->prefix_hash.data, key->prefix_hash.len, &ids_out[i].prefix_hash), err,
                   SL_ERR_INVALID, "keys: a prefix hash has %zu bytes", sizeof ids_out[i].prefix_hash);
    }
    return SL_OK;
}

// Has one capsule read back that only the disk holds, so that its first question need not wait; the next call chooses
// the next one. What is protected takes at most its share of the arena.
static void read_back(struct sl_kvstore *kvstore, const Sluice__V1__ProtectRequest *request,
                      const struct sl_capsule_id *ids, const Sluice__V1__ProtectedCapsule *capsules) {
    struct sl_arena_stats arena;
    sl_arena_get_stats(kvstore->room.arena, &arena);
    int64_t left_bytes = (int64_t)(arena.capacity_bytes / SL_PROTECTED_SHARE);
    for (size_t i = 0; i < request->n_keys; i++) {
        left_bytes -= capsules[i].memory_bytes + capsules[i].remote_kv_bytes;
    }
    bool is_taken = false;
    for (size_t i = 0; i < request->n_keys && !is_taken; i++) {
        if (capsules[i].memory_bytes == 0 && capsules[i].disk_bytes > 0 && capsules[i].disk_bytes <= left_bytes) {
            const struct sl_prefix whole = {ids[i], request->keys[i]->n_tokens};
            is_taken = sl_read_back_offer(kvstore->read_back, &whole);
        }
    }
}

struct sl_document_remote_kv sl_store_remote_kv_of(const struct sl_capsule_id *id, const Sluice__V1__StoreKey *key) {
    return (struct sl_document_remote_kv){*id, key->n_tokens, key->n_lanes, key->scan_format};
}

// Looks for a capsule in memory and on disk.
static void look(struct sl_kvstore *kvstore, const struct sl_capsule_id *id,
                 Sluice__V1__ProtectedCapsule *capsule_out) {
    *capsule_out = (Sluice__V1__ProtectedCapsule)SLUICE__V1__PROTECTED_CAPSULE__INIT;
    struct sl_stored *stored = sl_capsule_cache_hold(kvstore->capsule_cache, id);
    if (stored) {
        capsule_out->memory_bytes = (int64_t)stored->capsule.body_bytes;
        capsule_out->disk = (Sluice__V1__DiskCopy)sl_disk_keep(kvstore->disk, stored);
        sl_capsule_cache_release(kvstore->capsule_cache, stored);
    }
    capsule_out->disk_bytes = sl_disk_holds(kvstore->disk, id);
}

// Names the documents that offload layers to the pins.
static enum sl_status pin_remote_kvs(struct sl_kvstore *kvstore, const Sluice__V1__ProtectRequest *request,
                                     const struct sl_capsule_id *ids, const Sluice__V1__ProtectedCapsule *capsules,
                                     struct sl_error *err) {
    struct sl_document_remote_kv *documents = malloc((request->n_keys + 1) * sizeof *documents);
    SL_FAIL_IF(!documents, err, SL_ERR_EXHAUSTED, "kvstore: out of memory");
    size_t n = 0, capsule_bytes = 0;
    for (size_t i = 0; i < request->n_keys; i++) {
        documents[n] = sl_store_remote_kv_of(&ids[i], request->keys[i]);
        n += documents[n].n_offloaded_heads > 0;
        capsule_bytes += capsules[i].disk_bytes > 0 ? 0 : (size_t)capsules[i].memory_bytes; // that one may be evicted
    }
    enum sl_status status =
        sl_remote_kv_pins_set(kvstore->remote_kv_pins, documents, n, capsule_bytes, sl_now_ns(), err);
    free(documents);
    sl_capsule_cache_share(kvstore->capsule_cache, (size_t)sl_remote_kv_pins_bytes(kvstore->remote_kv_pins, NULL));
    return status;
}

// Looks for the offloaded layers of a document, in memory and on disk; without them its capsule is not all of it.
static void look_for_layers(struct sl_kvstore *kvstore, const struct sl_capsule_id *id, const Sluice__V1__StoreKey *key,
                            Sluice__V1__ProtectedCapsule *capsule) {
    const struct sl_document_remote_kv document = sl_store_remote_kv_of(id, key);
    struct sl_document_layers_copies copies;
    sl_document_layers_look(kvstore->layers, &document, &copies);
    capsule->remote_kv_bytes = copies.memory_bytes;
    capsule->remote_kv_disk_bytes = copies.disk_bytes;
    bool capsule_is_written = capsule->disk_bytes > 0 || capsule->disk == SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN;
    if (capsule_is_written && copies.disk_bytes == 0) {
        capsule->disk = (Sluice__V1__DiskCopy)copies.disk;
    }
}

// Names the capsules that are not evicted, and the segments of documents that offload layers.
static enum sl_status protect(struct sl_kvstore *kvstore, const Sluice__V1__ProtectRequest *request,
                              const struct sl_capsule_id *ids, struct sl_error *err) {
    struct sl_capsule_id *own = malloc((2 * request->n_keys + 1) * sizeof *own);
    SL_FAIL_IF(!own, err, SL_ERR_EXHAUSTED, "kvstore: out of memory");
    size_t n = 0;
    for (size_t i = 0; i < request->n_keys; i++) {
        const Sluice__V1__StoreKey *key = request->keys[i];
        own[n++] = ids[i];
        if (key->n_lanes > 0) {
            own[n++] = sl_document_segments_id(&ids[i], key->n_lanes, key->scan_format);
        }
    }
    sl_protected_set(kvstore->protected, own, n);
    return SL_OK;
}

enum sl_status sl_store_handle_protect(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                       struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__ProtectRequest *request = (const Sluice__V1__ProtectRequest *)message;
    size_t n = request->n_keys;
    enum sl_status status =
        sl_term_guard_check_if_any(&kvstore->node.term_guard, sl_rpc_call_identity(call), request->term, err);
    if (status == SL_OK && n > MAX_KEYS) {
        status = sl_fail(err, SL_ERR_INVALID, "%zu keys; at most %d are allowed", n, MAX_KEYS);
    }
    SL_TRY(status);
    struct sl_capsule_id *ids = malloc((n + 1) * sizeof *ids);
    Sluice__V1__ProtectedCapsule *capsules = malloc((n + 1) * sizeof *capsules);
    Sluice__V1__ProtectedCapsule **pointers = malloc((n + 1) * sizeof *pointers);
    if (!ids || !capsules || !pointers) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "kvstore: out of memory");
    } else {
        status = read_keys(request, ids, err);
    }
    SL_THEN(status, protect(kvstore, request, ids, err));
    if (status == SL_OK) {
        for (size_t i = 0; i < n; i++) {
            look(kvstore, &ids[i], &capsules[i]);
            pointers[i] = &capsules[i];
        }
        status = pin_remote_kvs(kvstore, request, ids, capsules, err);
    }
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        if (request->keys[i]->n_lanes > 0) {
            look_for_layers(kvstore, &ids[i], request->keys[i], &capsules[i]);
        }
    }
    if (status == SL_OK) {
        read_back(kvstore, request, ids, capsules);
        Sluice__V1__ProtectReply reply = SLUICE__V1__PROTECT_REPLY__INIT;
        reply.n_capsules = n;
        reply.capsules = pointers;
        status = sl_rpc_call_send(call, &reply.base);
    }
    free(pointers);
    free(capsules);
    free(ids);
    return status;
}

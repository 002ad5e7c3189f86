// SPDX-License-Identifier: Apache-2.0
// A registry of documents, and documents for it.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "coordinator/documents/documents.h"
#include "tests/unit/temp_folder.h"

#define ARENA ((int64_t)1000)

static struct temp_folder folder;
static struct sl_salt_secret secret = {true, {7}};

static inline int setup(void **state) {
    (void)state;
    folder = temp_folder_create();
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    temp_folder_destroy(&folder);
    return 0;
}

static inline struct sl_documents *open_registry(bool on_disk, int64_t max_documents, int64_t max_bytes) {
    const struct sl_documents_config config = {on_disk ? folder.path : "", max_documents, max_bytes, &secret, NULL};
    struct sl_documents *documents = NULL;
    assert_int_equal(sl_documents_create(&config, &documents, NULL), SL_OK);
    return documents;
}

// Describes a store; until the next call.
static inline const struct sl_ranked_store *at(const char *name, int64_t arena_bytes, int64_t disk_bytes) {
    static struct sl_ranked_store store;
    store = (struct sl_ranked_store){.arena_bytes = arena_bytes, .disk_bytes = disk_bytes};
    strcpy(store.name, name);
    return &store;
}

static inline int n_stores(struct sl_documents *documents, const struct sl_document *document) {
    char stores[SL_MAX_HOLDERS][64];
    return sl_documents_stores(documents, document, stores);
}

static inline struct sl_document *make(const char *tenant, const char *name, int64_t bytes) {
    struct sl_document *document = NULL;
    assert_int_equal(sl_document_create(tenant, name, "what is said", &document, NULL), SL_OK);
    strcpy(document->recipe, "full,format=int4");
    document->capsule = (struct sl_capsule_id){11, 22, {{(uint8_t)strlen(name), (uint8_t)name[0]}}};
    document->model_fingerprint = 11;
    struct sl_hash128 salt;
    assert_int_equal(sl_tenant_salt(&secret, tenant, &salt, NULL), SL_OK);
    document->salt_proof = sl_salted_hash(&salt, name, strlen(name));
    document->capsule_tokens = 99;
    document->first_key = 77;
    document->n_tokens = 100;
    document->capsule_bytes = bytes;
    document->created_ms = 5;
    document->is_cut = true;
    return document;
}

// Adds a document that a store has; the registry keeps the only reference.
static inline enum sl_status add(struct sl_documents *documents, const char *tenant, const char *name, int64_t bytes,
                                 struct sl_error *err) {
    struct sl_document *document = make(tenant, name, bytes);
    enum sl_status status = sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), err);
    if (status == SL_OK) {
        sl_documents_found(documents, document, "kvstore-0", bytes, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
        status = sl_documents_finish(documents, document, err);
    }
    sl_document_unref(&document);
    return status;
}

static inline size_t count(struct sl_documents *documents, const char *tenant) {
    struct sl_document **list = malloc(SL_MAX_DOCUMENTS * sizeof *list);
    assert_non_null(list);
    size_t n = sl_documents_list(documents, tenant, list);
    for (size_t i = 0; i < n; i++) {
        sl_document_unref(&list[i]);
    }
    free(list);
    return n;
}

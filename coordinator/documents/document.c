// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/document.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_alphanumeric(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

enum sl_status sl_document_check_name(const char *name, struct sl_error *err) {
    size_t n = strlen(name), n_good = 0;
    SL_FAIL_IF(n < 1 || n >= SL_DOCUMENT_NAME_BYTES, err, SL_ERR_INVALID, "name: has %zu bytes, must be 1 to %d", n,
               SL_DOCUMENT_NAME_BYTES - 1);
    while (n_good < n && (is_alphanumeric(name[n_good]) || (n_good > 0 && strchr("._-", name[n_good]) != NULL))) {
        n_good++;
    }
    if (n_good == n) {
        return SL_OK;
    }
    const unsigned char bad = (unsigned char)name[n_good];
    char shown[] = "'?', ";
    shown[1] = (char)bad;
    return sl_fail(
        err, SL_ERR_INVALID,
        "name: byte %zu is %s0x%02x; a document's name is letters, digits, '.', '_' and '-', and begins with a "
        "letter or a digit",
        n_good, bad >= 0x20 && bad < 0x7f ? shown : "", bad);
}

enum sl_status sl_document_create(const char *tenant, const char *name, const char *text,
                                  struct sl_document **document_out, struct sl_error *err) {
    struct sl_document *document = calloc(1, sizeof *document);
    char *copy = strdup(text);
    if (document == NULL || copy == NULL) {
        free(document);
        free(copy);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a document");
    }
    document->text = copy;
    document->text_bytes = strlen(text);
    document->replicas = 1;
    strcpy(document->tenant, tenant);
    strcpy(document->name, name);
    atomic_init(&document->refs, 1);
    SL_TRY_OR(sl_sha256_hex(text, document->text_bytes, document->sha256, err), sl_document_unref(&document));
    *document_out = document;
    return SL_OK;
}

struct sl_document *sl_document_ref(struct sl_document *document) {
    atomic_fetch_add(&document->refs, 1);
    return document;
}

void sl_document_unref(struct sl_document **document_inout) {
    struct sl_document *document = *document_inout;
    if (document != NULL && atomic_fetch_sub(&document->refs, 1) == 1) {
        free(document->text);
        free(document);
    }
    *document_inout = NULL;
}

bool sl_document_is_compacted(const struct sl_document *document) {
    struct sl_recipe recipe;
    return sl_recipe_parse(document->recipe, &recipe, NULL) == SL_OK && sl_recipe_evicts(&recipe);
}

Sluice__V1__StoreKey sl_document_store_key(const struct sl_document *document) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = document->capsule.model_fingerprint;
    key.recipe_fingerprint = document->capsule.recipe_fingerprint;
    key.n_tokens = document->capsule_tokens;
    key.prefix_hash.data = (uint8_t *)document->capsule.prefix_hash.bytes;
    key.prefix_hash.len = sizeof document->capsule.prefix_hash;
    key.n_lanes = document->n_offloaded_heads;
    key.scan_format = (int32_t)document->scan;
    return key;
}

struct sl_document_holder *sl_document_holder(const struct sl_document *document, const char *store) {
    for (int i = 0; i < document->n_holders; i++) {
        if (strcmp(document->holders[i].store, store) == 0) {
            return (struct sl_document_holder *)&document->holders[i];
        }
    }
    return NULL;
}

// Writes why a store that has the document does not have it on its disk; nothing if it has, or has no disk.
static void write_not_on_disk(const struct sl_document *document, const struct sl_document_holder *holder,
                              char buf[static 160]) {
    if (holder->disk == SLUICE__V1__DISK_COPY__DISK_COPY_NO_ROOM) {
        snprintf(buf, 160, "the disk of %s has no room for %.1f MiB", holder->store,
                 (double)sl_document_bytes(document) / (1 << 20));
    } else if (holder->disk == SLUICE__V1__DISK_COPY__DISK_COPY_FAILED) {
        snprintf(buf, 160, "the disk of %s does not work now", holder->store);
    } else if (holder->disk == SLUICE__V1__DISK_COPY__DISK_COPY_WAITING) {
        snprintf(buf, 160, "%s has not written it to its disk yet", holder->store);
    }
}

void sl_document_describe(const struct sl_document *document, struct sl_described_document *described_out) {
    Sluice__V1__Document *message_out = &described_out->message;
    sluice__v1__document__init(message_out);
    message_out->name = (char *)document->name;
    message_out->tenant = (char *)document->tenant;
    message_out->sha256 = (char *)document->sha256;
    message_out->text_bytes = (int64_t)document->text_bytes;
    message_out->model_fingerprint = document->model_fingerprint;
    message_out->recipe = (char *)document->recipe;
    message_out->chat = document->chat;
    message_out->n_tokens = document->n_tokens;
    message_out->capsule_bytes = document->capsule_bytes;
    message_out->offloaded_bytes = document->offloaded_bytes;
    message_out->created_ms = document->created_ms;
    message_out->expires_ms = document->expires_ms;
    message_out->reading = document->reading;
    message_out->replicas = document->replicas;
    described_out->not_on_disk[0] = '\0';
    message_out->not_on_disk = described_out->not_on_disk;
    for (int i = 0; i < document->n_holders; i++) {
        const struct sl_document_holder *holder = &document->holders[i];
        if (holder->has) {
            size_t n = message_out->n_stores++;
            strcpy(described_out->stores[n], holder->store);
            described_out->pointers[n] = described_out->stores[n];
            message_out->on_disk = message_out->on_disk || holder->disk == SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN;
            write_not_on_disk(document, holder, described_out->not_on_disk);
        }
    }
    message_out->stores = described_out->pointers;
    message_out->store = message_out->n_stores > 0 ? described_out->stores[0] : (char *)"";
    message_out->n_questions = document->n_questions;
    message_out->saved_tokens = document->saved_tokens;
    message_out->read_tokens = document->read_tokens;
    message_out->read_ms = document->read_ms;
    if (document->read_tokens > 0) {
        message_out->saved_ms = (double)document->saved_tokens * document->read_ms / (double)document->read_tokens;
    }
    const struct sl_loss *loss = sl_recipe_loss(document->recipe, document->n_tokens);
    described_out->lost_points[0] = '\0';
    if (loss != NULL) {
        sl_loss_format(loss, described_out->lost_points);
        message_out->lost_tokens = loss->tokens;
        message_out->lost_model = (char *)loss->model;
    }
    message_out->lost_points = described_out->lost_points;
    sl_recipe_caution(document->recipe, document->n_tokens, described_out->caution);
    message_out->caution = described_out->caution;
}

bool sl_document_has_text(const struct sl_document *a, const struct sl_document *b) {
    return a->text_bytes == b->text_bytes && strcmp(a->sha256, b->sha256) == 0;
}

enum sl_status sl_document_refuse_name(const struct sl_document *there, const struct sl_document *document,
                                       struct sl_error *err) {
    SL_FAIL_IF(there->reading, err, SL_ERR_EXISTS, "name: another call is adding %s now", document->name);
    SL_FAIL_IF(sl_document_has_text(there, document), err, SL_ERR_EXISTS,
               "name: %s is taken, by the same text, but read under %s for %s and model %016" PRIx64
               "; delete it, or choose another name",
               document->name, there->recipe, there->chat ? "chats" : "texts", there->model_fingerprint);
    return sl_fail(
        err, SL_ERR_EXISTS,
        "name: %s is taken, by another text: %zu bytes with SHA-256 %.12s..., and this one has %zu bytes with "
        "%.12s...; delete it, or choose another name",
        document->name, there->text_bytes, there->sha256, document->text_bytes, document->sha256);
}

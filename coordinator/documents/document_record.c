// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/document_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

void sl_document_digits(const struct sl_document *document, char digits_out[SL_DOCUMENT_DIGITS + 1]) {
    static const struct sl_hash128 no_salt = {{0}};
    char key[SL_TENANT_BYTES + SL_DOCUMENT_NAME_BYTES] = {0};
    strcpy(key, document->tenant);
    strcpy(key + SL_TENANT_BYTES, document->name);
    struct sl_hash128 hash = sl_salted_hash(&no_salt, key, sizeof key);
    for (size_t i = 0; i < sizeof hash.bytes; i++) {
        snprintf(digits_out + 2 * i, 3, "%02x", hash.bytes[i]);
    }
}

uint8_t *sl_document_pack(const struct sl_document *document, bool with_text, size_t *n_out) {
    struct sl_described_document described;
    Sluice__V1__KeptDocument kept = SLUICE__V1__KEPT_DOCUMENT__INIT;
    sl_document_describe(document, &described);
    kept.document = &described.message;
    if (with_text) {
        kept.text = document->text;
    }
    kept.capsule_model = document->capsule.model_fingerprint;
    kept.capsule_recipe = document->capsule.recipe_fingerprint;
    kept.capsule_hash.data = (uint8_t *)document->capsule.prefix_hash.bytes;
    kept.capsule_hash.len = sizeof document->capsule.prefix_hash;
    kept.capsule_tokens = document->capsule_tokens;
    kept.first_key = document->first_key;
    kept.n_lanes = document->n_offloaded_heads;
    kept.scan_format = (int32_t)document->scan;
    kept.is_cut = document->is_cut;
    kept.salt_proof.data = (uint8_t *)document->salt_proof.bytes;
    kept.salt_proof.len = sizeof document->salt_proof;
    size_t n = sluice__v1__kept_document__get_packed_size(&kept);
    uint64_t digest;
    uint8_t *bytes = malloc(sizeof digest + n);
    if (bytes != NULL) {
        digest = sl_hash(bytes + sizeof digest, sluice__v1__kept_document__pack(&kept, bytes + sizeof digest), 0);
        memcpy(bytes, &digest, sizeof digest);
        *n_out = sizeof digest + n;
    }
    return bytes;
}

// Copies a string of a record into an array; false: it is too long.
#define TAKE(array, string) (strlen(string) < sizeof(array) && (strcpy((array), (string)), true))

enum sl_status sl_document_make(const Sluice__V1__KeptDocument *kept, struct sl_document **document_out,
                                struct sl_error *err) {
    const Sluice__V1__Document *described = kept->document;
    struct sl_document *document = NULL;
    if (described == NULL || sl_document_check_name(described->name, err) != SL_OK ||
        strlen(described->tenant) >= SL_TENANT_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "its name is not a document's");
    }
    SL_TRY(sl_document_create(described->tenant, described->name, kept->text, &document, err));
    if (!TAKE(document->recipe, described->recipe) || strcmp(document->sha256, described->sha256) != 0 ||
        !sl_hash128_read(kept->salt_proof.data, kept->salt_proof.len, &document->salt_proof) ||
        !sl_hash128_read(kept->capsule_hash.data, kept->capsule_hash.len, &document->capsule.prefix_hash)) {
        sl_document_unref(&document);
        return sl_fail(err, SL_ERR_INVALID, "its text, recipe or key cannot be right");
    }
    document->chat = described->chat;
    document->model_fingerprint = described->model_fingerprint;
    document->capsule.model_fingerprint = kept->capsule_model;
    document->capsule.recipe_fingerprint = kept->capsule_recipe;
    document->capsule_tokens = kept->capsule_tokens;
    document->first_key = kept->first_key;
    document->n_offloaded_heads = kept->n_lanes;
    document->scan = (enum sl_kv_format)kept->scan_format;
    document->is_cut = kept->is_cut || document->n_offloaded_heads > 0 || sl_document_is_compacted(document);
    document->n_tokens = described->n_tokens;
    document->capsule_bytes = described->capsule_bytes;
    document->offloaded_bytes = described->offloaded_bytes;
    document->created_ms = described->created_ms;
    document->expires_ms = described->expires_ms;
    if (described->replicas >= 1 && described->replicas <= SL_MAX_REPLICAS) { // files of older versions have none
        document->replicas = described->replicas;
    }
    document->read_tokens = described->read_tokens;
    document->read_ms = described->read_ms;
    *document_out = document;
    return SL_OK;
}

enum sl_status sl_document_unpack(const uint8_t *bytes, size_t n, Sluice__V1__KeptDocument **kept_out,
                                  struct sl_error *err) {
    uint64_t digest;
    SL_FAIL_IF(n <= sizeof digest, err, SL_ERR_INVALID, "it is cut short");
    memcpy(&digest, bytes, sizeof digest);
    bytes += sizeof digest;
    n -= sizeof digest;
    Sluice__V1__KeptDocument *kept =
        sl_hash(bytes, n, 0) == digest ? sluice__v1__kept_document__unpack(NULL, n, bytes) : NULL;
    SL_FAIL_IF(kept == NULL, err, SL_ERR_INVALID, "it fails its digest");
    *kept_out = kept;
    return SL_OK;
}

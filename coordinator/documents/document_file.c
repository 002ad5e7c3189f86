// SPDX-License-Identifier: Apache-2.0
// Purpose: see document_file.h.
#include "coordinator/documents/document_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "proto/sluice/v1/state.pb-c.h"

#define PREFIX      "document-"
#define NAME_DIGITS 32
#define MAX_BYTES   ((long)64 << 20) // far above the largest message that can add a document

// Writes the path of a document's file, malloc'd.
static enum sl_status path_of(const char *folder, const struct sl_document *document, char **path_out,
                              struct sl_error *err) {
    static const struct sl_hash128 no_salt = {{0}};
    char key[SL_TENANT_BYTES + SL_DOCUMENT_NAME_BYTES] = {0}, digits[NAME_DIGITS + 1];
    strcpy(key, document->tenant);
    strcpy(key + SL_TENANT_BYTES, document->name);
    struct sl_hash128 hash = sl_salted_hash(&no_salt, key, sizeof key);
    for (size_t i = 0; i < sizeof hash.bytes; i++) {
        snprintf(digits + 2 * i, 3, "%02x", hash.bytes[i]);
    }
    if (asprintf(path_out, "%s/" PREFIX "%s", folder, digits) < 0) {
        *path_out = NULL;
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a path");
    }
    return SL_OK;
}

// Packs a document after its digest, malloc'd. NULL: no memory.
static uint8_t *pack(const struct sl_document *document, size_t *n_out) {
    struct sl_described_document described;
    Sluice__V1__KeptDocument kept = SLUICE__V1__KEPT_DOCUMENT__INIT;
    sl_document_describe(document, &described);
    kept.document = &described.message;
    kept.text = document->text;
    kept.capsule_model = document->capsule.model_fingerprint;
    kept.capsule_recipe = document->capsule.recipe_fingerprint;
    kept.capsule_hash.data = (uint8_t *)document->capsule.prefix_hash.bytes;
    kept.capsule_hash.len = sizeof document->capsule.prefix_hash;
    kept.capsule_tokens = document->capsule_tokens;
    kept.first_key = document->first_key;
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

enum sl_status sl_document_file_write(const char *folder, const struct sl_document *document, struct sl_error *err) {
    char *path = NULL;
    size_t n = 0;
    enum sl_status status = path_of(folder, document, &path, err);
    if (status != SL_OK) {
        return status;
    }
    uint8_t *bytes = pack(document, &n);
    struct sl_whole_file *whole = malloc(sizeof *whole); // larger than a stack frame should be
    if (bytes == NULL || whole == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory to write a document");
    } else {
        status = sl_whole_file_open(whole, path, err);
    }
    if (status == SL_OK) {
        whole->mode = 0600;                     // the folder is closed to others anyway
        (void)fwrite(bytes, n, 1, whole->file); // the stream keeps its error for the end
        status = sl_whole_file_finish(whole, err);
    }
    free(whole);
    free(bytes);
    free(path);
    return status;
}

enum sl_status sl_document_file_remove(const char *folder, const struct sl_document *document, struct sl_error *err) {
    char *path = NULL;
    enum sl_status status = path_of(folder, document, &path, err);
    if (status == SL_OK && unlink(path) != 0 && errno != ENOENT) {
        status = sl_fail(err, SL_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
    }
    free(path);
    return status;
}

// ---- reading --------------------------------------------------------------------------------------------------------

// Copies a string of a file into an array; false: it is too long.
#define TAKE(array, string) (strlen(string) < sizeof(array) && (strcpy((array), (string)), true))

static enum sl_status make(const Sluice__V1__KeptDocument *kept, struct sl_document **document_out,
                           struct sl_error *err) {
    const Sluice__V1__Document *described = kept->document;
    struct sl_document *document = NULL;
    if (described == NULL || sl_document_check_name(described->name, err) != SL_OK ||
        strlen(described->tenant) >= SL_TENANT_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "its name is none of a document");
    }
    enum sl_status status = sl_document_create(described->tenant, described->name, kept->text, &document, err);
    if (status != SL_OK) {
        return status;
    }
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
    document->n_tokens = described->n_tokens;
    document->capsule_bytes = described->capsule_bytes;
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

static enum sl_status unpack(const uint8_t *bytes, size_t n, struct sl_document **document_out, struct sl_error *err) {
    uint64_t digest;
    if (n <= sizeof digest) {
        return sl_fail(err, SL_ERR_INVALID, "it is cut short");
    }
    memcpy(&digest, bytes, sizeof digest);
    bytes += sizeof digest;
    n -= sizeof digest;
    Sluice__V1__KeptDocument *kept =
        sl_hash(bytes, n, 0) == digest ? sluice__v1__kept_document__unpack(NULL, n, bytes) : NULL;
    if (kept == NULL) {
        return sl_fail(err, SL_ERR_INVALID, "it fails its digest");
    }
    enum sl_status status = make(kept, document_out, err);
    sluice__v1__kept_document__free_unpacked(kept, NULL);
    return status;
}

static enum sl_status read_file(const char *path, struct sl_document **document_out, struct sl_error *err) {
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return sl_fail(err, SL_ERR_IO, "%s", strerror(errno));
    }
    long n = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    uint8_t *bytes = n >= 0 && n <= MAX_BYTES ? malloc((size_t)n + 1) : NULL;
    enum sl_status status = SL_OK;
    if (bytes == NULL || fseek(file, 0, SEEK_SET) != 0 || fread(bytes, 1, (size_t)n, file) != (size_t)n) {
        status = sl_fail(err, SL_ERR_IO, "it cannot be read, or there is no memory for %ld bytes", n);
    } else {
        status = unpack(bytes, (size_t)n, document_out, err);
    }
    free(bytes);
    fclose(file);
    return status;
}

// Renames a damaged file; one that cannot be read now stays for the next start.
static void put_aside(const char *folder, const char *name, const char *path, enum sl_status status, const char *why) {
    char *aside;
    if (asprintf(&aside, "%s/damaged-%s", folder, name) < 0) {
        aside = NULL;
    }
    bool moved = status == SL_ERR_INVALID && aside != NULL && rename(path, aside) == 0;
    sl_log_warn("documents", "%s is lost%s: %s", path, moved ? ", and renamed to damaged-..." : "", why);
    free(aside);
}

// Reads the file of this name, if it is a document's; calls fn.
static void read_entry(const char *folder, const char *name, sl_document_file_fn fn, void *arg) {
    char *path = NULL;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 ||
        strlen(name) != strlen(PREFIX) + NAME_DIGITS || // a file that a killed process has not finished
        asprintf(&path, "%s/%s", folder, name) < 0) {
        return;
    }
    struct sl_document *document = NULL;
    struct sl_error why = {0};
    enum sl_status status = read_file(path, &document, &why);
    if (status == SL_OK) {
        fn(arg, document);
    } else {
        put_aside(folder, name, path, status, why.text);
    }
    free(path);
}

enum sl_status sl_document_files_read(const char *folder, sl_document_file_fn fn, void *arg, struct sl_error *err) {
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return sl_fail(err, SL_ERR_IO, "--state %s: cannot be listed: %s", folder, strerror(errno));
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        read_entry(folder, entry->d_name, fn, arg);
    }
    closedir(dir);
    return SL_OK;
}

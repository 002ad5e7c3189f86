// SPDX-License-Identifier: Apache-2.0
// Purpose: see documents.h.
#include "coordinator/documents/documents.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/documents/document_file.h"

#define MAX_DOUBLINGS 10 // of the wait before a text is read again: up to 3 hours

struct sl_documents {
    char *folder; // owned; NULL: none
    int64_t max_documents, max_bytes;
    pthread_mutex_t mutex;
    // Under the mutex:
    struct sl_document *first; // sorted by tenant and name; one reference each
    int64_t n_documents;
};

// ---- the list (lock held) -------------------------------------------------------------------------------------------

static int compare(const char *tenant_a, const char *name_a, const struct sl_document *b) {
    int order = strcmp(tenant_a, b->tenant);
    return order != 0 ? order : strcmp(name_a, b->name);
}

// Returns the link to the document, or the link where it would be.
static struct sl_document **find(struct sl_documents *documents, const char *tenant, const char *name) {
    struct sl_document **at = &documents->first;
    while (*at != NULL && compare(tenant, name, *at) > 0) {
        at = &(*at)->next;
    }
    return at;
}

static bool is_at(struct sl_document *const *at, const char *tenant, const char *name) {
    return *at != NULL && compare(tenant, name, *at) == 0;
}

static void insert(struct sl_documents *documents, struct sl_document **at, struct sl_document *document) {
    document->next = *at;
    *at = document;
    documents->n_documents++;
}

// ---- opening --------------------------------------------------------------------------------------------------------

// Unsets the capsule's key if it was made with another salt.
static void check_salt(const struct sl_salt_secret *secret, struct sl_document *document) {
    struct sl_hash128 salt, proof = {{0}};
    enum sl_status status = sl_tenant_salt(secret, document->tenant, &salt, NULL);
    if (status == SL_OK) {
        proof = sl_salted_hash(&salt, document->name, strlen(document->name));
    }
    if (status != SL_OK || !sl_hash128_equals(&proof, &document->salt_proof)) {
        sl_log_warn("documents",
                    "%s was read under another secret of tenants (--salt-file), so no store has it: delete it, and add "
                    "it again",
                    document->name);
        document->capsule = (struct sl_capsule_id){0};
    }
}

struct restoring {
    struct sl_documents *documents;
    const struct sl_salt_secret *secret;
};

static void restore(void *arg, struct sl_document *document) {
    const struct restoring *restoring = arg;
    struct sl_documents *documents = restoring->documents;
    check_salt(restoring->secret, document);
    document->again_ns = sl_deadline_in_ms(SL_DOCUMENT_LOST_MS); // stores report first
    struct sl_document **at = find(documents, document->tenant, document->name);
    if (documents->n_documents < SL_MAX_DOCUMENTS && !is_at(at, document->tenant, document->name)) {
        insert(documents, at, document);
    } else {
        sl_log_warn("documents", "%s exceeds the most documents, and is left out", document->name);
        sl_document_unref(&document);
    }
}

enum sl_status sl_documents_create(const struct sl_documents_config *config, struct sl_documents **documents_out,
                                   struct sl_error *err) {
    struct sl_documents *documents = calloc(1, sizeof *documents);
    if (documents == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for documents");
    }
    documents->max_documents = config->max_documents;
    documents->max_bytes = config->max_bytes;
    pthread_mutex_init(&documents->mutex, NULL);
    enum sl_status status = SL_OK;
    if (config->folder[0] != '\0') {
        documents->folder = strdup(config->folder);
        struct restoring restoring = {documents, config->secret};
        status = documents->folder != NULL ? sl_document_files_read(config->folder, restore, &restoring, err)
                                           : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for documents");
    }
    if (status != SL_OK) {
        sl_documents_destroy(&documents);
        return status;
    }
    if (documents->n_documents > 0) {
        sl_log_info("documents", "documents=%" PRId64 " restored", documents->n_documents);
    }
    *documents_out = documents;
    return SL_OK;
}

void sl_documents_destroy(struct sl_documents **documents_inout) {
    struct sl_documents *documents = *documents_inout;
    if (documents == NULL) {
        return;
    }
    while (documents->first != NULL) {
        struct sl_document *document = documents->first;
        documents->first = document->next;
        sl_document_unref(&document);
    }
    pthread_mutex_destroy(&documents->mutex);
    free(documents->folder);
    free(documents);
    *documents_inout = NULL;
}

// ---- what may be held (lock held) -----------------------------------------------------------------------------------

// A list of documents for an error message, which is cut when it is full.
struct names {
    char text[256];
    size_t n;
};

static void add_text(struct names *names, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int n = vsnprintf(names->text + names->n, sizeof names->text - names->n, format, values);
    va_end(values);
    names->n += n > 0 ? (size_t)n : 0;
    names->n = names->n < sizeof names->text ? names->n : sizeof names->text - 1;
}

static void add_name(struct names *names, const struct sl_document *document) {
    add_text(names, "%s%s (%" PRId64 " bytes)", names->n > 0 ? ", " : "", document->name, document->capsule_bytes);
}

static enum sl_status check_tenant(const struct sl_documents *documents, const struct sl_document *document,
                                   struct sl_error *err) {
    int64_t n = 0, bytes = 0;
    struct names names = {{0}, 0};
    for (const struct sl_document *one = documents->first; one != NULL; one = one->next) {
        if (strcmp(one->tenant, document->tenant) == 0) {
            n++;
            bytes += one->capsule_bytes + (int64_t)one->text_bytes;
            add_name(&names, one);
        }
    }
    if (n >= documents->max_documents) {
        return sl_fail(err, SL_ERR_PRECONDITION, "%" PRId64 " documents are the most allowed (--max-documents)%s%s",
                       documents->max_documents, n > 0 ? ": delete one of " : "", names.text);
    }
    if (documents->n_documents >= SL_MAX_DOCUMENTS) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "all tenants together have %" PRId64 " documents, the most of a cluster%s%s",
                       documents->n_documents, n > 0 ? ": delete one of " : "", names.text);
    }
    int64_t own_bytes = document->capsule_bytes + (int64_t)document->text_bytes;
    if (own_bytes > documents->max_bytes - bytes) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "%" PRId64 " bytes of capsule and text, and %" PRId64 " bytes of documents, exceed the %" PRId64
                       " allowed (--document-bytes)%s%s",
                       own_bytes, bytes, documents->max_bytes, n > 0 ? ": delete one of " : "", names.text);
    }
    return SL_OK;
}

static enum sl_status check_store(const struct sl_documents *documents, const struct sl_document *document,
                                  const char *store, int64_t arena_bytes, struct sl_error *err) {
    int64_t bytes = 0, n_others = 0, others_bytes = 0, most = arena_bytes / SL_DOCUMENTS_SHARE;
    struct names names = {{0}, 0};
    for (const struct sl_document *one = documents->first; one != NULL; one = one->next) {
        if ((one->is_stored || one->reading) && strcmp(one->store, store) == 0) {
            bool is_own = strcmp(one->tenant, document->tenant) == 0;
            bytes += one->capsule_bytes;
            n_others += !is_own;
            others_bytes += is_own ? 0 : one->capsule_bytes;
            if (is_own) {
                add_name(&names, one);
            }
        }
    }
    if (document->capsule_bytes <= most - bytes) {
        return SL_OK;
    }
    if (n_others > 0) {
        add_text(&names, "%s%" PRId64 " of other tenants (%" PRId64 " bytes)", names.n > 0 ? ", " : "", n_others,
                 others_bytes);
    }
    return sl_fail(err, SL_ERR_PRECONDITION,
                   "store %s has no room for %" PRId64 " bytes: half of its arena, %" PRId64
                   " bytes, may be documents; it holds %s. Delete one, or give the store a larger --arena",
                   store, document->capsule_bytes, most, names.n > 0 ? names.text : "none");
}

// ---- changes --------------------------------------------------------------------------------------------------------

enum sl_status sl_documents_begin(struct sl_documents *documents, struct sl_document *document, const char *store,
                                  int64_t arena_bytes, struct sl_error *err) {
    pthread_mutex_lock(&documents->mutex);
    struct sl_document **at = find(documents, document->tenant, document->name);
    enum sl_status status = SL_OK;
    if (is_at(at, document->tenant, document->name)) {
        status = (*at)->reading ? sl_fail(err, SL_ERR_EXISTS, "name: another call is adding %s now", document->name)
                                : sl_fail(err, SL_ERR_EXISTS,
                                          "name: %s is taken, by a text of %zu bytes with SHA-256 %.12s...; delete it, "
                                          "or choose another name",
                                          document->name, (*at)->text_bytes, (*at)->sha256);
    }
    if (status == SL_OK) {
        status = check_tenant(documents, document, err);
    }
    if (status == SL_OK) {
        status = check_store(documents, document, store, arena_bytes, err);
    }
    if (status == SL_OK) {
        document->reading = true;
        document->is_stored = false;
        snprintf(document->store, sizeof document->store, "%s", store);
        insert(documents, at, sl_document_ref(document));
    }
    pthread_mutex_unlock(&documents->mutex);
    return status;
}

enum sl_status sl_documents_finish(struct sl_documents *documents, struct sl_document *document, struct sl_error *err) {
    pthread_mutex_lock(&documents->mutex);
    struct sl_document copy = *document; // reports of stores may change it meanwhile
    pthread_mutex_unlock(&documents->mutex);
    enum sl_status status = documents->folder ? sl_document_file_write(documents->folder, &copy, err) : SL_OK;
    if (status == SL_OK) {
        pthread_mutex_lock(&documents->mutex);
        document->reading = false;
        pthread_mutex_unlock(&documents->mutex);
    }
    return status;
}

enum sl_status sl_documents_remove(struct sl_documents *documents, struct sl_document *document, struct sl_error *err) {
    pthread_mutex_lock(&documents->mutex);
    struct sl_document **at = find(documents, document->tenant, document->name), *found = *at;
    enum sl_status status =
        found == document ? SL_OK : sl_fail(err, SL_ERR_NOT_FOUND, "no document %s", document->name);
    if (status == SL_OK && documents->folder != NULL) {
        status = sl_document_file_remove(documents->folder, document, err);
        if (status != SL_OK && document->reading) { // its call has failed, so it leaves the list in any case
            sl_log_warn("documents", "%s was not added, but its file may stay: %s", document->name, err->text);
            status = SL_OK;
        }
    }
    if (status == SL_OK) {
        *at = found->next;
        documents->n_documents--;
    }
    pthread_mutex_unlock(&documents->mutex);
    if (status == SL_OK) {
        sl_document_unref(&found);
    }
    return status;
}

void sl_documents_found(struct sl_documents *documents, struct sl_document *document, const char *store,
                        int64_t capsule_bytes, bool on_disk) {
    pthread_mutex_lock(&documents->mutex);
    if (capsule_bytes > 0) {
        snprintf(document->store, sizeof document->store, "%s", store);
        document->is_stored = true;
        document->n_again = 0;
        document->on_disk = on_disk;
        document->capsule_bytes = capsule_bytes;
    } else if (document->is_stored && strcmp(document->store, store) == 0) {
        document->is_stored = false;
        document->again_ns = sl_deadline_in_ms(SL_DOCUMENT_LOST_MS);
    }
    pthread_mutex_unlock(&documents->mutex);
}

// ---- questions ------------------------------------------------------------------------------------------------------

enum sl_status sl_documents_find(struct sl_documents *documents, const char *tenant, const char *name,
                                 struct sl_document **document_out, struct sl_error *err) {
    enum sl_status status = sl_document_check_name(name, err);
    if (status != SL_OK) {
        return status;
    }
    pthread_mutex_lock(&documents->mutex);
    struct sl_document **at = find(documents, tenant, name);
    bool found = is_at(at, tenant, name);
    if (found) {
        *document_out = sl_document_ref(*at);
    }
    pthread_mutex_unlock(&documents->mutex);
    return found ? SL_OK : sl_fail(err, SL_ERR_NOT_FOUND, "no document %s", name);
}

size_t sl_documents_text_bytes(struct sl_documents *documents, const char *tenant, const char *name) {
    pthread_mutex_lock(&documents->mutex);
    struct sl_document **at = find(documents, tenant, name);
    size_t n = is_at(at, tenant, name) ? (*at)->text_bytes : 0;
    pthread_mutex_unlock(&documents->mutex);
    return n;
}

size_t sl_documents_list(struct sl_documents *documents, const char *tenant, struct sl_document **list_out) {
    size_t n = 0;
    pthread_mutex_lock(&documents->mutex);
    for (struct sl_document *one = documents->first; one != NULL; one = one->next) {
        if (tenant == NULL || strcmp(one->tenant, tenant) == 0) {
            list_out[n++] = sl_document_ref(one);
        }
    }
    pthread_mutex_unlock(&documents->mutex);
    return n;
}

struct sl_document *sl_documents_expired(struct sl_documents *documents, int64_t now_ms) {
    pthread_mutex_lock(&documents->mutex);
    struct sl_document *one = documents->first;
    while (one != NULL && (one->reading || one->expires_ms == 0 || one->expires_ms > now_ms)) {
        one = one->next;
    }
    struct sl_document *expired = one != NULL ? sl_document_ref(one) : NULL;
    pthread_mutex_unlock(&documents->mutex);
    return expired;
}

struct sl_document *sl_documents_lost(struct sl_documents *documents, uint64_t model_fingerprint, int64_t now_ns) {
    static const struct sl_capsule_id no_key = {0};
    pthread_mutex_lock(&documents->mutex);
    struct sl_document *one = documents->first;
    while (one != NULL &&
           (one->reading || one->is_stored || one->again_ns > now_ns || one->model_fingerprint != model_fingerprint ||
            memcmp(&one->capsule, &no_key, sizeof no_key) == 0)) {
        one = one->next;
    }
    if (one != NULL) {
        int64_t wait_ms = (int64_t)SL_DOCUMENT_LOST_MS << (one->n_again < MAX_DOUBLINGS ? one->n_again : MAX_DOUBLINGS);
        one->again_ns = now_ns + 2 * wait_ms * SL_NS_PER_MS;
        one->n_again++;
        (void)sl_document_ref(one);
    }
    pthread_mutex_unlock(&documents->mutex);
    return one;
}

enum sl_status sl_documents_check_room(struct sl_documents *documents, const struct sl_document *document,
                                       const char *store, int64_t arena_bytes, struct sl_error *err) {
    pthread_mutex_lock(&documents->mutex);
    enum sl_status status = check_store(documents, document, store, arena_bytes, err);
    pthread_mutex_unlock(&documents->mutex);
    return status;
}

bool sl_documents_share_capsule(struct sl_documents *documents, const struct sl_document *document) {
    bool shared = false;
    pthread_mutex_lock(&documents->mutex);
    for (const struct sl_document *one = documents->first; one != NULL && !shared; one = one->next) {
        shared = one != document && memcmp(&one->capsule, &document->capsule, sizeof one->capsule) == 0;
    }
    pthread_mutex_unlock(&documents->mutex);
    return shared;
}

void sl_documents_describe(struct sl_documents *documents, const struct sl_document *document,
                           uint64_t model_fingerprint, Sluice__V1__Document *message_out, char store_out[64]) {
    pthread_mutex_lock(&documents->mutex);
    sl_document_describe(document, message_out);
    strcpy(store_out, message_out->store);
    pthread_mutex_unlock(&documents->mutex);
    message_out->store = store_out;
    message_out->other_model = document->model_fingerprint != model_fingerprint;
}

bool sl_documents_where(struct sl_documents *documents, const struct sl_document *document, char store_out[64]) {
    pthread_mutex_lock(&documents->mutex);
    bool is_stored = document->is_stored;
    strcpy(store_out, is_stored ? document->store : "");
    pthread_mutex_unlock(&documents->mutex);
    return is_stored;
}

void sl_documents_measured(struct sl_documents *documents, struct sl_document *document, int64_t n_tokens, double ms) {
    if (n_tokens < document->n_tokens / 2 || !(ms > 0) || !isfinite(ms)) {
        return;
    }
    pthread_mutex_lock(&documents->mutex);
    document->read_tokens = n_tokens;
    document->read_ms = ms;
    pthread_mutex_unlock(&documents->mutex);
}

void sl_documents_count(struct sl_documents *documents, const char *tenant, const char *name, int64_t n_reused) {
    pthread_mutex_lock(&documents->mutex);
    struct sl_document **at = find(documents, tenant, name);
    if (is_at(at, tenant, name)) { // a worker reports n_reused, which includes the question's tokens
        struct sl_document *document = *at;
        document->n_questions++;
        document->saved_tokens += n_reused < 0 ? 0 : n_reused > document->n_tokens ? document->n_tokens : n_reused;
    }
    pthread_mutex_unlock(&documents->mutex);
}

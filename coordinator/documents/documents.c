// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/documents.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "coordinator/documents/archive.h"
#include "coordinator/documents/quota.h"

#define NO_DOCUMENT   "no document %s; `sluice doc ls`, or GET /v1/documents, lists them"
#define MAX_DOUBLINGS 10 // of the wait before a text is read again: up to 3 hours

struct sl_documents {
    struct sl_document_archive archive; // under `files`, but for its term
    const struct sl_salt_secret *secret;
    pthread_mutex_t files;          // taken before the list's mutex, and never while that is held
    pthread_mutex_t mutex;          // of the list; held briefly, because every request takes it
    struct sl_document_quota quota; // its list under the mutex; one reference each
};

// ---- the list (lock held) -------------------------------------------------------------------------------------------

static int compare(const char *tenant_a, const char *name_a, const struct sl_document *b) {
    int order = strcmp(tenant_a, b->tenant);
    return order != 0 ? order : strcmp(name_a, b->name);
}

// Returns the link to the document, or the link where it would be.
static struct sl_document **find(struct sl_documents *documents, const char *tenant, const char *name) {
    struct sl_document **at = &documents->quota.first;
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
    documents->quota.n_documents++;
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

static bool restore(void *arg, struct sl_document *document) {
    struct sl_documents *documents = arg;
    check_salt(documents->secret, document);
    document->again_ns = sl_deadline_in_ms(SL_DOCUMENT_LOST_MS); // stores report first
    pthread_mutex_lock(&documents->mutex);
    struct sl_document **at = find(documents, document->tenant, document->name);
    bool fits = documents->quota.n_documents < SL_MAX_DOCUMENTS && !is_at(at, document->tenant, document->name);
    if (fits) {
        insert(documents, at, document);
    }
    pthread_mutex_unlock(&documents->mutex);
    if (!fits) {
        sl_log_warn("documents", "%s is left out: its name is taken, or there are too many documents", document->name);
        sl_document_unref(&document);
    }
    return fits;
}

static void say_restored(const struct sl_documents *documents) {
    if (documents->quota.n_documents > 0) {
        sl_log_info("documents", "documents=%" PRId64 " restored", documents->quota.n_documents);
    }
}

enum sl_status sl_documents_create(const struct sl_documents_config *config, struct sl_documents **documents_out,
                                   struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_documents, documents, err, "no memory for documents");
    documents->quota.max_documents = config->max_documents;
    documents->quota.max_bytes = config->max_bytes;
    documents->secret = config->secret;
    pthread_mutex_init(&documents->files, NULL);
    pthread_mutex_init(&documents->mutex, NULL);
    enum sl_status status = sl_document_archive_open(&documents->archive, config->folder, config->etcd, err);
    SL_THEN_IF(status, config->etcd == NULL, sl_document_archive_read(&documents->archive, 0, restore, documents, err));
    SL_TRY_OR(status, sl_documents_destroy(&documents));
    say_restored(documents);
    *documents_out = documents;
    return SL_OK;
}

// Empties the list. Calls that are adding documents fail when they finish.
static void clear(struct sl_documents *documents) {
    SL_LOCKED(&documents->mutex);
    while (documents->quota.first != NULL) {
        struct sl_document *document = documents->quota.first;
        documents->quota.first = document->next;
        sl_document_unref(&document);
    }
    documents->quota.n_documents = 0;
}

int64_t sl_documents_term(const struct sl_documents *documents) {
    return atomic_load(&documents->archive.term);
}

enum sl_status sl_documents_lead(struct sl_documents *documents, int64_t term, struct sl_error *err) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&documents->files);
    if (documents->archive.etcd != NULL && sl_documents_term(documents) != term) {
        atomic_store(&documents->archive.term, 0); // before the list: calls that find nothing look at it
        clear(documents);
        if (term != 0) {
            status = sl_document_archive_read(&documents->archive, term, restore, documents, err);
        }
        if (status == SL_OK) {
            say_restored(documents);
            atomic_store(&documents->archive.term, term);
        } else {
            clear(documents);
        }
    }
    return status;
}

void sl_documents_destroy(struct sl_documents **documents_inout) {
    SL_TAKE_OR_RETURN(documents, documents_inout);
    clear(documents);
    pthread_mutex_destroy(&documents->mutex);
    pthread_mutex_destroy(&documents->files);
    sl_document_archive_close(&documents->archive);
    free(documents);
}

// ---- changes --------------------------------------------------------------------------------------------------------

// Returns NULL if there are too many.
static struct sl_document_holder *add_holder(struct sl_document *document, const char *store) {
    if (document->n_holders == SL_MAX_HOLDERS) {
        return NULL;
    }
    struct sl_document_holder *holder = &document->holders[document->n_holders++];
    *holder = (struct sl_document_holder){0};
    snprintf(holder->store, sizeof holder->store, "%s", store);
    return holder;
}

static void remove_holder(struct sl_document *document, struct sl_document_holder *holder) {
    struct sl_document_holder *end = &document->holders[document->n_holders--];
    memmove(holder, holder + 1, (size_t)(end - holder - 1) * sizeof *holder);
}

static int count_holders(const struct sl_document *document) {
    int n = 0;
    for (int i = 0; i < document->n_holders; i++) {
        n += document->holders[i].has;
    }
    return n;
}

struct sl_document *sl_documents_find_same(struct sl_documents *documents, const struct sl_document *document) {
    SL_LOCKED(&documents->mutex);
    struct sl_document *there = *find(documents, document->tenant, document->name);
    bool is_same = is_at(&there, document->tenant, document->name) && !there->reading &&
                   sl_document_has_text(there, document) && strcmp(there->recipe, document->recipe) == 0 &&
                   there->chat == document->chat &&
                   memcmp(&there->capsule, &document->capsule, sizeof there->capsule) == 0;
    return is_same ? sl_document_ref(there) : NULL;
}

// Call with the lock held. Checks whether etcd has room for one more text.
static enum sl_status check_etcd(const struct sl_documents *documents, const struct sl_document *document,
                                 struct sl_error *err) {
    size_t bytes = document->text_bytes;
    for (const struct sl_document *one = documents->quota.first; one != NULL; one = one->next) {
        bytes += one->text_bytes;
    }
    return documents->archive.etcd == NULL || bytes <= SL_DOCUMENTS_ETCD_BYTES
               ? SL_OK
               : sl_fail(err, SL_ERR_PRECONDITION,
                         "the texts of all documents would have %zu bytes, and coordinators with an etcd keep at most "
                         "%zu; delete some",
                         bytes, SL_DOCUMENTS_ETCD_BYTES);
}

enum sl_status sl_documents_begin(struct sl_documents *documents, struct sl_document *document,
                                  const struct sl_ranked_store *store, struct sl_error *err) {
    SL_LOCKED(&documents->mutex);
    struct sl_document **at = find(documents, document->tenant, document->name);
    SL_TRY(is_at(at, document->tenant, document->name) ? sl_document_refuse_name(*at, document, err) : SL_OK);
    SL_TRY(sl_document_quota_check(&documents->quota, document, err));
    SL_TRY(check_etcd(documents, document, err));
    SL_TRY(sl_document_quota_check_store(&documents->quota, document, store, err));
    document->reading = true;
    document->n_holders = 0;
    add_holder(document, store->name); // the first one
    insert(documents, at, sl_document_ref(document));
    return SL_OK;
}

enum sl_status sl_documents_plan_store(struct sl_documents *documents, struct sl_document *document,
                                       const struct sl_ranked_store *store, struct sl_error *err) {
    SL_LOCKED(&documents->mutex);
    SL_TRY(sl_document_quota_check_store(&documents->quota, document, store, err));
    SL_FAIL_IF(sl_document_holder(document, store->name) == NULL && add_holder(document, store->name) == NULL, err,
               SL_ERR_PRECONDITION, "replicas: %d stores have the document already", SL_MAX_HOLDERS);
    return SL_OK;
}

enum sl_status sl_documents_finish(struct sl_documents *documents, struct sl_document *document, struct sl_error *err) {
    SL_LOCKED(&documents->files);
    pthread_mutex_lock(&documents->mutex);
    struct sl_document copy = *document; // reports of stores may change it meanwhile
    bool found = *find(documents, document->tenant, document->name) == document;
    pthread_mutex_unlock(&documents->mutex);
    SL_TRY(found ? sl_document_archive_write(&documents->archive, &copy, true, err)
                 : sl_fail(err, SL_ERR_PEER_LOST, "another coordinator leads since %s was begun", copy.name));
    pthread_mutex_lock(&documents->mutex);
    document->reading = false;
    for (int i = document->n_holders - 1; i >= 0; i--) { // of those that were planned, some may be lost
        if (!document->holders[i].has) {
            remove_holder(document, &document->holders[i]);
        }
    }
    pthread_mutex_unlock(&documents->mutex);
    return SL_OK;
}

// Call with the lock held. Checks a change, and makes the document with it, whose bytes count from now on.
static enum sl_status begin_pin(struct sl_documents *documents, struct sl_document *document,
                                const struct sl_document_pin *pin, struct sl_document *changed_out,
                                struct sl_error *err) {
    SL_FAIL_IF(*find(documents, document->tenant, document->name) != document, err, SL_ERR_NOT_FOUND, NO_DOCUMENT,
               document->name);
    SL_FAIL_IF(document->reading, err, SL_ERR_PRECONDITION, "name: another call is adding %s now", document->name);
    enum sl_status status = pin->replicas > document->replicas
                                ? sl_document_quota_check_bytes(&documents->quota, document, pin->replicas, err)
                                : SL_OK;
    *changed_out = *document;
    changed_out->replicas = pin->replicas > 0 ? pin->replicas : document->replicas;
    changed_out->expires_ms = pin->sets_time ? pin->expires_ms : document->expires_ms;
    if (status == SL_OK && changed_out->replicas > document->replicas) {
        document->replicas = changed_out->replicas; // before the file: another document must not take the quota
    }
    return status;
}

// Call with the lock held.
static void end_pin(struct sl_document *document, const struct sl_document *changed) {
    document->replicas = changed->replicas;
    document->expires_ms = changed->expires_ms;
    document->copy_ns = 0;
    document->n_copies = 0;
}

enum sl_status sl_documents_pin(struct sl_documents *documents, struct sl_document *document,
                                const struct sl_document_pin *change, struct sl_error *err) {
    struct sl_document changed;
    SL_LOCKED(&documents->files); // so that the file does not come back after a removal
    pthread_mutex_lock(&documents->mutex);
    int replicas = document->replicas;
    enum sl_status status = begin_pin(documents, document, change, &changed, err);
    pthread_mutex_unlock(&documents->mutex);
    bool has_begun = status == SL_OK;
    if (has_begun) {
        status = sl_document_archive_write(&documents->archive, &changed, false, err);
    }
    pthread_mutex_lock(&documents->mutex);
    if (status == SL_OK) {
        end_pin(document, &changed);
    } else if (has_begun) {
        document->replicas = replicas;
    }
    pthread_mutex_unlock(&documents->mutex);
    return status;
}

enum sl_status sl_documents_remove(struct sl_documents *documents, struct sl_document *document, struct sl_error *err) {
    SL_LOCKED(&documents->files); // no other call removes it meanwhile
    pthread_mutex_lock(&documents->mutex);
    bool found = *find(documents, document->tenant, document->name) == document, reading = document->reading;
    pthread_mutex_unlock(&documents->mutex);
    enum sl_status status = found ? SL_OK : sl_fail(err, SL_ERR_NOT_FOUND, NO_DOCUMENT, document->name);
    if (status == SL_OK) {
        status = sl_document_archive_remove(&documents->archive, document, err);
        if (status != SL_OK && reading) { // its call has failed, so it leaves the list in any case
            sl_log_warn("documents", "%s was not added, but its record may stay: %s", document->name, err->text);
            status = SL_OK;
        }
    }
    if (status == SL_OK) {
        pthread_mutex_lock(&documents->mutex);
        *find(documents, document->tenant, document->name) = document->next;
        documents->quota.n_documents--;
        pthread_mutex_unlock(&documents->mutex);
        struct sl_document *listed = document; // the list's reference
        sl_document_unref(&listed);
    }
    return status;
}

void sl_documents_found(struct sl_documents *documents, struct sl_document *document, const char *store,
                        int64_t capsule_bytes, Sluice__V1__DiskCopy disk) {
    SL_LOCKED(&documents->mutex);
    struct sl_document_holder *holder = sl_document_holder(document, store);
    if (holder != NULL) {
        holder->told = true;
    }
    if (capsule_bytes > 0) {
        holder = holder != NULL ? holder : add_holder(document, store);
        if (holder != NULL) {
            holder->has = true;
            holder->disk = disk;
        }
        if (document->n_again > 0) {
            document->again_ns = 0; // it is far ahead, and would delay further copies; the grace after a loss is not
        }
        document->n_again = 0;
        document->capsule_bytes = capsule_bytes;
    } else if (holder != NULL && holder->has) {
        holder->has = false;
        document->again_ns = sl_deadline_in_ms(SL_DOCUMENT_LOST_MS);
        if (!document->reading) {
            remove_holder(document, holder);
        }
    }
    if (count_holders(document) >= document->replicas) {
        document->n_copies = 0;
    }
}

void sl_documents_found_offloaded(struct sl_documents *documents, struct sl_document *document, int64_t bytes) {
    SL_WITH_LOCK(&documents->mutex, document->offloaded_bytes = bytes);
}

int64_t sl_documents_unwritten_bytes(struct sl_documents *documents, const struct sl_document *document) {
    bool waits = false;
    SL_LOCKED(&documents->mutex);
    for (int i = 0; i < document->n_holders; i++) {
        const struct sl_document_holder *holder = &document->holders[i];
        waits = waits || (holder->has && holder->disk == SLUICE__V1__DISK_COPY__DISK_COPY_WAITING);
    }
    return waits ? sl_document_bytes(document) : 0;
}

// ---- questions ------------------------------------------------------------------------------------------------------

enum sl_status sl_documents_find(struct sl_documents *documents, const char *tenant, const char *name,
                                 struct sl_document **document_out, struct sl_error *err) {
    SL_TRY(sl_document_check_name(name, err));
    SL_LOCKED(&documents->mutex);
    struct sl_document **at = find(documents, tenant, name);
    bool found = is_at(at, tenant, name);
    if (found) {
        *document_out = sl_document_ref(*at);
    }
    return found ? SL_OK : sl_fail(err, SL_ERR_NOT_FOUND, NO_DOCUMENT, name);
}

bool sl_documents_is_reading(struct sl_documents *documents, const char *tenant, const char *name) {
    SL_LOCKED(&documents->mutex);
    struct sl_document **at = find(documents, tenant, name);
    return is_at(at, tenant, name) && (*at)->reading;
}

size_t sl_documents_text_bytes(struct sl_documents *documents, const char *tenant, const char *name) {
    SL_LOCKED(&documents->mutex);
    struct sl_document **at = find(documents, tenant, name);
    return is_at(at, tenant, name) ? (*at)->text_bytes : 0;
}

size_t sl_documents_list(struct sl_documents *documents, const char *tenant, struct sl_document **list_out) {
    size_t n = 0;
    SL_LOCKED(&documents->mutex);
    for (struct sl_document *one = documents->quota.first; one != NULL; one = one->next) {
        if (tenant == NULL || strcmp(one->tenant, tenant) == 0) {
            list_out[n++] = sl_document_ref(one);
        }
    }
    return n;
}

struct sl_document *sl_documents_expired(struct sl_documents *documents, int64_t now_ms) {
    SL_LOCKED(&documents->mutex);
    struct sl_document *one = documents->quota.first;
    while (one != NULL && (one->reading || one->expires_ms == 0 || one->expires_ms > now_ms)) {
        one = one->next;
    }
    return one != NULL ? sl_document_ref(one) : NULL;
}

struct sl_document *sl_documents_lost(struct sl_documents *documents, uint64_t model_fingerprint, int64_t now_ns) {
    static const struct sl_capsule_id no_key = {0};
    SL_LOCKED(&documents->mutex);
    struct sl_document *one = documents->quota.first;
    while (one != NULL &&
           (one->reading || one->n_holders > 0 || one->again_ns > now_ns ||
            one->model_fingerprint != model_fingerprint || memcmp(&one->capsule, &no_key, sizeof no_key) == 0)) {
        one = one->next;
    }
    if (one != NULL) {
        int64_t wait_ms = (int64_t)SL_DOCUMENT_LOST_MS << (one->n_again < MAX_DOUBLINGS ? one->n_again : MAX_DOUBLINGS);
        one->again_ns = now_ns + 2 * wait_ms * SL_NS_PER_MS;
        one->n_again++;
        (void)sl_document_ref(one);
    }
    return one;
}

bool sl_documents_read_now(struct sl_documents *documents, struct sl_document *document) {
    SL_LOCKED(&documents->mutex);
    bool is_lost = document->n_holders == 0 && *find(documents, document->tenant, document->name) == document;
    if (is_lost && document->again_ns > sl_deadline_in_ms(2 * SL_DOCUMENT_LOST_MS)) { // a store may still come back
        document->again_ns = 0;
        document->n_again = 0;
    }
    return is_lost;
}

enum sl_status sl_documents_check_room(struct sl_documents *documents, const struct sl_document *document,
                                       const struct sl_ranked_store *store, struct sl_error *err) {
    SL_LOCKED(&documents->mutex);
    return sl_document_quota_check_store(&documents->quota, document, store, err);
}

// Call with the lock held.
static bool shares_capsule(const struct sl_documents *documents, const struct sl_document *document) {
    bool shared = false;
    for (const struct sl_document *one = documents->quota.first; one != NULL && !shared; one = one->next) {
        shared = one != document && memcmp(&one->capsule, &document->capsule, sizeof one->capsule) == 0;
    }
    return shared;
}

bool sl_documents_share_capsule(struct sl_documents *documents, const struct sl_document *document) {
    SL_LOCKED(&documents->mutex);
    return shares_capsule(documents, document);
}

bool sl_documents_are_told(struct sl_documents *documents, const struct sl_document *document) {
    bool told = true;
    SL_LOCKED(&documents->mutex);
    for (int i = 0; i < document->n_holders; i++) {
        told = told && document->holders[i].told;
    }
    return told;
}

// Returns whether a store should get the document's capsule from another one now.
static bool is_short(const struct sl_document *document, int64_t now_ns) {
    int n_have = count_holders(document);
    return n_have > 0 && n_have < document->replicas && document->copy_ns <= now_ns &&
           (document->reading || document->again_ns <= now_ns);
}

struct sl_document *sl_documents_short(struct sl_documents *documents, int64_t now_ns) {
    SL_LOCKED(&documents->mutex);
    struct sl_document *one = documents->quota.first;
    while (one != NULL && !is_short(one, now_ns)) {
        one = one->next;
    }
    if (one != NULL) {
        one->copy_ns = now_ns + (SL_DOCUMENT_COPY_MS << one->n_copies) * SL_NS_PER_MS;
        one->n_copies += one->n_copies < MAX_DOUBLINGS;
        (void)sl_document_ref(one);
    }
    return one;
}

struct sl_document *sl_documents_excess(struct sl_documents *documents, int64_t now_ns) {
    SL_LOCKED(&documents->mutex);
    struct sl_document *one = NULL; // the one that has waited longest: one that cannot be dropped delays no other
    for (struct sl_document *next = documents->quota.first; next != NULL; next = next->next) {
        if (!next->reading && next->drop_ns <= now_ns && (one == NULL || next->drop_ns < one->drop_ns) &&
            count_holders(next) > next->replicas && !shares_capsule(documents, next)) {
            one = next;
        }
    }
    if (one != NULL) {
        one->drop_ns = now_ns + SL_DOCUMENT_DROP_MS * SL_NS_PER_MS;
        (void)sl_document_ref(one);
    }
    return one;
}

void sl_documents_describe(struct sl_documents *documents, const struct sl_document *document,
                           uint64_t model_fingerprint, struct sl_described_document *described_out) {
    SL_WITH_LOCK(&documents->mutex, sl_document_describe(document, described_out));
    described_out->message.other_model = document->model_fingerprint != model_fingerprint;
    described_out->message.ends_with_cluster = documents->archive.folder == NULL && documents->archive.etcd == NULL;
}

int sl_documents_replicas(struct sl_documents *documents, const struct sl_document *document) {
    SL_LOCKED(&documents->mutex);
    return document->replicas;
}

int sl_documents_stores(struct sl_documents *documents, const struct sl_document *document,
                        char stores_out[SL_MAX_HOLDERS][64]) {
    int n = 0;
    SL_LOCKED(&documents->mutex);
    for (int i = 0; i < document->n_holders; i++) {
        if (document->holders[i].has) {
            strcpy(stores_out[n++], document->holders[i].store);
        }
    }
    return n;
}

void sl_documents_measured(struct sl_documents *documents, struct sl_document *document, int64_t n_tokens, double ms) {
    if (n_tokens < document->n_tokens / 2 || !(ms > 0) || !isfinite(ms)) {
        return;
    }
    SL_LOCKED(&documents->mutex);
    document->read_tokens = n_tokens;
    document->read_ms = ms;
}

int64_t sl_documents_count(struct sl_documents *documents, const char *tenant, const char *name, int64_t n_reused) {
    int64_t n_saved = 0;
    SL_LOCKED(&documents->mutex);
    struct sl_document **at = find(documents, tenant, name);
    if (is_at(at, tenant, name)) { // a worker reports n_reused, which includes the question's tokens
        struct sl_document *document = *at;
        document->n_questions++;
        n_saved = n_reused < 0 ? 0 : n_reused > document->n_tokens ? document->n_tokens : n_reused;
        document->saved_tokens += n_saved;
    }
    return n_reused - n_saved;
}

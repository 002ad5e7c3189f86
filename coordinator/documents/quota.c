// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/quota.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/documents/documents.h"

// A list of documents for an error message: those that fit, and how many more there are.
struct names {
    char text[200];
    size_t n;
    bool with_tenants;
    int64_t n_more, more_bytes;
};
#define MORE_BYTES 96 // for the numbers of those that do not fit, and of other tenants

static void add_text(struct names *names, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int n = vsnprintf(names->text + names->n, sizeof names->text - names->n, format, values);
    va_end(values);
    names->n += n > 0 ? (size_t)n : 0;
    names->n = names->n < sizeof names->text ? names->n : sizeof names->text - 1;
}

static void add_name(struct names *names, const struct sl_document *document) {
    char name[SL_TENANT_BYTES + SL_DOCUMENT_NAME_BYTES + 48];
    bool of_tenant = names->with_tenants && document->tenant[0] != '\0';
    if (names->n_more > 0) {
        names->n_more++;
        names->more_bytes += sl_document_bytes(document);
        return;
    }
    int n = snprintf(name, sizeof name, "%s%s%s%s (%" PRId64 " bytes)", names->n > 0 ? ", " : "", document->name,
                     of_tenant ? " of " : "", of_tenant ? document->tenant : "", sl_document_bytes(document));
    if (names->n + (size_t)n + MORE_BYTES > sizeof names->text) {
        names->n_more++;
        names->more_bytes += sl_document_bytes(document);
        return;
    }
    add_text(names, "%s", name);
}

static void end_names(struct names *names) {
    if (names->n_more > 0) {
        add_text(names, "%s%" PRId64 " more (%" PRId64 " bytes)", names->n > 0 ? ", " : "", names->n_more,
                 names->more_bytes);
    }
}

// Adds the documents of other tenants to a list as one sum.
static void add_others(struct names *names, int64_t n, int64_t bytes) {
    if (n > 0) {
        add_text(names, "%s%" PRId64 " of other tenants (%" PRId64 " bytes)", names->n > 0 ? ", " : "", n, bytes);
    }
}

// Returns what counts against a tenant's quota: the capsule and offloaded layers in all stores, and the text.
static int64_t held_bytes(const struct sl_document *document, int replicas) {
    return replicas * sl_document_bytes(document) + (int64_t)document->text_bytes;
}

enum sl_status sl_document_quota_check_bytes(const struct sl_document_quota *quota, const struct sl_document *document,
                                             int replicas, struct sl_error *err) {
    int64_t n = 0, bytes = 0, own_bytes = held_bytes(document, replicas);
    struct names names = {.n = 0};
    for (const struct sl_document *one = quota->first; one != NULL; one = one->next) {
        if (one != document && strcmp(one->tenant, document->tenant) == 0) {
            n++;
            bytes += held_bytes(one, one->replicas);
            add_name(&names, one);
        }
    }
    end_names(&names);
    return own_bytes <= quota->max_bytes - bytes
               ? SL_OK
               : sl_fail(err, SL_ERR_PRECONDITION,
                         "%" PRId64 " bytes of capsule and text, and %" PRId64
                         " bytes of documents, exceed the %" PRId64 " allowed (--document-bytes)%s%s",
                         own_bytes, bytes, quota->max_bytes, n > 0 ? ": delete one of " : "", names.text);
}

enum sl_status sl_document_quota_check(const struct sl_document_quota *quota, const struct sl_document *document,
                                       struct sl_error *err) {
    int64_t n = 0, n_others = 0, others_bytes = 0;
    struct names names = {.n = 0};
    for (const struct sl_document *one = quota->first; one != NULL; one = one->next) {
        if (strcmp(one->tenant, document->tenant) == 0) {
            n++;
            add_name(&names, one);
        } else {
            n_others++;
            others_bytes += sl_document_bytes(one);
        }
    }
    end_names(&names);
    SL_FAIL_IF(n >= quota->max_documents, err, SL_ERR_PRECONDITION,
               "%" PRId64 " documents are the most allowed (--max-documents)%s%s", quota->max_documents,
               n > 0 ? ": delete one of " : "", names.text);
    if (quota->n_documents >= SL_MAX_DOCUMENTS) {
        add_others(&names, n_others, others_bytes);
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "all tenants together have %" PRId64 " documents, the most of a cluster: %s. Delete one",
                       quota->n_documents, names.text);
    }
    return sl_document_quota_check_bytes(quota, document, document->replicas, err);
}

// A part of a store, of which documents may take half.
struct share {
    int64_t whole_bytes;
    bool is_for_unwritten; // only documents that the disk does not have count
    const char *is_half_of, *may_be, *remedy;
};

// Returns the bytes of a document that count there. Offloaded layers stay in memory, also those that are on disk.
static int64_t held_in(const struct sl_document *document, const struct sl_document_holder *holder,
                       const struct share *share) {
    bool is_written = holder->disk == SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN;
    return share->is_for_unwritten && is_written ? document->offloaded_bytes : sl_document_bytes(document);
}

// Checks whether a document has room in a part of a store.
static enum sl_status check_share(const struct sl_document_quota *quota, const struct sl_document *document,
                                  const char *store, const struct share *share, struct sl_error *err) {
    int64_t bytes = 0, n_others = 0, others_bytes = 0, most = share->whole_bytes / SL_DOCUMENTS_SHARE;
    bool is_operator = document->tenant[0] == '\0';
    struct names names = {.with_tenants = is_operator};
    for (const struct sl_document *one = quota->first; one != NULL; one = one->next) {
        const struct sl_document_holder *holder = one != document ? sl_document_holder(one, store) : NULL;
        int64_t held = holder != NULL ? held_in(one, holder, share) : 0;
        if (held > 0) {
            bool is_named = is_operator || strcmp(one->tenant, document->tenant) == 0;
            bytes += held;
            n_others += !is_named;
            others_bytes += is_named ? 0 : held;
            if (is_named) {
                add_name(&names, one);
            }
        }
    }
    end_names(&names);
    if (sl_document_bytes(document) <= most - bytes) {
        return SL_OK;
    }
    add_others(&names, n_others, others_bytes);
    return sl_fail(err, SL_ERR_PRECONDITION,
                   "store %s has no room for %" PRId64 " bytes: half of its %s, %" PRId64
                   " bytes, may be documents%s; it holds %s. Delete one, or give it a larger %s",
                   store, sl_document_bytes(document), share->is_half_of, most, share->may_be,
                   names.n > 0 ? names.text : "none", share->remedy);
}

enum sl_status sl_document_quota_check_store(const struct sl_document_quota *quota, const struct sl_document *document,
                                             const struct sl_ranked_store *store, struct sl_error *err) {
    bool is_disk_larger = store->disk_bytes > store->arena_bytes;
    const struct share arena = {.whole_bytes = store->arena_bytes,
                                .is_for_unwritten = is_disk_larger,
                                .is_half_of = "arena",
                                .may_be = is_disk_larger ? " not on its disk" : "",
                                .remedy = is_disk_larger ? "--arena" : "--arena or --disk-bytes"},
                       disk = {store->disk_bytes, false, "disk", "", "--disk-bytes"};
    SL_TRY(check_share(quota, document, store->name, &arena, err));
    return is_disk_larger ? check_share(quota, document, store->name, &disk, err) : SL_OK;
}

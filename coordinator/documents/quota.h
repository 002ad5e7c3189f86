// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: checks what a tenant and a store may hold, and names what they hold.
 * Threads: the caller holds the registry's lock (documents.c).
 */
#pragma once

#include "coordinator/documents/document.h"
#include "coordinator/workers/stores.h"

struct sl_document_quota {
    int64_t max_documents, max_bytes; // of one tenant
    struct sl_document *first;        // the registry's list, sorted by tenant and name
    int64_t n_documents;              // in the list
};

// All return SL_ERR_PRECONDITION with the limit, what is held, and the remedy.
// Checks a document that is not in the list against the number and the bytes of its tenant.
enum sl_status sl_document_quota_check(const struct sl_document_quota *quota, const struct sl_document *document,
                                       struct sl_error *err);
// Checks the tenant's bytes if this document has this many replicas; it may be in the list.
enum sl_status sl_document_quota_check_bytes(const struct sl_document_quota *quota, const struct sl_document *document,
                                             int replicas, struct sl_error *err);
// Checks whether a store has room for a document, beside the others that it has or is to get: in memory for what its disk
// does not have yet, and in memory or on disk for all. The error names the tenant's own documents, and to an operator
// (tenant "") those of all tenants.
enum sl_status sl_document_quota_check_store(const struct sl_document_quota *quota, const struct sl_document *document,
                                             const struct sl_ranked_store *store, struct sl_error *err);

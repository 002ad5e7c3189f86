// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the registry of documents: by tenant and name, with what each tenant and each store may hold.
 *
 * Design: a document enters it before its text is read, so that a second call that adds the same name is refused at once,
 *         and its bytes count. It is written to the folder of --state, or to etcd, when a store has its capsule; without
 *         them, documents end with the process.
 *         Of several coordinators, the leader alone has documents: it reads them from etcd when its term begins.
 *         The key of a capsule depends on the tenant's salt. A document of another secret (--salt-file) gets a key that no
 *         store has, so that nothing says that it is stored.
 * Threads: any. Only lead, finish, pin and remove use the disk or etcd, one at a time; the other functions do not wait for it.
 */
#pragma once

#include "coordinator/documents/document.h"
#include "coordinator/workers/stores.h"
#include "net/trust/tenant_salt.h"

struct sl_documents;
struct sl_etcd;

struct sl_documents_config {
    const char *folder;                  // "": none; with etcd, its documents move there when a term begins
    int64_t max_documents;               // of one tenant
    int64_t max_bytes;                   // of one tenant's capsules, offloaded layers and texts
    const struct sl_salt_secret *secret; // of the tenants' salts; outlives the registry
    struct sl_etcd *etcd;                // NULL: this coordinator is alone; outlives the registry
};

// The most documents of all tenants: stores get all their keys in one message.
#define SL_MAX_DOCUMENTS 4096

// Opens the registry with the documents in the folder. SL_ERR_IO, SL_ERR_EXHAUSTED.
enum sl_status sl_documents_create(const struct sl_documents_config *config, struct sl_documents **documents_out,
                                   struct sl_error *err);
void sl_documents_destroy(struct sl_documents **documents);

/*
 * Begins a term: reads the documents from etcd, unless the registry has them for this term. 0: this coordinator does not
 * lead, so the registry forgets them. Without etcd it does nothing. After a failure the registry is empty, and has no term.
 */
enum sl_status sl_documents_lead(struct sl_documents *documents, int64_t term, struct sl_error *err);
// Returns the term whose documents the registry has; 0: none, or this coordinator is alone.
int64_t sl_documents_term(const struct sl_documents *documents);

/*
 * Enters a document that is about to be read, with capsule_bytes as planned; store: the one that will get its capsule. The
 * registry takes a reference. SL_ERR_EXISTS: the name is taken. SL_ERR_PRECONDITION: the tenant or
 * the store may hold no more; err names the tenant's documents.
 */
enum sl_status sl_documents_begin(struct sl_documents *documents, struct sl_document *document,
                                  const struct sl_ranked_store *store, struct sl_error *err);
// Finds the kept document that equals this one in tenant, name, text, recipe and capsule; with a reference. NULL: none.
struct sl_document *sl_documents_find_same(struct sl_documents *documents, const struct sl_document *document);
// Plans a further store for a document that is being read. SL_ERR_PRECONDITION: the store may hold no more.
enum sl_status sl_documents_plan_store(struct sl_documents *documents, struct sl_document *document,
                                       const struct sl_ranked_store *store, struct sl_error *err);
// Half of a store's arena may be documents, or half of its disk if that is larger: the rest is for everything else that it keeps.
#define SL_DOCUMENTS_SHARE 2

// Keeps a document whose capsule a store has. SL_ERR_IO, SL_ERR_EXHAUSTED, SL_ERR_PEER_LOST (the term is over, or etcd does not answer): it cannot
// be written, and is still being read.
enum sl_status sl_documents_finish(struct sl_documents *documents, struct sl_document *document, struct sl_error *err);
// A change of how a document is kept.
struct sl_document_pin {
    bool sets_time;
    int64_t expires_ms; // Unix time; 0: never
    int replicas;       // 0: as many as before
};
// Changes how a document is kept. SL_ERR_PRECONDITION: it is being read, or replicas exceed the tenant's quota.
// SL_ERR_NOT_FOUND: another call removed it. SL_ERR_IO, SL_ERR_EXHAUSTED, SL_ERR_PEER_LOST: it cannot be written; nothing changes.
enum sl_status sl_documents_pin(struct sl_documents *documents, struct sl_document *document,
                                const struct sl_document_pin *change, struct sl_error *err);
// Removes a document from the registry and from the disk or etcd; err must not be NULL. SL_ERR_IO, SL_ERR_PEER_LOST: it stays, unless it was still
// being read. SL_ERR_NOT_FOUND: another call removed it.
enum sl_status sl_documents_remove(struct sl_documents *documents, struct sl_document *document, struct sl_error *err);

// Finds a document, with a reference of the caller's. SL_ERR_NOT_FOUND.
enum sl_status sl_documents_find(struct sl_documents *documents, const char *tenant, const char *name,
                                 struct sl_document **document_out, struct sl_error *err);
// Returns whether there is such a document, and a call is adding it now.
bool sl_documents_is_reading(struct sl_documents *documents, const char *tenant, const char *name);
// Returns the bytes of a document's text; 0: there is no such document.
size_t sl_documents_text_bytes(struct sl_documents *documents, const char *tenant, const char *name);
// Lists documents of a tenant (NULL: all), sorted by tenant and name, each with a reference of the caller's; list_out has
// room for SL_MAX_DOCUMENTS. Returns how many.
size_t sl_documents_list(struct sl_documents *documents, const char *tenant, struct sl_document **list_out);
// Finds a document whose time is over, with a reference; NULL: there is none.
struct sl_document *sl_documents_expired(struct sl_documents *documents, int64_t now_ms);

/*
 * Finds a document of this model that no store has had for a while, so that its text should be read again; with a
 * reference. NULL: there is none. A second time for the same loss comes later, and each further one twice as late.
 */
#define SL_DOCUMENT_LOST_MS 5000 // a store that was only restarted is back by then
struct sl_document *sl_documents_lost(struct sl_documents *documents, uint64_t model_fingerprint, int64_t now_ns);
// Lets its text be read again now, if no store has the document; returns whether that is so. False: it was removed.
bool sl_documents_read_now(struct sl_documents *documents, struct sl_document *document);
// Finds a document that fewer stores have than should, so that another store should get a copy; with a reference. NULL:
// there is none. After each time, the document waits: SL_DOCUMENT_COPY_MS first, then twice as long.
#define SL_DOCUMENT_COPY_MS INT64_C(500)
struct sl_document *sl_documents_short(struct sl_documents *documents, int64_t now_ns);
// Finds a document that more stores have than should, and whose capsule no other document has; with a reference. NULL:
// there is none. After each time, the document waits for SL_DOCUMENT_DROP_MS, so that others have their turn.
#define SL_DOCUMENT_DROP_MS INT64_C(2000)
struct sl_document *sl_documents_excess(struct sl_documents *documents, int64_t now_ns);
// Returns SL_ERR_PRECONDITION if this store has no room for a document that it does not have.
enum sl_status sl_documents_check_room(struct sl_documents *documents, const struct sl_document *document,
                                       const struct sl_ranked_store *store, struct sl_error *err);

// Returns whether another document has this document's capsule too.
bool sl_documents_share_capsule(struct sl_documents *documents, const struct sl_document *document);

// Records what a store reports. capsule_bytes 0: it does not have the capsule, or not the layers that the recipe offloads.
void sl_documents_found(struct sl_documents *documents, struct sl_document *document, const char *store,
                        int64_t capsule_bytes, Sluice__V1__DiskCopy disk);
// Records the bytes of the offloaded layers that a store has.
void sl_documents_found_offloaded(struct sl_documents *documents, struct sl_document *document, int64_t bytes);
// Returns the bytes of the document's capsule while a store that has it is still to write it to its disk; else 0.
int64_t sl_documents_unwritten_bytes(struct sl_documents *documents, const struct sl_document *document);
// Records how long the reading of the text took: n_tokens of it in ms on the prefill worker. A small part of the text
// says nothing about the rate, and is not recorded.
void sl_documents_measured(struct sl_documents *documents, struct sl_document *document, int64_t n_tokens, double ms);
// Counts an answered question and its reused prompt tokens, as many as the document has; returns the others. Counts nothing
// if there is no such document any more.
int64_t sl_documents_count(struct sl_documents *documents, const char *tenant, const char *name, int64_t n_reused);
// Returns whether all stores that are to get the document's capsule have reported on it since they were planned.
bool sl_documents_are_told(struct sl_documents *documents, const struct sl_document *document);
// Writes the names of the stores that have the document's capsule; returns how many.
int sl_documents_stores(struct sl_documents *documents, const struct sl_document *document,
                        char stores_out[SL_MAX_HOLDERS][64]);
// Returns the number of stores that should have the document's capsule.
int sl_documents_replicas(struct sl_documents *documents, const struct sl_document *document);
// Describes a document for a cluster with this model.
void sl_documents_describe(struct sl_documents *documents, const struct sl_document *document,
                           uint64_t model_fingerprint, struct sl_described_document *described_out);

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one document: a text under a name, and the key of its capsule in the stores.
 *
 *     reading --> kept --> deleted, or its time is over      only the registry (documents.h) changes this
 *        |
 *        +------> the call that adds it failed
 *
 * Ownership: reference-counted, so that a request can use the text while another call deletes the document.
 * Threads: any. The members marked "registry" are guarded by its lock; all others are constant.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/capsule.h"
#include "net/trust/identity.h"
#include "net/trust/sha256.h"
#include "proto/sluice/v1/documents.pb-c.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define SL_DOCUMENT_NAME_BYTES 65 // with the terminating zero
#define SL_DOCUMENT_RECIPE     "full,format=int4"

#define SL_MAX_REPLICAS 8
#define SL_MAX_HOLDERS  (2 * SL_MAX_REPLICAS) // a store may have it that need not

// A store that has the document's capsule, or is to get it while the text is read.
struct sl_document_holder {
    char store[64];
    bool has;
    Sluice__V1__DiskCopy disk;
    bool told; // it has answered since it is here: it does not evict the capsule when that arrives
};

struct sl_document {
    char tenant[SL_TENANT_BYTES], name[SL_DOCUMENT_NAME_BYTES];
    char *text; // owned
    size_t text_bytes;
    char sha256[SL_SHA256_HEX_BYTES]; // of the text
    char recipe[SL_RECIPE_TEXT_BYTES];
    bool chat; // read as a user's message
    uint64_t model_fingerprint;
    struct sl_capsule_id capsule;
    int64_t capsule_tokens;
    bool is_cut;                  // its prompt was cut to what questions begin with; earlier versions left some whole
    int n_offloaded_heads;        // of its recipe: a store keeps them beside the capsule; 0: none
    enum sl_kv_format scan;       // the format in which the store searches them
    uint64_t first_key;           // of its prompts: it chooses the store
    struct sl_hash128 salt_proof; // of its name under the tenant's salt, with which the capsule's key was made
    int64_t n_tokens;
    int64_t created_ms; // Unix time

    atomic_int refs;
    // Registry:
    bool reading;
    int64_t expires_ms; // Unix time; 0: never
    int replicas;       // stores that should have the capsule
    struct sl_document_holder holders[SL_MAX_HOLDERS];
    int n_holders;
    int64_t capsule_bytes, offloaded_bytes; // as planned, until a store has them
    int64_t again_ns; // after a store was lost: when to copy the capsule, or to read the text, again; monotonic time
    int n_again;      // how often it was read again since a store last had it
    int64_t copy_ns;  // when to copy the capsule again after a failure
    int n_copies;     // failures since the last success
    int64_t drop_ns;  // when to drop a copy too many again; monotonic time
    int64_t read_tokens, n_questions, saved_tokens; // read_tokens: when it was added, in read_ms; 0: not known
    double read_ms;
    struct sl_document *next; // in the registry; after the removal, of those that stores have to forget (keeper.c)
};

// Checks a name of a client. SL_ERR_INVALID: err begins with the field, and shows what is printable.
enum sl_status sl_document_check_name(const char *name, struct sl_error *err);

/*
 * Makes a document with a copy of the text and its digest; one reference. The caller fills in the rest. The name was
 * checked. SL_ERR_EXHAUSTED, SL_ERR_INTERNAL.
 */
enum sl_status sl_document_create(const char *tenant, const char *name, const char *text,
                                  struct sl_document **document_out, struct sl_error *err);
struct sl_document *sl_document_ref(struct sl_document *document);
void sl_document_unref(struct sl_document **document); // accepts NULL, nulls *document

// Returns whether its capsule has evicted slots, so that it is used whole or not at all.
bool sl_document_is_compacted(const struct sl_document *document);

// Returns what a store keeps of it: the capsule and the offloaded layers.
static inline int64_t sl_document_bytes(const struct sl_document *document) {
    return document->capsule_bytes + document->offloaded_bytes;
}

// Returns the capsule's key at stores, which points to the document.
Sluice__V1__StoreKey sl_document_store_key(const struct sl_document *document);

// A document as a message, and what the message points to.
struct sl_described_document {
    Sluice__V1__Document message;
    char stores[SL_MAX_HOLDERS][64], *pointers[SL_MAX_HOLDERS], not_on_disk[160];
    char lost_points[SL_LOSS_BYTES], caution[SL_CAUTION_BYTES];
};
// Returns the entry of a store; NULL: none. Call with the registry's lock held.
struct sl_document_holder *sl_document_holder(const struct sl_document *document, const char *store);
// Describes a document; the strings that cannot change point into it. Call with the registry's lock held, or before it has
// the document.
void sl_document_describe(const struct sl_document *document, struct sl_described_document *described_out);

// Returns true if both have the same text.
bool sl_document_has_text(const struct sl_document *a, const struct sl_document *b);
// Fails with SL_ERR_EXISTS and what has the name of a new document.
enum sl_status sl_document_refuse_name(const struct sl_document *there, const struct sl_document *document,
                                       struct sl_error *err);

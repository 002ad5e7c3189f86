// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: adds a document from a file (net/document/exported.h): its capsule goes to a store as it arrives.
 *
 * In order: read the file up to the capsule's body, and check it against this cluster: version, model, recipe, text and
 * tokens, and the size that this model's capsule has; enter the registry, which refuses what is too much, and tell the
 * stores the key; pass the body on; say to the store that the capsule is complete, after its digest agreed; pass on the
 * segments of offloaded layers in the same way, one by one, each with the key that it has here: the store uses a segment as
 * soon as it is complete, for any prompt of the tenant that begins so; write the document to the disk. A failure removes all
 * of it. If the same document is there, the call only checks the file and returns that document.
 *
 * Trust: a client can make a file whose digests agree and whose KV is another text's. Its tenant alone asks it: the key has
 * the tenant's salt. So a file is worth as much as the client that imports it (docs/CAPSULE.md).
 */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/documents/imported_layers.h"
#include "coordinator/lead.h"
#include "engine/job/job_recipe.h"
#include "net/document/exported.h"
#include "proto/methods.h"
#include "proto/sluice/v1/documents.pb-c.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define MAX_CALL_MS    (INT64_C(3600) * 1000)
#define MAX_PREFIXES   1024 // as prefill/copy.c
#define STORED_MS      5000
#define STORED_POLL_MS 50

struct importing {
    struct sl_coordinator *coordinator;
    struct sl_rpc_call *call;
    struct sl_call_memory memory;
    struct sl_exported_reader *reader;
    // The message that is being taken apart:
    ProtobufCMessage *message;
    const uint8_t *bytes;
    size_t n;
    // Read from the first message and the file's parts; owned:
    char *name, *text;
    uint8_t *header;
    int64_t keep_ms;
    int64_t text_bytes, header_bytes; // of them that were read
    struct sl_document *document;     // a reference
    int32_t *tokens;                  // [document->n_tokens]; owned
    struct sl_hash128 *prefixes;      // [n_prefixes]; owned
    size_t n_prefixes;
    // While the store takes the body:
    Sluice__V1__CapsulePiece piece;
    Sluice__V1__StoreReserveRequest what;
    Sluice__V1__StoreKey key;
    enum { FIRST, BODY, LAST, DONE } next;
    struct sl_imported_layers layers; // only if the recipe offloads; layers.segment is passed on, with its key here
    enum sl_status status;            // of the client's part: SL_OK, or why the file is refused, with *err
    struct sl_error *err;
};

// ---- the file -------------------------------------------------------------------------------------------------------

// Receives the next message of the client. SL_ERR_INVALID: the file is cut short.
static enum sl_status receive(struct importing *importing, struct sl_error *err) {
    if (importing->message != NULL) {
        protobuf_c_message_free_unpacked(importing->message, NULL);
        importing->message = NULL;
    }
    enum sl_status status = sl_rpc_call_receive(importing->call, &sluice__v1__import_document_request__descriptor,
                                                &importing->message, err);
    if (status == SL_ERR_NOT_FOUND) {
        SL_TRY(sl_exported_reader_finish(importing->reader, err));
        return SL_ERR_NOT_FOUND;
    }
    if (status == SL_OK) {
        const Sluice__V1__ImportDocumentRequest *request =
            (const Sluice__V1__ImportDocumentRequest *)importing->message;
        importing->bytes = request->data.data;
        importing->n = request->data.len;
    }
    return status;
}

// Takes the next slice of the file. SL_ERR_NOT_FOUND: it has ended, and was complete.
static enum sl_status next_slice(struct importing *importing, struct sl_exported_slice *slice_out,
                                 struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (importing->n == 0 && status == SL_OK) {
        status = receive(importing, err);
    }
    SL_THEN(status, sl_exported_reader_take(importing->reader, &importing->bytes, &importing->n, slice_out, err));
    if (status == SL_ERR_INVALID || status == SL_ERR_UNSUPPORTED) {
        sl_error_prefix(err, "file");
    }
    return status;
}

// Reads the first message, which names the document.
static enum sl_status receive_first(struct importing *importing, struct sl_error *err) {
    SL_TRY(receive(importing, err));
    const Sluice__V1__ImportDocumentRequest *request = (const Sluice__V1__ImportDocumentRequest *)importing->message;
    importing->keep_ms = request->keep_ms;
    importing->name = strdup(request->name);
    enum sl_status status = SL_OK;
    if (request->text[0] != '\0') {
        importing->text = strdup(request->text);
        importing->text_bytes = (int64_t)strlen(request->text);
        status = sl_call_memory_hold(&importing->memory, (size_t)importing->text_bytes, err);
    }
    SL_THEN(status, sl_document_check_name(request->name, err));
    return importing->name != NULL && (importing->text_bytes == 0 || importing->text != NULL)
               ? status
               : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a document");
}

// Checks the head against this cluster, and takes memory for the parts that are read whole.
static enum sl_status check_head(struct importing *importing, struct sl_error *err) {
    const struct sl_exported_head *head = sl_exported_reader_head(importing->reader);
    uint64_t fingerprint = importing->coordinator->model_fingerprint;
    SL_FAIL_IF(head->model_fingerprint != fingerprint, err, SL_ERR_PRECONDITION,
               "the file was read by another model (%016" PRIx64 ", the cluster's is %016" PRIx64
               "): add the text instead",
               head->model_fingerprint, fingerprint);
    SL_FAIL_IF(head->has_text && importing->text != NULL, err, SL_ERR_INVALID, "text: the file has its text");
    SL_FAIL_IF(!head->has_text && importing->text == NULL, err, SL_ERR_INVALID,
               "the file has no text (--no-text), and a question needs it: give the text with --text");
    int64_t text_bytes = head->has_text ? head->text_bytes : 0;
    SL_TRY(sl_call_memory_hold(&importing->memory, (size_t)(text_bytes + head->header_bytes), err));
    importing->header = malloc((size_t)head->header_bytes);
    if (head->has_text) {
        importing->text = malloc((size_t)text_bytes + 1);
    }
    SL_FAIL_IF(importing->header == NULL || importing->text == NULL, err, SL_ERR_EXHAUSTED, "no memory for a document");
    return SL_OK;
}

static enum sl_status check_text(struct importing *importing, struct sl_error *err) {
    const struct sl_exported_head *head = sl_exported_reader_head(importing->reader);
    uint8_t sha256[SL_SHA256_BYTES];
    importing->text[importing->text_bytes] = '\0';
    enum sl_status status = sl_sha256(importing->text, (size_t)importing->text_bytes, sha256, err);
    SL_THEN_IF(status,
               importing->text_bytes != head->text_bytes || memcmp(sha256, head->text_sha256, sizeof sha256) != 0,
               sl_fail(err, SL_ERR_INVALID,
                       "text: is not the text of the file, which has %" PRId64 " bytes and another SHA-256",
                       head->text_bytes));
    SL_THEN_IF(status, strlen(importing->text) != (size_t)importing->text_bytes,
               sl_fail(err, SL_ERR_INVALID, "text: has a zero byte"));
    return status;
}

// Takes a slice of what comes before the body.
static enum sl_status take(struct importing *importing, const struct sl_exported_slice *slice, struct sl_error *err) {
    if (slice->part == SL_EXPORTED_TEXT) {
        memcpy(importing->text + importing->text_bytes, slice->bytes, slice->n);
        importing->text_bytes += (int64_t)slice->n;
    } else if (slice->part == SL_EXPORTED_HEADER) {
        memcpy(importing->header + importing->header_bytes, slice->bytes, slice->n);
        importing->header_bytes += (int64_t)slice->n;
    }
    return slice->part == SL_EXPORTED_HEAD && slice->ends ? check_head(importing, err) : SL_OK;
}

static enum sl_status read_up_to_body(struct importing *importing, struct sl_error *err) {
    struct sl_exported_slice slice = {0};
    enum sl_status status = receive_first(importing, err);
    while (status == SL_OK && !(slice.part == SL_EXPORTED_HEADER && slice.ends)) {
        status = next_slice(importing, &slice, err);
        SL_THEN(status, take(importing, &slice, err));
    }
    return status == SL_OK ? check_text(importing, err) : status;
}

// ---- the document ---------------------------------------------------------------------------------------------------

// Plans what the segments of its offloaded layers are.
static enum sl_status plan_layers(struct importing *importing, struct sl_error *err) {
    const struct sl_document *document = importing->document;
    const struct sl_model_config *model = &importing->coordinator->model;
    const struct sl_kv_geometry geometry = sl_model_geometry(model);
    struct sl_recipe recipe;
    SL_TRY(sl_job_recipe(document->recipe, model, &recipe, err));
    return sl_demand_family(&recipe, &geometry, document->capsule_tokens, document->capsule.model_fingerprint,
                            &importing->layers.family, err);
}

// Makes the document, and compares it with the one of the file.
static enum sl_status plan(struct importing *importing, struct sl_error *err) {
    const struct sl_exported_head *head = sl_exported_reader_head(importing->reader);
    struct sl_coordinator *coordinator = importing->coordinator;
    Sluice__V1__AddDocumentRequest asked = SLUICE__V1__ADD_DOCUMENT_REQUEST__INIT;
    asked.name = importing->name;
    asked.text = importing->text;
    asked.recipe = (char *)head->recipe;
    asked.raw = !head->chat;
    asked.keep_ms = importing->keep_ms;
    SL_FAIL_IF(head->chat && coordinator->chat_template == NULL, err, SL_ERR_PRECONDITION,
               "the file was read for chats, and this cluster's model has no template");
    enum sl_status status = sl_coordinator_plan_document(&importing->memory, &asked, head->n_tokens,
                                                         &importing->document, &importing->tokens, err);
    SL_THEN_FAIL_IF(status, (importing->document->n_offloaded_heads > 0) != (head->layers_bytes > 0), err,
                    SL_ERR_PRECONDITION, "the file has %soffloaded layers, and is of %.200s: add the text instead",
                    head->layers_bytes > 0 ? "" : "no ", head->recipe);
    SL_THEN_IF(status, head->layers_bytes > 0, plan_layers(importing, err));
    uint8_t sha256[SL_SHA256_BYTES];
    SL_THEN(status, sl_sha256(importing->tokens, (size_t)importing->document->n_tokens * sizeof *importing->tokens,
                              sha256, err));
    if (status == SL_OK &&
        (importing->document->n_tokens != head->n_tokens || memcmp(sha256, head->tokens_sha256, sizeof sha256) != 0)) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "the text is %" PRId64 " tokens here, and was %" PRId64
                       " others in the file: another tokenizer or chat template; add the text instead",
                       importing->document->n_tokens, head->n_tokens);
    }
    return status;
}

// Checks that the capsule is the one that this model makes of the document, and gives it its key in this cluster.
static enum sl_status check_capsule(struct importing *importing, struct sl_error *err) {
    struct sl_document *document = importing->document;
    bool compacted = sl_document_is_compacted(document);
    const struct sl_kv_geometry expected = sl_model_geometry(&importing->coordinator->model);
    struct sl_capsule_info info;
    uint8_t *header = NULL;
    size_t n = 0;
    SL_TRY(sl_capsule_read_header(importing->header, (size_t)importing->header_bytes, &info, err));
    const struct sl_kv_geometry *g = &info.geometry;
    if (info.id.model_fingerprint != document->capsule.model_fingerprint ||
        info.id.recipe_fingerprint != document->capsule.recipe_fingerprint ||
        info.n_tokens != document->capsule_tokens || info.evicted != compacted || g->n_layers != expected.n_layers ||
        g->n_kv_heads != expected.n_kv_heads || g->head_dim != expected.head_dim ||
        (compacted ? (int64_t)info.body_bytes > document->capsule_bytes // which is the most that can be left
                   : (int64_t)info.body_bytes != document->capsule_bytes) ||
        (int64_t)info.body_bytes != sl_exported_reader_head(importing->reader)->body_bytes) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "the capsule in the file, of %zu bytes and %" PRId64
                       " tokens, is not the one of this text, model and recipe, of %" PRId64 " bytes and %" PRId64
                       " tokens",
                       info.body_bytes, info.n_tokens, document->capsule_bytes, document->capsule_tokens);
    }
    document->capsule_bytes = (int64_t)info.body_bytes;
    SL_TRY(sl_capsule_rekey_header(importing->header, (size_t)importing->header_bytes, &document->capsule.prefix_hash,
                                   &header, &n, err));
    free(importing->header);
    importing->header = header;
    importing->header_bytes = (int64_t)n;
    return SL_OK;
}

// Writes what the store is told before the body: key, size and the prefixes under which prompts find the capsule.
static enum sl_status announce(struct importing *importing, struct sl_error *err) {
    struct sl_document *document = importing->document;
    struct sl_hash128 salt;
    int64_t n_blocks = document->capsule_tokens / SL_PREFIX_BLOCK;
    int64_t stride = (n_blocks + MAX_PREFIXES - 1) / MAX_PREFIXES;
    enum sl_status status = sl_tenant_salt(&importing->coordinator->salt_secret, document->tenant, &salt, err);
    importing->prefixes = malloc(sizeof *importing->prefixes * (size_t)(n_blocks + 1));
    SL_TRY(status);
    SL_FAIL_IF(importing->prefixes == NULL, err, SL_ERR_EXHAUSTED, "no memory for a document");
    n_blocks = sl_prefix_keys(&salt, importing->tokens, document->capsule_tokens, importing->prefixes, n_blocks);
    for (int64_t i = stride - 1; i < n_blocks && !sl_document_is_compacted(document); i += stride) {
        importing->prefixes[importing->n_prefixes++] = importing->prefixes[i];
    }
    importing->key = sl_document_store_key(document);
    sluice__v1__store_reserve_request__init(&importing->what);
    importing->what.key = &importing->key;
    importing->what.capsule_bytes = document->capsule_bytes;
    importing->what.prefix_tokens = stride * SL_PREFIX_BLOCK;
    importing->what.prefixes =
        (ProtobufCBinaryData){importing->n_prefixes * sizeof *importing->prefixes, (uint8_t *)importing->prefixes};
    return SL_OK;
}

// ---- the body -------------------------------------------------------------------------------------------------------

// Takes the next bytes of the capsule's body, or of a segment's pages. SL_ERR_NOT_FOUND: there are no more, and their digest
// agreed; without offloaded layers, the file has ended as well.
static enum sl_status next_bytes(struct importing *importing, struct sl_exported_slice *slice_out,
                                 struct sl_error *err) {
    bool has_layers = sl_exported_reader_head(importing->reader)->layers_bytes > 0;
    SL_TRY(next_slice(importing, slice_out, err));
    return slice_out->ends && has_layers ? SL_ERR_NOT_FOUND : SL_OK;
}

/*
 * Returns the store's next message: the announcement, the body as it arrives, and after its digest agreed that it is
 * complete. NULL: there is no more, or importing->status says why the client's part has failed.
 */
static const ProtobufCMessage *next_message(void *arg) {
    struct importing *importing = arg;
    struct sl_exported_slice slice = {0};
    sluice__v1__capsule_piece__init(&importing->piece);
    if (importing->next == FIRST) {
        importing->next = BODY;
        importing->piece.what = &importing->what;
        importing->piece.header = (ProtobufCBinaryData){(size_t)importing->header_bytes, importing->header};
        return &importing->piece.base;
    }
    while (importing->next == BODY && slice.n == 0 && importing->status == SL_OK) {
        importing->status = next_bytes(importing, &slice, importing->err);
    }
    if (importing->status == SL_ERR_NOT_FOUND) {
        importing->status = SL_OK;
        importing->next = LAST;
    }
    if (importing->status != SL_OK || importing->next == DONE) {
        return NULL;
    }
    if (importing->next == LAST) {
        importing->next = DONE;
        importing->piece.is_last = true;
    } else {
        importing->piece.body = (ProtobufCBinaryData){slice.n, (uint8_t *)slice.bytes};
    }
    return &importing->piece.base;
}

// Reads the rest of what is passed on, and checks it: a store has it already.
static enum sl_status read_rest(struct importing *importing, struct sl_error *err) {
    importing->err = err;
    importing->next = importing->next == FIRST ? BODY : importing->next;
    while (next_message(importing) != NULL) {
    }
    return importing->status;
}

// Reads the rest of the file, and checks it.
static enum sl_status read_file_rest(struct importing *importing, struct sl_error *err) {
    struct sl_exported_slice slice;
    enum sl_status status;
    while ((status = next_slice(importing, &slice, err)) == SL_OK) {
    }
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

// Passes the capsule, or a segment, on to the store.
static enum sl_status upload(struct importing *importing, struct sl_worker *store, struct sl_error *err) {
    struct sl_error why = {0}, ours = {0};
    importing->err = &ours;
    importing->next = FIRST;
    enum sl_status status = sl_rpc_upload(sl_worker_channel(store), &sl_method_store_write, next_message, importing,
                                          sl_rpc_call_deadline_ns(importing->call), NULL, &why);
    if (importing->status != SL_OK) { // the store's failure is only that it was not told all
        return sl_fail_from(err, importing->status, &ours, "%s", ours.text);
    }
    if (status == SL_ERR_EXISTS) {
        return read_rest(importing, err);
    }
    SL_FAIL_IF(status == SL_OK && importing->next != DONE, err, SL_ERR_PEER_CORRUPT,
               "store %s took a part of the capsule as all of it", sl_worker_name(store));
    return status == SL_OK ? SL_OK
                           : sl_fail_from(err, status, &why, "store %s did not take the capsule: %s",
                                          sl_worker_name(store), why.text);
}

// ---- offloaded layers -----------------------------------------------------------------------------------------------

// Reads the head of the next segment, which follows the others, and gives it its key in this cluster.
static enum sl_status next_segment(struct importing *importing, struct sl_error *err) {
    struct sl_kv_segment_head *head = &importing->layers.segment;
    struct sl_hash128 salt;
    struct sl_exported_slice slice = {0};
    while (!slice.ends) {
        enum sl_status status = next_slice(importing, &slice, err);
        SL_FAIL_IF(status == SL_ERR_NOT_FOUND, err, SL_ERR_INVALID, "file: its offloaded layers end early");
        SL_THEN(status, sl_imported_layers_take(&importing->layers, slice.bytes, slice.n, slice.ends, err));
        SL_TRY(status);
    }
    SL_TRY(sl_tenant_salt(&importing->coordinator->salt_secret, importing->document->tenant, &salt, err));
    head->prefix_hash = sl_prefix_hash(&salt, importing->tokens, head->begin + head->n_slots);
    return SL_OK;
}

// Passes the segments on; the store has the capsule.
static enum sl_status store_layers(struct importing *importing, struct sl_worker *store, struct sl_error *err) {
    static_assert(sizeof importing->layers.head == SL_EXPORTED_SEGMENT_BYTES &&
                      offsetof(struct sl_kv_segment_head, body_bytes) ==
                          SL_EXPORTED_SEGMENT_BYTES - SL_EXPORTED_SEGMENT_SIZE,
                  "as the reader of files expects it");
    const struct sl_document *document = importing->document;
    const struct sl_capsule_id segments =
        sl_document_segments_id(&document->capsule, document->n_offloaded_heads, (int32_t)document->scan);
    struct sl_kv_segment_head *head = &importing->layers.segment;
    uint8_t *capsule_header = importing->header;
    enum sl_status status = SL_OK;
    importing->layers.n_tokens = document->capsule_tokens;
    importing->layers.max_bytes = document->offloaded_bytes;
    while (status == SL_OK && !sl_imported_layers_are_complete(&importing->layers)) {
        status = next_segment(importing, err);
        const struct sl_capsule_id id = sl_document_segment_id(&segments, head->index);
        importing->key.recipe_fingerprint = id.recipe_fingerprint;
        importing->what.capsule_bytes = (int64_t)head->body_bytes;
        importing->what.prefixes = (ProtobufCBinaryData){0, NULL};
        importing->header = (uint8_t *)head;
        importing->header_bytes = sizeof *head;
        SL_THEN(status, upload(importing, store, err));
        importing->header = capsule_header;
    }
    struct sl_exported_slice slice;
    SL_TRY(status);
    status = next_slice(importing, &slice, err);
    SL_FAIL_IF(status == SL_OK, err, SL_ERR_INVALID, "file: it has more offloaded layers than tokens");
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static enum sl_status store_body(struct importing *importing, struct sl_error *err) {
    struct sl_coordinator *coordinator = importing->coordinator;
    char address[SL_ADDRESS_BYTES];
    sl_registry_store_address(coordinator->registry, importing->document->first_key, address);
    struct sl_worker *store =
        address[0] != '\0' ? sl_registry_find(coordinator->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, NULL, address)
                           : NULL;
    SL_FAIL_IF(store == NULL, err, SL_ERR_PEER_LOST, "no KV store is ready to keep a document");
    enum sl_status status = upload(importing, store, err);
    SL_THEN_IF(status, importing->document->n_offloaded_heads > 0, store_layers(importing, store, err));
    sl_worker_unref(&store);
    return status;
}

static enum sl_status wait_until_stored(struct importing *importing, struct sl_error *err) {
    struct sl_coordinator *coordinator = importing->coordinator;
    int64_t until_ns = sl_deadline_in_ms(STORED_MS);
    char stores[SL_MAX_HOLDERS][64];
    for (;;) {
        sl_document_keeper_tell(coordinator->keeper);
        if (sl_documents_stores(coordinator->documents, importing->document, stores) > 0) {
            return SL_OK;
        }
        SL_FAIL_IF(sl_now_ns() >= until_ns || sl_rpc_call_cancelled(importing->call), err, SL_ERR_PEER_LOST,
                   "the store that took the capsule does not have it any more");
        sl_wait_ms(STORED_POLL_MS);
    }
}

static enum sl_status send_document(const struct importing *importing, unsigned reply) {
    return sl_coordinator_send_document(importing->coordinator, importing->call, importing->document, reply);
}

static enum sl_status keep(struct importing *importing, struct sl_error *err) {
    struct sl_coordinator *coordinator = importing->coordinator;
    char stores[SL_MAX_HOLDERS][64];
    SL_TRY(sl_coordinator_enter_document(coordinator, importing->document, err));
    bool is_there = sl_documents_stores(coordinator->documents, importing->document, stores) > 0;
    enum sl_status status = is_there ? read_file_rest(importing, err) : store_body(importing, err);
    SL_THEN(status, wait_until_stored(importing, err));
    SL_THEN(status, sl_coordinator_await_disks(coordinator, importing->call, importing->document, err));
    SL_THEN(status, sl_documents_finish(coordinator->documents, importing->document, err));
    if (status != SL_OK) {
        struct sl_error ignored;
        (void)sl_document_keeper_delete(coordinator->keeper, importing->document, &ignored); // the first error counts
        return status;
    }
    return send_document(importing, SL_DOCUMENT_ALONE);
}

// Keeps the document, or, as a call that adds a text does, returns the same document that is there.
static enum sl_status keep_or_find(struct importing *importing, struct sl_error *err) {
    struct sl_document *same = sl_documents_find_same(importing->coordinator->documents, importing->document);
    if (same == NULL) {
        return keep(importing, err);
    }
    enum sl_status status = read_file_rest(importing, err);
    sl_document_unref(&importing->document);
    importing->document = same;
    return status == SL_OK ? send_document(importing, SL_DOCUMENT_WAS_THERE) : status;
}

static enum sl_status take_document(struct importing *importing, struct sl_error *err) {
    SL_FAIL_IF(sl_rpc_call_deadline_ns(importing->call) > sl_deadline_in_ms(MAX_CALL_MS), err, SL_ERR_INVALID,
               "the call needs a deadline of at most an hour");
    SL_TRY(sl_coordinator_check_documents(importing->coordinator, err));
    SL_TRY(sl_exported_reader_create(&importing->reader, err));
    SL_TRY(read_up_to_body(importing, err));
    SL_TRY(plan(importing, err));
    SL_TRY(check_capsule(importing, err));
    SL_TRY(announce(importing, err));
    return keep_or_find(importing, err);
}

enum sl_status sl_coordinator_handle_import(void *service, struct sl_rpc_call *call, const ProtobufCMessage *no_request,
                                            struct sl_error *err) {
    (void)no_request;
    struct importing importing = {
        .coordinator = service, .call = call, .memory = {.coordinator = service, .call = call}};
    SL_TRY(sl_coordinator_enter_watcher(importing.coordinator, call, &importing.memory.tenant, err));
    enum sl_status status = take_document(&importing, err);
    protobuf_c_message_free_unpacked(importing.message, NULL);
    sl_exported_reader_destroy(&importing.reader);
    sl_document_unref(&importing.document);
    free(importing.prefixes);
    free(importing.tokens);
    free(importing.header);
    free(importing.text);
    free(importing.name);
    sl_call_memory_release(&importing.memory);
    sl_coordinator_leave_watcher(importing.coordinator, &importing.memory.tenant);
    return status;
}

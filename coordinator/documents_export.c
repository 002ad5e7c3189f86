// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sends a document as a file (net/document/exported.h): the coordinator passes on what a store reads.
 *
 * Design: the text is made into tokens again, as for a question. So a document whose key this cluster would not make any
 *         more is refused, and the file has a digest of the tokens that its capsule holds. At most one piece of the capsule
 *         is in memory.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/coordinator_internal.h"
#include "engine/offload/remote_kv/segment_head.h"
#include "net/document/exported.h"
#include "proto/methods.h"
#include "proto/sluice/v1/documents.pb-c.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define STEP_MS        100     // between checks of the client
#define EXPORT_MS      3600000 // of a call without a deadline
#define MAX_PIECE_MS   30000   // from one piece of the store to the next
#define FIRST_PIECE_MS 5000    // until the first one, plus the time for reading the capsule from a disk

struct exporting {
    struct sl_coordinator *coordinator;
    struct sl_rpc_call *call;
    struct sl_call_memory memory;
    const Sluice__V1__ExportDocumentRequest *asked;
    struct sl_document *document; // a reference
    struct sl_exported_head head;
    struct sl_exported_writer writer;
    struct sl_worker *source;    // a reference: the store that has sent the first piece
    struct sl_rpc_stream *store; // NULL: not opened
    char store_name[64];
    int64_t body_left; // bytes that the store still has to send
};

static enum sl_status send_bytes(void *arg, const void *bytes, size_t n, struct sl_error *err) {
    const struct exporting *exporting = arg;
    Sluice__V1__FilePiece piece = SLUICE__V1__FILE_PIECE__INIT;
    piece.data = (ProtobufCBinaryData){n, (uint8_t *)bytes};
    SL_FAIL_IF(sl_rpc_call_send(exporting->call, &piece.base) != SL_OK, err, SL_ERR_CANCELLED, "the client is gone");
    return SL_OK;
}

// Fills in the head, except for the sizes of the capsule.
static enum sl_status make_head(struct exporting *exporting, struct sl_error *err) {
    const struct sl_document *document = exporting->document;
    struct sl_exported_head *head = &exporting->head;
    Sluice__V1__AddDocumentRequest asked = SLUICE__V1__ADD_DOCUMENT_REQUEST__INIT;
    asked.name = (char *)document->name;
    asked.text = document->text;
    asked.recipe = (char *)document->recipe;
    asked.raw = !document->chat;
    struct sl_document *planned = NULL;
    int32_t *tokens = NULL;
    SL_TRY(sl_coordinator_plan_document(&exporting->memory, &asked, document->n_tokens, &planned, &tokens, err));
    enum sl_status status = SL_OK;
    if (memcmp(&planned->capsule, &document->capsule, sizeof planned->capsule) != 0) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "%s was read with another tokenizer, chat template or secret of tenants (--salt-file): delete "
                         "it, and add it again",
                         document->name);
    }
    *head = (struct sl_exported_head){.model_fingerprint = document->model_fingerprint,
                                      .n_tokens = document->n_tokens,
                                      .text_bytes = (int64_t)document->text_bytes,
                                      .chat = document->chat,
                                      .has_text = !exporting->asked->no_text};
    strcpy(head->recipe, document->recipe);
    SL_THEN(status, sl_sha256(document->text, document->text_bytes, head->text_sha256, err));
    SL_THEN(status, sl_sha256(tokens, (size_t)document->n_tokens * sizeof *tokens, head->tokens_sha256, err));
    free(tokens);
    sl_document_unref(&planned);
    return status;
}

// Begins to read a capsule, or a segment, of a store.
static enum sl_status open_store(struct exporting *exporting, struct sl_worker *store, const struct sl_capsule_id *id,
                                 struct sl_error *err) {
    Sluice__V1__StoreKey key = sl_document_store_key(exporting->document);
    if (key.recipe_fingerprint != id->recipe_fingerprint) { // a segment: no capsule, which a store reads from its disk
        key.recipe_fingerprint = id->recipe_fingerprint;
        key.n_tokens = 0;
    }
    int64_t deadline_ns = sl_rpc_call_deadline_ns(exporting->call), most_ns = sl_deadline_in_ms(EXPORT_MS);
    return sl_rpc_stream_open(sl_worker_channel(store), &sl_method_store_read, &key.base,
                              deadline_ns < most_ns ? deadline_ns : most_ns, exporting->call, &exporting->store, err);
}

// Waits for the next piece of the store, at most until the caller's deadline; the caller frees it.
static enum sl_status next_piece(struct exporting *exporting, int64_t wait_ms, Sluice__V1__CapsulePiece **piece_out,
                                 struct sl_error *err) {
    ProtobufCMessage *message = NULL;
    int64_t give_up_ns = sl_deadline_in_ms(wait_ms), deadline_ns = sl_rpc_call_deadline_ns(exporting->call);
    give_up_ns = deadline_ns < give_up_ns ? deadline_ns : give_up_ns;
    enum sl_status status = SL_AGAIN;
    *err = (struct sl_error){0};
    while (status == SL_AGAIN && sl_now_ns() < give_up_ns && !sl_rpc_call_cancelled(exporting->call)) {
        status = sl_rpc_stream_next(exporting->store, STEP_MS, &message, err);
    }
    if (status == SL_OK) {
        *piece_out = (Sluice__V1__CapsulePiece *)message;
        return SL_OK;
    }
    if (status == SL_AGAIN) {
        return sl_rpc_call_cancelled(exporting->call)
                   ? sl_fail(err, SL_ERR_CANCELLED, "the client is gone")
                   : sl_fail(err, SL_ERR_PEER_LOST, "it sent nothing for %.1f s", (double)wait_ms / 1e3);
    }
    bool is_over = status == SL_ERR_NOT_FOUND && err->status == SL_OK;
    return is_over ? sl_fail(err, SL_ERR_PEER_CORRUPT, "it ended the capsule early") : status;
}

// Opens the capsule at one store, and receives its first piece. SL_ERR_PEER_LOST: it does not have the capsule any more.
static enum sl_status begin_at(struct exporting *exporting, struct sl_worker *store,
                               Sluice__V1__CapsulePiece **piece_out, struct sl_error *err) {
    int64_t wait_ms = FIRST_PIECE_MS + exporting->document->capsule_bytes / SL_SLOW_BYTES_PER_MS;
    snprintf(exporting->store_name, sizeof exporting->store_name, "%s", sl_worker_name(store));
    enum sl_status status = open_store(exporting, store, &exporting->document->capsule, err);
    SL_THEN(status, next_piece(exporting, wait_ms, piece_out, err));
    if (status != SL_OK) {
        sl_rpc_stream_close(&exporting->store);
    }
    return status == SL_ERR_NOT_FOUND ? sl_fail(err, SL_ERR_PEER_LOST, "it does not have the capsule now") : status;
}

// Tries the stores that have the capsule until one sends the first piece. Otherwise the error says what each one did. It
// has no reason: that of a store's connection would tell the client that the coordinator is not there.
static enum sl_status find_capsule(struct exporting *exporting, Sluice__V1__CapsulePiece **piece_out,
                                   struct sl_error *err) {
    struct sl_coordinator *coordinator = exporting->coordinator;
    char names[SL_MAX_HOLDERS][64];
    int n_stores = sl_documents_stores(coordinator->documents, exporting->document, names);
    enum sl_status status = SL_ERR_PEER_LOST;
    char tried[208] = "none has reported it lately: see `sluice doc show`";
    for (int i = 0, n = 0; i < n_stores && status != SL_OK && !sl_rpc_call_cancelled(exporting->call); i++) {
        (void)sl_fail(err, SL_ERR_PEER_LOST, "it is lost");
        struct sl_worker *store =
            sl_registry_find(coordinator->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, names[i], NULL);
        if (store != NULL) {
            status = begin_at(exporting, store, piece_out, err);
            if (status == SL_OK) {
                exporting->source = sl_worker_ref(store);
            }
            sl_worker_unref(&store);
        }
        n += n < (int)sizeof tried
                 ? snprintf(tried + n, sizeof tried - (size_t)n, "%s%s: %.60s", i > 0 ? "; " : "", names[i], err->text)
                 : 0;
    }
    if (status == SL_OK) {
        return SL_OK;
    }
    return sl_rpc_call_cancelled(exporting->call)
               ? sl_fail(err, SL_ERR_CANCELLED, "the client is gone")
               : sl_fail(err, SL_ERR_PEER_LOST,
                         "no store sent the capsule of %s (%s); try again when one of them is back, or delete the "
                         "document and add it again",
                         exporting->document->name, tried);
}

// Sends the capsule's header, without the key that it has in this cluster. Call it after the head.
static enum sl_status send_header(struct exporting *exporting, const uint8_t *header, size_t n, struct sl_error *err) {
    const struct sl_document *document = exporting->document;
    enum sl_status status = sl_exported_write_head(&exporting->writer, &exporting->head, err);
    if (status == SL_OK && exporting->head.has_text) {
        status = sl_exported_write(&exporting->writer, document->text, document->text_bytes, err);
        SL_THEN(status, sl_exported_end_part(&exporting->writer, err));
    }
    SL_THEN(status, sl_exported_write(&exporting->writer, header, n, err));
    return status == SL_OK ? sl_exported_end_part(&exporting->writer, err) : status;
}

// Begins to read segment i, and receives its head.
static enum sl_status begin_segment(struct exporting *exporting, uint32_t i, int64_t begin,
                                    struct sl_kv_segment_head *head_out, struct sl_error *err) {
    const struct sl_document *document = exporting->document;
    const struct sl_capsule_id segments = sl_document_segments_id(&document->capsule, document->n_offloaded_heads,
                                                                  (int32_t)document->scan),
                               id = sl_document_segment_id(&segments, i);
    struct sl_kv_segment_config config;
    Sluice__V1__CapsulePiece *piece = NULL;
    struct sl_error why = {0};
    enum sl_status status = open_store(exporting, exporting->source, &id, &why);
    SL_THEN(status, next_piece(exporting, MAX_PIECE_MS, &piece, &why));
    SL_THEN(status, sl_kv_segment_head_read(piece->header.data, piece->header.len, head_out, &config, &why));
    if (piece != NULL) {
        sluice__v1__capsule_piece__free_unpacked(piece, NULL);
    }
    SL_FAIL_IF(status != SL_OK || head_out->begin != begin, err, SL_ERR_PEER_LOST,
               "store %s did not send segment %u of the offloaded layers of %s (%.160s): try again",
               exporting->store_name, i, document->name, status != SL_OK ? why.text : "it is another one");
    return SL_OK;
}

// Computes the bytes that the segments take in the file.
static enum sl_status measure_layers(struct exporting *exporting, struct sl_error *err) {
    int64_t end = 0, n_tokens = exporting->document->n_offloaded_heads > 0 ? exporting->document->capsule_tokens : 0;
    struct sl_rpc_stream *capsule = exporting->store;
    enum sl_status status = SL_OK;
    for (uint32_t i = 0; end < n_tokens && i < SL_MAX_DOCUMENT_SEGMENTS && status == SL_OK; i++) {
        struct sl_kv_segment_head head;
        exporting->store = NULL;
        status = begin_segment(exporting, i, end, &head, err);
        sl_rpc_stream_close(&exporting->store);
        if (status == SL_OK) {
            end = head.begin + head.n_slots;
            exporting->head.layers_bytes += sl_exported_segment_bytes((int64_t)head.body_bytes);
        }
    }
    exporting->store = capsule;
    return status;
}

// Receives the first piece of the store, and sends all parts of the file but the body.
static enum sl_status begin_file(struct exporting *exporting, struct sl_error *err) {
    static const struct sl_hash128 no_key = {{0}};
    Sluice__V1__CapsulePiece *piece;
    struct sl_capsule_info info;
    uint8_t *header = NULL;
    size_t n = 0;
    SL_TRY(find_capsule(exporting, &piece, err));
    enum sl_status status = sl_capsule_read_header(piece->header.data, piece->header.len, &info, err);
    SL_THEN(status, sl_capsule_rekey_header(piece->header.data, piece->header.len, &no_key, &header, &n, err));
    sluice__v1__capsule_piece__free_unpacked(piece, NULL);
    if (status == SL_OK) {
        exporting->body_left = exporting->head.body_bytes = (int64_t)info.body_bytes;
        exporting->head.header_bytes = (int64_t)n;
        status = measure_layers(exporting, err);
    }
    if (status == SL_OK) {
        status = send_header(exporting, header, n, err);
    }
    free(header);
    return status;
}

// Sends the body of the capsule, or the pages of a segment.
static enum sl_status send_body(struct exporting *exporting, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (exporting->body_left > 0 && status == SL_OK) {
        Sluice__V1__CapsulePiece *piece;
        struct sl_error why;
        status = next_piece(exporting, MAX_PIECE_MS, &piece, &why);
        SL_FAIL_IF(status != SL_OK, err, status,
                   "store %s: %.160s; %" PRId64 " bytes of the capsule of %s were left: try again",
                   exporting->store_name, why.text, exporting->body_left, exporting->document->name);
        if (piece->body.len < 1 || piece->body.len > (uint64_t)exporting->body_left) {
            status = sl_fail(err, SL_ERR_PEER_CORRUPT, "the store sends a body of another size than its header says");
        } else {
            status = sl_exported_write(&exporting->writer, piece->body.data, piece->body.len, err);
            exporting->body_left -= (int64_t)piece->body.len;
        }
        sluice__v1__capsule_piece__free_unpacked(piece, NULL);
    }
    return status == SL_OK ? sl_exported_end_part(&exporting->writer, err) : status;
}

// Sends the segments of the offloaded layers, without the key that each has in this cluster.
static enum sl_status send_layers(struct exporting *exporting, struct sl_error *err) {
    int64_t end = 0, left = exporting->head.layers_bytes;
    for (uint32_t i = 0; left > 0; i++) {
        struct sl_kv_segment_head head;
        sl_rpc_stream_close(&exporting->store);
        SL_TRY(begin_segment(exporting, i, end, &head, err));
        left -= sl_exported_segment_bytes((int64_t)head.body_bytes);
        SL_FAIL_IF(left < 0, err, SL_ERR_PEER_LOST, "the offloaded layers of %s change now: try again",
                   exporting->document->name);
        end = head.begin + head.n_slots;
        memset(&head.prefix_hash, 0, sizeof head.prefix_hash);
        SL_TRY(sl_exported_write(&exporting->writer, &head, sizeof head, err));
        SL_TRY(sl_exported_end_part(&exporting->writer, err));
        exporting->body_left = (int64_t)head.body_bytes;
        SL_TRY(send_body(exporting, err));
    }
    return SL_OK;
}

static enum sl_status check_document(const struct exporting *exporting, struct sl_error *err) {
    struct sl_coordinator *coordinator = exporting->coordinator;
    struct sl_described_document *described = malloc(sizeof *described); // too large for the stack
    SL_FAIL_IF(described == NULL, err, SL_ERR_EXHAUSTED, "no memory for a document's description");
    sl_documents_describe(coordinator->documents, exporting->document, coordinator->model_fingerprint, described);
    bool reading = described->message.reading, other_model = described->message.other_model;
    free(described);
    SL_FAIL_IF(reading, err, SL_ERR_PRECONDITION, "name: another call is adding %s now", exporting->document->name);
    return other_model ? sl_fail(err, SL_ERR_PRECONDITION, "%s was read by another model than the cluster's",
                                 exporting->document->name)
                       : SL_OK;
}

static enum sl_status send_document(struct exporting *exporting, struct sl_error *err) {
    SL_TRY(check_document(exporting, err));
    SL_TRY(make_head(exporting, err));
    SL_TRY(sl_exported_writer_init(&exporting->writer, send_bytes, exporting, err));
    SL_TRY(begin_file(exporting, err));
    SL_TRY(send_body(exporting, err));
    return send_layers(exporting, err);
}

enum sl_status sl_coordinator_handle_export(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                            struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct exporting exporting = {
        .coordinator = coordinator, .call = call, .memory = {.coordinator = coordinator, .call = call}};
    exporting.asked = (const Sluice__V1__ExportDocumentRequest *)request;
    SL_TRY(sl_coordinator_enter_watcher(coordinator, call, &exporting.memory.tenant, err));
    enum sl_status status = sl_coordinator_find_document(coordinator, sl_rpc_call_identity(call)->tenant,
                                                         exporting.asked->name, &exporting.document, err);
    if (status == SL_OK) {
        status = send_document(&exporting, err);
        sl_rpc_stream_close(&exporting.store);
        sl_worker_unref(&exporting.source);
        sl_exported_writer_cleanup(&exporting.writer);
        sl_document_unref(&exporting.document);
    }
    sl_call_memory_release(&exporting.memory);
    sl_coordinator_leave_watcher(coordinator, &exporting.memory.tenant);
    return status;
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: calls about documents in files.
#include <stdlib.h>

#include "client/libsluice/sluice_internal.h"
#include "proto/methods.h"

enum { STEP_MS = 100, PIECE_BYTES = 1 << 20 };

static bool is_stopped(const struct sl_document_pieces *pieces) {
    return pieces->stopped && pieces->stopped(pieces->arg);
}

enum sl_status sl_client_export_document(struct sl_client *client, const char *name, bool no_text,
                                         const struct sl_document_pieces *pieces, struct sl_error *err) {
    Sluice__V1__ExportDocumentRequest request = SLUICE__V1__EXPORT_DOCUMENT_REQUEST__INIT;
    request.name = (char *)name;
    request.no_text = no_text;
    int coordinator = 0;
    struct sl_rpc_stream *stream;
    *err = (struct sl_error){0};
    SL_TRY(sl_client_await_leader(client, pieces->deadline_ns, &coordinator, err));
    SL_TRY(sl_rpc_stream_open(client->channels[coordinator], &sl_method_documents_export, &request.base,
                              pieces->deadline_ns, NULL, &stream, err));
    enum sl_status status = SL_OK;
    while (status == SL_OK || status == SL_AGAIN) {
        ProtobufCMessage *message;
        status = is_stopped(pieces) ? sl_fail(err, SL_ERR_CANCELLED, "stopped; no file was written")
                                    : sl_rpc_stream_next(stream, STEP_MS, &message, err);
        if (status == SL_OK) {
            const Sluice__V1__FilePiece *piece = (const Sluice__V1__FilePiece *)message;
            status = pieces->write_fn(pieces->arg, piece->data.data, piece->data.len, err);
            protobuf_c_message_free_unpacked(message, NULL);
        }
    }
    sl_rpc_stream_close(&stream);
    bool is_over = status == SL_ERR_NOT_FOUND && err->status == SL_OK; // the orderly end of the stream
    return is_over ? SL_OK : status;
}

struct sending {
    const struct sl_document_pieces *pieces;
    Sluice__V1__ImportDocumentRequest request;
    bool is_first;
    enum sl_status status; // of the caller's functions, with *err
    struct sl_error *err;
    uint8_t bytes[PIECE_BYTES];
};

static const ProtobufCMessage *next_piece(void *arg) {
    struct sending *sending = arg;
    size_t n = 0;
    if (sending->is_first) {
        sending->is_first = false;
        return &sending->request.base;
    }
    sluice__v1__import_document_request__init(&sending->request);
    sending->status = is_stopped(sending->pieces) ? sl_fail(sending->err, SL_ERR_CANCELLED, "stopped; nothing was kept")
                                                  : sending->pieces->read_fn(sending->pieces->arg, sending->bytes,
                                                                             sizeof sending->bytes, &n, sending->err);
    sending->request.data = (ProtobufCBinaryData){n, sending->bytes};
    return sending->status == SL_OK && n > 0 ? &sending->request.base : NULL;
}

enum sl_status sl_client_import_document(struct sl_client *client, const char *name, const char *text, int64_t keep_ms,
                                         const struct sl_document_pieces *pieces, Sluice__V1__Document **document_out,
                                         struct sl_error *err) {
    struct sl_error ours = {0};
    int coordinator = 0;
    *err = (struct sl_error){0};
    enum sl_status status = sl_client_await_leader(client, pieces->deadline_ns, &coordinator, err);
    struct sending *sending = status == SL_OK ? malloc(sizeof *sending) : NULL;
    if (sending == NULL) {
        return status != SL_OK ? status : sl_fail(err, SL_ERR_EXHAUSTED, "client: out of memory");
    }
    sending->pieces = pieces;
    sending->is_first = true;
    sending->status = SL_OK;
    sending->err = &ours;
    sluice__v1__import_document_request__init(&sending->request);
    sending->request.name = (char *)name;
    sending->request.text = (char *)text;
    sending->request.keep_ms = keep_ms;
    status = sl_rpc_upload(client->channels[coordinator], &sl_method_documents_import, next_piece, sending,
                           pieces->deadline_ns, (ProtobufCMessage **)document_out, err);
    // The coordinator only says that the file is cut short. It may also have had all of it: then it keeps the document.
    if (status != SL_OK && sending->status != SL_OK) {
        *err = ours;
        status = sending->status;
    }
    free(sending);
    return status;
}

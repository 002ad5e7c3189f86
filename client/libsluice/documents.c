// SPDX-License-Identifier: Apache-2.0
// Purpose: calls about documents.
#include "client/libsluice/sluice_internal.h"
#include "proto/methods.h"

enum { STEP_MS = 100 };

static enum sl_status follow(struct sl_rpc_stream *stream, const struct sl_document_watch *watch,
                             Sluice__V1__Document **document_out, struct sl_error *err) {
    Sluice__V1__Document *document = NULL;
    enum sl_status status = SL_OK;
    while (status == SL_OK || status == SL_AGAIN) {
        ProtobufCMessage *message;
        if (watch->stopped && watch->stopped(watch->arg)) {
            status = sl_fail(err, SL_ERR_CANCELLED, "stopped; nothing was kept");
            break;
        }
        status = sl_rpc_stream_next(stream, STEP_MS, &message, err);
        if (status != SL_OK) {
            continue;
        }
        Sluice__V1__AddDocumentEvent *event = (Sluice__V1__AddDocumentEvent *)message;
        if (event->what_case == SLUICE__V1__ADD_DOCUMENT_EVENT__WHAT_READING && watch->on_event) {
            watch->on_event(watch->arg, event->reading);
        } else if (event->what_case == SLUICE__V1__ADD_DOCUMENT_EVENT__WHAT_DOCUMENT && !document) {
            document = event->document;
            event->what_case = SLUICE__V1__ADD_DOCUMENT_EVENT__WHAT__NOT_SET;
        }
        protobuf_c_message_free_unpacked(message, NULL);
    }
    bool is_over = status == SL_ERR_NOT_FOUND && err->status == SL_OK; // the orderly end of the stream
    if (is_over && document) {
        *document_out = document;
        return SL_OK;
    }
    sluice__v1__document__free_unpacked(document, NULL);
    return is_over ? sl_fail(err, SL_ERR_PEER_CORRUPT, "the coordinator ended the call without a document") : status;
}

enum sl_status sl_client_add_document(struct sl_client *client, const Sluice__V1__AddDocumentRequest *request,
                                      const struct sl_document_watch *watch, Sluice__V1__Document **document_out,
                                      struct sl_error *err) {
    int coordinator = 0;
    struct sl_rpc_stream *stream;
    *err = (struct sl_error){0};
    SL_TRY(sl_client_await_leader(client, watch->deadline_ns, &coordinator, err));
    SL_TRY(sl_rpc_stream_open(client->channels[coordinator], &sl_method_documents_add, &request->base,
                              watch->deadline_ns, NULL, &stream, err));
    enum sl_status status = follow(stream, watch, document_out, err);
    sl_rpc_stream_close(&stream);
    return status;
}

static enum sl_status call(struct sl_client *client, const struct sl_rpc_method *method, const char *name,
                           int64_t deadline_ns, Sluice__V1__Document **document_out, struct sl_error *err) {
    Sluice__V1__DocumentRequest request = SLUICE__V1__DOCUMENT_REQUEST__INIT;
    request.name = (char *)name;
    return sl_client_call(client, method, &request.base, false, deadline_ns, (ProtobufCMessage **)document_out, err);
}

enum sl_status sl_client_get_document(struct sl_client *client, const char *name, int64_t deadline_ns,
                                      Sluice__V1__Document **document_out, struct sl_error *err) {
    return call(client, &sl_method_documents_get, name, deadline_ns, document_out, err);
}

enum sl_status sl_client_pin_document(struct sl_client *client, const Sluice__V1__PinDocumentRequest *request,
                                      int64_t deadline_ns, Sluice__V1__Document **document_out, struct sl_error *err) {
    return sl_client_call(client, &sl_method_documents_pin, &request->base, false, deadline_ns,
                          (ProtobufCMessage **)document_out, err);
}

enum sl_status sl_client_delete_document(struct sl_client *client, const char *name, int64_t deadline_ns,
                                         Sluice__V1__Document **document_out, struct sl_error *err) {
    return call(client, &sl_method_documents_delete, name, deadline_ns, document_out, err);
}

enum sl_status sl_client_list_documents(struct sl_client *client, int64_t deadline_ns,
                                        Sluice__V1__ListDocumentsReply **reply_out, struct sl_error *err) {
    Sluice__V1__ListDocumentsRequest request = SLUICE__V1__LIST_DOCUMENTS_REQUEST__INIT;
    return sl_client_call(client, &sl_method_documents_list, &request.base, false, deadline_ns,
                          (ProtobufCMessage **)reply_out, err);
}

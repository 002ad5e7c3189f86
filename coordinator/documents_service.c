// SPDX-License-Identifier: Apache-2.0
// Purpose: the service of documents (proto/sluice/v1/documents.proto), but for adding, exporting and importing one.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/lead.h"
#include "coordinator/workers/stores.h"
#include "proto/methods.h"
#include "proto/sluice/v1/documents.pb-c.h"

static enum sl_status handle_get(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                 struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_document *document = NULL;
    SL_TRY(sl_coordinator_find_document(coordinator, sl_rpc_call_identity(call)->tenant,
                                        ((const Sluice__V1__DocumentRequest *)request)->name, &document, err));
    enum sl_status status = sl_coordinator_send_document(coordinator, call, document, SL_DOCUMENT_ALONE);
    sl_document_unref(&document);
    return status;
}

// Checks that enough stores have the document or room for it.
static enum sl_status check_stores(struct sl_coordinator *coordinator, const struct sl_document *document, int replicas,
                                   struct sl_error *err) {
    char holders[SL_MAX_HOLDERS][64];
    struct sl_ranked_store *stores = malloc(SL_MAX_WORKERS * sizeof *stores);
    SL_FAIL_IF(stores == NULL, err, SL_ERR_EXHAUSTED, "no memory for a list of stores");
    int n_stores = sl_stores_rank(coordinator->registry, document->first_key, stores), n_good = 0;
    int n_holders = sl_documents_stores(coordinator->documents, document, holders);
    enum sl_status status = SL_OK, full = SL_OK;
    for (int i = 0; i < n_stores && n_good < replicas; i++) {
        int holder = 0;
        while (holder < n_holders && strcmp(holders[holder], stores[i].name) != 0) {
            holder++;
        }
        status =
            holder < n_holders ? SL_OK : sl_documents_check_room(coordinator->documents, document, &stores[i], err);
        n_good += status == SL_OK;
        full = status != SL_OK ? status : full;
    }
    free(stores);
    return n_good >= replicas ? SL_OK : full != SL_OK ? full : sl_coordinator_too_few_stores(replicas, n_stores, err);
}

static enum sl_status handle_pin(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                 struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    const Sluice__V1__PinDocumentRequest *asked = (const Sluice__V1__PinDocumentRequest *)request;
    bool sets_time = asked->keep_present_case == SLUICE__V1__PIN_DOCUMENT_REQUEST__KEEP_PRESENT_KEEP_MS;
    struct sl_document_pin pin = {.sets_time = sets_time, .replicas = asked->replicas};
    struct sl_document *document = NULL;
    enum sl_status status = sl_coordinator_check_kept(sets_time ? asked->keep_ms : 0, asked->replicas, err);
    SL_THEN(status,
            sl_coordinator_find_document(coordinator, sl_rpc_call_identity(call)->tenant, asked->name, &document, err));
    SL_THEN_IF(status, asked->replicas > 0, check_stores(coordinator, document, asked->replicas, err));
    if (status == SL_OK) {
        pin.expires_ms = sets_time && asked->keep_ms > 0 ? sl_wall_ms() + asked->keep_ms : 0;
        status = sl_documents_pin(coordinator->documents, document, &pin, err);
    }
    SL_THEN(status, sl_coordinator_send_document(coordinator, call, document, SL_DOCUMENT_ALONE));
    sl_document_unref(&document);
    return status;
}

static enum sl_status handle_delete(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_document *document = NULL;
    SL_TRY(sl_coordinator_find_document(coordinator, sl_rpc_call_identity(call)->tenant,
                                        ((const Sluice__V1__DocumentRequest *)request)->name, &document, err));
    struct sl_described_document described;
    sl_documents_describe(coordinator->documents, document, coordinator->model_fingerprint, &described);
    enum sl_status status =
        described.message.reading
            ? sl_fail(err, SL_ERR_PRECONDITION, "name: another call is adding %s now; end that call", document->name)
            : sl_document_keeper_delete(coordinator->keeper, document, err);
    SL_THEN(status, sl_rpc_call_send(call, &described.message.base));
    sl_document_unref(&document);
    return status;
}

static enum sl_status handle_list(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                  struct sl_error *err) {
    (void)request;
    struct sl_coordinator *coordinator = service;
    SL_TRY(sl_coordinator_check_documents(coordinator, err));
    struct sl_document **documents = malloc(SL_MAX_DOCUMENTS * sizeof *documents);
    Sluice__V1__Document **messages = malloc(SL_MAX_DOCUMENTS * sizeof *messages);
    size_t n = documents != NULL && messages != NULL
                   ? sl_documents_list(coordinator->documents, sl_coordinator_sees(call), documents)
                   : 0;
    struct sl_described_document *listed = malloc((n + 1) * sizeof *listed);
    enum sl_status status = SL_OK;
    if (documents == NULL || messages == NULL || listed == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a list of documents");
    } else {
        for (size_t i = 0; i < n; i++) {
            sl_documents_describe(coordinator->documents, documents[i], coordinator->model_fingerprint, &listed[i]);
            messages[i] = &listed[i].message;
        }
        Sluice__V1__ListDocumentsReply reply = SLUICE__V1__LIST_DOCUMENTS_REPLY__INIT;
        reply.n_documents = n;
        reply.documents = messages;
        status = sl_rpc_call_send(call, &reply.base);
    }
    for (size_t i = 0; i < n; i++) {
        sl_document_unref(&documents[i]);
    }
    free(listed);
    free(messages);
    free(documents);
    return status;
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_documents_add, sl_coordinator_handle_add, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_documents_get, handle_get, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_documents_pin, handle_pin, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_documents_list, handle_list, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_documents_delete, handle_delete, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_documents_export, sl_coordinator_handle_export, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
    {&sl_method_documents_import, sl_coordinator_handle_import, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
};

struct sl_rpc_implementation sl_documents_service(struct sl_coordinator *coordinator) {
    return SL_RPC_IMPLEMENTATION(&sl_service_documents, handlers, coordinator);
}

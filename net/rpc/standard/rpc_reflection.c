// SPDX-License-Identifier: Apache-2.0
/*
 * Design: grpc.reflection.v1 and v1alpha are the same bytes under two names, so one handler with v1's messages answers
 *         both. A reply contains a file and everything it imports, so that one reply suffices to build its types. The
 *         reply to an unknown name is an error_response within the stream, which goes on.
 * Threads: any; nothing changes after creation.
 */
#include "net/rpc/standard/rpc_reflection.h"

#include <grpc/status.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/descriptors.h"
#include "proto/grpc/reflection/v1/reflection.pb-c.h"
#include "proto/methods.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest Request;
typedef Grpc__Reflection__V1__ServerReflectionResponse Response;

#define ASKED(name)    GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define ANSWERED(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

struct sl_rpc_reflection {
    size_t n_services;
    const struct sl_rpc_service *services[]; // services to list
};

enum sl_status sl_rpc_reflection_create(const struct sl_rpc_implementation *services, size_t n_services,
                                        struct sl_rpc_reflection **reflection_out, struct sl_error *err) {
    const size_t n = n_services + SL_RPC_N_REFLECTION;
    struct sl_rpc_reflection *reflection = calloc(1, sizeof *reflection + n * sizeof reflection->services[0]);
    SL_FAIL_IF(!reflection, err, SL_ERR_EXHAUSTED, "no memory for reflection");
    reflection->n_services = n;
    for (size_t i = 0; i < n_services; i++) {
        reflection->services[i] = services[i].service;
    }
    reflection->services[n_services] = &sl_service_grpc_reflection_v1_server_reflection;
    reflection->services[n_services + 1] = &sl_service_grpc_reflection_v1alpha_server_reflection;
    *reflection_out = reflection;
    return SL_OK;
}

void sl_rpc_reflection_destroy(struct sl_rpc_reflection **reflection) {
    free(*reflection);
    *reflection = NULL;
}

// Return NULL if there is none.
static const struct sl_proto_file *file_named(const char *name) {
    for (size_t i = 0; i < sl_proto_n_files; i++) {
        if (strcmp(sl_proto_files[i].name, name) == 0) {
            return &sl_proto_files[i];
        }
    }
    return NULL;
}
static const struct sl_proto_file *file_defining(const char *symbol) {
    for (size_t i = 0; i < sl_proto_n_symbols; i++) {
        if (strcmp(sl_proto_symbols[i].name, symbol) == 0) {
            return &sl_proto_files[sl_proto_symbols[i].file];
        }
    }
    return NULL;
}

// ---- answers -------------------------------------------------------------------------------------------------------

static enum sl_status send_error(struct sl_rpc_call *call, Response *response, int code, char *text) {
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = code;
    error.error_message = text;
    response->message_response_case = ANSWERED(ERROR_RESPONSE);
    response->error_response = &error;
    return sl_rpc_call_send(call, &response->base);
}

// Answers that there is no such `what` as `name`.
static enum sl_status send_missing(struct sl_rpc_call *call, Response *response, const char *what, const char *name) {
    char text[256];
    snprintf(text, sizeof text, "no %s '%.200s'", what, name);
    return send_error(call, response, GRPC_STATUS_NOT_FOUND, text);
}

// Answers with a file and all that it imports; NULL: there is none that has `what`.
static enum sl_status send_file(struct sl_rpc_call *call, Response *response, const struct sl_proto_file *file,
                                const char *what, const char *name) {
    if (!file) {
        return send_missing(call, response, what, name);
    }
    Grpc__Reflection__V1__FileDescriptorResponse found = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    ProtobufCBinaryData *bytes = calloc(file->n_needs, sizeof *bytes);
    if (!bytes) {
        return SL_ERR_EXHAUSTED;
    }
    for (size_t i = 0; i < file->n_needs; i++) {
        const struct sl_proto_file *needed = &sl_proto_files[file->needs[i]];
        bytes[i] = (ProtobufCBinaryData){.len = needed->n_bytes, .data = (uint8_t *)needed->bytes};
    }
    found.n_file_descriptor_proto = file->n_needs;
    found.file_descriptor_proto = bytes;
    response->message_response_case = ANSWERED(FILE_DESCRIPTOR_RESPONSE);
    response->file_descriptor_response = &found;
    enum sl_status status = sl_rpc_call_send(call, &response->base);
    free(bytes);
    return status;
}

static enum sl_status send_services(const struct sl_rpc_reflection *reflection, struct sl_rpc_call *call,
                                    Response *response) {
    const size_t n = reflection->n_services;
    Grpc__Reflection__V1__ServiceResponse *services = calloc(n + 1, sizeof *services);
    Grpc__Reflection__V1__ServiceResponse **pointers = calloc(n + 1, sizeof *pointers);
    enum sl_status status = SL_ERR_EXHAUSTED;
    if (services && pointers) {
        for (size_t i = 0; i < n; i++) {
            grpc__reflection__v1__service_response__init(&services[i]);
            services[i].name = (char *)reflection->services[i]->name;
            pointers[i] = &services[i];
        }
        Grpc__Reflection__V1__ListServiceResponse list = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
        list.n_service = n;
        list.service = pointers;
        response->message_response_case = ANSWERED(LIST_SERVICES_RESPONSE);
        response->list_services_response = &list;
        status = sl_rpc_call_send(call, &response->base);
    }
    free(pointers);
    free(services);
    return status;
}

static enum sl_status answer(const struct sl_rpc_reflection *reflection, struct sl_rpc_call *call, Request *request) {
    Response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.valid_host = request->host;
    response.original_request = request;
    switch ((int)request->message_request_case) {
    case ASKED(LIST_SERVICES):
        return send_services(reflection, call, &response);
    case ASKED(FILE_BY_FILENAME):
        return send_file(call, &response, file_named(request->file_by_filename), "file", request->file_by_filename);
    case ASKED(FILE_CONTAINING_SYMBOL):
        return send_file(call, &response, file_defining(request->file_containing_symbol), "symbol",
                         request->file_containing_symbol);
    case ASKED(FILE_CONTAINING_EXTENSION): // proto3 has no extensions of messages
        return send_missing(call, &response, "extension of", request->file_containing_extension->containing_type);
    case ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE): {
        const char *type = request->all_extension_numbers_of_type;
        if (!file_defining(type)) {
            return send_missing(call, &response, "type", type);
        }
        Grpc__Reflection__V1__ExtensionNumberResponse numbers = GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
        numbers.base_type_name = (char *)type;
        response.message_response_case = ANSWERED(ALL_EXTENSION_NUMBERS_RESPONSE);
        response.all_extension_numbers_response = &numbers;
        return sl_rpc_call_send(call, &response.base);
    }
    default:
        return send_error(call, &response, GRPC_STATUS_INVALID_ARGUMENT, "the request asks for nothing");
    }
}

static enum sl_status reflect(void *context, struct sl_rpc_call *call, const ProtobufCMessage *no_request,
                              struct sl_error *err) {
    (void)no_request;
    for (;;) {
        ProtobufCMessage *request;
        enum sl_status status =
            sl_rpc_call_receive(call, &grpc__reflection__v1__server_reflection_request__descriptor, &request, err);
        if (status == SL_ERR_NOT_FOUND) {
            return SL_OK; // the client has no more questions
        }
        SL_TRY(status);
        status = answer(context, call, (Request *)request);
        protobuf_c_message_free_unpacked(request, NULL);
        SL_TRY(status);
    }
}

static const struct sl_rpc_handler v1_handler = {&sl_method_grpc_reflection_v1_server_reflection_server_reflection_info,
                                                 reflect, SL_ROLE_ANY};
static const struct sl_rpc_handler v1alpha_handler = {
    &sl_method_grpc_reflection_v1alpha_server_reflection_server_reflection_info, reflect, SL_ROLE_ANY};

void sl_rpc_reflection_services(struct sl_rpc_reflection *reflection,
                                struct sl_rpc_implementation services_out[SL_RPC_N_REFLECTION]) {
    services_out[0] = (struct sl_rpc_implementation){&sl_service_grpc_reflection_v1_server_reflection, &v1_handler, 1,
                                                     .context = reflection};
    services_out[1] = (struct sl_rpc_implementation){&sl_service_grpc_reflection_v1alpha_server_reflection,
                                                     &v1alpha_handler, 1, .context = reflection};
}

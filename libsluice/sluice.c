// SPDX-License-Identifier: Apache-2.0
// Purpose: the calls of libsluice that are one request and one reply.
#include "libsluice/sluice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libsluice/sluice_internal.h"
#include "proto/methods.h"

enum sl_status sl_client_connect(const char *address, struct sl_client **client_out, struct sl_error *err) {
    struct sl_client *client = calloc(1, sizeof *client);
    if (!client) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "client: out of memory");
    }
    enum sl_status status = sl_rpc_channel_create(address, &client->channel, err);
    if (status != SL_OK) {
        free(client);
        return status;
    }
    *client_out = client;
    return SL_OK;
}

void sl_client_close(struct sl_client **client) {
    if (*client) {
        sl_rpc_channel_destroy(&(*client)->channel);
        free(*client);
        *client = NULL;
    }
}

enum sl_status sl_client_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                int64_t deadline_ns, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err) {
    ProtobufCMessage *message;
    enum sl_status status =
        sl_rpc_unary(client->channel, &sl_method_inference_submit, &request->base, deadline_ns, NULL, &message, err);
    if (status != SL_OK) {
        return status;
    }
    Sluice__V1__SubmitReply *reply = (Sluice__V1__SubmitReply *)message;
    size_t n = strlen(reply->job_id);
    if (n == 0 || n >= SL_JOB_ID_BYTES) {
        status = sl_fail(err, SL_ERR_INTERNAL, "the coordinator answered with a job id of %zu bytes", n);
    } else {
        memcpy(job_id_out, reply->job_id, n + 1);
    }
    sluice__v1__submit_reply__free_unpacked(reply, NULL);
    return status;
}

static enum sl_status job_request(struct sl_client *client, const struct sl_rpc_method *method, const char *job_id,
                                  int64_t deadline_ns, Sluice__V1__Job **job_out, struct sl_error *err) {
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)job_id;
    return sl_rpc_unary(client->channel, method, &request.base, deadline_ns, NULL, (ProtobufCMessage **)job_out, err);
}

enum sl_status sl_client_cancel(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                                Sluice__V1__Job **job_out, struct sl_error *err) {
    return job_request(client, &sl_method_inference_cancel, job_id, deadline_ns, job_out, err);
}

enum sl_status sl_client_get(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                             Sluice__V1__Job **job_out, struct sl_error *err) {
    return job_request(client, &sl_method_inference_get, job_id, deadline_ns, job_out, err);
}

enum sl_status sl_client_list(struct sl_client *client, int32_t limit, int64_t deadline_ns,
                              Sluice__V1__ListReply **reply_out, struct sl_error *err) {
    Sluice__V1__ListRequest request = SLUICE__V1__LIST_REQUEST__INIT;
    request.limit = limit;
    return sl_rpc_unary(client->channel, &sl_method_inference_list, &request.base, deadline_ns, NULL,
                        (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_workers(struct sl_client *client, int64_t deadline_ns, Sluice__V1__WorkersReply **reply_out,
                                 struct sl_error *err) {
    Sluice__V1__WorkersRequest request = SLUICE__V1__WORKERS_REQUEST__INIT;
    return sl_rpc_unary(client->channel, &sl_method_cluster_workers, &request.base, deadline_ns, NULL,
                        (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_drain(struct sl_client *client, const char *worker, bool undo, int64_t deadline_ns,
                               int32_t *jobs_running_out, struct sl_error *err) {
    Sluice__V1__DrainRequest request = SLUICE__V1__DRAIN_REQUEST__INIT;
    request.name = (char *)worker;
    request.undo = undo;
    ProtobufCMessage *message;
    enum sl_status status =
        sl_rpc_unary(client->channel, &sl_method_cluster_drain, &request.base, deadline_ns, NULL, &message, err);
    if (status == SL_OK) {
        *jobs_running_out = ((Sluice__V1__DrainReply *)message)->jobs_running;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return status;
}

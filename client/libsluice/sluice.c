// SPDX-License-Identifier: Apache-2.0
// Purpose: the calls of libsluice that have one request and one reply.
#include "client/libsluice/sluice.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/locked.h"
#include "client/libsluice/sluice_internal.h"
#include "proto/methods.h"

// ---- gRPC's life cycle ---------------------------------------------------------------------------------------------

static struct {
    pthread_mutex_t lock;
    int n_users; // clients, plus callers of sl_client_init()
    bool ours;   // gRPC was started here, not by one of our servers
} means = {.lock = PTHREAD_MUTEX_INITIALIZER};

void sl_client_init(void) {
    SL_LOCKED(&means.lock);
    if (means.n_users++ == 0 && !sl_rpc_is_up()) {
        sl_rpc_init();
        means.ours = true;
    }
}

void sl_client_shutdown(void) {
    SL_LOCKED(&means.lock);
    if (--means.n_users == 0 && means.ours) {
        sl_rpc_shutdown();
        means.ours = false;
    }
}

// ---- calls ---------------------------------------------------------------------------------------------------------

enum sl_status sl_client_connect(const char *coordinators, const struct sl_tls_files *tls,
                                 struct sl_client **client_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_client, client, err, "client: out of memory");
    sl_client_init();
    enum sl_status status = tls ? sl_rpc_credentials_create(tls, &client->credentials, err) : SL_OK;
    SL_THEN(status, sl_rpc_addresses_parse(coordinators, &client->coordinators, err));
    for (int i = 0; i < client->coordinators.n && status == SL_OK; i++) {
        status = sl_rpc_channel_create(client->coordinators.text[i], client->credentials, SL_ROLE_COORDINATOR,
                                       &client->channels[i], err);
    }
    SL_TRY_OR(status, sl_client_close(&client));
    *client_out = client;
    return SL_OK;
}

void sl_client_close(struct sl_client **client_inout) {
    SL_TAKE_OR_RETURN(client, client_inout);
    for (int i = 0; i < SL_RPC_MAX_ADDRESSES; i++) {
        sl_rpc_channel_destroy(&client->channels[i]);
    }
    sl_rpc_credentials_destroy(&client->credentials);
    free(client);
    sl_client_shutdown();
}

enum sl_status sl_client_cancel(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                                Sluice__V1__Job **job_out, struct sl_error *err) {
    return sl_client_call_job(client, &sl_method_inference_cancel, job_id, -1, deadline_ns, job_out, err);
}

enum sl_status sl_client_get(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                             Sluice__V1__Job **job_out, struct sl_error *err) {
    return sl_client_call_job(client, &sl_method_inference_get, job_id, -1, deadline_ns, job_out, err);
}

enum sl_status sl_client_list(struct sl_client *client, unsigned states, int32_t limit, int64_t deadline_ns,
                              Sluice__V1__ListReply **reply_out, struct sl_error *err) {
    Sluice__V1__JobState listed[SLUICE__V1__JOB_STATE__CANCELLED + 1];
    Sluice__V1__ListRequest request = SLUICE__V1__LIST_REQUEST__INIT;
    request.limit = limit;
    request.states = listed;
    for (int state = SLUICE__V1__JOB_STATE__QUEUED; state <= SLUICE__V1__JOB_STATE__CANCELLED; state++) {
        if (states >> state & 1U) {
            listed[request.n_states++] = (Sluice__V1__JobState)state;
        }
    }
    return sl_client_call(client, &sl_method_inference_list, &request.base, false, deadline_ns,
                          (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_model(struct sl_client *client, int64_t deadline_ns, Sluice__V1__ModelReply **reply_out,
                               struct sl_error *err) {
    Sluice__V1__ModelRequest request = SLUICE__V1__MODEL_REQUEST__INIT;
    return sl_client_call(client, &sl_method_inference_model, &request.base, true, deadline_ns,
                          (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_end_conversation(struct sl_client *client, const char *id, int64_t deadline_ns,
                                          struct sl_error *err) {
    Sluice__V1__ConversationRequest request = SLUICE__V1__CONVERSATION_REQUEST__INIT;
    request.id = (char *)id;
    ProtobufCMessage *message;
    SL_TRY(sl_client_call(client, &sl_method_inference_end_conversation, &request.base, false, deadline_ns, &message,
                          err));
    protobuf_c_message_free_unpacked(message, NULL);
    return SL_OK;
}

enum sl_status sl_client_workers(struct sl_client *client, int64_t deadline_ns, Sluice__V1__WorkersReply **reply_out,
                                 struct sl_error *err) {
    Sluice__V1__WorkersRequest request = SLUICE__V1__WORKERS_REQUEST__INIT;
    return sl_client_call(client, &sl_method_cluster_workers, &request.base, true, deadline_ns,
                          (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_drain(struct sl_client *client, const char *worker, bool undo, int64_t deadline_ns,
                               int32_t *jobs_running_out, struct sl_error *err) {
    Sluice__V1__DrainRequest request = SLUICE__V1__DRAIN_REQUEST__INIT;
    request.name = (char *)worker;
    request.undo = undo;
    ProtobufCMessage *message;
    SL_TRY(sl_client_call(client, &sl_method_cluster_drain, &request.base, false, deadline_ns, &message, err));
    *jobs_running_out = ((Sluice__V1__DrainReply *)message)->jobs_running;
    protobuf_c_message_free_unpacked(message, NULL);
    return SL_OK;
}

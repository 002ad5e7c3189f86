// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: chooses the coordinator for a call, if there are several and one leads.
 * Design: before a call, a coordinator is asked with a short deadline whether it leads: one that is stuck with its port
 *         open would delay a longer call for its whole deadline. With one coordinator this step is skipped.
 */

#include "client/libsluice/sluice_internal.h"
#include "proto/methods.h"

enum {
    PROBE_MS = 500,
    OTHERS_MS = 250,
    PAUSE_MS = 100,
    ELECTION_MS = 15000, // longer than the election of another leader takes
};

static int64_t sooner(int64_t deadline_ns, int64_t ms) {
    int64_t at_ns = sl_deadline_in_ms(ms);
    return at_ns < deadline_ns ? at_ns : deadline_ns;
}

static enum sl_status ask(struct sl_client *client, int coordinator, int64_t deadline_ns, bool *leads_out,
                          struct sl_error *err) {
    Sluice__V1__ModelRequest request = SLUICE__V1__MODEL_REQUEST__INIT;
    ProtobufCMessage *message;
    SL_TRY(sl_rpc_unary(client->channels[coordinator], &sl_method_inference_model, &request.base, deadline_ns, NULL,
                        &message, err));
    const Sluice__V1__ModelReply *reply = (const Sluice__V1__ModelReply *)message;
    *leads_out = !reply->standby;
    protobuf_c_message_free_unpacked(message, NULL);
    return SL_OK;
}

enum sl_status sl_client_find_leader(struct sl_client *client, int64_t deadline_ns, int *coordinator_out,
                                     struct sl_error *err) {
    int n = client->coordinators.n, first = atomic_load(&client->current);
    if (n == 1) {
        *coordinator_out = 0;
        return SL_OK;
    }
    int n_standby = 0;
    struct sl_error why = {0};
    for (int k = 0; k < n; k++) {
        int i = (first + k) % n;
        bool leads = false;
        enum sl_status status = ask(client, i, sooner(deadline_ns, PROBE_MS), &leads, &why);
        if (status == SL_ERR_DENIED) {
            return sl_fail_from(err, status, &why, "%s", why.text);
        }
        if (leads) {
            atomic_store(&client->current, i);
            *coordinator_out = i;
            return SL_OK;
        }
        n_standby += status == SL_OK;
    }
    return n_standby > 0 ? sl_fail(err, SL_ERR_PEER_LOST, "no coordinator leads; %d of %d answer", n_standby, n)
                         : sl_fail_from(err, SL_ERR_PEER_LOST, &why,
                                        "none of %d coordinators answers; the last one: %.200s", n, why.text);
}

enum sl_status sl_client_await_leader(struct sl_client *client, int64_t deadline_ns, int *coordinator_out,
                                      struct sl_error *err) {
    int64_t give_up_ns = sooner(deadline_ns, ELECTION_MS);
    enum sl_status status;
    while ((status = sl_client_find_leader(client, deadline_ns, coordinator_out, err)) == SL_ERR_PEER_LOST &&
           sl_deadline_left_ms(give_up_ns) > PAUSE_MS) {
        sl_sleep_ms(PAUSE_MS);
    }
    return status;
}

bool sl_client_others_lead(struct sl_client *client, int coordinator) {
    for (int i = 0; i < client->coordinators.n; i++) {
        bool leads = false;
        struct sl_error err;
        if (i != coordinator && ask(client, i, sl_deadline_in_ms(OTHERS_MS), &leads, &err) == SL_OK && leads) {
            return true;
        }
    }
    return false;
}

// Calls the coordinators that do not lead, until one answers. SL_ERR_DEADLINE: none does, and one may only be slow.
static enum sl_status call_any(struct sl_client *client, const struct sl_rpc_method *method,
                               const ProtobufCMessage *request, int64_t deadline_ns, ProtobufCMessage **reply_out,
                               struct sl_error *err) {
    enum sl_status status = SL_ERR_PEER_LOST;
    bool is_slow = false;
    for (int i = 0; i < client->coordinators.n && status != SL_OK; i++) {
        status =
            sl_rpc_unary(client->channels[i], method, request, sooner(deadline_ns, PROBE_MS), NULL, reply_out, err);
        is_slow |= status == SL_ERR_DEADLINE;
    }
    return status == SL_ERR_PEER_LOST && is_slow
               ? sl_fail(err, SL_ERR_DEADLINE, "none of %d coordinators answers in time", client->coordinators.n)
               : status;
}

enum sl_status sl_client_call(struct sl_client *client, const struct sl_rpc_method *method,
                              const ProtobufCMessage *request, bool or_any, int64_t deadline_ns,
                              ProtobufCMessage **reply_out, struct sl_error *err) {
    int64_t give_up_ns = sooner(deadline_ns, ELECTION_MS);
    for (;;) {
        int coordinator = 0;
        enum sl_status status = sl_client_find_leader(client, deadline_ns, &coordinator, err);
        if (status == SL_OK) {
            status = sl_rpc_unary(client->channels[coordinator], method, request, deadline_ns, NULL, reply_out, err);
        } else if (or_any && (status = call_any(client, method, request, deadline_ns, reply_out, err)) ==
                                 SL_ERR_DEADLINE) { // ours, for one coordinator; the caller's is another
            status = sl_deadline_left_ms(deadline_ns) > 0
                         ? sl_fail(err, SL_ERR_PEER_LOST, "none of %d coordinators answers", client->coordinators.n)
                         : status;
        } else if (or_any) {
            return status;
        }
        if (status != SL_ERR_PEER_LOST || client->coordinators.n == 1 || sl_deadline_left_ms(give_up_ns) <= PAUSE_MS) {
            return status;
        }
        sl_sleep_ms(PAUSE_MS);
    }
}

enum sl_status sl_client_call_job(struct sl_client *client, const struct sl_rpc_method *method, const char *job_id,
                                  int coordinator, int64_t deadline_ns, Sluice__V1__Job **job_out,
                                  struct sl_error *err) {
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)job_id;
    ProtobufCMessage **reply_out = (ProtobufCMessage **)job_out;
    int n = client->coordinators.n;
    enum sl_status status =
        coordinator < 0 || n == 1
            ? sl_client_call(client, method, &request.base, false, deadline_ns, reply_out, err)
            : sl_rpc_unary(client->channels[coordinator], method, &request.base, deadline_ns, NULL, reply_out, err);
    int asked = coordinator < 0 ? atomic_load(&client->current) : coordinator;
    // A former leader may still have the job.
    for (int k = 1; k < n && (status == SL_ERR_NOT_FOUND || status == SL_ERR_PEER_LOST); k++) {
        struct sl_error why;
        enum sl_status other = sl_rpc_unary(client->channels[(asked + k) % n], method, &request.base,
                                            sooner(deadline_ns, ELECTION_MS), NULL, reply_out, &why);
        if (other == SL_OK) {
            return SL_OK;
        }
    }
    return status;
}

// SPDX-License-Identifier: Apache-2.0
// Prefill's calls to the stores that hold its offloaded layers. See offload_internal.h.
#include <stdlib.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/log.h"
#include "net/offload/prefill/offload_internal.h"
#include "proto/methods.h"

#define CALL_MS      2000
#define AWAIT_MS     5000 // for AwaitAnnex, which a store answers within a second in any case
#define RELEASE_MS   500
#define LEASE_MIN_MS 100 // a shorter lease would be renewed without a pause; a store's is 200 at least (--lease)
#define LOOK_MS      50  // between polls whether the job has ended
#define AGAIN_MS     200 // between questions whether a document is back

enum sl_status sl_store_link_fail(const struct sl_store_link *link, enum sl_status status, const struct sl_error *why,
                                  struct sl_error *err) {
    sl_fail(err, status, "kvstore %.80s: %.280s", link->share->address,
            why->text[0] ? why->text : "its reply is missing");
    sl_error_blame(err, SL_REASON_STORE, link->share->address);
    return status;
}

/*
 * Makes a unary call that ends when the job does. A store that does not answer in time, or does not know our lease any
 * more, has lost what it held for us: the coordinator must retry with another.
 */
static enum sl_status call(struct sl_offload *offload, const struct sl_store_link *link,
                           const struct sl_rpc_method *method, const ProtobufCMessage *request, int64_t limit_ms,
                           ProtobufCMessage **reply_out, struct sl_error *err) {
    struct sl_error why = {0};
    struct sl_rpc_stream *stream;
    enum sl_status status =
        sl_rpc_stream_open(link->channel, method, request, sl_deadline_in_ms(limit_ms), offload->parent, &stream, &why);
    if (status == SL_OK) {
        bool stopping = false;
        while (!stopping && (status = sl_rpc_stream_next(stream, LOOK_MS, reply_out, &why)) == SL_AGAIN) {
            stopping = atomic_load(&offload->stopping);
        }
        sl_rpc_stream_close(&stream);
    }
    if (status == SL_OK || (status == SL_ERR_EXISTS && method == &sl_method_store_grant_stretch)) {
        return status; // another job has stored it, which is fine here; other calls do not expect it
    }
    bool given_up = atomic_load(&offload->stopping) || (offload->parent && sl_rpc_call_cancelled(offload->parent));
    if (status == SL_AGAIN || (given_up && status == SL_ERR_DEADLINE)) {
        status = sl_fail(&why, SL_ERR_CANCELLED, "given up while waiting for %s", method->path);
    } else if (!given_up && (status == SL_ERR_DEADLINE || status == SL_ERR_NOT_FOUND || status == SL_ERR_CANCELLED ||
                             status == SL_ERR_INVALID || status == SL_ERR_PRECONDITION || status == SL_ERR_EXISTS)) {
        status =
            SL_ERR_PEER_LOST; // also if we and the store disagree about a remote KV, which no client can repair: start
                              // over
    }
    return sl_store_link_fail(link, status, &why, err);
}

// Checks what a store says about a remote KV; accepts only possible values.
static enum sl_status check_remote_kv(const struct sl_offload *offload, const struct sl_store_link *link,
                                      struct sl_error *err) {
    const Sluice__V1__Annex *remote_kv = link->remote_kv;
    int64_t n = remote_kv->n_tokens;
    if (n < 0 || n > offload->n_slots || (n < offload->n_slots && n % SL_PAGE_SLOTS != 0) ||
        remote_kv->lease_ms < LEASE_MIN_MS || remote_kv->window.len == 0 ||
        remote_kv->window.len > SL_TICKET_MAX_BYTES) {
        struct sl_error why;
        sl_fail(&why, SL_ERR_PEER_CORRUPT, "it describes an impossible remote KV");
        return sl_store_link_fail(link, why.status, &why, err);
    }
    return SL_OK;
}

// Opens the remote KV. If the store reads the prompt's document back from its disk, asks again, until reading the
// prompt would have been faster; then takes what the store has.
static enum sl_status open_restored(struct sl_offload *offload, struct sl_store_link *link,
                                    Sluice__V1__OpenAnnexRequest *request, struct sl_error *err) {
    const int64_t began_ns = sl_now_ns();
    for (int i = 0;; i++) {
        int64_t left_ms = (offload->restored_by_ns - sl_now_ns()) / SL_NS_PER_MS;
        request->wait_ms = left_ms > 0 ? left_ms : -1;
        SL_TRY(call(offload, link, &sl_method_store_open_annex, &request->base, CALL_MS,
                    (ProtobufCMessage **)&link->remote_kv, err));
        if (link->remote_kv->restore_ms <= 0 || request->wait_ms < 0) {
            const int64_t waited_ns = sl_now_ns() - began_ns, last_ms = link->remote_kv->waited_ms;
            const bool is_less = i == 0 && last_ms <= waited_ns / SL_NS_PER_MS; // the store cannot have waited longer
            offload->restore_ns += !is_less ? waited_ns : last_ms > 0 ? last_ms * SL_NS_PER_MS : 0;
            return SL_OK;
        }
        sluice__v1__annex__free_unpacked(link->remote_kv, NULL);
        link->remote_kv = NULL;
        if (i == 0) {
            sl_log_info("offload", "job=%s waits up to %lld ms for kvstore %s, which reads its document back",
                        offload->job_id, (long long)left_ms, link->share->address);
        }
        SL_FAIL_IF(offload->alive && !offload->alive(offload->arg), err, SL_ERR_CANCELLED,
                   "job %s was cancelled while its document was read back", offload->job_id);
        sl_sleep_ms(AGAIN_MS);
    }
}

enum sl_status sl_store_link_open(struct sl_offload *offload, struct sl_store_link *link,
                                  Sluice__V1__OpenAnnexRequest *request, struct sl_error *err) {
    request->share = (Sluice__V1__StoreShare *)link->share;
    enum sl_status status =
        sl_rpc_channel_create(link->share->address, offload->node->credentials, SL_ROLE_KVSTORE, &link->channel, err);
    SL_THEN(status, open_restored(offload, link, request, err));
    SL_THEN(status, check_remote_kv(offload, link, err));
    if (status == SL_OK) {
        status = sl_connection_open(offload->node->fabric, link->remote_kv->fabric_address,
                                    link->remote_kv->fabric_epoch, &link->connection, err);
        link->n_tokens = link->remote_kv->n_tokens;
    }
    return status;
}

void sl_store_link_close(struct sl_offload *offload, struct sl_store_link *link) {
    if (link->remote_kv && !offload->leases_passed) {
        Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
        request.lease_id = link->remote_kv->lease_id;
        struct sl_error why = {0};
        // Without the job's call, which may be cancelled. If the message is lost, the lease expires.
        if (sl_rpc_unary(link->channel, &sl_method_store_release, &request.base, sl_deadline_in_ms(RELEASE_MS), NULL,
                         NULL, &why) != SL_OK) {
            sl_log_debug("offload", "job=%s lease=%s ends by itself: kvstore %s: %s", offload->job_id,
                         sl_lease_name(request.lease_id).text, link->share->address, why.text);
        }
    }
    sl_connection_close(&link->connection);
    if (link->remote_kv) {
        protobuf_c_message_free_unpacked(&link->remote_kv->base, NULL);
    }
    sl_rpc_channel_destroy(&link->channel);
    free(link->map.segments);
    *link = (struct sl_store_link){0};
}

enum sl_status sl_store_link_grant(struct sl_offload *offload, struct sl_store_link *link, int64_t begin,
                                   uint32_t n_slots, Sluice__V1__Grant **grant_out, struct sl_error *err) {
    Sluice__V1__GrantStretchRequest request = SLUICE__V1__GRANT_STRETCH_REQUEST__INIT;
    request.lease_id = link->remote_kv->lease_id;
    request.begin = begin;
    request.n_tokens = (int32_t)n_slots;
    return call(offload, link, &sl_method_store_grant_stretch, &request.base, CALL_MS, (ProtobufCMessage **)grant_out,
                err);
}

enum sl_status sl_store_link_await(struct sl_offload *offload, struct sl_store_link *link, int64_t n_tokens,
                                   int64_t *n_built_out, struct sl_error *err) {
    Sluice__V1__AwaitAnnexRequest request = SLUICE__V1__AWAIT_ANNEX_REQUEST__INIT;
    request.lease_id = link->remote_kv->lease_id;
    request.n_tokens = n_tokens;
    Sluice__V1__AwaitAnnexReply *reply = NULL;
    enum sl_status status =
        call(offload, link, &sl_method_store_await_annex, &request.base, AWAIT_MS, (ProtobufCMessage **)&reply, err);
    if (status == SL_OK) {
        *n_built_out = reply->n_tokens;
        status = reply->n_tokens < n_tokens ? SL_AGAIN : SL_OK;
    }
    if (reply) {
        protobuf_c_message_free_unpacked(&reply->base, NULL);
    }
    return status;
}

enum sl_status sl_store_link_renew(struct sl_offload *offload, struct sl_store_link *link, struct sl_error *err) {
    Sluice__V1__RenewRequest request = SLUICE__V1__RENEW_REQUEST__INIT;
    request.lease_id = link->remote_kv->lease_id;
    ProtobufCMessage *reply;
    SL_TRY(call(offload, link, &sl_method_store_renew, &request.base, CALL_MS, &reply, err));
    protobuf_c_message_free_unpacked(reply, NULL);
    return SL_OK;
}

// ---- where segments lie --------------------------------------------------------------------------------------------

static enum sl_status ask_map(struct sl_store_link *link, const struct sl_near_request *request, void *answer,
                              size_t capacity, size_t *bytes_out, struct sl_error *err) {
    struct sl_fabric_request *sent;
    int64_t deadline_ns = sl_deadline_in_ms(CALL_MS);
    struct sl_fabric_question question = {.body = request,
                                          .body_bytes = sizeof *request,
                                          .reply_out = answer,
                                          .reply_capacity = capacity,
                                          .deadline_ns = deadline_ns};
    enum sl_status status = sl_fabric_request_open(link->connection, &question, &sent, err);
    if (status == SL_OK) {
        while ((status = sl_fabric_request_wait(sent, deadline_ns, bytes_out, err)) == SL_AGAIN) {
        }
        sl_fabric_request_close(&sent);
    }
    return status;
}

enum sl_status sl_store_link_map(struct sl_offload *offload, struct sl_store_link *link, int64_t n_tokens,
                                 struct sl_error *err) {
    struct sl_remote_kv_map map = {.first_offloaded_head = link->share->first_lane,
                                   .n_offloaded_heads = link->share->n_lanes,
                                   .work = offload->work,
                                   .kept = offload->kept,
                                   .scan = sl_plan_scan_format(offload->plan)};
    struct sl_near_request request = sl_remote_kv_map_request(&map, link->remote_kv->annex_id);
    size_t capacity = sl_remote_kv_map_answer_limit(offload->n_slots), bytes = 0;
    void *answer = malloc(capacity);
    SL_FAIL_IF(!answer, err, SL_ERR_EXHAUSTED, "offload: out of memory");
    struct sl_error why = {0};
    enum sl_status status = ask_map(link, &request, answer, capacity, &bytes, &why);
    SL_THEN(status, sl_remote_kv_map_read(&map, &request, answer, bytes, n_tokens, &why));
    free(answer);
    if (status != SL_OK) {
        status = status == SL_ERR_DEADLINE || status == SL_ERR_NOT_FOUND ? SL_ERR_PEER_LOST : status;
        return sl_store_link_fail(link, status, &why, err);
    }
    pthread_mutex_lock(&offload->mutex);
    struct sl_near_segment *before = link->map.segments;
    link->map = map;
    pthread_mutex_unlock(&offload->mutex);
    free(before);
    return SL_OK;
}

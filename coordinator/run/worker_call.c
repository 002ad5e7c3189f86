// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/worker_call.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/log.h"
#include "base/term.h"
#include "base/trace.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define POLL_MS       40      // between checks of everything but the stream
#define LEASE_CALL_MS 500     // Renew and Release: far shorter than any lease
#define LEASE_MAX_MS  3600000 // longer leases are renewed as if they lasted this long
#define LOST_CALL_MS  100     // Release at a lost worker: worth a try, not a wait

bool sl_status_is_lost(enum sl_status status) {
    return status == SL_ERR_PEER_LOST || status == SL_ERR_PEER_STALE || status == SL_ERR_PEER_CORRUPT;
}

// ---- leases -----------------------------------------------------------------------------------------------------

void sl_lease_granted(struct sl_lease *lease, int64_t lease_ms) {
    lease->lease_ms = lease_ms < LEASE_MAX_MS ? lease_ms : LEASE_MAX_MS;
    lease->renew_ns = sl_now_ns() + lease->lease_ms * SL_NS_PER_MS / 3;
}

enum sl_status sl_lease_renew_if_due(struct sl_lease *lease, struct sl_error *err) {
    int64_t now_ns = sl_now_ns();
    if (lease->worker == NULL || now_ns < lease->renew_ns) {
        return SL_OK;
    }
    Sluice__V1__RenewRequest request = SLUICE__V1__RENEW_REQUEST__INIT;
    request.lease_id = lease->id;
    ProtobufCMessage *message = NULL;
    struct sl_error why = {0};
    struct sl_trace trace = sl_trace_current();
    sl_trace_set(NULL); // otherwise there would be a span every few seconds
    enum sl_status status = sl_rpc_unary(sl_worker_channel(lease->worker), lease->renew, &request.base,
                                         sl_deadline_in_ms(LEASE_CALL_MS), NULL, &message, &why);
    sl_trace_set(&trace);
    if (status == SL_OK) {
        int64_t granted_ms = ((Sluice__V1__RenewReply *)message)->lease_ms;
        lease->lease_ms = granted_ms > 0 ? granted_ms : lease->lease_ms;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    sl_lease_granted(lease, lease->lease_ms);
    if (status == SL_ERR_NOT_FOUND || status == SL_ERR_PEER_STALE) {
        return sl_fail_from(err, SL_ERR_PEER_STALE, &why, "%s has given up the lease: %.200s",
                            sl_worker_name(lease->worker), why.text);
    }
    return SL_OK;
}

bool sl_lease_release(struct sl_lease *lease, const char *job_id) {
    if (lease->worker == NULL) {
        return true;
    }
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = lease->id;
    request.term = lease->term;
    struct sl_error err = {0};
    int64_t wait_ms = sl_worker_is_lost(lease->worker) ? LOST_CALL_MS : LEASE_CALL_MS;
    enum sl_status status = sl_rpc_unary(sl_worker_channel(lease->worker), lease->release, &request.base,
                                         sl_deadline_in_ms(wait_ms), NULL, NULL, &err);
    if (sl_term_is_refusal(status, &err)) {
        sl_log_info("job", "job=%s lease=%s ends by itself: %s", job_id, sl_lease_name(lease->id).text, err.text);
        status = SL_OK; // the worker lives, and has decided
    } else if (status != SL_OK && status != SL_ERR_NOT_FOUND) {
        sl_log_warn("job", "job=%s lease=%s could not be released at %s, which will do so by itself: %s", job_id,
                    sl_lease_name(lease->id).text, sl_worker_name(lease->worker), err.text);
        sl_worker_suspect(lease->worker);
    }
    lease->worker = NULL;
    return status == SL_OK || status == SL_ERR_NOT_FOUND;
}

// ---- calls ------------------------------------------------------------------------------------------------------

enum sl_status sl_worker_call_open(struct sl_worker_call *call, const struct sl_rpc_method *method,
                                   const ProtobufCMessage *request, int64_t deadline_ns, struct sl_error *err) {
    sl_liveness_timer_reset(&call->liveness, sl_now_ns());
    return sl_rpc_stream_open(sl_worker_channel(call->worker), method, request, deadline_ns, NULL, &call->stream, err);
}

enum sl_status sl_worker_call_unary(struct sl_worker_call *call, const struct sl_rpc_method *method,
                                    const ProtobufCMessage *request, int64_t deadline_ns, ProtobufCMessage **reply_out,
                                    struct sl_error *err) {
    SL_TRY(sl_worker_call_open(call, method, request, deadline_ns, err));
    enum sl_status status = sl_worker_call_next(call, reply_out, err);
    sl_worker_call_close(call);
    return status;
}

void sl_worker_call_close(struct sl_worker_call *call) {
    sl_rpc_stream_close(&call->stream);
}

// Renews one of the leases that are due: a worker that does not answer must not delay the job for long.
static void renew_other(struct sl_worker_call *call) {
    for (int i = 0; i < call->n_others; i++) {
        struct sl_lease *lease = &call->others[i];
        if (lease->worker != NULL && sl_now_ns() >= lease->renew_ns) {
            struct sl_error err = {0};
            if (sl_worker_is_lost(lease->worker) || sl_lease_renew_if_due(lease, &err) != SL_OK) {
                sl_log_warn("job", "job=%s continues without lease=%s at %s: %s", call->job->id,
                            sl_lease_name(lease->id).text, sl_worker_name(lease->worker),
                            err.text[0] ? err.text : "it was lost");
                lease->worker = NULL;
            }
            return;
        }
    }
}

static enum sl_status check_surroundings(struct sl_worker_call *call, struct sl_error *err) {
    SL_TRY(sl_job_interrupted(call->job, err));
    SL_FAIL_IF(sl_worker_is_lost(call->worker), err, SL_ERR_PEER_LOST, "%s was lost, or stands still",
               sl_worker_name(call->worker));
    SL_FAIL_IF(call->peer != NULL && sl_worker_is_lost(call->peer), err, SL_ERR_PEER_LOST,
               "%s was lost, or stands still", sl_worker_name(call->peer));
    renew_other(call);
    enum sl_status status = call->lease != NULL ? sl_lease_renew_if_due(call->lease, err) : SL_OK;
    return call->lease_is_vital ? status : SL_OK;
}

// Translates what ended the stream into what it means for the job. `why` is the worker's failure.
static enum sl_status classify(struct sl_worker_call *call, enum sl_status status, const struct sl_error *why,
                               struct sl_error *err) {
    const char *name = sl_worker_name(call->worker);
    switch (status) {
    case SL_ERR_NOT_FOUND: // the orderly end of the stream, or a lease that the worker does not know
        return sl_fail_from(err, SL_ERR_PEER_LOST, why, "%s ended the call without a result %.200s", name, why->text);
    case SL_ERR_CANCELLED: // by the worker, which is shutting down: this fiber reads no more once it cancels
        sl_worker_suspect(call->worker);
        return sl_fail_from(err, SL_ERR_PEER_LOST, why, "%s gave the call up: %.200s", name, why->text);
    case SL_ERR_DEADLINE:
        if (sl_job_interrupted(call->job, err) == SL_ERR_DEADLINE) {
            return SL_ERR_DEADLINE;
        }
        sl_worker_suspect(call->worker);
        return sl_fail(err, SL_ERR_PEER_LOST, "%s did not answer in time", name);
    case SL_ERR_PEER_LOST:
        sl_worker_suspect(call->worker);
        return sl_fail_from(err, SL_ERR_PEER_LOST, why, "%s lost: %.200s", name, why->text);
    default:
        return sl_fail_from(err, status, why, "%s: %.300s", name, why->text);
    }
}

enum sl_status sl_worker_call_next(struct sl_worker_call *call, ProtobufCMessage **message_out, struct sl_error *err) {
    for (;;) {
        SL_TRY(check_surroundings(call, err));
        struct sl_error why = {0};
        enum sl_status status = sl_rpc_stream_next(call->stream, POLL_MS, message_out, &why);
        if (status == SL_OK) {
            sl_liveness_timer_reset(&call->liveness, sl_now_ns());
            return SL_OK;
        }
        if (status != SL_AGAIN) {
            return classify(call, status, &why, err);
        }
        int64_t usual_ns = call->silence_ms * SL_NS_PER_MS / 2; // a renewal may take half a second
        int64_t silent_ms = sl_liveness_timer_poll(&call->liveness, sl_now_ns(), usual_ns) / SL_NS_PER_MS;
        if (silent_ms > call->silence_ms) {
            sl_worker_suspect(call->worker);
            return sl_fail(err, SL_ERR_PEER_LOST, "%s lost: silent for %" PRId64 " ms", sl_worker_name(call->worker),
                           silent_ms);
        }
    }
}

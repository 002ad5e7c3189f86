// SPDX-License-Identifier: Apache-2.0
// Purpose: see worker_call.h.
#include "coordinator/run/worker_call.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/log.h"
#include "base/term.h"
#include "base/trace.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define POLL_MS       40      // between looks at everything but the stream
#define LEASE_CALL_MS 500     // Renew and Release: far less than any lease
#define LEASE_MAX_MS  3600000 // renewed three times in it, however much longer a worker says that it lasts
#define LOST_CALL_MS  100     // Release at a worker that was given up: worth a try, not a wait

bool sl_status_is_lost(enum sl_status status) {
    return status == SL_ERR_PEER_LOST || status == SL_ERR_PEER_STALE || status == SL_ERR_PEER_CORRUPT;
}

// ---- leases -----------------------------------------------------------------------------------------------------

void sl_lease_granted(struct sl_lease *lease, int64_t lease_ms) {
    lease->lease_ms = lease_ms < LEASE_MAX_MS ? lease_ms : LEASE_MAX_MS;
    lease->renew_ns = sl_now_ns() + lease->lease_ms * SL_NS_PER_MS / 3;
}

// SL_ERR_PEER_STALE when the worker does not know the lease any more. Other failures are left to the stream to notice.
static enum sl_status renew_if_due(struct sl_lease *lease, struct sl_error *err) {
    int64_t now_ns = sl_now_ns();
    if (lease->worker == NULL || now_ns < lease->renew_ns) {
        return SL_OK;
    }
    Sluice__V1__RenewRequest request = SLUICE__V1__RENEW_REQUEST__INIT;
    request.lease_id = lease->id;
    ProtobufCMessage *message = NULL;
    struct sl_error why = {0};
    struct sl_trace trace = sl_trace_current();
    sl_trace_set(NULL); // or there would be a span every few seconds
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
        status = SL_OK; // the worker lives, and knows
    } else if (status != SL_OK && status != SL_ERR_NOT_FOUND) {
        sl_log_warn("job", "job=%s lease=%s could not be released at %s, which will do so by itself: %s", job_id,
                    sl_lease_name(lease->id).text, sl_worker_name(lease->worker), err.text);
        sl_worker_suspect(lease->worker);
    }
    lease->worker = NULL;
    return status == SL_OK || status == SL_ERR_NOT_FOUND;
}

// ---- legs -------------------------------------------------------------------------------------------------------

enum sl_status sl_leg_open(struct sl_leg *leg, const struct sl_rpc_method *method, const ProtobufCMessage *request,
                           int64_t deadline_ns, struct sl_error *err) {
    sl_silence_end(&leg->silence, sl_now_ns());
    return sl_rpc_stream_open(sl_worker_channel(leg->worker), method, request, deadline_ns, NULL, &leg->stream, err);
}

void sl_leg_close(struct sl_leg *leg) {
    sl_rpc_stream_close(&leg->stream);
}

// One of those that are due: a worker that does not answer must not hold up the job for long.
static void renew_other(struct sl_leg *leg) {
    for (int i = 0; i < leg->n_others; i++) {
        struct sl_lease *lease = &leg->others[i];
        if (lease->worker != NULL && sl_now_ns() >= lease->renew_ns) {
            struct sl_error err = {0};
            if (sl_worker_is_lost(lease->worker) || renew_if_due(lease, &err) != SL_OK) {
                sl_log_warn("job", "job=%s goes on without lease=%s at %s: %s", leg->job->id,
                            sl_lease_name(lease->id).text, sl_worker_name(lease->worker),
                            err.text[0] ? err.text : "it was lost");
                lease->worker = NULL;
            }
            return;
        }
    }
}

static enum sl_status check_surroundings(struct sl_leg *leg, struct sl_error *err) {
    enum sl_status status = sl_job_interrupted(leg->job, err);
    if (status != SL_OK) {
        return status;
    }
    if (sl_worker_is_lost(leg->worker)) {
        return sl_fail(err, SL_ERR_PEER_LOST, "%s was lost, or stands still", sl_worker_name(leg->worker));
    }
    if (leg->peer != NULL && sl_worker_is_lost(leg->peer)) {
        return sl_fail(err, SL_ERR_PEER_LOST, "%s was lost, or stands still", sl_worker_name(leg->peer));
    }
    renew_other(leg);
    if (leg->lease != NULL) {
        status = renew_if_due(leg->lease, err);
        return leg->lease_is_vital ? status : SL_OK;
    }
    return SL_OK;
}

// What ended the stream, seen from the job. `why` has the worker's words.
static enum sl_status classify(struct sl_leg *leg, enum sl_status status, const struct sl_error *why,
                               struct sl_error *err) {
    const char *name = sl_worker_name(leg->worker);
    switch (status) {
    case SL_ERR_NOT_FOUND: // the orderly end of the stream, or a lease that the worker does not know
        return sl_fail_from(err, SL_ERR_PEER_LOST, why, "%s ended the call without a result %.200s", name, why->text);
    case SL_ERR_CANCELLED: // not by us, who do not read on after that: it is shutting down
        sl_worker_suspect(leg->worker);
        return sl_fail_from(err, SL_ERR_PEER_LOST, why, "%s gave the call up: %.200s", name, why->text);
    case SL_ERR_DEADLINE:
        if (sl_job_interrupted(leg->job, err) == SL_ERR_DEADLINE) {
            return SL_ERR_DEADLINE;
        }
        sl_worker_suspect(leg->worker);
        return sl_fail(err, SL_ERR_PEER_LOST, "%s did not answer in time", name);
    case SL_ERR_PEER_LOST:
        sl_worker_suspect(leg->worker);
        return sl_fail_from(err, SL_ERR_PEER_LOST, why, "%s lost: %.200s", name, why->text);
    default:
        return sl_fail_from(err, status, why, "%s: %.300s", name, why->text);
    }
}

enum sl_status sl_leg_next(struct sl_leg *leg, ProtobufCMessage **message_out, struct sl_error *err) {
    for (;;) {
        enum sl_status status = check_surroundings(leg, err);
        if (status != SL_OK) {
            return status;
        }
        struct sl_error why = {0};
        status = sl_rpc_stream_next(leg->stream, POLL_MS, message_out, &why);
        if (status == SL_OK) {
            sl_silence_end(&leg->silence, sl_now_ns());
            return SL_OK;
        }
        if (status != SL_AGAIN) {
            return classify(leg, status, &why, err);
        }
        int64_t usual_ns = leg->silence_ms * SL_NS_PER_MS / 2; // a renewal may take half a second
        int64_t silent_ms = sl_silence_look(&leg->silence, sl_now_ns(), usual_ns) / SL_NS_PER_MS;
        if (silent_ms > leg->silence_ms) {
            sl_worker_suspect(leg->worker);
            return sl_fail(err, SL_ERR_PEER_LOST, "%s lost: silent for %" PRId64 " ms", sl_worker_name(leg->worker),
                           silent_ms);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: follows a job to its end across lost connections and restarted coordinators.
 *
 * Design: every event has a sequence number within its job, so a lost stream is opened again after the last event that
 *         was delivered. Three times limit this: the caller's deadline, the caller's limit without a coordinator
 *         (counted from the last message), and a pause between attempts that doubles from 50 ms to 2 s.
 *
 *             open -> next -> next ... -> Finished                       done
 *                      |  AGAIN: no event; ask `stopped`, continue
 *                      |  UNAVAILABLE, CANCELLED, EXHAUSTED, early end:  pause, open after the last event
 *                      |  any other status:                              failed
 *
 *         With several coordinators, the job is at the one that accepted it, which may not be the leader any more. They
 *         are asked in turn. If the leader does not know the job, and in a whole round no other coordinator does, the
 *         job is lost.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "client/libsluice/sluice.h"
#include "client/libsluice/sluice_internal.h"
#include "proto/methods.h"

#define POLL_MS          100
#define FIRST_PAUSE_MS   50
#define LONGEST_PAUSE_MS 2000
#define SEVERAL_PAUSE_MS 400 // longest pause with several coordinators: another one may lead by then
#define DEFAULT_LIMIT_MS 30000
// A coordinator of several that is silent for this long: ask the others whether it still leads
#define SILENT_MS 1000

static bool stopped(const struct sl_watch *watch) {
    return watch->stopped && watch->stopped(watch->arg);
}

bool sl_connection_lost(enum sl_status status) {
    // A coordinator that shuts down cancels its calls; one that is full refuses them. Neither is a failure of the job.
    return status == SL_ERR_PEER_LOST || status == SL_ERR_CANCELLED || status == SL_ERR_EXHAUSTED;
}

static enum sl_status deliver(struct sl_following *at, const Sluice__V1__Event *event, struct sl_error *err) {
    at->heard = true;
    if (event->sequence <= at->last_sequence) {
        return SL_OK; // a duplicate: delivered before the connection was lost
    }
    if (at->last_sequence > 0 && event->sequence > at->last_sequence + 1) {
        sl_log_warn("client", "job=%s events %lld to %lld are missing", at->job_id, (long long)at->last_sequence + 1,
                    (long long)event->sequence - 1);
    }
    at->last_sequence = event->sequence;
    if (at->take) {
        enum sl_status status = at->take(at->arg, event, err);
        at->finished = status == SL_OK && event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED;
        return status;
    }
    at->finished = event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED;
    at->watch->on_event(at->watch->arg, event);
    return SL_OK;
}

// Checks a coordinator that has sent nothing for a while. One that is stuck keeps its connections open while another
// one leads.
static bool is_deposed(const struct sl_following *at, int64_t *heard_ns_inout) {
    if (!at->take || at->client->coordinators.n == 1 || sl_now_ns() - *heard_ns_inout < SILENT_MS * SL_NS_PER_MS) {
        return false;
    }
    bool deposed = sl_client_others_lead(at->client, at->coordinator);
    *heard_ns_inout = sl_now_ns();
    return deposed;
}

// Reads one stream until the job has finished (SL_OK) or the stream fails.
static enum sl_status read_stream(struct sl_rpc_stream *stream, struct sl_following *at, struct sl_error *err) {
    const struct sl_watch *watch = at->watch;
    int64_t heard_ns = sl_now_ns();
    while (!at->finished) {
        if (stopped(watch)) {
            return SL_AGAIN;
        }
        ProtobufCMessage *message;
        // An orderly end and a refusal with NOT_FOUND have the same status; only the refusal has a text.
        *err = (struct sl_error){.status = SL_OK};
        enum sl_status status = sl_rpc_stream_next(stream, POLL_MS, &message, err);
        if (status == SL_AGAIN) {
            SL_FAIL_IF(sl_deadline_left_ms(watch->deadline_ns) == 0, err, SL_ERR_DEADLINE,
                       "job %s has not finished in time", at->job_id);
            SL_FAIL_IF(is_deposed(at, &heard_ns), err, SL_ERR_PEER_LOST,
                       "the coordinator of job %s is silent, and another one leads", at->job_id);
            continue;
        }
        if (status == SL_ERR_NOT_FOUND && err->status == SL_OK) {
            at->ended = true;
            return sl_fail(err, SL_ERR_PEER_LOST, "the coordinator ended the stream before the job had finished");
        }
        SL_TRY(status);
        heard_ns = sl_now_ns();
        status = deliver(at, (const Sluice__V1__Event *)message, err);
        protobuf_c_message_free_unpacked(message, NULL);
        SL_TRY(status);
    }
    return SL_OK;
}

enum sl_status sl_follow_once(struct sl_following *following, struct sl_error *err) {
    Sluice__V1__WatchRequest request = SLUICE__V1__WATCH_REQUEST__INIT;
    request.job_id = (char *)following->job_id;
    request.from_sequence = following->last_sequence + 1;
    following->heard = following->ended = false;
    struct sl_rpc_stream *stream = NULL;
    enum sl_status status =
        sl_rpc_stream_open(following->client->channels[following->coordinator], &sl_method_inference_watch,
                           &request.base, following->watch->deadline_ns, NULL, &stream, err);
    if (status == SL_OK) {
        status = read_stream(stream, following, err);
        sl_rpc_stream_close(&stream);
    }
    return status;
}

// Pauses in slices, so that `stopped` is polled. False: stopped.
static bool pause_for(const struct sl_watch *watch, int64_t ms) {
    for (int64_t until = sl_deadline_in_ms(ms); sl_deadline_left_ms(until) > 0;) {
        if (stopped(watch)) {
            return false;
        }
        int64_t left = sl_deadline_left_ms(until);
        sl_sleep_ms(left < POLL_MS ? left : POLL_MS);
    }
    return true;
}

void sl_retry_budget_init(struct sl_retry_budget *budget, const struct sl_watch *watch) {
    budget->limit_ms = watch->reconnect_ms > 0 ? watch->reconnect_ms : DEFAULT_LIMIT_MS;
    budget->give_up_ns = sl_deadline_in_ms(budget->limit_ms);
    budget->pause_ms = FIRST_PAUSE_MS;
}

static enum sl_status cancelled(const struct sl_following *following, struct sl_error *err) {
    return sl_fail(err, SL_ERR_CANCELLED, "stopped watching job %s", following->job_id);
}

enum sl_status sl_retry_budget_wait(struct sl_retry_budget *budget, const struct sl_following *following,
                                    const struct sl_error *why, struct sl_error *err) {
    const struct sl_watch *watch = following->watch;
    if (stopped(watch)) {
        return cancelled(following, err);
    }
    if (following->heard) {
        budget->give_up_ns = sl_deadline_in_ms(budget->limit_ms);
        budget->pause_ms = FIRST_PAUSE_MS;
    }
    if (sl_deadline_left_ms(watch->deadline_ns) == 0) {
        return sl_fail_from(err, SL_ERR_DEADLINE, why, "job %s has not finished in time; last seen: %s",
                            following->job_id, why->text);
    }
    if (sl_deadline_left_ms(budget->give_up_ns) == 0) {
        return sl_fail_from(err, SL_ERR_PEER_LOST, why, "no coordinator for %lld ms while watching job %s: %s",
                            (long long)budget->limit_ms, following->job_id, why->text);
    }
    if (watch->on_reconnect) {
        watch->on_reconnect(watch->arg, why);
    }
    if (!pause_for(watch, budget->pause_ms)) {
        return cancelled(following, err);
    }
    int64_t longest_ms = following->client->coordinators.n > 1 ? SEVERAL_PAUSE_MS : LONGEST_PAUSE_MS;
    budget->pause_ms = budget->pause_ms * 2 < longest_ms ? budget->pause_ms * 2 : longest_ms;
    return SL_OK;
}

enum sl_status sl_client_watch(struct sl_client *client, const struct sl_watch *watch, struct sl_error *err) {
    struct sl_following at = {.client = client,
                              .watch = watch,
                              .job_id = watch->job_id,
                              .coordinator = atomic_load(&client->current),
                              .last_sequence = watch->from_sequence > 0 ? watch->from_sequence - 1 : 0};
    struct sl_retry_budget budget;
    sl_retry_budget_init(&budget, watch);
    int n = client->coordinators.n,
        n_unknown = 0; // attempts in a row without an answer about the job, since a leader did not know it
    for (;;) {
        struct sl_error why = {0};
        enum sl_status status = sl_follow_once(&at, &why);
        if (status == SL_OK) {
            return SL_OK;
        }
        if (status == SL_AGAIN) {
            return cancelled(&at, err);
        }
        n_unknown = at.heard ? 0 : n_unknown + (status == SL_ERR_NOT_FOUND || n_unknown > 0);
        bool is_gone = status == SL_ERR_NOT_FOUND && n_unknown >= n;
        if (is_gone || (status != SL_ERR_NOT_FOUND && !sl_connection_lost(status))) {
            return sl_fail_from(err, status, &why, "%s", why.text);
        }
        at.coordinator = (at.coordinator + 1) % n;
        SL_TRY(sl_retry_budget_wait(&budget, &at, &why, err));
    }
}

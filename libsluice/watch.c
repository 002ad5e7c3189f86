// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: follow a job to its end across lost connections and restarted coordinators.
 *
 * Design: every event has a sequence number within its job, so a lost stream is opened again behind the last event
 *         that was delivered. Three clocks bound it: the caller's deadline, the caller's patience without a
 *         coordinator (counted from the last sign of life), and a pause between attempts that doubles from 50 ms
 *         to 2 s.
 *
 *             open -> next -> next ... -> Finished                       done
 *                      |  AGAIN: nothing came; ask `stopped`, go on
 *                      |  UNAVAILABLE, CANCELLED, EXHAUSTED, early end:  pause, open behind the last event
 *                      |  anything else:                                 failed
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "libsluice/sluice.h"
#include "libsluice/sluice_internal.h"
#include "proto/methods.h"

#define POLL_MS            100
#define FIRST_PAUSE_MS     50
#define LONGEST_PAUSE_MS   2000
#define DEFAULT_PATIENCE   30000
#define CANCEL_DEADLINE_MS 10000

struct position {
    int64_t last_sequence; // delivered
    bool finished;
    bool heard; // since the stream was opened
};

static bool stopped(const struct sl_watch *watch) {
    return watch->stopped && watch->stopped(watch->arg);
}

static enum sl_status cancelled(const struct sl_watch *watch, struct sl_error *err) {
    return sl_fail(err, SL_ERR_CANCELLED, "stopped watching job %s", watch->job_id);
}

// Whether the same watch can succeed on another connection.
static bool connection_lost(enum sl_status status) {
    // A coordinator that shuts down cancels its calls; one that is full refuses them. Neither is about the job.
    return status == SL_ERR_PEER_LOST || status == SL_ERR_CANCELLED || status == SL_ERR_EXHAUSTED;
}

static void deliver(const struct sl_watch *watch, const Sluice__V1__Event *event, struct position *at) {
    at->heard = true;
    if (event->sequence <= at->last_sequence) {
        return; // delivered before the connection was lost
    }
    if (at->last_sequence > 0 && event->sequence > at->last_sequence + 1) {
        sl_log_warn("client", "job=%s events %lld to %lld are missing", watch->job_id, (long long)at->last_sequence + 1,
                    (long long)event->sequence - 1);
    }
    at->last_sequence = event->sequence;
    at->finished = event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED;
    watch->on_event(watch->arg, event);
}

// Read one stream until the job has finished (SL_OK) or the stream fails.
static enum sl_status read_stream(struct sl_rpc_stream *stream, const struct sl_watch *watch, struct position *at,
                                  struct sl_error *err) {
    while (!at->finished) {
        if (stopped(watch)) {
            return SL_AGAIN;
        }
        ProtobufCMessage *message;
        // An orderly end and a refusal with NOT_FOUND share their status; only the refusal has a text.
        *err = (struct sl_error){.status = SL_OK};
        enum sl_status status = sl_rpc_stream_next(stream, POLL_MS, &message, err);
        if (status == SL_AGAIN) {
            if (sl_deadline_left_ms(watch->deadline_ns) == 0) {
                return sl_fail(err, SL_ERR_DEADLINE, "job %s has not finished in time", watch->job_id);
            }
            continue;
        }
        if (status == SL_ERR_NOT_FOUND && err->status == SL_OK) {
            return sl_fail(err, SL_ERR_PEER_LOST, "the coordinator ended the stream before the job had finished");
        }
        if (status != SL_OK) {
            return status;
        }
        deliver(watch, (const Sluice__V1__Event *)message, at);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return SL_OK;
}

static enum sl_status watch_once(struct sl_client *client, const struct sl_watch *watch, struct position *at,
                                 struct sl_error *err) {
    Sluice__V1__WatchRequest request = SLUICE__V1__WATCH_REQUEST__INIT;
    request.job_id = (char *)watch->job_id;
    request.from_sequence = at->last_sequence + 1;
    struct sl_rpc_stream *stream = NULL;
    enum sl_status status = sl_rpc_stream_open(client->channel, &sl_method_inference_watch, &request.base,
                                               watch->deadline_ns, NULL, &stream, err);
    if (status == SL_OK) {
        status = read_stream(stream, watch, at, err);
        sl_rpc_stream_close(&stream);
    }
    return status;
}

// Pause in slices, so that `stopped` is heard. False: stopped.
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

enum sl_status sl_client_watch(struct sl_client *client, const struct sl_watch *watch, struct sl_error *err) {
    struct sl_error why = {0};
    struct position at = {.last_sequence = watch->from_sequence > 0 ? watch->from_sequence - 1 : 0};
    int64_t patience_ms = watch->reconnect_ms > 0 ? watch->reconnect_ms : DEFAULT_PATIENCE;
    int64_t give_up_ns = sl_deadline_in_ms(patience_ms);
    int64_t pause_ms = FIRST_PAUSE_MS;
    for (;;) {
        at.heard = false;
        enum sl_status status = watch_once(client, watch, &at, &why);
        if (status == SL_OK) {
            return SL_OK;
        }
        if (status == SL_AGAIN || stopped(watch)) {
            return cancelled(watch, err);
        }
        if (!connection_lost(status)) {
            return sl_fail(err, status, "%s", why.text);
        }
        if (at.heard) {
            give_up_ns = sl_deadline_in_ms(patience_ms);
            pause_ms = FIRST_PAUSE_MS;
        }
        if (sl_deadline_left_ms(watch->deadline_ns) == 0) {
            return sl_fail(err, SL_ERR_DEADLINE, "job %s has not finished in time; last seen: %s", watch->job_id,
                           why.text);
        }
        if (sl_deadline_left_ms(give_up_ns) == 0) {
            return sl_fail(err, SL_ERR_PEER_LOST, "no coordinator for %lld ms while watching job %s: %s",
                           (long long)patience_ms, watch->job_id, why.text);
        }
        if (watch->on_reconnect) {
            watch->on_reconnect(watch->arg, &why);
        }
        if (!pause_for(watch, pause_ms)) {
            return cancelled(watch, err);
        }
        pause_ms = pause_ms * 2 < LONGEST_PAUSE_MS ? pause_ms * 2 : LONGEST_PAUSE_MS;
    }
}

enum sl_status sl_client_generate(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                  const struct sl_watch *watch, char job_id_out[SL_JOB_ID_BYTES],
                                  struct sl_error *err) {
    enum sl_status status = sl_client_submit(client, request, watch->deadline_ns, job_id_out, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_error own_err;
    err = err ? err : &own_err;
    struct sl_watch follow = *watch;
    follow.job_id = job_id_out;
    follow.from_sequence = 0;
    status = sl_client_watch(client, &follow, err);
    if (status != SL_OK) {
        char why[sizeof err->text];
        snprintf(why, sizeof why, "%s", err->text);
        struct sl_error cancel_err;
        if (sl_client_cancel(client, job_id_out, sl_deadline_in_ms(CANCEL_DEADLINE_MS), NULL, &cancel_err) == SL_OK) {
            sl_fail(err, status, "%s; the job was cancelled", why);
        } else {
            sl_fail(err, status, "%s; the job could not be cancelled and runs until its deadline: %s", why,
                    cancel_err.text);
        }
    }
    return status;
}

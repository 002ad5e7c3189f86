// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what clients call (proto/sluice/v1/inference.proto). Handlers only read jobs and ask to cancel them.
 * Design: Generate, Watch and Cancel may take long. Their number is bounded well below the server's, so that whatever
 *         clients do, there is always a handler left for the heartbeats of workers.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "coordinator/coordinator_internal.h"
#include "proto/methods.h"

#define POLL_MS        100   // between looks at the client while nothing happens
#define CANCEL_WAIT_MS 10000 // of a Cancel call without a deadline of its own
#define LIST_DEFAULT   100
#define LIST_MAX       1000

static enum sl_status enter_watcher(struct sl_coordinator *coordinator, struct sl_error *err) {
    if (atomic_fetch_add(&coordinator->n_watchers, 1) >= coordinator->config.max_watchers) {
        atomic_fetch_sub(&coordinator->n_watchers, 1);
        return sl_fail(err, SL_ERR_EXHAUSTED, "%" PRId64 " calls follow jobs, the most allowed; retry in 1000 ms",
                       coordinator->config.max_watchers);
    }
    return SL_OK;
}

static void leave_watcher(struct sl_coordinator *coordinator) {
    atomic_fetch_sub(&coordinator->n_watchers, 1);
}

// Send events from `sequence` on until the log ends or the client is gone.
static enum sl_status send_events(struct sl_rpc_call *call, struct sl_job *job, int64_t sequence,
                                  struct sl_error *err) {
    for (;;) {
        Sluice__V1__Event *event = NULL;
        enum sl_status status = sl_event_log_get(&job->log, sequence, sl_deadline_in_ms(POLL_MS), &event);
        if (status == SL_ERR_NOT_FOUND) {
            return SL_OK;
        }
        if (status == SL_ERR_DEADLINE) {
            if (sl_rpc_call_cancelled(call)) {
                return sl_fail(err, SL_ERR_CANCELLED, "the client is gone");
            }
            continue;
        }
        if (status != SL_OK) {
            return sl_fail(err, status, "no memory for an event; Watch again from sequence %" PRId64, sequence);
        }
        status = sl_rpc_call_send(call, &event->base);
        sluice__v1__event__free_unpacked(event, NULL);
        if (status != SL_OK) {
            return sl_fail(err, status, "the client is gone");
        }
        sequence++;
    }
}

static void cancel_job(void *job) {
    sl_job_cancel(job);
}

// The status of the call is the job's: a client that only looks at that is not told that a failure was a success.
static enum sl_status job_status(struct sl_job *job, struct sl_error *err) {
    struct sl_job_report report;
    sl_job_describe(job, &report);
    if (report.message.status_code == 0) {
        return SL_OK;
    }
    return sl_fail(err, sl_rpc_status_of_code(report.message.status_code), "%s", report.status_text);
}

static enum sl_status handle_generate(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                      struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    enum sl_status status = enter_watcher(coordinator, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_job *job = NULL;
    status = sl_coordinator_submit(coordinator, (const Sluice__V1__GenerateRequest *)request,
                                   sl_rpc_call_deadline_ns(call), &job, err);
    if (status == SL_OK) {
        sl_rpc_call_on_cancel(call, cancel_job, job);
        status = send_events(call, job, 1, err);
        sl_rpc_call_on_cancel(call, NULL, NULL);
        if (status == SL_OK) {
            status = job_status(job, err);
        } else {
            sl_job_cancel(job);
        }
        sl_job_unref(&job);
    }
    leave_watcher(coordinator);
    return status;
}

static enum sl_status handle_submit(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    struct sl_job *job = NULL;
    enum sl_status status =
        sl_coordinator_submit(service, (const Sluice__V1__GenerateRequest *)request, SL_NO_DEADLINE, &job, err);
    if (status != SL_OK) {
        return status;
    }
    Sluice__V1__SubmitReply reply = SLUICE__V1__SUBMIT_REPLY__INIT;
    reply.job_id = job->id;
    status = sl_rpc_call_send(call, &reply.base);
    sl_job_unref(&job);
    return status;
}

static enum sl_status handle_watch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    const Sluice__V1__WatchRequest *watch = (const Sluice__V1__WatchRequest *)request;
    if (watch->from_sequence < 0) {
        return sl_fail(err, SL_ERR_INVALID, "from_sequence: is %" PRId64 ", must be 0 or more", watch->from_sequence);
    }
    struct sl_job *job = NULL;
    enum sl_status status = sl_jobs_find(coordinator->jobs, watch->job_id, &job, err);
    if (status == SL_OK) {
        status = enter_watcher(coordinator, err);
        if (status == SL_OK) {
            status = send_events(call, job, watch->from_sequence > 0 ? watch->from_sequence : 1, err);
            leave_watcher(coordinator);
        }
        sl_job_unref(&job);
    }
    return status;
}

static enum sl_status send_job(struct sl_rpc_call *call, struct sl_job *job) {
    struct sl_job_report report;
    sl_job_describe(job, &report);
    return sl_rpc_call_send(call, &report.message.base);
}

static enum sl_status cancel_and_wait(struct sl_rpc_call *call, struct sl_job *job, struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(CANCEL_WAIT_MS);
    int64_t call_deadline_ns = sl_rpc_call_deadline_ns(call);
    deadline_ns = call_deadline_ns < deadline_ns ? call_deadline_ns : deadline_ns;
    sl_job_cancel(job);
    while (sl_event_log_wait_closed(&job->log, sl_deadline_in_ms(POLL_MS)) != SL_OK) {
        if (sl_rpc_call_cancelled(call)) {
            return sl_fail(err, SL_ERR_CANCELLED, "the client is gone; %s will be cancelled all the same", job->id);
        }
        if (sl_now_ns() >= deadline_ns) {
            return sl_fail(err, SL_ERR_DEADLINE, "%s is being cancelled, but not all workers have answered yet",
                           job->id);
        }
    }
    return send_job(call, job);
}

static enum sl_status handle_cancel(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_job *job = NULL;
    const char *id = ((const Sluice__V1__JobRequest *)request)->job_id;
    enum sl_status status = sl_jobs_find(coordinator->jobs, id, &job, err);
    if (status == SL_OK) {
        sl_job_cancel(job); // also when there are too many who wait
        status = enter_watcher(coordinator, err);
        if (status == SL_OK) {
            status = cancel_and_wait(call, job, err);
            leave_watcher(coordinator);
        }
        sl_job_unref(&job);
    }
    return status;
}

static enum sl_status handle_get(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                 struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_job *job = NULL;
    const char *id = ((const Sluice__V1__JobRequest *)request)->job_id;
    enum sl_status status = sl_jobs_find(coordinator->jobs, id, &job, err);
    if (status == SL_OK) {
        status = send_job(call, job);
        sl_job_unref(&job);
    }
    return status;
}

static enum sl_status state_mask(const Sluice__V1__ListRequest *request, unsigned *mask_out, struct sl_error *err) {
    unsigned mask = request->n_states == 0 ? ~0U : 0;
    for (size_t i = 0; i < request->n_states; i++) {
        if ((int)request->states[i] < SLUICE__V1__JOB_STATE__QUEUED ||
            (int)request->states[i] > SLUICE__V1__JOB_STATE__CANCELLED) {
            return sl_fail(err, SL_ERR_INVALID, "states: %d is not a state", (int)request->states[i]);
        }
        mask |= 1U << request->states[i];
    }
    *mask_out = mask;
    return SL_OK;
}

static enum sl_status handle_list(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                  struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    const Sluice__V1__ListRequest *list = (const Sluice__V1__ListRequest *)request;
    if (list->limit < 0 || list->limit > LIST_MAX) {
        return sl_fail(err, SL_ERR_INVALID, "limit: is %d, must be 0 (%d) to %d", list->limit, LIST_DEFAULT, LIST_MAX);
    }
    unsigned mask = 0;
    enum sl_status status = state_mask(list, &mask, err);
    if (status != SL_OK) {
        return status;
    }
    size_t limit = list->limit > 0 ? (size_t)list->limit : LIST_DEFAULT;
    struct sl_job **jobs = calloc(limit, sizeof(*jobs));
    struct sl_job_report *reports = calloc(limit, sizeof(*reports));
    Sluice__V1__Job **messages = calloc(limit, sizeof(*messages));
    if (jobs == NULL || reports == NULL || messages == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a list of %zu jobs", limit);
    } else {
        Sluice__V1__ListReply reply = SLUICE__V1__LIST_REPLY__INIT;
        reply.n_jobs = sl_jobs_list(coordinator->jobs, mask, jobs, limit);
        reply.jobs = messages;
        for (size_t i = 0; i < reply.n_jobs; i++) {
            sl_job_describe(jobs[i], &reports[i]);
            messages[i] = &reports[i].message;
            sl_job_unref(&jobs[i]);
        }
        status = sl_rpc_call_send(call, &reply.base);
    }
    free(messages);
    free(reports);
    free(jobs);
    return status;
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_inference_generate, handle_generate}, {&sl_method_inference_submit, handle_submit},
    {&sl_method_inference_watch, handle_watch},       {&sl_method_inference_cancel, handle_cancel},
    {&sl_method_inference_get, handle_get},           {&sl_method_inference_list, handle_list},
};

struct sl_rpc_implementation sl_inference_service(struct sl_coordinator *coordinator) {
    return SL_RPC_IMPLEMENTATION(&sl_service_inference, handlers, coordinator);
}

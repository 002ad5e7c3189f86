// SPDX-License-Identifier: Apache-2.0
// The handler of Prefill.Run: one job from its request to the acknowledgement of its capsule.
#include <stdlib.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "prefill/internal.h"

#define REPORT_MS 250   // between two progress events; callers treat seconds of silence as a lost worker
#define SHIP_MS   60000 // longest duration of a ship
#define POLL_MS   5
#define STALL_MS  15000 // without any byte sent: the ship fails, and the coordinator retries the job

// ---- the request ---------------------------------------------------------------------------------------------------

static enum sl_status check_request(const struct sl_prefill *prefill, const Sluice__V1__PrefillRequest *request,
                                    struct sl_error *err) {
    const struct sl_model_config *model = prefill->node->runtime.config;
    SL_FAIL_IF(!request->tokens || request->tokens->n_ids == 0, err, SL_ERR_INVALID, "tokens: empty");
    SL_FAIL_IF((int64_t)request->tokens->n_ids > model->max_positions, err, SL_ERR_INVALID,
               "tokens: %zu are more than the model's %lld positions", request->tokens->n_ids,
               (long long)model->max_positions);
    SL_FAIL_IF(!request->destination && !prefill->host.take_fn, err, SL_ERR_INVALID, "destination: missing");
    SL_FAIL_IF(request->session_bytes < 0 || request->most_slots < 0 || request->most_slots > model->max_positions, err,
               SL_ERR_INVALID, "session_bytes %lld, most_slots %lld: impossible", (long long)request->session_bytes,
               (long long)request->most_slots);
    SL_FAIL_IF(request->whole_tokens < 0 || request->whole_tokens > (int64_t)request->tokens->n_ids, err,
               SL_ERR_INVALID, "whole_tokens: %lld of a prompt of %zu tokens", (long long)request->whole_tokens,
               request->tokens->n_ids);
    return sl_job_check_ids(model, "tokens", request->tokens, err);
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static enum sl_status prepare(struct sl_prefill *prefill, const Sluice__V1__PrefillRequest *request,
                              struct sl_prefill_job *job, struct sl_error *err) {
    SL_TRY(check_request(prefill, request, err));
    SL_TRY(sl_job_read_salt(&request->salt, &job->salt, err));
    atomic_init(&job->n_refs, 1);
    job->prefill = prefill;
    job->id = request->job_id;
    job->tokens = request->tokens->ids;
    job->estimate_errors = request->estimate_errors;
    job->no_reuse = request->no_reuse;
    job->here = !request->destination;
    job->later_bytes = job->here ? (size_t)request->session_bytes : 0;
    job->most_slots = job->here ? request->most_slots : 0;
    job->store_address = request->kvstore_address ? request->kvstore_address : "";
    job->store_bytes = request->kvstore_bytes;
    const struct sl_model_config *model = prefill->node->runtime.config;
    struct sl_recipe recipe;
    SL_TRY(sl_job_recipe(request->recipe, model, &recipe, err));
    struct sl_kv_geometry geometry = sl_model_geometry(model);
    int64_t n_prompt = (int64_t)request->tokens->n_ids;
    int rope_set = sl_model_rope_set(model, larger(request->n_positions, n_prompt));
    SL_TRY(sl_plan_make(&recipe, &geometry, n_prompt, rope_set, &job->plan, err));
    SL_FAIL_IF(sl_recipe_offloads(&job->plan.recipe) && request->n_stores == 0, err, SL_ERR_PRECONDITION,
               "recipe: place=offload keeps layers in kvstores, and there is none for this job: start "
               "sluice-kvstore, or use place=resident");
    SL_FAIL_IF(recipe.chunk_tokens > prefill->max_chunk_tokens, err, SL_ERR_INVALID,
               "recipe: chunk=%d is more than this worker's --max-chunk %lld", recipe.chunk_tokens,
               (long long)prefill->max_chunk_tokens);
    size_t here_bytes = job->here ? job->plan.capsule_bytes + job->later_bytes : 0, // at most as in memory_of()
        most_bytes = here_bytes > job->plan.prefill_peak_bytes ? here_bytes : job->plan.prefill_peak_bytes;
    SL_FAIL_IF(most_bytes > (size_t)prefill->node->config.arena_bytes, err, SL_ERR_EXHAUSTED,
               "reading this prompt takes up to %zu bytes of KV memory and this worker has --arena %lld", most_bytes,
               (long long)prefill->node->config.arena_bytes);
    uint64_t fingerprint = sl_model_set_fingerprint(prefill->node->model_fingerprint, job->plan.rope_set);
    job->capsule = (struct sl_capsule_id){.model_fingerprint = fingerprint,
                                          .recipe_fingerprint = sl_recipe_fingerprint(&recipe),
                                          .prefix_hash = sl_prefix_hash(&job->salt, job->tokens, job->plan.n_prompt)};
    pthread_mutex_init(&job->mutex, NULL);
    sl_cond_init(&job->changed);
    return SL_OK;
}

struct opening {
    struct sl_prefill_job *job;
    struct sl_rpc_call *call;
};

static bool tell_alive(void *arg) {
    struct opening *opening = arg;
    opening->job->restoring = true;
    return sl_prefill_send_progress(opening->call, opening->job, 0, 0, 0) == SL_OK &&
           !atomic_load(&opening->job->cancelled);
}

static enum sl_status open_offload(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                   struct sl_rpc_call *call, struct sl_error *err) {
    if (!sl_recipe_offloads(&job->plan.recipe)) {
        return SL_OK;
    }
    struct opening opening = {job, call};
    struct sl_offload_config config = {.node = job->prefill->node,
                                       .plan = &job->plan,
                                       .job_id = job->id,
                                       .capsule = &job->capsule,
                                       .tokens = job->tokens,
                                       .salt = &job->salt,
                                       .stores = request->stores,
                                       .n_stores = request->n_stores,
                                       .parent = call,
                                       .restore_ms = request->restore_ms,
                                       .alive = tell_alive,
                                       .arg = &opening};
    enum sl_status status = sl_offload_open(&config, &job->offload, err);
    job->restoring = false;
    return status;
}

// ---- progress -----------------------------------------------------------------------------------------------------

static enum sl_status send_ship_progress(struct sl_rpc_call *call, int64_t sent, int64_t total) {
    Sluice__V1__ShipProgress progress = SLUICE__V1__SHIP_PROGRESS__INIT;
    progress.bytes_sent = sent;
    progress.bytes_total = total;
    Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
    event.what_case = SLUICE__V1__PREFILL_EVENT__WHAT_SHIP;
    event.ship = &progress;
    return sl_rpc_call_send(call, &event.base);
}

// ---- reading and shipping ------------------------------------------------------------------------------------------

static void on_cancel(void *arg) {
    struct sl_prefill_job *job = arg;
    atomic_store(&job->cancelled, true);
    SL_LOCKED(&job->mutex);
    pthread_cond_signal(&job->changed);
}

/*
 * Reports progress until the engine has released the job: every REPORT_MS / 2, and after the first chunk and the last.
 * If a ship has failed (its receiver is lost), cancels the reading, because no receiver waits for it. Phase ABANDONED
 * afterwards: the engine never began.
 */
static void follow(struct sl_prefill_job *job, struct sl_rpc_call *call) {
    int64_t reported = -1, next_report_ns = 0;
    pthread_mutex_lock(&job->mutex);
    while (job->phase != SL_PREFILL_READ) {
        if (job->phase == SL_PREFILL_WAITING && atomic_load(&job->cancelled)) {
            job->phase = SL_PREFILL_ABANDONED;
            break;
        }
        sl_cond_wait_until(&job->changed, &job->mutex, sl_deadline_in_ms(REPORT_MS / 2));
        int64_t n_done = job->n_done, n_reused = job->n_reused;
        size_t resident = job->resident_bytes;
        pthread_mutex_unlock(&job->mutex);

        enum sl_status ship_status = SL_OK;
        int64_t sent = job->here ? 0 : (int64_t)sl_ship_progress(job->outbound.ship, &ship_status);
        enum sl_status status = SL_OK;
        bool due = sl_now_ns() >= next_report_ns && !sl_node_stands_still(job->prefill->node);
        if (n_done != reported || due) {
            status = sl_prefill_send_progress(call, job, n_done, n_reused, resident);
            SL_THEN_IF(status, atomic_load(&job->outbound.shipped_bytes) > 0, send_ship_progress(call, sent, 0));
            reported = n_done;
            next_report_ns = sl_deadline_in_ms(REPORT_MS);
        }
        if (status != SL_OK || ship_status < 0) {
            atomic_store(&job->cancelled, true);
        }
        pthread_mutex_lock(&job->mutex);
    }
    pthread_mutex_unlock(&job->mutex);
}

// ---- the end ------------------------------------------------------------------------------------------------------

struct transit { // of the capsule's bytes, after the last layer
    int64_t total, moved, moved_ns, next_report_ns;
};

// Called until the acknowledgement is there: reports how many bytes have left, and gives up when the job was cancelled
// or nothing has moved for STALL_MS.
static enum sl_status check_transit(struct sl_prefill_job *job, struct sl_rpc_call *call, struct transit *transit,
                                    struct sl_error *err) {
    int64_t sent = (int64_t)sl_ship_progress(job->outbound.ship, NULL), now_ns = sl_now_ns();
    if (sent != transit->moved) {
        transit->moved = sent;
        transit->moved_ns = now_ns;
    } else if (now_ns - transit->moved_ns > STALL_MS * SL_NS_PER_MS) {
        return sl_fail(err, SL_ERR_PEER_LOST,
                       "job %s: no byte and no acknowledgement has moved between the workers for %d ms", job->id,
                       STALL_MS);
    }
    SL_FAIL_IF(atomic_load(&job->cancelled), err, SL_ERR_CANCELLED, "job %s was cancelled while shipping", job->id);
    if (now_ns >= transit->next_report_ns) {
        send_ship_progress(call, sent, transit->total); // a failure to send cancels the call
        transit->next_report_ns = sl_deadline_in_ms(REPORT_MS);
    }
    return SL_OK;
}

// Sends the header after all queued pieces, and waits for the receiver's acknowledgement.
static enum sl_status finish_ship(struct sl_prefill_job *job, struct sl_rpc_call *call, struct sl_error *err) {
    size_t header_bytes;
    enum sl_status status = sl_capsule_write_header(job->session, &job->capsule, &job->header, &header_bytes, err);
    SL_THEN(status, sl_ship_end(job->outbound.ship, job->header, header_bytes, err));
    SL_TRY(status);
    struct transit transit = {.total = (int64_t)atomic_load(&job->outbound.shipped_bytes), .moved = -1};
    while ((status = sl_ship_await(job->outbound.ship, sl_deadline_in_ms(POLL_MS), err)) == SL_AGAIN) {
        status = check_transit(job, call, &transit, err);
        SL_TRY(status);
    }
    if (status == SL_OK) {
        status = send_ship_progress(call, transit.total, transit.total);
        job->capsule_bytes = transit.total + (int64_t)header_bytes;
    }
    return status;
}

/*
 * Finishes the last segments: waits until every store can answer queries about the whole prompt. Afterwards job->shares
 * has the shares for the decode worker.
 */
static enum sl_status finish_offload(struct sl_prefill_job *job, struct sl_rpc_call *call, struct sl_error *err) {
    enum sl_status status = SL_AGAIN;
    while (job->offload && status == SL_AGAIN) {
        status = sl_offload_finish(job->offload, job->is_whole ? NULL : job->session, sl_deadline_in_ms(REPORT_MS),
                                   &job->shares, &job->n_shares, err);
        if (status == SL_AGAIN) {
            status = sl_prefill_send_progress(call, job, sl_plan_read_tokens(&job->plan), job->n_reused, 0);
            status = status == SL_OK && !atomic_load(&job->cancelled)
                         ? SL_AGAIN
                         : sl_fail(err, SL_ERR_CANCELLED, "job %s was cancelled while shipping to its stores", job->id);
        }
    }
    return job->offload ? status : SL_OK;
}

static void describe_offload(const struct sl_prefill_job *job, Sluice__V1__Retrieval *retrieval,
                             Sluice__V1__Statistics *statistics) {
    struct sl_offload_stats stats;
    sl_offload_get_stats(job->offload, &stats);
    retrieval->offloaded_bytes = stats.shipped_bytes;
    retrieval->reused_tokens = stats.stored_tokens;
    statistics->retrieval = retrieval;
    statistics->restore_ms = (double)stats.restore_ns / SL_NS_PER_MS;
    statistics->queue_ms -= statistics->restore_ms; // a stage of its own
}

static enum sl_status send_done(struct sl_rpc_call *call, struct sl_prefill_job *job, int64_t shipped_ns) {
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.n_prompt_tokens = job->plan.n_prompt;
    statistics.n_reused_tokens = job->n_reused;
    statistics.capsule_bytes = job->capsule_bytes;
    statistics.queue_ms = (double)(job->started_ns - job->queued_ns) / SL_NS_PER_MS;
    statistics.prefill_ms = (double)(job->ended_ns - job->started_ns) / SL_NS_PER_MS;
    statistics.ship_ms = (double)(shipped_ns - job->ended_ns) / SL_NS_PER_MS;
    statistics.prefill_peak_bytes = (int64_t)job->peak_bytes;
    statistics.slots_evicted = job->stats.slots_evicted;
    statistics.slots_merged = job->stats.slots_merged;
    statistics.transport = job->here      ? (char *)"nothing: one worker"
                           : job->session ? (char *)sl_ship_mode(job->outbound.ship)
                                          : "store";
    statistics.slots_per_head = job->slots_per_head;
    statistics.not_cached = job->not_cached;
    statistics.kept = job->kept;
    statistics.kept_state = (Sluice__V1__Kept)atomic_load(&job->kept_state);
    sl_error_statistics_attach(&job->errors, &statistics);
    Sluice__V1__Retrieval retrieval = SLUICE__V1__RETRIEVAL__INIT;
    if (job->offload) {
        describe_offload(job, &retrieval, &statistics);
    }
    Sluice__V1__PrefillDone done = SLUICE__V1__PREFILL_DONE__INIT;
    done.statistics = &statistics;
    done.annex = job->shares;
    done.n_annex = job->n_shares;
    done.kept = job->kept_lease;
    Sluice__V1__PrefillEvent event = SLUICE__V1__PREFILL_EVENT__INIT;
    event.what_case = SLUICE__V1__PREFILL_EVENT__WHAT_DONE;
    event.done = &done;
    SL_TRY(sl_rpc_call_send(call, &event.base));
    if (job->offload) {
        sl_offload_pass_leases(job->offload);
    }
    return SL_OK;
}

// Rejects a prompt that needs more staging memory than there is in total. Otherwise the prompt waits while other jobs
// use it.
static enum sl_status check_staging(const struct sl_prefill_job *job, struct sl_error *err) {
    const struct sl_node *node = job->prefill->node;
    size_t capsule_bytes = job->here ? 0 : job->plan.capsule_bytes;
    size_t offload_bytes = job->offload ? sl_offload_staging_bytes(job->offload) : 0;
    return !sl_node_stages(node) || sl_arena_rounded(capsule_bytes) + sl_arena_rounded(offload_bytes) <=
                                        (size_t)node->config.staging_bytes
               ? SL_OK
               : sl_fail(err, SL_ERR_EXHAUSTED,
                         "this prompt's capsule takes up to %zu bytes and its offloaded layers %zu on their way, and "
                         "this worker has --staging %lld; start it with more",
                         capsule_bytes, offload_bytes, (long long)node->config.staging_bytes);
}

// Counts how a capsule that arrived left its device.
static void count_way(struct sl_prefill *prefill, const struct sl_prefill_job *job, enum sl_status status) {
    if (sl_node_stages(prefill->node) && job->outbound.n_handed > 0 && status == SL_OK) {
        bool straight = job->outbound.way == SL_OUTBOUND_STRAIGHT;
        atomic_fetch_add(straight ? &prefill->node->n_straight : &prefill->node->n_staged, 1);
        sl_log_info("prefill", "job=%s left=%s", job->id, straight ? "straight" : "staged");
    }
}

static void count_failure(struct sl_prefill *prefill, enum sl_status status) {
    enum sl_ship_failure why = status == SL_ERR_PEER_LOST || status == SL_ERR_PEER_STALE ? SL_SHIP_FAILED_LOST
                               : status == SL_ERR_PEER_CORRUPT                           ? SL_SHIP_FAILED_CORRUPT
                               : status == SL_ERR_DEADLINE                               ? SL_SHIP_FAILED_DEADLINE
                               : status == SL_ERR_CANCELLED                              ? SL_SHIP_FAILED_CANCELLED
                                                                                         : SL_SHIP_FAILED_OTHERWISE;
    atomic_fetch_add(&prefill->n_ship_failures[why], 1);
}

// Maps the status of a lost or refusing receiver. If we answered PEER_LOST, the caller would take this worker for lost.
static enum sl_status of_receiver(struct sl_prefill *prefill, enum sl_status status, struct sl_error *err) {
    if (status != SL_OK) {
        count_failure(prefill, status);
    }
    if (status == SL_ERR_PEER_LOST) {
        status = err->status = SL_ERR_PEER_STALE;
    }
    return status;
}

// Waits while a copy is sent from the pages of a session that this worker then writes on.
static enum sl_status await_copy(struct sl_prefill_job *job, struct sl_rpc_call *call, struct sl_error *err) {
    int64_t next_report_ns = 0;
    while (!sl_archive_release(job->prefill->archive, job)) {
        SL_FAIL_IF(atomic_load(&job->cancelled), err, SL_ERR_CANCELLED, "job %s was cancelled while its copy was sent",
                   job->id);
        if (sl_now_ns() >= next_report_ns) {
            (void)sl_prefill_send_progress(call, job, sl_plan_read_tokens(&job->plan), job->n_reused,
                                           0); // a failure cancels the call
            next_report_ns = sl_deadline_in_ms(REPORT_MS);
        }
        sl_sleep_ms(POLL_MS);
    }
    return SL_OK;
}

// Frees what the session still holds of offloaded layers, which a capsule would leave out: the stores have all of them.
static void leave_offloaded(struct sl_prefill_job *job) {
    const struct sl_kv_geometry *geometry = &job->session->geometry;
    for (int layer = 0; layer < geometry->n_layers; layer++) {
        for (int head = 0; job->session->layers[layer].offloaded && head < geometry->n_kv_heads; head++) {
            sl_session_set_slots(job->session, layer, head, 0);
        }
    }
}

// Gives the session to the host, which writes the answer, with what is promised for its later tokens.
static enum sl_status hand_over(struct sl_prefill_job *job, struct sl_error *err) {
    const struct sl_prefill_host *host = &job->prefill->host;
    leave_offloaded(job);
    enum sl_status status =
        host->take_fn(host->arg, &job->capsule, &job->session, job->promised_bytes, job->kept_lease, err);
    job->promised_bytes = status == SL_OK ? 0 : job->promised_bytes;
    return status;
}

// Lets the engine read the prompt while this thread reports progress, then finishes the ship, or hands the session over.
static enum sl_status read_and_ship(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                    struct sl_rpc_call *call, struct sl_error *err) {
    int64_t deadline = sl_rpc_call_deadline_ns(call);
    enum sl_status status = check_staging(job, err);
    if (status == SL_OK && !job->here) {
        status = sl_ship_open(
            job->prefill->node->fabric, request->destination->ticket.data, request->destination->ticket.len,
            deadline == SL_NO_DEADLINE ? sl_deadline_in_ms(SHIP_MS) : deadline, &job->outbound.ship, err);
        if (status != SL_OK) {
            count_failure(job->prefill, status);
        }
    }
    SL_TRY(status);
    atomic_fetch_add(&job->n_refs, 1);
    sl_prefill_join(job->prefill, job);
    follow(job, call);
    enum sl_status ship_status = SL_OK;
    if (!job->here) {
        sl_ship_progress(job->outbound.ship, &ship_status);
    }
    if (ship_status < 0) {
        return of_receiver(job->prefill, sl_ship_finish(job->outbound.ship, NULL, 0, err),
                           err); // the status tells the result
    }
    SL_FAIL_IF(job->phase == SL_PREFILL_ABANDONED, err, SL_ERR_CANCELLED, "job %s was cancelled before its turn",
               job->id);
    if (job->status != SL_OK) {
        return sl_fail_from(err, job->status, &job->err, "%s", job->err.text);
    }
    SL_TRY(finish_offload(job, call, err));
    if (!job->here) {
        SL_TRY(of_receiver(job->prefill, finish_ship(job, call, err), err));
    }
    int64_t shipped_ns = sl_now_ns();
    struct sl_session_stats stats;
    sl_session_get_stats(job->session, &stats);
    job->slots_per_head = stats.n_slots_mean;
    job->capsule_bytes = job->here ? (int64_t)sl_capsule_body_bytes(job->session) : job->capsule_bytes;
    if (!job->is_whole) { // else the store has it
        sl_archive_prepare(job->prefill->archive, job);
    }
    status = job->here ? await_copy(job, call, err) : SL_OK;
    SL_THEN_IF(status, job->here, hand_over(job, err));
    return status == SL_OK ? send_done(call, job, shipped_ns) : status;
}

static void log_offload(const struct sl_prefill_job *job) {
    struct sl_offload_stats stats;
    sl_offload_get_stats(job->offload, &stats);
    sl_log_info("prefill", "job=%s offloaded=%lld stored_before=%lld read_back=%lld waited=%.1fms", job->id,
                (long long)stats.shipped_bytes, (long long)stats.stored_tokens, (long long)stats.read_back_bytes,
                (double)stats.read_back_wait_ns / SL_NS_PER_MS);
}

enum sl_status sl_prefill_handle_run(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                     struct sl_error *err) {
    struct sl_prefill *prefill = service;
    const Sluice__V1__PrefillRequest *request = (const Sluice__V1__PrefillRequest *)message;
    sl_log_set_job(request->job_id);
    SL_NEW_OR_FAIL(struct sl_prefill_job, job, err, "prefill: out of memory");
    enum sl_status status = sl_term_guard_check(&prefill->node->term_guard, request->term, err);
    SL_THEN(status, prepare(prefill, request, job, err));
    SL_TRY_OR(status, free(job));
    atomic_fetch_add(&prefill->n_jobs, 1);
    sl_rpc_call_on_cancel(call, on_cancel, job);

    job->queued_ns = sl_now_ns(); // waiting for stores counts as waiting for the engine
    status = open_offload(job, request, call, err);
    int64_t opened_ns = sl_now_ns();
    SL_THEN(status, sl_prefill_reuse(job, request, call, err));
    if (status == SL_OK && job->shipped_by_store) {
        job->started_ns = job->ended_ns = opened_ns;
        status = finish_offload(job, call, err);
        SL_THEN(status, send_done(call, job, sl_now_ns()));
    } else if (status == SL_OK) {
        status = read_and_ship(job, request, call, err);
    }
    status = sl_node_check_device(prefill->node, status, err);
    if (status == SL_ERR_PEER_LOST && request->n_stores > 0) {
        // A store was lost; PEER_LOST in our answer would mean that this worker is lost
        status = err->status = SL_ERR_PEER_STALE;
    }
    count_way(prefill, job, status);
    const char *not_cached = sl_not_cached_word(job->not_cached);
    sl_log_info("prefill", "job=%s status=%s tokens=%lld reused=%lld bytes=%zu%s%s", job->id, sl_status_text(status),
                (long long)job->plan.n_prompt, (long long)job->n_reused, atomic_load(&job->outbound.shipped_bytes),
                not_cached ? " not_cached=" : "", not_cached ? not_cached : "");
    if (job->offload) {
        log_offload(job);
    }
    sl_ledger_set_promise(prefill->node->ledger, &job->promised_bytes, 0); // of a session that was not handed over

    sl_rpc_call_on_cancel(call, NULL, NULL);
    sl_ship_close(&job->outbound.ship); // close it before the header and pages that it may still read are freed
    free(job->header);
    sl_offload_close(&job->offload);
    sl_archive_end_job(prefill->archive, job, status == SL_OK); // takes the session or its staged block
    sl_outbound_close(&job->outbound);
    sl_remote_kv_shares_free(&job->shares, job->n_shares);
    sl_session_destroy(&job->session);
    atomic_fetch_sub(&prefill->n_jobs, 1);
    sl_prefill_wake(prefill);
    sl_prefill_job_unref(job);
    return status;
}

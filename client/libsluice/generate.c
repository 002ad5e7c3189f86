// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: follows an answer from its request to its end, even if coordinators are lost meanwhile.
 *
 * Design: the client has the request, so it needs no coordinator to keep the job. It submits the request again to the
 *         leader, with the key of the first time, the recipe, seed and budget that it got then, and the tokens that
 *         have arrived. Tokens have an index: one that was delivered already is dropped, and must be the same.
 *
 *             submit -> follow -> Finished                                  done
 *                ^        |  connection lost, its coordinator still leads:  continue after the last event
 *                +--------+  another one leads, or it has lost the job,
 *                            or a part of it:                               submit with the received tokens
 *
 *         A crashed system may lose a part of a job (sluice-coordinator --state): events arrive again, with lower
 *         numbers than before. Then the client finds the job by its key and follows it from its beginning.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "client/libsluice/sluice_internal.h"
#include "proto/methods.h"

enum { CANCEL_DEADLINE_MS = 10000, LEAVE_MS = 250, MAX_GAPS = 3 };

struct generation {
    struct sl_client *client;
    const struct sl_watch *watch;
    Sluice__V1__GenerateRequest request; // the caller's request, with the fields for resuming
    char key[SL_KEY_BYTES];
    Sluice__V1__Resumption resumption;
    Sluice__V1__TokenIds delivered; // we own its ids
    size_t cap_ids;
    int64_t began_ns;
    struct sl_submitted job;
    int64_t told_before; // last sequence number of the previous jobs
    bool moved;          // the coordinator reports that the job continues elsewhere, or has lost a part of it
    int n_gaps;          // number of lost parts
};

static enum sl_status keep_id(struct generation *generation, int32_t id, struct sl_error *err) {
    Sluice__V1__TokenIds *ids = &generation->delivered;
    SL_FAIL_IF(!SL_GROW(ids->ids, ids->n_ids, generation->cap_ids), err, SL_ERR_EXHAUSTED, "client: out of memory");
    ids->ids[ids->n_ids++] = id;
    return SL_OK;
}

// Checks whether a token is new. Rejects a coordinator that leaves some out, or sends another token than before.
static enum sl_status check_token(struct generation *generation, const Sluice__V1__Token *token, bool *is_news_out,
                                  struct sl_error *err) {
    const Sluice__V1__TokenIds *ids = &generation->delivered;
    int64_t n = (int64_t)ids->n_ids;
    if (token->index > n && generation->n_gaps < MAX_GAPS) {
        generation->n_gaps++;
        generation->moved = true;
        return sl_fail(err, SL_ERR_PEER_LOST, "job %s goes on with token %" PRId64 ", and %zu have come",
                       generation->job.job_id, token->index, ids->n_ids);
    }
    SL_FAIL_IF(token->index < 0 || token->index > n || (token->index < n && token->id != ids->ids[token->index]), err,
               SL_ERR_PEER_CORRUPT,
               "job %s goes on with token %" PRId64 " being %d, which is not what came "
               "before",
               generation->job.job_id, token->index, token->id);
    *is_news_out = token->index == n;
    return *is_news_out ? keep_id(generation, token->id, err) : SL_OK;
}

static enum sl_status take(void *arg, const Sluice__V1__Event *event, struct sl_error *err) {
    struct generation *generation = arg;
    bool is_news = true;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED && event->finished->another_leads) {
        generation->moved = true;
        return sl_fail(err, SL_ERR_PEER_LOST, "%s", event->finished->status_text);
    }
    if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
        SL_TRY(check_token(generation, event->token, &is_news, err));
    }
    if (is_news) {
        Sluice__V1__Event told = *event;
        told.sequence += generation->told_before; // consecutive for the caller, over all its jobs
        generation->watch->on_event(generation->watch->arg, &told);
    }
    return SL_OK;
}

// Submits the answer as a new job to the leader: it continues after the received tokens.
static enum sl_status submit_again(struct generation *generation, struct sl_following *at, struct sl_error *err) {
    Sluice__V1__Resumption *resumption = &generation->resumption;
    generation->request.resumption = resumption;
    resumption->delivered = &generation->delivered;
    resumption->recipe = generation->job.recipe ? generation->job.recipe : (char *)"";
    resumption->seed_present_case = generation->job.has_seed ? SLUICE__V1__RESUMPTION__SEED_PRESENT_SEED : 0;
    resumption->seed = generation->job.seed;
    resumption->max_new_tokens = generation->job.max_new_tokens;
    resumption->elapsed_ms = (sl_now_ns() - generation->began_ns) / SL_NS_PER_MS;
    struct sl_submitted job;
    SL_TRY(sl_submit(generation->client, &generation->request, generation->watch->deadline_ns, &job, err));
    if (job.coordinator != generation->job.coordinator) { // best effort: saves the old coordinator the work
        struct sl_error why;
        sl_client_call_job(generation->client, &sl_method_inference_cancel, generation->job.job_id,
                           generation->job.coordinator, sl_deadline_in_ms(LEAVE_MS), NULL, &why);
    }
    sl_log_info("client", "job=%s goes on as %s at %s, behind %zu tokens", generation->job.job_id, job.job_id,
                generation->client->coordinators.text[job.coordinator], generation->delivered.n_ids);
    free(generation->job.recipe);
    generation->job = job;
    generation->told_before += at->last_sequence;
    generation->moved = false;
    at->coordinator = job.coordinator;
    at->last_sequence = 0;
    return SL_OK;
}

// Finds out where the job continues after a lost stream. If sl_connection_lost() is true for the failure, the caller
// may retry.
static enum sl_status go_on(struct generation *generation, struct sl_following *at, bool is_unknown,
                            struct sl_error *err) {
    int leader = 0;
    SL_TRY(sl_client_find_leader(generation->client, generation->watch->deadline_ns, &leader, err));
    return is_unknown || generation->moved || leader != at->coordinator ? submit_again(generation, at, err) : SL_OK;
}

static enum sl_status follow(struct generation *generation, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err) {
    struct sl_following at = {.client = generation->client,
                              .watch = generation->watch,
                              .job_id = job_id_out,
                              .coordinator = generation->job.coordinator,
                              .take = take,
                              .arg = generation};
    struct sl_retry_budget budget;
    sl_retry_budget_init(&budget, generation->watch);
    for (;;) {
        struct sl_error why = {0};
        enum sl_status status = sl_follow_once(&at, &why);
        if (status == SL_OK) {
            return SL_OK;
        }
        SL_FAIL_IF(status == SL_AGAIN, err, SL_ERR_CANCELLED, "stopped watching job %s", job_id_out);
        generation->moved |= at.ended;
        bool is_unknown = status == SL_ERR_NOT_FOUND;
        if (!is_unknown && !sl_connection_lost(status)) {
            return sl_fail_from(err, status, &why, "%s", why.text);
        }
        do {
            SL_TRY(sl_retry_budget_wait(&budget, &at, &why, err));
            at.heard = false;
            status = go_on(generation, &at, is_unknown, &why);
        } while (sl_connection_lost(status));
        if (status != SL_OK) {
            return sl_fail_from(err, status, &why, "%s", why.text);
        }
        strcpy(job_id_out, generation->job.job_id);
    }
}

// Cancels an abandoned answer, so that it costs the cluster nothing more.
static void cancel(struct generation *generation, enum sl_status status, struct sl_error *err) {
    char why[sizeof err->text];
    snprintf(why, sizeof why, "%s", err->text);
    struct sl_error cancel_err;
    if (sl_client_call_job(generation->client, &sl_method_inference_cancel, generation->job.job_id,
                           generation->job.coordinator, sl_deadline_in_ms(CANCEL_DEADLINE_MS), NULL,
                           &cancel_err) == SL_OK) {
        sl_fail_from(err, status, err, "%s; the job was cancelled", why);
    } else {
        sl_fail_from(err, status, err, "%s; the job could not be cancelled and runs until its deadline: %s", why,
                     cancel_err.text);
    }
}

enum sl_status sl_client_generate(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                  const struct sl_watch *watch, char job_id_out[SL_JOB_ID_BYTES],
                                  struct sl_error *err) {
    struct sl_error own_err;
    err = err ? err : &own_err;
    struct generation generation = {.client = client, .watch = watch, .request = *request, .began_ns = sl_now_ns()};
    sluice__v1__resumption__init(&generation.resumption);
    sluice__v1__token_ids__init(&generation.delivered);
    SL_TRY(sl_give_key(&generation.request, generation.key, err));
    SL_TRY(sl_submit(client, &generation.request, watch->deadline_ns, &generation.job, err));
    strcpy(job_id_out, generation.job.job_id);
    enum sl_status status = follow(&generation, job_id_out, err);
    if (status != SL_OK) {
        cancel(&generation, status, err);
    }
    free(generation.delivered.ids);
    free(generation.job.recipe);
    return status;
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: see turn.h.
#include "coordinator/run/turn.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/job/job_recipe.h"
#include "engine/kvcache/capsule.h"
#include "proto/methods.h"

#define CALL_MS       2000
#define GRACE_MS      1000 // that a client waits for a copy
#define MAX_KEPT_SIZE (INT64_C(1) << 46)

// ---- where it goes on -----------------------------------------------------------------------------------------------

// With the session of an earlier turn, behind which the tokens of all turns since are read.
static bool go_back(const struct sl_run_context *context, const struct sl_job *job, struct sl_job_turn *from) {
    const struct sl_session_copy copy = from->earlier;
    struct sl_kv_geometry geometry = sl_model_geometry(context->model);
    struct sl_recipe recipe;
    struct sl_error err = {0};
    if (copy.store[0] == '\0' || copy.n_tokens < 1 || copy.n_tokens >= job->spec.n_tokens) {
        return false;
    }
    struct sl_demand demand;
    enum sl_status status = sl_job_recipe(job->spec.recipe, context->model, &recipe, &err);
    if (status == SL_OK) {
        int64_t n_new = job->spec.n_tokens - copy.n_tokens + job->spec.max_new_tokens;
        status = sl_demand_make_turn(&recipe, &geometry, copy.bytes, n_new, &demand, &err);
    }
    if (status != SL_OK) {
        sl_log_warn("turn", "job=%s does not go back to an earlier turn: %s", job->id, err.text);
        return false;
    }
    from->n_kept = copy.n_tokens;
    from->kept_bytes = copy.bytes;
    from->history = copy.history;
    from->demand = demand;
    from->copy = copy;
    from->earlier = (struct sl_session_copy){0};
    return true;
}

enum sl_turn_way sl_turn_first_way(const struct sl_run_context *context, const struct sl_job *job,
                                   struct sl_job_turn *from) {
    return from->n_kept > 0 && from->lease_id[0] != '\0' ? SL_TURN_KEPT
                                                         : sl_turn_next_way(context, job, SL_TURN_KEPT, from);
}

// What its store has lost, that of an earlier turn has lost before.
enum sl_turn_way sl_turn_next_way(const struct sl_run_context *context, const struct sl_job *job, enum sl_turn_way way,
                                  struct sl_job_turn *from) {
    if (way != SL_TURN_KEPT) {
        return SL_TURN_WHOLE;
    }
    bool stored = from->n_kept > 0 && from->copy.store[0] != '\0';
    return stored || go_back(context, job, from) ? SL_TURN_STORED : SL_TURN_WHOLE;
}

// ---- the end of an answer -------------------------------------------------------------------------------------------

void sl_turn_hear_kept(const struct sl_job *job, const struct sl_worker *decode, const Sluice__V1__DecodeDone *done,
                       struct sl_job_turn *turn) {
    size_t n_id = strlen(done->kept);
    turn->lease_id[0] = turn->worker[0] = '\0';
    turn->n_kept = 0;
    if (n_id == 0) {
        return;
    }
    if (n_id >= sizeof turn->lease_id || done->kept_bytes < 1 || done->kept_bytes > MAX_KEPT_SIZE ||
        done->kept_tokens != job->spec.n_tokens + job->n_output - 1) {
        sl_log_warn("turn", "job=%s what %s says of the session that it keeps makes no sense", job->id,
                    sl_worker_name(decode));
        return;
    }
    strcpy(turn->lease_id, done->kept);
    snprintf(turn->worker, sizeof turn->worker, "%s", sl_worker_name(decode));
    turn->n_kept = done->kept_tokens;
    turn->kept_bytes = done->kept_bytes;
}

static bool is_wanted(void *job) {
    struct sl_error err;
    return sl_job_interrupted(job, &err) == SL_OK;
}

/*
 * Into the store that keeps what begins as this conversation does. Without it a lost worker costs the next turn the whole conversation, or
 * what was said since the last copy. A client that leaves, or has waited long enough, does not stop it.
 */
static enum sl_status copy_session(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *decode,
                                   int64_t term, struct sl_job_turn *turn, struct sl_copying *copying,
                                   struct sl_error *err) {
    enum sl_status status = sl_copying_begin(context, job, decode, turn, term, copying, err);
    if (status == SL_OK && sl_copying_is_under_way(copying)) {
        status = sl_copying_wait(copying, sl_deadline_in_ms(GRACE_MS), is_wanted, job, err);
        if (status == SL_OK) {
            turn->copy = copying->copy;
        }
    }
    if (status != SL_OK && status != SL_AGAIN && status != SL_ERR_PEER_LOST) {
        sl_log_warn("turn", "job=%s its session is in no store: %s", job->id, err->text);
    }
    if (status != SL_ERR_PEER_LOST) {
        *err = (struct sl_error){0};
    }
    return status == SL_ERR_PEER_LOST ? status : SL_OK;
}

enum sl_status sl_turn_end(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *decode,
                           const struct sl_hash128 *before, Sluice__V1__Finished__Reason reason, const char *answer,
                           int64_t term, struct sl_job_turn *turn, struct sl_sessions_left *left,
                           struct sl_copying *copying, struct sl_error *err) {
    const struct sl_job_spec *spec = &job->spec;
    // A session behind a stop string holds that, and the answer does not: the next turn goes on behind the turn before.
    if (reason == SLUICE__V1__FINISHED__REASON__STOP_STRING || turn->keep_ms == 0) {
        sl_sessions_left_add(left, turn);
        return SL_OK;
    }
    bool ended_by_token = reason == SLUICE__V1__FINISHED__REASON__STOP_TOKEN;
    int64_t n_output = job->n_output - (ended_by_token && job->n_output > 0), n_all = spec->n_tokens + job->n_output;
    int32_t *tokens = malloc(sizeof *tokens * (size_t)(n_all + 1));
    if (tokens == NULL) {
        sl_sessions_left_add(left, turn);
        return SL_OK; // the next turn reads everything
    }
    memcpy(tokens, spec->tokens, sizeof *tokens * (size_t)spec->n_tokens);
    memcpy(tokens + spec->n_tokens, job->output, sizeof *tokens * (size_t)job->n_output);
    enum sl_status status = SL_OK;
    turn->copy = (struct sl_session_copy){0};
    turn->history = (struct sl_hash128){{0}};
    if (turn->n_kept > 0) {
        // Its name is this conversation's alone, so that ending it takes no copy from another one that begins alike.
        struct sl_hash128 hash = sl_prefix_hash(&spec->salt, tokens, turn->n_kept),
                          begin = sl_salted_hash(&spec->salt, turn->id, strlen(turn->id));
        turn->history = sl_salted_hash(&hash, before != NULL ? before : &begin, sizeof begin);
        status = copy_session(context, job, decode, term, turn, copying, err);
    }
    if (status == SL_OK) {
        sl_conversations_end_turn(context->conversations, spec, turn, tokens, spec->n_tokens + n_output, answer, left);
    }
    free(tokens);
    return status;
}

void sl_turn_end_without(const struct sl_run_context *context, struct sl_job *job, Sluice__V1__Finished__Reason reason,
                         const char *answer, struct sl_job_turn *turn, struct sl_sessions_left *left) {
    struct sl_copying none = {0};
    struct sl_error err = {0};
    turn->n_kept = 0; // nothing is copied
    turn->lease_id[0] = turn->worker[0] = '\0';
    (void)sl_turn_end(context, job, NULL, NULL, reason, answer, 0, turn, left, &none, &err);
}

// ---- behind the end -------------------------------------------------------------------------------------------------

static bool is_running(void *context) {
    return !atomic_load(((const struct sl_run_context *)context)->stopping);
}

void sl_turn_await_copy(const struct sl_run_context *context, const struct sl_job *job, struct sl_copying *copying) {
    if (!sl_copying_is_under_way(copying)) {
        return;
    }
    struct sl_error err = {0};
    enum sl_status status = sl_copying_wait(copying, SL_NO_DEADLINE, is_running, (void *)context, &err);
    sl_copying_end(copying);
    if (status != SL_OK) {
        sl_log_warn("turn", "job=%s its session is in no store: %s", job->id,
                    status == SL_AGAIN ? "the coordinator ends" : err.text);
    } else if (!sl_conversations_copied(context->conversations, job->spec.tenant, job->spec.turn.id, &copying->copy)) {
        (void)sl_copy_forget(context->registry, &copying->copy, copying->term);
    }
}

static void release_session(struct sl_registry *registry, const struct sl_left *left, int64_t term) {
    struct sl_worker *worker = sl_copy_find_worker(registry, SLUICE__V1__WORKER_ROLE__DECODE, left->worker, NULL);
    if (worker == NULL) {
        return;
    }
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)left->lease_id;
    request.term = term;
    struct sl_error err = {0};
    if (sl_rpc_unary(sl_worker_channel(worker), &sl_method_decode_release, &request.base, sl_deadline_in_ms(CALL_MS),
                     NULL, NULL, &err) != SL_OK) {
        sl_log_info("turn", "the session at %s ends by itself: %s", left->worker, err.text);
    }
    sl_worker_unref(&worker);
}

void sl_turn_release_left(struct sl_registry *registry, const struct sl_job_turn *spent, struct sl_sessions_left *left,
                          int64_t term) {
    const char *silent = ""; // a store
    for (int i = 0; i < left->n; i++) {
        const struct sl_left *one = &left->of[i];
        if (one->lease_id[0] != '\0' && (spent == NULL || strcmp(one->lease_id, spent->lease_id) != 0)) {
            release_session(registry, one, term);
        }
        if (one->copy.store[0] != '\0' && strcmp(one->copy.store, silent) != 0 &&
            !sl_copy_forget(registry, &one->copy, term)) {
            silent = one->copy.store;
        }
    }
    left->n = 0;
}

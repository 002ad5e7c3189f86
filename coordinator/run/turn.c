// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/turn.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "coordinator/run/attempt.h"
#include "coordinator/workers/stores.h"
#include "engine/job/job_request.h"
#include "engine/kvcache/capsule.h"
#include "proto/methods.h"

#define GRACE_MS      1000 // how long a client waits for a copy
#define MAX_KEPT_SIZE (INT64_C(1) << 46)
#define HELD          UINT64_C(0x68656c64) // keys of capsules in decode workers differ from those of prompts in prefill workers

// ---- where it continues ---------------------------------------------------------------------------------------------

// Continues from a stored session of an earlier turn. What follows is read.
static bool go_on_from(struct sl_run *run, const struct sl_session_copy copy) {
    const struct sl_job *job = run->job;
    struct sl_job_turn *from = &run->from;
    if (copy.store[0] == '\0' || copy.n_tokens < 1 || copy.n_tokens >= job->spec.n_tokens) {
        return false;
    }
    struct sl_kv_geometry geometry = sl_model_geometry(run->context->model);
    int64_t n_new = job->spec.n_tokens - copy.n_tokens + job->spec.max_new_tokens;
    struct sl_demand demand;
    struct sl_error err = {0};
    if (sl_demand_make_turn(&job->spec.parsed_recipe, &geometry, copy.bytes, n_new, &demand, &err) != SL_OK) {
        sl_log_warn("turn", "job=%s does not go on from a stored session: %s", job->id, err.text);
        return false;
    }
    from->n_kept = copy.n_tokens;
    from->kept_bytes = copy.bytes;
    from->history = copy.history;
    from->demand = demand;
    from->copy = copy;
    return true;
}

static bool go_back(struct sl_run *run) {
    const struct sl_session_copy earlier = run->from.earlier;
    run->from.earlier = (struct sl_session_copy){0};
    return go_on_from(run, earlier);
}

int64_t sl_turn_choose_store(const struct sl_run *run, char store_out[SL_ADDRESS_BYTES]) {
    const struct sl_job_spec *spec = &run->job->spec;
    return sl_stores_choose(run->context->registry, spec->n_keys > 0 ? spec->keys[0] : 0,
                            (const char(*)[64])spec->stores, spec->n_stores, store_out);
}

/*
 * Returns how many tokens of the prompt's beginning a store probably has. If the text after a document changes how its last tokens are
 * encoded, the last block is left out. A prompt without a document goes to a prefill worker if there is one: reading there delays no
 * answer that is being written.
 */
static int64_t count_stored(const struct sl_run *run) {
    const struct sl_job_spec *spec = &run->job->spec;
    const struct sl_run_context *context = run->context;
    uint64_t reader;
    if (spec->whole.n_tokens > 0 && !spec->estimate_errors) {
        return spec->whole.n_tokens;
    }
    if (spec->no_reuse || spec->estimate_errors || sl_recipe_evicts(&spec->parsed_recipe) ||
        sl_recipe_offloads(&spec->parsed_recipe)) {
        return 0;
    }
    if (spec->stored_tokens > 0) {
        return spec->stored_tokens / SL_PREFIX_BLOCK * SL_PREFIX_BLOCK - SL_PREFIX_BLOCK;
    }
    return sl_registry_is_served(context->registry, SLUICE__V1__WORKER_ROLE__PREFILL)
               ? 0
               : sl_affinity_match(context->affinity, spec->keys, spec->n_keys, &reader) * SL_PREFIX_BLOCK;
}

// Returns the mode of an attempt that continues no session.
static enum sl_turn_mode without_session(struct sl_run *run) {
    const struct sl_job_spec *spec = &run->job->spec;
    const struct sl_run_context *context = run->context;
    int64_t n_stored = count_stored(run), n_rest = spec->demand.n_prefill_tokens - n_stored;
    int64_t n_read = n_rest - spec->joined_tokens;
    char store[SL_ADDRESS_BYTES];
    bool whole = n_stored > 0 && n_stored == spec->whole.n_tokens;
    if (n_stored <= 0) {
        return SL_TURN_WHOLE;
    }
    n_rest = n_rest > 0 ? n_rest : 0; // the question may shorten the encoding of the text before it
    if (n_read > SL_JOB_SHORT_REST && !sl_recipe_evicts(&spec->parsed_recipe)) { // prefill would evict again
        sl_log_info("job", "job=%s has %lld tokens after what is stored: prefill reads them", run->job->id,
                    (long long)n_read);
        return SL_TURN_WHOLE;
    }
    (void)sl_turn_choose_store(run, store);
    struct sl_kv_geometry geometry = sl_model_geometry(context->model);
    struct sl_error err = {0};
    // Joined: the capsules of all documents, which together take about as much as one of the whole prompt.
    run->held_bytes = whole && spec->n_joins == 0 ? spec->whole.bytes : spec->demand.capsule_bytes;
    if (store[0] == '\0' || sl_demand_make_turn(&spec->parsed_recipe, &geometry, run->held_bytes,
                                                n_rest + spec->max_new_tokens, &run->prefix_demand, &err) != SL_OK) {
        sl_log_info("job", "job=%s takes nothing from a store: %s", run->job->id,
                    store[0] == '\0' ? "none is ready" : err.text);
        return SL_TURN_WHOLE;
    }
    if (spec->n_joins > 0 && run->prefix_demand.decode_bytes > sl_admission_largest_decode(context->admission)) {
        sl_log_info("job", "job=%s joins no documents: no decode worker has room for them twice", run->job->id);
        return SL_TURN_WHOLE;
    }
    int64_t n_blocks = n_stored / SL_PREFIX_BLOCK;
    run->held_key = whole                      ? sl_hash(&spec->whole.history, sizeof spec->whole.history, HELD)
                    : n_blocks <= spec->n_keys ? spec->keys[n_blocks - 1] ^ HELD
                                               : 0;
    for (int i = 0; i < spec->n_joins && run->held_key != 0; i++) { // jobs on the same documents get the same key
        run->held_key = sl_hash(&spec->joins[i].first_key, sizeof spec->joins[i].first_key, run->held_key);
    }
    return SL_TURN_PREFIX;
}

static enum sl_turn_mode without_worker(struct sl_run *run) {
    bool stored = run->from.n_kept > 0 && run->from.copy.store[0] != '\0';
    return stored || go_back(run) ? SL_TURN_STORED : without_session(run);
}

enum sl_turn_mode sl_turn_first_mode(struct sl_run *run) {
    if (run->job->spec.no_reuse) {
        return SL_TURN_WHOLE;
    }
    return run->from.n_kept > 0 && run->from.lease_id[0] != '\0' ? SL_TURN_KEPT : without_worker(run);
}

// Does not try sessions of earlier turns: a store that has lost a session lost those before it.
enum sl_turn_mode sl_turn_next_mode(struct sl_run *run) {
    return run->mode == SL_TURN_KEPT     ? without_worker(run)
           : run->mode == SL_TURN_STORED ? without_session(run)
                                         : SL_TURN_WHOLE;
}

void sl_turn_announce(struct sl_run *run) {
    const char *prefill_name = run->claim.prefill != NULL ? sl_worker_name(run->claim.prefill) : NULL;
    const char *decode_name = sl_worker_name(run->claim.decode);
    const char *colon = run->claim.why[0] != '\0' ? ": " : "";
    char detail[160 + SL_PLACE_WHY_BYTES];
    if (run->claim.is_here) {
        snprintf(detail, sizeof(detail), "%s reads and writes%s%s", decode_name, colon, run->claim.why);
    } else if (prefill_name != NULL) {
        snprintf(detail, sizeof(detail), "%s -> %s%s%s", prefill_name, decode_name, colon, run->claim.why);
    } else {
        static const char *const whys[] = {[SL_TURN_WHOLE] = "nothing to prefill",
                                           [SL_TURN_PREFIX] = "with the stored beginning of its prompt",
                                           [SL_TURN_STORED] = "with a session from its store",
                                           [SL_TURN_KEPT] = "where the session of the turn before is"};
        snprintf(detail, sizeof(detail), "%s, %s", decode_name, whys[run->mode]);
    }
    sl_job_set_workers(run->job, prefill_name, decode_name);
    sl_run_report_admitted(&run->report, run->job);
    sl_job_move(run->job, SLUICE__V1__JOB_STATE__PREFILLING, detail);
}

// ---- the end of an answer -------------------------------------------------------------------------------------------

void sl_turn_hear_kept(struct sl_run *run, const Sluice__V1__DecodeDone *done) {
    const struct sl_job *job = run->job;
    struct sl_job_turn *turn = &run->turn;
    size_t n_id = strlen(done->kept);
    turn->lease_id[0] = turn->worker[0] = '\0';
    turn->n_kept = 0;
    if (n_id == 0) {
        return;
    }
    const char *decode = sl_worker_name(run->claim.decode);
    if (n_id >= sizeof turn->lease_id || done->kept_bytes < 1 || done->kept_bytes > MAX_KEPT_SIZE ||
        done->kept_tokens != job->spec.n_tokens + job->n_output - 1) {
        sl_log_warn("turn", "job=%s: %s reports an impossible retained session", job->id, decode);
        return;
    }
    strcpy(turn->lease_id, done->kept);
    snprintf(turn->worker, sizeof turn->worker, "%s", decode);
    turn->n_kept = done->kept_tokens;
    turn->kept_bytes = done->kept_bytes;
}

static bool is_wanted(void *job) {
    struct sl_error err;
    return sl_job_interrupted(job, &err) == SL_OK;
}

/*
 * Copies the session into the conversation's store. Without the copy, a lost worker costs the next turn the whole conversation, or
 * what was said since the last copy. The copy continues if the client leaves, or has waited long enough.
 */
static enum sl_status copy_session(struct sl_run *run, struct sl_error *err) {
    struct sl_copying *copying = &run->copying;
    enum sl_status status = sl_copying_begin(run, err);
    if (status == SL_OK && sl_copying_is_under_way(copying)) {
        status = sl_copying_wait(copying, sl_deadline_in_ms(GRACE_MS), is_wanted, run->job, err);
        if (status == SL_OK) {
            run->turn.copy = copying->copy;
        }
    }
    if (status != SL_OK && status != SL_AGAIN && status != SL_ERR_PEER_LOST) {
        sl_log_warn("turn", "job=%s its session is in no store: %s", run->job->id, err->text);
    }
    if (status != SL_ERR_PEER_LOST) {
        *err = (struct sl_error){0};
    }
    return status == SL_ERR_PEER_LOST ? status : SL_OK;
}

// Sets the name under which stores keep the session. It belongs to this conversation alone, so that ending the conversation removes no copy of
// another one with the same beginning.
static void name_history(struct sl_run *run, const int32_t *tokens) {
    const struct sl_hash128 *salt = &run->job->spec.salt;
    struct sl_job_turn *turn = &run->turn;
    struct sl_hash128 hash = sl_prefix_hash(salt, tokens, turn->n_kept),
                      begin = sl_salted_hash(salt, turn->id, strlen(turn->id));
    turn->history =
        sl_salted_hash(&hash, sl_turn_continues(run->mode) ? &run->from.history : &begin, sizeof(struct sl_hash128));
}

enum sl_status sl_turn_end(struct sl_run *run, struct sl_error *err) {
    const struct sl_job *job = run->job;
    const struct sl_job_spec *spec = &job->spec;
    struct sl_job_turn *turn = &run->turn;
    // A session after a stop string contains that string, and the answer does not: the next turn continues from the previous one.
    if (run->report.reason == SLUICE__V1__FINISHED__REASON__STOP_STRING || turn->keep_ms == 0) {
        sl_sessions_left_add(run->left, turn);
        return SL_OK;
    }
    bool ended_by_token = run->report.reason == SLUICE__V1__FINISHED__REASON__STOP_TOKEN;
    int64_t n_output = job->n_output - (ended_by_token && job->n_output > 0), n_all = spec->n_tokens + job->n_output;
    int32_t *tokens = malloc(sizeof *tokens * (size_t)(n_all + 1));
    if (tokens == NULL) {
        sl_sessions_left_add(run->left, turn);
        return SL_OK; // the next turn reads everything
    }
    memcpy(tokens, spec->tokens, sizeof *tokens * (size_t)spec->n_tokens);
    memcpy(tokens + spec->n_tokens, job->output, sizeof *tokens * (size_t)job->n_output);
    enum sl_status status = SL_OK;
    turn->copy = (struct sl_session_copy){0};
    turn->history = (struct sl_hash128){{0}};
    if (turn->n_kept > 0) {
        name_history(run, tokens);
        status = copy_session(run, err);
    }
    if (status == SL_OK) {
        sl_conversations_end_turn(run->context->conversations, spec, turn, tokens, spec->n_tokens + n_output,
                                  run->report.text, run->left);
    }
    free(tokens);
    return status;
}

void sl_turn_end_without(struct sl_run *run) {
    struct sl_error err = {0};
    run->turn.n_kept = 0; // nothing is copied
    run->turn.lease_id[0] = run->turn.worker[0] = '\0';
    (void)sl_turn_end(run, &err);
}

// ---- after the end --------------------------------------------------------------------------------------------------

static bool is_running(void *context) {
    return !atomic_load(((const struct sl_run_context *)context)->stopping);
}

void sl_turn_await_copy(struct sl_run *run) {
    const struct sl_run_context *context = run->context;
    const struct sl_job *job = run->job;
    struct sl_copying *copying = &run->copying;
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
    struct sl_worker *worker = sl_registry_find(registry, SLUICE__V1__WORKER_ROLE__DECODE, left->worker, NULL);
    if (worker == NULL) {
        return;
    }
    sl_copy_release_lease(worker, &sl_method_decode_release, left->lease_id, term);
    sl_worker_unref(&worker);
}

void sl_turn_release_left(struct sl_registry *registry, const struct sl_job_turn *spent,
                          const struct sl_sessions_left *left, int64_t term) {
    const char *silent = ""; // a store that did not answer
    for (int i = 0; left != NULL && i < left->n; i++) {
        const struct sl_left *one = &left->of[i];
        if (one->lease_id[0] != '\0' && (spent == NULL || strcmp(one->lease_id, spent->lease_id) != 0)) {
            release_session(registry, one, term);
        }
        if (one->copy.store[0] != '\0' && strcmp(one->copy.store, silent) != 0 &&
            !sl_copy_forget(registry, &one->copy, term)) {
            silent = one->copy.store;
        }
    }
}

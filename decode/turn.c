// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads a further turn of a conversation on the session of the previous turns: where the session comes from,
 *          how the turn is read, and how the session is retained for the next turn. docs/CHAT.md describes the feature.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "decode/internal.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "engine/runner/turn.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define KEEP_MS 3600000 // the longest time that a session is retained between two turns
#define LENT_MS 2000    // how long a turn waits for its session while that is being copied

// Returns the set of frequencies by all tokens that the job may reach, as for prefill.
int sl_decode_rope_set(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request) {
    return sl_model_rope_set(decode->node.runtime.config, (int64_t)request->prompt->n_ids + request->max_new_tokens);
}

// Returns the most slots that the session may ever hold; a retained session may also grow in later turns.
int64_t sl_decode_most_slots(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request) {
    return request->keep_ms > 0 ? decode->node.runtime.config->max_positions
                                : (int64_t)request->prompt->n_ids + request->max_new_tokens;
}

// Writes the id that identifies a session of the prompt's first tokens.
enum sl_status sl_decode_make_id(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                 const struct sl_recipe *recipe, int64_t n_tokens, struct sl_capsule_id *id_out,
                                 struct sl_error *err) {
    struct sl_hash128 salt;
    SL_TRY(sl_job_read_salt(&request->salt, &salt, err));
    *id_out = (struct sl_capsule_id){.model_fingerprint = sl_model_set_fingerprint(decode->node.model_fingerprint,
                                                                                   sl_decode_rope_set(decode, request)),
                                     .recipe_fingerprint = sl_recipe_fingerprint(recipe),
                                     .prefix_hash = sl_prefix_hash(&salt, request->prompt->ids, n_tokens)};
    return SL_OK;
}

enum sl_status sl_decode_promise(struct sl_decode *decode, struct sl_answer *answer, size_t bytes,
                                 struct sl_error *err) {
    enum sl_status status;
    do {
        status = sl_ledger_try_promise(decode->node.ledger, bytes);
    } while (status == SL_AGAIN && sl_decode_make_room(decode, bytes));
    if (status == SL_OK) {
        answer->promised_bytes = bytes;
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_EXHAUSTED, "the turn's %zu bytes do not fit beside what is promised; retry in 500 ms",
                   bytes);
}

// Takes the session of the previous turn, or the one that was read for this job, if it is still here and holds the beginning of this prompt, under this
// tenant's salt.
enum sl_status sl_decode_take_kept(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   const struct sl_recipe *recipe, struct sl_answer *answer, struct sl_error *err) {
    struct sl_kept_session *one = sl_kept_take(&decode->kept, request->kept, sl_deadline_in_ms(LENT_MS));
    SL_FAIL_IF(!one, err, SL_ERR_PEER_STALE, "the session of the turn before is not kept any more");
    struct sl_capsule_id id;
    int64_t n_tokens = one->session->n_tokens;
    enum sl_status status = n_tokens < (int64_t)request->prompt->n_ids
                                ? sl_decode_make_id(decode, request, recipe, n_tokens, &id, err)
                                : SL_ERR_PEER_STALE;
    if (status == SL_ERR_PEER_STALE || (status == SL_OK && memcmp(&id, &one->id, sizeof id) != 0)) {
        status = sl_fail(err, SL_ERR_PEER_STALE, "the session that is kept is not of this conversation");
    }
    if (status == SL_OK && one->ledger) { // read here for this job
        answer->promised_bytes = one->promised_bytes;
        one->ledger = NULL;
    } else if (status == SL_OK) {
        status = sl_decode_promise(decode, answer, (size_t)request->session_bytes, err);
    }
    SL_TRY_OR(status, sl_kept_put_back(&decode->kept, one));
    answer->writer.session = one->session;
    answer->session_bytes = one->session->taken_bytes + answer->promised_bytes;
    one->session = NULL;
    sl_kept_free(one);
    return SL_OK;
}

/*
 * Prepares the reading of the rest of the prompt after the session: through steps if the recipe steps, else by a reader
 * that the engine's thread drives. *plan is memory for the plan, which both copy. Any state that a step keeps is rebuilt from the pages, so that a retained session
 * and one from a store behave the same.
 */
enum sl_status sl_decode_open_turn(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                   struct sl_answer *answer, struct sl_plan *plan, struct sl_error *err) {
    const struct sl_recipe *recipe = &answer->recipe;
    struct sl_session *session = answer->writer.session;
    const struct sl_model_config *model = decode->node.runtime.config;
    bool steps = sl_recipe_evicts(recipe) && (recipe->when & SL_WHEN_STEP);
    int64_t n_tokens = session->n_tokens, end = (int64_t)request->prompt->n_ids - 1;
    SL_FAIL_IF(sl_recipe_offloads(recipe), err, SL_ERR_INVALID,
               "recipe: place=offload: its sessions are not kept between turns");
    enum sl_status status = sl_turn_plan(recipe, model, steps ? n_tokens : end, sl_decode_rope_set(decode, request),
                                         steps ? NULL : session, plan, err);
    if (status == SL_OK) {
        if (plan->recipe.chunk_tokens > SL_DECODE_MAX_ROWS) {
            plan->recipe.chunk_tokens = SL_DECODE_MAX_ROWS;
        }
        status = sl_job_check_session(plan, session, err);
    }
    struct sl_writer_config writing = {.plan = plan, .n_read = n_tokens, .estimate_errors = request->estimate_errors};
    SL_THEN(status, sl_writer_open(&answer->writer, &decode->node.runtime, &writing, err));
    if (status != SL_OK || steps || n_tokens >= end) {
        return status;
    }
    struct sl_reader_config config = {.plan = plan,
                                      .runtime = &decode->node.runtime,
                                      .arena = decode->node.arena,
                                      .estimate_errors = request->estimate_errors,
                                      .resumed = session,
                                      .tokens = request->prompt->ids};
    SL_TRY(sl_reader_create(&config, &answer->reader, err));
    answer->writer.session = NULL; // owned by the reader until all has been read
    return SL_OK;
}

/*
 * Retains the session for the next turn, under a lease. Afterwards the caller returns the other memory that was
 * promised to the answer. Frees a session that cannot be retained, which makes the next turn slower.
 */
void sl_decode_keep_session(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                            struct sl_answer *answer, Sluice__V1__DecodeDone *done,
                            char lease_id_out[SL_LEASE_ID_BYTES]) {
    struct sl_session *session = sl_writer_take_session(&answer->writer);
    int64_t n_prompt = (int64_t)request->prompt->n_ids, n_tokens = session->n_tokens, n_more = n_tokens - n_prompt;
    int32_t *tokens = n_more >= 0 && n_more <= answer->n_written ? malloc(sizeof *tokens * (size_t)n_tokens) : NULL;
    struct sl_capsule_id id;
    struct sl_error err = {0};
    enum sl_status status = tokens ? SL_OK : sl_fail(&err, SL_ERR_EXHAUSTED, "decode: out of memory");
    if (status == SL_OK) {
        memcpy(tokens, request->prompt->ids, sizeof *tokens * (size_t)n_prompt);
        memcpy(tokens + n_prompt, answer->written, sizeof *tokens * (size_t)n_more);
        Sluice__V1__TokenIds all = SLUICE__V1__TOKEN_IDS__INIT;
        Sluice__V1__DecodeRequest whole = *request; // for the id only; the set of frequencies is that of this turn
        all.ids = tokens;
        all.n_ids = (size_t)n_tokens;
        whole.prompt = &all;
        whole.max_new_tokens = (int32_t)(n_prompt + request->max_new_tokens - n_tokens);
        status = sl_decode_make_id(decode, &whole, &answer->recipe, n_tokens, &id, &err);
    }
    done->kept_tokens = n_tokens;
    done->kept_bytes = (int64_t)sl_capsule_body_bytes(session);
    if (status == SL_OK) {
        int64_t keep_ms = request->keep_ms < KEEP_MS ? request->keep_ms : KEEP_MS;
        status = sl_kept_put(&decode->kept, &id, &session, keep_ms, lease_id_out, &err);
    }
    if (status == SL_OK) {
        done->kept = lease_id_out;
    } else {
        sl_log_warn("decode", "job=%s its session is not kept: %s", request->job_id, err.text);
    }
    free(tokens);
    sl_session_destroy(&session);
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: turns over one compressed session, in one process. See local.h.
 *
 * Design: the first turn is a job: reader, then output, as in a prefill and a decode worker. A later turn reads
 *         through the same reader with a plan made for all tokens so far; if the recipe steps, it reads by decode
 *         steps.
 * Invariants: between turns the session holds everything except the last token of tokens[]. If a turn has touched the
 *             session and then failed, nothing more is written from it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/job/job_budget.h"
#include "engine/job/job_recipe.h"
#include "engine/kvcache/capsule.h"
#include "engine/runner/local_internal.h"
#include "engine/runner/reading.h"
#include "engine/runner/turn.h"
#include "engine/runner/writing.h"
#include "engine/runtime/transfer.h"

struct sl_conversation {
    struct sl_local *local;
    struct sl_recipe recipe;
    int64_t max_tokens, reach; // reach: max_tokens as requested, 0 if it was not
    int rope_set;              // chosen by the most tokens that may come: reach, or those of the first turn
    int32_t *tokens;           // prompts and answers so far, [n_tokens] of cap_tokens
    int64_t n_tokens, cap_tokens;
    struct sl_writer writer;           // writing; zeros before the first turn
    struct sl_plan plan;               // of the turn that is being read; too large for a stack
    struct sl_error_statistics errors; // of the steps of a turn; too large for a stack
    struct sl_capsule_bytes document;  // of a text that every turn asks about; zeros: turns follow each other
    bool broken;
};

enum sl_status sl_conversation_open(struct sl_local *local, const char *recipe, int64_t max_tokens,
                                    struct sl_conversation **conversation_out, struct sl_error *err) {
    const struct sl_model_config *model = sl_local_model(local);
    SL_NEW_OR_FAIL(struct sl_conversation, c, err, "conversation: out of memory");
    c->local = local;
    c->reach = max_tokens;
    c->max_tokens = max_tokens > 0 && max_tokens < model->max_positions ? max_tokens : model->max_positions;
    enum sl_status status = sl_job_recipe(recipe, model, &c->recipe, err);
    if (status == SL_OK && c->recipe.chunk_tokens > local->max_chunk_tokens) {
        status = sl_fail(err, SL_ERR_INVALID, "recipe: chunk=%d is more than %d", c->recipe.chunk_tokens,
                         local->max_chunk_tokens);
    }
    SL_TRY_OR(status, sl_conversation_close(&c));
    *conversation_out = c;
    return SL_OK;
}

void sl_conversation_close(struct sl_conversation **conversation) {
    struct sl_conversation *c = *conversation;
    if (!c) {
        return;
    }
    sl_writer_close(&c->writer);
    free(c->document.body);
    free(c->document.header);
    free(c->tokens);
    free(c);
    *conversation = NULL;
}

const struct sl_session *sl_conversation_session(const struct sl_conversation *conversation) {
    return conversation->writer.session;
}

// ---- what is new ---------------------------------------------------------------------------------------------------

static int64_t replaced(const struct sl_conversation *c, const struct sl_local_request *request) {
    return request->replaces_last && c->n_tokens > 0;
}

static enum sl_status check(const struct sl_conversation *c, const struct sl_local_request *request,
                            struct sl_error *err) {
    SL_FAIL_IF(c->broken, err, SL_ERR_PRECONDITION, "this conversation has ended with a failure; begin a new one");
    SL_FAIL_IF(request->n_prompt < 1, err, SL_ERR_INVALID, "prompt: empty");
    int64_t end = c->n_tokens - replaced(c, request) + request->n_prompt + request->max_new_tokens;
    SL_FAIL_IF(c->writer.session && sl_model_rope_set(sl_local_model(c->local), end) > c->rope_set, err, SL_ERR_INVALID,
               "%lld tokens with this turn: in a context of this length, the model rotates keys differently from those "
               "of this conversation; begin a new one with all of the text",
               (long long)end);
    if (end > c->max_tokens) {
        char behind[64] = "";
        if (c->n_tokens > 0) {
            snprintf(behind, sizeof behind, " behind %lld tokens of earlier turns", (long long)c->n_tokens);
        }
        return sl_fail(err, SL_ERR_INVALID,
                       "prompt of %lld tokens and max_new_tokens %lld%s exceed the %s %lld positions",
                       (long long)request->n_prompt, (long long)request->max_new_tokens, behind,
                       c->max_tokens < sl_local_model(c->local)->max_positions ? "conversation's" : "model's",
                       (long long)c->max_tokens);
    }
    return SL_OK;
}

// Replaces an omitted budget by what fits: one answer is written at a time, so it may take the whole arena.
static enum sl_status choose_budget(const struct sl_conversation *c, struct sl_local_request *request,
                                    struct sl_error *err) {
    if (request->max_new_tokens != 0 || request->n_prompt < 1) {
        return SL_OK;
    }
    struct sl_arena_stats arena;
    sl_arena_get_stats(c->local->runtime.arena, &arena);
    const struct sl_job_budget asked = {.model = sl_local_model(c->local),
                                        .recipe = &c->recipe,
                                        .n_tokens = c->n_tokens - replaced(c, request) + request->n_prompt,
                                        .rope_set = c->writer.session ? &c->rope_set : NULL,
                                        .is_chat = request->is_chat,
                                        .in_one_process = true,
                                        .arena_bytes = (int64_t)arena.capacity_bytes,
                                        .share = 1};
    int64_t n = 0;
    enum sl_status status = sl_job_budget(&asked, &n, err);
    int64_t left = c->max_tokens - asked.n_tokens;
    request->max_new_tokens = left > 0 && left < n ? left : n;
    return status;
}

// Makes room for the turn's prompt and answer after the existing tokens, and copies the prompt there.
static enum sl_status add_prompt(struct sl_conversation *c, const struct sl_local_request *request,
                                 struct sl_error *err) {
    int64_t needed = c->n_tokens + request->n_prompt + request->max_new_tokens;
    if (needed > c->cap_tokens) {
        int32_t *tokens = realloc(c->tokens, sizeof *tokens * (size_t)needed);
        SL_FAIL_IF(!tokens, err, SL_ERR_EXHAUSTED, "conversation: out of memory");
        c->tokens = tokens;
        c->cap_tokens = needed;
    }
    c->n_tokens -= replaced(c, request); // the session does not hold it yet
    memcpy(c->tokens + c->n_tokens, request->prompt, sizeof *c->tokens * (size_t)request->n_prompt);
    c->n_tokens += request->n_prompt;
    return SL_OK;
}

// ---- steps ---------------------------------------------------------------------------------------------------------

// Runs a decode step over the next n tokens. choice: chooses the token after them, or NULL.
static enum sl_status step(struct sl_conversation *c, const int32_t *tokens, int n, struct sl_choice *choice,
                           struct sl_error *err) {
    sl_writer_feed(&c->writer, tokens, n, choice);
    return sl_writing_step(&c->local->runtime, &c->writer, err);
}

static enum sl_status tell_progress(const struct sl_local_request *request, int64_t done, int64_t end) {
    return request->progress_fn ? request->progress_fn(request->arg, done, end) : SL_OK;
}

// Reads a later turn's tokens up to `end` by decode steps. Retrieval handles one query at a time.
static enum sl_status read_by_steps(struct sl_conversation *c, const struct sl_local_request *request, int64_t end,
                                    struct sl_error *err) {
    int64_t most = c->writer.retrieval.retriever ? 1 : c->recipe.chunk_tokens;
    enum sl_status status = SL_OK;
    while (status == SL_OK && c->writer.session->n_tokens < end) {
        int64_t n = end - c->writer.session->n_tokens;
        status = step(c, c->tokens + c->writer.session->n_tokens, (int)(n < most ? n : most), NULL, err);
        SL_THEN(status, tell_progress(request, c->writer.session->n_tokens, end));
    }
    return status;
}

// ---- chunks --------------------------------------------------------------------------------------------------------

// Starts from the shared prefix that another recipe has read of the same prompt, if there is one. Error estimates
// cover only tokens that are read.
static enum sl_status begin_at_shared_prefix(struct sl_conversation *c, const struct sl_local_request *request,
                                             int64_t end, const struct sl_plan *plan, struct sl_error *err) {
    const struct sl_local *local = c->local;
    return local->shared_prefixes && !c->writer.session && !request->estimate_errors && !request->no_reuse
               ? sl_shared_prefixes_resume(local->shared_prefixes, plan, c->tokens, c->max_tokens - end,
                                           local->runtime.arena, &c->writer.session, err)
               : SL_OK;
}

// Runs before a step: keeps the tokens read so far as a shared prefix when the step goes beyond what recipes share.
static void keep_shared_prefix(const struct sl_conversation *c, const struct sl_plan *plan,
                               const struct sl_reader *reader) {
    int64_t done = c->writer.session->n_tokens, shared = sl_reader_shared_tokens(plan);
    if (c->local->shared_prefixes && sl_plan_reads_whole(plan) && done % plan->recipe.chunk_tokens == 0 &&
        done <= shared && done + sl_reader_next_tokens(reader) > shared) {
        sl_shared_prefixes_keep(c->local->shared_prefixes, plan, c->tokens, c->writer.session);
    }
}

static enum sl_status read_by_chunks(struct sl_conversation *c, const struct sl_local_request *request, int64_t end,
                                     const struct sl_plan *plan, struct sl_local_result *result, struct sl_error *err) {
    struct sl_reader *reader;
    struct sl_reader_config config = {.plan = plan,
                                      .runtime = &c->local->runtime,
                                      .arena = c->local->runtime.arena,
                                      .extra_slots = c->max_tokens - end,
                                      .estimate_errors = request->estimate_errors,
                                      .resumed = c->writer.session,
                                      .tokens = c->tokens};
    enum sl_status status = sl_reader_create(&config, &reader, err);
    SL_TRY(status);
    c->writer.session = sl_reader_session(reader);
    for (bool done = false; status == SL_OK && !done;) {
        keep_shared_prefix(c, plan, reader);
        status = sl_reading_step(reader, &done, err);
        if (status == SL_OK) {
            struct sl_reader_progress progress = sl_reader_get_progress(reader);
            status = tell_progress(request, progress.done, progress.total);
        }
    }
    struct sl_compress_stats stats;
    sl_reader_get_stats(reader, &stats);
    result->slots_evicted += stats.slots_evicted;
    result->slots_merged += stats.slots_merged;
    if (request->estimate_errors) {
        sl_reader_get_errors(reader, &result->errors);
    }
    c->writer.session = sl_reader_take_session(reader); // also after a failure: this code must destroy it
    sl_reader_destroy(&reader);
    return status;
}

// ---- a turn --------------------------------------------------------------------------------------------------------

// Passes the session, in memory that the host can read, to the caller's prefilled_fn.
static enum sl_status show_session(const struct sl_conversation *c, const struct sl_local_request *request,
                                   struct sl_error *err) {
    struct sl_mirror mirror;
    SL_TRY(sl_mirror_open(&c->local->runtime, c->writer.session, &mirror, err));
    enum sl_status status = request->prefilled_fn(request->arg, mirror.session, &c->recipe, c->tokens, err);
    sl_mirror_close(&mirror);
    return status;
}

// Measures the session that has read the prompt from token `begin` on, and shows it to the caller.
static enum sl_status describe_prompt(const struct sl_conversation *c, const struct sl_local_request *request,
                                      int64_t begin, struct sl_local_result *result, struct sl_error *err) {
    struct sl_session_stats stats;
    sl_session_get_stats(c->writer.session, &stats);
    struct sl_kv_geometry g = c->writer.session->geometry;
    result->n_tokens = c->n_tokens;
    result->n_read = c->n_tokens - begin;
    result->slots_per_head = stats.n_slots_mean;
    result->capsule_bytes = sl_capsule_body_bytes(c->writer.session);
    result->full_bytes = (size_t)result->n_tokens * (size_t)g.n_layers * (size_t)g.n_kv_heads * (size_t)g.head_dim * 2 *
                         sizeof(uint16_t);
    return request->prefilled_fn ? show_session(c, request, err) : SL_OK;
}

// Reads all new tokens except the last.
static enum sl_status read_prompt(struct sl_conversation *c, const struct sl_local_request *request,
                                  struct sl_local_result *result, struct sl_error *err) {
    int64_t end = c->n_tokens - 1, begin = c->writer.session ? c->writer.session->n_tokens : 0;
    bool first = !c->writer.session;
    struct sl_plan *plan = &c->plan;
    if (c->document.header) {
        SL_TRY(read_by_steps(c, request, end, err));
        return describe_prompt(c, request, begin, result, err);
    }
    if (first) {
        c->rope_set = sl_model_rope_set(sl_local_model(c->local),
                                        c->reach > 0 ? c->reach : c->n_tokens + request->max_new_tokens);
    }
    enum sl_status status =
        sl_turn_plan(&c->recipe, sl_local_model(c->local), end, c->rope_set, c->writer.session, plan, err);
    if (status == SL_OK && first && end == 0) {
        status = sl_plan_create_session(plan, c->max_tokens, c->local->runtime.arena, &c->writer.session, err);
    } else if (status == SL_OK && sl_writer_one_by_one(&c->writer)) {
        status = read_by_steps(c, request, end, err);
    } else if (status == SL_OK && begin < end) {
        status = begin_at_shared_prefix(c, request, end, plan, err);
        begin = c->writer.session ? c->writer.session->n_tokens : 0;
        SL_THEN(status, read_by_chunks(c, request, end, plan, result, err));
    }
    if (status == SL_OK && first) {
        status = sl_writer_open(&c->writer, &c->local->runtime,
                                &(struct sl_writer_config){.plan = plan,
                                                           .n_read = c->writer.session->n_tokens,
                                                           .estimate_errors = request->estimate_errors},
                                err);
    }
    return status == SL_OK ? describe_prompt(c, request, begin, result, err) : status;
}

static enum sl_status write_answer(struct sl_conversation *c, const struct sl_local_request *request,
                                   struct sl_output *output, int64_t began_ns, struct sl_local_result *result,
                                   struct sl_error *err) {
    int64_t first_ns = 0;
    struct sl_output_token written = {0};
    while (written.stop == SL_STOP_NONE) {
        enum sl_status status = step(c, c->tokens + c->n_tokens - 1, 1, sl_output_choice(output), err);
        SL_THEN(status, sl_output_next(output, &written, err));
        if (status == SL_OK) {
            c->tokens[c->n_tokens++] = written.token.id;
            status = request->token_fn ? request->token_fn(request->arg, &written) : SL_OK;
            if (status == SL_ERR_CANCELLED && request->may_cut) {
                result->cut = written.stop == SL_STOP_NONE;
                written.stop = result->cut ? SL_STOP_LENGTH : written.stop;
                status = SL_OK;
            }
        }
        SL_TRY(status);
        first_ns = first_ns ? first_ns : sl_now_ns();
    }
    int64_t now = sl_now_ns();
    result->stop = written.stop;
    result->n_output_tokens = sl_output_n_tokens(output);
    result->ttft_ms = (double)(first_ns - began_ns) / SL_NS_PER_MS;
    result->total_ms = (double)(now - began_ns) / SL_NS_PER_MS;
    result->tpot_ms = result->n_output_tokens > 1
                          ? (double)(now - first_ns) / SL_NS_PER_MS / (double)(result->n_output_tokens - 1)
                          : 0;
    result->text = strdup(sl_output_text(output));
    return result->text ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "local: out of memory");
}

// Measures the work of this turn's steps, and what the session holds at the end.
static void measure(struct sl_conversation *c, const struct sl_compress_stats *before,
                    const struct sl_retriever_stats *retrieved_before, struct sl_local_result *result) {
    if (c->writer.retrieval.retriever) {
        struct sl_retriever_stats now;
        sl_retriever_get_stats(c->writer.retrieval.retriever, &now);
        result->offloads = true;
        result->retrieval = sl_retriever_stats_since(&now, retrieved_before);
    }
    if (c->writer.compressor) {
        struct sl_compress_stats after;
        sl_compressor_get_stats(c->writer.compressor, &after);
        result->slots_evicted += after.slots_evicted - before->slots_evicted;
        result->slots_merged += after.slots_merged - before->slots_merged;
        sl_error_statistics_read(c->writer.compressor, &c->errors);
        sl_error_statistics_add_steps(&result->errors, &c->errors);
    }
    struct sl_session_stats stats;
    sl_session_get_stats(c->writer.session, &stats);
    result->decode_resident_bytes = stats.resident_bytes;
    sl_slot_statistics_measure(c->writer.session, &result->slots);
}

static enum sl_status run_turn(struct sl_conversation *c, const struct sl_local_request *request,
                               struct sl_output *output, int64_t began_ns, struct sl_local_result *result,
                               struct sl_error *err) {
    struct sl_compress_stats before = {0};
    struct sl_retriever_stats retrieved_before = {0};
    enum sl_status status = SL_OK;
    if (c->writer.retrieval.retriever) {
        sl_retriever_get_stats(c->writer.retrieval.retriever, &retrieved_before);
    }
    if (c->writer.compressor) {
        sl_compressor_get_stats(c->writer.compressor, &before);
        status = sl_writer_estimate(&c->writer, request->estimate_errors, err);
    }
    result->errors.n_layers = request->estimate_errors ? sl_local_model(c->local)->n_layers : 0; // zeros to add to
    sl_arena_reset_high_water(c->local->runtime.arena);
    SL_THEN(status, read_prompt(c, request, result, err));
    SL_TRY(status);
    struct sl_arena_stats arena;
    sl_arena_get_stats(c->local->runtime.arena, &arena);
    result->prefill_peak_bytes = arena.high_water_bytes;
    result->prefill_ms = (double)(sl_now_ns() - began_ns) / SL_NS_PER_MS;
    SL_TRY(write_answer(c, request, output, began_ns, result, err));
    measure(c, &before, &retrieved_before, result);
    return SL_OK;
}

// ---- a document -----------------------------------------------------------------------------------------------------

// Copies the session to c->document.
static enum sl_status keep_document(struct sl_conversation *c, struct sl_error *err) {
    const struct sl_session *session = c->writer.session;
    struct sl_capsule_bytes *kept = &c->document;
    kept->body_bytes = sl_capsule_body_bytes(session);
    kept->body = malloc(kept->body_bytes + 1);
    SL_FAIL_IF(!kept->body, err, SL_ERR_EXHAUSTED, "no memory to keep %zu bytes of a document", kept->body_bytes);
    sl_capsule_copy_body(session, kept->body);
    return sl_capsule_write_header(session, &(struct sl_capsule_id){0}, &kept->header, &kept->header_bytes, err);
}

// Makes the session that of the document again, and forgets all later tokens.
static enum sl_status return_to_document(struct sl_conversation *c, struct sl_error *err) {
    struct sl_runtime *runtime = &c->local->runtime;
    struct sl_kv_geometry geometry = sl_model_geometry(sl_local_model(c->local));
    struct sl_capsule_bytes copy = c->document;
    sl_writer_close(&c->writer);
    copy.body = sl_arena_alloc(runtime->arena, copy.body_bytes);
    SL_FAIL_IF(!copy.body, err, SL_ERR_EXHAUSTED, "no memory in the arena for a document's %zu bytes", copy.body_bytes);
    memcpy(copy.body, c->document.body, copy.body_bytes);
    SL_TRY_OR(sl_capsule_open(&copy, runtime->arena, &geometry, &(struct sl_capsule_id){0}, c->max_tokens,
                              &c->writer.session, err),
              sl_arena_free(runtime->arena, copy.body));
    c->writer.session->rope_set = c->rope_set;
    c->n_tokens = c->writer.session->n_tokens + 1;
    c->broken = false;
    return sl_writer_open(&c->writer, runtime,
                          &(struct sl_writer_config){.plan = &c->plan, .n_read = c->writer.session->n_tokens}, err);
}

enum sl_status sl_conversation_read_document(struct sl_conversation *c, const struct sl_local_request *request,
                                             struct sl_local_result *result_out, struct sl_error *err) {
    int64_t began_ns = sl_now_ns();
    memset(result_out, 0, sizeof *result_out);
    enum sl_status status = check(c, request, err);
    SL_FAIL_IF(status == SL_OK && (sl_recipe_offloads(&c->recipe) || !c->local->runtime.device->ops->one_memory), err,
               SL_ERR_UNSUPPORTED,
               "document: one process keeps it without offloaded layers and in the "
               "host's memory; use a cluster");
    SL_THEN(status, add_prompt(c, request, err));
    SL_THEN(status, read_prompt(c, request, result_out, err));
    SL_THEN(status, keep_document(c, err));
    c->broken = status != SL_OK;
    result_out->prefill_ms = (double)(sl_now_ns() - began_ns) / SL_NS_PER_MS;
    return status;
}

enum sl_status sl_conversation_turn(struct sl_conversation *c, const struct sl_local_request *caller_request,
                                    struct sl_local_result *result_out, struct sl_error *err) {
    int64_t began_ns = sl_now_ns();
    struct sl_local_request asked = *caller_request;
    const struct sl_local_request *request = &asked;
    enum sl_status status = c->document.header ? return_to_document(c, err) : SL_OK;
    int64_t n_before = c->n_tokens;
    SL_THEN(status, choose_budget(c, &asked, err));
    SL_THEN(status, check(c, request, err));
    SL_THEN(status, add_prompt(c, request, err));
    SL_TRY(status);
    struct sl_output_config config = {.tokenizer = c->local->runtime.tokenizer,
                                      .model = sl_local_model(c->local),
                                      .sampling = request->sampling,
                                      .max_new_tokens = request->max_new_tokens,
                                      .ignore_eos = request->ignore_eos,
                                      .stops = request->stops,
                                      .n_stops = request->n_stops,
                                      .prompt = c->tokens,
                                      .n_prompt = c->n_tokens};
    struct sl_output *output;
    SL_TRY_OR(sl_output_create(&config, &output, err), c->n_tokens = n_before);
    memset(result_out, 0, sizeof *result_out);
    status = run_turn(c, request, output, began_ns, result_out, err);
    sl_output_destroy(&output);
    c->broken = status != SL_OK;
    if (status != SL_OK) {
        free(result_out->text);
        result_out->text = NULL;
    }
    return status;
}

// Runs a job as a conversation of one turn.
enum sl_status sl_local_generate(struct sl_local *local, const struct sl_local_request *request,
                                 struct sl_local_result *result_out, struct sl_error *err) {
    struct sl_conversation *conversation;
    int64_t max_tokens = request->n_prompt + request->max_new_tokens;
    SL_TRY(sl_conversation_open(local, request->recipe, max_tokens, &conversation, err));
    enum sl_status status = sl_conversation_turn(conversation, request, result_out, err);
    sl_conversation_close(&conversation);
    return status;
}

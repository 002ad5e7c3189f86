// SPDX-License-Identifier: Apache-2.0
#include "lab/measure/fidelity.h"
#include "lab/measure/fidelity_recall.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compress/evict/compressor.h"
#include "engine/compress/plan/plan.h"
#include "engine/kvcache/capsule.h"
#include "engine/runner/reading.h"
#include "engine/runner/writing.h"

#define CHUNK 512 // prompt tokens per call, over the full cache
#define ROWS  32  // continuation tokens per call, if the recipe has no steps

struct sl_fidelity {
    struct sl_fidelity_config config;
    int64_t done, total; // tokens, for progress
    // The prompt over the full cache, by position mode; the second is made when a recipe needs it.
    struct sl_session *full[2];
    double full_nll;
    float *paid;          // [n_layers][n_kv_heads][n_read] attention that the continuation pays to each prompt slot
    float *window;        // [n_heads][n_all]
    float *out;           // [ROWS][n_heads][head_dim]
    float *lse;           // [n_heads][ROWS]
    float *logits;        // [ROWS][n_vocab]
    int64_t *positions;   // [n_all]
    uint32_t *kept, *top; // [n_all]
};

// --- the recipe's side of a step ---------------------------------------------------------------------------------

// Opens `writer` on its compressed session, as decode does.
static enum sl_status begin_writing(const struct sl_eval_model *m, const struct sl_plan *plan, int64_t n_read,
                                    struct sl_writer *writer, struct sl_error *err) {
    return sl_writer_open(writer, &m->runtime, &(struct sl_writer_config){.plan = plan, .n_read = n_read}, err);
}

// --- reading the continuation --------------------------------------------------------------------------------------

static enum sl_status advance(struct sl_fidelity *f, int64_t n_tokens) {
    f->done += n_tokens;
    return f->config.progress_fn ? f->config.progress_fn(f->config.arg, f->done, f->total) : SL_OK;
}

// Adds the likelihood of the tokens that followed n rows; logits NULL: not requested.
static double add_nll(const struct sl_fidelity *f, const int32_t *tokens, int n) {
    int64_t n_vocab = f->config.model->runtime.config->n_vocab;
    double nll = 0;
    for (int r = 0; r < n; r++) {
        nll += sl_negative_log_likelihood(f->logits + r * n_vocab, n_vocab, tokens[r + 1]);
    }
    return nll;
}

// Returns how many tokens of the continuation from i on are read at once.
static int count_rows(const struct sl_fidelity *f, int64_t i, int most) {
    return (int)(f->config.n_new - i < most ? f->config.n_new - i : most);
}

// --- the full cache ------------------------------------------------------------------------------------------------

static enum sl_status read_prompt_full(struct sl_fidelity *f, enum sl_position_mode positions, struct sl_error *err) {
    const struct sl_fidelity_config *c = &f->config;
    struct sl_session **session = &f->full[positions];
    enum sl_status status = sl_eval_model_session(c->model, positions, c->n_read + c->n_new, session, err);
    for (int64_t i = 0; i < c->n_read && status == SL_OK; i += CHUNK) {
        int n = (int)(c->n_read - i < CHUNK ? c->n_read - i : CHUNK);
        struct sl_input input = {.session = *session, .tokens = c->tokens + i, .n_tokens = n};
        status = sl_engine_forward(c->model->runtime.engine, &input, 1, err);
        SL_THEN(status, advance(f, n));
    }
    return status;
}

// Adds to paid[layer][h][j] the attention of these rows to prompt slot j, mean over the group's query heads.
static void add_paid(struct sl_fidelity *f, int layer, const struct sl_attend *attend) {
    const struct sl_eval_model *m = f->config.model;
    size_t n_all = (size_t)(f->config.n_read + f->config.n_new), n_read = (size_t)f->config.n_read;
    int group = attend->n_heads / attend->heads.n;
    m->runtime.ops->window_sums(m->runtime.stream, attend, 0, (struct sl_vectors){f->window, n_all});
    for (int head = 0; head < attend->n_heads; head++) {
        float *paid = f->paid + ((size_t)layer * (size_t)attend->heads.n + (size_t)(head / group)) * n_read;
        const float *row = f->window + (size_t)head * n_all;
        for (size_t j = 0; j < n_read; j++) {
            paid[j] += row[j] / (float)group;
        }
    }
}

// Reads the continuation over the full cache: measures attention to slots, and likelihood.
static enum sl_status read_continuation_full(struct sl_fidelity *f, struct sl_error *err) {
    const struct sl_fidelity_config *c = &f->config;
    double nll = 0;
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < c->n_new && status == SL_OK; i += ROWS) {
        struct sl_pass pass;
        struct sl_input input = {.session = f->full[SL_POSITION_ORIGINAL],
                                 .tokens = c->tokens + c->n_read + i,
                                 .n_tokens = count_rows(f, i, ROWS),
                                 .all_logits = f->logits};
        status = sl_pass_begin(sl_engine_activations(c->model->runtime.engine), &input, 1,
                               (struct sl_pass_wants){.lse = true}, &pass, err);
        for (int layer = 0; layer < c->model->runtime.config->n_layers && status == SL_OK; layer++) {
            status = sl_pass_attend(&pass, layer, err);
            if (status == SL_OK) {
                add_paid(f, layer, pass.attends);
                sl_pass_finish(&pass);
            }
        }
        SL_THEN(status, sl_pass_end(&pass, err));
        if (status == SL_OK) {
            nll += add_nll(f, input.tokens, input.n_tokens);
            status = advance(f, input.n_tokens);
        }
    }
    f->full_nll = nll / (double)c->n_new;
    return status;
}

static void *aligned(size_t count, size_t bytes) {
    return aligned_alloc(64, (count * bytes + 63) / 64 * 64);
}

static enum sl_status allocate(struct sl_fidelity *f, struct sl_error *err) {
    const struct sl_model_config *c = f->config.model->runtime.config;
    size_t n_all = (size_t)(f->config.n_read + f->config.n_new), n_heads = (size_t)c->n_heads;
    size_t d = (size_t)c->head_dim, n_columns = (size_t)c->n_layers * (size_t)c->n_kv_heads * (size_t)f->config.n_read;
    f->paid = calloc(n_columns, sizeof *f->paid);
    f->window = aligned(n_heads * n_all, sizeof *f->window);
    f->out = aligned(ROWS * n_heads * d, sizeof *f->out);
    f->lse = aligned(ROWS * n_heads, sizeof *f->lse);
    f->logits = aligned(ROWS * (size_t)c->n_vocab, sizeof *f->logits);
    f->positions = calloc(n_all, sizeof *f->positions);
    f->kept = calloc(n_all, sizeof *f->kept);
    f->top = calloc(n_all, sizeof *f->top);
    bool good = f->paid && f->window && f->out && f->lse && f->logits && f->positions && f->kept && f->top;
    return good ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
}

enum sl_status sl_fidelity_create(const struct sl_fidelity_config *config, struct sl_fidelity **fidelity_out,
                                  struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_fidelity, f, err, "out of memory");
    f->config = *config;
    f->total = config->n_read + config->n_new;
    enum sl_status status = allocate(f, err);
    SL_THEN(status, read_prompt_full(f, SL_POSITION_ORIGINAL, err));
    SL_THEN(status, read_continuation_full(f, err));
    SL_THEN(status, sl_session_truncate(f->full[SL_POSITION_ORIGINAL], config->n_read, err));
    SL_TRY_OR(status, sl_fidelity_destroy(&f));
    *fidelity_out = f;
    return SL_OK;
}

void sl_fidelity_destroy(struct sl_fidelity **fidelity) {
    SL_TAKE_OR_RETURN(f, fidelity);
    sl_session_destroy(&f->full[0]);
    sl_session_destroy(&f->full[1]);
    free(f->paid);
    free(f->window);
    free(f->out);
    free(f->lse);
    free(f->logits);
    free(f->positions);
    free(f->kept);
    free(f->top);
    free(f);
}

double sl_fidelity_full_nll(const struct sl_fidelity *fidelity) {
    return fidelity->full_nll;
}

// --- the recipe's cache --------------------------------------------------------------------------------------------

static enum sl_status read_prompt(struct sl_fidelity *f, const struct sl_plan *plan, struct sl_session **session_out,
                                  struct sl_error *err) {
    const struct sl_fidelity_config *c = &f->config;
    struct sl_reader_config config = {.plan = plan,
                                      .runtime = &c->model->runtime,
                                      .arena = c->model->arena,
                                      .extra_slots = c->n_new,
                                      .tokens = c->tokens};
    struct sl_reader *reader;
    SL_TRY(sl_reader_create(&config, &reader, err));
    enum sl_status status = SL_OK;
    for (bool done = false; status == SL_OK && !done;) {
        int64_t before = sl_reader_session(reader)->n_tokens;
        status = sl_reading_step(reader, &done, err);
        SL_THEN(status, advance(f, sl_reader_session(reader)->n_tokens - before));
    }
    if (status == SL_OK) {
        *session_out = sl_reader_take_session(reader);
    }
    sl_reader_destroy(&reader);
    return status;
}

// Copies the session as a ship would.
static enum sl_status copy_session(struct sl_fidelity *f, const struct sl_session *session, int64_t max_slots,
                                   struct sl_session **copy_out, struct sl_error *err) {
    static const struct sl_capsule_id id = {1, 1, {{0}}};
    struct sl_arena *arena = f->config.model->arena;
    size_t bytes = sl_capsule_body_bytes(session), header_bytes;
    uint8_t *header;
    SL_TRY(sl_capsule_write_header(session, &id, &header, &header_bytes, err));
    void *body = sl_arena_alloc(arena, bytes);
    SL_FAIL_OR(body == NULL, free(header), err, SL_ERR_EXHAUSTED, "no memory for a copy of %zu bytes", bytes);
    sl_capsule_copy_body(session, body);
    struct sl_capsule_bytes capsule = {body, bytes, header, header_bytes};
    return sl_capsule_adopt(&capsule, arena, &session->geometry, &id, max_slots, copy_out, err);
}

static void measure_overlap(struct sl_fidelity *f, const struct sl_session *session,
                            struct sl_fidelity_result *result) {
    const struct sl_eval_model *m = f->config.model;
    int n_layers = session->geometry.n_layers, n_heads = session->geometry.n_kv_heads;
    size_t n_read = (size_t)f->config.n_read;
    for (int l = 0; l < n_layers; l++) {
        double sum = 0;
        for (int h = 0; h < n_heads; h++) {
            struct sl_kv kv = sl_session_kv(session, l, h);
            m->runtime.ops->read_positions(&kv, f->positions);
            for (uint32_t j = 0; j < kv.n_slots; j++) {
                f->kept[j] = (uint32_t)f->positions[j];
            }
            const float *paid = f->paid + ((size_t)l * (size_t)n_heads + (size_t)h) * n_read;
            m->runtime.ops->host.select(paid, (uint32_t)n_read, kv.n_slots, f->top);
            sum += sl_jaccard(f->kept, kv.n_slots, f->top, kv.n_slots);
        }
        result->overlap[l] = sum / n_heads;
        result->overlap_mean += result->overlap[l];
    }
    result->overlap_mean /= n_layers;
}

// --- attention, side by side -----------------------------------------------------------------------------------------

// The recipe's writer, which attends and evicts in parallel with the full cache: it gets the same queries, keys and
// values.
struct shadow {
    struct sl_fidelity *fidelity;
    struct sl_writer writer;
    struct sl_recall recall;
    double difference[SL_MAX_LAYERS], reference[SL_MAX_LAYERS]; // sums of squares
};

// Appends to the recipe's session what the full cache has just received; *beside_out is its attention; kv: room for
// its heads.
static enum sl_status append_same(struct shadow *s, int layer, const struct sl_attend *attend, struct sl_kv *kv,
                                  struct sl_attend *beside_out, struct sl_error *err) {
    const struct sl_runtime *runtime = &s->fidelity->config.model->runtime;
    struct sl_session *session = s->writer.session;
    enum sl_status status = sl_session_reserve(session, layer, attend->m);
    SL_FAIL_IF(status != SL_OK, err, status, "no room in the compressed cache for %d more tokens (layer %d)", attend->m,
               layer);
    sl_session_add_slots(session, layer, attend->m);
    *beside_out = *attend;
    beside_out->heads = sl_session_heads(session, layer, kv);
    status = runtime->ops->publish(runtime->stream, &beside_out->heads, err);
    if (status == SL_OK) {
        runtime->ops->append(runtime->stream, beside_out, 1);
    }
    return status;
}

static enum sl_status attend_beside(struct shadow *s, int layer, const struct sl_attend *attend, struct sl_error *err) {
    struct sl_fidelity *f = s->fidelity;
    const struct sl_eval_model *m = f->config.model;
    struct sl_kv kv[SL_MAX_HEADS];
    struct sl_attend beside;
    SL_TRY(append_same(s, layer, attend, kv, &beside, err));
    beside.out = f->out;
    beside.lse = s->writer.wants.lse ? f->lse : NULL;
    enum sl_status status = SL_OK;
    if (s->writer.retrieval.retriever != NULL) {
        status = sl_retriever_attend(s->writer.retrieval.retriever, layer, &beside, err);
    } else {
        m->runtime.ops->attend(m->runtime.stream, &beside, 1);
    }
    if (status == SL_OK && s->recall.remote_kv != NULL) { // then rows come one by one
        size_t n_all = (size_t)(f->config.n_read + f->config.n_new);
        m->runtime.ops->window_sums(m->runtime.stream, attend, 0, (struct sl_vectors){f->window, n_all});
        status = sl_recall_add(&s->recall, layer, attend, f->window, n_all, err);
    }
    int64_t count = (int64_t)attend->m * attend->n_heads * attend->head_dim;
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)f->out[i] - (double)attend->out[i];
        s->difference[layer] += difference * difference;
        s->reference[layer] += (double)attend->out[i] * (double)attend->out[i];
    }
    SL_THEN(status, s->writer.compressor != NULL
                        ? sl_compressor_step(s->writer.compressor, s->writer.session, layer, &beside, err)
                        : SL_OK);
    return status;
}

// Runs one pass of n rows of the continuation from i on over `full`, with the shadow.
static enum sl_status read_beside(struct shadow *s, struct sl_session *full, int64_t i, int n, struct sl_error *err) {
    struct sl_fidelity *f = s->fidelity;
    const struct sl_fidelity_config *c = &f->config;
    struct sl_input input = {.session = full, .tokens = c->tokens + c->n_read + i, .n_tokens = n};
    struct sl_pass_wants wants = s->writer.wants;
    wants.lse = s->recall.remote_kv != NULL;
    struct sl_pass pass;
    enum sl_status status =
        sl_pass_begin(sl_engine_activations(c->model->runtime.engine), &input, 1, wants, &pass, err);
    for (int layer = 0; layer < c->model->runtime.config->n_layers && status == SL_OK; layer++) {
        status = sl_pass_attend(&pass, layer, err);
        SL_THEN(status, attend_beside(s, layer, pass.attends, err));
        if (status == SL_OK) {
            sl_pass_finish(&pass);
        }
    }
    SL_THEN(status, sl_pass_end(&pass, err));
    if (status == SL_OK) {
        s->writer.session->n_tokens += n;
        status = advance(f, n);
    }
    return status;
}

// Reads the continuation over the full cache that rotates keys as the recipe does, then truncates that cache to the
// prompt.
static enum sl_status read_continuation_beside(struct shadow *s, struct sl_error *err) {
    struct sl_fidelity *f = s->fidelity;
    struct sl_session **full = &f->full[s->writer.session->positions];
    enum sl_status status = SL_OK;
    if (*full == NULL) {
        f->total += f->config.n_read;
        status = read_prompt_full(f, s->writer.session->positions, err);
    }
    int most = sl_writer_one_by_one(&s->writer) ? 1 : ROWS;
    for (int64_t i = 0; i < f->config.n_new && status == SL_OK; i += most) {
        status = read_beside(s, *full, i, count_rows(f, i, most), err);
    }
    SL_THEN(status, sl_session_truncate(*full, f->config.n_read, err));
    if (status != SL_OK) { // it holds more than the prompt: the next recipe that needs it reads it again
        sl_session_destroy(full);
    }
    return status;
}

static void take_errors(const struct shadow *s, int n_layers, struct sl_fidelity_result *result) {
    int n_searched = 0;
    for (int l = 0; l < n_layers; l++) {
        result->error[l] = sl_relative_error(s->difference[l], s->reference[l]);
        result->error_mean += result->error[l];
        result->recall[l] = sl_recall_mean(&s->recall, l);
        result->recall_mean += result->recall[l] < 0 ? 0 : result->recall[l];
        n_searched += result->recall[l] >= 0;
    }
    result->error_mean /= n_layers;
    result->recall_mean = n_searched > 0 ? result->recall_mean / n_searched : -1;
}

// Measures attention errors; takes ownership of `session`.
static enum sl_status measure_error(struct sl_fidelity *f, const struct sl_plan *plan, struct sl_session *session,
                                    struct sl_fidelity_result *result, struct sl_error *err) {
    struct shadow *s = calloc(1, sizeof *s);
    SL_FAIL_OR(s == NULL, sl_session_destroy(&session), err, SL_ERR_EXHAUSTED, "out of memory");
    const struct sl_eval_model *m = f->config.model;
    s->fidelity = f;
    s->writer.session = session;
    enum sl_status status = begin_writing(m, plan, f->config.n_read, &s->writer, err);
    SL_THEN(status,
            sl_recall_open(plan, m->runtime.ops, s->writer.retrieval.remote_kv, f->config.n_read, &s->recall, err));
    SL_THEN(status, read_continuation_beside(s, err));
    if (status == SL_OK) {
        take_errors(s, plan->geometry.n_layers, result);
    }
    sl_recall_close(&s->recall);
    sl_writer_close(&s->writer);
    free(s);
    return status;
}

// Measures likelihood; takes ownership of `session`.
static enum sl_status measure_nll(struct sl_fidelity *f, const struct sl_plan *plan, struct sl_session *session,
                                  struct sl_fidelity_result *result, struct sl_error *err) {
    const struct sl_fidelity_config *c = &f->config;
    struct sl_writer writer = {.session = session};
    enum sl_status status = begin_writing(c->model, plan, c->n_read, &writer, err);
    int most = sl_writer_one_by_one(&writer) ? 1 : ROWS;
    double nll = 0;
    for (int64_t i = 0; i < c->n_new && status == SL_OK; i += most) {
        const int32_t *tokens = c->tokens + c->n_read + i;
        int n = count_rows(f, i, most);
        sl_writer_feed(&writer, tokens, n, NULL);
        writer.input.all_logits = f->logits;
        status = sl_writing_step(&c->model->runtime, &writer, err);
        if (status == SL_OK) {
            nll += add_nll(f, tokens, n);
            status = advance(f, n);
        }
    }
    result->nll = nll / (double)c->n_new;
    sl_writer_close(&writer);
    return status;
}

enum sl_status sl_fidelity_measure(struct sl_fidelity *fidelity, const struct sl_recipe *recipe,
                                   struct sl_fidelity_result *result_out, struct sl_error *err) {
    struct sl_fidelity *f = fidelity;
    struct sl_kv_geometry geometry = sl_model_geometry(f->config.model->runtime.config);
    struct sl_plan *plan = malloc(sizeof *plan);
    SL_FAIL_IF(plan == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    struct sl_fidelity_result result = {0};
    struct sl_session *session = NULL, *copy = NULL;
    f->done = 0;
    f->total = f->config.n_read + 2 * f->config.n_new;
    int rope_set = sl_model_rope_set(f->config.model->runtime.config, f->config.n_read + f->config.n_new);
    enum sl_status status = sl_plan_make_local(recipe, &geometry, f->config.n_read, rope_set, plan, err);
    if (status == SL_OK && sl_recipe_thins(recipe)) {
        status =
            sl_fail(err, SL_ERR_INVALID,
                    "recipe: what place=offload keeps of a budget has no positions, and fidelity compares slots by "
                    "them; use `python3 -m sluice_eval`, or place=offload without a budget");
    }
    if (status == SL_OK) {
        sl_recipe_format(recipe, result.recipe, sizeof result.recipe);
        status = read_prompt(f, plan, &session, err);
    }
    if (status == SL_OK) {
        struct sl_session_stats stats;
        sl_session_get_stats(session, &stats);
        size_t full_bytes = (size_t)f->config.n_read * (size_t)geometry.n_layers * (size_t)geometry.n_kv_heads *
                            (size_t)geometry.head_dim * 2 * sizeof(uint16_t);
        result.slots = stats.n_slots_mean;
        result.bytes_per_token = (double)sl_capsule_body_bytes(session) / (double)f->config.n_read;
        result.share = (double)sl_capsule_body_bytes(session) / (double)full_bytes;
        measure_overlap(f, session, &result);
        status = copy_session(f, session, plan->max_slots + f->config.n_new, &copy, err);
    }
    if (status == SL_OK) {
        status = measure_error(f, plan, session, &result, err);
        session = NULL;
    }
    if (status == SL_OK) {
        status = measure_nll(f, plan, copy, &result, err);
        copy = NULL;
    }
    sl_session_destroy(&session);
    sl_session_destroy(&copy);
    free(plan);
    if (status == SL_OK) {
        *result_out = result;
    }
    return status;
}

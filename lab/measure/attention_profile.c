// SPDX-License-Identifier: Apache-2.0
#include "lab/measure/attention_profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 512

const char *const sl_attention_names[SL_N_ATTENTION_STATISTICS] = {
    [SL_ATTENTION_DENSE] = "dense_preference",    [SL_ATTENTION_FIRST_1] = "first_1",
    [SL_ATTENTION_FIRST_4] = "first_4",           [SL_ATTENTION_FIRST_64] = "first_64",
    [SL_ATTENTION_LAST_64] = "last_64",           [SL_ATTENTION_SLOTS_90] = "slots_90",
    [SL_ATTENTION_SLOTS_95] = "slots_95",         [SL_ATTENTION_SLOTS_99] = "slots_99",
    [SL_ATTENTION_EFFECTIVE] = "effective_slots",
};

// --- one row ---------------------------------------------------------------------------------------------------------

static double sum_of(const float *values, uint32_t begin, uint32_t end) {
    double sum = 0;
    for (uint32_t j = begin; j < end; j++) {
        sum += (double)values[j];
    }
    return sum;
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

// Returns how many of the largest probabilities sum to `wanted`. Rows are f32: a sum within their rounding counts as
// reached.
static uint32_t n_holding(const float *sorted, uint32_t n, double wanted) {
    double held = 0;
    for (uint32_t j = 0; j < n; j++) {
        held += (double)sorted[j];
        if (held >= wanted * (1 - 1e-6)) {
            return j + 1;
        }
    }
    return n;
}

void sl_attention_of_row(const float *probabilities, uint32_t n, uint32_t k, float *sorted, double *out) {
    memcpy(sorted, probabilities, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, descending);
    double sum = sum_of(sorted, 0, n), entropy = 0;
    for (uint32_t j = 0; j < n && sorted[j] > 0; j++) {
        double p = (double)sorted[j] / sum;
        entropy -= p * log(p);
    }
    out[SL_ATTENTION_DENSE] = k < n ? sum_of(sorted, k, n) / sum : 0;
    out[SL_ATTENTION_FIRST_1] = (double)probabilities[0] / sum;
    out[SL_ATTENTION_FIRST_4] = sum_of(probabilities, 0, n < 4 ? n : 4) / sum;
    out[SL_ATTENTION_FIRST_64] = sum_of(probabilities, 0, n < 64 ? n : 64) / sum;
    out[SL_ATTENTION_LAST_64] = sum_of(probabilities, n < 64 ? 0 : n - 64, n) / sum;
    out[SL_ATTENTION_SLOTS_90] = (double)n_holding(sorted, n, 0.90 * sum) / n;
    out[SL_ATTENTION_SLOTS_95] = (double)n_holding(sorted, n, 0.95 * sum) / n;
    out[SL_ATTENTION_SLOTS_99] = (double)n_holding(sorted, n, 0.99 * sum) / n;
    out[SL_ATTENTION_EFFECTIVE] = exp(entropy);
}

// --- a prompt --------------------------------------------------------------------------------------------------------

struct rows {
    const struct sl_eval_model *m;
    const struct sl_attend *attend; // of the current row
    size_t n_tokens;
    uint32_t k;
    float *probabilities, *sorted; // [n_heads][n_tokens]
    double *of_row;                // [n_heads][SL_N_ATTENTION_STATISTICS]
    double *values;                // [n_layers][n_kv_heads][SL_N_ATTENTION_STATISTICS]
};

static void count_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    struct rows *r = arg;
    int group = r->attend->n_heads / r->attend->heads.n;
    for (int64_t head = begin; head < end; head++) {
        size_t at = (size_t)head * r->n_tokens;
        sl_attention_of_row(r->probabilities + at, r->attend->heads.kv[head / group].n_slots, r->k, r->sorted + at,
                            r->of_row + head * SL_N_ATTENTION_STATISTICS);
    }
}

// Adds one query row of every head of one layer. With a single row, the sums over the window are the row itself.
static void add_rows(struct rows *r, int layer, const struct sl_attend *attend) {
    int group = attend->n_heads / attend->heads.n;
    r->attend = attend;
    r->m->runtime.ops->window_sums(r->m->runtime.stream, attend, attend->m - 1,
                                   (struct sl_vectors){r->probabilities, r->n_tokens});
    sl_team_run(r->m->runtime.team, attend->n_heads, 1, count_heads, r);
    for (int head = 0; head < attend->n_heads; head++) {
        double *values = r->values + ((ptrdiff_t)layer * attend->heads.n + head / group) * SL_N_ATTENTION_STATISTICS;
        for (int s = 0; s < SL_N_ATTENTION_STATISTICS; s++) {
            values[s] += r->of_row[head * SL_N_ATTENTION_STATISTICS + s] / (SL_ATTENTION_QUERIES * group);
        }
    }
}

// Reads one query row of all layers.
static enum sl_status read_row(struct rows *r, struct sl_input *input, struct sl_error *err) {
    struct sl_pass pass;
    enum sl_status status = sl_pass_begin(sl_engine_activations(r->m->runtime.engine), input, 1,
                                          (struct sl_pass_wants){.lse = true}, &pass, err);
    for (int layer = 0; layer < r->m->runtime.config->n_layers && status == SL_OK; layer++) {
        status = sl_pass_attend(&pass, layer, err);
        if (status == SL_OK) {
            add_rows(r, layer, pass.attends);
            sl_pass_finish(&pass);
        }
    }
    return status == SL_OK ? sl_pass_end(&pass, err) : status;
}

// Reads all but the last queries in chunks, then these one by one.
static enum sl_status read_tokens(struct rows *r, struct sl_session *session, const int32_t *tokens,
                                  const struct sl_attention_progress *progress, struct sl_error *err) {
    int64_t n_tokens = (int64_t)r->n_tokens, n_before = n_tokens - SL_ATTENTION_QUERIES;
    enum sl_status status = SL_OK;
    while (session->n_tokens < n_tokens && status == SL_OK) {
        int64_t at = session->n_tokens;
        int64_t n = at < n_before ? n_before - at : 1;
        n = n < CHUNK ? n : CHUNK;
        struct sl_input input = {.session = session, .tokens = tokens + at, .n_tokens = (int)n};
        status = at < n_before ? sl_engine_forward(r->m->runtime.engine, &input, 1, err) : read_row(r, &input, err);
        SL_THEN(status, progress && progress->fn ? progress->fn(progress->arg, session->n_tokens, n_tokens) : SL_OK);
    }
    return status;
}

// --- the profile -----------------------------------------------------------------------------------------------------

static size_t n_values(const struct sl_attention_profile *profile) {
    return (size_t)profile->n_layers * (size_t)profile->n_kv_heads * SL_N_ATTENTION_STATISTICS;
}

enum sl_status sl_attention_profile_init(struct sl_attention_profile *profile, int n_layers, int n_kv_heads,
                                         struct sl_error *err) {
    *profile = (struct sl_attention_profile){.n_layers = n_layers, .n_kv_heads = n_kv_heads};
    profile->values = calloc(n_values(profile), sizeof *profile->values);
    return profile->values ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
}

void sl_attention_profile_cleanup(struct sl_attention_profile *profile) {
    free(profile->values);
    *profile = (struct sl_attention_profile){0};
}

static float *rows_of_heads(const struct rows *r) {
    size_t bytes = (size_t)r->m->runtime.config->n_heads * r->n_tokens * sizeof(float);
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

enum sl_status sl_attention_profile_add(struct sl_attention_profile *profile, const struct sl_eval_model *m,
                                        const int32_t *tokens, int64_t n_tokens,
                                        const struct sl_attention_progress *progress, struct sl_error *err) {
    SL_FAIL_IF(n_tokens < SL_ATTENTION_MIN_TOKENS || n_tokens > m->runtime.config->max_positions, err, SL_ERR_INVALID,
               "a text of %lld tokens; %d to %lld are needed", (long long)n_tokens, SL_ATTENTION_MIN_TOKENS,
               (long long)m->runtime.config->max_positions);
    struct rows r = {.m = m, .n_tokens = (size_t)n_tokens, .k = (uint32_t)(0.05 * (double)n_tokens)};
    r.probabilities = rows_of_heads(&r);
    r.sorted = rows_of_heads(&r);
    r.of_row = calloc((size_t)m->runtime.config->n_heads * SL_N_ATTENTION_STATISTICS, sizeof *r.of_row);
    r.values = calloc(n_values(profile), sizeof *r.values);
    struct sl_session *session = NULL;
    enum sl_status status = r.probabilities && r.sorted && r.of_row && r.values
                                ? SL_OK
                                : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for rows of %zu slots", r.n_tokens);
    SL_THEN(status, sl_eval_model_session(m, SL_POSITION_ORIGINAL, n_tokens, &session, err));
    SL_THEN(status, read_tokens(&r, session, tokens, progress, err));
    if (status == SL_OK) {
        profile->n_texts++;
        for (size_t i = 0; i < n_values(profile); i++) {
            profile->values[i] += (r.values[i] - profile->values[i]) / profile->n_texts;
        }
    }
    sl_session_destroy(&session);
    free(r.probabilities);
    free(r.sorted);
    free(r.of_row);
    free(r.values);
    return status;
}

double sl_attention_of_head(const struct sl_attention_profile *profile, int layer, int head,
                            enum sl_attention_statistic statistic) {
    size_t row = (size_t)layer * (size_t)profile->n_kv_heads + (size_t)head;
    return profile->values[row * SL_N_ATTENTION_STATISTICS + statistic];
}

double sl_attention_of_layer(const struct sl_attention_profile *profile, int layer,
                             enum sl_attention_statistic statistic) {
    double sum = 0;
    for (int h = 0; h < profile->n_kv_heads; h++) {
        sum += sl_attention_of_head(profile, layer, h, statistic);
    }
    return sum / profile->n_kv_heads;
}

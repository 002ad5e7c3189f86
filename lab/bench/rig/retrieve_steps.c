// SPDX-License-Identifier: Apache-2.0
/*
 * Design: a session of two layers, the second of which is in the store. The first holds only the rows of the steps;
 *         questions asked ahead need a preceding layer. A step appends a row to both, asks and attends, as a decode
 *         worker does, without computing in between: so nothing is hidden.
 */
#include "lab/bench/rig/retrieve_steps.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/compress/plan/plan.h"
#include "lab/random.h"
#include "lab/result.h"
#include "engine/offload/retriever/retriever.h"

#define N_LAYERS    2
#define WARM_UP     8
#define DEADLINE_MS 10000 // a slow machine gives slow results, not a failure

struct steps {
    const struct sl_retrieve_steps_config *config;
    struct sl_plan plan;
    struct sl_arena *arena;
    struct sl_session *session;
    struct sl_source *source;
    struct sl_retriever *retriever;
    float *q, *next_q, *rows, *out; // [H][d], [H][d], [Hk][d], [H][d]
    uint64_t random;
    int64_t n_lost;
};

// Returns an approximately normal number of variance 1.
static float noise(struct steps *s) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(sl_random_mmix(&s->random) >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f;
}

static void on_fallback(void *arg, int layer, const char *why) {
    struct steps *s = arg;
    (void)layer;
    (void)why;
    s->n_lost++;
}

// --- opening ---------------------------------------------------------------------------------------------------------

static enum sl_status make_plan(struct steps *s, struct sl_error *err) {
    const struct sl_retrieve_steps_config *c = s->config;
    struct sl_kv_geometry geometry = {N_LAYERS, c->n_heads, c->head_dim};
    struct sl_recipe recipe;
    SL_TRY(sl_recipe_parse(c->recipe, &recipe, err));
    SL_TRY(sl_recipe_resolve(&recipe, NULL, N_LAYERS, err));
    return sl_plan_make(&recipe, &geometry, c->n_tokens, 0, &s->plan, err);
}

static enum sl_status open(struct steps *s, struct sl_error *err) {
    const struct sl_retrieve_steps_config *c = s->config;
    int64_t n_rows = c->n_steps + WARM_UP;
    SL_TRY(make_plan(s, err));
    size_t heads = (size_t)c->n_heads * (size_t)c->group, d = (size_t)c->head_dim;
    size_t bytes = sl_plan_decode_bytes(&s->plan, n_rows) + ((size_t)64 << 20); // includes layer 0, which is not there
    s->q = calloc(heads * d, sizeof *s->q);
    s->next_q = calloc(heads * d, sizeof *s->next_q);
    s->rows = calloc((size_t)c->n_heads * d, sizeof *s->rows);
    s->out = calloc(heads * d, sizeof *s->out);
    SL_FAIL_IF(!s->q || !s->next_q || !s->rows || !s->out, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_arena_create_mapped(bytes, &s->arena, err);
    SL_THEN(status, sl_plan_create_session(&s->plan, n_rows, s->arena, &s->session, err));
    if (status == SL_OK) {
        s->session->n_tokens = c->n_tokens;
        status = sl_store_rig_source(c->store, &s->plan, &s->source, err);
    }
    struct sl_retriever_config config = {.plan = &s->plan,
                                         .ops = c->ops,
                                         .stream = c->stream,
                                         .arena = s->arena,
                                         .session = s->session,
                                         .source = s->source,
                                         .n_prompt = c->n_tokens,
                                         .resident_only = true,
                                         .deadline_ms = DEADLINE_MS,
                                         .lost_ms = 3 * DEADLINE_MS,
                                         .on_fallback = on_fallback,
                                         .arg = s};
    SL_THEN(status, sl_retriever_create(&config, &s->retriever, err));
    s->random = 1;
    for (size_t i = 0; i < heads * d; i++) {
        s->q[i] = noise(s);
    }
    return status;
}

static void close_all(struct steps *s) {
    sl_retriever_destroy(&s->retriever);
    if (s->source) {
        s->source->ops->destroy(&s->source);
    }
    sl_session_destroy(&s->session);
    sl_arena_destroy(&s->arena);
    free(s->q);
    free(s->next_q);
    free(s->rows);
    free(s->out);
}

// --- steps -----------------------------------------------------------------------------------------------------------

static void walk(struct steps *s) {
    const struct sl_retrieve_steps_config *c = s->config;
    float drift = (float)c->drift, keep = sqrtf(1.0f - drift * drift);
    size_t n = (size_t)c->n_heads * (size_t)c->group * (size_t)c->head_dim;
    for (size_t i = 0; i < n; i++) {
        s->q[i] = keep * s->q[i] + drift * noise(s);
        s->next_q[i] = keep * s->q[i] + drift * noise(s);
    }
}

static enum sl_status attend_layer(struct steps *s, int layer, struct sl_error *err) {
    const struct sl_retrieve_steps_config *c = s->config;
    struct sl_kv kv[SL_MAX_HEADS];
    SL_TRY(sl_session_reserve(s->session, layer, 1));
    sl_session_add_slots(s->session, layer, 1);
    struct sl_attend attend = {.q = s->q,
                               .k = s->rows,
                               .v = s->rows,
                               .m = 1,
                               .n_heads = c->n_heads * c->group,
                               .head_dim = c->head_dim,
                               .scale = 1.0f / sqrtf((float)c->head_dim),
                               .heads = sl_session_heads(s->session, layer, kv),
                               .out = s->out,
                               .next_q = layer + 1 < N_LAYERS ? s->next_q : NULL};
    c->ops->append(NULL, &attend, 1);
    SL_TRY(sl_retriever_ask(s->retriever, layer, &attend, err));
    return sl_retriever_attend(s->retriever, layer, &attend, err);
}

static enum sl_status step(struct steps *s, double *us_out, struct sl_error *err) {
    walk(s);
    for (int i = 0; i < s->config->n_heads * s->config->head_dim; i++) {
        s->rows[i] = noise(s);
    }
    int64_t begin = sl_now_ns();
    enum sl_status status = SL_OK;
    for (int layer = 0; layer < N_LAYERS && status == SL_OK; layer++) {
        status = attend_layer(s, layer, err);
    }
    *us_out = (double)(sl_now_ns() - begin) / 1e3;
    s->session->n_tokens++;
    return status;
}

enum sl_status sl_retrieve_steps_run(const struct sl_retrieve_steps_config *config, struct sl_retrieve_steps *steps_out,
                                     struct sl_error *err) {
    struct steps *s = calloc(1, sizeof *s); // a plan has tens of kilobytes
    double *us = malloc(sizeof *us * (size_t)config->n_steps), ignored;
    enum sl_status status = s && us ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    struct sl_retriever_stats before = {0}, after = {0};
    if (status == SL_OK) {
        s->config = config;
        status = open(s, err);
    }
    for (int i = 0; i < WARM_UP && status == SL_OK; i++) {
        status = step(s, &ignored, err);
    }
    if (status == SL_OK) {
        sl_retriever_get_stats(s->retriever, &before);
    }
    for (int i = 0; i < config->n_steps && status == SL_OK; i++) {
        status = step(s, &us[i], err);
    }
    if (status == SL_OK && s->n_lost > 0) {
        status = sl_fail(err, SL_ERR_DEADLINE, "%lld steps were not answered within %d ms", (long long)s->n_lost,
                         DEADLINE_MS);
    }
    if (status == SL_OK) {
        sl_retriever_get_stats(s->retriever, &after);
        qsort(us, (size_t)config->n_steps, sizeof *us, sl_bench_ascending);
        double n = config->n_steps, fetched = (double)(after.rows_fetched - before.rows_fetched);
        double kept = (double)(after.rows_kept - before.rows_kept);
        *steps_out = (struct sl_retrieve_steps){
            .p50_us = us[config->n_steps / 2],
            .p99_us = us[config->n_steps * 99 / 100],
            .bytes = (double)(after.bytes_sent + after.bytes_received - before.bytes_sent - before.bytes_received) / n,
            .kept = fetched + kept > 0 ? kept / (fetched + kept) : 0,
            .recall = after.recall,
            .store_us = (double)(after.store_ns - before.store_ns) / 1e3 / n,
        };
    }
    if (s) {
        close_all(s);
    }
    free(s);
    free(us);
    return status;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the forward pass of a Llama, top to bottom as in the paper.
 *
 *   x = embedding[tokens]
 *   for each layer
 *       h = rmsnorm(x);  q, k, v = h Wq^T, h Wk^T, h Wv^T
 *       importance = retaining heads(q, k, v), next_q = h Wq^T of the next layer      where the hook wants them
 *       q, k = rope(q), rope(k), next_q = rope(next_q);  cache += (k, v)
 *       x = x + attention(q, cache) Wo^T
 *       h = rmsnorm(x);  x = x + (silu(h Wgate^T) * (h Wup^T)) Wdown^T
 *   logits = rmsnorm(x) Whead^T
 *
 * Design: the rows of all segments lie one after another: the dense operations see one matrix of m rows and only
 *         attention goes segment by segment. A row's result never depends on its neighbours (engine/ops.h), so neither
 *         chunking a prompt nor batching sessions changes a bit. What a hook wants beside attention is computed in
 *         scratch that is idle until the MLP, so that nobody pays memory for it.
 * Shapes: m rows of the call, E hidden, F intermediate, H query heads and Hk KV heads of d, V vocabulary.
 */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_internal.h"

#define LOGIT_ROWS 64 // rows whose logits are computed at once: bounds the scratch, which is V floats a row

struct sl_engine {
    const struct sl_model *model;
    struct sl_team *team;
    int max_rows;
    void *scratch;      // one allocation behind everything below
    float *x;           // [m][E] the residual stream
    float *h;           // [m][E] after a norm
    float *q;           // [m][H d]
    float *k, *v;       // [m][Hk d]
    float *a;           // [m][H d] attention's output
    float *gate;        // [m][F]
    float *up;          // [m][F]
    float *hidden;      // [m][R] of the retaining heads, until they have scored: the memory of gate
    float *next_q;      // [m][H d], during attention: the memory of up
    float *scores;      // [m][Hk] of the retaining heads
    float *importance;  // [Hk][m] of one segment
    float *lse;         // [H][m] of one segment
    float *logits;      // [LOGIT_ROWS][V]
    int64_t *positions; // [m]
    int32_t *tokens;    // [m]
    struct sl_kv *kv;   // [Hk] of one segment
};

// --- scratch -------------------------------------------------------------------------------------------------------

// Next 64-byte aligned piece of a block; with base NULL only *used grows, which measures the block.
static void *carve(char *base, size_t *used, size_t count, size_t element_bytes) {
    size_t offset = *used;
    *used += (count * element_bytes + 63) / 64 * 64;
    return base == NULL ? NULL : base + offset;
}

static size_t lay_out(struct sl_engine *e, char *base) {
    const struct sl_model_config *c = &e->model->config;
    size_t m = (size_t)e->max_rows, used = 0;
    size_t q_dim = (size_t)c->n_heads * (size_t)c->head_dim, kv_dim = (size_t)c->n_kv_heads * (size_t)c->head_dim;
    size_t hidden = (size_t)c->hidden, intermediate = (size_t)c->intermediate;
    e->x = carve(base, &used, m * hidden, sizeof(float));
    e->h = carve(base, &used, m * hidden, sizeof(float));
    e->q = carve(base, &used, m * q_dim, sizeof(float));
    e->k = carve(base, &used, m * kv_dim, sizeof(float));
    e->v = carve(base, &used, m * kv_dim, sizeof(float));
    e->a = carve(base, &used, m * q_dim, sizeof(float));
    size_t retaining = (size_t)c->retaining_hidden;
    e->gate = e->hidden = carve(base, &used, m * (intermediate > retaining ? intermediate : retaining), sizeof(float));
    e->up = e->next_q = carve(base, &used, m * (intermediate > q_dim ? intermediate : q_dim), sizeof(float));
    size_t scores = retaining > 0 ? m * (size_t)c->n_kv_heads : 0;
    e->scores = carve(base, &used, scores, sizeof(float));
    e->importance = carve(base, &used, scores, sizeof(float));
    e->lse = carve(base, &used, m * (size_t)c->n_heads, sizeof(float));
    e->logits = carve(base, &used, (m < LOGIT_ROWS ? m : LOGIT_ROWS) * (size_t)c->n_vocab, sizeof(float));
    e->positions = carve(base, &used, m, sizeof(int64_t));
    e->tokens = carve(base, &used, m, sizeof(int32_t));
    e->kv = carve(base, &used, (size_t)c->n_kv_heads, sizeof(struct sl_kv));
    return used;
}

enum sl_status sl_engine_create(const struct sl_model *model, struct sl_team *team, int max_rows,
                                struct sl_engine **engine_out, struct sl_error *err) {
    if (max_rows < 1 || max_rows > 1 << 20) {
        return sl_fail(err, SL_ERR_INVALID, "an engine of %d rows: expected 1 to %d", max_rows, 1 << 20);
    }
    struct sl_engine *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    e->model = model;
    e->team = team;
    e->max_rows = max_rows;
    size_t bytes = lay_out(e, NULL);
    e->scratch = aligned_alloc(64, bytes);
    if (e->scratch == NULL) {
        free(e);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for %zu bytes of activations; use smaller chunks", bytes);
    }
    lay_out(e, e->scratch);
    *engine_out = e;
    return SL_OK;
}

void sl_engine_destroy(struct sl_engine **engine) {
    if (*engine != NULL) {
        free((*engine)->scratch);
        free(*engine);
        *engine = NULL;
    }
}

struct sl_team *sl_engine_team(struct sl_engine *engine) {
    return engine->team;
}

const struct sl_ops *sl_engine_ops(const struct sl_engine *engine) {
    return engine->model->ops;
}

// --- checks --------------------------------------------------------------------------------------------------------

// Positions that a segment will reach: the session's tokens, or the fullest head's slots when these are the positions.
static int64_t positions_after(const struct sl_segment *segment) {
    const struct sl_session *session = segment->session;
    if (session->positions == SL_POSITION_ORIGINAL) {
        return session->n_tokens + segment->n_tokens;
    }
    int64_t most = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            int64_t n = session->layers[l].heads[h].n_slots;
            most = n > most ? n : most;
        }
    }
    return most + segment->n_tokens;
}

static enum sl_status check_segments(const struct sl_engine *e, const struct sl_segment *segments, int n_segments,
                                     int64_t *m_out, struct sl_error *err) {
    const struct sl_model_config *c = &e->model->config;
    int64_t m = 0;
    for (int s = 0; s < n_segments; s++) {
        const struct sl_segment *segment = &segments[s];
        assert(segment->session->geometry.n_layers == c->n_layers);
        assert(segment->session->geometry.n_kv_heads == c->n_kv_heads);
        assert(segment->session->geometry.head_dim == c->head_dim);
        for (int other = 0; other < s; other++) {
            assert(segments[other].session != segment->session);
        }
        if (segment->n_tokens < 1) {
            return sl_fail(err, SL_ERR_RANGE, "segment %d has %d tokens", s, segment->n_tokens);
        }
        for (int i = 0; i < segment->n_tokens; i++) {
            if (segment->tokens[i] < 0 || segment->tokens[i] >= c->n_vocab) {
                return sl_fail(err, SL_ERR_RANGE, "token %lld of the prompt is id %d; the vocabulary has %d",
                               (long long)(segment->session->n_tokens + i), segment->tokens[i], c->n_vocab);
            }
        }
        if (positions_after(segment) > c->max_positions) {
            return sl_fail(err, SL_ERR_RANGE, "position %lld is beyond the %lld that the model was made for",
                           (long long)positions_after(segment) - 1, (long long)c->max_positions);
        }
        m += segment->n_tokens;
    }
    if (m > e->max_rows) {
        return sl_fail(err, SL_ERR_RANGE, "%lld rows in a call, the engine was made for %d", (long long)m, e->max_rows);
    }
    *m_out = m;
    return SL_OK;
}

// --- attention -----------------------------------------------------------------------------------------------------

// Rope of every segment's q, k and (where there is one) next_q, but where keys are stored unrotated: there attend
// rotates.
static void rotate_rows(struct sl_engine *e, const struct sl_segment *segments, int n_segments, float *next_q) {
    const struct sl_model_config *c = &e->model->config;
    const struct sl_ops *ops = e->model->ops;
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    for (int s = 0, row = 0; s < n_segments;) {
        int64_t begin = row; // a run of segments that rotate, as one call
        while (s < n_segments && segments[s].session->positions == SL_POSITION_ORIGINAL) {
            row += segments[s++].n_tokens;
        }
        if (row > begin) {
            ops->rotate(e->team, &e->model->rope, e->q + begin * q_dim, row - begin, c->n_heads, q_dim,
                        e->positions + begin);
            ops->rotate(e->team, &e->model->rope, e->k + begin * kv_dim, row - begin, c->n_kv_heads, kv_dim,
                        e->positions + begin);
            if (next_q != NULL) {
                ops->rotate(e->team, &e->model->rope, next_q + begin * q_dim, row - begin, c->n_heads, q_dim,
                            e->positions + begin);
            }
        }
        while (s < n_segments && segments[s].session->positions == SL_POSITION_SLOT) {
            row += segments[s++].n_tokens;
        }
    }
}

// Make room in the cache, append the segment's K and V rows, and describe the heads as they then are in e->kv.
static enum sl_status append_rows(struct sl_engine *e, const struct sl_segment *segment, int layer, int64_t row,
                                  struct sl_error *err) {
    const struct sl_model_config *c = &e->model->config;
    struct sl_session *session = segment->session;
    struct sl_layer *cache = &session->layers[layer];
    int64_t kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    enum sl_status status = sl_session_reserve(session, layer, segment->n_tokens);
    if (status != SL_OK) {
        return sl_fail(err, status, "no room in the KV cache for %d more tokens after %lld (layer %d)",
                       segment->n_tokens, (long long)session->n_tokens, layer);
    }
    for (int h = 0; h < c->n_kv_heads; h++) {
        struct sl_head *head = &cache->heads[h];
        struct sl_kv *kv = &e->kv[h];
        int64_t column = row * kv_dim + (int64_t)h * c->head_dim;
        *kv = (struct sl_kv){head->pages, head->n_packed, head->n_slots, &cache->work, &cache->packed};
        e->model->ops->append(kv, e->k + column, e->v + column, kv_dim, segment->n_tokens, e->positions + row);
        kv->n_slots += (uint32_t)segment->n_tokens;
        sl_session_set_slots(session, layer, h, kv->n_slots);
    }
    return SL_OK;
}

// Scores of the retaining heads for m rows from `row` on, head by head: e->scores [m][Hk] to e->importance [Hk][m].
static const float *segment_importance(struct sl_engine *e, int64_t row, int m) {
    int n_heads = e->model->config.n_kv_heads;
    for (int h = 0; h < n_heads; h++) {
        for (int r = 0; r < m; r++) {
            e->importance[(int64_t)h * m + r] = e->scores[(row + r) * n_heads + h];
        }
    }
    return e->importance;
}

// Append, attend and hook, segment by segment: e->q, e->k, e->v to e->a. next_q: of all rows, or NULL.
static enum sl_status attention(struct sl_engine *e, const struct sl_segment *segments, int n_segments, int layer,
                                const float *next_q, const struct sl_layer_hook *hook, struct sl_error *err) {
    const struct sl_model_config *c = &e->model->config;
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim;
    int64_t row = 0;
    for (int s = 0; s < n_segments; s++) {
        const struct sl_segment *segment = &segments[s];
        enum sl_status status = append_rows(e, segment, layer, row, err);
        if (status != SL_OK) {
            return status;
        }
        struct sl_attend attend = {
            .q = e->q + row * q_dim,
            .m = segment->n_tokens,
            .n_heads = c->n_heads,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .scale = 1.0f / sqrtf((float)c->head_dim),
            .kv = e->kv,
            .rope = segment->session->positions == SL_POSITION_SLOT ? &e->model->rope : NULL,
            .out = e->a + row * q_dim,
            .lse = hook != NULL && hook->want_lse ? e->lse : NULL,
            .next_q = next_q != NULL ? next_q + row * q_dim : NULL,
        };
        if (hook != NULL && hook->want_importance) {
            attend.importance = segment_importance(e, row, segment->n_tokens);
        }
        if (hook != NULL && hook->attend_fn != NULL) {
            status = hook->attend_fn(hook->arg, s, layer, &attend);
            if (status != SL_OK) {
                return status;
            }
        } else {
            e->model->ops->attend(e->team, &attend);
        }
        if (hook != NULL && hook->fn != NULL) {
            status = hook->fn(hook->arg, s, layer, &attend);
            if (status != SL_OK) {
                return status;
            }
        }
        row += segment->n_tokens;
    }
    return SL_OK;
}

// --- logits --------------------------------------------------------------------------------------------------------

// Where the logits of row i of a segment go, or NULL when nobody wants them. `also_out`: a second place, or NULL.
static float *logits_wanted(const struct sl_segment *segment, int i, int64_t n_vocab, float **also_out) {
    bool is_last = i == segment->n_tokens - 1;
    *also_out = is_last ? segment->logits : NULL;
    if (segment->all_logits != NULL) {
        return segment->all_logits + i * n_vocab;
    }
    float *only = *also_out;
    *also_out = NULL;
    return only;
}

// Norm and head for `count` adjacent rows, then every row to those who want it. (s, i) is the first row's place.
static void project_run(struct sl_engine *e, const struct sl_segment *segments, int s, int i, int64_t row,
                        int64_t count) {
    const struct sl_model *model = e->model;
    const struct sl_ops *ops = model->ops;
    int64_t hidden = model->config.hidden, n_vocab = model->config.n_vocab;
    ops->rmsnorm(e->team, e->x + row * hidden, model->final_norm, model->config.norm_eps, count, hidden, e->h);
    ops->matmul(e->team, &model->head, e->h, count, e->logits, false);
    for (int64_t r = 0; r < count; r++) {
        float *also, *wanted = logits_wanted(&segments[s], i, n_vocab, &also);
        memcpy(wanted, e->logits + r * n_vocab, (size_t)n_vocab * sizeof(float));
        if (also != NULL) {
            memcpy(also, wanted, (size_t)n_vocab * sizeof(float));
        }
        if (++i == segments[s].n_tokens) {
            s++;
            i = 0;
        }
    }
}

// The rows that are wanted, in runs of adjacent ones: a decode step of many sessions is one run.
static void project_logits(struct sl_engine *e, const struct sl_segment *segments, int n_segments) {
    int64_t row = 0, run = 0;
    int run_s = 0, run_i = 0;
    for (int s = 0; s < n_segments; s++) {
        for (int i = 0; i < segments[s].n_tokens; i++, row++) {
            float *also;
            bool wanted = logits_wanted(&segments[s], i, e->model->config.n_vocab, &also) != NULL;
            if (run > 0 && (!wanted || run == LOGIT_ROWS)) {
                project_run(e, segments, run_s, run_i, row - run, run);
                run = 0;
            }
            if (wanted && run++ == 0) {
                run_s = s;
                run_i = i;
            }
        }
    }
    if (run > 0) {
        project_run(e, segments, run_s, run_i, row - run, run);
    }
}

// --- the model -----------------------------------------------------------------------------------------------------

static void gather_rows(struct sl_engine *e, const struct sl_segment *segments, int n_segments) {
    int64_t row = 0;
    for (int s = 0; s < n_segments; s++) {
        for (int i = 0; i < segments[s].n_tokens; i++, row++) {
            e->tokens[row] = segments[s].tokens[i];
            e->positions[row] = segments[s].session->n_tokens + i;
        }
    }
}

enum sl_status sl_engine_forward(struct sl_engine *engine, struct sl_segment *segments, int n_segments,
                                 const struct sl_layer_hook *hook, struct sl_error *err) {
    struct sl_engine *e = engine;
    const struct sl_model *model = e->model;
    const struct sl_ops *ops = model->ops;
    const struct sl_model_config *c = &model->config;
    int64_t m = 0;
    enum sl_status status = check_segments(e, segments, n_segments, &m, err);
    if (status != SL_OK) {
        return status;
    }
    if (hook != NULL && hook->want_importance && c->retaining_hidden == 0) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "the model has no retaining heads: retaining_heads.safetensors must lie beside it "
                       "(tools/convert_retaining_heads.py makes it from a published checkpoint)");
    }
    gather_rows(e, segments, n_segments);

    ops->embed(e->team, &model->embed, e->tokens, m, e->x);
    for (int l = 0; l < c->n_layers; l++) {
        const struct sl_model_layer *layer = &model->layers[l];

        ops->rmsnorm(e->team, e->x, layer->attention_norm, c->norm_eps, m, c->hidden, e->h);
        ops->matmul(e->team, &layer->q, e->h, m, e->q, false);
        ops->matmul(e->team, &layer->k, e->h, m, e->k, false);
        ops->matmul(e->team, &layer->v, e->h, m, e->v, false);
        if (hook != NULL && hook->want_importance) {
            sl_retaining_score(model, l, e->team, e->q, e->k, e->v, m, e->hidden, e->scores);
        }
        float *next_q = hook != NULL && hook->want_next_q && l + 1 < c->n_layers ? e->next_q : NULL;
        if (next_q != NULL) {
            ops->matmul(e->team, &model->layers[l + 1].q, e->h, m, next_q, false);
        }
        rotate_rows(e, segments, n_segments, next_q);
        status = attention(e, segments, n_segments, l, next_q, hook, err);
        if (status != SL_OK) {
            return status;
        }
        ops->matmul(e->team, &layer->o, e->a, m, e->x, true);

        ops->rmsnorm(e->team, e->x, layer->mlp_norm, c->norm_eps, m, c->hidden, e->h);
        ops->matmul(e->team, &layer->gate, e->h, m, e->gate, false);
        ops->matmul(e->team, &layer->up, e->h, m, e->up, false);
        ops->silu_mul(e->team, e->gate, e->up, m * c->intermediate);
        ops->matmul(e->team, &layer->down, e->gate, m, e->x, true);
    }
    project_logits(e, segments, n_segments);

    for (int s = 0; s < n_segments; s++) {
        segments[s].session->n_tokens += segments[s].n_tokens;
    }
    return SL_OK;
}

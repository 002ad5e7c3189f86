// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the forward pass, top to bottom; one for all families. What differs between them is data of the model:
 *          the kind of a norm, biases, activations, the width of rotations and windows (model_internal.h).
 *
 *   x = embedding[tokens]
 *   for each layer
 *       h = norm(x);  q, k, v = h Wqkv^T
 *       q, k = norm(q), norm(k) of every head                                         where the model has these norms
 *       importance = retaining heads(q, k, v), next_q = h Wq^T of the next layer      where the hook wants them
 *       q, k = rope(q), rope(k), next_q = rope(next_q);  cache += (k, v)
 *       x = x + attention(q, cache) Wo^T
 *       h = norm(x), but in a parallel block, where h is what attention read
 *       x = x + (act(h Wgate^T) * (h Wup^T)) Wdown^T                                  or act(h Wup^T) Wdown^T
 *   logits = norm(x) Whead^T
 *
 * Design: the rows of all segments lie one after another: the dense operations see one matrix of m rows, and attention
 *         all segments at once. A row's result never depends on its neighbours (tensor/ops.h), so neither chunking a
 *         prompt nor batching sessions changes a bit. What a hook wants beside attention is computed in scratch that is
 *         idle until the MLP, so that nobody pays memory for it.
 * Shapes: m rows of the call, E hidden, F intermediate, H query heads and Hk KV heads of d, V vocabulary.
 */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

#define LOGIT_ROWS 64 // rows whose logits are computed at once: bounds the scratch, which is V floats a row
#define APPEND_GRAIN                                                                                                   \
    8 // rows of KV heads that a task appends: what a step of one session has is not worth waking a team

struct sl_engine {
    const struct sl_model *model;
    struct sl_team *team;
    int max_rows;
    void *scratch;           // one allocation behind everything below
    float *x;                // [m][E] the residual stream
    float *h;                // [m][E] after a norm
    float *qkv;              // [m][(H + 2 Hk) d]
    float *a;                // [m][H d] attention's output
    float *up;               // [m][F] what the MLP has between its products
    float *hidden;           // [m][R] of the retaining heads, until they have scored: the memory of up
    float *next_q;           // [m][H d], during attention: the memory of up
    float *scores;           // [m][Hk] of the retaining heads
    float *importance;       // [Hk][m] of every segment
    float *lse;              // [H][m] of every segment
    float *cosines;          // [m][rotary_dim / 2] of every row's position
    float *sines;            // the same
    float *logits;           // [LOGIT_ROWS][V]
    void *products;          // scratch of ops->matmul
    int64_t *positions;      // [m]
    int32_t *tokens;         // [m]
    struct sl_attend *calls; // [segments], at most m
    struct sl_kv *kv;        // [segments][Hk]
};

// --- scratch -------------------------------------------------------------------------------------------------------

// Next 64-byte aligned piece of a block; with base NULL only *used grows, which measures the block.
static void *carve(char *base, size_t *used, size_t count, size_t element_bytes) {
    size_t offset = *used;
    *used += (count * element_bytes + 63) / 64 * 64;
    return base == NULL ? NULL : base + offset;
}

static int64_t qkv_dim(const struct sl_model_config *c) {
    return ((int64_t)c->n_heads + 2 * (int64_t)c->n_kv_heads) * c->head_dim;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

// What matmul wants for any matrix of the model and up to m rows.
static size_t product_bytes(const struct sl_model *model, int64_t m) {
    size_t bytes = model->ops->matmul_scratch(&model->head, m < LOGIT_ROWS ? m : LOGIT_ROWS);
    for (int l = 0; l < model->config.n_layers; l++) {
        const struct sl_model_layer *layer = &model->layers[l];
        const struct sl_matrix *matrices[] = {&layer->qkv,         &layer->o,           &layer->up,
                                              &layer->down,        &layer->retaining.q, &layer->retaining.k,
                                              &layer->retaining.v, &layer->retaining.w2};
        for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
            bytes = matrices[i]->n > 0 ? larger(bytes, model->ops->matmul_scratch(matrices[i], m)) : bytes;
        }
    }
    return bytes;
}

static size_t lay_out(struct sl_engine *e, char *base) {
    const struct sl_model_config *c = &e->model->config;
    size_t m = (size_t)e->max_rows, used = 0;
    size_t q_dim = (size_t)c->n_heads * (size_t)c->head_dim, angles = (size_t)c->rotary_dim / 2;
    e->x = carve(base, &used, m * (size_t)c->hidden, sizeof(float));
    e->h = carve(base, &used, m * (size_t)c->hidden, sizeof(float));
    e->qkv = carve(base, &used, m * (size_t)qkv_dim(c), sizeof(float));
    e->a = carve(base, &used, m * q_dim, sizeof(float));
    size_t up = larger(larger((size_t)c->intermediate, (size_t)c->retaining_hidden), q_dim);
    e->up = e->hidden = e->next_q = carve(base, &used, m * up, sizeof(float));
    e->scores = carve(base, &used, m * (size_t)c->n_kv_heads, sizeof(float));
    e->importance = carve(base, &used, m * (size_t)c->n_kv_heads, sizeof(float));
    e->lse = carve(base, &used, m * (size_t)c->n_heads, sizeof(float));
    e->cosines = carve(base, &used, m * angles, sizeof(float));
    e->sines = carve(base, &used, m * angles, sizeof(float));
    e->logits = carve(base, &used, (m < LOGIT_ROWS ? m : LOGIT_ROWS) * (size_t)c->n_vocab, sizeof(float));
    e->products = carve(base, &used, product_bytes(e->model, e->max_rows), 1);
    e->positions = carve(base, &used, m, sizeof(int64_t));
    e->tokens = carve(base, &used, m, sizeof(int32_t));
    e->calls = carve(base, &used, m, sizeof(struct sl_attend));
    e->kv = carve(base, &used, m * (size_t)c->n_kv_heads, sizeof(struct sl_kv));
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
        assert(segment->session->rope_set >= 0 && segment->session->rope_set < SL_MAX_ROPE_SETS);
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
        if (c->window > 0 && segment->session->positions == SL_POSITION_SLOT) {
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "sliding windows of keys that are rotated by slot; use original positions");
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

// y = x W^T, all of it or the first n_columns; packed rows on either side but for what the strides say.
static void multiply(struct sl_engine *e, const struct sl_matrix *w, const float *x, int64_t m, float *y,
                     bool accumulate) {
    struct sl_matmul args = {.x = x,
                             .x_stride = w->k,
                             .m = m,
                             .y = y,
                             .y_stride = sl_matrix_outputs(w),
                             .accumulate = accumulate,
                             .scratch = e->products};
    e->model->ops->matmul(e->team, w, &args);
}

// What is done with q, k and v before RoPE: the retaining heads score them, or whoever trains such heads takes them.
static enum sl_status see_projections(struct sl_engine *e, int layer, int64_t m, const struct sl_layer_hook *hook) {
    if (hook != NULL && hook->want_importance) {
        sl_retaining_score(e->model, layer, e->team, e->qkv, m, e->hidden, e->products, e->scores);
    }
    return hook != NULL && hook->features_fn != NULL ? hook->features_fn(hook->arg, layer, e->qkv, m) : SL_OK;
}

// The next layer's queries as this layer's input gives them, before RoPE.
static void predict_queries(struct sl_engine *e, const struct sl_model_layer *next, int64_t m) {
    const struct sl_model_config *c = &e->model->config;
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim;
    struct sl_matmul args = {.x = e->h,
                             .x_stride = c->hidden,
                             .m = m,
                             .y = e->next_q,
                             .y_stride = q_dim,
                             .n_columns = q_dim,
                             .scratch = e->products};
    e->model->ops->matmul(e->team, &next->qkv, &args);
    if (next->q_norm.weight != NULL) {
        e->model->ops->norm(e->team, &next->q_norm, e->next_q, q_dim, m, c->n_heads, e->next_q, q_dim);
    }
}

// Norms of q and k, where the layer has them.
static void normalize_heads(struct sl_engine *e, const struct sl_model_layer *layer, int64_t m) {
    const struct sl_model_config *c = &e->model->config;
    float *k = e->qkv + (int64_t)c->n_heads * c->head_dim;
    if (layer->q_norm.weight != NULL) {
        e->model->ops->norm(e->team, &layer->q_norm, e->qkv, qkv_dim(c), m, c->n_heads, e->qkv, qkv_dim(c));
    }
    if (layer->k_norm.weight != NULL) {
        e->model->ops->norm(e->team, &layer->k_norm, k, qkv_dim(c), m, c->n_kv_heads, k, qkv_dim(c));
    }
}

static const struct sl_rope *rope_of(const struct sl_engine *e, const struct sl_session *session) {
    return &e->model->ropes[session->rope_set];
}

// Angles of every row's position, by its session's frequencies: runs of segments that share them, as one call each.
static void compute_angles(struct sl_engine *e, const struct sl_segment *segments, int n_segments) {
    int64_t half = e->model->config.rotary_dim / 2;
    for (int s = 0, row = 0; s < n_segments;) {
        const struct sl_rope *rope = rope_of(e, segments[s].session);
        int64_t begin = row;
        while (s < n_segments && rope_of(e, segments[s].session) == rope) {
            row += segments[s++].n_tokens;
        }
        e->model->ops->angles(e->team, rope, e->positions + begin, row - begin, e->cosines + begin * half,
                              e->sines + begin * half);
    }
}

// Rope of every segment's q, k and (where there is one) next_q, but where keys are stored unrotated: there attend
// rotates.
static void rotate_rows(struct sl_engine *e, const struct sl_segment *segments, int n_segments, float *next_q) {
    const struct sl_model_config *c = &e->model->config;
    const struct sl_ops *ops = e->model->ops;
    const struct sl_rope *rope = &e->model->ropes[0]; // its dimensions are those of all
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, half = rope->rotary_dim / 2;
    for (int s = 0, row = 0; s < n_segments;) {
        int64_t begin = row; // a run of segments that rotate, as one call
        while (s < n_segments && segments[s].session->positions == SL_POSITION_ORIGINAL) {
            row += segments[s++].n_tokens;
        }
        if (row > begin) {
            const float *cosines = e->cosines + begin * half, *sines = e->sines + begin * half;
            // k lies behind q: one call turns the heads of both
            ops->rotate(e->team, rope, cosines, sines, e->qkv + begin * qkv_dim(c), qkv_dim(c), row - begin,
                        c->n_heads + c->n_kv_heads);
            if (next_q != NULL) {
                ops->rotate(e->team, rope, cosines, sines, next_q + begin * q_dim, q_dim, row - begin, c->n_heads);
            }
        }
        while (s < n_segments && segments[s].session->positions == SL_POSITION_SLOT) {
            row += segments[s++].n_tokens;
        }
    }
}

// Make room in the cache for every segment before anything is written.
static enum sl_status reserve_rows(const struct sl_segment *segments, int n_segments, int layer, struct sl_error *err) {
    for (int s = 0; s < n_segments; s++) {
        enum sl_status status = sl_session_reserve(segments[s].session, layer, segments[s].n_tokens);
        if (status != SL_OK) {
            return sl_fail(err, status, "no room in the KV cache for %d more tokens after %lld (layer %d)",
                           segments[s].n_tokens, (long long)segments[s].session->n_tokens, layer);
        }
    }
    return SL_OK;
}

struct append_args {
    struct sl_engine *e;
    const struct sl_segment *segments;
};

// Tasks: a row of a KV head, by segment, then head, then row. What is adjacent of one head is appended in one call.
static void append_tasks(void *arg, int64_t begin, int64_t end, int member) {
    const struct append_args *a = arg;
    const struct sl_engine *e = a->e;
    const struct sl_model_config *c = &e->model->config;
    int64_t n_heads = c->n_kv_heads, row = 0, first = 0; // of segment s
    (void)member;
    for (int s = 0; first < end; s++) {
        int64_t m = a->segments[s].n_tokens;
        for (int64_t task = begin > first ? begin : first; task < end && task < first + m * n_heads;) {
            int64_t h = (task - first) / m, r = (task - first) % m, left = end - task;
            int64_t count = left < m - r ? left : m - r;
            const float *k = e->qkv + (row + r) * qkv_dim(c) + (c->n_heads + h) * c->head_dim;
            struct sl_kv kv = e->kv[s * n_heads + h];
            kv.n_slots += (uint32_t)r;
            e->model->ops->append(&kv, k, k + n_heads * c->head_dim, qkv_dim(c), (int)count, e->positions + row + r);
            task += count;
        }
        row += m;
        first += m * n_heads;
    }
}

// Append every segment's K and V rows, and describe its heads as they then are in e->kv[segment][Hk].
static void append_rows(struct sl_engine *e, const struct sl_segment *segments, int n_segments, int layer) {
    struct append_args args = {e, segments};
    int n_heads = e->model->config.n_kv_heads;
    int64_t n_tasks = 0;
    for (int s = 0; s < n_segments; s++) {
        for (int h = 0; h < n_heads; h++) {
            e->kv[(int64_t)s * n_heads + h] = sl_session_kv(segments[s].session, layer, h);
        }
        n_tasks += (int64_t)segments[s].n_tokens * n_heads;
    }
    sl_team_run(e->team, n_tasks, APPEND_GRAIN, append_tasks, &args);
    for (int s = 0; s < n_segments; s++) {
        for (int h = 0; h < n_heads; h++) {
            struct sl_kv *kv = &e->kv[(int64_t)s * n_heads + h];
            kv->n_slots += (uint32_t)segments[s].n_tokens;
            sl_session_set_slots(segments[s].session, layer, h, kv->n_slots);
        }
    }
}

// Scores of the retaining heads for m rows from `row` on, head by head: e->scores [m][Hk] to [Hk][m].
static const float *segment_importance(struct sl_engine *e, int64_t row, int m) {
    int n_heads = e->model->config.n_kv_heads;
    float *importance = e->importance + row * n_heads;
    for (int h = 0; h < n_heads; h++) {
        for (int r = 0; r < m; r++) {
            importance[(int64_t)h * m + r] = e->scores[(row + r) * n_heads + h];
        }
    }
    return importance;
}

// Attention of one segment whose rows have been appended.
static struct sl_attend describe(struct sl_engine *e, const struct sl_segment *segment, int layer, int64_t row,
                                 const struct sl_kv *kv, const float *next_q, const struct sl_layer_hook *hook) {
    const struct sl_model_config *c = &e->model->config;
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim;
    struct sl_attend attend = {
        .q = e->qkv + row * qkv_dim(c),
        .q_stride = qkv_dim(c),
        .m = segment->n_tokens,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .kv = kv,
        .rope = segment->session->positions == SL_POSITION_SLOT ? rope_of(e, segment->session) : NULL,
        .window = e->model->layers[layer].window,
        .positions = e->positions + row,
        .out = e->a + row * q_dim,
        .lse = hook != NULL && hook->want_lse ? e->lse + row * c->n_heads : NULL,
        .next_q = next_q != NULL ? next_q + row * q_dim : NULL,
    };
    if (hook != NULL && hook->want_importance) {
        attend.importance = segment_importance(e, row, segment->n_tokens);
    }
    return attend;
}

// Append, attend and hook: e->qkv to e->a. next_q: of all rows, or NULL.
static enum sl_status attention(struct sl_engine *e, const struct sl_segment *segments, int n_segments, int layer,
                                const float *next_q, const struct sl_layer_hook *hook, struct sl_error *err) {
    enum sl_status status = reserve_rows(segments, n_segments, layer, err);
    int64_t row = 0;
    if (status == SL_OK) {
        append_rows(e, segments, n_segments, layer);
    }
    for (int s = 0; s < n_segments && status == SL_OK; row += segments[s++].n_tokens) {
        const struct sl_kv *kv = e->kv + (int64_t)s * e->model->config.n_kv_heads;
        e->calls[s] = describe(e, &segments[s], layer, row, kv, next_q, hook);
    }
    if (status == SL_OK && hook != NULL && hook->attend_fn != NULL) {
        status = hook->attend_fn(hook->arg, layer, e->calls, n_segments);
    } else if (status == SL_OK) {
        e->model->ops->attend(e->team, e->calls, n_segments);
    }
    for (int s = 0; s < n_segments && status == SL_OK && hook != NULL && hook->fn != NULL; s++) {
        status = hook->fn(hook->arg, s, layer, &e->calls[s]);
    }
    return status;
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

struct hand_out_args {
    const float *logits; // [count][n_vocab]
    int64_t n_vocab;
    float *wanted[LOGIT_ROWS], *also[LOGIT_ROWS];
};

static void hand_out_tasks(void *arg, int64_t begin, int64_t end, int member) {
    const struct hand_out_args *a = arg;
    size_t bytes = (size_t)a->n_vocab * sizeof(float);
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        memcpy(a->wanted[r], a->logits + r * a->n_vocab, bytes);
        if (a->also[r] != NULL) {
            memcpy(a->also[r], a->logits + r * a->n_vocab, bytes);
        }
    }
}

// Norm and head for `count` adjacent rows, then every row to those who want it. (s, i) is the first row's place.
static void project_run(struct sl_engine *e, const struct sl_segment *segments, int s, int i, int64_t row,
                        int64_t count) {
    const struct sl_model *model = e->model;
    const struct sl_ops *ops = model->ops;
    int64_t hidden = model->config.hidden, n_vocab = model->config.n_vocab;
    ops->norm(e->team, &model->final_norm, e->x + row * hidden, hidden, count, 1, e->h, hidden);
    multiply(e, &model->head, e->h, count, e->logits, false);
    struct hand_out_args args = {.logits = e->logits, .n_vocab = n_vocab};
    for (int64_t r = 0; r < count; r++) {
        args.wanted[r] = logits_wanted(&segments[s], i, n_vocab, &args.also[r]);
        if (++i == segments[s].n_tokens) {
            s++;
            i = 0;
        }
    }
    sl_team_run(e->team, count, 1, hand_out_tasks, &args);
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
                       "(`sluice train-heads` trains one, tools/convert_retaining_heads.py converts a published one)");
    }
    gather_rows(e, segments, n_segments);

    compute_angles(e, segments, n_segments);
    ops->embed(e->team, &model->embed, e->tokens, m, e->x);
    for (int l = 0; l < c->n_layers; l++) {
        const struct sl_model_layer *layer = &model->layers[l];

        ops->norm(e->team, &layer->attention_norm, e->x, c->hidden, m, 1, e->h, c->hidden);
        multiply(e, &layer->qkv, e->h, m, e->qkv, false);
        normalize_heads(e, layer, m);
        status = see_projections(e, l, m, hook);
        if (status != SL_OK) {
            return status;
        }
        float *next_q = hook != NULL && hook->want_next_q && l + 1 < c->n_layers ? e->next_q : NULL;
        if (next_q != NULL) {
            predict_queries(e, layer + 1, m);
        }
        rotate_rows(e, segments, n_segments, next_q);
        status = attention(e, segments, n_segments, l, next_q, hook, err);
        if (status != SL_OK) {
            return status;
        }
        multiply(e, &layer->o, e->a, m, e->x, true);

        if (layer->mlp_norm.weight != NULL) {
            ops->norm(e->team, &layer->mlp_norm, e->x, c->hidden, m, 1, e->h, c->hidden);
        }
        multiply(e, &layer->up, e->h, m, e->up, false);
        multiply(e, &layer->down, e->up, m, e->x, true);
    }
    project_logits(e, segments, n_segments);

    for (int s = 0; s < n_segments; s++) {
        segments[s].session->n_tokens += segments[s].n_tokens;
    }
    return SL_OK;
}

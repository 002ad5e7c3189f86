// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the forward pass, from top to bottom; the same for all families. Their differences are data of the model:
 *          the kind of a norm, biases, activations, the width of rotations and windows (model_internal.h).
 *
 *   begin        x = embedding[tokens]
 *   each layer
 *     project    h = norm(x);  q, k, v = h Wqkv^T
 *                q, k = norm(q), norm(k) of every head                                     if the model has these norms
 *                importance = retaining heads(q, k, v), next_q = h Wq^T of the next layer  if wanted
 *     append     q, k = rope(q), rope(k), next_q = rope(next_q);  cache += (k, v)
 *     (the caller: out = attention(q, cache))
 *     finish     x = x + out Wo^T
 *                h = norm(x), except in a parallel block: h is attention's input
 *                x = x + (act(h Wgate^T) * (h Wup^T)) Wdown^T                              or act(h Wup^T) Wdown^T
 *   end          logits = norm(x) Whead^T, and tokens chosen from them
 *
 * Design: the rows of all inputs are adjacent: the dense operations process one matrix of m rows, and attention
 *         processes all inputs at once. A row's result never depends on its neighbors (engine/tensor/ops.h), so
 *         neither chunking a prompt nor batching sessions changes a bit. Optional results are computed in scratch
 *         that is idle until the MLP, so they need no extra memory.
 */
#include <assert.h>
#include <math.h>

#include "engine/model/forward_internal.h"

// --- checks --------------------------------------------------------------------------------------------------------

// Returns the number of positions that an input reaches: the session's tokens, or the fullest head's slots if these
// are the positions.
static int64_t positions_after(const struct sl_input *input) {
    const struct sl_session *session = input->session;
    if (session->positions == SL_POSITION_ORIGINAL) {
        return session->n_tokens + input->n_tokens;
    }
    int64_t most = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            int64_t n = session->layers[l].heads[h].n_slots;
            most = n > most ? n : most;
        }
    }
    return most + input->n_tokens;
}

static enum sl_status check_inputs(const struct sl_activations *activations, const struct sl_input *inputs,
                                   int n_inputs, int64_t *m_out, struct sl_error *err) {
    const struct sl_model_config *c = &activations->engine->model->config;
    int64_t m = 0;
    for (int s = 0; s < n_inputs; s++) {
        const struct sl_input *input = &inputs[s];
        assert(input->session->geometry.n_layers == c->n_layers);
        assert(input->session->geometry.n_kv_heads == c->n_kv_heads);
        assert(input->session->geometry.head_dim == c->head_dim);
        assert(input->session->rope_set >= 0 && input->session->rope_set < SL_MAX_ROPE_SETS);
        for (int other = 0; other < s; other++) {
            assert(inputs[other].session != input->session);
        }
        SL_FAIL_IF(input->n_tokens < 1, err, SL_ERR_RANGE, "input %d has %d tokens", s, input->n_tokens);
        for (int i = 0; i < input->n_tokens; i++) {
            SL_FAIL_IF(input->tokens[i] < 0 || input->tokens[i] >= c->n_vocab, err, SL_ERR_RANGE,
                       "token %lld of the prompt is id %d; the vocabulary has %d",
                       (long long)(input->session->n_tokens + i), input->tokens[i], c->n_vocab);
        }
        SL_FAIL_IF(c->window > 0 && input->session->positions == SL_POSITION_SLOT, err, SL_ERR_UNSUPPORTED,
                   "sliding windows of keys that are rotated by slot; use original positions");
        SL_FAIL_IF(positions_after(input) > c->max_positions, err, SL_ERR_RANGE,
                   "position %lld is beyond the %lld that the model was made for",
                   (long long)positions_after(input) - 1, (long long)c->max_positions);
        m += input->n_tokens;
    }
    SL_FAIL_IF(m > activations->max_rows, err, SL_ERR_RANGE, "%lld rows in a call, the engine was made for %d",
               (long long)m, activations->max_rows);
    *m_out = m;
    return SL_OK;
}

// --- projections ---------------------------------------------------------------------------------------------------

// Returns whether next_q of the current layer is wanted: the last layer has no next one.
static bool predicts(const struct sl_pass *pass) {
    return pass->wants.next_q && pass->layer + 1 < pass->engine->model->config.n_layers;
}

// Computes the next layer's queries from this layer's input, before RoPE.
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
    e->model->ops->matmul(e->stream, &next->qkv, &args);
    if (next->q_norm.weight != NULL) {
        e->model->ops->norm(e->stream, &next->q_norm, (struct sl_row_vectors){e->next_q, q_dim, m, c->n_heads},
                            e->next_q, q_dim);
    }
}

// Normalizes q and k if the layer has these norms.
static void normalize_heads(struct sl_engine *e, const struct sl_model_layer *layer, int64_t m) {
    const struct sl_model_config *c = &e->model->config;
    const struct sl_row_vectors q = {e->qkv, sl_qkv_dim(c), m, c->n_heads};
    const struct sl_row_vectors k = {e->qkv + (int64_t)c->n_heads * c->head_dim, q.stride, m, c->n_kv_heads};
    if (layer->q_norm.weight != NULL) {
        e->model->ops->norm(e->stream, &layer->q_norm, q, q.at, q.stride);
    }
    if (layer->k_norm.weight != NULL) {
        e->model->ops->norm(e->stream, &layer->k_norm, k, k.at, k.stride);
    }
}

static const struct sl_rope *rope_of(const struct sl_engine *e, const struct sl_session *session) {
    return &e->model->ropes[session->rope_set];
}

// Computes the angles of every row's position from its session's frequencies: one call per run of inputs that share
// them. Attention rotates keys that are stored unrotated.
static void compute_angles(struct sl_activations *a, const int64_t *positions, const struct sl_input *inputs,
                           int n_inputs) {
    struct sl_engine *e = a->engine;
    int64_t half = e->model->config.rotary_dim / 2;
    for (int s = 0, row = 0; s < n_inputs;) {
        const struct sl_rope *rope = rope_of(e, inputs[s].session);
        enum sl_position_mode mode = inputs[s].session->positions;
        int64_t begin = row;
        while (s < n_inputs && rope_of(e, inputs[s].session) == rope && inputs[s].session->positions == mode) {
            row += inputs[s++].n_tokens;
        }
        if (mode == SL_POSITION_ORIGINAL) {
            e->model->ops->angles(e->stream, rope, positions + begin, row - begin, a->cosines + begin * half,
                                  a->sines + begin * half);
        }
    }
}

// Rotates every input's q, k and (if present) next_q, unless keys are stored unrotated: then attention rotates.
static void rotate_rows(const struct sl_activations *a, const struct sl_input *inputs, int n_inputs, float *next_q) {
    struct sl_engine *e = a->engine;
    const struct sl_model_config *c = &e->model->config;
    const struct sl_ops *ops = e->model->ops;
    const struct sl_rope *rope = &e->model->ropes[0]; // all ropes have its dimensions
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, half = rope->rotary_dim / 2;
    for (int s = 0, row = 0; s < n_inputs;) {
        int64_t begin = row; // one call per run of inputs that rotate
        while (s < n_inputs && inputs[s].session->positions == SL_POSITION_ORIGINAL) {
            row += inputs[s++].n_tokens;
        }
        if (row > begin) {
            const float *cosines = a->cosines + begin * half, *sines = a->sines + begin * half;
            // k follows q: one call rotates the heads of both
            const struct sl_row_vectors qk = {e->qkv + begin * sl_qkv_dim(c), sl_qkv_dim(c), row - begin,
                                              c->n_heads + c->n_kv_heads};
            ops->rotate(e->stream, rope, cosines, sines, qk);
            if (next_q != NULL) {
                const struct sl_row_vectors q = {next_q + begin * q_dim, q_dim, row - begin, c->n_heads};
                ops->rotate(e->stream, rope, cosines, sines, q);
            }
        }
        while (s < n_inputs && inputs[s].session->positions == SL_POSITION_SLOT) {
            row += inputs[s++].n_tokens;
        }
    }
}

// --- the cache -----------------------------------------------------------------------------------------------------

// Reserves room in the cache for every input before anything is written.
static enum sl_status reserve_rows(const struct sl_input *inputs, int n_inputs, int layer, struct sl_error *err) {
    for (int s = 0; s < n_inputs; s++) {
        enum sl_status status = sl_session_reserve(inputs[s].session, layer, inputs[s].n_tokens);
        SL_FAIL_IF(status != SL_OK, err, status, "no room in the KV cache for %d more tokens after %lld (layer %d)",
                   inputs[s].n_tokens, (long long)inputs[s].session->n_tokens, layer);
    }
    return SL_OK;
}

// Describes the rows of one input, from the pass's `row` on.
static struct sl_attend describe(const struct sl_pass *pass, const struct sl_input *input, int64_t row,
                                 struct sl_kv_heads heads) {
    struct sl_engine *e = pass->engine;
    const struct sl_model_config *c = &e->model->config;
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    const float *q = e->qkv + row * sl_qkv_dim(c);
    return (struct sl_attend){
        .q = q,
        .q_stride = sl_qkv_dim(c),
        .k = q + q_dim,
        .v = q + q_dim + kv_dim,
        .kv_stride = sl_qkv_dim(c),
        .m = input->n_tokens,
        .n_heads = c->n_heads,
        .head_dim = c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .heads = heads,
        .rope = input->session->positions == SL_POSITION_SLOT ? rope_of(e, input->session) : NULL,
        .window = e->model->layers[pass->layer].window,
        .positions = pass->activations->given[pass->activations->turn].positions + row,
        .out = e->a + row * q_dim,
        .then = &e->model->layers[pass->layer].o,
        .lse = pass->wants.lse ? e->lse + row * c->n_heads : NULL,
        .importance = pass->wants.importance ? e->scores + row * c->n_kv_heads : NULL,
        .next_q = predicts(pass) ? e->next_q + row * q_dim : NULL,
    };
}

// --- the pass ------------------------------------------------------------------------------------------------------

static void give_rows(struct sl_given *given, const struct sl_input *inputs, int n_inputs) {
    int64_t row = 0;
    for (int s = 0; s < n_inputs; s++) {
        for (int i = 0; i < inputs[s].n_tokens; i++, row++) {
            given->tokens[row] = inputs[s].tokens[i];
            given->positions[row] = inputs[s].session->n_tokens + i;
        }
    }
}

enum sl_status sl_pass_begin(struct sl_activations *a, struct sl_input *inputs, int n_inputs,
                             struct sl_pass_wants wants, struct sl_pass *pass_out, struct sl_error *err) {
    struct sl_engine *e = a->engine;
    struct sl_pass pass = {.engine = e, .activations = a, .inputs = inputs, .n_inputs = n_inputs, .wants = wants};
    SL_TRY(check_inputs(a, inputs, n_inputs, &pass.n_rows, err));
    SL_FAIL_IF(wants.importance && e->model->config.retaining_hidden == 0, err, SL_ERR_PRECONDITION,
               "the model has no retaining heads: retaining_heads.safetensors must lie beside it "
               "(`sluice train-heads` trains one, tools/convert_retaining_heads.py converts a published one)");
    a->given[a->turn].used = sl_stream_mark(e->stream); // after the whole last pass, completed or abandoned
    struct sl_given *given = &a->given[a->turn ^= 1];
    SL_TRY(sl_mark_wait(&given->used, err));
    give_rows(given, inputs, n_inputs);
    compute_angles(a, given->positions, inputs, n_inputs);
    e->model->ops->embed(e->stream, &e->model->embed, given->tokens, pass.n_rows, a->x);
    *pass_out = pass;
    return SL_OK;
}

// Multiplies rows of prompts and other rows apart: a device may use another method for each.
static void multiply(const struct sl_pass *pass, const struct sl_matrix *w, struct sl_matmul product) {
    product.m = 0;
    for (int i = 0; i < 2 * pass->n_inputs; i++) {
        const struct sl_input *input = &pass->inputs[i / 2];
        bool reading = pass->wants.reading || i % 2 == 0;
        int n = i % 2 == 0 ? input->n_reading : input->n_tokens - input->n_reading;
        if (n > 0 && product.m > 0 && reading != product.reading) {
            sl_engine_multiply(pass->engine, w, product);
            product.x += product.m * w->k;
            product.y += product.m * sl_matrix_outputs(w);
            product.m = 0;
        }
        product.reading = n > 0 ? reading : product.reading;
        product.m += n;
    }
    sl_engine_multiply(pass->engine, w, product);
}

void sl_pass_project(struct sl_pass *pass, int layer) {
    struct sl_engine *e = pass->engine;
    const struct sl_model_layer *weights = &e->model->layers[layer];
    int64_t hidden = e->model->config.hidden, m = pass->n_rows;
    pass->layer = layer;
    const struct sl_row_vectors x = {pass->activations->x, hidden, m, 1};
    e->model->ops->norm(e->stream, &weights->attention_norm, x, e->h, hidden);
    multiply(pass, &weights->qkv, (struct sl_matmul){.x = e->h, .y = e->qkv});
    normalize_heads(e, weights, m);
    if (pass->wants.importance) {
        sl_retaining_score(e, layer, m);
    }
    if (predicts(pass)) {
        predict_queries(e, weights + 1, m);
    }
    pass->projections = e->qkv;
}

enum sl_status sl_pass_append(struct sl_pass *pass, struct sl_error *err) {
    struct sl_engine *e = pass->engine;
    rotate_rows(pass->activations, pass->inputs, pass->n_inputs, predicts(pass) ? e->next_q : NULL);
    SL_TRY(reserve_rows(pass->inputs, pass->n_inputs, pass->layer, err));
    int n_heads = e->model->config.n_kv_heads;
    for (int i = 0; i < pass->n_inputs; i++) {
        sl_session_add_slots(pass->inputs[i].session, pass->layer, pass->inputs[i].n_tokens);
        sl_session_heads(pass->inputs[i].session, pass->layer, e->kv + (int64_t)i * n_heads);
    }
    struct sl_kv_heads all = {.kv = e->kv, .n = pass->n_inputs * n_heads};
    SL_TRY(e->model->ops->publish(e->stream, &all, err));
    int64_t row = 0;
    for (int i = 0; i < pass->n_inputs; row += pass->inputs[i++].n_tokens) {
        e->calls[i] = describe(pass, &pass->inputs[i], row, sl_kv_heads_part(all, i * n_heads, n_heads));
    }
    e->model->ops->append(e->stream, e->calls, pass->n_inputs);
    pass->attends = e->calls;
    return SL_OK;
}

// Returns whether the layer's output is unused: the last layer's output only feeds the logits.
static bool feeds_nothing(const struct sl_pass *pass) {
    bool wanted = pass->layer + 1 < pass->engine->model->config.n_layers;
    for (int i = 0; i < pass->n_inputs; i++) {
        const struct sl_input *input = &pass->inputs[i];
        wanted = wanted || input->logits != NULL || input->all_logits != NULL || input->choice != NULL;
    }
    return !wanted;
}

void sl_pass_finish(struct sl_pass *pass) {
    struct sl_engine *e = pass->engine;
    if (feeds_nothing(pass)) {
        return;
    }
    const struct sl_model_layer *weights = &e->model->layers[pass->layer];
    int64_t hidden = e->model->config.hidden, m = pass->n_rows;
    float *x = pass->activations->x;
    multiply(pass, &weights->o, (struct sl_matmul){.x = e->a, .y = x, .accumulate = true});
    if (weights->mlp_norm.weight != NULL) {
        e->model->ops->norm(e->stream, &weights->mlp_norm, (struct sl_row_vectors){x, hidden, m, 1}, e->h, hidden);
    }
    multiply(pass, &weights->up, (struct sl_matmul){.x = e->h, .y = e->up, .then = &weights->down});
    multiply(pass, &weights->down, (struct sl_matmul){.x = e->up, .y = x, .accumulate = true});
}

enum sl_status sl_pass_end(struct sl_pass *pass, struct sl_error *err) {
    SL_TRY(sl_pass_logits(pass, err));
    for (int i = 0; i < pass->n_inputs; i++) {
        pass->inputs[i].session->n_tokens += pass->inputs[i].n_tokens;
    }
    return SL_OK;
}

void sl_pass_attend_some(struct sl_pass *pass, const bool *wanted) {
    struct sl_engine *e = pass->engine;
    int n = 0;
    for (int i = 0; i < pass->n_inputs; i++) {
        if (wanted[i]) {
            e->some[n++] = pass->attends[i];
        }
    }
    if (n > 0) {
        e->model->ops->attend(e->stream, e->some, n);
    }
}

enum sl_status sl_pass_attend(struct sl_pass *pass, int layer, struct sl_error *err) {
    sl_pass_project(pass, layer);
    SL_TRY(sl_pass_append(pass, err));
    pass->engine->model->ops->attend(pass->engine->stream, pass->attends, pass->n_inputs);
    return SL_OK;
}

enum sl_status sl_engine_forward(struct sl_engine *e, struct sl_input *inputs, int n_inputs, struct sl_error *err) {
    struct sl_pass pass;
    enum sl_status status = sl_pass_begin(e->own, inputs, n_inputs, (struct sl_pass_wants){0}, &pass, err);
    for (int layer = 0; layer < e->model->config.n_layers && status == SL_OK; layer++) {
        status = sl_pass_attend(&pass, layer, err);
        if (status == SL_OK) {
            sl_pass_finish(&pass);
        }
    }
    return status == SL_OK ? sl_pass_end(&pass, err) : status;
}

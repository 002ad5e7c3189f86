// SPDX-License-Identifier: Apache-2.0
#include "lab/train/example.h"

#include <math.h>
#include <stdlib.h>

#include "engine/tensor/half.h"

#define SLOT_BLOCK SL_PAGE_SLOTS // slots per task

struct sl_heads_shape sl_heads_shape_of(const struct sl_model_config *config, int n_hidden) {
    return (struct sl_heads_shape){.n_layers = config->n_layers,
                                   .n_columns = (config->n_heads + 2 * config->n_kv_heads) * config->head_dim,
                                   .n_hidden = n_hidden,
                                   .n_kv_heads = config->n_kv_heads};
}

void sl_example_cleanup(struct sl_example *example) {
    free(example->features);
    free(example->labels);
    free(example->first);
    *example = (struct sl_example){0};
}

static enum sl_status allocate(struct sl_example *example, struct sl_error *err) {
    size_t of_layers = (size_t)example->n_layers * (size_t)example->n_tokens;
    size_t n_labels = of_layers * (size_t)example->n_kv_heads;
    example->features = malloc(of_layers * (size_t)example->n_columns * sizeof *example->features);
    example->labels = malloc(n_labels * sizeof *example->labels);
    example->first = calloc((size_t)example->n_layers, sizeof *example->first);
    SL_FAIL_OR(example->features == NULL || example->labels == NULL || example->first == NULL,
               sl_example_cleanup(example), err, SL_ERR_EXHAUSTED, "out of memory for the features of %lld tokens",
               (long long)example->n_tokens);
    for (size_t i = 0; i < n_labels; i++) {
        example->labels[i] = -INFINITY;
    }
    return SL_OK;
}

struct sl_heads_example sl_example_layer(const struct sl_example *example, int layer) {
    int64_t first = example->first[layer], n = example->n_tokens;
    return (struct sl_heads_example){.features = example->features + ((int64_t)layer * n + first) * example->n_columns,
                                     .dtype = SL_BF16,
                                     .labels = example->labels + (int64_t)layer * example->n_kv_heads * n + first,
                                     .label_stride = n,
                                     .n_tokens = n - first};
}

// --- while the prompt is read ----------------------------------------------------------------------------------------

struct reading {
    const struct sl_ops *ops;
    struct sl_stream *stream;
    struct sl_example *example;
    int64_t n_read; // tokens read before this call
};

struct rounding {
    const float *from;
    uint16_t *to;
    int64_t n_columns;
};

// Task: rounds rows.
static void round_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct rounding *a = arg;
    (void)member;
    for (int64_t i = begin * a->n_columns; i < end * a->n_columns; i++) {
        a->to[i] = sl_f32_to_bf16(a->from[i]);
    }
}

static void take_features(struct reading *r, int layer, const float *features, int64_t n_rows) {
    struct sl_example *example = r->example;
    int64_t left = example->n_tokens - r->n_read; // later rows are the answer's
    int64_t row = (int64_t)layer * example->n_tokens + r->n_read;
    struct rounding rounding = {features, example->features + row * example->n_columns, example->n_columns};
    sl_stream_run(r->stream, left < n_rows ? left : n_rows, 16, round_rows, &rounding);
}

struct labelling {
    const struct reading *reading;
    const struct sl_attend *attend;
    float *labels;    // [Hk][n_tokens] of the layer
    int64_t first, n; // prompt slots that any row sees
    int first_row;    // first row of the answer within the call
};

// Reads keys[c][j] of slots [from, to) of a head, and zeros after them.
static void read_keys(const struct sl_ops *ops, const struct sl_kv *kv, int64_t from, int64_t to,
                      float keys[][SLOT_BLOCK]) {
    float rows[SLOT_BLOCK * SL_MAX_HEAD_DIM];
    int d = kv->work->head_dim;
    ops->read_rows(kv, (uint32_t)from, (uint32_t)to, rows, NULL);
    for (int c = 0; c < d; c++) {
        for (int64_t j = 0; j < SLOT_BLOCK; j++) {
            keys[c][j] = from + j < to ? rows[j * d + c] : 0.0f;
        }
    }
}

// Task: labels blocks of slots, KV head after KV head.
static void label_blocks(void *arg, int64_t begin, int64_t end, int member) {
    const struct labelling *l = arg;
    const struct sl_attend *a = l->attend;
    int64_t n_blocks = (l->n - l->first + SLOT_BLOCK - 1) / SLOT_BLOCK;
    int group = a->n_heads / a->heads.n;
    (void)member;
    for (int64_t task = begin; task < end; task++) {
        int64_t h = task / n_blocks, from = l->first + task % n_blocks * SLOT_BLOCK;
        int64_t to = from + SLOT_BLOCK < l->n ? from + SLOT_BLOCK : l->n;
        float *labels = l->labels + h * l->reading->example->n_tokens, keys[SL_MAX_HEAD_DIM][SLOT_BLOCK];
        read_keys(l->reading->ops, &a->heads.kv[h], from, to, keys);
        for (int r = l->first_row; r < a->m; r++) {
            int64_t outside = a->window > 0 ? a->positions[r] - a->window + 1 : 0; // slots are positions here
            int64_t seen = outside > from ? outside : from;
            for (int64_t g = h * group; g < (h + 1) * group && seen < to; g++) {
                const float *q = a->q + r * sl_attend_q_stride(a) + g * a->head_dim;
                float products[SLOT_BLOCK] = {0};
                for (int c = 0; c < a->head_dim; c++) {
                    for (int j = 0; j < SLOT_BLOCK; j++) {
                        products[j] += q[c] * keys[c][j];
                    }
                }
                for (int64_t j = seen; j < to; j++) {
                    float logit = a->scale * products[j - from];
                    labels[j] = logit > labels[j] ? logit : labels[j];
                }
            }
        }
    }
}

static void take_labels(struct reading *r, int layer, const struct sl_attend *attend) {
    struct sl_example *example = r->example;
    int64_t first_row = example->n_tokens - 1 - r->n_read;
    if (first_row >= attend->m) {
        return;
    }
    if (first_row >= 0) { // the first row of the answer sees farthest back
        int64_t outside = attend->window > 0 ? example->n_tokens - attend->window : 0;
        example->first[layer] = outside > 0 ? outside : 0;
    }
    struct labelling labelling = {.reading = r,
                                  .attend = attend,
                                  .labels = example->labels + (int64_t)layer * example->n_kv_heads * example->n_tokens,
                                  .first = example->first[layer],
                                  .n = example->n_tokens,
                                  .first_row = first_row > 0 ? (int)first_row : 0};
    int64_t n_blocks = (labelling.n - labelling.first + SLOT_BLOCK - 1) / SLOT_BLOCK;
    sl_stream_run(r->stream, n_blocks * example->n_kv_heads, 1, label_blocks, &labelling);
}

// --- reading ---------------------------------------------------------------------------------------------------------

static enum sl_status create_session(const struct sl_teacher *teacher, int64_t n_tokens,
                                     struct sl_session **session_out, struct sl_error *err) {
    const struct sl_model_config *c = sl_model_get_config(teacher->model);
    struct sl_kv_geometry geometry = sl_model_geometry(c);
    SL_TRY(sl_session_create_plain(&geometry, SL_KV_F32, SL_POSITION_ORIGINAL, n_tokens, teacher->arena, session_out,
                                   err));
    (*session_out)->rope_set = sl_model_rope_set(c, n_tokens);
    return SL_OK;
}

// Reads one chunk: features of the prompt's rows, and labels of the prompt's slots from the answer's rows.
static enum sl_status read_chunk(const struct sl_teacher *teacher, struct sl_input *input, struct reading *reading,
                                 struct sl_error *err) {
    struct sl_pass pass;
    enum sl_status status =
        sl_pass_begin(sl_engine_activations(teacher->engine), input, 1, (struct sl_pass_wants){0}, &pass, err);
    for (int layer = 0; layer < reading->example->n_layers && status == SL_OK; layer++) {
        sl_pass_project(&pass, layer);
        if (reading->n_read < reading->example->n_tokens) {
            take_features(reading, layer, pass.projections, pass.n_rows);
        }
        status = sl_pass_append(&pass, err);
        if (status == SL_OK) {
            reading->ops->attend(reading->stream, pass.attends, 1);
            take_labels(reading, layer, pass.attends);
            sl_pass_finish(&pass);
        }
    }
    return status == SL_OK ? sl_pass_end(&pass, err) : status;
}

static enum sl_status read_all(const struct sl_teacher *teacher, const int32_t *tokens, int64_t n_tokens,
                               struct sl_example *example, struct sl_error *err) {
    struct reading reading = {
        .ops = sl_engine_ops(teacher->engine), .stream = sl_engine_stream(teacher->engine), .example = example};
    struct sl_session *session = NULL;
    enum sl_status status = create_session(teacher, n_tokens, &session, err);
    while (status == SL_OK && session->n_tokens < n_tokens) {
        reading.n_read = session->n_tokens;
        int64_t left = n_tokens - reading.n_read;
        struct sl_input input = {.session = session,
                                 .tokens = tokens + reading.n_read,
                                 .n_tokens = left < teacher->chunk ? (int)left : teacher->chunk};
        status = read_chunk(teacher, &input, &reading, err);
    }
    sl_session_destroy(&session);
    return status;
}

enum sl_status sl_example_read(const struct sl_teacher *teacher, const int32_t *tokens, int64_t n_tokens,
                               int64_t n_prompt, struct sl_example *example_out, struct sl_error *err) {
    const struct sl_model_config *c = sl_model_get_config(teacher->model);
    struct sl_heads_shape shape = sl_heads_shape_of(c, 1);
    struct sl_example example = {
        .n_layers = shape.n_layers, .n_columns = shape.n_columns, .n_kv_heads = shape.n_kv_heads, .n_tokens = n_prompt};
    SL_FAIL_IF(n_prompt < 2 || n_tokens < n_prompt, err, SL_ERR_INVALID,
               "a prompt of %lld tokens: retaining heads learn from 2 or more", (long long)n_prompt);
    SL_FAIL_IF(c->window == 1, err, SL_ERR_UNSUPPORTED,
               "a sliding window of one token: answers see nothing of the prompt");
    enum sl_status status = allocate(&example, err);
    SL_THEN(status, read_all(teacher, tokens, n_tokens, &example, err));
    if (status == SL_OK) {
        *example_out = example;
    } else {
        sl_example_cleanup(&example);
    }
    return status;
}

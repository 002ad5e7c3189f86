// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: training of retaining heads; see heads.h.
 *
 * Equations of one layer of one prompt of n tokens, with X [n][C]:
 *
 *     H = W1 X^T          [R][n]        A = H * sigmoid(H)        S = W2 A          [Hk][n]
 *     dS = weight (smooth-L1'(S - label) / (Hk n L) + smooth * smoothness'(S) / (Hk (n - 1)))
 *     dW2 += dS A^T       dA = W2^T dS  dH = dA * sigmoid(H) (1 + H (1 - sigmoid(H)))
 *     dW1 += dH X
 */
#include "lab/train/heads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/ascending.h"
#include "base/close.h"
#include "base/hash.h"

#define TOKEN_BLOCK 256   // tokens per task: a block of every row of H and its sigmoid fits in L2
#define PARAMETERS  65536 // parameters per AdamW task
#define LANES       16    // partial sums of a dot product: the order is fixed, and the compiler can vectorize it
#define ROW_FLOATS  16    // rows of scratch begin at multiples of 64 bytes

struct sl_heads {
    struct sl_heads_shape shape;
    const struct sl_ops *ops;
    struct sl_stream *stream;
    struct sl_heads_state state;
    // Scratch for up to max_tokens; grows with longer prompts.
    int64_t max_tokens;
    float *hidden;    // [R][stride] H, then dH
    float *sigmoid;   // [R][stride] sigmoid(H)
    float *scores;    // [Hk][stride] S
    float *gradient;  // [Hk][stride] dS
    void *transposed; // [C][n] X^T in the type of X
    uint32_t *best;   // [Hk][2][n] for the overlap
    void *products;   // scratch of ops->matmul
    size_t product_bytes;
    double *shares; // [3][Hk] shares of the loss
};

static int64_t row_stride(int64_t n_tokens) {
    return (n_tokens + ROW_FLOATS - 1) / ROW_FLOATS * ROW_FLOATS;
}

// Returns the floats of a matrix among the parameters, padded so that the next one has the alignment that products
// need.
static size_t matrix_floats(int rows, int columns) {
    return (size_t)row_stride((int64_t)rows * columns);
}

size_t sl_heads_w1_offset(const struct sl_heads_shape *s, int layer) {
    return (size_t)layer * (matrix_floats(s->n_hidden, s->n_columns) + matrix_floats(s->n_kv_heads, s->n_hidden));
}

size_t sl_heads_w2_offset(const struct sl_heads_shape *s, int layer) {
    return sl_heads_w1_offset(s, layer) + matrix_floats(s->n_hidden, s->n_columns);
}

// --- life ------------------------------------------------------------------------------------------------------------

static void *allocate(size_t bytes) {
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void free_scratch(struct sl_heads *h) {
    free(h->hidden);
    free(h->sigmoid);
    free(h->scores);
    free(h->gradient);
    free(h->transposed);
    free(h->best);
    h->hidden = h->sigmoid = h->scores = h->gradient = NULL;
    h->transposed = NULL;
    h->best = NULL;
    h->max_tokens = 0;
}

// Returns a number in (0, 1].
static double uniform(uint64_t stream, uint64_t index) {
    return (double)((sl_mix(stream + index * SL_GOLDEN) >> 11) + 1) * 0x1p-53;
}

// Fills w with normal numbers (Box and Muller) derived from (seed, matrix).
static void fill_normal(float *w, int64_t n, double deviation, uint64_t seed, uint64_t matrix) {
    uint64_t stream = sl_mix(sl_mix(seed + SL_GOLDEN) + matrix * SL_GOLDEN);
    for (int64_t i = 0; i < n; i++) {
        double radius = sqrt(-2.0 * log(uniform(stream, 2 * (uint64_t)i)));
        w[i] = (float)(deviation * radius * cos(6.283185307179586 * uniform(stream, 2 * (uint64_t)i + 1)));
    }
}

// Allocates zeros for the state. What a checkpoint has is in a memory file, so that another process can map it.
static enum sl_status allocate_state(struct sl_heads_state *s, struct sl_error *err) {
    size_t bytes = s->n * sizeof(float), mapped_bytes = 3 * bytes;
    s->gradients = allocate(bytes);
    s->memory = memfd_create("heads", 0);
    void *mapped = MAP_FAILED;
    if (s->gradients != NULL && s->memory >= 0 && ftruncate(s->memory, (off_t)mapped_bytes) == 0) {
        mapped = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->memory, 0);
    }
    SL_FAIL_IF(mapped == MAP_FAILED, err, SL_ERR_EXHAUSTED,
               "out of memory for %zu parameters of heads and what trains them", s->n);
    memset(s->gradients, 0, bytes);
    s->parameters = mapped;
    s->means = s->parameters + s->n;
    s->squares = s->means + s->n;
    return SL_OK;
}

enum sl_status sl_heads_create(const struct sl_heads_shape *shape, const struct sl_ops *ops, struct sl_stream *stream,
                               double initializer_range, uint64_t seed, struct sl_heads **heads_out,
                               struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_heads, h, err, "out of memory");
    h->shape = *shape;
    h->ops = ops;
    h->stream = stream;
    struct sl_heads_state *s = &h->state;
    s->n = sl_heads_w1_offset(shape, shape->n_layers);
    SL_TRY_OR(allocate_state(s, err), sl_heads_destroy(&h));
    h->shares = calloc((size_t)shape->n_kv_heads, 3 * sizeof *h->shares);
    SL_FAIL_OR(h->shares == NULL, sl_heads_destroy(&h), err, SL_ERR_EXHAUSTED, "out of memory");
    for (int l = 0; l < shape->n_layers; l++) {
        fill_normal(s->parameters + sl_heads_w1_offset(shape, l), (int64_t)shape->n_hidden * shape->n_columns,
                    initializer_range, seed, (uint64_t)l * 2);
        fill_normal(s->parameters + sl_heads_w2_offset(shape, l), (int64_t)shape->n_kv_heads * shape->n_hidden,
                    initializer_range, seed, (uint64_t)l * 2 + 1);
    }
    *heads_out = h;
    return SL_OK;
}

void sl_heads_destroy(struct sl_heads **heads) {
    SL_TAKE_OR_RETURN(h, heads);
    free_scratch(h);
    free(h->products);
    free(h->shares);
    if (h->state.parameters != NULL) {
        munmap(h->state.parameters, 3 * h->state.n * sizeof(float));
    }
    sl_close(h->state.memory);
    free(h->state.gradients);
    free(h);
}

const struct sl_heads_shape *sl_heads_get_shape(const struct sl_heads *heads) {
    return &heads->shape;
}

struct sl_heads_state *sl_heads_get_state(struct sl_heads *heads) {
    return &heads->state;
}

static enum sl_status reserve_tokens(struct sl_heads *h, int64_t n_tokens, struct sl_error *err) {
    if (n_tokens <= h->max_tokens) {
        return SL_OK;
    }
    size_t row = (size_t)row_stride(n_tokens) * sizeof(float), n = (size_t)n_tokens;
    size_t n_hidden = (size_t)h->shape.n_hidden, n_heads = (size_t)h->shape.n_kv_heads;
    free_scratch(h);
    h->hidden = allocate(n_hidden * row);
    h->sigmoid = allocate(n_hidden * row);
    h->scores = allocate(n_heads * row);
    h->gradient = allocate(n_heads * row);
    h->transposed = allocate((size_t)h->shape.n_columns * n * sizeof(float));
    h->best = allocate(n_heads * 2 * n * sizeof(uint32_t));
    SL_FAIL_OR(!h->hidden || !h->sigmoid || !h->scores || !h->gradient || !h->transposed || !h->best, free_scratch(h),
               err, SL_ERR_EXHAUSTED, "out of memory for heads of %d over a prompt of %lld tokens", h->shape.n_hidden,
               (long long)n_tokens);
    h->max_tokens = n_tokens;
    return SL_OK;
}

// Computes y (+)= x w^T for a matrix that exists for this product only.
static enum sl_status multiply(struct sl_heads *h, const void *w, enum sl_dtype dtype, int64_t n, int64_t k,
                               struct sl_matmul args, struct sl_error *err) {
    struct sl_matrix matrix = {.n = n, .k = k, .dtype = dtype, .parts = {{w, n}}};
    SL_TRY(h->ops->pack(h->stream, &matrix, err));
    size_t bytes = h->ops->matmul_scratch(&matrix, args.m);
    if (bytes > h->product_bytes) {
        free(h->products);
        h->products = allocate(bytes);
        h->product_bytes = h->products != NULL ? bytes : 0;
    }
    SL_FAIL_OR(bytes > 0 && h->products == NULL, h->ops->unpack(&matrix), err, SL_ERR_EXHAUSTED,
               "out of memory for %zu bytes of a product", bytes);
    args.scratch = h->products;
    h->ops->matmul(h->stream, &matrix, &args);
    h->ops->unpack(&matrix);
    return SL_OK;
}

// --- one layer of one prompt -----------------------------------------------------------------------------------------

struct pass {
    struct sl_heads *heads;
    const struct sl_heads_example *example;
    int64_t stride;
    const float *w2; // [Hk][R]
    float *dw2;      // [Hk][R]
    double smooth, weight;
    double *smooth_l1, *smoothness, *overlap; // [Hk]
};

// Returns exp to a relative error of about 1e-7, written so that the compiler vectorizes it; clamps x to the range of
// normal results.
static inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; // rounds to nearest: adding 1.5 * 2^23 drops the fraction
    float f = (x - n * 0.693359375f) + n * 2.12194440e-4f, p = 1.0f / 720.0f;
    p = p * f + 1.0f / 120.0f;
    p = p * f + 1.0f / 24.0f;
    p = p * f + 1.0f / 6.0f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

// Task: computes rows of H.
static void sigmoid_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct pass *p = arg;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        const float *hidden = p->heads->hidden + r * p->stride;
        float *out = p->heads->sigmoid + r * p->stride;
        for (int64_t t = 0; t < p->example->n_tokens; t++) {
            out[t] = 1.0f / (1.0f + exp_of(-hidden[t]));
        }
    }
}

// Task: scores blocks of tokens. S = W2 A, sums over hidden units in order.
static void score_tokens(void *arg, int64_t begin, int64_t end, int member) {
    const struct pass *p = arg;
    const struct sl_heads_shape *s = &p->heads->shape;
    (void)member;
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block * TOKEN_BLOCK, left = p->example->n_tokens - first;
        int64_t n = left < TOKEN_BLOCK ? left : TOKEN_BLOCK;
        for (int h = 0; h < s->n_kv_heads; h++) {
            memset(p->heads->scores + h * p->stride + first, 0, (size_t)n * sizeof(float));
        }
        for (int64_t r = 0; r < s->n_hidden; r++) {
            const float *hidden = p->heads->hidden + r * p->stride + first;
            const float *sigmoid = p->heads->sigmoid + r * p->stride + first;
            float a[TOKEN_BLOCK];
            for (int64_t t = 0; t < n; t++) {
                a[t] = hidden[t] * sigmoid[t];
            }
            for (int h = 0; h < s->n_kv_heads; h++) {
                float *scores = p->heads->scores + h * p->stride + first, w = p->w2[(int64_t)h * s->n_hidden + r];
                for (int64_t t = 0; t < n; t++) {
                    scores[t] += w * a[t];
                }
            }
        }
    }
}

// Returns the share of the best tenth by label that is in the best tenth by score. best: [2][n_tokens]
static double overlap_of(const struct pass *p, const float *scores, const float *labels, uint32_t *best) {
    uint32_t n = (uint32_t)p->example->n_tokens, b = n / 10 > 0 ? n / 10 : 1, *by_label = best + n;
    p->heads->ops->host.select(scores, n, b, best);
    p->heads->ops->host.select(labels, n, b, by_label);
    return (double)sl_ascending_common(best, b, by_label, b) / (double)b;
}

// Task: computes loss, overlap and dS of KV heads.
static void judge_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct pass *p = arg;
    const struct sl_heads_shape *s = &p->heads->shape;
    int64_t n = p->example->n_tokens;
    double of_label = p->weight / ((double)s->n_kv_heads * (double)n * (double)s->n_layers);
    double of_pair = p->weight / ((double)s->n_kv_heads * (double)(n - 1));
    (void)member;
    for (int64_t h = begin; h < end; h++) {
        const float *scores = p->heads->scores + h * p->stride,
                    *labels = p->example->labels + h * p->example->label_stride;
        float *gradient = p->heads->gradient + h * p->stride;
        double smooth_l1 = 0, smoothness = 0, before = 0; // before: contribution of the pair with the previous token
        for (int64_t t = 0; t < n; t++) {
            double off = (double)scores[t] - (double)labels[t], far = fabs(off);
            smooth_l1 += far < 1 ? 0.5 * off * off : far - 0.5;
            double slope = of_label * (far < 1 ? off : off > 0 ? 1.0 : -1.0), step = 0;
            if (t + 1 < n) {
                step = (double)scores[t] - (double)scores[t + 1];
                smoothness += step * step;
            }
            gradient[t] = (float)(slope + 2 * p->smooth * of_pair * (step - before));
            before = step;
        }
        p->smooth_l1[h] = of_label * smooth_l1;
        p->smoothness[h] = of_pair * smoothness;
        p->overlap[h] = p->weight / ((double)s->n_kv_heads * (double)s->n_layers) *
                        overlap_of(p, scores, labels, p->heads->best + h * 2 * n);
    }
}

static float dot(const float *a, const float *b, int64_t n) {
    float sums[LANES] = {0};
    int64_t t = 0;
    for (; t + LANES <= n; t += LANES) {
        for (int i = 0; i < LANES; i++) {
            sums[i] += a[t + i] * b[t + i];
        }
    }
    for (int i = 0; t < n; t++, i++) {
        sums[i] += a[t] * b[t];
    }
    double sum = 0;
    for (int i = 0; i < LANES; i++) {
        sum += (double)sums[i];
    }
    return (float)sum;
}

// Task: turns rows of H into rows of dH; computes their columns of dW2.
static void differentiate_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct pass *p = arg;
    const struct sl_heads_shape *s = &p->heads->shape;
    int64_t n = p->example->n_tokens;
    (void)member;
    for (int64_t r = begin; r < end; r++) {
        float *hidden = p->heads->hidden + r * p->stride, *sigmoid = p->heads->sigmoid + r * p->stride;
        for (int64_t first = 0; first < n; first += TOKEN_BLOCK) {
            int64_t count = n - first < TOKEN_BLOCK ? n - first : TOKEN_BLOCK;
            float a[TOKEN_BLOCK], da[TOKEN_BLOCK] = {0}, *x = hidden + first, *y = sigmoid + first;
            for (int64_t t = 0; t < count; t++) {
                a[t] = x[t] * y[t];
            }
            for (int h = 0; h < s->n_kv_heads; h++) {
                const float *gradient = p->heads->gradient + h * p->stride + first;
                float w = p->w2[(int64_t)h * s->n_hidden + r];
                for (int64_t t = 0; t < count; t++) {
                    da[t] += w * gradient[t];
                }
                p->dw2[(int64_t)h * s->n_hidden + r] += dot(gradient, a, count);
            }
            for (int64_t t = 0; t < count; t++) {
                x[t] = da[t] * y[t] * (1.0f + x[t] * (1.0f - y[t]));
            }
        }
    }
}

// Task: turns columns of X into rows of X^T.
static void transpose_columns(void *arg, int64_t begin, int64_t end, int member) {
    const struct pass *p = arg;
    int64_t n = p->example->n_tokens, columns = p->heads->shape.n_columns;
    (void)member;
    for (int64_t t = 0; t < n; t++) {
        if (p->example->dtype == SL_F32) {
            const float *from = (const float *)p->example->features + t * columns;
            float *to = (float *)p->heads->transposed + t;
            for (int64_t c = begin; c < end; c++) {
                to[c * n] = from[c];
            }
        } else {
            const uint16_t *from = (const uint16_t *)p->example->features + t * columns;
            uint16_t *to = (uint16_t *)p->heads->transposed + t;
            for (int64_t c = begin; c < end; c++) {
                to[c * n] = from[c];
            }
        }
    }
}

static enum sl_status run_pass(struct pass *p, int layer, struct sl_error *err) {
    struct sl_heads *h = p->heads;
    const struct sl_heads_shape *s = &h->shape;
    const struct sl_heads_example *e = p->example;
    size_t w1 = sl_heads_w1_offset(s, layer);
    struct sl_matmul forward = {.x = h->state.parameters + w1,
                                .x_stride = s->n_columns,
                                .m = s->n_hidden,
                                .y = h->hidden,
                                .y_stride = p->stride};
    struct sl_matmul backward = {.x = h->hidden,
                                 .x_stride = p->stride,
                                 .m = s->n_hidden,
                                 .y = h->state.gradients + w1,
                                 .y_stride = s->n_columns,
                                 .accumulate = true};
    SL_TRY(multiply(h, e->features, e->dtype, e->n_tokens, s->n_columns, forward, err));
    sl_stream_run(h->stream, s->n_hidden, 8, sigmoid_rows, p);
    sl_stream_run(h->stream, (e->n_tokens + TOKEN_BLOCK - 1) / TOKEN_BLOCK, 1, score_tokens, p);
    sl_stream_run(h->stream, s->n_kv_heads, 1, judge_heads, p);
    sl_stream_run(h->stream, s->n_hidden, 8, differentiate_rows, p);
    sl_stream_run(h->stream, s->n_columns, 32, transpose_columns, p);
    return multiply(h, h->transposed, e->dtype, s->n_columns, e->n_tokens, backward, err);
}

enum sl_status sl_heads_backward(struct sl_heads *heads, int layer, const struct sl_heads_example *example,
                                 double smooth, double weight, struct sl_heads_loss *loss_inout, struct sl_error *err) {
    SL_TRY(reserve_tokens(heads, example->n_tokens, err));
    int n_heads = heads->shape.n_kv_heads;
    size_t w2 = sl_heads_w2_offset(&heads->shape, layer);
    struct pass pass = {.heads = heads,
                        .example = example,
                        .stride = row_stride(example->n_tokens),
                        .w2 = heads->state.parameters + w2,
                        .dw2 = heads->state.gradients + w2,
                        .smooth = smooth,
                        .weight = weight,
                        .smooth_l1 = heads->shares,
                        .smoothness = heads->shares + n_heads,
                        .overlap = heads->shares + 2 * (size_t)n_heads};
    enum sl_status status = run_pass(&pass, layer, err);
    for (int h = 0; h < n_heads && status == SL_OK; h++) {
        loss_inout->smooth_l1 += pass.smooth_l1[h];
        loss_inout->smoothness += pass.smoothness[h];
        loss_inout->overlap += pass.overlap[h];
    }
    return status;
}

// --- AdamW -----------------------------------------------------------------------------------------------------------

struct adamw_pass {
    struct sl_heads_state *state;
    float decay, beta1, beta2, eps, clip, step; // decay: 1 - lr * weight_decay; step: lr / (1 - beta1^t)
    float correction;                           // sqrt(1 - beta2^t)
};

// Task: updates blocks of parameters.
static void adamw_blocks(void *arg, int64_t begin, int64_t end, int member) {
    const struct adamw_pass *a = arg;
    size_t last = (size_t)end * PARAMETERS < a->state->n ? (size_t)end * PARAMETERS : a->state->n;
    float *restrict w = a->state->parameters, *restrict g = a->state->gradients;
    float *restrict mean = a->state->means, *restrict square = a->state->squares;
    (void)member;
    for (size_t i = (size_t)begin * PARAMETERS; i < last; i++) {
        float clipped = g[i] > a->clip ? a->clip : g[i] < -a->clip ? -a->clip : g[i];
        mean[i] = a->beta1 * mean[i] + (1.0f - a->beta1) * clipped;
        square[i] = a->beta2 * square[i] + (1.0f - a->beta2) * clipped * clipped;
        w[i] = w[i] * a->decay - a->step * mean[i] / (sqrtf(square[i]) / a->correction + a->eps);
        g[i] = 0.0f;
    }
}

void sl_heads_step(struct sl_heads *heads, const struct sl_adamw *adamw) {
    struct sl_heads_state *s = &heads->state;
    double t = (double)++s->n_steps;
    struct adamw_pass pass = {.state = s,
                              .decay = (float)(1.0 - adamw->lr * adamw->weight_decay),
                              .beta1 = (float)adamw->beta1,
                              .beta2 = (float)adamw->beta2,
                              .eps = (float)adamw->eps,
                              .clip = adamw->clip > 0 ? (float)adamw->clip : INFINITY,
                              .step = (float)(adamw->lr / (1.0 - pow(adamw->beta1, t))),
                              .correction = (float)sqrt(1.0 - pow(adamw->beta2, t))};
    sl_stream_run(heads->stream, (int64_t)((s->n + PARAMETERS - 1) / PARAMETERS), 1, adamw_blocks, &pass);
}

double sl_heads_lr(double lr, int64_t step, int64_t warm_up, int64_t n_steps) {
    double up = warm_up > 0 ? (double)(step + 1) / (double)warm_up : 1.0;
    int64_t rest = n_steps > warm_up ? n_steps - warm_up : 1;
    double down = (double)(n_steps - step) / (double)rest;
    double share = up < down ? up : down;
    return lr * (share < 1.0 ? share : 1.0);
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the matrix products of every tier, type and format to sums in f64, and times them (--time).
 *
 * Design: random inputs of odd sizes, through every combination of what a product goes through (`flavours`). The bound scales with the
 *         magnitude of what was added up. Guard words lie around every output, and between its rows. The promise of
 *         engine/tensor/ops.h is held: a row's bits depend neither on the other rows of the call, nor on the stream, nor on the columns.
 */
#include <float.h>
#include <math.h>

#include "engine/tensor/weights.h"
#include "tests/kernels/dense_fixture.h"
#include "tests/kernels/matmul_times.h"
#include "tests/stream.h"

static const int64_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 129, 600};

static const struct {
    int64_t n, k, max_rows;
} sizes[] = {{1, 1, 33},    {16, 8, 33},     {17, 3, 65},     {33, 257, 65},
             {64, 256, 65}, {100, 513, 129}, {131, 700, 129}, {70, 1100, 600}};

static bool quick; // leave out the large sizes: under emulation they take minutes
#define QUICK_K 513

static const struct flavour {
    bool accumulate, bias, gated, part, reading; // part: the first columns only
    enum sl_activation activation;
} flavours[] = {
    {.activation = SL_ACT_NONE}, // the first: the others are held to its bits where they promise the same
    {.part = true},
    {.accumulate = true},
    {.accumulate = true, .bias = true, .part = true, .activation = SL_ACT_SILU},
    {.bias = true, .activation = SL_ACT_GELU},
    {.activation = SL_ACT_GELU_TANH},
    {.gated = true, .activation = SL_ACT_SILU},
    {.gated = true, .bias = true, .activation = SL_ACT_GELU_TANH},
    {.accumulate = true, .reading = true},
};
#define N_FLAVOURS (sizeof flavours / sizeof flavours[0])

// Returns true where products are of integers (engine/tensor/cpu/dense/code_matmul.h).
static bool by_codes(const struct sl_ops *ops, size_t kind) {
    return kinds[kind].format != SL_WEIGHT_STORED && !is_device(ops->name);
}

// Roundings of x (engine/tensor/ops.h, Precision).
enum rounding { AS_IS, TO_BF16, TO_BYTES };

// Tiers avx512bf16 and amx round x to bf16 for bf16 weights, devices also for quantized ones. Products with codes make bytes of x.
static enum rounding rounding_of_x(const struct sl_ops *ops, size_t kind) {
    bool bf16 = strcmp(ops->name, "avx512bf16") == 0 || strcmp(ops->name, "amx") == 0 || is_device(ops->name);
    bool wide = kinds[kind].format == SL_WEIGHT_STORED && kinds[kind].dtype != SL_BF16;
    return by_codes(ops, kind) ? TO_BYTES : bf16 && !wide ? TO_BF16 : AS_IS;
}

// Returns true where rows of prompts alone are multiplied by tiles, which are made of codes or f16.
static bool prompts_by_tiles(const struct sl_ops *ops, size_t kind) {
    bool f16 = kinds[kind].format == SL_WEIGHT_STORED && kinds[kind].dtype == SL_F16;
    return (by_codes(ops, kind) && strcmp(ops->name, "amx") == 0) ||
           ((by_codes(ops, kind) || f16) && strcmp(ops->name, "amx2") == 0);
}

static enum rounding rounding_of_prompts(const struct sl_ops *ops, size_t kind) {
    return !prompts_by_tiles(ops, kind) ? rounding_of_x(ops, kind) : strcmp(ops->name, "amx") == 0 ? TO_BF16 : AS_IS;
}

// Returns the part of a product that is lost. Tier amx2 multiplies sums of two numbers of bf16, and leaves out what both second ones give.
static double lost(const struct sl_ops *ops, size_t kind, bool reading) {
    bool tiles = prompts_by_tiles(ops, kind) ? reading : kinds[kind].dtype == SL_BF16 && !by_codes(ops, kind);
    return strcmp(ops->name, "amx2") == 0 && tiles ? 0x1p-14 : 0.0;
}

static double to_bf16(double value) {
    return (double)sl_bf16_to_f32(sl_f32_to_bf16((float)value));
}

// Rounds a row of x as the tier does, and writes by how much an element may be off.
static void round_row(const float *x, int64_t k, enum rounding how, double *out, double *off) {
    for (int64_t i = 0; i < k; i++) {
        out[i] = how == TO_BF16 ? to_bf16((double)x[i]) : (double)x[i];
        off[i] = how == TO_BF16 ? 0x1p-8 * fabs((double)x[i]) : 0.0;
    }
    for (int64_t g = 0; g < k && how == TO_BYTES; g += SL_WEIGHT_GROUP) {
        int64_t end = g + SL_WEIGHT_GROUP < k ? g + SL_WEIGHT_GROUP : k;
        float most = 0.0f;
        for (int64_t i = g; i < end; i++) {
            most = fmaxf(most, fabsf(x[i]));
        }
        for (int64_t i = g; i < end && most > 0.0f; i++) {
            out[i] = (double)(most / 127.0f) * (double)rintf(x[i] * (127.0f / most));
            off[i] = (double)most / 253.0;
        }
    }
}

#define X_GAP 3 // floats between rows of x

// --- what is expected ----------------------------------------------------------------------------------------------

// The products of one matrix of 2n rows (of which those that are not gated use the first n) with one x.
struct expected {
    int64_t n, k, m;
    double *sums;       // [m][2n] of what the tier adds up
    double *magnitudes; // [m][2n] of the absolute terms
    double *exact;      // [m][2n] sums without the tier's rounding of the factors
    double *off;        // [m][2n] by how much that rounding may change them
};

static struct expected expect(const struct sl_matrix *w, int64_t n, int64_t m, const float *x, enum rounding of_x,
                              bool round_weights) {
    int64_t k = w->k, groups = sl_weight_groups(k);
    double *row = malloc((size_t)(2 * k) * sizeof *row), *rounded = malloc((size_t)(2 * m * k) * sizeof *rounded);
    double *weights = row + k, *off = rounded + m * k, weights_off = round_weights ? 0x1p-8 : 0.0;
    float *widened = malloc((size_t)k * sizeof *widened);
    int8_t *codes = malloc((size_t)k);
    uint16_t *scales = malloc((size_t)groups * sizeof *scales);
    size_t bytes = (size_t)(m * 2 * n) * sizeof(double);
    struct expected e = {n, k, m, malloc(bytes), malloc(bytes), malloc(bytes), malloc(bytes)};
    assert_true(row && rounded && widened && codes && scales && e.sums && e.magnitudes && e.exact && e.off);
    for (int64_t r = 0; r < m; r++) {
        round_row(x + r * (k + X_GAP), k, of_x, rounded + r * k, off + r * k);
    }
    for (int64_t j = 0; j < 2 * n; j++) {
        if (w->format == SL_WEIGHT_CODES) {
            sl_weight_widen_row(w, j, widened);
        } else if (w->format != SL_WEIGHT_STORED) {
            quantize_row(w, j, codes, scales);
        }
        for (int64_t i = 0; i < k; i++) {
            row[i] = w->format == SL_WEIGHT_CODES ? (double)widened[i]
                     : w->format == SL_WEIGHT_STORED
                         ? (double)sl_weight_element(sl_weight_row(w, j), w->dtype, i)
                         : (double)sl_f16_to_f32(scales[i / SL_WEIGHT_GROUP]) * (double)codes[i];
            weights[i] = round_weights ? to_bf16(row[i]) : row[i];
        }
        for (int64_t r = 0; r < m; r++) {
            double sum = 0.0, magnitude = 0.0, exact = 0.0, may_be_off = 0.0;
            for (int64_t i = 0; i < k; i++) {
                double term = rounded[r * k + i] * weights[i];
                sum += term;
                magnitude += fabs(term);
                exact += (double)x[r * (k + X_GAP) + i] * row[i];
                may_be_off += off[r * k + i] * fabs(row[i]) + weights_off * fabs(term);
            }
            e.sums[r * 2 * n + j] = sum;
            e.magnitudes[r * 2 * n + j] = magnitude;
            e.exact[r * 2 * n + j] = exact;
            e.off[r * 2 * n + j] = may_be_off;
        }
    }
    free(rounded);
    free(row);
    free(widened);
    free(codes);
    free(scales);
    return e;
}

static void expected_destroy(struct expected *e) {
    free(e->sums);
    free(e->magnitudes);
    free(e->exact);
    free(e->off);
    *e = (struct expected){0};
}

// The expected values of the matrix that all tiers multiply now, by the rounding of x and whether weights are rounded: most tiers share them.
static struct expected known[TO_BYTES + 1][2];

static struct expected expect_once(const struct sl_matrix *w, int64_t n, int64_t m, const float *x, enum rounding of_x,
                                   bool round_weights) {
    struct expected *e = &known[of_x][round_weights];
    if (e->m < m) {
        expected_destroy(e);
        *e = expect(w, n, m, x, of_x, round_weights);
    }
    struct expected first_rows = *e;
    first_rows.m = m;
    return first_rows;
}

static void forget_expected(void) {
    for (enum rounding of_x = AS_IS; of_x <= TO_BYTES; of_x++) {
        expected_destroy(&known[of_x][false]);
        expected_destroy(&known[of_x][true]);
    }
}

static double activate(enum sl_activation activation, double x) {
    switch (activation) {
    case SL_ACT_SILU:
        return x / (1.0 + exp(-x));
    case SL_ACT_GELU:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case SL_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case SL_ACT_NONE:
        break;
    }
    return x;
}

struct estimate {
    double value, error;
};

// Applies the activation to a sum, and to the bound of its error: no activation here is steeper than 1.13.
static struct estimate activated(enum sl_activation activation, double sum, double error) {
    double value = activate(activation, sum);
    return activation == SL_ACT_NONE ? (struct estimate){value, error}
                                     : (struct estimate){value, 1.13 * error + 2e-6 * fabs(value) + 1e-6 * fabs(sum)};
}

// Estimates y[r][j], with sums whose terms may be off by `relative` of their magnitude: of rounded factors, or exact ones.
static struct estimate estimate(const struct expected *e, const struct flavour *f, bool exact, double relative,
                                int64_t r, int64_t j, const float *bias, float start) {
    const double *sums = exact ? e->exact : e->sums;
    int64_t at = r * 2 * e->n + j;
    double from = f->accumulate ? (double)start : 0.0, add = f->bias ? (double)bias[j] : 0.0;
    double error = relative * (e->magnitudes[at] + fabs(from) + fabs(add)) + (exact ? e->off[at] : 0.0);
    struct estimate y = activated(f->activation, sums[at] + from + add, error);
    if (f->gated) {
        double up_bias = f->bias ? (double)bias[e->n + j] : 0.0, up = sums[at + e->n] + up_bias;
        double up_error = relative * (e->magnitudes[at + e->n] + fabs(up_bias)) + (exact ? e->off[at + e->n] : 0.0);
        y.error = y.error * fabs(up) + fabs(y.value) * up_error + y.error * up_error + 1e-7 * fabs(y.value * up);
        y.value *= up;
    }
    return y;
}

// --- checks --------------------------------------------------------------------------------------------------------

#define GAP 3 // columns between rows of y, which must stay as they are

struct matmul_case {
    const struct sl_ops *ops;
    struct sl_stream *stream;
    const struct flavour *flavour;
    struct sl_matrix *w;
    const float *x, *start; // start: [max_rows][n + GAP]
    int64_t n, n_columns;
};

// y of m rows, as [m][n + GAP].
static struct guarded multiply(const struct matmul_case *c, int64_t m) {
    int64_t stride = c->n + GAP;
    struct guarded y = guarded_create(m * stride);
    memcpy(y.data, c->start, (size_t)(m * stride) * sizeof(float));
    struct sl_matmul product = {.x = c->x,
                                .x_stride = c->w->k + X_GAP,
                                .m = m,
                                .y = y.data,
                                .y_stride = stride,
                                .n_columns = c->flavour->part ? c->n_columns : 0,
                                .accumulate = c->flavour->accumulate,
                                .reading = c->flavour->reading};
    size_t scratch_bytes = c->ops->matmul_scratch(c->w, m);
    struct guarded scratch = guarded_create((int64_t)(scratch_bytes + 3) / 4);
    product.scratch = scratch.data;
    product.arranged = m % 4 < 2 && c->ops->arranges != NULL && c->ops->arranges(c->w);
    for (int part = 0; product.arranged && part < 3; part++) {
        c->ops->arrange(part == 0 ? NULL : c->stream, c->w, &product, part, 3);
    }
    c->ops->matmul(m % 2 == 0 ? NULL : c->stream, c->w, &product);
    guarded_destroy(&scratch);
    for (int64_t e = 0; e < m * stride; e++) {
        if (e % stride >= c->n_columns) {
            assert_int_equal(sl_f32_to_bits(y.data[e]), sl_f32_to_bits(c->start[e]));
        }
    }
    return y;
}

static void check_values(const struct matmul_case *c, size_t kind, const struct expected *expected, const float *y) {
    int64_t stride = c->n + GAP;
    double part = lost(c->ops, kind, c->flavour->reading), terms = part > 0.0 ? 3.0 : 1.0;
    double relative = (terms * (double)expected->k + 2) * FLT_EPSILON / 2 + part;
    for (int64_t r = 0; r < expected->m; r++) {
        for (int64_t j = 0; j < c->n_columns; j++) {
            float start = c->start[r * stride + j];
            struct estimate tight = estimate(expected, c->flavour, false, relative, r, j, c->w->bias, start);
            struct estimate loose = estimate(expected, c->flavour, true, relative, r, j, c->w->bias, start);
            double is = (double)y[r * stride + j];
            if (!(fabs(is - tight.value) <= tight.error && fabs(is - loose.value) <= loose.error)) {
                fail_msg("%s %s flavour %d n=%ld k=%ld row %ld column %ld: %.9g, expected %.9g +- %.2g", c->ops->name,
                         kinds[kind].name, (int)(c->flavour - flavours), (long)c->n, (long)expected->k, (long)r,
                         (long)j, is, tight.value, tight.error);
            }
        }
    }
}

// All row counts of a flavour. plain: y of the first flavour and the most rows, or NULL when this is the first.
static struct guarded check_flavour(struct matmul_case *c, size_t kind, const struct expected *expected,
                                    const struct guarded *plain) {
    int64_t stride = c->n + GAP;
    struct guarded all = multiply(c, expected->m);
    check_values(c, kind, expected, all.data);
    for (size_t i = 0; i < sizeof row_counts / sizeof row_counts[0] && row_counts[i] < expected->m; i++) {
        struct guarded y = multiply(c, row_counts[i]);
        assert_memory_equal(y.data, all.data, (size_t)(row_counts[i] * stride) * sizeof(float));
        guarded_destroy(&y);
    }
    if (plain != NULL && memcmp(c->flavour, &(struct flavour){.part = true}, sizeof *c->flavour) == 0) {
        for (int64_t r = 0; r < expected->m; r++) {
            assert_memory_equal(all.data + r * stride, plain->data + r * stride, (size_t)c->n_columns * sizeof(float));
        }
    }
    return all;
}

static void check_size(const struct sl_ops *ops, struct sl_stream *stream, size_t kind, int64_t n, int64_t k,
                       int64_t m) {
    void *owner;
    if (sl_dtype_is_codes(kinds[kind].dtype)) { // rows are whole blocks
        int block = sl_code_type(kinds[kind].dtype)->n_weights;
        k = (k + block - 1) / block * block;
    }
    struct sl_matrix all = random_matrix(2 * n, k, kinds[kind].dtype, (uint64_t)(n * 1000 + k), &owner);
    all.format = kinds[kind].format;
    float *x = random_floats(m * (k + X_GAP), 1), *start = random_floats(m * (n + GAP), 2),
          *bias = random_floats(2 * n, 3);
    struct expected expected = expect_once(&all, n, m, x, rounding_of_x(ops, kind), false);
    struct expected of_prompts = expect_once(&all, n, m, x, rounding_of_prompts(ops, kind),
                                             prompts_by_tiles(ops, kind) && strcmp(ops->name, "amx") == 0);
    const char *rows = all.parts[0].data;
    size_t row_bytes = sl_dtype_row_bytes(all.dtype, k);
    struct guarded plain = {0};
    for (size_t f = 0; f < N_FLAVOURS; f++) {
        if (flavours[f].reading && !is_device(ops->name) && !by_codes(ops, kind) && !prompts_by_tiles(ops, kind)) {
            continue; // the same rows
        }
        struct sl_matrix w = all;
        const struct flavour *flavour = &flavours[f];
        int64_t first = flavour->gated ? n : n / 3; // of two parts
        first = flavour->gated || kinds[kind].format != SL_WEIGHT_CODES ? first : first / 16 * 16;
        w.n = flavour->gated ? 2 * n : n;
        w.parts[0] = (struct sl_rows){rows, first, w.dtype};
        w.parts[1] = (struct sl_rows){rows + (size_t)first * row_bytes, w.n - first, w.dtype};
        w.bias = flavour->bias ? bias : NULL;
        w.activation = flavour->activation;
        w.gated = flavour->gated;
        struct matmul_case c = {ops, stream, flavour, &w, x, start, n, flavour->part ? (n + 1) / 2 : n};
        assert_int_equal(ops->pack(stream, &w, NULL), SL_OK);
        bool prompts = flavour->reading && (by_codes(ops, kind) || prompts_by_tiles(ops, kind));
        struct guarded y = check_flavour(&c, kind, prompts ? &of_prompts : &expected, f > 0 ? &plain : NULL);
        if (f == 0) {
            plain = y;
        } else {
            guarded_destroy(&y);
        }
        ops->unpack(&w);
        assert_null(w.packed);
        ops->unpack(&w); // also of a matrix that is not packed
    }
    guarded_destroy(&plain);
    free(x);
    free(start);
    free(bias);
    free(owner);
}

static void test_matmul_matches_f64_and_is_independent_of_m(void **state) {
    struct sl_stream *stream = NULL;
    (void)state;
    stream = test_stream_open(3);
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0] && !(quick && sizes[s].k > QUICK_K); s++) {
            for (const char *const *name = tested(); *name != NULL; name++) {
                bool slow = strcmp(*name, "reference") == 0 || (is_emulated(*name) && sizes[s].n * sizes[s].k > 1000);
                if (!supports(tier(*name), kind) || (is_emulated(*name) && sizes[s].n * sizes[s].k > 100 * 513)) {
                    continue;
                }
                int64_t m = slow && sizes[s].max_rows > 33 ? 33 : sizes[s].max_rows;
                check_size(tier(*name), stream, kind, sizes[s].n, sizes[s].k, m);
            }
            forget_expected();
        }
    }
    test_stream_close(&stream);
}

// Writes the largest codes that a type has, with scales of 1: sums come near what 16 bits hold.
static void fill_with_largest_codes(enum sl_dtype dtype, unsigned char *blocks, int64_t n_blocks) {
    const uint16_t one = 0x3c00; // f16
    for (int64_t b = 0; b < n_blocks; b++, blocks += sl_code_type(dtype)->bytes) {
        memset(blocks, dtype == SL_Q8_0 ? 0x80 : 0xff, sl_code_type(dtype)->bytes);
        memcpy(dtype == SL_Q6_K ? blocks + 208 : blocks, &one, sizeof one);
        if (dtype == SL_Q6_K) {
            memset(blocks + 192, 1, 16);
        }
    }
}

// Rows of all kinds: of numbers, of one number, with infinities; as many as tiles have, and one more.
static float *rows_of_all_kinds(int64_t m, int64_t k) {
    float *x = random_floats(m * (k + X_GAP), 1);
    for (int64_t i = 0; i < k; i++) {
        x[2 * (k + X_GAP) + i] = 1.0f;
        x[3 * (k + X_GAP) + i] = -1.0f;
    }
    x[4 * (k + X_GAP) + 5] = x[4 * (k + X_GAP) + 20] = INFINITY;
    x[5 * (k + X_GAP) + 64] = -INFINITY;
    return x;
}

// All processors multiply codes alike: integers are exact, and their scales are applied in one order.
static void check_bits_of_codes(struct sl_stream *stream, size_t kind, bool largest) {
    static const struct flavour plain = {.accumulate = true};
    enum { N = 83, M = 13, K = 512 };
    float *x = rows_of_all_kinds(M, K), *start = random_floats(M * (N + GAP), 2);
    struct guarded first = {0};
    for (const char *const *name = tested(); *name != NULL; name++) {
        void *owner;
        if (!by_codes(tier(*name), kind)) {
            continue;
        }
        struct sl_matrix w = random_matrix(N, K, kinds[kind].dtype, 7, &owner);
        if (largest) {
            fill_with_largest_codes(w.dtype, (unsigned char *)owner + 1, N * K / sl_code_type(w.dtype)->n_weights);
        }
        w.format = kinds[kind].format;
        assert_int_equal(tier(*name)->pack(stream, &w, NULL), SL_OK);
        struct matmul_case c = {tier(*name), stream, &plain, &w, x, start, N, N};
        struct guarded y = multiply(&c, M);
        for (int64_t i = 0; i < M * (N + GAP); i++) {
            y.data[i] = isnan(y.data[i]) ? NAN : y.data[i];
        }
        if (first.data == NULL) {
            first = y;
        } else {
            assert_memory_equal(first.data, y.data, M * (N + GAP) * sizeof(float));
            guarded_destroy(&y);
        }
        tier(*name)->unpack(&w);
        free(owner);
    }
    if (first.data != NULL) {
        assert_true(!isnan(first.data[0]) && isnan(first.data[4 * (N + GAP)]) && isnan(first.data[5 * (N + GAP)]));
        guarded_destroy(&first);
    }
    free(x), free(start);
}

static void test_products_with_codes_have_the_same_bits_on_all_tiers(void **state) {
    struct sl_stream *stream = test_stream_open(3);
    (void)state;
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        enum sl_dtype dtype = kinds[kind].dtype;
        bool simple = dtype == SL_Q4_0 || dtype == SL_Q5_0 || dtype == SL_Q8_0 || dtype == SL_Q6_K;
        check_bits_of_codes(stream, kind, false);
        if (kinds[kind].format == SL_WEIGHT_CODES && simple) {
            check_bits_of_codes(stream, kind, true);
        }
    }
    test_stream_close(&stream);
}

// Wide matrices have tiles of their own on a device, and k is cut otherwise. Numbers of rows on either side of where another kernel takes over, or
// another tile; the last rows are looked at, so they lie elsewhere in each.
static void check_wide(const char *name, struct sl_stream *stream, size_t kind, int64_t n, int64_t k, int64_t m,
                       const struct flavour *flavour) {
    static const int64_t few[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128};
    int64_t stride = n + GAP;
    void *owner;
    struct sl_matrix w = random_matrix(flavour->gated ? 2 * n : n, k, kinds[kind].dtype, 5, &owner);
    float *x = random_floats(m * (k + X_GAP), 1), *start = random_floats(m * stride, 2);
    for (int64_t i = 0; i < m * (k + X_GAP); i++) { // what a device makes of it
        x[i] = sl_bf16_to_f32(sl_f32_to_bf16(x[i]));
    }
    w.format = kinds[kind].format;
    w.gated = flavour->gated;
    w.activation = flavour->activation;
    struct sl_matrix packed = w;
    assert_int_equal(tier(name)->pack(stream, &packed, NULL), SL_OK);
    struct matmul_case c = {tier(name), stream, flavour, &packed, x, start, n, n};
    struct guarded all = multiply(&c, m);
    for (size_t i = 0; i < sizeof few / sizeof few[0] && few[i]<m; i += n> 2000 ? 5 : 1) {
        c.x = x + (m - few[i]) * (k + X_GAP);
        struct guarded last = multiply(&c, few[i]);
        for (int64_t r = 0; r < few[i]; r++) {
            assert_memory_equal(all.data + (m - few[i] + r) * stride, last.data + r * stride,
                                (size_t)n * sizeof(float));
        }
        guarded_destroy(&last);
    }
    tier(name)->unpack(&packed);
    float *numbers;
    struct sl_matrix exact = as_numbers(&w, &numbers);
    assert_int_equal(tier("reference")->pack(stream, &exact, NULL), SL_OK);
    struct matmul_case same = {tier("reference"), stream, flavour, &exact, x + (m - 1) * (k + X_GAP), start, n, n};
    struct guarded reference = multiply(&same, 1);
    for (int64_t j = 0; j < n; j++) {
        assert_float_equal(all.data[(m - 1) * stride + j], reference.data[j], 1e-4 * (double)k);
    }
    tier("reference")->unpack(&exact);
    guarded_destroy(&all), guarded_destroy(&reference);
    free(owner), free(x), free(start), free(numbers);
}

// The first columns of y, of a matrix whose rows they are.
static struct guarded first_columns(const char *name, struct sl_stream *stream, struct sl_matrix w, int64_t m,
                                    int64_t n_columns) {
    static const struct flavour first = {.part = true};
    float *x = random_floats(m * (w.k + X_GAP), 1), *start = random_floats(m * (n_columns + GAP), 2);
    assert_int_equal(tier(name)->pack(stream, &w, NULL), SL_OK);
    struct matmul_case c = {tier(name), stream, &first, &w, x, start, n_columns, n_columns};
    struct guarded y = multiply(&c, m);
    tier(name)->unpack(&w);
    free(x), free(start);
    return y;
}

// A device may cut its sums by the width of the matrix: a share must be cut as the whole, or ranks would give other bits than one device.
static void test_a_share_has_the_bits_of_the_whole(void **state) {
    struct sl_stream *stream = test_stream_open(3);
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int64_t m = 1; m < 10 && is_device(*name); m += 8) { // either kernel
            enum { N = 96 };
            void *owner;
            struct sl_matrix whole = random_matrix(16390, 300, SL_BF16, 5, &owner), small = whole, share;
            small.n = small.parts[0].n = N;
            share = small;
            share.whole_n = whole.n;
            struct guarded of_whole = first_columns(*name, stream, whole, m, N);
            struct guarded of_share = first_columns(*name, stream, share, m, N);
            struct guarded of_small = first_columns(*name, stream, small, m, N);
            size_t bytes = (size_t)(m * (N + GAP)) * sizeof(float);
            assert_memory_equal(of_share.data, of_whole.data, bytes);
            assert_memory_not_equal(of_small.data, of_whole.data, bytes); // or this would show nothing
            guarded_destroy(&of_whole), guarded_destroy(&of_share), guarded_destroy(&of_small);
            free(owner);
        }
    }
    test_stream_close(&stream);
}

static void test_wide_products_have_the_bits_of_few_rows(void **state) {
    static const struct flavour of[] = {{.activation = SL_ACT_SILU}, {.gated = true, .activation = SL_ACT_SILU}};
    static const struct flavour prompt = {.gated = true, .reading = true, .activation = SL_ACT_SILU};
    static const struct flavour plain = {.activation = SL_ACT_NONE};
    struct sl_stream *stream = test_stream_open(3);
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t kind = 2; kind < 5 && is_device(*name); kind++) { // bf16, int8, int4
            check_wide(*name, stream, kind, 33, 1300, 130, &of[0]);   // of 8 pieces all have something
            check_wide(*name, stream, kind, 40, 320, 34, &of[1]);
            check_wide(*name, stream, kind, 2046, 96, 129, &prompt);
            check_wide(*name, stream, kind, 16390, 160, 17, &plain); // two pieces
        }
    }
    test_stream_close(&stream);
}

// Packed weights are the bytes that decoding reads: no more than the format's, but for padding.
static void test_packed_bytes(void **state) {
    const double int8 = 1.0 + 2.0 / 32, int4 = 0.5 + 2.0 / 32;
    const double bytes_per_weight[N_KINDS] = {4.0, 2.0, 2.0, int8, int4, int8, int4, int8, int8, int4, 20.0 / 32,
                                              22.0 / 32, 24.0 / 32,
                                              // files have 84, 110, 144, 176 and 210 bytes
                                              164.0 / 256, 146.0 / 256, 148.0 / 256, 180.0 / 256, 210.0 / 256};
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t kind = 0; kind < N_KINDS && strcmp(*name, "reference") != 0; kind++) {
            void *owner;
            if (!supports(tier(*name), kind)) {
                continue;
            }
            struct sl_matrix w = random_matrix(256, 512, kinds[kind].dtype, 9, &owner);
            w.format = kinds[kind].format;
            w.parts[0].dtype = w.dtype;
            assert_int_equal(tier(*name)->pack(NULL, &w, NULL), SL_OK);
            assert_true((double)w.packed_bytes == bytes_per_weight[kind] * 256 * 512);
            tier(*name)->unpack(&w);
            free(owner);
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        print_times(argc > 2 ? argv[2] : NULL, argc > 3 ? atoi(argv[3]) : 0);
        return 0;
    }
    quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_matches_f64_and_is_independent_of_m),
        cmocka_unit_test(test_products_with_codes_have_the_same_bits_on_all_tiers),
        cmocka_unit_test(test_wide_products_have_the_bits_of_few_rows),
        cmocka_unit_test(test_a_share_has_the_bits_of_the_whole),
        cmocka_unit_test(test_packed_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

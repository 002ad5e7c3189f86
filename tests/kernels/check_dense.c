// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the dense operations of every tier to the formulas, and times them (--time).
 *
 * Design: random inputs of odd sizes; results against sums in f64 (matmul) or the reference tier, with a tolerance that
 *         scales with the magnitude of what was added up; guard words around every output; and the promise of
 *         engine/ops.h that a row's bits do not depend on the other rows of the call, nor on the team.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/team.h"
#include "engine/cpu/half.h"
#include "engine/cpu/tier.h"

static const int64_t row_counts[] = {1, 2, 5, 6, 7, 64, 129};
#define N_ROW_COUNTS (sizeof row_counts / sizeof row_counts[0])
#define MAX_ROWS     129

static const struct {
    int64_t n, k;
} sizes[] = {{1, 1}, {16, 8}, {17, 3}, {33, 257}, {64, 256}, {100, 513}, {131, 700}};

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

// --- inputs and guarded outputs ------------------------------------------------------------------------------------

static uint64_t next_random(uint64_t *state) { // splitmix64
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float random_float(uint64_t *state) { // (-2, 2)
    return ((float)(next_random(state) >> 40) * 0x1p-24f - 0.5f) * 4.0f;
}

static float *random_floats(int64_t count, uint64_t seed) {
    float *values = aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = random_float(&seed);
    }
    return values;
}

#define GUARD      64 // floats on either side
#define GUARD_BITS 0x7fc0dead

struct guarded {
    float *data; // [count], 64-byte aligned
    float *block;
    int64_t count;
};

static struct guarded guarded_create(int64_t count) {
    struct guarded g = {.count = count};
    g.block = aligned_alloc(64, ((size_t)(count + 2 * GUARD) * sizeof(float) + 63) / 64 * 64);
    assert_non_null(g.block);
    for (int64_t i = 0; i < count + 2 * GUARD; i++) {
        g.block[i] = sl_bits_to_f32(GUARD_BITS);
    }
    g.data = g.block + GUARD;
    return g;
}

static void guarded_destroy(struct guarded *g) {
    for (int64_t i = 0; i < GUARD; i++) {
        assert_int_equal(sl_f32_to_bits(g->block[i]), GUARD_BITS);
        assert_int_equal(sl_f32_to_bits(g->data[g->count + i]), GUARD_BITS);
    }
    free(g->block);
}

// Random weights of a type, one byte off any alignment: files promise none.
static struct sl_matrix random_matrix(int64_t n, int64_t k, enum sl_dtype dtype, uint64_t seed, void **owner_out) {
    size_t size = dtype == SL_F32 ? 4 : 2;
    unsigned char *block = malloc((size_t)(n * k) * size + 1);
    assert_non_null(block);
    for (int64_t i = 0; i < n * k; i++) {
        float value = random_float(&seed);
        uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(value) : sl_f32_to_bf16(value);
        memcpy(block + 1 + (size_t)i * size, size == 4 ? (void *)&value : (void *)&half, size);
    }
    *owner_out = block;
    return (struct sl_matrix){.n = n, .k = k, .dtype = dtype, .parts = {{block + 1, n}}};
}

static float matrix_element(const struct sl_matrix *w, int64_t i) {
    const unsigned char *bytes = w->parts[0].data;
    uint16_t half;
    float value;
    if (w->dtype == SL_F32) {
        memcpy(&value, bytes + 4 * i, 4);
        return value;
    }
    memcpy(&half, bytes + 2 * i, 2);
    return w->dtype == SL_F16 ? sl_f16_to_f32(half) : sl_bf16_to_f32(half);
}

static const struct sl_ops *tier(const char *name) {
    const struct sl_ops *ops;
    assert_int_equal(sl_ops_select(name, &ops, NULL), SL_OK);
    return ops;
}

// --- checks --------------------------------------------------------------------------------------------------------

static void check_matmul_size(const struct sl_ops *ops, struct sl_team *team, int64_t n, int64_t k, enum sl_dtype dtype,
                              bool accumulate) {
    void *owner;
    struct sl_matrix w = random_matrix(n, k, dtype, (uint64_t)(n * 1000 + k), &owner);
    float *x = random_floats(MAX_ROWS * k, 1), *start = random_floats(MAX_ROWS * n, 2);
    struct guarded first = {0}; // the rows as the largest call computes them
    assert_int_equal(ops->pack(team, &w, NULL), SL_OK);
    for (size_t c = N_ROW_COUNTS; c-- > 0;) {
        int64_t m = row_counts[c];
        struct guarded y = guarded_create(m * n);
        memcpy(y.data, start, (size_t)(m * n) * sizeof(float));
        struct sl_matmul product = {
            .x = x, .x_stride = k, .m = m, .y = y.data, .y_stride = n, .accumulate = accumulate};
        product.scratch = aligned_alloc(64, (ops->matmul_scratch(&w, m) + 127) / 64 * 64);
        ops->matmul(m % 2 == 0 ? NULL : team, &w, &product);
        free(product.scratch);
        if (first.data == NULL) {
            first = y;
            for (int64_t e = 0; e < m * n; e++) {
                double sum = accumulate ? start[e] : 0.0, magnitude = fabs(sum);
                for (int64_t i = 0; i < k; i++) {
                    double term = (double)x[e / n * k + i] * matrix_element(&w, e % n * k + i);
                    sum += term;
                    magnitude += fabs(term);
                }
                double error = fabs(y.data[e] - sum), bound = (double)(k + 1) * FLT_EPSILON / 2 * magnitude;
                if (!(error <= bound)) {
                    fail_msg("%s %s n=%ld k=%ld m=%ld element %ld: %g, expected %g", ops->name, dtype_names[dtype],
                             (long)n, (long)k, (long)m, (long)e, y.data[e], sum);
                }
            }
            continue;
        }
        assert_memory_equal(y.data, first.data, (size_t)(m * n) * sizeof(float));
        guarded_destroy(&y);
    }
    guarded_destroy(&first);
    ops->unpack(&w);
    assert_null(w.packed);
    ops->unpack(&w); // also of a matrix that is not packed
    free(x);
    free(start);
    free(owner);
}

static void test_matmul_matches_f64_and_is_independent_of_m(void **state) {
    struct sl_team *team = NULL;
    (void)state;
    assert_int_equal(sl_team_create(3, &team, NULL), SL_OK);
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            for (int dtype = SL_F32; dtype <= SL_BF16; dtype++) {
                check_matmul_size(tier(*name), team, sizes[s].n, sizes[s].k, (enum sl_dtype)dtype, false);
                check_matmul_size(tier(*name), team, sizes[s].n, sizes[s].k, (enum sl_dtype)dtype, true);
            }
        }
    }
    sl_team_destroy(&team);
}

static void test_embed_widens_exactly(void **state) {
    const int32_t ids[] = {12, 0, 7, 7, 3};
    (void)state;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (int dtype = SL_F32; dtype <= SL_BF16; dtype++) {
            void *owner;
            struct sl_matrix table = random_matrix(13, 37, (enum sl_dtype)dtype, 5, &owner);
            struct guarded out = guarded_create(5 * table.k);
            tier(*name)->embed(NULL, &table, ids, 5, out.data);
            for (int64_t e = 0; e < 5 * table.k; e++) {
                float expected = matrix_element(&table, ids[e / table.k] * table.k + e % table.k);
                assert_int_equal(sl_f32_to_bits(out.data[e]), sl_f32_to_bits(expected));
            }
            guarded_destroy(&out);
            free(owner);
        }
    }
}

static void check_norm(const struct sl_ops *ops, const struct sl_norm *norm) {
    const int64_t m = 7, groups = 3, stride = groups * norm->n + 5;
    float *x = random_floats(m * stride, 3);
    struct guarded is = guarded_create(m * stride), should = guarded_create(m * stride), one = guarded_create(norm->n);
    memcpy(is.data, x, (size_t)(m * stride) * sizeof(float));
    memcpy(should.data, x, (size_t)(m * stride) * sizeof(float));
    tier("reference")->norm(NULL, norm, x, stride, m, (int)groups, should.data, stride);
    ops->norm(NULL, norm, is.data, stride, m, (int)groups, is.data, stride); // in place
    // what cancels in x - mean counts by its own size
    for (int64_t i = 0; i < m * stride; i++) {
        double error = fabs((double)is.data[i] - (double)should.data[i]);
        if (!(error <= 4e-6 * (fabs((double)should.data[i]) + 4.0))) {
            fail_msg("%s norm of %ld, element %ld: %.9g, expected %.9g", ops->name, (long)norm->n, (long)i, is.data[i],
                     should.data[i]);
        }
    }
    ops->norm(NULL, norm, x + (m - 1) * stride + norm->n, norm->n, 1, 1, one.data, norm->n);
    assert_memory_equal(one.data, is.data + (m - 1) * stride + norm->n, (size_t)norm->n * sizeof(float));
    guarded_destroy(&is);
    guarded_destroy(&should);
    guarded_destroy(&one);
    free(x);
}

static void test_norm_matches_reference(void **state) {
    const int64_t widths[] = {1, 8, 31, 64, 257, 576};
    (void)state;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
            float *weight = random_floats(widths[i], 4), *bias = random_floats(widths[i], 5);
            struct sl_norm norm = {SL_NORM_RMS, widths[i], 1e-5f, weight, NULL};
            check_norm(tier(*name), &norm);
            norm = (struct sl_norm){SL_NORM_LAYER, widths[i], 1e-3f, weight, bias};
            check_norm(tier(*name), &norm);
            free(weight);
            free(bias);
        }
    }
}

static void check_rotate(const struct sl_ops *ops, int d, int rotary, struct sl_team *team) {
    enum { ROWS = 33, HEADS = 3, EXTRA = 5 };
    int64_t stride = HEADS * d + EXTRA, positions[ROWS];
    double inv_freq[SL_MAX_HEAD_DIM / 2];
    struct sl_rope rope = {d, rotary, inv_freq, 1.25};
    float *x = random_floats(ROWS * stride, 6);
    struct guarded y = guarded_create(ROWS * stride);
    struct guarded cosines = guarded_create(ROWS * rotary / 2), sines = guarded_create(ROWS * rotary / 2);
    for (int i = 0; i < rotary / 2; i++) {
        inv_freq[i] = pow(10000.0, -2.0 * i / rotary);
    }
    for (int r = 0; r < ROWS; r++) {
        positions[r] = (int64_t)r * r * 1190;
    }
    memcpy(y.data, x, (size_t)(ROWS * stride) * sizeof(float));
    ops->angles(team, &rope, positions, ROWS, cosines.data, sines.data);
    ops->rotate(team, &rope, cosines.data, sines.data, y.data, stride, ROWS, HEADS);
    for (int64_t e = 0; e < ROWS * stride; e++) {
        int64_t r = e / stride, column = e % stride, channel = column % d;
        double expected = x[e];
        if (column < (int64_t)HEADS * d && channel < rotary) {
            bool upper = channel >= rotary / 2;
            double other = x[upper ? e - rotary / 2 : e + rotary / 2];
            double angle = (double)positions[r] * inv_freq[channel % (rotary / 2)];
            expected = 1.25 * (x[e] * cos(angle) + (upper ? other : -other) * sin(angle));
        }
        if (!(fabs(y.data[e] - expected) <= 1e-6)) {
            fail_msg("%s d=%d element %ld: %g, expected %g", ops->name, d, (long)e, y.data[e], expected);
        }
    }
    guarded_destroy(&y);
    guarded_destroy(&cosines);
    guarded_destroy(&sines);
    free(x);
}

static void test_rotate_matches_f64(void **state) {
    const int dims[] = {8, 24, 64, 128, SL_MAX_HEAD_DIM};
    struct sl_team *team = NULL;
    (void)state;
    assert_int_equal(sl_team_create(2, &team, NULL), SL_OK);
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            check_rotate(tier(*name), dims[i], dims[i], team);
            check_rotate(tier(*name), dims[i], (dims[i] / 2 + 7) / 8 * 8, team);
        }
    }
    sl_team_destroy(&team);
}

static double activation_f64(enum sl_activation activation, double x) {
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

/*
 * The identity (twice, when gated) as f32 weights: the product is x, so what is left is bias, activation and gate.
 */
static void check_activation(const struct sl_ops *ops, enum sl_activation activation, bool gated) {
    enum { WIDTH = 61, ROWS = 320 };
    static float weights[2 * WIDTH * WIDTH];
    const float extremes[] = {0.0f, -0.0f, 30.0f, -30.0f, 88.0f, -86.0f, 500.0f, -500.0f, 1e18f, -1e18f};
    memset(weights, 0, sizeof weights);
    for (int i = 0; i < 2 * WIDTH; i++) {
        weights[i * WIDTH + i % WIDTH] = 1.0f;
    }
    float *x = random_floats(ROWS * WIDTH, 7), *bias = random_floats(2 * WIDTH, 8);
    memcpy(x, extremes, sizeof extremes);
    for (int i = ROWS * WIDTH / 2; i < ROWS * WIDTH; i++) {
        x[i] *= 20.0f;
    }
    struct sl_matrix w = {.n = gated ? 2 * WIDTH : WIDTH,
                          .k = WIDTH,
                          .parts = {{weights, WIDTH}, {weights + WIDTH * WIDTH, gated ? WIDTH : 0}},
                          .bias = bias,
                          .activation = activation,
                          .gated = gated};
    struct guarded y = guarded_create(ROWS * WIDTH), one = guarded_create(WIDTH);
    struct sl_matmul args = {.x = x, .x_stride = WIDTH, .m = ROWS, .y = y.data, .y_stride = WIDTH};
    args.scratch = aligned_alloc(64, (ops->matmul_scratch(&w, ROWS) + 127) / 64 * 64);
    assert_int_equal(ops->pack(NULL, &w, NULL), SL_OK);
    ops->matmul(NULL, &w, &args);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        float in = x[i] + bias[i % WIDTH];
        double expected = activation_f64(activation, (double)in);
        expected *= gated ? (double)(x[i] + bias[WIDTH + i % WIDTH]) : 1.0;
        if (!(fabs((double)y.data[i] - expected) <= 2e-6 * fabs(expected) + 1e-6 * fabs((double)in))) {
            fail_msg("%s activation %d gated %d of %g: %g, expected %g", ops->name, (int)activation, (int)gated, in,
                     y.data[i], expected);
        }
    }
    args.m = 1; // a row's bits do not depend on its neighbours
    args.x += 5 * WIDTH;
    args.y = one.data;
    ops->matmul(NULL, &w, &args);
    assert_memory_equal(one.data, y.data + 5 * WIDTH, WIDTH * sizeof(float));
    ops->unpack(&w);
    guarded_destroy(&y);
    guarded_destroy(&one);
    free(args.scratch);
    free(x);
    free(bias);
}

static void test_activations_match_f64(void **state) {
    (void)state;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (int activation = SL_ACT_NONE; activation <= SL_ACT_GELU_TANH; activation++) {
            check_activation(tier(*name), (enum sl_activation)activation, false);
            check_activation(tier(*name), (enum sl_activation)activation, true);
        }
    }
}

static void test_select_refuses_unknown_tiers(void **state) {
    const struct sl_ops *ops = NULL;
    struct sl_error err;
    (void)state;
    assert_int_equal(sl_ops_select("abacus", &ops, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "abacus"));
    assert_non_null(strstr(err.text, "reference"));
    assert_null(ops);
    setenv("SLUICE_TIER", "reference", 1);
    assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
    assert_string_equal(ops->name, "reference");
    setenv("SLUICE_TIER", "abacus", 1);
    assert_int_equal(sl_ops_select(NULL, &ops, &err), SL_ERR_UNSUPPORTED);
    unsetenv("SLUICE_TIER");
}

// --- times ---------------------------------------------------------------------------------------------------------

static double seconds_of_matmul(const struct sl_ops *ops, struct sl_team *team, const struct sl_matrix *w,
                                const float *x, int64_t m, float *y) {
    double best = HUGE_VAL;
    void *scratch = aligned_alloc(64, (ops->matmul_scratch(w, m) + 127) / 64 * 64);
    for (int run = 0; run < 5; run++) {
        int64_t begin = sl_now_ns();
        struct sl_matmul args = {.x = x, .x_stride = w->k, .m = m, .y = y, .y_stride = w->n, .scratch = scratch};
        ops->matmul(team, w, &args);
        double seconds = (double)(sl_now_ns() - begin) / 1e9;
        best = seconds < best ? seconds : best;
    }
    free(scratch);
    return best;
}

static void print_times(void) {
    const int64_t n = 2048, k = 2048, rows[] = {1, 2, 4, 6, 16, 64, 512};
    struct sl_team *team = NULL;
    assert_int_equal(sl_team_create(0, &team, NULL), SL_OK);
    float *x = random_floats(512 * k, 1), *y = random_floats(512 * n, 2);
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        bool is_reference = strcmp(*name, "reference") == 0;
        for (int dtype = SL_F32; dtype <= SL_BF16; dtype++) {
            void *owner;
            struct sl_matrix w = random_matrix(n, k, (enum sl_dtype)dtype, 9, &owner);
            assert_int_equal(tier(*name)->pack(team, &w, NULL), SL_OK);
            for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !(is_reference && rows[i] > 4); i++) {
                double seconds = seconds_of_matmul(tier(*name), team, &w, x, rows[i], y);
                double weight_bytes = (double)(n * k) * (dtype == SL_F32 ? 4 : 2);
                printf("matmul %-9s %-4s m=%-3ld n=%ld k=%ld: %9.1f us %7.1f GFLOP/s %6.1f GB/s of weights\n", *name,
                       dtype_names[dtype], (long)rows[i], (long)n, (long)k, seconds * 1e6,
                       2e-9 * (double)(rows[i] * n * k) / seconds, weight_bytes / seconds / 1e9);
            }
            tier(*name)->unpack(&w);
            free(owner);
        }
    }
    free(x);
    free(y);
    sl_team_destroy(&team);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        print_times();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_matches_f64_and_is_independent_of_m),
        cmocka_unit_test(test_embed_widens_exactly),
        cmocka_unit_test(test_norm_matches_reference),
        cmocka_unit_test(test_rotate_matches_f64),
        cmocka_unit_test(test_activations_match_f64),
        cmocka_unit_test(test_select_refuses_unknown_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

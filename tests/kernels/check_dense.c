// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the dense operations of every tier beside the products (check_matmul.c) to the formulas.
 *
 * Design: random inputs of odd sizes; results against f64 or the reference tier, with a tolerance that scales with the
 *         magnitude of what was added up; guard words around every output; and the promise of engine/tensor/ops.h that a row's
 *         bits do not depend on the other rows of the call.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/rope_angles.h"
#include "engine/tensor/weights.h"
#include "tests/kernels/dense_fixture.h"
#include "tests/stream.h"

// --- checks --------------------------------------------------------------------------------------------------------

static void test_embed_widens_exactly(void **state) {
    const int32_t ids[] = {12, 0, 7, 7, 3};
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int dtype = SL_F32; dtype <= SL_Q4_0; dtype++) {
            void *owner;
            int64_t k = sl_dtype_is_codes((enum sl_dtype)dtype) ? 64 : 37; // whole blocks
            struct sl_matrix table = random_matrix(13, k, (enum sl_dtype)dtype, 5, &owner);
            struct guarded out = guarded_create(5 * table.k);
            assert_int_equal(tier(*name)->pack_rows(NULL, &table, NULL), SL_OK);
            tier(*name)->embed(NULL, &table, ids, 5, out.data);
            for (int64_t e = 0; e < 5 * table.k; e++) {
                float expected = sl_weight_element(sl_weight_row(&table, ids[e / table.k]), table.dtype, e % table.k);
                assert_int_equal(sl_f32_to_bits(out.data[e]), sl_f32_to_bits(expected));
            }
            tier(*name)->unpack(&table);
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
    tier("reference")->norm(NULL, norm, (struct sl_row_vectors){x, stride, m, (int)groups}, should.data, stride);
    ops->norm(NULL, norm, (struct sl_row_vectors){is.data, stride, m, (int)groups}, is.data, stride); // in place
    // what cancels in x - mean counts by its own size
    for (int64_t i = 0; i < m * stride; i++) {
        double error = fabs((double)is.data[i] - (double)should.data[i]);
        if (!(error <= 4e-6 * (fabs((double)should.data[i]) + 4.0))) {
            fail_msg("%s norm of %ld, element %ld: %.9g, expected %.9g", ops->name, (long)norm->n, (long)i, is.data[i],
                     should.data[i]);
        }
    }
    const struct sl_row_vectors last = {x + (m - 1) * stride + norm->n, norm->n, 1, 1};
    ops->norm(NULL, norm, last, one.data, norm->n);
    assert_memory_equal(one.data, is.data + (m - 1) * stride + norm->n, (size_t)norm->n * sizeof(float));
    guarded_destroy(&is);
    guarded_destroy(&should);
    guarded_destroy(&one);
    free(x);
}

static void test_norm_matches_reference(void **state) {
    const int64_t widths[] = {1, 8, 31, 64, 257, 576};
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
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

static void check_rotate(const struct sl_ops *ops, int d, int rotary, struct sl_stream *stream) {
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
    ops->angles(stream, &rope, positions, ROWS, cosines.data, sines.data);
    ops->rotate(stream, &rope, cosines.data, sines.data, (struct sl_row_vectors){y.data, stride, ROWS, HEADS});
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
    struct sl_stream *stream = NULL;
    (void)state;
    stream = test_stream_open(2);
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            check_rotate(tier(*name), dims[i], dims[i], stream);
            check_rotate(tier(*name), dims[i], (dims[i] / 2 + 7) / 8 * 8, stream);
        }
    }
    test_stream_close(&stream);
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
    assert_int_equal(ops->pack(NULL, &w, NULL), SL_OK);
    args.scratch = aligned_alloc(64, (ops->matmul_scratch(&w, ROWS) + 127) / 64 * 64);
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
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int activation = SL_ACT_NONE; activation <= SL_ACT_GELU_TANH; activation++) {
            check_activation(tier(*name), (enum sl_activation)activation, false);
            check_activation(tier(*name), (enum sl_activation)activation, true);
        }
    }
}

static void test_auto_is_one_of_the_tiers(void **state) {
    const struct sl_ops *ops = NULL;
    bool found = false;
    (void)state;
    unsetenv("SLUICE_TIER");
    assert_int_equal(sl_ops_select("auto", &ops, NULL), SL_OK);
    const struct sl_ops *fastest = ops;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        assert_string_equal(tier(*name)->name, *name);
        found = found || strcmp(*name, fastest->name) == 0; // soft tiles have tables of their own
        if (strcmp(*name, "amx") == 0) {                    // where there are tiles, nothing else pays
            assert_string_equal(ops->name, "amx");
            assert_int_equal(sl_ops_select_wide("auto", &ops, NULL), SL_OK);
            assert_string_equal(ops->name, "amx2");
            assert_int_equal(sl_ops_select_wide("amx", &ops, NULL), SL_OK); // an explicit choice counts
            assert_string_equal(ops->name, "amx");
        }
    }
    assert_true(found);
#if defined(__x86_64__)
    if (__builtin_cpu_is("intel")) { // whose VDPBF16PS has half of the rate of multiply-adds
        assert_string_not_equal(fastest->name, "avx512bf16");
    }
#endif
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

// A product of a row that holds a NaN is NaN, wherever it stands: kernels that compare or round magnitudes must keep it.
static void test_products_keep_nan(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int at = 0; at < 96; at += 19) {
            void *owner;
            struct sl_matrix w = random_matrix(16, 96, SL_F32, 5, &owner);
            float *x = random_floats(96, 1), y[16];
            char scratch[4096] __attribute__((aligned(64)));
            x[at] = NAN;
            w.format = SL_WEIGHT_INT8;
            assert_int_equal(tier(*name)->pack(NULL, &w, NULL), SL_OK);
            assert_true(tier(*name)->matmul_scratch(&w, 1) <= sizeof scratch);
            struct sl_matmul product = {.x = x, .x_stride = 96, .m = 1, .y = y, .y_stride = 16, .scratch = scratch};
            tier(*name)->matmul(NULL, &w, &product);
            for (int j = 0; j < 16; j++) {
                assert_true(isnan(y[j]));
            }
            tier(*name)->unpack(&w);
            free(owner), free(x);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_keep_nan),
        cmocka_unit_test(test_embed_widens_exactly),
        cmocka_unit_test(test_norm_matches_reference),
        cmocka_unit_test(test_rotate_matches_f64),
        cmocka_unit_test(test_activations_match_f64),
        cmocka_unit_test(test_auto_is_one_of_the_tiers),
        cmocka_unit_test(test_select_refuses_unknown_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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
#include "base/thread.h"
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
    return (struct sl_matrix){.n = n, .k = k, .dtype = dtype, .source = block + 1};
}

static float matrix_element(const struct sl_matrix *w, int64_t i) {
    const unsigned char *bytes = w->source;
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
        ops->matmul(m % 2 == 0 ? NULL : team, &w, x, m, y.data, accumulate);
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

static void assert_close(const char *what, const float *is, const float *should, int64_t count, float tolerance) {
    for (int64_t i = 0; i < count; i++) {
        float bound = tolerance * (fabsf(should[i]) + 1e-6f);
        if (!(fabsf(is[i] - should[i]) <= bound)) {
            fail_msg("%s element %ld: %.9g, expected %.9g", what, (long)i, is[i], should[i]);
        }
    }
}

static void test_rmsnorm_matches_reference(void **state) {
    const int64_t widths[] = {1, 8, 31, 64, 257, 576};
    (void)state;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
            int64_t n = widths[i], m = 7;
            float *x = random_floats(m * n, 3), *weight = random_floats(n, 4);
            struct guarded is = guarded_create(m * n), should = guarded_create(m * n), one = guarded_create(n);
            tier("reference")->rmsnorm(NULL, x, weight, 1e-5f, m, n, should.data);
            tier(*name)->rmsnorm(NULL, x, weight, 1e-5f, m, n, is.data);
            assert_close("rmsnorm", is.data, should.data, m * n, 4e-6f);
            tier(*name)->rmsnorm(NULL, x + (m - 1) * n, weight, 1e-5f, 1, n, one.data);
            assert_memory_equal(one.data, is.data + (m - 1) * n, (size_t)n * sizeof(float));
            guarded_destroy(&is);
            guarded_destroy(&should);
            guarded_destroy(&one);
            free(x);
            free(weight);
        }
    }
}

static void check_rotate(const struct sl_ops *ops, int d, struct sl_team *team) {
    enum { ROWS = 33, HEADS = 3, EXTRA = 5 };
    int64_t stride = HEADS * d + EXTRA, positions[ROWS];
    double inv_freq[SL_MAX_HEAD_DIM / 2];
    struct sl_rope rope = {d, inv_freq, 1.0};
    float *x = random_floats(ROWS * stride, 6);
    struct guarded y = guarded_create(ROWS * stride);
    for (int i = 0; i < d / 2; i++) {
        inv_freq[i] = pow(10000.0, -2.0 * i / d);
    }
    for (int r = 0; r < ROWS; r++) {
        positions[r] = r * r * 119;
    }
    memcpy(y.data, x, (size_t)(ROWS * stride) * sizeof(float));
    ops->rotate(team, &rope, y.data, ROWS, HEADS, stride, positions);
    for (int64_t e = 0; e < ROWS * stride; e++) {
        int64_t r = e / stride, column = e % stride, i = column % d % (d / 2);
        double expected = x[e];
        if (column < HEADS * d) {
            bool upper = column % d >= d / 2;
            double other = x[upper ? e - d / 2 : e + d / 2], angle = (double)positions[r] * inv_freq[i];
            expected = x[e] * cos(angle) + (upper ? other : -other) * sin(angle);
        }
        if (!(fabs(y.data[e] - expected) <= 1e-6)) {
            fail_msg("%s d=%d element %ld: %g, expected %g", ops->name, d, (long)e, y.data[e], expected);
        }
    }
    guarded_destroy(&y);
    free(x);
}

static void test_rotate_matches_f64(void **state) {
    const int dims[] = {8, 24, 64, 128, SL_MAX_HEAD_DIM};
    struct sl_team *team = NULL;
    (void)state;
    assert_int_equal(sl_team_create(2, &team, NULL), SL_OK);
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            check_rotate(tier(*name), dims[i], team);
        }
    }
    sl_team_destroy(&team);
}

static void test_silu_mul_matches_f64(void **state) {
    enum { COUNT = 20011 };
    (void)state;
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        float *gate = random_floats(COUNT, 7), *up = random_floats(COUNT, 8);
        struct guarded y = guarded_create(COUNT);
        const float extremes[] = {0.0f, -0.0f, 30.0f, -30.0f, 88.0f, -86.0f, 500.0f, -500.0f, 1e30f, -1e30f};
        memcpy(gate, extremes, sizeof extremes);
        for (int64_t i = COUNT / 2; i < COUNT; i++) {
            gate[i] *= 20.0f;
        }
        memcpy(y.data, gate, COUNT * sizeof(float));
        tier(*name)->silu_mul(NULL, y.data, up, COUNT);
        for (int64_t i = 0; i < COUNT; i++) {
            double expected = gate[i] / (1.0 + exp(-(double)gate[i])) * up[i];
            if (!(fabs(y.data[i] - expected) <= 1e-6 * fabs(expected) + 1e-30)) {
                fail_msg("%s silu_mul(%g, %g) = %g, expected %g", *name, gate[i], up[i], y.data[i], expected);
            }
        }
        // an element's bits do not depend on its place
        float moved[3] = {gate[5000], gate[5001], gate[5002]};
        tier(*name)->silu_mul(NULL, moved, up + 5000, 3);
        assert_memory_equal(moved, y.data + 5000, sizeof moved);
        guarded_destroy(&y);
        free(gate);
        free(up);
    }
}

static void test_silu_matches_f64(void **state) {
    enum { COUNT = 20011 };
    (void)state;
    struct sl_team *team;
    assert_int_equal(sl_team_create(2, &team, NULL), SL_OK);
    for (const char *const *name = sl_ops_tiers(); *name != NULL; name++) {
        float *x = random_floats(COUNT, 7);
        struct guarded y = guarded_create(COUNT);
        const float extremes[] = {0.0f, -0.0f, 30.0f, -30.0f, 88.0f, -86.0f, 500.0f, -500.0f, 1e30f, -1e30f};
        memcpy(x, extremes, sizeof extremes);
        for (int64_t i = COUNT / 2; i < COUNT; i++) {
            x[i] *= 20.0f;
        }
        memcpy(y.data, x, COUNT * sizeof(float));
        tier(*name)->silu(team, y.data, COUNT);
        for (int64_t i = 0; i < COUNT; i++) {
            double expected = x[i] / (1.0 + exp(-(double)x[i]));
            if (!(fabs(y.data[i] - expected) <= 1e-6 * fabs(expected) + 1e-30)) {
                fail_msg("%s silu(%g) = %g, expected %g", *name, x[i], y.data[i], expected);
            }
        }
        float moved[3] = {x[5000], x[5001], x[5002]}; // an element's bits do not depend on its place
        tier(*name)->silu(NULL, moved, 3);
        assert_memory_equal(moved, y.data + 5000, sizeof moved);
        guarded_destroy(&y);
        free(x);
    }
    sl_team_destroy(&team);
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
    for (int run = 0; run < 5; run++) {
        int64_t begin = sl_now_ns();
        ops->matmul(team, w, x, m, y, false);
        double seconds = (double)(sl_now_ns() - begin) / 1e9;
        best = seconds < best ? seconds : best;
    }
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
        int64_t begin = sl_now_ns();
        tier(*name)->silu(team, x, 512 * k);
        printf("silu   %-9s f32  %ld elements: %.3f ns each\n", *name, (long)(512 * k),
               (double)(sl_now_ns() - begin) / (double)(512 * k));
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
        cmocka_unit_test(test_rmsnorm_matches_reference),
        cmocka_unit_test(test_rotate_matches_f64),
        cmocka_unit_test(test_silu_mul_matches_f64),
        cmocka_unit_test(test_silu_matches_f64),
        cmocka_unit_test(test_select_refuses_unknown_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

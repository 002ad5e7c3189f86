// SPDX-License-Identifier: Apache-2.0
// Purpose: holds products by wgmma (engine/tensor/cuda/dense/wgmma.cu) to sums in f64, and rows to the same bits in calls of any size.
#include <math.h>

#include "engine/tensor/cuda/dense/launch.h"
#include "tests/kernels/cuda/gpu_fixture.h"

static const struct shape {
    int64_t n, k, m, gap; // gap: floats between rows of y
    bool gated, accumulate, bias;
    enum sl_activation activation;
} shapes[] = {{257, 320, 131, 3, false, false, true, SL_ACT_NONE}, // more stages than there are, two tiles each way
              {512, 64, 64, 0, true, false, false, SL_ACT_SILU},
              {260, 192, 129, 2, true, false, true, SL_ACT_GELU_TANH},
              {33, 128, 20, 1, false, true, true, SL_ACT_NONE},
              {256, 256, 1, 0, false, true, false, SL_ACT_GELU}};

struct product {
    const struct shape *shape;
    int64_t columns, stride;
    uint16_t *w;
    float *x, *y, *bias; // y: before
    struct gpu_matrix matrix;
    void *device_w, *device_x, *device_bias;
};

static void open_product(struct product *p, const struct shape *s) {
    *p = (struct product){.shape = s, .columns = s->gated ? s->n / 2 : s->n};
    p->stride = p->columns + s->gap;
    p->w = malloc((size_t)(s->n * s->k) * sizeof *p->w);
    assert_non_null(p->w);
    float *weights = random_floats(s->n * s->k, 1);
    p->x = random_floats(s->m * s->k, 2);
    p->y = random_floats(s->m * p->stride, 3);
    p->bias = random_floats(s->n, 4);
    for (int64_t i = 0; i < s->n * s->k; i++) {
        p->w[i] = sl_f32_to_bf16(weights[i]);
    }
    free(weights);
    p->device_w = gpu_up(p->w, (size_t)(s->n * s->k) * sizeof *p->w);
    p->device_bias = gpu_up(p->bias, (size_t)s->n * sizeof *p->bias);
    p->device_x = gpu_room((size_t)(s->m * s->k) * sizeof(uint16_t));
    void *up = gpu_up(p->x, (size_t)(s->m * s->k) * sizeof *p->x);
    sl_gpu_round_rows(queue, up, s->k, s->m, s->k, s->k, p->device_x);
    gpu_wait(queue);
    gpu_free(up);
    p->matrix = (struct gpu_matrix){.kind = GPU_WEIGHT_BF16,
                                    .n = s->n,
                                    .k = s->k,
                                    .pitch = s->k,
                                    .weights = p->device_w,
                                    .bias = s->bias ? p->device_bias : NULL,
                                    .up_bias = s->n / 2,
                                    .activation = s->activation,
                                    .gated = s->gated};
}

static void close_product(struct product *p) {
    gpu_free(p->device_w), gpu_free(p->device_x), gpu_free(p->device_bias);
    free(p->w), free(p->x), free(p->y), free(p->bias);
}

// Rows [first, first + m) of y, as [m][stride].
static float *multiply(const struct product *p, int64_t first, int64_t m) {
    size_t bytes = (size_t)(m * p->stride) * sizeof(float);
    float *y = take(bytes);
    void *up = gpu_up(p->y + first * p->stride, bytes);
    const struct sl_matmul args = {.m = m, .y = up, .y_stride = p->stride, .accumulate = p->shape->accumulate};
    sl_gpu_matmul_wgmma(queue, &p->matrix, (uint16_t *)p->device_x + first * p->shape->k, &args);
    gpu_down(y, up, bytes);
    gpu_free(up);
    return y;
}

static double sum_of(const struct product *p, int64_t r, int64_t j) {
    double sum = p->shape->bias ? (double)p->bias[j] : 0.0;
    for (int64_t i = 0; i < p->shape->k; i++) {
        sum += (double)sl_bf16_to_f32(sl_f32_to_bf16(p->x[r * p->shape->k + i])) *
               (double)sl_bf16_to_f32(p->w[j * p->shape->k + i]);
    }
    return sum;
}

static double activated(enum sl_activation activation, double x) {
    switch (activation) {
    case SL_ACT_SILU:
        return x / (1.0 + exp(-x));
    case SL_ACT_GELU:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case SL_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    default:
        return x;
    }
}

static void check_numbers(const struct product *p, const float *y) {
    for (int64_t r = 0; r < p->shape->m; r++) {
        for (int64_t j = 0; j < p->stride; j++) {
            double before = (double)p->y[r * p->stride + j], got = (double)y[r * p->stride + j], want = before, off = 0;
            if (j < p->columns) {
                want = activated(p->shape->activation, sum_of(p, r, j) + (p->shape->accumulate ? before : 0.0));
                want *= p->shape->gated ? sum_of(p, r, p->columns + j) : 1.0;
                off = 1e-3 + 1e-4 * fabs(want);
            }
            if (!(fabs(got - want) <= off)) {
                fail_msg("n=%ld k=%ld row %ld column %ld is %.9g, not %.9g", (long)p->shape->n, (long)p->shape->k,
                         (long)r, (long)j, got, want);
            }
        }
    }
}

static void test_products(void **state) {
    static const int64_t sizes[] = {1, 17, 63, 65};
    (void)state;
    if (!sl_under_test_has_wgmma()) {
        skip();
    }
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct product p;
            open_product(&p, &shapes[i]);
            float *all = multiply(&p, 0, shapes[i].m);
            check_numbers(&p, all);
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0] && sizes[s] < shapes[i].m; s++) {
                int64_t first = shapes[i].m - sizes[s];
                float *some = multiply(&p, first, sizes[s]);
                assert_memory_equal(some, all + first * p.stride, (size_t)(sizes[s] * p.stride) * sizeof *some);
                free(some);
            }
            free(all);
            close_product(&p);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {GPU_TEST(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

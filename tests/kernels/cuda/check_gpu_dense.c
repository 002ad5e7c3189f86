// SPDX-License-Identifier: Apache-2.0
// Purpose: holds the GPU's dense operations to the reference tier; embedding and rotation to its bits.
#include "tensor/cuda/table/pack.h"
#include "tests/kernels/cuda/gpu_fixture.h"

// --- matrices --------------------------------------------------------------------------------------------------------

struct weights {
    struct sl_matrix cpu; // of the reference
    struct gpu_matrix gpu;
    void *owner, *bytes, *device;
    float *bias, *gpu_bias;
};

// Random, one byte off any alignment: files promise none.
static void weights_open(struct weights *w, int64_t n, int64_t k, enum sl_dtype dtype, enum sl_weight_format format,
                         bool with_bias) {
    uint64_t seed = 5;
    size_t size = dtype == SL_F32 ? 4 : 2;
    unsigned char *block = w->owner = take((size_t)(n * k) * size + 1);
    for (int64_t i = 0; i < n * k; i++) {
        float value = random_float(&seed);
        uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(value) : sl_f32_to_bf16(value);
        memcpy(block + 1 + (size_t)i * size, size == 4 ? (void *)&value : (void *)&half, size);
    }
    w->bias = random_floats((size_t)n, 6);
    w->gpu_bias = gpu_up(w->bias, (size_t)n * sizeof *w->bias);
    int64_t first = n / 3; // two tensors of the file
    w->cpu = (struct sl_matrix){.n = n,
                                .k = k,
                                .dtype = dtype,
                                .format = format,
                                .parts = {{block + 1, first}, {block + 1 + (size_t)(first * k) * size, n - first}},
                                .bias = with_bias ? w->bias : NULL};
    assert_int_equal(tier("reference")->pack(NULL, &w->cpu, NULL), SL_OK);
    sl_gpu_matrix_describe(&w->cpu, &w->gpu);
    w->bytes = take(w->gpu.bytes);
    for (int64_t j = n - 1; j >= 0; j--) {
        sl_gpu_matrix_pack_row(&w->cpu, &w->gpu, j, w->bytes);
    }
    w->device = gpu_up(w->bytes, w->gpu.bytes);
    w->gpu.weights = w->device;
    w->gpu.scales = (uint16_t *)((char *)w->device + w->gpu.scales_at);
    w->gpu.bias = with_bias ? w->gpu_bias : NULL;
}

static void weights_close(struct weights *w) {
    tier("reference")->unpack(&w->cpu);
    gpu_free(w->device), gpu_free(w->gpu_bias);
    free(w->owner), free(w->bytes), free(w->bias);
}

static const struct {
    enum sl_dtype dtype;
    enum sl_weight_format format;
} kinds[] = {{SL_F32, SL_WEIGHT_STORED},
             {SL_F16, SL_WEIGHT_STORED},
             {SL_BF16, SL_WEIGHT_STORED},
             {SL_BF16, SL_WEIGHT_INT8},
             {SL_F32, SL_WEIGHT_INT4}};

static void check_product(const struct weights *w, int64_t m, bool accumulate, int64_t n_columns) {
    int64_t outputs = sl_matrix_outputs(&w->cpu), x_stride = w->cpu.k + 3, y_stride = outputs + 5;
    size_t n_x = (size_t)(m * x_stride), n_y = (size_t)(m * y_stride);
    float *x = random_floats(n_x, 7), *y = random_floats(n_y, 8), *gpu_x = gpu_up(x, n_x * sizeof *x);
    float *gpu_y = gpu_up(y, n_y * sizeof *y);
    bool rounds = w->gpu.kind != GPU_WEIGHT_F32 && w->gpu.kind != GPU_WEIGHT_F16;
    for (size_t i = 0; i < n_x && rounds; i++) { // as the GPU does, so that nothing but the order of sums differs
        x[i] = sl_bf16_to_f32(sl_f32_to_bf16(x[i]));
    }
    const struct sl_matmul args = {.x = x,
                                   .x_stride = x_stride,
                                   .m = m,
                                   .y = y,
                                   .y_stride = y_stride,
                                   .n_columns = n_columns,
                                   .accumulate = accumulate};
    const struct gpu_product product = {gpu_x, x_stride, m, gpu_y, y_stride, n_columns, accumulate};
    tier("reference")->matmul(NULL, &w->cpu, &args);
    sl_gpu_matmul(queue, &w->gpu, &product);
    gpu_assert_close(gpu_y, y, n_y, rounds ? 2e-4 : 1e-6, "matmul");
    gpu_free(gpu_x);
    free(x), free(y);
}

static void test_matmul(void **state) {
    (void)state;
    FOR_ORDERS(order) {
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            for (int kind = 0; kind < 4; kind++) {
                struct weights w;
                bool gated = kind % 2;
                weights_open(&w, gated ? 134 : 70, kind < 2 ? 64 : 75, kinds[i].dtype, kinds[i].format, kind != 2);
                w.gpu.activation = w.cpu.activation = (enum sl_activation)((size_t)kind + i) % 4;
                w.gpu.gated = w.cpu.gated = gated;
                check_product(&w, kind == 0 ? 1 : kind == 1 ? 65 : 16, kind == 2, kind == 0 ? 33 : 0);
                weights_close(&w);
            }
        }
    }
}

// A row's bits do not depend on the rows beside it, whatever tile serves them.
static void test_matmul_of_a_row_is_the_same_in_any_company(void **state) {
    (void)state;
    enum { M = 50, K = 96, N = 64 };
    float *x = random_floats(M * K, 7), *gpu_x = gpu_up(x, M * K * sizeof *x), alone[N], all[M * N];
    float *gpu_y = gpu_room(sizeof all);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct weights w;
        weights_open(&w, N, K, kinds[i].dtype, kinds[i].format, true);
        const struct gpu_product together = {gpu_x, K, M, gpu_y, N, 0, false};
        sl_gpu_matmul(queue, &w.gpu, &together);
        gpu_down(all, gpu_y, sizeof all);
        for (int r = 0; r < M; r += 7) {
            const struct gpu_product one = {gpu_x + r * K, K, 1, gpu_y, N, 0, false};
            sl_gpu_matmul(queue, &w.gpu, &one);
            gpu_down(alone, gpu_y, sizeof alone);
            assert_memory_equal(alone, all + r * N, sizeof alone);
        }
        weights_close(&w);
    }
    gpu_free(gpu_x), gpu_free(gpu_y);
    free(x);
}

static void test_embed(void **state) {
    (void)state;
    enum { M = 5, N = 12, K = 300 };
    static const int32_t ids[M] = {0, 11, 3, 3, 7};
    FOR_ORDERS(order) {
        for (size_t i = 0; i < 3; i++) {
            struct weights w;
            float want[M * K];
            weights_open(&w, N, K, kinds[i].dtype, SL_WEIGHT_STORED, false);
            w.cpu.parts[0].n = N; // embed() reads rows of the first part
            int32_t *gpu_ids = gpu_up(ids, sizeof ids);
            float *out = gpu_room(sizeof want);
            tier("reference")->embed(NULL, &w.cpu, ids, M, want);
            sl_gpu_embed(queue, &w.gpu, gpu_ids, M, out);
            gpu_assert_equal(out, want, sizeof want, "embed");
            gpu_free(gpu_ids);
            weights_close(&w);
        }
    }
}

// --- rows ------------------------------------------------------------------------------------------------------------

static void test_norm(void **state) {
    (void)state;
    enum { M = 3, STRIDE = 2100 };
    static const struct {
        enum sl_norm_kind kind;
        int64_t n;
        int groups;
        bool bias;
    } norms[] = {{SL_NORM_RMS, 64, 5, false},
                 {SL_NORM_RMS, 2050, 1, false},
                 {SL_NORM_LAYER, 300, 2, true},
                 {SL_NORM_LAYER, 7, 1, false}};
    FOR_ORDERS(order) {
        for (size_t i = 0; i < 4; i++) {
            int64_t n = norms[i].n;
            float *x = random_floats(M * STRIDE, 3), *weight = random_floats((size_t)n, 4);
            float *bias = random_floats((size_t)n, 5), *gpu_x = gpu_up(x, M * STRIDE * sizeof *x);
            float *gpu_weight = gpu_up(weight, (size_t)n * sizeof *x), *gpu_bias = gpu_up(bias, (size_t)n * sizeof *x);
            const struct sl_norm of = {norms[i].kind, n, 1e-5f, weight, norms[i].bias ? bias : NULL};
            const struct gpu_norm gpu = {norms[i].kind == SL_NORM_LAYER, n, 1e-5f, gpu_weight,
                                         norms[i].bias ? gpu_bias : NULL};
            tier("reference")->norm(NULL, &of, x, STRIDE, M, norms[i].groups, x, STRIDE);
            sl_gpu_norm(queue, &gpu, gpu_x, STRIDE, M, norms[i].groups, gpu_x, STRIDE);
            gpu_assert_close(gpu_x, x, M * STRIDE, 2e-6, "norm");
            gpu_free(gpu_weight), gpu_free(gpu_bias);
            free(x), free(weight), free(bias);
        }
    }
}

static void test_angles_and_rotate(void **state) {
    (void)state;
    enum { M = 5, HEADS = 3, D = 48, ROTARY = 32, STRIDE = HEADS * D + 8 };
    static const int64_t positions[M] = {0, 1, 17, 4095, 131071};
    const double *inv_freq = inverse_frequencies(ROTARY);
    float cosines[M * ROTARY / 2], sines[M * ROTARY / 2];
    FOR_ORDERS(order) {
        float *x = random_floats(M * STRIDE, 9), *gpu_x = gpu_up(x, M * STRIDE * sizeof *x);
        void *gpu_positions = gpu_up(positions, sizeof positions);
        double *gpu_freq = gpu_up(inv_freq, ROTARY / 2 * sizeof *inv_freq);
        float *gpu_cosines = gpu_room(sizeof cosines), *gpu_sines = gpu_room(sizeof sines);
        const struct sl_rope rope = {D, ROTARY, inv_freq, 1.25};
        const struct gpu_rope gpu = {D, ROTARY, gpu_freq, 1.25};
        tier("reference")->angles(NULL, &rope, positions, M, cosines, sines);
        sl_gpu_angles(queue, &gpu, gpu_positions, M, gpu_cosines, gpu_sines);
        gpu_assert_close(gpu_cosines, cosines, M * ROTARY / 2, 1e-7, "cosines");
        gpu_assert_close(gpu_sines, sines, M * ROTARY / 2, 1e-7, "sines");
        gpu_cosines = gpu_up(cosines, sizeof cosines), gpu_sines = gpu_up(sines, sizeof sines); // the same for both
        tier("reference")->rotate(NULL, &rope, cosines, sines, x, STRIDE, M, HEADS);
        sl_gpu_rotate(queue, &gpu, gpu_cosines, gpu_sines, gpu_x, STRIDE, M, HEADS);
        gpu_assert_equal(gpu_x, x, M * STRIDE * sizeof *x, "rotate");
        gpu_free(gpu_cosines), gpu_free(gpu_sines);
        gpu_free(gpu_positions), gpu_free(gpu_freq);
        free(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GPU_TEST(test_matmul),
        GPU_TEST(test_matmul_of_a_row_is_the_same_in_any_company),
        GPU_TEST(test_embed),
        GPU_TEST(test_norm),
        GPU_TEST(test_angles_and_rotate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

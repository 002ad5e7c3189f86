// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: products by cuBLASLt, as the plugin loads it and the table calls it: over libraries that compute in the host's memory
 *          (fake_cublaslt.c), which the emulator's kernels reach as well. And by wgmma, which the table calls as it does a library.
 *
 *     check_library FOLDER [REAL]    the fakes; a libcublasLt of NVIDIA's, or nothing
 */
#include <math.h>

#include "engine/tensor/cpu/tiers.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/driver.h"
#include "engine/tensor/cuda/launching.h"
#include "engine/tensor/cuda/plugin/cublaslt.h"
#include "engine/tensor/cuda/table/library.h"
#include "engine/tensor/cuda/table/ops.h"
#include "engine/tensor/cuda/table/pack.h"
#include "engine/tensor/cuda/table/wgmma.h"
#include "tests/kernels/kv_fixture.h"

static const char *folder, *real;
static int n_products; // by the library

// Replaces the function of the plugin's driver (launching.h).
void sl_cuda_launching(const char *what) {
    (void)what;
}

// A stream is in order: what was queued before a product is done before it.
void fake_cublaslt_before(void *stream);
__attribute__((visibility("default"))) void fake_cublaslt_before(void *stream) {
    struct gpu_event *event = sl_emu_event_open();
    n_products++;
    sl_emu_event_record(event, stream);
    sl_emu_event_wait(event);
    sl_emu_event_close(&event);
}

// --- a device whose memory is the host's -----------------------------------------------------------------------------

static const struct gpu_library *library;

static const struct gpu_library *the_library(void) {
    return library;
}

static struct {
    struct gpu_driver driver;
    struct sl_device *device;
    struct sl_stream *stream;
    const struct sl_ops *ops;
} gpu;

static int open_device(void **state) {
    const struct sl_ops *host;
    (void)state;
    gpu.driver = sl_gpu_emulator;
    gpu.driver.alloc = sl_gpu_emulator.alloc_shared;
    gpu.driver.free = sl_gpu_emulator.free_shared;
    gpu.driver.library = the_library;
    assert_int_equal(sl_ops_select("reference", &host, NULL), SL_OK);
    assert_int_equal(sl_gpu_device_open(&gpu.driver, 0, NULL, &gpu.device, NULL), SL_OK);
    gpu.stream = sl_device_stream(gpu.device, SL_STREAM_COMPUTE);
    gpu.ops = sl_gpu_ops(&gpu.driver, host);
    n_products = 0;
    return 0;
}

static int close_device(void **state) {
    (void)state;
    sl_device_close(&gpu.device);
    if (library != NULL) {
        sl_cublaslt_close();
        library = NULL;
    }
    return 0;
}

static void open_fake(const char *name, struct sl_error *err) {
    char path[4096];
    snprintf(path, sizeof path, "%s/lib%s.so", folder, name);
    library = sl_cublaslt_open(path, err);
}

// --- products --------------------------------------------------------------------------------------------------------

struct product {
    struct sl_matrix w;
    uint16_t *weights;
    float *bias, *x, *y, *want;
    struct sl_matmul args;
};

static void open_product(struct product *p, int64_t n, int64_t k, int64_t m, bool gated) {
    uint64_t seed = 3;
    p->weights = take((size_t)(n * k) * sizeof *p->weights);
    for (int64_t i = 0; i < n * k; i++) {
        p->weights[i] = sl_f32_to_bf16(random_float(&seed));
    }
    p->bias = random_floats((size_t)n, 4);
    p->w = (struct sl_matrix){.n = n, .k = k, .dtype = SL_BF16, .parts = {{p->weights, n}}, .gated = gated};
    int64_t x_stride = k + 3, y_stride = sl_matrix_outputs(&p->w) + 5;
    p->x = random_floats((size_t)(m * x_stride), 5);
    for (int64_t i = 0; i < m * x_stride; i++) { // as the device rounds them
        p->x[i] = sl_bf16_to_f32(sl_f32_to_bf16(p->x[i]));
    }
    p->y = random_floats((size_t)(m * y_stride), 6);
    p->want = random_floats((size_t)(m * y_stride), 6);
    p->args =
        (struct sl_matmul){.x = p->x, .x_stride = x_stride, .m = m, .y = p->y, .y_stride = y_stride, .reading = true};
}

static void close_product(struct product *p) {
    free(p->weights), free(p->bias), free(p->x), free(p->y), free(p->want);
}

static void multiply(struct product *p) {
    assert_int_equal(gpu.ops->pack(gpu.stream, &p->w, NULL), SL_OK);
    gpu.ops->matmul(gpu.stream, &p->w, &p->args);
    assert_int_equal(sl_stream_wait(gpu.stream, NULL), SL_OK);
    gpu.ops->unpack(&p->w);
}

// y, and what lies between its rows, is the reference's.
static void compare(struct product *p) {
    const struct sl_ops *reference = tier("reference");
    struct sl_matmul args = p->args;
    args.y = p->want;
    assert_int_equal(reference->pack(NULL, &p->w, NULL), SL_OK);
    reference->matmul(NULL, &p->w, &args);
    reference->unpack(&p->w);
    for (int64_t i = 0; i < args.m * args.y_stride; i++) {
        if (!(fabs((double)p->y[i] - (double)p->want[i]) <= 2e-4 * (1 + fabs((double)p->want[i])))) {
            fail_msg("element %lld is %.9g, not %.9g", (long long)i, (double)p->y[i], (double)p->want[i]);
        }
    }
}

static void test_products_are_the_reference(void **state) {
    static const struct {
        int64_t n, k, m;
        bool gated, accumulate, bias;
        enum sl_activation activation;
    } cases[] = {{48, 64, 5, false, false, false, SL_ACT_NONE},
                 {96, 70, 40, true, false, true, SL_ACT_SILU}, // k is padded
                 {20, 33, 1, false, true, true, SL_ACT_GELU},
                 {64, 32, 1500, false, true, false, SL_ACT_NONE}, // more than a block of rows
                 {64, 96, 3, true, false, false, SL_ACT_GELU_TANH}};
    (void)state;
    open_fake("fake_cublaslt", NULL);
    assert_non_null(library);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct product p;
        open_product(&p, cases[i].n, cases[i].k, cases[i].m, cases[i].gated);
        p.w.bias = cases[i].bias ? p.bias : NULL;
        p.w.up_bias = p.w.n / 2;
        p.w.activation = cases[i].activation;
        p.args.accumulate = cases[i].accumulate;
        multiply(&p);
        int with_trial = n_products;
        assert_true(with_trial > 1);
        compare(&p);
        // A shape is tried once. Rows that are written, and parts of the columns, are our kernel's.
        multiply(&p);
        int64_t n_blocks = (cases[i].m + 1023) / 1024;
        assert_int_equal(n_products, with_trial + (int)n_blocks);
        p.args.reading = false;
        multiply(&p);
        assert_int_equal(n_products, with_trial + (int)n_blocks);
        n_products = 0;
        close_product(&p);
    }
}

// As when a model is loaded: the first product finds the shape tried.
static void test_a_shape_can_be_tried_before_its_first_product(void **state) {
    struct product p;
    (void)state;
    open_fake("fake_cublaslt", NULL);
    open_product(&p, 48, 64, 40, false);
    assert_int_equal(gpu.ops->pack(gpu.stream, &p.w, NULL), SL_OK);
    gpu.ops->prepare(gpu.stream, &p.w);
    int with_trial = n_products;
    assert_true(with_trial > 1);
    gpu.ops->prepare(gpu.stream, &p.w);
    assert_int_equal(n_products, with_trial); // once
    gpu.ops->matmul(gpu.stream, &p.w, &p.args);
    assert_int_equal(sl_stream_wait(gpu.stream, NULL), SL_OK);
    assert_int_equal(n_products, with_trial + 1);
    gpu.ops->unpack(&p.w);
    compare(&p);
    close_product(&p);
}

// Products are right, whatever fault the library has.
static void assert_refused(const char *name, const char *why, int most_products) {
    struct sl_error err = {0};
    struct product p;
    open_fake(name, &err);
    open_product(&p, 48, 64, 40, false);
    if (library != NULL) {
        struct gpu_matrix matrix;
        int way = -7;
        sl_gpu_matrix_describe(&p.w, &matrix);
        matrix.weights = p.weights; // the host's memory is the device's, and k has no gaps
        enum sl_status status = sl_gpu_library_try((struct gpu_stream *)gpu.stream, library, &matrix, &way, &err);
        assert_int_equal(status, SL_ERR_UNSUPPORTED);
        assert_int_equal(way, -7);
    }
    if (strstr(err.text, why) == NULL) {
        fail_msg("%s: \"%s\" does not say \"%s\"", name, err.text, why);
    }
    n_products = 0;
    multiply(&p);
    assert_true(n_products <= most_products);
    compare(&p);
    close_product(&p);
}

static void test_a_library_that_lacks_a_function_is_refused(void **state) {
    (void)state;
    assert_refused("fake_cublaslt_lacks", "it has no cublasLtMatmulAlgoCheck", 0);
}

static void test_a_library_of_another_version_is_refused(void **state) {
    (void)state;
    assert_refused("fake_cublaslt_version", "is version 110000, this was built for 1", 0);
}

static void test_a_library_that_is_not_there_is_refused(void **state) {
    (void)state;
    assert_refused("no_cublaslt", "cannot open shared object", 0);
}

static void test_a_library_that_splits_k_is_refused(void **state) {
    (void)state;
    assert_refused("fake_cublaslt_splits", "none takes 1 row and 1024 without split-K", 0);
}

static void test_a_library_whose_rows_depend_on_others_is_refused(void **state) {
    (void)state;
    assert_refused("fake_cublaslt_by_rows", "has other bits than among 1024", 20);
}

static void test_a_library_with_other_numbers_is_refused(void **state) {
    (void)state;
    assert_refused("fake_cublaslt_wrong", "our kernel's is", 20);
}

// Without a device it goes no further, but every function is there.
static void test_the_real_library_has_every_function(void **state) {
    struct sl_error err = {0};
    (void)state;
    if (real == NULL) {
        skip();
    }
    library = sl_cublaslt_open(real, &err);
    if (library == NULL && strstr(err.text, "cannot be used on this device") == NULL) {
        fail_msg("%s", err.text);
    }
}

static int n_wgmma; // calls that went wrong()'s way, or right()'s

static enum sl_status right(struct gpu_queue *queue, int way, const struct gpu_matrix *w, const void *x,
                            const struct sl_matmul *args, struct sl_error *err) {
    n_wgmma++;
    return sl_gpu_wgmma.multiply(queue, way, w, x, args, err);
}

static enum sl_status wrong(struct gpu_queue *queue, int way, const struct gpu_matrix *w, const void *x,
                            const struct sl_matmul *args, struct sl_error *err) {
    struct gpu_matrix other = *w;
    other.activation = SL_ACT_NONE; // of gated ones there is one here
    return right(queue, way, &other, x, args, err);
}

// Bare and finished products of one shape are told apart.
static void test_wgmma_is_tried_as_a_library_is(void **state) {
    static const struct {
        int64_t n, k, m;
        bool gated, accumulate;
        enum sl_activation activation;
        int n_calls; // of the product, after those of the trial
    } cases[] = {{144, 128, 40, false, true, SL_ACT_NONE, 1},
                 {144, 128, 40, true, false, SL_ACT_SILU, 1},
                 {16, 64, 2100, false, false, SL_ACT_NONE, 2}, // more than a call takes
                 {48, 96, 40, false, false, SL_ACT_NONE, 0}};  // k is not a multiple of 64
    static struct gpu_library tested;
    (void)state;
    tested = sl_gpu_wgmma;
    library = &tested;
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        tested.multiply = is_wrong ? wrong : right;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct product p;
            open_product(&p, cases[i].n + 16 * is_wrong, cases[i].k, cases[i].m, cases[i].gated);
            p.w.activation = cases[i].activation;
            p.args.accumulate = cases[i].accumulate;
            multiply(&p);
            compare(&p);
            n_wgmma = 0;
            multiply(&p);
            assert_int_equal(n_wgmma, is_wrong && cases[i].gated ? 0 : cases[i].n_calls);
            close_product(&p);
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
#define TEST(test) cmocka_unit_test_setup_teardown(test, open_device, close_device)
        TEST(test_products_are_the_reference),
        TEST(test_a_shape_can_be_tried_before_its_first_product),
        TEST(test_a_library_that_lacks_a_function_is_refused),
        TEST(test_a_library_of_another_version_is_refused),
        TEST(test_a_library_that_is_not_there_is_refused),
        TEST(test_a_library_that_splits_k_is_refused),
        TEST(test_a_library_whose_rows_depend_on_others_is_refused),
        TEST(test_a_library_with_other_numbers_is_refused),
        TEST(test_wgmma_is_tried_as_a_library_is),
        TEST(test_the_real_library_has_every_function),
    };
    folder = argc > 1 ? argv[1] : ".";
    real = argc > 2 && argv[2][0] != '\0' ? argv[2] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

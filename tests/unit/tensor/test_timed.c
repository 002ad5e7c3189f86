// SPDX-License-Identifier: Apache-2.0
// Purpose: a tier that takes an accelerator's time: how long products, attention and copies take at least, and its names.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/tensor/timed/timed.h"

#define MS 1000000

static const struct sl_ops *open_tier(const char *name) {
    const struct sl_ops *ops = NULL;
    static const struct sl_ops none = {.name = "none"};
    assert_int_equal(sl_timed_ops(name, &none, &ops, NULL), SL_OK);
    assert_string_equal(ops->name, name);
    return ops;
}

// Returns the time after a pause in which the accelerator has nothing to do, and after which it makes up for nothing.
static int64_t pause_here(void) {
    sl_sleep_ms(101);
    return sl_now_ns();
}

static int64_t took(int64_t begin_ns) {
    return sl_now_ns() - begin_ns;
}

// The least time: a thread may sleep longer, never less, but for the work that is queued ahead.
static void test_products_take_their_time(void **state) {
    (void)state;
    const struct sl_ops *ops = open_tier("timed:h100/100");
    const struct sl_matrix w = {.n = 4096, .k = 4096, .dtype = SL_BF16};
    struct sl_matmul product = {.m = 1};
    int64_t begin = pause_here();
    ops->matmul(NULL, &w, &product); // 33.5 MB at 2.68 TB/s: 12.5 us, and 100 times that
    int64_t one_row = took(begin);
    assert_true(one_row >= 1 * MS);
    product.m = 4096; // 137 GFLOP at 593 TFLOP/s: 232 us
    begin = pause_here();
    ops->matmul(NULL, &w, &product);
    assert_true(took(begin) >= 22 * MS);
    const struct sl_matrix int4 = {.n = 4096, .k = 4096, .dtype = SL_BF16, .format = SL_WEIGHT_INT4};
    product.m = 1;
    begin = pause_here();
    for (int i = 0; i < 10; i++) {
        ops->matmul(NULL, &int4, &product); // 9.4 MB each
    }
    assert_true(took(begin) >= 3 * MS);
}

static void test_attention_takes_the_time_of_its_pages(void **state) {
    (void)state;
    const struct sl_ops *ops = open_tier("timed:h100/100");
    struct sl_page_layout f16, int4;
    assert_int_equal(sl_page_layout_init(&f16, SL_KV_F16, 128, 0, false), SL_OK);
    assert_int_equal(sl_page_layout_init(&int4, SL_KV_INT4, 128, 0, false), SL_OK);
    struct sl_kv kv[8];
    for (int h = 0; h < 8; h++) { // 32,768 slots of 8 heads: 134 MB in f16, at 2.68 TB/s 50 us
        kv[h] = (struct sl_kv){.n_slots = 32768, .work = &f16, .packed = &int4};
    }
    struct sl_attend call = {.m = 1, .n_heads = 32, .head_dim = 128, .heads = {.kv = kv, .n = 8}};
    int64_t begin = pause_here();
    ops->attend(NULL, &call, 1);
    assert_true(took(begin) >= 4 * MS);
    for (int h = 0; h < 8; h++) {
        kv[h].n_packed = 512;
    }
    void *none[8] = {NULL};
    begin = pause_here();
    ops->quantize(NULL, &call.heads, 512, none); // reads 134 MB, writes 36
    assert_true(took(begin) >= 5 * MS);
}

// As it was measured: without an accelerator's efficiency.
static void test_a_measured_processor_takes_its_time(void **state) {
    (void)state;
    const struct sl_ops *ops = open_tier("timed:0.5:10/2");
    const struct sl_matrix w = {.n = 4096, .k = 4096, .dtype = SL_BF16};
    struct sl_matmul product = {.m = 1};
    int64_t begin = pause_here();
    ops->matmul(NULL, &w, &product); // 33.5 MB at 10 GB/s: 3.36 ms, and twice that
    int64_t one_row = took(begin);
    assert_true(one_row >= 6 * MS);
    product.m = 256; // 8.6 GFLOP at 0.5 TFLOP/s: 17.2 ms
    begin = pause_here();
    ops->matmul(NULL, &w, &product);
    assert_true(took(begin) >= 34 * MS);
}

// Logits say the same token in every row, at any temperature; other products write nothing.
static void test_only_logits_are_written(void **state) {
    (void)state;
    const struct sl_ops *ops = open_tier("timed:a100");
    const struct sl_matrix table = {.n = 300, .k = 8, .dtype = SL_BF16};
    float y[2][300];
    memset(y, 0x7f, sizeof y);
    ops->embed(NULL, &table, NULL, 0, NULL);
    const struct sl_matrix other = {.n = 299, .k = 8, .dtype = SL_BF16};
    ops->matmul(NULL, &other, &(struct sl_matmul){.m = 1, .y = y[0], .y_stride = 300});
    assert_true(y[0][0] > 1e30f);
    ops->matmul(NULL, &table, &(struct sl_matmul){.m = 2, .y = y[0], .y_stride = 300});
    for (int r = 0; r < 2; r++) {
        int best = 0;
        for (int i = 0; i < 300; i++) {
            best = y[r][i] > y[r][best] ? i : best;
        }
        assert_int_equal(best, 'A');
        assert_true(y[r][best] - y[r][0] > 50);
    }
}

static void test_names(void **state) {
    (void)state;
    const struct sl_ops *ops = NULL;
    static const struct sl_ops none = {.name = "none"};
    struct sl_error err;
    assert_true(sl_timed_is_named("timed:h100") && !sl_timed_is_named("avx2") && !sl_timed_is_named(NULL));
    assert_int_equal(sl_timed_ops("timed:h900", &none, &ops, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "there are: a100, h100"));
    static const char *const bad[] = {"timed:",         "timed:h100/", "timed:h100/0", "timed:h100/2x",
                                      "timed:h100/1e9", "timed:h1",    "timed:1:",     "timed:0:10",
                                      "timed:1:-1",     "timed:1:10s", "timed:nan:10", "timed:1:inf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(sl_timed_ops(bad[i], &none, &ops, &err), SL_ERR_INVALID);
    }
    assert_null(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_take_their_time),
        cmocka_unit_test(test_attention_takes_the_time_of_its_pages),
        cmocka_unit_test(test_a_measured_processor_takes_its_time),
        cmocka_unit_test(test_only_logits_are_written),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

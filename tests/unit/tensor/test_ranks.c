// SPDX-License-Identifier: Apache-2.0
// Purpose: ranks give the bits of one device, whatever is divided and however unevenly; and a rank that fails or stands still is named.
//          Whole models and recipes: tests/bits.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/ranks/ranks.h"
#include "tests/stream.h"

#define MOST_RANKS 5

struct world {
    struct sl_team *teams[MOST_RANKS];
    struct sl_device *device;
    const struct sl_ops *ops;
    struct sl_stream *stream;
};

static const struct sl_ops *tier_of(const char *name) {
    const struct sl_ops *ops;
    assert_int_equal(sl_ops_select(name, &ops, NULL), SL_OK);
    return ops;
}

static void open_world(int n, const struct sl_ops *ops, int64_t still_ms, struct world *w) {
    struct sl_ranks_config config = {.n = n, .ops = ops, .still_ms = still_ms};
    struct sl_error err;
    *w = (struct world){0};
    for (int i = 0; i < n; i++) {
        assert_int_equal(sl_team_create(1 + i % 2, &w->teams[i], &err), SL_OK);
        assert_int_equal(sl_cpu_device_open(w->teams[i], &config.devices[i], &err), SL_OK);
        config.teams[i] = w->teams[i];
    }
    assert_int_equal(sl_ranks_open(&config, &w->device, &w->ops, &err), SL_OK);
    assert_int_equal(sl_ranks_count(w->device), n);
    w->stream = sl_device_stream(w->device, SL_STREAM_COMPUTE);
}

static void close_world(struct world *w) {
    sl_device_close(&w->device);
    for (int i = 0; i < MOST_RANKS; i++) {
        sl_team_destroy(&w->teams[i]);
    }
}

static void fill(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(sl_mix(seed + i * SL_GOLDEN) % 2001) / 1000.0f - 1.0f;
    }
}

static float *floats(size_t n, uint64_t seed) {
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    assert_non_null(x);
    fill(x, n, seed);
    return x;
}

// --- products ----------------------------------------------------------------------------------------------------------

static const struct product_case {
    int64_t n, k, m, n_columns;
    int64_t parts[SL_MAX_PARTS]; // rows of each
    bool gated, bias, accumulate;
    enum sl_weight_format format;
} products[] = {
    {192, 64, 5, 0, {128, 32, 32}, false, true, false, SL_WEIGHT_STORED},
    {192, 64, 5, 130, {128, 32, 32}, false, false, false, SL_WEIGHT_STORED}, // columns that end within a rank's
    {192, 64, 1, 20, {192}, false, false, false, SL_WEIGHT_INT8},            // and that only the first has
    {96, 100, 17, 0, {96}, false, true, true, SL_WEIGHT_INT4},               // a group that is not whole
    {33, 40, 3, 0, {33}, false, false, true, SL_WEIGHT_STORED},              // a unit and a row
    {8, 64, 70, 0, {8}, false, false, false, SL_WEIGHT_STORED},              // too few rows for two
    {400, 72, 33, 0, {200, 200}, true, true, false, SL_WEIGHT_STORED},       // gate and up, with biases that are parted
    {400, 72, 2, 0, {400}, true, false, false, SL_WEIGHT_INT4},              // both in one tensor
};

// y, and how much memory the weights take.
static float *multiply(const struct product_case *p, const struct sl_ops *ops, struct sl_stream *stream,
                       size_t *bytes_out) {
    int64_t outputs = p->gated ? p->n / 2 : p->n, x_stride = p->k + 3, y_stride = outputs + 5;
    float *stored = floats((size_t)(p->n * p->k), 1), *x = floats((size_t)(p->m * x_stride), 2);
    float *y = floats((size_t)(p->m * y_stride), 3), *bias = floats((size_t)p->n, 4);
    struct sl_matrix w = {.n = p->n,
                          .k = p->k,
                          .dtype = SL_F32,
                          .format = p->format,
                          .bias = p->bias ? bias : NULL,
                          .activation = p->gated ? SL_ACT_SILU : SL_ACT_GELU,
                          .gated = p->gated};
    int64_t row = 0;
    for (int i = 0; i < SL_MAX_PARTS && p->parts[i] > 0; row += p->parts[i++]) {
        w.parts[i] = (struct sl_rows){stored + row * p->k, p->parts[i], w.dtype};
    }
    struct sl_error err;
    assert_int_equal(ops->pack(stream, &w, &err), SL_OK);
    size_t scratch = ops->matmul_scratch(&w, p->m);
    struct sl_matmul args = {.x = x,
                             .x_stride = x_stride,
                             .m = p->m,
                             .y = y,
                             .y_stride = y_stride,
                             .n_columns = p->n_columns,
                             .accumulate = p->accumulate,
                             .scratch = floats(scratch / sizeof(float) + 16, 5)};
    ops->matmul(stream, &w, &args);
    *bytes_out = w.packed_bytes;
    ops->unpack(&w);
    assert_null(w.packed);
    free(args.scratch);
    free(stored);
    free(x);
    free(bias);
    return y;
}

static void check_products(const char *tier) {
    for (int n = 1; n <= MOST_RANKS; n++) {
        struct world w;
        struct sl_stream *one = test_stream_open(2);
        open_world(n, tier_of(tier), 0, &w);
        for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
            const struct product_case *p = &products[i];
            size_t bytes, of_ranks;
            float *expected = multiply(p, tier_of(tier), one, &bytes), *got = multiply(p, w.ops, w.stream, &of_ranks);
            size_t size = (size_t)(p->m * ((p->gated ? p->n / 2 : p->n) + 5)) * sizeof(float);
            if (memcmp(expected, got, size) != 0) {
                fail_msg("product %zu of tier %s differs by %d ranks", i, tier, n);
            }
            assert_true(of_ranks > 0);
            for (int r = 0; r < n; r++) { // all has been given back
                assert_int_equal(sl_ranks_weight_bytes(w.device, r), 0);
            }
            free(expected);
            free(got);
        }
        close_world(&w);
        test_stream_close(&one);
    }
}

static void test_products_are_those_of_one(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        check_products(*tier);
    }
}

static void test_each_rank_has_its_share_of_the_weights(void **state) {
    (void)state;
    struct world w;
    open_world(4, tier_of("auto"), 0, &w);
    float *stored = floats((size_t)1024 * 256, 1);
    struct sl_matrix matrix = {.n = 1024, .k = 256, .dtype = SL_F32, .parts = {{stored, 1024}}};
    assert_int_equal(w.ops->pack(w.stream, &matrix, NULL), SL_OK);
    size_t all = 0;
    for (int r = 0; r < 4; r++) {
        assert_int_equal(sl_ranks_weight_bytes(w.device, r), matrix.packed_bytes / 4);
        all += sl_ranks_weight_bytes(w.device, r);
    }
    assert_int_equal(all, matrix.packed_bytes);
    w.ops->unpack(&matrix);
    free(stored);
    close_world(&w);
}

// --- attention ---------------------------------------------------------------------------------------------------------

#define D     16
#define SLOTS 150

struct kv_world {
    struct sl_page_layout layout;
    struct sl_kv kv[8];
    void *lists[8][3];
};

static void open_kv(const struct sl_ops *ops, int n, struct kv_world *k) {
    assert_int_equal(sl_page_layout_init(&k->layout, SL_KV_F16, D, 2, true), SL_OK);
    float *rows = floats((size_t)(SLOTS * n * D), 11);
    int64_t positions[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        positions[i] = i;
    }
    for (int h = 0; h < n; h++) {
        for (int p = 0; p < 3; p++) {
            k->lists[h][p] = aligned_alloc(64, k->layout.bytes);
            memset(k->lists[h][p], 0, k->layout.bytes);
        }
        k->kv[h] = (struct sl_kv){k->lists[h], 0, SLOTS, &k->layout, &k->layout};
    }
    struct sl_attend all = {
        .k = rows, .v = rows, .m = SLOTS, .n_heads = n, .head_dim = D, .heads = {k->kv, n}, .positions = positions};
    ops->append(NULL, &all, 1);
    free(rows);
}

static void close_kv(struct kv_world *k, int n) {
    for (int h = 0; h < n; h++) {
        for (int p = 0; p < 3; p++) {
            free(k->lists[h][p]);
        }
    }
}

struct outcome {
    float out[7 * 12 * D], lse[12 * 7], sums[12 * SLOTS], state[8 * SLOTS];
};

// Attention of 7 rows and its statistics; of the pages as they are left by it.
static void attend_all(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_ops *cpu, int n_heads,
                       int n_kv, struct outcome *o) {
    struct kv_world k;
    memset(o, 0, sizeof *o);
    open_kv(cpu, n_kv, &k);
    float *q = floats((size_t)(7 * n_heads * D), 12);
    int64_t positions[7] = {143, 144, 145, 146, 147, 148, 149};
    struct sl_attend args = {.q = q,
                             .m = 7,
                             .n_heads = n_heads,
                             .head_dim = D,
                             .scale = 0.25f,
                             .heads = {k.kv, n_kv},
                             .positions = positions,
                             .out = o->out,
                             .lse = o->lse};
    assert_int_equal(ops->publish(stream, &args.heads, NULL), SL_OK);
    ops->attend(stream, &args, 1);
    struct sl_fold fold = {.sum = 0, .square = 1, .above = -1};
    ops->fold(stream, &args, 0, &fold);
    ops->window_sums(stream, &args, 2, (struct sl_vectors){o->sums, SLOTS});
    ops->read_state(stream, &args.heads, 0, (struct sl_vectors){o->state, SLOTS});
    free(q);
    close_kv(&k, n_kv);
}

static void test_attention_is_that_of_one(void **state) {
    static const int shapes[][2] = {{12, 1}, {12, 2}, {12, 3}, {12, 4}, {8, 8}, {5, 5}, {2, 1}, {1, 1}, {9, 3}};
    (void)state;
    struct outcome *expected = malloc(sizeof *expected), *got = malloc(sizeof *got);
    const struct sl_ops *cpu = tier_of("auto");
    struct sl_stream *one = test_stream_open(2);
    for (int n = 2; n <= MOST_RANKS; n++) {
        struct world w;
        open_world(n, cpu, 0, &w);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            attend_all(cpu, one, cpu, shapes[i][0], shapes[i][1], expected);
            attend_all(w.ops, w.stream, cpu, shapes[i][0], shapes[i][1], got);
            if (memcmp(expected, got, sizeof *got) != 0) {
                fail_msg("%d query heads over %d differ by %d ranks", shapes[i][0], shapes[i][1], n);
            }
        }
        close_world(&w);
    }
    test_stream_close(&one);
    free(expected);
    free(got);
}

// --- failures ----------------------------------------------------------------------------------------------------------

static struct sl_team *failing;                              // the rank's
static pthread_mutex_t standing = PTHREAD_MUTEX_INITIALIZER; // held: it stands still

static enum sl_status fail_to_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return stream->team == failing ? sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for packed weights")
                                   : tier_of("auto")->pack(stream, matrix, err);
}

static void test_a_rank_without_memory_is_named(void **state) {
    (void)state;
    struct world w;
    struct sl_ops ops = *tier_of("auto");
    struct sl_error err;
    ops.pack = fail_to_pack;
    open_world(3, &ops, 0, &w);
    failing = w.teams[1];
    float *stored = floats((size_t)256 * 64, 1);
    struct sl_matrix matrix = {.n = 256, .k = 64, .dtype = SL_F32, .parts = {{stored, 256}}};
    assert_int_equal(w.ops->pack(w.stream, &matrix, &err), SL_ERR_EXHAUSTED);
    assert_string_equal(err.text, "rank 1 of 3: out of memory for packed weights");
    assert_null(matrix.packed);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(sl_ranks_weight_bytes(w.device, r), 0);
    }
    assert_false(sl_device_has_failed(w.device)); // there may be room later
    free(stored);
    close_world(&w);
}

static void stand_still(struct sl_stream *stream, const struct sl_matrix *matrix, const struct sl_matmul *args) {
    if (stream->team == failing) {
        pthread_mutex_lock(&standing);
        pthread_mutex_unlock(&standing);
        return;
    }
    tier_of("auto")->matmul(stream, matrix, args);
}

static void test_a_rank_that_stands_still_is_named(void **state) {
    (void)state;
    struct world w;
    static struct sl_ops ops; // the rank may come back to it
    struct sl_error err;
    ops = *tier_of("auto");
    ops.matmul = stand_still;
    open_world(2, &ops, 300, &w);
    failing = w.teams[1];
    float *stored = floats((size_t)256 * 64, 1), *x = floats(64, 2), *y = floats(256, 3);
    struct sl_matrix matrix = {.n = 256, .k = 64, .dtype = SL_F32, .parts = {{stored, 256}}};
    assert_int_equal(w.ops->pack(w.stream, &matrix, &err), SL_OK);
    static char scratch[1 << 16];
    struct sl_matmul args;
    assert_true(w.ops->matmul_scratch(&matrix, 1) <= sizeof scratch);
    args = (struct sl_matmul){.x = x, .x_stride = 64, .m = 1, .y = y, .y_stride = 256, .scratch = scratch};
    pthread_mutex_lock(&standing);
    w.ops->matmul(w.stream, &matrix, &args);
    assert_true(sl_device_has_failed(w.device));
    assert_int_equal(sl_stream_wait(w.stream, &err), SL_ERR_INTERNAL);
    assert_string_equal(err.text, "rank 1 of 2 has got nothing done for 0.3 s");
    assert_int_equal(w.ops->publish(w.stream, &(struct sl_kv_heads){0}, &err), SL_ERR_INTERNAL); // so ends a step
    w.ops->matmul(w.stream, &matrix, &args); // at once; the rank stands until the program ends
    sl_stream_hold(w.stream);
    assert_int_equal(sl_stream_release(w.stream, &err), SL_ERR_INTERNAL);
    w.ops->unpack(&matrix); // what the rank may come back to stays: the program's end takes it
    sl_device_close(&w.device);
}

static void test_what_cannot_be_ranks_is_refused(void **state) {
    (void)state;
    struct sl_device *device;
    const struct sl_ops *ops;
    struct sl_error err;
    struct sl_ranks_config none = {.n = 0, .ops = tier_of("auto")};
    assert_int_equal(sl_ranks_open(&none, &device, &ops, &err), SL_ERR_INVALID);
    struct sl_ranks_config many = {.n = SL_MAX_RANKS + 1, .ops = tier_of("auto")};
    assert_int_equal(sl_ranks_open(&many, &device, &ops, &err), SL_ERR_INVALID);
    assert_int_equal(sl_ranks_count(sl_cpu_caller()->device), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_those_of_one),
        cmocka_unit_test(test_each_rank_has_its_share_of_the_weights),
        cmocka_unit_test(test_attention_is_that_of_one),
        cmocka_unit_test(test_a_rank_without_memory_is_named),
        cmocka_unit_test(test_a_rank_that_stands_still_is_named),
        cmocka_unit_test(test_what_cannot_be_ranks_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

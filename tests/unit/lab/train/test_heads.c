// SPDX-License-Identifier: Apache-2.0
// Purpose: gradients of retaining heads against differences of a loss that is written down a second time, in f64; AdamW
//          against PyTorch.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/train/heads.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/half.h"
#include "tests/stream.h"

#define LAYERS   2
#define COLUMNS  24
#define HIDDEN   11
#define KV_HEADS 3
#define TOKENS   37
#define STRIDE   41 // of the labels
#define SMOOTH   0.25
#define WEIGHT   0.5

static const struct sl_heads_shape shape = {LAYERS, COLUMNS, HIDDEN, KV_HEADS};

// In [-1, 1), a multiple of 1/128: exact in bf16.
static float invented(uint64_t i) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((int)(z >> 56) - 128) / 128.0f;
}

struct fixture {
    const struct sl_ops *ops;
    struct sl_heads *heads;
    float features[TOKENS * COLUMNS], labels[KV_HEADS * STRIDE];
    uint16_t halves[TOKENS * COLUMNS];
    struct sl_heads_example example;
};

static struct fixture *start(const char *tier, struct sl_stream *stream, enum sl_dtype dtype) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sl_error err = {0};
    assert_non_null(f);
    assert_int_equal(sl_ops_select(tier, &f->ops, &err), SL_OK);
    assert_int_equal(sl_heads_create(&shape, f->ops, stream, 0.5, 8, &f->heads, &err), SL_OK);
    for (int i = 0; i < TOKENS * COLUMNS; i++) {
        f->features[i] = invented((uint64_t)i);
        f->halves[i] = sl_f32_to_bf16(f->features[i]);
    }
    for (int i = 0; i < KV_HEADS * STRIDE; i++) {
        f->labels[i] = 2 * invented((uint64_t)i + 100000); // both parts of smooth-L1 occur
    }
    f->example = (struct sl_heads_example){.features = dtype == SL_F32 ? (void *)f->features : (void *)f->halves,
                                           .dtype = dtype,
                                           .labels = f->labels,
                                           .label_stride = STRIDE,
                                           .n_tokens = TOKENS};
    return f;
}

static void stop(struct fixture *f) {
    sl_heads_destroy(&f->heads);
    free(f);
}

// --- the loss, again -------------------------------------------------------------------------------------------------

static void score_all(const struct fixture *f, const double *w1, const double *w2, double scores[KV_HEADS][TOKENS]) {
    memset(scores, 0, sizeof(double) * KV_HEADS * TOKENS);
    for (int t = 0; t < TOKENS; t++) {
        for (int r = 0; r < HIDDEN; r++) {
            double h = 0;
            for (int c = 0; c < COLUMNS; c++) {
                h += w1[r * COLUMNS + c] * (double)f->features[t * COLUMNS + c];
            }
            for (int k = 0; k < KV_HEADS; k++) {
                scores[k][t] += w2[k * HIDDEN + r] * h / (1 + exp(-h));
            }
        }
    }
}

static struct sl_heads_loss loss_of(const struct fixture *f, const double *w1, const double *w2) {
    double scores[KV_HEADS][TOKENS];
    struct sl_heads_loss loss = {0};
    score_all(f, w1, w2, scores);
    for (int k = 0; k < KV_HEADS; k++) {
        for (int t = 0; t < TOKENS; t++) {
            double off = fabs(scores[k][t] - (double)f->labels[k * STRIDE + t]);
            loss.smooth_l1 += (off < 1 ? off * off / 2 : off - 0.5) / (KV_HEADS * TOKENS * LAYERS);
            double step = t > 0 ? scores[k][t] - scores[k][t - 1] : 0;
            loss.smoothness += step * step / (KV_HEADS * (TOKENS - 1));
        }
        int n_common = 0; // of the best tenth: three of 37
        for (int t = 0; t < TOKENS; t++) {
            int before = 0, before_by_label = 0;
            for (int u = 0; u < TOKENS; u++) {
                float label = f->labels[k * STRIDE + t], other = f->labels[k * STRIDE + u];
                before += scores[k][u] > scores[k][t];
                before_by_label += other > label || (other == label && u < t);
            }
            n_common += before < TOKENS / 10 && before_by_label < TOKENS / 10;
        }
        loss.overlap += (double)n_common / (TOKENS / 10) / (KV_HEADS * LAYERS);
    }
    return loss;
}

static double total(const struct fixture *f, const double *w1, const double *w2) {
    struct sl_heads_loss loss = loss_of(f, w1, w2);
    return loss.smooth_l1 + SMOOTH * loss.smoothness;
}

static struct sl_heads_loss backward(struct fixture *f, int layer) {
    struct sl_heads_loss loss = {0};
    struct sl_error err = {0};
    if (sl_heads_backward(f->heads, layer, &f->example, SMOOTH, WEIGHT, &loss, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return loss;
}

static void parameters_of(struct fixture *f, int layer, double *w1, double *w2) {
    const float *parameters = sl_heads_get_state(f->heads)->parameters;
    for (int i = 0; i < HIDDEN * COLUMNS; i++) {
        w1[i] = (double)parameters[sl_heads_w1_offset(&shape, layer) + (size_t)i];
    }
    for (int i = 0; i < KV_HEADS * HIDDEN; i++) {
        w2[i] = (double)parameters[sl_heads_w2_offset(&shape, layer) + (size_t)i];
    }
}

static void assert_close(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance * (1 + fabs(expected)))) {
        fail_msg("%.9g, expected %.9g", found, expected);
    }
}

static void assert_gradients(struct fixture *f, int layer, double tolerance) {
    double w1[HIDDEN * COLUMNS], w2[KV_HEADS * HIDDEN];
    parameters_of(f, layer, w1, w2);
    const float *gradients = sl_heads_get_state(f->heads)->gradients;
    struct {
        double *w;
        int n;
        size_t at;
    } blocks[] = {{w1, HIDDEN * COLUMNS, sl_heads_w1_offset(&shape, layer)},
                  {w2, KV_HEADS * HIDDEN, sl_heads_w2_offset(&shape, layer)}};
    for (int b = 0; b < 2; b++) {
        double largest = 0;
        for (int i = 0; i < blocks[b].n; i++) {
            double kept = blocks[b].w[i], h = 1e-5;
            blocks[b].w[i] = kept + h;
            double above = total(f, w1, w2);
            blocks[b].w[i] = kept - h;
            double below = total(f, w1, w2);
            blocks[b].w[i] = kept;
            double expected = WEIGHT * (above - below) / (2 * h);
            assert_close((double)gradients[blocks[b].at + (size_t)i], expected, tolerance);
            largest = fmax(largest, fabs(expected));
        }
        assert_true(largest > 100 * tolerance); // there is something to be wrong about
    }
}

static void test_heads_gradients_are_differences_of_the_loss(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        struct fixture *f = start(*tier, NULL, SL_F32);
        for (int layer = 0; layer < LAYERS; layer++) {
            backward(f, layer);
            assert_gradients(f, layer, 2e-6);
        }
        stop(f);
    }
}

// The features are exact in bf16, so only what a tier rounds on the other side of a product is off.
static void test_heads_gradients_of_features_in_bf16(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        bool rounds = strcmp(*tier, "amx") == 0 || strcmp(*tier, "avx512bf16") == 0;
        struct fixture *f = start(*tier, NULL, SL_BF16);
        backward(f, 1);
        assert_gradients(f, 1, rounds ? 1e-3 : 2e-6);
        stop(f);
    }
}

static void test_heads_loss_is_its_formula(void **state) {
    (void)state;
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        struct fixture *f = start(*tier, NULL, SL_F32);
        double w1[HIDDEN * COLUMNS], w2[KV_HEADS * HIDDEN];
        parameters_of(f, 1, w1, w2);
        struct sl_heads_loss loss = backward(f, 1), expected = loss_of(f, w1, w2);
        assert_close(loss.smooth_l1, WEIGHT * expected.smooth_l1, 1e-6);
        assert_close(loss.smoothness, WEIGHT * expected.smoothness, 1e-6);
        assert_close(loss.overlap, WEIGHT * expected.overlap, 1e-9);
        assert_true(expected.overlap > 0); // with this seed
        stop(f);
    }
}

static void test_heads_gradients_add_up_over_examples(void **state) {
    (void)state;
    struct fixture *once = start("auto", NULL, SL_F32), *twice = start("auto", NULL, SL_F32);
    backward(once, 0);
    backward(twice, 0);
    backward(twice, 0);
    const float *one = sl_heads_get_state(once->heads)->gradients, *two = sl_heads_get_state(twice->heads)->gradients;
    for (size_t i = 0; i < sl_heads_get_state(once->heads)->n; i++) {
        assert_close((double)two[i], 2 * (double)one[i], 1e-6);
        if (i >= sl_heads_w1_offset(&shape, 1)) {
            assert_true(two[i] == 0); // layer 1 has not been asked
        }
    }
    stop(once);
    stop(twice);
}

static void test_heads_learn_the_same_bits_with_any_number_of_threads(void **state) {
    (void)state;
    struct sl_stream *stream = test_stream_open(3);
    struct fixture *alone = start("auto", NULL, SL_BF16), *many = start("auto", stream, SL_BF16);
    struct sl_adamw adamw = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .clip = 0.5};
    for (int step = 0; step < 5; step++) {
        for (int layer = 0; layer < LAYERS; layer++) {
            struct sl_heads_loss a = backward(alone, layer), b = backward(many, layer);
            assert_memory_equal(&a, &b, sizeof a);
        }
        sl_heads_step(alone->heads, &adamw);
        sl_heads_step(many->heads, &adamw);
    }
    const struct sl_heads_state *a = sl_heads_get_state(alone->heads), *b = sl_heads_get_state(many->heads);
    assert_memory_equal(a->parameters, b->parameters, a->n * sizeof(float));
    assert_memory_equal(a->squares, b->squares, a->n * sizeof(float));
    stop(alone);
    stop(many);
    test_stream_close(&stream);
}

static void test_heads_of_a_seed_are_normal_and_its_own(void **state) {
    (void)state;
    const struct sl_heads_shape large = {1, 256, 64, 2};
    struct sl_heads *heads[3];
    struct sl_error err = {0};
    const struct sl_ops *ops;
    assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(sl_heads_create(&large, ops, NULL, 0.02, i / 2, &heads[i], &err), SL_OK); // seeds 0, 0, 1
    }
    const struct sl_heads_state *s = sl_heads_get_state(heads[0]);
    assert_memory_equal(s->parameters, sl_heads_get_state(heads[1])->parameters, s->n * sizeof(float));
    assert_memory_not_equal(s->parameters, sl_heads_get_state(heads[2])->parameters, s->n * sizeof(float));
    double sum = 0, squares = 0;
    int within = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += (double)s->parameters[i];
        squares += (double)s->parameters[i] * (double)s->parameters[i];
        within += fabs((double)s->parameters[i]) < 0.02;
    }
    assert_true(fabs(sum / (double)s->n) < 4 * 0.02 / sqrt((double)s->n));
    assert_true(fabs(sqrt(squares / (double)s->n) / 0.02 - 1) < 0.03);
    assert_true(fabs((double)within / (double)s->n - 0.6827) < 0.02);
    for (int i = 0; i < 3; i++) {
        sl_heads_destroy(&heads[i]);
    }
}

// --- AdamW -----------------------------------------------------------------------------------------------------------

/*
 * torch.optim.AdamW([w], betas=(0.9, 0.95)) of PyTorch 2.15 after torch.nn.utils.clip_grad_value_([w], 0.5), with
 * w = (0.5, -0.25, 1, -2, 0.125), and in step t the rate lrs[t] and the gradient
 * (0.1 (t + 1), -0.3, 2 - t, 0.01 (t - 1.5), -0.7).
 */
static void test_adamw_is_that_of_pytorch(void **state) {
    (void)state;
    static const double lrs[] = {0.004, 0.008, 0.006, 0.002};
    static const float start_at[] = {0.5f, -0.25f, 1.0f, -2.0f, 0.125f};
    static const double golden[][5] = {
        {0.49597999453544617, -0.24599000811576843, 0.995959997177124, -1.9959200620651245, 0.12899500131607056},
        {0.4882764518260956, -0.23797033727169037, 0.987880289554596, -1.9887207746505737, 0.1369846910238266},
        {0.4825800955295563, -0.23195604979991913, 0.9831230044364929, -1.9858561754226685, 0.14297646284103394},
        {0.48068875074386597, -0.2299513965845108, 0.9827399253845215, -1.986051082611084, 0.14497360587120056}};
    const struct sl_heads_shape tiny = {1, 4, 1, 1}; // 5 parameters
    struct sl_heads *heads;
    struct sl_error err = {0};
    const struct sl_ops *ops;
    assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
    assert_int_equal(sl_heads_create(&tiny, ops, NULL, 1, 0, &heads, &err), SL_OK);
    struct sl_heads_state *s = sl_heads_get_state(heads);
    const size_t at[] = {0, 1, 2, 3, sl_heads_w2_offset(&tiny, 0)};
    for (int i = 0; i < 5; i++) {
        s->parameters[at[i]] = start_at[i];
    }
    for (int t = 0; t < 4; t++) {
        const double gradient[] = {0.1 * (t + 1), -0.3, 2.0 - t, 0.01 * (t - 1.5), -0.7};
        struct sl_adamw adamw = {
            .lr = lrs[t], .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .clip = 0.5};
        for (int i = 0; i < 5; i++) {
            s->gradients[at[i]] = (float)gradient[i];
        }
        sl_heads_step(heads, &adamw);
        for (int i = 0; i < 5; i++) {
            assert_close((double)s->parameters[at[i]], golden[t][i], 2.5e-7);
            assert_true(s->gradients[at[i]] == 0);
        }
    }
    assert_int_equal(s->n_steps, 4);
    sl_heads_destroy(&heads);
}

static void test_lr_goes_up_and_then_down_to_nothing(void **state) {
    (void)state;
    const double lr = 5e-4; // the paper's: 2000 of 3000 steps
    assert_close(sl_heads_lr(lr, 0, 2000, 3000), lr / 2000, 1e-12);
    assert_close(sl_heads_lr(lr, 999, 2000, 3000), lr / 2, 1e-12);
    assert_close(sl_heads_lr(lr, 1999, 2000, 3000), lr, 1e-12);
    assert_close(sl_heads_lr(lr, 2000, 2000, 3000), lr, 1e-12);
    assert_close(sl_heads_lr(lr, 2500, 2000, 3000), lr / 2, 1e-12);
    assert_close(sl_heads_lr(lr, 2999, 2000, 3000), lr / 1000, 1e-12);
    assert_close(sl_heads_lr(lr, 0, 0, 10), lr, 1e-12);  // without warm-up
    assert_close(sl_heads_lr(lr, 9, 10, 10), lr, 1e-12); // and with nothing else
    for (int64_t step = 1; step < 3000; step++) {
        double before = sl_heads_lr(lr, step - 1, 2000, 3000), now = sl_heads_lr(lr, step, 2000, 3000);
        assert_true(step <= 2000 ? now >= before : now < before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_gradients_are_differences_of_the_loss),
        cmocka_unit_test(test_heads_gradients_of_features_in_bf16),
        cmocka_unit_test(test_heads_loss_is_its_formula),
        cmocka_unit_test(test_heads_gradients_add_up_over_examples),
        cmocka_unit_test(test_heads_learn_the_same_bits_with_any_number_of_threads),
        cmocka_unit_test(test_heads_of_a_seed_are_normal_and_its_own),
        cmocka_unit_test(test_adamw_is_that_of_pytorch),
        cmocka_unit_test(test_lr_goes_up_and_then_down_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

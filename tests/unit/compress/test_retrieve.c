// SPDX-License-Identifier: Apache-2.0
// Purpose: retrieval from offloaded layers: which channels and slots it chooses, and that attention is over just those.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compress/retrieve.h"
#include "drive.h"

#define N_LAYERS  3
#define N_KV      2
#define D         16
#define MAX_GROUP 3
#define MAX_SLOTS 320

// Keys, values and queries are multiples of 1/32: sums of their products are exact, so plain code finds the same order.
struct setup {
    struct sl_plan plan;
    int group;
    void *memory;
    struct sl_arena *arena;
    struct sl_session *session;
    struct sl_team *team;
    struct sl_retriever *retriever;
    struct sl_kv kv[N_KV];
    _Alignas(64) float q[MAX_GROUP * N_KV * D];
    _Alignas(64) float next_q[MAX_GROUP * N_KV * D];
    _Alignas(64) float out[4 * MAX_GROUP * N_KV * D];
    _Alignas(64) float lse[4 * MAX_GROUP * N_KV];
};

// The ops of this processor, and what attend_slots was last called with.
static struct sl_ops spy_ops;
static const struct sl_ops *real_ops;
static int n_spied;
static uint32_t spied[N_KV][MAX_SLOTS], n_spied_slots[N_KV];

static void spy_attend_slots(struct sl_team *team, const struct sl_attend *args, const uint32_t *const *slots,
                             const uint32_t *n_slots) {
    n_spied++;
    for (int h = 0; h < N_KV; h++) {
        assert_true(n_slots[h] <= MAX_SLOTS);
        memcpy(spied[h], slots[h], n_slots[h] * sizeof **spied);
        n_spied_slots[h] = n_slots[h];
    }
    real_ops->attend_slots(team, args, slots, n_slots);
}

// --- driving -------------------------------------------------------------------------------------------------------

static struct sl_kv session_kv(const struct setup *s, int layer, int h) {
    const struct sl_layer *l = &s->session->layers[layer];
    const struct sl_head *head = &l->heads[h];
    return (struct sl_kv){head->pages, head->n_packed, head->n_slots, &l->work, &l->packed};
}

// Append tokens [from, to) to every layer; generated tokens have keys `loudness` times as large.
static void append(struct setup *s, int from, int to, float loudness) {
    for (int i = 0; i < (to - from) * N_LAYERS * N_KV; i++) { // token by token, layer by layer, head by head
        int t = from + i / (N_LAYERS * N_KV), l = i / N_KV % N_LAYERS, h = i % N_KV;
        _Alignas(64) float k[D], v[D];
        int64_t position = t;
        if (h == 0) {
            assert_int_equal(sl_session_reserve(s->session, l, 1), SL_OK);
        }
        for (int c = 0; c < D; c++) {
            uint64_t index = ((uint64_t)(l * N_KV + h) * MAX_SLOTS + (uint64_t)t) * D + (uint64_t)c;
            k[c] =
                loudness * (c % 3 == 0 ? 0.25f : 1.0f) * drive_value(5, DRIVE_K, index); // quiet channels: absmax tells
            v[c] = drive_value(5, DRIVE_V, index);
        }
        struct sl_kv kv = session_kv(s, l, h);
        real_ops->append(&kv, k, v, D, 1, &position);
        sl_session_set_slots(s->session, l, h, kv.n_slots + 1);
    }
    s->session->n_tokens = to;
}

static void setup_session(struct setup *s, int group, int n_prompt) {
    struct sl_error err = {0};
    memset(s, 0, sizeof *s);
    s->group = group;
    s->plan.geometry = (struct sl_kv_geometry){N_LAYERS, N_KV, D};
    s->plan.n_prompt = n_prompt;
    s->plan.recipe.sinks = 3;
    s->plan.recipe.recent.slots = 5;
    s->plan.recipe.topk = 12;
    s->plan.recipe.channels = 4;
    sl_layers_add(&s->plan.recipe.offload, 1);
    sl_layers_add(&s->plan.recipe.offload, 2);
    for (int l = 0; l < N_LAYERS; l++) {
        assert_int_equal(sl_page_layout_init(&s->plan.work[l], SL_KV_F16, D, 0, false), SL_OK);
        s->plan.packed[l] = s->plan.work[l];
    }
    assert_int_equal(sl_ops_select(NULL, &real_ops, &err), SL_OK);
    spy_ops = *real_ops;
    spy_ops.attend_slots = spy_attend_slots;
    n_spied = 0;
    size_t bytes = 1 << 20;
    s->memory = aligned_alloc(SL_ARENA_UNIT, bytes);
    assert_non_null(s->memory);
    assert_int_equal(sl_arena_create(s->memory, bytes, &s->arena, &err), SL_OK);
    struct sl_session_config config = {s->plan.geometry, SL_POSITION_ORIGINAL, MAX_SLOTS, s->plan.work, s->plan.packed};
    assert_int_equal(sl_session_create(&config, s->arena, &s->session, &err), SL_OK);
    append(s, 0, n_prompt, 1.0f);
}

static void setup_retriever(struct setup *s) {
    struct sl_error err = {0};
    if (sl_retriever_create(&s->plan, &spy_ops, s->team, s->session, s->plan.n_prompt, &s->retriever, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static void teardown(struct setup *s) {
    sl_retriever_destroy(&s->retriever);
    assert_null(s->retriever);
    sl_session_destroy(&s->session);
    sl_arena_destroy(&s->arena);
    sl_team_destroy(&s->team);
    free(s->memory);
}

static void invent(float *values, int n, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        values[i] = drive_value(seed, DRIVE_Q, (uint64_t)i);
    }
}

static struct sl_attend describe(struct setup *s, int layer, int m, const float *q, bool with_next_q) {
    for (int h = 0; h < N_KV; h++) {
        s->kv[h] = session_kv(s, layer, h);
    }
    return (struct sl_attend){
        .q = q,
        .m = m,
        .n_heads = N_KV * s->group,
        .n_kv_heads = N_KV,
        .head_dim = D,
        .scale = 0.25f,
        .kv = s->kv,
        .out = s->out,
        .lse = s->lse,
        .next_q = with_next_q ? s->next_q : NULL,
    };
}

static void attend(struct setup *s, int layer, bool with_next_q) {
    struct sl_error err = {0};
    struct sl_attend args = describe(s, layer, 1, s->q, with_next_q);
    assert_int_equal(sl_retriever_attend(s->retriever, layer, &args, &err), SL_OK);
}

// --- the same, plainly ---------------------------------------------------------------------------------------------

// Whether item i is among the n best of values[count]: larger first, then the smaller index.
static bool is_best(const double *values, int count, int i, int n) {
    int better = 0;
    for (int j = 0; j < count; j++) {
        better += values[j] > values[i] || (values[j] == values[i] && j < i);
    }
    return better < n;
}

static void plain_mean(const struct setup *s, const float *q, int h, double *mean) {
    for (int c = 0; c < D; c++) {
        mean[c] = 0.0;
        for (int g = 0; g < s->group; g++) {
            mean[c] += (double)q[(h * s->group + g) * D + c] / s->group;
        }
    }
}

static void read_k(const struct setup *s, int layer, int h, int slot, float *k, float *v) {
    struct sl_kv kv = session_kv(s, layer, h);
    real_ops->read_rows(&kv, (uint32_t)slot, (uint32_t)slot + 1, k, v);
}

static void plain_channels(const struct setup *s, int layer, int h, int n_prompt, const float *from, bool *chosen) {
    double mean[D], value[D];
    float k[D];
    plain_mean(s, from, h, mean);
    for (int c = 0; c < D; c++) {
        double absmax = 0.0;
        for (int j = 0; j < n_prompt; j++) {
            read_k(s, layer, h, j, k, NULL);
            absmax = fmax(absmax, fabs((double)k[c]));
        }
        value[c] = fabs(mean[c]) * absmax;
    }
    for (int c = 0; c < D; c++) {
        chosen[c] = is_best(value, D, c, s->plan.recipe.channels);
    }
}

// Slots that a KV head attends to when its channels come from `from`; n_prompt: of this head.
static uint32_t plain_slots(const struct setup *s, int layer, int h, int n_prompt, const float *from, uint32_t *slots) {
    const struct sl_recipe *recipe = &s->plan.recipe;
    int first = (int)recipe->sinks, last = n_prompt - (int)recipe->recent.slots, n = 0;
    double mean[D], scores[MAX_SLOTS];
    bool channels[D];
    float k[D];
    plain_mean(s, s->q, h, mean);
    plain_channels(s, layer, h, n_prompt, from, channels);
    for (int j = first; j < last; j++) {
        read_k(s, layer, h, j, k, NULL);
        scores[j - first] = 0.0;
        for (int c = 0; c < D; c++) {
            scores[j - first] += channels[c] ? mean[c] * (double)k[c] : 0.0;
        }
    }
    for (int j = 0; j < (int)s->session->layers[layer].heads[h].n_slots; j++) {
        if (j < first || j >= last || is_best(scores, last - first, j - first, (int)recipe->topk)) {
            slots[n++] = (uint32_t)j;
        }
    }
    return (uint32_t)n;
}

// The retriever attended to these slots of KV head h, and to no others.
static void assert_attended(const struct setup *s, int layer, int h, const uint32_t *slots, uint32_t n) {
    assert_int_equal(n_spied_slots[h], n);
    assert_memory_equal(spied[h], slots, n * sizeof *slots);
    for (int g = h * s->group; g < (h + 1) * s->group; g++) {
        double sum = 0.0, out[D] = {0};
        for (uint32_t i = 0; i < n; i++) {
            float k[D], v[D];
            double score = 0.0;
            read_k(s, layer, h, (int)slots[i], k, v);
            for (int c = 0; c < D; c++) {
                score += 0.25 * (double)s->q[g * D + c] * (double)k[c];
            }
            sum += exp(score);
            for (int c = 0; c < D; c++) {
                out[c] += exp(score) * (double)v[c];
            }
        }
        assert_true(fabs(log(sum) - (double)s->lse[g]) < 1e-4 * (1.0 + fabs(log(sum))));
        for (int c = 0; c < D; c++) {
            assert_true(fabs(out[c] / sum - (double)s->out[g * D + c]) < 1e-4);
        }
    }
}

static void assert_retrieved(const struct setup *s, int layer, const float *channels_from) {
    for (int h = 0; h < N_KV; h++) {
        uint32_t slots[MAX_SLOTS];
        uint32_t n = plain_slots(s, layer, h, (int)s->plan.n_prompt, channels_from, slots);
        assert_attended(s, layer, h, slots, n);
    }
}

static bool same_channels(const struct setup *s, int layer, const float *a, const float *b) {
    bool from_a[D], from_b[D];
    plain_channels(s, layer, 0, (int)s->plan.n_prompt, a, from_a);
    plain_channels(s, layer, 0, (int)s->plan.n_prompt, b, from_b);
    return memcmp(from_a, from_b, sizeof from_a) == 0;
}

// --- tests ---------------------------------------------------------------------------------------------------------

static void test_retriever_with_nothing_to_choose_is_dense(void **state) {
    (void)state;
    for (int n_prompt = 18; n_prompt <= 20; n_prompt++) { // 3 sinks + 12 fetched + 5 recent
        struct setup s;
        setup_session(&s, 3, n_prompt);
        setup_retriever(&s);
        append(&s, n_prompt, n_prompt + 9, 1.0f);
        invent(s.q, 3 * N_KV * D, 1);
        invent(s.next_q, 3 * N_KV * D, 2);
        attend(&s, 0, true);
        attend(&s, 1, true);
        float out[3 * N_KV * D], lse[3 * N_KV];
        memcpy(out, s.out, sizeof out);
        memcpy(lse, s.lse, sizeof lse);
        struct sl_attend args = describe(&s, 1, 1, s.q, false);
        real_ops->attend(NULL, &args, 1);
        assert_memory_equal(out, s.out, sizeof out);
        assert_memory_equal(lse, s.lse, sizeof lse);
        assert_int_equal(n_spied, 0);
        assert_int_equal(sl_retriever_fetched(s.retriever), 0);
        teardown(&s);
    }
}

static void test_retriever_with_all_channels_ranks_by_the_logits(void **state) {
    (void)state;
    struct setup s;
    setup_session(&s, 1, 150);
    s.plan.recipe.channels = D + 4; // more than there are: all
    setup_retriever(&s);
    append(&s, 150, 153, 1.0f);
    for (uint64_t seed = 1; seed < 6; seed++) {
        invent(s.q, N_KV * D, seed);
        attend(&s, 1, false);
        s.plan.recipe.channels = D;
        for (int h = 0; h < N_KV; h++) {
            double logits[142];
            uint32_t slots[MAX_SLOTS], n = 0;
            for (int j = 3; j < 145; j++) {
                float k[D];
                read_k(&s, 1, h, j, k, NULL);
                logits[j - 3] = 0.0;
                for (int c = 0; c < D; c++) {
                    logits[j - 3] += (double)s.q[h * D + c] * (double)k[c];
                }
            }
            for (int j = 0; j < 153; j++) {
                if (j < 3 || j >= 145 || is_best(logits, 142, j - 3, 12)) {
                    slots[n++] = (uint32_t)j;
                }
            }
            assert_int_equal(n, 3 + 12 + 5 + 3);
            assert_attended(&s, 1, h, slots, n);
        }
    }
    assert_int_equal(sl_retriever_fetched(s.retriever), 5 * N_KV * 12);
    teardown(&s);
}

static void test_retriever_takes_channels_from_the_predicted_query(void **state) {
    (void)state;
    struct setup s;
    setup_session(&s, 3, 200);
    setup_retriever(&s);
    int n_differ = 0;
    for (uint64_t step = 0; step < 6; step++) {
        append(&s, 200 + (int)step, 201 + (int)step, 8.0f); // louder than the prompt: absmax must not hear it
        invent(s.q, 3 * N_KV * D, 10 + step);
        invent(s.next_q, 3 * N_KV * D, 100 + step);
        attend(&s, 0, true); // not offloaded: attends densely, and chooses for layer 1
        assert_int_equal(n_spied, 2 * step);
        n_differ += !same_channels(&s, 1, s.q, s.next_q);
        float predicted[MAX_GROUP * N_KV * D];
        memcpy(predicted, s.next_q, sizeof predicted);
        invent(s.next_q, 3 * N_KV * D, 200 + step);
        attend(&s, 1, true); // retrieves, and chooses for layer 2
        assert_retrieved(&s, 1, predicted);
        attend(&s, 2, false);
        assert_retrieved(&s, 2, s.next_q);
        assert_int_equal(n_spied, 2 * step + 2);
    }
    assert_true(n_differ > 0); // or the true query would have done as well
    assert_int_equal(sl_retriever_fetched(s.retriever), 6 * 2 * N_KV * 12);
    teardown(&s);
}

static void test_retriever_without_a_prediction_takes_the_true_query(void **state) {
    (void)state;
    struct setup s;
    setup_session(&s, 3, 200);
    setup_retriever(&s);
    invent(s.q, 3 * N_KV * D, 31);
    invent(s.next_q, 3 * N_KV * D, 32);
    assert_false(same_channels(&s, 1, s.q, s.next_q));
    attend(&s, 1, false);
    assert_retrieved(&s, 1, s.q);
    attend(&s, 0, true);
    attend(&s, 1, false);
    assert_retrieved(&s, 1, s.next_q);
    attend(&s, 1, false); // a prediction serves once
    assert_retrieved(&s, 1, s.q);
    attend(&s, 0, true);
    attend(&s, 0, false); // and not in a later step
    attend(&s, 1, false);
    assert_retrieved(&s, 1, s.q);
    teardown(&s);
}

static void test_retriever_attends_densely_to_several_rows_and_to_resident_layers(void **state) {
    (void)state;
    struct setup s;
    _Alignas(64) float rows[4 * MAX_GROUP * N_KV * D], out[4 * MAX_GROUP * N_KV * D];
    struct sl_error err = {0};
    setup_session(&s, 3, 200);
    setup_retriever(&s);
    append(&s, 200, 204, 1.0f);
    invent(rows, 4 * 3 * N_KV * D, 41);
    for (int layer = 0; layer < 2; layer++) {
        int m = layer == 0 ? 1 : 4; // layer 0 is resident
        struct sl_attend args = describe(&s, layer, m, rows, false);
        assert_int_equal(sl_retriever_attend(s.retriever, layer, &args, &err), SL_OK);
        memcpy(out, s.out, sizeof out);
        real_ops->attend(NULL, &args, 1);
        assert_memory_equal(out, s.out, (size_t)m * 3 * N_KV * D * sizeof(float));
    }
    assert_int_equal(n_spied, 0);
    assert_int_equal(sl_retriever_fetched(s.retriever), 0);
    teardown(&s);
}

static void test_retriever_heads_of_different_length_choose_for_themselves(void **state) {
    (void)state;
    struct setup s;
    setup_session(&s, 3, 200);
    sl_session_set_slots(s.session, 1, 1, 19); // one fewer than sinks, topk and recent
    setup_retriever(&s);
    append(&s, 200, 203, 1.0f);
    invent(s.q, 3 * N_KV * D, 51);
    attend(&s, 1, false);
    uint32_t slots[MAX_SLOTS], n = plain_slots(&s, 1, 0, 200, s.q, slots);
    assert_attended(&s, 1, 0, slots, n);
    for (uint32_t j = 0; j < 22; j++) {
        slots[j] = j;
    }
    assert_attended(&s, 1, 1, slots, 22);
    assert_int_equal(sl_retriever_fetched(s.retriever), 12);
    teardown(&s);
}

static void test_retriever_of_a_team_gives_the_same_bits(void **state) {
    (void)state;
    float out[MAX_GROUP * N_KV * D];
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        struct setup s;
        struct sl_error err = {0};
        setup_session(&s, 3, 300);
        assert_int_equal(sl_team_create(n_threads, &s.team, &err), SL_OK);
        setup_retriever(&s);
        invent(s.q, 3 * N_KV * D, 61);
        attend(&s, 2, false);
        if (n_threads == 1) {
            memcpy(out, s.out, sizeof out);
        }
        assert_memory_equal(out, s.out, sizeof out);
        teardown(&s);
    }
}

static void test_retriever_refuses_what_it_cannot_rank(void **state) {
    (void)state;
    struct setup s;
    struct sl_error err = {0};
    setup_session(&s, 3, 40);
    s.session->positions = SL_POSITION_SLOT;
    assert_int_equal(sl_retriever_create(&s.plan, &spy_ops, NULL, s.session, 40, &s.retriever, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "positions=original"));
    s.session->positions = SL_POSITION_ORIGINAL;
    s.plan.recipe.topk = 0;
    assert_int_equal(sl_retriever_create(&s.plan, &spy_ops, NULL, s.session, 40, &s.retriever, &err), SL_ERR_INVALID);
    s.plan.recipe.topk = 4;
    s.plan.recipe.channels = 0;
    assert_int_equal(sl_retriever_create(&s.plan, &spy_ops, NULL, s.session, 40, &s.retriever, &err), SL_ERR_INVALID);
    assert_null(s.retriever);
    teardown(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retriever_with_nothing_to_choose_is_dense),
        cmocka_unit_test(test_retriever_with_all_channels_ranks_by_the_logits),
        cmocka_unit_test(test_retriever_takes_channels_from_the_predicted_query),
        cmocka_unit_test(test_retriever_without_a_prediction_takes_the_true_query),
        cmocka_unit_test(test_retriever_attends_densely_to_several_rows_and_to_resident_layers),
        cmocka_unit_test(test_retriever_heads_of_different_length_choose_for_themselves),
        cmocka_unit_test(test_retriever_of_a_team_gives_the_same_bits),
        cmocka_unit_test(test_retriever_refuses_what_it_cannot_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

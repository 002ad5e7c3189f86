// SPDX-License-Identifier: Apache-2.0
// Purpose: retrieval from offloaded layers: what a step attends to, what it asks for, and what it does without answers.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/tensor/cpu/tiers.h"
#include "scene.h"
#include "tests/unit/scarce.h"

static struct sl_recipe near(int ahead) {
    return (struct sl_recipe){.retrieve = SL_RETRIEVE_NEAR, .ahead = ahead};
}

static const struct sl_recipe pull = {.retrieve = SL_RETRIEVE_PULL};

static struct sl_retriever_stats stats_of(const struct scene *s) {
    struct sl_retriever_stats stats;
    sl_retriever_get_stats(s->retriever, &stats);
    return stats;
}

// A prediction that is right by half.
static void invent_alike(struct scene *s, uint64_t seed) {
    scene_invent(s, seed);
    for (int i = 0; i < s->group * N_KV * D; i++) {
        s->next_q[i] = s->q[i] + s->next_q[i] / 2;
    }
}

// One step through all layers, q the same in each and every prediction next_q.
static void step(struct scene *s, uint64_t seed) {
    scene_append(s, 1, 1.0f);
    invent_alike(s, seed);
    for (int l = 0; l < N_LAYERS; l++) {
        scene_attend(s, l, l + 1 < N_LAYERS);
    }
}

// --- what is attended to -------------------------------------------------------------------------------------------

static void test_retriever_with_nothing_to_choose_is_dense(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) { // 3 sinks + 12 fetched + 5 recent
        struct scene s = {.n_prompt = 18 + i / 2, .resident_only = i % 2, .recipe = near(0)};
        struct sl_ops const *ops;
        struct sl_error err;
        assert_int_equal(sl_ops_select(NULL, &ops, &err), SL_OK);
        scene_open(&s);
        scene_append(&s, 9, 1.0f);
        scene_invent(&s, 1);
        for (int l = 0; l < N_LAYERS; l++) {
            float out[MAX_GROUP * N_KV * D];
            struct sl_kv kv[N_KV];
            scene_attend(&s, l, true);
            for (int h = 0; h < N_KV; h++) {
                const struct sl_layer *layer = &s.whole->layers[l];
                kv[h] = (struct sl_kv){layer->heads[h].pages, 0, layer->heads[h].n_slots, &layer->work, &layer->packed};
            }
            struct sl_attend plain = {
                .q = s.q, .m = 1, .n_heads = N_KV * s.group, .head_dim = D, .scale = 0.25f, .heads = {kv, N_KV}};
            memcpy(out, s.out, sizeof out);
            plain.out = s.out;
            ops->attend(NULL, &plain, 1);
            assert_memory_equal(out, s.out, sizeof out);
            assert_false(sl_retriever_serves(s.retriever, l));
        }
        assert_int_equal(n_spied, 0);
        assert_int_equal(stats_of(&s).n_asks, 0);
        assert_int_equal(s.shares->n_asked[SL_NEAR_TOPK], 0);
        scene_close(&s);
    }
}

static void test_retriever_with_all_channels_ranks_by_the_logits(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct scene s = {.group = 1, .n_prompt = 150, .resident_only = i % 2, .recipe = i / 2 ? pull : near(0)};
        s.recipe.channels = D + 4; // more than there are: all
        scene_open(&s);
        s.plan.recipe.channels = D; // for plain_tokens()
        scene_append(&s, 3, 1.0f);
        for (uint64_t seed = 1; seed < 6; seed++) {
            scene_invent(&s, seed);
            scene_attend(&s, 1, false);
            assert_retrieved(&s, 1, s.q, s.q);
        }
        struct sl_retriever_stats stats = stats_of(&s);
        assert_int_equal(stats.rows_fetched + stats.rows_kept, 5 * N_KV * TOPK);
        assert_int_equal(stats.n_asks, 5);
        scene_close(&s);
    }
}

static void test_retriever_near_asks_with_the_true_query(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct scene s = {.resident_only = i % 2, .n_shares = i / 2 ? 3 : 1, .recipe = near(0)};
        scene_open(&s);
        for (uint64_t seed = 0; seed < 6; seed++) {
            scene_append(&s, 1, 8.0f); // louder than the prompt: absmax must not hear it
            scene_invent(&s, seed);
            scene_attend(&s, 0, true); // not offloaded
            assert_int_equal(n_spied, 2 * seed);
            scene_attend(&s, 1, true);
            assert_true(s.shares->patience_ns > 0); // there is a default, too
            assert_retrieved(&s, 1, s.q, s.q);
            scene_invent(&s, 100 + seed);
            scene_attend(&s, 2, true);
            assert_retrieved(&s, 2, s.q, s.q);
        }
        assert_int_equal(s.shares->n_probes, 0);
        scene_close(&s);
    }
}

static void test_retriever_pull_takes_channels_from_the_predicted_query(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct scene s = {.resident_only = i % 2, .n_shares = i / 2 ? 3 : 1, .recipe = pull};
        scene_open(&s);
        s.recipe.keep = 7;
        for (uint64_t seed = 0; seed < 6; seed++) {
            float predicted[MAX_GROUP * N_KV * D];
            scene_append(&s, 1, 8.0f);
            scene_invent(&s, 10 + seed);
            scene_attend(&s, 0, true);
            memcpy(predicted, s.next_q, sizeof predicted);
            scene_invent(&s, 200 + seed);
            scene_attend(&s, 1, true); // retrieves, and chooses for layer 2
            assert_retrieved(&s, 1, predicted, s.q);
            scene_attend(&s, 2, false);
            assert_retrieved(&s, 2, s.next_q, s.q);
        }
        scene_close(&s);
    }
}

static void test_retriever_uses_a_prediction_once_and_in_its_step_alone(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct scene s = {.recipe = i ? pull : near(1)};
        scene_open(&s);
        scene_invent(&s, 31);
        scene_attend(&s, 1, false);
        assert_retrieved(&s, 1, s.q, s.q);
        scene_attend(&s, 0, true);
        scene_attend(&s, 1, false);
        assert_retrieved(&s, 1, s.next_q, i ? s.q : s.next_q);
        scene_attend(&s, 1, false);
        assert_retrieved(&s, 1, s.q, s.q);
        scene_attend(&s, 0, true);
        scene_attend(&s, 0, false); // a step that never came to layer 1
        scene_attend(&s, 1, false);
        assert_retrieved(&s, 1, s.q, s.q);
        scene_close(&s);
    }
}

static void test_retriever_gives_the_same_bits_however_it_is_cut(void **state) {
    (void)state;
    float expected[2][5][2][MAX_GROUP * N_KV * D];
    for (int i = 0; i < 3 * 3 * 2 * 2; i++) {
        int method = i % 2;
        struct scene s = {.n_threads = (int[]){0, 1, 4}[i / 12],
                          .n_shares = 1 + i / 4 % 3,
                          .resident_only = i / 2 % 2,
                          .recipe = method ? pull : near(0),
                          .n_prompt = 300};
        scene_open(&s);
        for (int t = 0; t < 5; t++) {
            scene_append(&s, 1, 1.0f);
            scene_invent(&s, 60 + (uint64_t)t);
            for (int l = 1; l <= 2; l++) {
                scene_attend(&s, l, false);
                if (i < 2) {
                    memcpy(expected[method][t][l - 1], s.out, sizeof s.out);
                }
                assert_memory_equal(s.out, expected[method][t][l - 1], sizeof s.out);
            }
        }
        scene_close(&s);
    }
    assert_memory_equal(expected[0], expected[1], sizeof expected[0]); // pull by the true query is near
}

// A search that is long for one thread is several questions.
static void test_retriever_asks_about_a_layer_in_pieces(void **state) {
    (void)state;
    float expected[MAX_GROUP * N_KV * D];
    for (int i = 0; i < 2; i++) {
        struct scene s = {.resident_only = true, .recipe = near(0), .search_bytes = i ? 1 : 0};
        scene_open(&s);
        for (int t = 0; t < 3; t++) {
            scene_append(&s, 1, 1.0f);
            scene_invent(&s, 90 + (uint64_t)t);
            scene_attend(&s, 1, false);
        }
        if (i == 0) {
            memcpy(expected, s.out, sizeof expected);
        }
        assert_memory_equal(s.out, expected, sizeof expected);
        assert_int_equal(s.shares->n_asked[SL_NEAR_TOPK], 3 * (i ? N_KV : 1));
        assert_int_equal(stats_of(&s).n_asks, 3); // layers of steps
        scene_close(&s);
    }
}

static void test_retriever_ranks_by_key_indexes_of_fewer_bits_in_both_ways_alike(void **state) {
    (void)state;
    float expected[MAX_GROUP * N_KV * D];
    for (int i = 0; i < 4; i++) {
        struct scene s = {.recipe = i % 2 ? pull : near(0)};
        s.recipe.scan = i / 2 ? SL_SCAN_INT1 : SL_SCAN_INT8;
        scene_open(&s);
        scene_invent(&s, 71);
        scene_attend(&s, 2, false);
        if (i % 2 == 0) {
            memcpy(expected, s.out, sizeof expected);
        }
        assert_memory_equal(s.out, expected, sizeof expected);
        scene_close(&s);
    }
}

// --- deltas --------------------------------------------------------------------------------------------------------

static void test_retriever_fetches_only_rows_that_it_lacks(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct scene s = {.resident_only = true, .recipe = i ? pull : near(0)};
        s.recipe.keep = 20;
        scene_open(&s);
        scene_append(&s, 1, 1.0f);
        scene_invent(&s, 81);
        scene_attend(&s, 1, false);
        struct sl_retriever_stats first = stats_of(&s);
        size_t bytes = s.shares->topk_bytes;
        assert_int_equal(first.rows_fetched, N_KV * TOPK);
        assert_int_equal(first.rows_kept, 0);
        scene_attend(&s, 1, false); // the same again
        assert_retrieved(&s, 1, s.q, s.q);
        struct sl_retriever_stats second = stats_of(&s);
        assert_int_equal(second.rows_fetched, first.rows_fetched);
        assert_int_equal(second.rows_kept, N_KV * TOPK);
        if (i == 0) {
            assert_true(bytes > N_KV * TOPK * 4 * D);                        // 2 D values of 2 bytes a row
            assert_true(s.shares->topk_bytes - bytes < N_KV * TOPK * 2 * D); // none of them again
        } else {
            assert_int_equal(s.shares->n_asked[SL_NEAR_ROWS],
                             2 + N_KV); // resident ones of two layers, then each head's
        }
        scene_invent(&s, 82); // other tokens: the first ones stay as long as there are places
        scene_attend(&s, 1, false);
        assert_retrieved(&s, 1, s.q, s.q);
        scene_invent(&s, 81);
        int64_t fetched = stats_of(&s).rows_fetched;
        scene_attend(&s, 1, false);
        assert_retrieved(&s, 1, s.q, s.q);
        assert_int_equal(stats_of(&s).rows_fetched, fetched); // 12 + 20 places hold both
        scene_close(&s);
    }
}

// keep=0: every step is sent all of its rows.
static void test_retriever_that_keeps_nothing_fetches_everything(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct scene s = {.resident_only = true, .recipe = i ? pull : near(0)};
        scene_open(&s);
        scene_append(&s, 1, 1.0f);
        scene_invent(&s, 81);
        for (int t = 0; t < 3; t++) {
            scene_attend(&s, 1, false);
            assert_retrieved(&s, 1, s.q, s.q);
        }
        assert_int_equal(stats_of(&s).rows_fetched, 3 * N_KV * TOPK);
        assert_int_equal(stats_of(&s).rows_kept, 0);
        scene_close(&s);
    }
}

// --- predictions ---------------------------------------------------------------------------------------------------

static void test_retriever_measures_recall_and_asks_exactly_where_it_is_low(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool low = i % 2;
        struct scene s = {.group = 1, .recipe = near(1), .least_recall = low ? 0.99 : 0.001, .n_shares = i / 2 ? 3 : 1};
        double recall = 0;
        scene_open(&s);
        for (int t = 0; t < 20; t++) {
            step(&s, 300 + (uint64_t)t);
            if (t == 1) { // each layer has been probed once: layer 1 in its first, layer 2 in its second attention
                assert_int_equal(stats_of(&s).n_probes, 2);
                assert_true(fabs(stats_of(&s).recall - recall) < 1e-9);
            }
            invent_alike(&s, 300 + (uint64_t)t);
            for (int h = 0; t == 0 && h < 2 * N_KV; h++) {
                uint32_t guessed[MAX_SLOTS], exact[MAX_SLOTS];
                uint32_t n = plain_tokens(&s, 1 + h / N_KV, h % N_KV, s.next_q, s.next_q, guessed);
                plain_tokens(&s, 1 + h / N_KV, h % N_KV, s.q, s.q, exact);
                recall += (double)plain_common(guessed, n, exact) / (2 * N_KV * TOPK);
            }
            scene_attend(&s, 1, true); // once more, so that layer 2 is asked ahead and then seen alone
            scene_attend(&s, 2, false);
            const float *by = low && t > 0 ? s.q : s.next_q;
            assert_retrieved(&s, 2, by, by);
        }
        assert_true(recall > 0.1 && recall < 0.99);
        struct sl_retriever_stats stats = stats_of(&s);
        assert_true(stats.n_probes >= 2 && stats.n_probes <= 6);
        assert_true(stats.recall > 0 && stats.recall < 0.99);
        assert_true(low ? stats.n_exact > 30 : stats.n_exact == 20); // layer 1's second attention in every round
        assert_true(s.shares->n_probes > 0);
        scene_close(&s);
    }
}

// A perfect prediction has recall 1, and is asked for nothing but ahead.
static void test_retriever_trusts_predictions_that_come_true(void **state) {
    (void)state;
    struct scene s = {.recipe = near(1)};
    s.recipe.keep = 4;
    scene_open(&s);
    for (int t = 0; t < 40; t++) {
        scene_append(&s, 1, 1.0f);
        scene_invent(&s, 400 + (uint64_t)t);
        memcpy(s.next_q, s.q, sizeof s.q);
        for (int l = 0; l < N_LAYERS; l++) {
            scene_attend(&s, l, l + 1 < N_LAYERS);
        }
    }
    struct sl_retriever_stats stats = stats_of(&s);
    assert_true(stats.recall == 1.0);
    assert_true(stats.n_probes >= 4);
    assert_int_equal(stats.n_exact, 0);
    assert_int_equal(stats.n_asks, 80);
    assert_int_equal(s.shares->n_asked[SL_NEAR_TOPK], 80);
    assert_int_equal(s.shares->n_resets, 0);
    scene_close(&s);
}

// --- no answer -----------------------------------------------------------------------------------------------------

// The heads that a share has of a layer attend to what is resident; the others are not touched by it.
static void assert_fallback(struct scene *s, int layer, bool first_missing, bool second_missing) {
    for (int h = 0; h < N_KV; h++) {
        uint32_t tokens[MAX_SLOTS], n = plain_tokens(s, layer, h, s->q, s->q, tokens);
        if (h == 0 ? first_missing : second_missing) {
            memmove(tokens + SINKS, tokens + SINKS + TOPK, (n - SINKS - TOPK) * sizeof *tokens);
            n -= TOPK;
        }
        assert_attended(s, layer, h, tokens, n);
    }
}

static void test_retriever_attends_to_resident_slots_when_no_answer_comes(void **state) {
    (void)state;
    static const struct {
        struct sl_recipe recipe;
        enum sl_near_kind lost;
    } cases[] = {{{.retrieve = SL_RETRIEVE_NEAR}, SL_NEAR_TOPK},
                 {{.retrieve = SL_RETRIEVE_PULL}, SL_NEAR_CHANNELS},
                 {{.retrieve = SL_RETRIEVE_PULL}, SL_NEAR_ROWS}};
    for (int i = 0; i < 12; i++) {
        bool resident_only = i % 2, three = i / 2 % 2;
        struct scene s = {.resident_only = resident_only, .n_shares = three ? 3 : 1, .recipe = cases[i / 4].recipe};
        s.recipe.keep = 4;
        scene_open(&s);
        scene_append(&s, 1, 1.0f);
        scene_invent(&s, 91);
        scene_attend(&s, 1, false);
        assert_retrieved(&s, 1, s.q, s.q);
        // Shares 0, 1 and 2 of three have offloaded heads 0, 1 and 2 + 3: heads 0 and 1 of layer 1, and both of layer
        // 2.
        s.shares->lose_kind = cases[i / 4].lost;
        s.shares->lose_share = three ? 1 : 0;
        s.shares->lose_how = SL_ERR_DEADLINE;
        scene_append(&s, 1, 1.0f);
        scene_invent(&s, 92);
        scene_attend(&s, 1, false);
        assert_fallback(&s, 1, !three, true);
        assert_int_equal(s.n_fallbacks, 1);
        assert_int_equal(s.fallback_layer, 1);
        assert_non_null(strstr(s.why, "made-up"));
        s.shares->lose_how = SL_OK;
        for (uint64_t seed = 92; seed < 96; seed++) { // from then on as if nothing had been
            scene_invent(&s, seed);
            scene_attend(&s, 1, false);
            assert_retrieved(&s, 1, s.q, s.q);
        }
        struct sl_retriever_stats stats = stats_of(&s);
        assert_int_equal(stats.n_fallbacks, 1);
        assert_int_equal(stats.n_asks, 6);
        assert_int_equal(s.shares->n_resets, i / 4 == 0 ? 1 : 0);
        scene_close(&s);
    }
}

static void test_retriever_ends_with_a_share_that_stays_silent(void **state) {
    (void)state;
    struct scene s = {.resident_only = true, .recipe = near(0), .lost_ms = 500};
    struct sl_error err = {0};
    scene_open(&s);
    scene_invent(&s, 95);
    s.shares->lose_kind = SL_NEAR_TOPK;
    s.shares->lose_how = SL_ERR_DEADLINE;
    scene_attend(&s, 1, false);
    assert_int_equal(s.n_fallbacks, 1);
    usleep(510000);
    assert_int_equal(scene_try(&s, 2, false, &err), SL_ERR_PEER_LOST);
    assert_int_equal(err.reason, SL_REASON_STORE);
    assert_string_equal(err.culprit, "made-up:1");
    scene_close(&s);
}

// A lasting failure ends the step at once: the stores are lost, or the remote KV no longer exists.
static void test_retriever_does_not_wait_for_a_remote_kv_that_is_gone(void **state) {
    (void)state;
    static const enum sl_status hows[] = {SL_ERR_PEER_LOST, SL_ERR_PEER_STALE};
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
        struct scene s = {.resident_only = true, .recipe = near(0)};
        struct sl_error err = {0};
        scene_open(&s);
        scene_invent(&s, 96);
        s.shares->lose_kind = SL_NEAR_TOPK;
        s.shares->lose_how = hows[i];
        assert_int_equal(scene_try(&s, 1, false, &err), SL_ERR_PEER_LOST);
        assert_int_equal(s.n_fallbacks, 0);
        scene_close(&s);
    }
}

static void test_retriever_is_not_made_without_resident_slots(void **state) {
    (void)state;
    struct scene s = {.resident_only = true, .recipe = near(0)};
    struct sl_error err = {0};
    scene_open(&s);
    sl_retriever_destroy(&s.retriever);
    for (int l = 1; l <= 2; l++) {
        for (int h = 0; h < N_KV; h++) {
            sl_session_set_slots(s.session, l, h, 0);
        }
    }
    s.shares->lose_kind = SL_NEAR_ROWS;
    s.shares->lose_how = SL_ERR_DEADLINE;
    assert_int_equal(scene_create(&s, &err), SL_ERR_PEER_LOST);
    assert_int_equal(err.reason, SL_REASON_STORE);
    assert_string_equal(err.culprit, "made-up:1");
    assert_null(s.retriever);
    scene_close(&s);
}

// --- refusals ------------------------------------------------------------------------------------------------------

static void test_retriever_refuses_what_it_cannot_rank(void **state) {
    (void)state;
    struct scene s = {.recipe = near(0)};
    struct sl_error err = {0};
    scene_open(&s);
    sl_retriever_destroy(&s.retriever);
    s.session->positions = SL_POSITION_SLOT;
    assert_int_equal(scene_create(&s, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "positions=original"));
    s.session->positions = SL_POSITION_ORIGINAL;
    s.plan.recipe.topk = 0;
    assert_int_equal(scene_create(&s, &err), SL_ERR_INVALID);
    s.plan.recipe.topk = TOPK;
    s.plan.recipe.channels = 0;
    assert_int_equal(scene_create(&s, &err), SL_ERR_INVALID);
    s.plan.recipe.channels = 4;
    s.resident_only = true; // but the session holds everything
    assert_int_equal(scene_create(&s, &err), SL_ERR_PRECONDITION);
    s.resident_only = false;
    s.shares->base.shares[0].n_offloaded_heads--; // of the last layer one head is nowhere
    assert_int_equal(scene_create(&s, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "layer 2"));
    s.shares->base.shares[0].n_offloaded_heads++;
    assert_null(s.retriever);
    scene_close(&s);
}

static enum sl_status make_retriever(void *scene, struct sl_error *err) {
    struct scene *s = scene;
    enum sl_status status = scene_create(s, err);
    if (status != SL_OK) {
        assert_null(s->retriever);
    }
    sl_retriever_destroy(&s->retriever);
    for (int h = 0; h < N_KV && s->resident_only; h++) { // what it has brought
        sl_session_set_slots(s->session, 1, h, 0);
        sl_session_set_slots(s->session, 2, h, 0);
    }
    return status;
}

static void test_retriever_without_memory_is_not_made(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct scene s = {.recipe = i / 2 ? pull : near(0), .resident_only = i % 2, .n_shares = 2};
        scene_open(&s);
        sl_retriever_destroy(&s.retriever);
        (void)make_retriever(&s, NULL); // empties the session
        assert_true(assert_refused_without_memory(make_retriever, &s) >= 10);
        scene_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retriever_with_nothing_to_choose_is_dense),
        cmocka_unit_test(test_retriever_with_all_channels_ranks_by_the_logits),
        cmocka_unit_test(test_retriever_near_asks_with_the_true_query),
        cmocka_unit_test(test_retriever_pull_takes_channels_from_the_predicted_query),
        cmocka_unit_test(test_retriever_uses_a_prediction_once_and_in_its_step_alone),
        cmocka_unit_test(test_retriever_gives_the_same_bits_however_it_is_cut),
        cmocka_unit_test(test_retriever_asks_about_a_layer_in_pieces),
        cmocka_unit_test(test_retriever_ranks_by_key_indexes_of_fewer_bits_in_both_ways_alike),
        cmocka_unit_test(test_retriever_fetches_only_rows_that_it_lacks),
        cmocka_unit_test(test_retriever_that_keeps_nothing_fetches_everything),
        cmocka_unit_test(test_retriever_measures_recall_and_asks_exactly_where_it_is_low),
        cmocka_unit_test(test_retriever_trusts_predictions_that_come_true),
        cmocka_unit_test(test_retriever_attends_to_resident_slots_when_no_answer_comes),
        cmocka_unit_test(test_retriever_ends_with_a_share_that_stays_silent),
        cmocka_unit_test(test_retriever_does_not_wait_for_a_remote_kv_that_is_gone),
        cmocka_unit_test(test_retriever_is_not_made_without_resident_slots),
        cmocka_unit_test(test_retriever_refuses_what_it_cannot_rank),
        cmocka_unit_test(test_retriever_without_memory_is_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Properties of recipes other than their scores: statements of the papers that hold for any attention.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drive.h"
#include "tests/one_head.h"

static const struct sl_kv_geometry geometry = {2, 2, 16};

static void start(struct drive *drive, const char *text, int64_t n_prompt, int n_threads) {
    drive_start(drive, text, &geometry, 2, n_prompt, 11, 0.2f, n_threads);
}

static void prefill(struct drive *drive) {
    while (drive_next_chunk(drive)) {
    }
}

struct rows { // all that a head holds
    uint32_t n;
    int64_t positions[512];
    float k[512 * 16], v[512 * 16], state[2][512];
};

static void read_head(const struct drive *drive, int layer, int head, struct rows *rows) {
    struct sl_kv kv = drive_kv(drive, layer, head);
    memset(rows, 0, sizeof *rows);
    rows->n = kv.n_slots;
    assert_true(kv.n_slots <= 512);
    drive->ops->read_positions(&kv, rows->positions);
    drive->ops->read_rows(&kv, 0, kv.n_slots, rows->k, rows->v);
    for (int plane = 0; plane < kv.work->n_states && plane < 2; plane++) {
        read_plane(drive->ops, &kv, plane, rows->state[plane]);
    }
}

static void assert_same_heads(const struct drive *a, const struct drive *b) {
    static struct rows left, right;
    for (int l = 0; l < geometry.n_layers; l++) {
        for (int h = 0; h < geometry.n_kv_heads; h++) {
            read_head(a, l, h, &left);
            read_head(b, l, h, &right);
            assert_memory_equal(&left, &right, sizeof left);
        }
    }
}

static void check_same(const char *text, int n_threads, const char *other, int other_threads, int n_steps) {
    struct drive a, b;
    start(&a, text, 300, n_threads);
    start(&b, other, 300, other_threads);
    prefill(&a), prefill(&b);
    for (int i = 0; i < n_steps; i++) {
        drive_step(&a, 1);
        drive_step(&b, 1);
    }
    assert_same_heads(&a, &b);
    drive_stop(&a), drive_stop(&b);
}

// Locret's theorem: scores that never change and no stabilizers: any chunk size keeps the best of the whole prompt.
static void test_compressor_fixed_scores_make_chunks_equal_to_one_shot(void **state) {
    (void)state;
    const char *const scores[] = {"cis", "random,seed=5", "recency"};
    for (size_t i = 0; i < 3; i++) {
        for (int chunk = 64; chunk <= 320; chunk += 64) {
            char text[128], once[128];
            snprintf(text, sizeof text, "score=%s,budget=40,when=chunk,chunk=%d", scores[i], chunk);
            snprintf(once, sizeof once, "score=%s,budget=40,when=end,chunk=512", scores[i]);
            check_same(text, 1, once, 1, 0);
        }
    }
}

static void test_compressor_cis_keeps_the_score_that_a_token_came_with(void **state) {
    (void)state;
    static struct rows rows;
    struct drive drive;
    start(&drive, "locret,scope=stabilizers:20+tail:30,budget=50,when=chunk+step,positions=slot,chunk=64", 300, 1);
    for (int i = 0; i < 20; i++) {
        if (!drive_next_chunk(&drive)) {
            drive_step(&drive, 1);
        }
        for (int l = 0; l < 2; l++) {
            for (int h = 0; h < 2; h++) {
                read_head(&drive, l, h, &rows);
                for (uint32_t j = 0; j < rows.n && (drive.n_read <= 270 || drive.stepping); j++) {
                    // of stabilizers, too: what protects them is not in their score
                    bool tail = rows.positions[j] >= 270 && rows.positions[j] < 300;
                    float score = drive_element(&drive, DRIVE_IMPORTANCE, l, rows.positions[j], h, 0);
                    assert_true(tail || rows.state[0][j] == score);
                }
            }
        }
    }
    drive_stop(&drive);
}

// Newest slots that were protected once and are among the worst do not stay when they are no longer the newest.
static void test_compressor_stabilizers_are_not_persistent(void **state) {
    (void)state;
    static struct rows rows;
    struct drive drive;
    bool was[400] = {false};
    int n_gone = 0;
    start(&drive, "score=cis,scope=stabilizers:20,budget=40,when=chunk,chunk=64", 256, 1);
    for (int chunk = 0; drive_next_chunk(&drive); chunk++) {
        read_head(&drive, 0, 0, &rows);
        assert_int_equal(rows.n, 40);
        for (int i = 0; i < 20 && drive.n_read < 256; i++) {
            assert_int_equal(rows.positions[20 + i], drive.n_read - 20 + i);
            was[drive.n_read - 20 + i] = true;
        }
    }
    for (int64_t p = 0; p < 256; p++) {
        bool here = false;
        for (uint32_t j = 0; j < rows.n; j++) {
            here = here || rows.positions[j] == p;
        }
        n_gone += was[p] && !here;
    }
    assert_true(n_gone > 20);                    // of 60
    assert_true(rows.positions[20] != 256 - 20); // the last eviction protects none
    drive_stop(&drive);
}

static void test_compressor_tail_is_appended_and_stays(void **state) {
    (void)state;
    static struct rows rows;
    const char *const texts[] = {"locret,scope=stabilizers:20+tail:100,budget=50,chunk=64",
                                 "h2o,scope=recent:0.5+tail:70,budget=40,chunk=64",
                                 "score=mas,scope=tail:10,budget=40,when=end,heads=adaptive,chunk=64",
                                 "d2o,scope=sinks:4+recent:8+tail:33,budget=60,chunk=64"};
    for (size_t i = 0; i < 4; i++) {
        struct drive drive;
        struct sl_compress_stats stats;
        start(&drive, texts[i], 300, 1);
        prefill(&drive);
        int64_t tail = drive.plan.recipe.tail, held = 0;
        for (int l = 0; l < 2; l++) {
            for (int h = 0; h < 2; h++) {
                read_head(&drive, l, h, &rows);
                held += rows.n;
                for (int64_t p = 0; p < tail; p++) {
                    assert_int_equal(rows.positions[rows.n - tail + p], 300 - tail + p);
                    // A later eviction (in the next turn of a conversation) finds the attention that the slot has received.
                    assert_true(i == 0 || rows.state[0][rows.n - tail + p] > 0);
                }
            }
        }
        assert_int_equal(held, 2 * drive.plan.total_budget + 4 * tail);
        sl_compressor_get_stats(drive.compressor, &stats);
        assert_int_equal(stats.slots_evicted, 4 * 300 - held);
        drive_stop(&drive);
    }
}

static void test_compressor_refuses_a_chunk_that_runs_into_the_tail(void **state) {
    (void)state;
    struct drive drive;
    struct sl_error err;
    start(&drive, "locret,scope=stabilizers:20+tail:30,budget=50,chunk=64", 100, 1);
    drive_chunk(&drive, 64, false);
    assert_int_equal(drive_layer(&drive, 0, 36, true, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "runs into the prompt's tail, which begins at token 70"));
    drive_stop(&drive);
}

// A budget that the prompt does not fill: every preset leaves every slot as it was appended.
static void test_compressor_with_room_for_all_keeps_all(void **state) {
    (void)state;
    static struct rows rows;
    int n_presets = 0;
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name != NULL; preset++) {
        struct drive drive;
        struct sl_recipe recipe;
        struct sl_error err;
        char text[128];
        assert_int_equal(sl_recipe_parse(preset->name, &recipe, &err), SL_OK);
        if (!sl_recipe_evicts(&recipe)) {
            continue;
        }
        snprintf(text, sizeof text, "%s,budget=6000,format=f16,chunk=64", preset->name);
        start(&drive, text, 200, 1);
        prefill(&drive);
        for (int l = 0; l < 2; l++) {
            for (int h = 0; h < 2; h++) {
                read_head(&drive, l, h, &rows);
                assert_int_equal(rows.n, 200);
                for (int i = 0; i < 200 * 16; i++) {
                    assert_int_equal(rows.positions[i / 16], i / 16);
                    assert_true(rows.k[i] == drive_element(&drive, DRIVE_K, l, i / 16, h, i % 16));
                    assert_true(rows.v[i] == drive_element(&drive, DRIVE_V, l, i / 16, h, i % 16));
                }
            }
        }
        n_presets++;
        drive_stop(&drive);
    }
    assert_true(n_presets >= 15);
}

static void test_compressor_random_depends_on_seed_layer_and_head_alone(void **state) {
    (void)state;
    static struct rows rows[4], other;
    struct drive a, b;
    double mean = 0;
    start(&a, "random,budget=100,chunk=64", 300, 1);
    start(&b, "random,budget=100,seed=1,chunk=64", 300, 1);
    prefill(&a), prefill(&b);
    for (int i = 0; i < 4; i++) {
        read_head(&a, i / 2, i % 2, &rows[i]);
        read_head(&b, i / 2, i % 2, &other);
        assert_memory_not_equal(rows[i].positions, other.positions, sizeof other.positions);
        for (int before = 0; before < i; before++) {
            assert_memory_not_equal(rows[i].positions, rows[before].positions, sizeof other.positions);
        }
        for (uint32_t j = 0; j < rows[i].n; j++) {
            mean += (double)rows[i].positions[j] / rows[i].n / 4;
        }
    }
    assert_true(fabs(mean - 149.5) < 20); // uniform: 149.5, standard deviation 3.5
    drive_stop(&a), drive_stop(&b);
}

static void test_compressor_layer_heads_keep_the_same_positions(void **state) {
    (void)state;
    const char *const texts[] = {"tova,budget=60,when=chunk+step,chunk=64", "random,heads=layer,budget=60,chunk=64",
                                 "roco,heads=layer,budget=60,when=chunk+step,chunk=64",
                                 "score=ltas,value=caote-heads,heads=layer,budget=60,when=chunk+step,chunk=64"};
    for (size_t i = 0; i < 4; i++) {
        static struct rows left, right;
        struct drive drive;
        start(&drive, texts[i], 300, 1);
        prefill(&drive);
        for (int s = 0; s < 5 && sl_compressor_steps(drive.compressor); s++) {
            drive_step(&drive, 1);
        }
        for (int l = 0; l < 2; l++) {
            read_head(&drive, l, 0, &left);
            read_head(&drive, l, 1, &right);
            assert_int_equal(left.n, 60);
            assert_memory_equal(left.positions, right.positions, sizeof left.positions);
        }
        drive_stop(&drive);
    }
}

// With equal values the output cannot change: the second score decides.
static void test_compressor_equal_values_leave_the_order_to_the_score(void **state) {
    (void)state;
    const char *const values[] = {"caote", "fastcaote"}, *const scores[] = {"aas", "mas", "ltas"};
    for (int i = 0; i < 6; i++) {
        char plain[128], text[160];
        struct drive a, b;
        static struct rows left, right;
        snprintf(plain, sizeof plain, "score=%s,scope=recent:5,budget=60,when=end,chunk=64", scores[i % 3]);
        snprintf(text, sizeof text, "%s,value=%s", plain, values[i / 3]);
        start(&a, plain, 200, 1);
        start(&b, text, 200, 1);
        a.flat = b.flat = true;
        prefill(&a), prefill(&b);
        read_head(&a, 1, 1, &left);
        read_head(&b, 1, 1, &right);
        assert_int_equal(left.n, 60);
        assert_memory_equal(left.positions, right.positions, sizeof left.positions);
        drive_stop(&a), drive_stop(&b);
    }
}

static void test_compressor_results_do_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    const char *const texts[] = {"roco+caote,budget=60,when=chunk+step,chunk=64",
                                 "adakv,window=8,scope=recent:8,budget=60,chunk=64", "d2o,budget=60,chunk=64",
                                 "score=ltas,value=fastcaote-heads,budget=60,when=chunk+step,chunk=64"};
    for (size_t i = 0; i < 4; i++) {
        check_same(texts[i], 1, texts[i], 3, i == 1 ? 0 : 6);
    }
}

static void test_compressor_steps_hold_the_budget_and_the_newest(void **state) {
    (void)state;
    static struct rows rows;
    struct drive drive;
    start(&drive, "h2o,scope=sinks:4+recent:10,budget=70,when=chunk+step,chunk=64", 50, 1); // room for 20 more
    prefill(&drive);
    for (int i = 1; i <= 200; i++) {
        drive_step(&drive, 1);
        read_head(&drive, 1, 0, &rows);
        assert_int_equal(rows.n, i < 20 ? 50 + i : 70);
        for (uint32_t j = 0; j < rows.n; j++) {
            assert_true(j == 0 || rows.positions[j] > rows.positions[j - 1]);
            assert_true(j >= 4 || rows.positions[j] == j);
            assert_true(j + 10 < rows.n || rows.positions[j] == drive.n_read - rows.n + j);
        }
    }
    drive_step(&drive, 150); // more rows than were planned for
    assert_int_equal(drive_kv(&drive, 0, 0).n_slots, 70);
    drive_stop(&drive);
}

static void test_compressor_wants_only_what_a_recipe_needs(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool steps, lse, importance, step_lse, step_importance;
    } cases[] = {
        {"full", false, false, false, false, false},
        {"streamingllm", false, false, false, false, false},
        {"random", false, false, false, false, false},
        {"random,when=chunk+step", true, false, false, false, false},
        {"h2o", false, true, false, false, false},
        {"h2o,when=chunk+step", true, true, false, true, false},
        {"scissorhands", false, true, false, false, false},
        {"tova", false, true, false, false, false},
        {"roco", false, true, false, false, false},
        {"snapkv", false, true, false, false, false},
        {"d2o", true, true, false, true, false},
        {"locret", false, false, true, false, false},
        {"locret,when=chunk+step", true, false, true, false, true},
        {"tailorkv", false, false, false, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct drive drive;
        start(&drive, cases[i].text, 100, 1);
        struct sl_compressor_wants now = sl_compressor_wants(drive.compressor, false);
        struct sl_compressor_wants then = sl_compressor_wants(drive.compressor, true);
        assert_int_equal(sl_compressor_steps(drive.compressor), cases[i].steps);
        assert_int_equal(now.lse, cases[i].lse);
        assert_int_equal(now.importance, cases[i].importance);
        assert_int_equal(then.lse, cases[i].step_lse);
        assert_int_equal(then.importance, cases[i].step_importance);
        drive_stop(&drive);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compressor_fixed_scores_make_chunks_equal_to_one_shot),
        cmocka_unit_test(test_compressor_cis_keeps_the_score_that_a_token_came_with),
        cmocka_unit_test(test_compressor_stabilizers_are_not_persistent),
        cmocka_unit_test(test_compressor_tail_is_appended_and_stays),
        cmocka_unit_test(test_compressor_refuses_a_chunk_that_runs_into_the_tail),
        cmocka_unit_test(test_compressor_with_room_for_all_keeps_all),
        cmocka_unit_test(test_compressor_random_depends_on_seed_layer_and_head_alone),
        cmocka_unit_test(test_compressor_layer_heads_keep_the_same_positions),
        cmocka_unit_test(test_compressor_equal_values_leave_the_order_to_the_score),
        cmocka_unit_test(test_compressor_results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(test_compressor_steps_hold_the_budget_and_the_newest),
        cmocka_unit_test(test_compressor_wants_only_what_a_recipe_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Real ops, session, compressor and retriever against what tools/golden_methods.py computed from the papers' text. The
 * script describes the lines of a trace.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/one_head.h"

#define FOLDER "tests/golden/compress/"

struct trace {
    const char *path, *tier;
    int n_line;
    char name[64];
    bool open;
    struct run run;
    bool *alive;   // [layers][heads][tokens]: not evicted, says the trace
    bool *fetched; // [layers][heads][tokens], of the last pass
    int64_t n_fetched;
    int64_t n_checked; // slots whose position was compared
};

static int64_t n_tokens(const struct trace *trace) {
    return trace->run.n_prompt + trace->run.n_steps;
}

static bool *row_of(const struct trace *trace, bool *table, int layer, int head) {
    assert_in_range(layer, 0, trace->run.geometry.n_layers - 1);
    assert_in_range(head, 0, trace->run.geometry.n_kv_heads - 1);
    return table + ((int64_t)layer * trace->run.geometry.n_kv_heads + head) * n_tokens(trace);
}

static void check_positions(struct trace *trace, int layer, int head) {
    const bool *alive = row_of(trace, trace->alive, layer, head);
    uint32_t n, slot = 0;
    int64_t *positions = run_positions(&trace->run, layer, head, &n);
    for (int64_t p = 0; p < trace->run.n_read; p++) {
        bool kept = slot < n && positions[slot] == p;
        if (kept != alive[p]) {
            fail_msg("%s:%d: %s, layer %d, head %d, after %" PRId64 " tokens: token %" PRId64 " is %s (%u slots)",
                     trace->path, trace->n_line, trace->name, layer, head, trace->run.n_read, p,
                     kept ? "kept but should be evicted" : "evicted but should be kept", n);
        }
        slot += kept;
    }
    assert_int_equal(slot, n);
    trace->n_checked += n;
    free(positions);
}

// An offloaded layer attended to exactly sinks, what was fetched, recent and what was generated: the same bits.
static void check_fetched(struct trace *trace, int layer) {
    struct run *run = &trace->run;
    int n_kv = run->geometry.n_kv_heads;
    size_t count = (size_t)run->geometry.head_dim * (size_t)(n_kv * run->group);
    int64_t sinks = run->plan.recipe.sinks, recent = run->n_prompt - run->plan.recipe.recent.slots;
    struct sl_kv *kv = calloc((size_t)n_kv, sizeof *kv);
    uint32_t *slots = calloc((size_t)n_kv * (size_t)n_tokens(trace), sizeof *slots);
    uint32_t *n_slots = calloc((size_t)n_kv, sizeof *n_slots);
    float *out = aligned_alloc(64, (count * sizeof *out + 63) / 64 * 64);
    assert_true(kv != NULL && slots != NULL && n_slots != NULL && out != NULL);
    for (int h = 0; h < n_kv; h++) {
        bool *fetched = row_of(trace, trace->fetched, layer, h);
        uint32_t *list = slots + h * n_tokens(trace);
        for (int64_t j = 0; j < run->n_read; j++) {
            if (j < sinks || j >= recent || fetched[j]) {
                list[n_slots[h]++] = (uint32_t)j;
            }
            trace->n_fetched += fetched[j];
            fetched[j] = false;
        }
        kv[h] = run_kv(run, layer, h);
    }
    struct sl_attend attend = run_attend(run, layer, 0, kv, out);
    run->ops->attend_slots(NULL, &attend, (struct sl_lists){slots, (size_t)n_tokens(trace)},
                           (struct sl_counts){.host = n_slots});
    if (memcmp(out, run->out[layer], count * sizeof *out) != 0) {
        fail_msg("%s:%d: %s, layer %d, after %" PRId64 " tokens: other slots were attended to", trace->path,
                 trace->n_line, trace->name, layer, run->n_read);
    }
    free(kv), free(slots), free(n_slots), free(out);
}

static void finish_pass(struct trace *trace) {
    struct run *run = &trace->run;
    for (int l = 0; l < run->geometry.n_layers; l++) {
        for (int h = 0; h < run->geometry.n_kv_heads; h++) {
            check_positions(trace, l, h);
        }
        if (run->n_read > run->n_prompt && sl_layers_has(&run->plan.recipe.offload, l)) {
            check_fetched(trace, l);
        }
    }
}

static void finish_case(struct trace *trace) {
    if (!trace->open) {
        return;
    }
    finish_pass(trace);
    assert_int_equal(trace->run.n_read, n_tokens(trace));
    if (trace->run.offloaded.retriever != NULL) {
        struct sl_retriever_stats stats;
        sl_retriever_get_stats(trace->run.offloaded.retriever, &stats);
        assert_int_equal(stats.rows_fetched + stats.rows_kept, trace->n_fetched);
    } else {
        assert_int_equal(trace->n_fetched, 0);
    }
    run_stop(&trace->run);
    free(trace->alive), free(trace->fetched);
    trace->open = false;
}

static void start_case(struct trace *trace, const char *line) {
    char recipe[SL_RECIPE_TEXT_BYTES];
    finish_case(trace);
    trace->run = (struct run){.tier = trace->tier};
    struct run *run = &trace->run;
    assert_int_equal(sscanf(line, "case %63s %" SCNu64 " %d %d %d %d %" SCNd64 " %" SCNd64 " %f %511s", trace->name,
                            &run->seed, &run->geometry.n_layers, &run->geometry.n_kv_heads, &run->group,
                            &run->geometry.head_dim, &run->n_prompt, &run->n_steps, &run->scale, recipe),
                     10);
    run_start(run, recipe);
    size_t count = (size_t)(run->geometry.n_layers * run->geometry.n_kv_heads) * (size_t)n_tokens(trace);
    trace->alive = calloc(count, sizeof *trace->alive);
    trace->fetched = calloc(count, sizeof *trace->fetched);
    assert_true(trace->alive != NULL && trace->fetched != NULL);
    trace->n_fetched = 0;
    trace->open = true;
}

static void start_pass(struct trace *trace, const char *line) {
    struct run *run = &trace->run;
    char kind[8];
    int m;
    assert_int_equal(sscanf(line, "pass %d %7s", &m, kind), 2);
    if (run->n_read > 0) {
        finish_pass(trace);
    }
    int64_t body = sl_plan_body_tokens(&run->plan);
    assert_true(run->n_read >= body || run->n_read + m <= body); // prefill would end a chunk there
    bool repeats = strcmp(kind, "repeat") == 0;
    for (int l = 0; l < run->geometry.n_layers && !repeats; l++) {
        for (int h = 0; h < run->geometry.n_kv_heads; h++) {
            memset(row_of(trace, trace->alive, l, h) + run->n_read, true, (size_t)m);
        }
    }
    run_pass(run, m,
             repeats                     ? RUN_REPEAT
             : strcmp(kind, "step") == 0 ? RUN_STEP
             : strcmp(kind, "last") == 0 ? RUN_LAST
                                         : RUN_CHUNK);
}

static void check_near(const struct trace *trace, const char *what, int64_t i, double found, double expected) {
    if (!(fabs(found - expected) <= 1e-4 * fabs(expected) + 2e-6)) {
        fail_msg("%s:%d: %s, %s, number %" PRId64 ": %.9g, expected %.9g", trace->path, trace->n_line, trace->name,
                 what, i, found, expected);
    }
}

static void check_numbers(const struct trace *trace, const char *what, char *words, const double *found, int64_t n) {
    int64_t i = 0;
    for (char *word; (word = strsep(&words, " ")) != NULL; i++) {
        if (i >= n) {
            fail_msg("%s:%d: %s, %s: more than %" PRId64 " numbers", trace->path, trace->n_line, trace->name, what, n);
        }
        check_near(trace, what, i, found[i], strtod(word, NULL));
    }
    assert_int_equal(i, n);
}

static void check_state(const struct trace *trace, int plane, int layer, int head, char *words) {
    struct sl_kv kv = run_kv(&trace->run, layer, head);
    float *state = calloc(kv.n_slots, sizeof *state);
    double *found = calloc(kv.n_slots, sizeof *found);
    assert_true(state != NULL && found != NULL && plane < kv.work->n_states);
    read_plane(trace->run.ops, &kv, plane, state);
    for (uint32_t j = 0; j < kv.n_slots; j++) {
        found[j] = (double)state[j];
    }
    check_numbers(trace, "state", words, found, kv.n_slots);
    free(state), free(found);
}

static double digest(const float *x, int d) {
    double sum = 0;
    for (int c = 0; c < d; c++) {
        sum += (double)x[c] * (7 * c % 11 - 5) / 8;
    }
    return sum;
}

// slot < 0: digests of all rows.
static void check_rows(const struct trace *trace, int layer, int head, int64_t slot, char *words) {
    struct sl_kv kv = run_kv(&trace->run, layer, head);
    int d = trace->run.geometry.head_dim;
    float *k = calloc((size_t)kv.n_slots * (size_t)d, sizeof *k),
          *v = calloc((size_t)kv.n_slots * (size_t)d, sizeof *v);
    double *found = calloc(2 * ((size_t)kv.n_slots + (size_t)d), sizeof *found);
    assert_true(k != NULL && v != NULL && found != NULL && slot < kv.n_slots);
    trace->run.ops->read_rows(&kv, 0, kv.n_slots, k, v);
    for (int64_t j = 0; j < kv.n_slots && slot < 0; j++) {
        found[2 * j] = digest(k + j * d, d);
        found[2 * j + 1] = digest(v + j * d, d);
    }
    for (int64_t c = 0; c < d && slot >= 0; c++) {
        found[c] = (double)k[slot * d + c];
        found[d + c] = (double)v[slot * d + c];
    }
    check_numbers(trace, "rows", words, found, slot < 0 ? 2 * (int64_t)kv.n_slots : 2 * d);
    free(k), free(v), free(found);
}

static void check_out(const struct trace *trace, int layer, int query_head, char *words) {
    int d = trace->run.geometry.head_dim;
    double found[256];
    assert_true(d <= 256);
    for (int c = 0; c < d; c++) {
        found[c] = (double)trace->run.out[layer][query_head * d + c];
    }
    check_numbers(trace, "out", words, found, d);
}

static int64_t next(char **rest) {
    char *word = strsep(rest, " ");
    assert_non_null(word);
    return strtoll(word, NULL, 10);
}

static void check_line(struct trace *trace, char *line) {
    char *rest = line, *kind = strsep(&rest, " ");
    assert_non_null(rest);
    if (strcmp(kind, "threshold") == 0) {
        int layer = (int)next(&rest);
        check_near(trace, kind, layer, (double)trace->run.session->layers[layer].merge_threshold, strtod(rest, NULL));
    } else if (strcmp(kind, "merged") == 0) {
        struct sl_compress_stats stats;
        sl_compressor_get_stats(trace->run.compressor, &stats);
        assert_int_equal(stats.slots_merged, next(&rest));
    } else {
        int plane = strcmp(kind, "state") == 0 ? (int)next(&rest) : 0;
        int layer = (int)next(&rest), head = (int)next(&rest);
        if (strcmp(kind, "state") == 0) {
            check_state(trace, plane, layer, head, rest);
        } else if (strcmp(kind, "rows") == 0) {
            check_rows(trace, layer, head, -1, rest);
        } else if (strcmp(kind, "row") == 0) {
            int64_t slot = next(&rest);
            check_rows(trace, layer, head, slot, rest);
        } else if (strcmp(kind, "out") == 0) {
            check_out(trace, layer, head, rest);
        } else if (strcmp(kind, "gone") == 0 || strcmp(kind, "fetched") == 0) {
            bool gone = kind[0] == 'g', *row = row_of(trace, gone ? trace->alive : trace->fetched, layer, head);
            while (rest != NULL) {
                int64_t token = next(&rest);
                assert_in_range(token, 0, trace->run.n_read - 1);
                assert_true(row[token] == gone);
                row[token] = !gone;
            }
        } else {
            assert_string_equal(kind, "channels"); // for readers: fetched and out follow from them
        }
    }
}

static void replay_with(const char *tier, const char *path, int n_cases) {
    struct trace trace = {.path = path, .tier = tier};
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t bytes = 0;
    if (file == NULL) {
        fail_msg("cannot open %s (tests run in the source folder)", path);
    }
    while (getline(&line, &bytes, file) > 0) {
        trace.n_line++;
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "case ", 5) == 0) {
            start_case(&trace, line);
            n_cases--;
        } else if (strncmp(line, "pass ", 5) == 0) {
            start_pass(&trace, line);
        } else {
            check_line(&trace, line);
        }
    }
    finish_case(&trace);
    assert_int_equal(n_cases, 0);
    assert_true(trace.n_checked > 0);
    free(line);
    fclose(file);
}

static void replay(const char *path, int n_cases) {
    for (const char *const *tier = sl_ops_tiers(); *tier != NULL; tier++) {
        replay_with(*tier, path, n_cases);
    }
}

static void test_roco_keeps_high_means_and_high_deviations(void **state) {
    (void)state;
    replay(FOLDER "roco.txt", 4);
}

static void test_scissorhands_counts_attention_above_the_mean_and_evicts_the_oldest_of_equals(void **state) {
    (void)state;
    replay(FOLDER "scissorhands.txt", 2);
}

static void test_h2o_alone_and_weighted_by_values_in_prefill_and_decode(void **state) {
    (void)state;
    replay(FOLDER "h2o_values.txt", 4);
}

static void test_tova_of_layers_and_of_heads_alone_and_weighted_by_values(void **state) {
    (void)state;
    replay(FOLDER "tova.txt", 7);
}

static void test_snapkv_with_every_pool_alone_and_weighted_by_values(void **state) {
    (void)state;
    replay(FOLDER "snapkv.txt", 7);
}

static void test_pyramidkv_gives_less_to_every_layer(void **state) {
    (void)state;
    replay(FOLDER "pyramidkv.txt", 2);
}

static void test_adakv_lets_heads_compete(void **state) {
    (void)state;
    replay(FOLDER "adakv.txt", 3);
}

static void test_d2o_divides_budgets_and_merges_what_it_evicts(void **state) {
    (void)state;
    replay(FOLDER "d2o.txt", 5);
}

static void test_kvzip_keeps_what_the_repetition_attends_to(void **state) {
    (void)state;
    replay(FOLDER "kvzip.txt", 6);
}

static void test_keydiff_keeps_keys_unlike_their_mean(void **state) {
    (void)state;
    replay(FOLDER "keydiff.txt", 4);
}

static void test_locret_keeps_the_best_scores_stabilizers_and_the_tail(void **state) {
    (void)state;
    replay(FOLDER "locret.txt", 3);
}

static void test_tailorkv_fetches_what_critical_channels_point_at(void **state) {
    (void)state;
    replay(FOLDER "tailorkv.txt", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roco_keeps_high_means_and_high_deviations),
        cmocka_unit_test(test_scissorhands_counts_attention_above_the_mean_and_evicts_the_oldest_of_equals),
        cmocka_unit_test(test_h2o_alone_and_weighted_by_values_in_prefill_and_decode),
        cmocka_unit_test(test_tova_of_layers_and_of_heads_alone_and_weighted_by_values),
        cmocka_unit_test(test_snapkv_with_every_pool_alone_and_weighted_by_values),
        cmocka_unit_test(test_pyramidkv_gives_less_to_every_layer),
        cmocka_unit_test(test_adakv_lets_heads_compete),
        cmocka_unit_test(test_d2o_divides_budgets_and_merges_what_it_evicts),
        cmocka_unit_test(test_kvzip_keeps_what_the_repetition_attends_to),
        cmocka_unit_test(test_keydiff_keeps_keys_unlike_their_mean),
        cmocka_unit_test(test_locret_keeps_the_best_scores_stabilizers_and_the_tail),
        cmocka_unit_test(test_tailorkv_fetches_what_critical_channels_point_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

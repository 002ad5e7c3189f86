// SPDX-License-Identifier: Apache-2.0
// Properties of any recipe on any small model: what stays, where it stays, and what memory it takes.
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
#include "engine/kvcache/capsule.h"
#include "tests/one_head.h"
#include "tests/unit/capsule_body.h"
#include "tests/unit/scarce.h"

static void assert_near(double a, double b, double tolerance, const char *what) {
    if (!(fabs(a - b) <= tolerance)) {
        fail_msg("%s: %.9g and %.9g differ by more than %.3g", what, a, b, tolerance);
    }
}

// Positions ascend; sinks and the newest are there; nothing is over the budget.
static void check_head(const struct drive *drive, int layer, int head, bool evicted, int64_t *positions) {
    const struct sl_plan *plan = &drive->plan;
    struct sl_kv kv = drive_kv(drive, layer, head);
    int64_t n = kv.n_slots, n_read = drive->n_read, budget = plan->budget_slots;
    assert_int_equal(n, evicted && n_read > budget ? budget : n_read);
    drive->ops->read_positions(&kv, positions);
    for (int64_t j = 0; j < n; j++) {
        assert_true(positions[j] >= 0 && positions[j] < n_read);
        assert_true(j == 0 || positions[j] > positions[j - 1]);
        assert_true(j >= plan->recipe.sinks || positions[j] == j);
    }
    int64_t recent = plan->recent_slots < n ? plan->recent_slots : n;
    for (int64_t i = 1; i <= recent; i++) {
        assert_int_equal(positions[n - i], n_read - i);
    }
    if (plan->recipe.score == SL_SCORE_RECENCY) { // all others are the newest
        for (int64_t i = 1; i <= n - plan->recipe.sinks; i++) {
            assert_int_equal(positions[n - i], n_read - i);
        }
    }
}

// Half a quantization step of a group, and what rounding scale and zero to f16 may add.
static double group_bound(double min, double max, int bits) {
    double range = max - min;
    return range / ((1 << bits) - 1) / 2 + range / 1024 + 1e-6;
}

// A packed page against the rows that were appended: K in groups of 64 slots per channel, V of channels per slot.
static void check_packed_page(const struct drive *drive, int layer, int head, int64_t first, const int64_t *positions,
                              const float *k, const float *v) {
    int d = drive->plan.geometry.head_dim, g = d < 64 ? d : 64;
    int bits = sl_kv_format_bits(drive->session->layers[layer].packed.format);
    for (int c = 0; c < d; c++) {
        double min = INFINITY, max = -INFINITY;
        for (int64_t j = first; j < first + SL_PAGE_SLOTS; j++) {
            double x = drive_element(drive, DRIVE_K, layer, positions[j], head, c);
            min = fmin(min, x), max = fmax(max, x);
        }
        for (int64_t j = first; j < first + SL_PAGE_SLOTS; j++) {
            assert_near(k[j * d + c], drive_element(drive, DRIVE_K, layer, positions[j], head, c),
                        group_bound(min, max, bits), "K");
        }
    }
    for (int64_t j = first; j < first + SL_PAGE_SLOTS; j++) {
        for (int group = 0; group < d; group += g) {
            double min = INFINITY, max = -INFINITY;
            for (int c = group; c < group + g; c++) {
                double x = drive_element(drive, DRIVE_V, layer, positions[j], head, c);
                min = fmin(min, x), max = fmax(max, x);
            }
            for (int c = group; c < group + g; c++) {
                assert_near(v[j * d + c], drive_element(drive, DRIVE_V, layer, positions[j], head, c),
                            group_bound(min, max, bits), "V");
            }
        }
    }
}

// After the last chunk: full pages of quantized layers are packed, everything else is bit for bit what was appended.
static void check_rows(const struct drive *drive, int layer, int head, const int64_t *positions) {
    const struct sl_layer *l = &drive->session->layers[layer];
    int d = drive->plan.geometry.head_dim;
    struct sl_kv kv = drive_kv(drive, layer, head);
    int64_t n = kv.n_slots, n_packed = (int64_t)kv.n_packed * SL_PAGE_SLOTS;
    assert_int_equal(kv.n_packed, sl_kv_format_is_quantized(l->packed.format) ? n / SL_PAGE_SLOTS : 0);
    float *k = malloc((size_t)(n * d) * sizeof *k), *v = malloc((size_t)(n * d) * sizeof *v);
    assert_true(k != NULL && v != NULL);
    drive->ops->read_rows(&kv, 0, (uint32_t)n, k, v);
    for (int64_t first = 0; first < n_packed; first += SL_PAGE_SLOTS) {
        check_packed_page(drive, layer, head, first, positions, k, v);
    }
    for (int64_t j = n_packed; j < n; j++) {
        for (int c = 0; c < d; c++) {
            assert_true(k[j * d + c] == drive_element(drive, DRIVE_K, layer, positions[j], head, c));
            assert_true(v[j * d + c] == drive_element(drive, DRIVE_V, layer, positions[j], head, c));
        }
    }
    free(k), free(v);
}

// The capsule, landed in a fresh arena, with n_new slots more: exactly what sl_plan_decode_bytes() promised at most.
static void check_decode_bytes(const struct drive *drive, int n_new) {
    struct sl_error err;
    size_t bound = sl_plan_decode_bytes(&drive->plan, n_new);
    void *memory = aligned_alloc(SL_ARENA_UNIT, bound);
    struct sl_arena *arena = NULL;
    struct sl_session *session = NULL;
    struct sl_capsule_id id = {1, 2, {{3}}};
    uint8_t *header = NULL;
    size_t header_bytes = 0;
    assert_non_null(memory);
    assert_int_equal(sl_arena_create(memory, bound, &arena, &err), SL_OK); // not a byte more than promised
    void *body = sl_arena_alloc(arena, drive->plan.capsule_bytes);
    assert_non_null(body);
    size_t bytes = copy_body(drive->session, body);
    assert_int_equal(sl_capsule_write_header(drive->session, &id, &header, &header_bytes, &err), SL_OK);
    struct sl_capsule_bytes capsule = {body, bytes, header, header_bytes};
    if (sl_capsule_open(&capsule, arena, &drive->plan.geometry, &id, drive->plan.budget_slots + n_new, &session,
                        &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    for (int l = 0; l < drive->plan.geometry.n_layers; l++) {
        assert_int_equal(sl_session_reserve(session, l, n_new), SL_OK);
    }
    free(header);
    sl_session_destroy(&session);
    sl_arena_destroy(&arena);
    free(memory);
}

static void random_recipe_text(char *text, size_t bytes, const struct sl_kv_geometry *g, int64_t n_prompt) {
    static const char *const formats[] = {"f32", "f16", "bf16", "int8", "int4", "int3", "int2", "int1"};
    char eviction[200] = "full", scope[64] = "", ranges[64] = "";
    if (rand() % 4 != 0) {
        int sinks = rand() % 3 ? rand() % 6 : 0;
        char recent[32] = "", budget[32];
        int n_recent = 0;
        if (rand() % 2) {
            snprintf(recent, sizeof recent, "recent:0.%d", 1 + rand() % 8);
        } else if (rand() % 2) {
            n_recent = 1 + rand() % 20;
            snprintf(recent, sizeof recent, "recent:%d", n_recent);
        }
        if (rand() % 2) {
            snprintf(budget, sizeof budget, "0.%d", 1 + rand() % 9);
        } else {
            snprintf(budget, sizeof budget, "%d", 5 * (sinks + 1) + n_recent + rand() % (int)n_prompt);
        }
        char first[24] = "";
        if (sinks > 0) {
            snprintf(first, sizeof first, "sinks:%d%s", sinks, recent[0] ? "+" : "");
        }
        if (sinks > 0 || recent[0]) {
            snprintf(scope, sizeof scope, ",scope=%s%s", first, recent);
        }
        static const char *const scores[] = {"recency", "random", "cis", "aas", "aqas", "mas", "ltas"};
        static const char *const values[] = {"", "", ",value=caote", ",value=fastcaote"};
        int score = rand() % 7;
        snprintf(eviction, sizeof eviction, "score=%s%s%s,budget=%s,heads=%s,when=%s", scores[score],
                 score >= 3 ? values[rand() % 4] : "", scope, budget, rand() % 3 ? "uniform" : "layer",
                 rand() % 3 ? "chunk" : "end");
    }
    if (rand() % 3 == 0) {
        snprintf(ranges, sizeof ranges, "/%d-:%s", rand() % g->n_layers, formats[rand() % 8]);
    }
    snprintf(text, bytes, "%s,format=%s%s,positions=%s,chunk=%d", eviction, formats[rand() % 8], ranges,
             rand() % 2 ? "slot" : "original", 64 * (1 + rand() % 2));
}

static void check_case(const char *text, const struct sl_kv_geometry *g, int group, int64_t n_prompt, uint64_t seed,
                       int n_threads) {
    struct drive drive;
    struct sl_arena_stats arena;
    drive_start(&drive, text, g, group, n_prompt, seed, 0.1f, n_threads);
    bool evicts = sl_recipe_evicts(&drive.plan.recipe), every_chunk = drive.plan.recipe.when & SL_WHEN_CHUNK;
    int64_t *positions = calloc((size_t)n_prompt, sizeof *positions);
    assert_non_null(positions);
    while (drive.n_read < n_prompt) {
        int64_t left = n_prompt - drive.n_read, chunk = drive.plan.recipe.chunk_tokens;
        bool last = left <= chunk;
        drive_chunk(&drive, (int)(last ? left : chunk), last);
        for (int l = 0; l < g->n_layers; l++) {
            for (int h = 0; h < g->n_kv_heads; h++) {
                check_head(&drive, l, h, evicts && (every_chunk || last), positions);
                if (last) {
                    check_rows(&drive, l, h, positions);
                }
            }
        }
    }
    sl_arena_get_stats(drive.arena, &arena);
    assert_true(arena.high_water_bytes <= drive.plan.prefill_peak_bytes);
    assert_int_equal(sl_capsule_body_bytes(drive.session), drive.plan.capsule_bytes);
    check_decode_bytes(&drive, 1 + (int)(seed % 100));

    struct sl_compress_stats stats;
    struct sl_error err;
    sl_compressor_get_stats(drive.compressor, &stats);
    int64_t heads = (int64_t)g->n_layers * g->n_kv_heads;
    assert_int_equal(stats.slots_evicted, heads * (n_prompt - drive.plan.budget_slots));
    for (int l = 0; l < g->n_layers; l++) { // idempotent
        assert_int_equal(sl_compressor_finish_layer(drive.compressor, drive.session, l, &err), SL_OK);
    }
    struct sl_compress_stats again;
    sl_compressor_get_stats(drive.compressor, &again);
    assert_int_equal(again.pages_quantized, stats.pages_quantized);
    free(positions);
    drive_stop(&drive);
}

static void test_compressor_keeps_its_promises_on_random_cases(void **state) {
    (void)state;
    srand(3);
    for (int i = 0; i < 3000; i++) {
        struct sl_kv_geometry g = {1 + rand() % 3, 1 + rand() % 3, rand() % 8 ? 8 * (1 + rand() % 2) : 64};
        int64_t n_prompt = 1 + rand() % (rand() % 4 ? 150 : 400);
        char text[256];
        random_recipe_text(text, sizeof text, &g, n_prompt);
        if (getenv("SLUICE_TEST_VERBOSE") != NULL) {
            printf("%d: %s, %d layers, %d heads of %d, %d tokens\n", i, text, g.n_layers, g.n_kv_heads, g.head_dim,
                   (int)n_prompt);
        }
        check_case(text, &g, 1 + rand() % 2, n_prompt, (uint64_t)i, i % 16 == 0 ? 2 : 1);
    }
}

// The state of a slot is what all rows so far gave it, also before anything is evicted.
static void test_compressor_accumulates_on_every_chunk(void **state) {
    (void)state;
    struct sl_kv_geometry g = {1, 2, 16};
    struct drive drive;
    float scores[256];
    drive_start(&drive, "h2o,budget=200,chunk=64", &g, 2, 256, 7, 0.1f, 1);
    for (int chunk = 1; chunk <= 3; chunk++) {
        drive_chunk(&drive, 64, false);
        for (int h = 0; h < g.n_kv_heads; h++) {
            struct sl_kv kv = drive_kv(&drive, 0, h);
            double sum = 0;
            read_plane(drive.ops, &kv, 0, scores);
            for (uint32_t j = 0; j < kv.n_slots; j++) {
                sum += scores[j];
            }
            assert_near(sum, 64 * chunk, 1e-2, "each row's attention sums to 1"); // nothing was evicted yet
        }
    }
    drive_stop(&drive);
}

static void test_compressor_wants_lse_only_for_attention_scores(void **state) {
    (void)state;
    struct sl_kv_geometry g = {1, 1, 8};
    static const struct {
        const char *text;
        bool wants;
    } cases[] = {{"full", false}, {"streamingllm", false}, {"h2o", true}, {"h2o,when=end", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct drive drive;
        drive_start(&drive, cases[i].text, &g, 1, 100, 0, 1.0f, 1);
        assert_int_equal(sl_compressor_wants(drive.compressor, false).lse, cases[i].wants);
        drive_stop(&drive);
    }
    struct sl_compressor *none = NULL;
    sl_compressor_destroy(&none);
}

// A full arena is reported, the layer stays whole, and the work can be finished when there is room again.
static void test_compressor_packs_later_when_the_arena_is_full(void **state) {
    (void)state;
    struct sl_kv_geometry g = {1, 2, 16};
    struct drive drive;
    struct sl_error err;
    drive_start(&drive, "full,format=int4,chunk=128", &g, 1, 128, 9, 1.0f, 1);
    assert_int_equal(sl_session_reserve(drive.session, 0, 128), SL_OK);
    void *blocks[4096];
    int n_blocks = 0;
    while (n_blocks < 4096 && (blocks[n_blocks] = sl_arena_alloc(drive.arena, SL_ARENA_UNIT)) != NULL) {
        n_blocks++;
    }
    assert_true(n_blocks > 2 && n_blocks < 4096);
    assert_int_equal(drive_layer(&drive, 0, 128, true, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "no arena memory for quantized pages of layer 0"));
    drive.n_read = 128;
    assert_int_equal(drive_kv(&drive, 0, 0).n_packed, 0);
    assert_int_equal(drive_kv(&drive, 0, 0).n_slots, 128);
    while (n_blocks > 0) {
        sl_arena_free(drive.arena, blocks[--n_blocks]);
    }
    assert_int_equal(sl_compressor_finish_layer(drive.compressor, drive.session, 0, &err), SL_OK);
    int64_t positions[128];
    for (int h = 0; h < 2; h++) {
        check_head(&drive, 0, h, false, positions);
        check_rows(&drive, 0, h, positions);
    }
    struct sl_compress_stats stats;
    sl_compressor_get_stats(drive.compressor, &stats);
    assert_int_equal(stats.pages_quantized, 4);
    drive_stop(&drive);
}

// A capsule has nothing of the sessions that used the memory before, whatever the format and what is evicted.
static void test_compressor_clears_slots_that_no_token_uses(void **state) {
    (void)state;
    static const char *const recipes[] = {"full",
                                          "full,format=f32",
                                          "full,format=int4",
                                          "h2o,budget=40",
                                          "snapkv,budget=80,format=int8",
                                          "kvzip,budget=0.5,format=k4v2"};
    const struct sl_kv_geometry g = {2, 2, 16};
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        struct drive drive;
        drive_start(&drive, recipes[i], &g, 1, 150, 9, 1.0f, 1);
        size_t free_bytes;
        struct sl_arena_stats stats;
        sl_arena_get_stats(drive.arena, &stats);
        free_bytes = stats.largest_free_bytes;
        void *before = sl_arena_alloc(drive.arena, free_bytes);
        assert_non_null(before);
        memset(before, 0x7b, free_bytes);
        sl_arena_free(drive.arena, before);
        while (drive_next_chunk(&drive)) {
        }
        for (int l = 0; l < 2; l++) {
            for (int h = 0; h < 2; h++) {
                struct sl_kv kv = drive_kv(&drive, l, h);
                uint32_t n_last = kv.n_slots % SL_PAGE_SLOTS,
                         row = 16 * (uint32_t)sl_kv_format_bits(kv.work->format) / 8;
                const char *page = kv.pages[kv.n_slots / SL_PAGE_SLOTS];
                assert_true(n_last > 0);
                for (uint32_t at = n_last * row; at < SL_PAGE_SLOTS * row; at++) {
                    assert_true(page[kv.work->k + at] == 0 && page[kv.work->v + at] == 0);
                }
                for (uint32_t at = 4 * n_last; kv.work->has_positions && at < 4 * SL_PAGE_SLOTS; at++) {
                    assert_int_equal(page[kv.work->positions + at], 0);
                }
                for (uint32_t at = 4 * n_last; kv.work->n_states > 0 && at < 4 * SL_PAGE_SLOTS; at++) {
                    assert_int_equal(page[kv.work->states + at], 0);
                }
            }
        }
        drive_stop(&drive);
    }
}

static void test_compressor_refuses_to_evict_from_packed_pages(void **state) {
    (void)state;
    struct sl_kv_geometry g = {1, 1, 16};
    struct drive drive;
    struct sl_error err;
    drive_start(&drive, "streamingllm,budget=64,format=int8,chunk=64", &g, 1, 128, 9, 1.0f, 1);
    drive_chunk(&drive, 64, true); // "last", and then one more
    assert_int_equal(drive_kv(&drive, 0, 0).n_packed, 1);
    assert_int_equal(drive_layer(&drive, 0, 64, true, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "layer 0 is quantized already"));
    drive_stop(&drive);
}

static void test_compressor_refuses_more_slots_than_planned(void **state) {
    (void)state;
    struct sl_kv_geometry g = {1, 1, 8};
    struct drive drive;
    struct sl_error err;
    drive_start(&drive, "streamingllm,budget=64,chunk=64", &g, 1, 1000, 9, 1.0f, 1);
    sl_session_destroy(&drive.session);
    assert_int_equal(sl_plan_create_session(&drive.plan, 100, drive.arena, &drive.session, &err), SL_OK);
    assert_int_equal(drive_layer(&drive, 0, 192, false, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "layer 0 head 0 holds 192 slots, the plan foresees at most 128"));
    drive_stop(&drive);
}

static enum sl_status make_compressor(void *arg, struct sl_error *err) {
    const struct drive *drive = arg;
    struct sl_compressor *compressor = NULL;
    enum sl_status status = sl_compressor_create(&drive->plan, drive->ops, drive->stream, &compressor, err);
    sl_compressor_destroy(&compressor);
    return status;
}

static void test_compressor_without_memory_is_refused(void **state) {
    (void)state;
    static const char *const recipes[] = {"full,format=int4", "h2o,budget=0.5", "snapkv,budget=64",
                                          "score=cis,scope=stabilizers:8+tail:8,budget=40,when=chunk",
                                          "d2o,budget=0.5"};
    const struct sl_kv_geometry geometry = {2, 2, 16};
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        struct drive drive;
        drive_start(&drive, recipes[i], &geometry, 2, 200, 1, 1.0f, 0);
        assert_true(assert_refused_without_memory(make_compressor, &drive) >= 3);
        drive_stop(&drive);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compressor_keeps_its_promises_on_random_cases),
        cmocka_unit_test(test_compressor_accumulates_on_every_chunk),
        cmocka_unit_test(test_compressor_wants_lse_only_for_attention_scores),
        cmocka_unit_test(test_compressor_packs_later_when_the_arena_is_full),
        cmocka_unit_test(test_compressor_clears_slots_that_no_token_uses),
        cmocka_unit_test(test_compressor_refuses_to_evict_from_packed_pages),
        cmocka_unit_test(test_compressor_refuses_more_slots_than_planned),
        cmocka_unit_test(test_compressor_without_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

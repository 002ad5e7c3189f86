// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: properties of every recipe: random recipes over all axes, random models and prompts, read chunk by chunk, shipped as a capsule
 *          into another arena, and continued there.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/recipe.h"
#include "drive.h"
#include "engine/kvcache/capsule.h"
#include "tests/unit/capsule_body.h"

static const char *pick(const char *const *words, int n) {
    return words[rand() % n];
}
#define PICK(...)                                                                                                      \
    pick((const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

// Any axes; many do not fit each other, and are refused before anything is driven.
static void random_text(char *text, size_t bytes) {
    static const char *const formats[] = {"f32", "f16", "bf16", "int8", "int4", "int3", "int2", "int1"};
    char format[64], budget[32];
    snprintf(format, sizeof format, "%s%s%s", pick(formats, 8), rand() % 2 ? PICK("/0-0:", "/1-:", "/dense:") : "", "");
    if (format[strlen(format) - 1] == ':') {
        strcat(format, pick(formats, 8));
    }
    if (rand() % 8 == 0) {
        snprintf(text, bytes, "place=offload/%s,scope=sinks:4+recent:8,topk=16,channels=4,format=%s",
                 PICK("sparse", "1-", "1", "1+2"), format);
        if (rand() % 2) {
            snprintf(text + strlen(text), bytes - strlen(text), ",score=%s,budget=0.%02d,when=chunk",
                     PICK("cis", "random"), 1 + rand() % 99);
        }
        return;
    }
    if (rand() % 10 == 0) {
        snprintf(text, bytes, "full,positions=%s,format=%s", PICK("original", "slot"), format);
        return;
    }
    const char *score = PICK("random", "recency", "aas", "aqas", "ltas", "mas", "snapkv", "cis");
    bool snapkv = strcmp(score, "snapkv") == 0;
    snprintf(budget, sizeof budget, rand() % 2 ? "%d" : "0.%02d", 1 + rand() % 99);
    if (rand() % 4 == 0) {
        snprintf(budget, sizeof budget, "%d", 50 + rand() % 400);
    }
    int n = snprintf(text, bytes,
                     "score=%s,value=%s,scope=sinks:%d%s%s%s%s,budget=%s,layers=%s,exempt=%s,heads=%s,when=%s,"
                     "evicted=%s,positions=%s,format=%s",
                     score, rand() % 2 ? "off" : PICK("caote", "fastcaote", "caote-heads", "fastcaote-heads"),
                     1 + rand() % 6, snapkv ? "+recent:16" : PICK("", "+recent:0.5", "+recent:9"),
                     strcmp(score, "mas") == 0 && rand() % 2 ? "+std:0.2" : "", rand() % 4 ? "" : "+stabilizers:20",
                     rand() % 4 ? "" : PICK("+tail:1", "+tail:30", "+tail:100"), budget,
                     rand() % 2 ? "uniform" : PICK("pyramid", "d2o", "d2o-raw", "d2o-minmax"),
                     rand() % 2 ? "none" : PICK("0", "last", "1"),
                     rand() % 2 ? "uniform" : PICK("layer", "adaptive", "global", "pages"),
                     PICK("chunk", "end", "chunk+step", "end+step"), rand() % 3 ? "drop" : PICK("merge", "merge:0.3"),
                     PICK("original", "slot"), format);
    if (snapkv) {
        snprintf(text + n, bytes - (size_t)n, ",window=%d,pool=%s", 1 + rand() % 16, PICK("max:7", "avg:5", "none"));
    } else if (strcmp(score, "random") == 0) {
        snprintf(text + n, bytes - (size_t)n, ",seed=%d", rand());
    }
}

// A recipe that fits itself, the model and the prompt.
static void random_recipe(char *text, size_t bytes, const struct sl_kv_geometry *geometry, int64_t n_prompt) {
    struct sl_plan plan;
    struct sl_recipe recipe;
    do {
        random_text(text, bytes - 16);
        snprintf(text + strlen(text), 16, ",chunk=%d", 64 * (1 + rand() % 3));
    } while (sl_recipe_parse(text, &recipe, NULL) != SL_OK ||
             sl_recipe_resolve(&recipe, NULL, geometry->n_layers, NULL) != SL_OK ||
             sl_plan_make_local(&recipe, geometry, n_prompt, 0, &plan, NULL) != SL_OK);
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void check_high_water(const struct drive *drive, size_t bound, const char *what) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(drive->arena, &stats);
    if (stats.high_water_bytes > bound) {
        fail_msg("%s: %zu bytes, the plan says %zu", what, stats.high_water_bytes, bound);
    }
}

// Slots keep the order of their positions, none twice, and none of the future.
static void check_positions(const struct drive *drive, int layer, int head) {
    if (sl_recipe_layer_thins(&drive->plan.recipe, layer)) {
        return; // no page says which token a slot was: test_thin.c
    }
    struct sl_kv kv = drive_kv(drive, layer, head);
    int64_t *positions = calloc(kv.n_slots + 1, sizeof *positions);
    assert_non_null(positions);
    drive->ops->read_positions(&kv, positions);
    for (uint32_t j = 0; j < kv.n_slots; j++) {
        assert_true(positions[j] >= (j > 0 ? positions[j - 1] + 1 : 0) && positions[j] < drive->n_read);
    }
    int64_t sinks = smaller(drive->plan.recipe.sinks, kv.n_slots);
    for (int64_t j = 0; j < sinks; j++) {
        assert_int_equal(positions[j], j);
    }
    bool recent = sl_recipe_recent_slots(&drive->plan.recipe, drive->plan.least_slots) > 0; // in any layer
    if (kv.n_slots > 0 && (recent || (drive->plan.tail_slots > 0 && drive->n_read == drive->plan.n_prompt))) {
        assert_int_equal(positions[kv.n_slots - 1], drive->n_read - 1);
    }
    free(positions);
}

static void check_slots(const struct drive *drive, int64_t n_new) {
    for (int l = 0; l < drive->plan.geometry.n_layers; l++) {
        for (int h = 0; h < drive->plan.geometry.n_kv_heads; h++) {
            int64_t n = drive_kv(drive, l, h).n_slots, most = sl_plan_layer_slots(&drive->plan, l, n_new);
            bool every_chunk = (drive->plan.recipe.when & SL_WHEN_CHUNK) || drive->n_read >= drive->plan.n_prompt;
            if (n > smaller(drive->n_read, every_chunk ? most : drive->plan.n_prompt)) {
                fail_msg("layer %d head %d holds %lld slots, the plan says %lld", l, h, (long long)n, (long long)most);
            }
            check_positions(drive, l, h);
        }
    }
}

// Checks that exactly the budget is kept of the prompt: in each head, or in all heads together where attention divides
// it. heads=pages keeps whole pages.
static void check_kept(const struct drive *drive) {
    const struct sl_plan *plan = &drive->plan;
    int64_t n_heads = plan->geometry.n_kv_heads, body = sl_plan_body_tokens(plan), sum = 0, n_layers = 0;
    bool split = sl_recipe_uneven_layers(&plan->recipe);
    int64_t least =
        sl_pages_for(plan->recipe.sinks + plan->recent_slots + plan->tail_slots); // pages that are protected
    bool pages = plan->recipe.heads == SL_HEADS_PAGES && plan->n_prompt / SL_PAGE_SLOTS >= least;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        int64_t slots = 0;
        bool evicts = sl_recipe_layer_evicts(&plan->recipe, l);
        for (int h = 0; h < n_heads; h++) {
            int64_t n = drive_kv(drive, l, h).n_slots;
            if (!evicts || (!split && plan->recipe.heads != SL_HEADS_ADAPTIVE)) {
                assert_int_equal(n, evicts ? smaller(plan->layer_budget[l], body) + plan->tail_slots
                                           : plan->layer_budget[l]);
            }
            assert_true(!evicts || !pages || n % SL_PAGE_SLOTS == 0);
            slots += n;
        }
        if (evicts && !split) {
            assert_int_equal(slots, n_heads * (smaller(plan->layer_budget[l], body) + plan->tail_slots));
        }
        sum += evicts ? slots : 0;
        n_layers += evicts;
    }
    if (split && plan->total_budget < body * n_layers && plan->layer_budget[0] <= body) {
        int64_t all = n_heads * (plan->total_budget + plan->tail_slots * n_layers);
        int64_t apart = pages ? n_heads * n_layers * SL_PAGE_SLOTS : 0;
        assert_true(sum >= all - apart && sum <= all + apart);
    }
}

static void assert_same_session(const struct sl_session *a, const struct sl_session *b) {
    assert_true(a->n_tokens == b->n_tokens && a->positions == b->positions);
    for (int l = 0; l < a->geometry.n_layers; l++) {
        assert_memory_equal(&a->layers[l].work, &b->layers[l].work, sizeof a->layers[l].work);
        assert_memory_equal(&a->layers[l].packed, &b->layers[l].packed, sizeof a->layers[l].packed);
        assert_true(a->layers[l].merge_threshold == b->layers[l].merge_threshold);
        for (int h = 0; h < a->geometry.n_kv_heads; h++) {
            const struct sl_head *x = &a->layers[l].heads[h], *y = &b->layers[l].heads[h];
            assert_true(x->n_slots == y->n_slots && x->n_packed == y->n_packed);
            for (uint32_t p = 0; p < sl_pages_for(x->n_slots); p++) {
                size_t bytes = p < x->n_packed ? a->layers[l].packed.bytes : a->layers[l].work.bytes;
                assert_memory_equal(x->pages[p], y->pages[p], bytes);
            }
        }
    }
}

// The session, as a capsule, in an arena of its own: from now on the drive's.
static void ship(struct drive *drive, int64_t n_new) {
    struct sl_error err;
    size_t bytes = 2 * sl_plan_decode_bytes(&drive->plan, n_new) + (1 << 16), header_bytes = 0;
    bytes = (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
    void *memory = aligned_alloc(SL_ARENA_UNIT, bytes);
    struct sl_arena *arena = NULL;
    struct sl_session *session = NULL;
    struct sl_capsule_id id = {1, 2, {{3}}};
    uint8_t *header = NULL;
    assert_non_null(memory);
    assert_int_equal(sl_arena_create(memory, bytes, &arena, &err), SL_OK);
    void *body = sl_arena_alloc(arena, drive->plan.capsule_bytes);
    assert_non_null(body);
    assert_true(sl_capsule_body_bytes(drive->session) <= drive->plan.capsule_bytes);
    size_t body_bytes = copy_body(drive->session, body);
    assert_int_equal(sl_capsule_write_header(drive->session, &id, &header, &header_bytes, &err), SL_OK);
    struct sl_capsule_bytes capsule = {body, body_bytes, header, header_bytes};
    if (sl_capsule_open(&capsule, arena, &drive->plan.geometry, &id, drive->plan.max_slots + n_new, &session, &err) !=
        SL_OK) {
        fail_msg("%s", err.text);
    }
    free(header);
    assert_same_session(drive->session, session);
    struct sl_arena_stats stats;
    sl_session_destroy(&drive->session);
    sl_arena_get_stats(drive->arena, &stats);
    assert_true(stats.n_blocks == 0 && stats.used_bytes == 0);
    sl_arena_destroy(&drive->arena);
    free(drive->memory);
    drive->session = session;
    drive->arena = arena;
    drive->memory = memory;
}

static void run_case(const char *text, const struct sl_kv_geometry *geometry, int64_t n_prompt, int n_steps) {
    struct drive drive;
    drive_start(&drive, text, geometry, 1 + rand() % 2, n_prompt, (uint64_t)rand(), 0.25f, 1);
    while (drive_next_chunk(&drive)) {
        check_slots(&drive, 0);
    }
    check_high_water(&drive, drive.plan.prefill_peak_bytes, "prefill");
    check_kept(&drive);
    ship(&drive, n_steps);
    bool steps = sl_compressor_steps(drive.compressor) && !sl_recipe_offloads(&drive.plan.recipe);
    for (int i = 1; steps && i <= n_steps; i++) {
        drive_step(&drive, 1);
        check_slots(&drive, i);
    }
    check_high_water(&drive, sl_plan_decode_bytes(&drive.plan, n_steps), "decode");
    drive_stop(&drive); // checks that the arena is empty
}

// So that a failure says which case it was.
static char case_at_work[640];

static int print_case(void **state) {
    (void)state;
    if (case_at_work[0] != '\0') {
        print_message("%s\n", case_at_work);
    }
    return 0;
}

static void test_properties_hold_for_random_recipes(void **state) {
    (void)state;
    enum { N_CASES = 2500 };
    srand(1);
    int n_evicting = 0, n_stepping = 0, n_uneven = 0;
    for (int i = 0; i < N_CASES; i++) {
        struct sl_kv_geometry geometry = {1 + rand() % 4, 1 + rand() % 3, 8 * (1 + rand() % 3)};
        int64_t n_prompt = rand() % 4 ? 1 + rand() % 300 : 1 + rand() % 20;
        char text[512];
        random_recipe(text, sizeof text, &geometry, n_prompt);
        snprintf(case_at_work, sizeof case_at_work, "case %d: %d layers, %d heads of %d, %d tokens: %s", i,
                 geometry.n_layers, geometry.n_kv_heads, geometry.head_dim, (int)n_prompt, text);
        run_case(text, &geometry, n_prompt, 20);
        struct sl_recipe recipe;
        assert_int_equal(sl_recipe_parse(text, &recipe, NULL), SL_OK);
        n_evicting += sl_recipe_evicts(&recipe);
        n_stepping += (recipe.when & SL_WHEN_STEP) != 0;
        n_uneven += sl_recipe_splits_by_attention(&recipe) || recipe.heads == SL_HEADS_ADAPTIVE;
    }
    case_at_work[0] = '\0';
    assert_true(n_evicting > N_CASES / 2 && n_stepping > N_CASES / 10 && n_uneven > N_CASES / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_properties_hold_for_random_recipes, print_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

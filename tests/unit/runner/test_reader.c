// SPDX-License-Identifier: Apache-2.0
// Where a prompt is cut, and when and in which order its layers are handed on; with the demo model.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "job/job_recipe.h"
#include "kvcache/capsule.h"
#include "node/outbound.h"
#include "runner/reader.h"
#include "tests/unit/capsule_body.h"

#define MAX_TOKENS  640
#define ARENA_BYTES ((size_t)32 << 20)

struct fixture {
    struct sl_runtime runtime;
    struct sl_arena *arena;
    int32_t tokens[MAX_TOKENS];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sl_runtime_config config = {.model_dir = "models/demo", .threads = 2, .max_rows = MAX_TOKENS};
    assert_int_equal(sl_runtime_open(&config, &f->runtime, NULL), SL_OK);
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &f->arena, NULL), SL_OK);
    for (int i = 0; i < MAX_TOKENS; i++) {
        f->tokens[i] = i * 37 % 1900 + 50;
    }
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    struct sl_arena_stats stats;
    sl_arena_get_stats(f->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&f->arena);
    sl_runtime_close(&f->runtime);
    free(f);
    return 0;
}

// What a reading did: where its chunks ended, which layers were handed on, and how many of them before the last chunk
// had been computed for all layers.
struct reading {
    int64_t ends[32];
    int n_ends;
    int layers[SL_MAX_LAYERS];
    size_t bytes[SL_MAX_LAYERS]; // that the layer held when it was handed on
    int n_layers, n_early;
};

static void note_layer(struct reading *reading, const struct sl_session *session, int layer) {
    reading->layers[reading->n_layers] = layer;
    reading->bytes[reading->n_layers++] = sl_capsule_layer_bytes(session, layer);
    int64_t before = reading->n_ends > 0 ? reading->ends[reading->n_ends - 1] : 0;
    reading->n_early += session->n_tokens == before; // the forward pass counts the chunk when it is through
}

// Who takes the layers, in the place of a ship.
struct taker {
    struct sl_outbound outbound;
    struct reading *reading; // NULL: refuse layer 3
    int last;
};

enum sl_status sl_outbound_flush(struct sl_outbound *outbound, const struct sl_runtime *runtime, bool all,
                                 struct sl_error *err) {
    (void)outbound;
    (void)runtime;
    (void)all;
    (void)err;
    return SL_OK;
}

enum sl_status sl_outbound_layer(struct sl_outbound *outbound, const struct sl_runtime *runtime,
                                 const struct sl_session *session, int layer, struct sl_error *err) {
    (void)runtime;
    (void)err;
    struct taker *taker = (struct taker *)outbound;
    taker->last = layer;
    if (taker->reading) {
        note_layer(taker->reading, session, layer);
    }
    return taker->reading || layer != 3 ? SL_OK : SL_ERR_PEER_LOST;
}

static struct reading read_prompt(struct fixture *f, const char *text, int64_t n_prompt) {
    struct reading reading = {0};
    struct sl_recipe recipe;
    struct sl_error err = {0};
    const struct sl_model_config *config = f->runtime.config;
    struct sl_kv_geometry geometry = sl_model_geometry(config);
    struct sl_plan *plan = malloc(sizeof *plan);
    if (sl_job_recipe(text, config, &recipe, &err) != SL_OK ||
        sl_plan_make_local(&recipe, &geometry, n_prompt, 0, plan, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    struct sl_reader_config reader_config = {.sequence = {.plan = plan, .runtime = &f->runtime, .arena = f->arena},
                                             .tokens = f->tokens};
    struct taker taker = {.reading = &reading};
    struct sl_reader *reader;
    reader_config.sequence.outbound = &taker.outbound;
    assert_int_equal(sl_reader_create(&reader_config, &reader, &err), SL_OK);
    for (bool done = false; !done;) {
        if (sl_reader_step(reader, &done, &err) != SL_OK) {
            fail_msg("%s: %s", text, err.text);
        }
        reading.ends[reading.n_ends++] = sl_reader_session(reader)->n_tokens;
    }
    assert_int_equal(reading.n_layers, geometry.n_layers);
    for (int l = 0; l < geometry.n_layers; l++) {
        assert_int_equal(reading.layers[l], l);                                                   // once each, in order
        assert_int_equal(reading.bytes[l], sl_capsule_layer_bytes(sl_reader_session(reader), l)); // and final
    }
    assert_int_equal(reading.ends[reading.n_ends - 1], n_prompt);
    sl_reader_destroy(&reader);
    free(plan);
    return reading;
}

static void assert_ends(const struct reading *reading, const int64_t *ends, int n) {
    assert_int_equal(reading->n_ends, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(reading->ends[i], ends[i]);
    }
}
#define ASSERT_ENDS(reading, ...)                                                                                      \
    assert_ends(&(reading), (const int64_t[]){__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

static void test_reader_cuts_at_chunks_and_where_the_tail_begins(void **state) {
    struct reading reading = read_prompt(*state, "h2o,budget=96,chunk=128", 300);
    ASSERT_ENDS(reading, 128, 256, 300);
    reading = read_prompt(*state, "h2o,budget=96,scope=recent:8+tail:70,chunk=128", 400);
    ASSERT_ENDS(reading, 128, 256, 330, 384, 400);
}

static void test_reader_never_cuts_the_window_that_decides(void **state) {
    struct reading reading = read_prompt(*state, "snapkv,budget=128,chunk=256", 600);
    ASSERT_ENDS(reading, 256, 512, 600); // seen whole anyway
    reading = read_prompt(*state, "snapkv,budget=128,chunk=256", 520);
    ASSERT_ENDS(reading, 256, 488, 520); // at 512 the window of 32 rows would be cut
    reading = read_prompt(*state, "snapkv,budget=128,chunk=256", 513);
    ASSERT_ENDS(reading, 256, 481, 513);
    reading = read_prompt(*state, "snapkv,budget=128,chunk=256", 20);
    ASSERT_ENDS(reading, 20);
}

static void test_reader_hands_on_layers_as_they_become_final(void **state) {
    struct reading reading = read_prompt(*state, "full,format=int4,chunk=128", 300);
    assert_int_equal(reading.n_early, 8); // each while the layers above it are still to come
    // Budgets that need every layer: nothing is final before the end, not even a layer that is left alone behind them.
    reading = read_prompt(*state, "d2o,budget=128,chunk=128", 300);
    assert_int_equal(reading.n_early, 0);
    reading = read_prompt(*state, "d2o,budget=128,chunk=128,exempt=0-1+4", 300);
    assert_int_equal(reading.n_early, 2);
}

// Steps of at most `most` tokens: how many there were, and the pages that came of it.
static uint8_t *read_in_steps(struct fixture *f, const char *text, int64_t n_prompt, int64_t most, int *n_steps_out,
                              size_t *bytes_out) {
    struct sl_recipe recipe;
    struct sl_kv_geometry geometry = sl_model_geometry(f->runtime.config);
    struct sl_plan *plan = malloc(sizeof *plan);
    assert_int_equal(sl_job_recipe(text, f->runtime.config, &recipe, NULL), SL_OK);
    assert_int_equal(sl_plan_make_local(&recipe, &geometry, n_prompt, 0, plan, NULL), SL_OK);
    struct sl_reader_config config = {.sequence = {.plan = plan, .runtime = &f->runtime, .arena = f->arena},
                                      .tokens = f->tokens};
    struct sl_reader *reader;
    assert_int_equal(sl_reader_create(&config, &reader, NULL), SL_OK);
    sl_reader_limit_step(reader, most);
    struct sl_session *session = sl_reader_session(reader);
    struct sl_error err = {0};
    *n_steps_out = 0;
    for (bool done = false; !done; ++*n_steps_out) {
        int64_t next = sl_reader_next_tokens(reader), before = session->n_tokens;
        assert_int_equal(sl_reader_step(reader, &done, &err), SL_OK);
        assert_int_equal(session->n_tokens - before, next);
    }
    assert_int_equal(sl_reader_next_tokens(reader), 0);
    *bytes_out = sl_capsule_body_bytes(session);
    uint8_t *body = malloc(*bytes_out);
    copy_body(session, body);
    sl_reader_destroy(&reader);
    free(plan);
    return body;
}

static void test_reader_limits_steps_where_it_makes_no_difference(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *recipe;
        int n_chunks, n_steps;
    } cases[] = {{"full,chunk=256", 2, 10}, {"full,format=int4,chunk=256", 2, 10}, {"h2o,budget=96,chunk=256", 2, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n_chunks, n_steps;
        size_t whole_bytes, bytes;
        uint8_t *whole = read_in_steps(f, cases[i].recipe, 448, 0, &n_chunks, &whole_bytes);
        uint8_t *body = read_in_steps(f, cases[i].recipe, 448, 48, &n_steps, &bytes);
        assert_int_equal(n_chunks, cases[i].n_chunks);
        assert_int_equal(n_steps, cases[i].n_steps); // 5 * 48 + 16, 4 * 48; chunks that evict stay whole
        assert_int_equal(bytes, whole_bytes);
        assert_memory_equal(body, whole, bytes);
        free(whole);
        free(body);
    }
}

static void test_reader_ends_with_the_status_of_whoever_takes_the_layers(void **state) {
    struct fixture *f = *state;
    static const char *const recipes[] = {"full", "d2o,budget=128"};
    for (size_t r = 0; r < 2; r++) {
        struct sl_recipe recipe;
        struct sl_kv_geometry geometry = sl_model_geometry(f->runtime.config);
        struct sl_plan *plan = malloc(sizeof *plan);
        struct sl_error err = {0};
        assert_int_equal(sl_job_recipe(recipes[r], f->runtime.config, &recipe, &err), SL_OK);
        assert_int_equal(sl_plan_make_local(&recipe, &geometry, 200, 0, plan, &err), SL_OK);
        struct sl_reader_config config = {.sequence = {.plan = plan, .runtime = &f->runtime, .arena = f->arena},
                                          .tokens = f->tokens};
        struct taker taker = {.last = -1};
        struct sl_reader *reader;
        config.sequence.outbound = &taker.outbound;
        assert_int_equal(sl_reader_create(&config, &reader, &err), SL_OK);
        bool done = false;
        assert_int_equal(sl_reader_step(reader, &done, &err), SL_ERR_PEER_LOST);
        assert_int_equal(taker.last, 3);
        assert_false(done);
        sl_reader_destroy(&reader);
        free(plan);
    }
}

static void test_job_recipe_puts_the_models_layers_in_place(void **state) {
    struct fixture *f = *state;
    struct sl_model_config config = *f->runtime.config;
    struct sl_recipe recipe, again;
    struct sl_error err = {0};
    char text[SL_RECIPE_TEXT_BYTES];
    for (int profiled = 0; profiled < 2; profiled++) {
        config.has_profile = profiled;
        memset(config.dense_layers, 0, sizeof config.dense_layers);
        config.dense_layers[0] = 1u << 0 | 1u << 3;
        assert_int_equal(sl_job_recipe("tailorkv", &config, &recipe, &err), SL_OK);
        for (int l = 0; l < config.n_layers; l++) {
            bool dense = l == 0 || (profiled && l == 3); // without a profile layer 0 alone
            assert_int_equal(sl_layers_has(&recipe.offload, l), !dense);
        }
        // What workers are told means the same to them, whatever profile they have.
        sl_recipe_format(&recipe, text, sizeof text);
        config.has_profile = false;
        assert_int_equal(sl_job_recipe(text, &config, &again, &err), SL_OK);
        assert_int_equal(sl_recipe_fingerprint(&again), sl_recipe_fingerprint(&recipe));
    }
    config.retaining_hidden = 0;
    assert_int_equal(sl_job_recipe("locret", &config, &recipe, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "retaining_heads.safetensors"));
    assert_non_null(strstr(err.text, "tools/convert_retaining_heads.py"));
    config.retaining_hidden = 64;
    assert_int_equal(sl_job_recipe("locret", &config, &recipe, &err), SL_OK);
}

static void test_reader_refuses_offloaded_layers_without_a_place_for_them(void **state) {
    struct fixture *f = *state;
    struct sl_recipe recipe;
    struct sl_kv_geometry geometry = sl_model_geometry(f->runtime.config);
    struct sl_plan *plan = malloc(sizeof *plan);
    struct sl_error err = {0};
    struct sl_reader *reader;
    assert_int_equal(sl_job_recipe("place=offload/2-", f->runtime.config, &recipe, &err), SL_OK);
    assert_int_equal(sl_plan_make(&recipe, &geometry, 200, 0, plan, &err), SL_OK);
    struct sl_reader_config config = {.sequence = {.plan = plan, .runtime = &f->runtime, .arena = f->arena},
                                      .tokens = f->tokens};
    assert_int_equal(sl_reader_create(&config, &reader, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "nowhere to put them"));
    free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_cuts_at_chunks_and_where_the_tail_begins),
        cmocka_unit_test(test_reader_never_cuts_the_window_that_decides),
        cmocka_unit_test(test_reader_hands_on_layers_as_they_become_final),
        cmocka_unit_test(test_reader_limits_steps_where_it_makes_no_difference),
        cmocka_unit_test(test_reader_ends_with_the_status_of_whoever_takes_the_layers),
        cmocka_unit_test(test_reader_refuses_offloaded_layers_without_a_place_for_them),
        cmocka_unit_test(test_job_recipe_puts_the_models_layers_in_place),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

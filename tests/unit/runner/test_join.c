// SPDX-License-Identifier: Apache-2.0
// Tokens that another session has read are joined to a prompt at other positions; with the demo model.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/job/job_recipe.h"
#include "engine/kvcache/capsule.h"
#include "engine/runner/join.h"
#include "engine/runner/reading.h"
#include "tests/unit/capsule_body.h"
#include "tests/unit/temp_folder.h"

#define N_TOKENS    700
#define ARENA_BYTES ((size_t)64 << 20)

struct fixture {
    struct sl_runtime runtime;
    struct sl_arena *arena;
    struct sl_plan *plan;
    int32_t first[N_TOKENS], second[N_TOKENS]; // two texts
};

static int open_model(void **state, const char *model_dir) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sl_runtime_config config = {.model_dir = model_dir, .threads = 2, .max_rows = 512};
    assert_int_equal(sl_runtime_open(&config, &f->runtime, NULL), SL_OK);
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &f->arena, NULL), SL_OK);
    f->plan = malloc(sizeof *f->plan);
    for (int i = 0; i < N_TOKENS; i++) {
        f->first[i] = i * 37 % 1900 + 50;
        f->second[i] = i * 53 % 1700 + 90;
    }
    *state = f;
    return 0;
}

static int setup(void **state) {
    return open_model(state, "models/demo");
}

// The demo model with other frequencies, whose cosines and sines are also scaled.
static int setup_yarn(void **state) {
    struct temp_folder folder = temp_folder_create();
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": \"silu\", "
        "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 8192, "
        "\"attention_factor\": 1.25}, \"tie_word_embeddings\": true, \"bos_token_id\": 2045, \"eos_token_id\": 2045, "
        "\"hidden_size\": 256, \"intermediate_size\": 704, \"num_hidden_layers\": 8, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 64, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, "
        "\"vocab_size\": 2048, \"max_position_embeddings\": 32768}";
    temp_folder_write_text(&folder, "config.json", config);
    temp_folder_copy(&folder, "models/demo", "model.safetensors");
    int opened = open_model(state, folder.path);
    temp_folder_destroy(&folder);
    return opened;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    struct sl_arena_stats stats;
    sl_arena_get_stats(f->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&f->arena);
    sl_runtime_close(&f->runtime);
    free(f->plan);
    free(f);
    return 0;
}

static void make_plan(struct fixture *f, const char *text, int64_t n_prompt) {
    struct sl_recipe recipe;
    struct sl_kv_geometry geometry = sl_model_geometry(f->runtime.config);
    assert_int_equal(sl_job_recipe(text, f->runtime.config, &recipe, NULL), SL_OK);
    assert_int_equal(sl_plan_make_local(&recipe, &geometry, n_prompt, 0, f->plan, NULL), SL_OK);
}

// Reads tokens[n_prompt] after those of `resumed` (or NULL), and joins.
static struct sl_session *read_tokens(struct fixture *f, const char *recipe, const int32_t *tokens, int64_t n_prompt,
                                      struct sl_session *resumed, const struct sl_join *joins, int n_joins) {
    struct sl_error err = {0};
    make_plan(f, recipe, n_prompt);
    struct sl_reader_config config = {.plan = f->plan,
                                      .runtime = &f->runtime,
                                      .arena = f->arena,
                                      .tokens = tokens,
                                      .extra_slots = N_TOKENS,
                                      .resumed = resumed,
                                      .joins = joins,
                                      .n_joins = n_joins};
    struct sl_reader *reader;
    if (sl_reader_create(&config, &reader, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    for (bool done = false; !done;) {
        if (sl_reading_step(reader, &done, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
    }
    struct sl_session *session = sl_reader_take_session(reader);
    assert_int_equal(session->n_tokens, n_prompt);
    sl_reader_destroy(&reader);
    return session;
}

static uint8_t *body_of(const struct sl_session *session, size_t *bytes_out) {
    *bytes_out = sl_capsule_body_bytes(session);
    uint8_t *body = malloc(*bytes_out);
    copy_body(session, body);
    return body;
}

// A session of the same prompt holds, at the same positions, the bits that reading gives.
static void test_join_at_the_same_positions_has_the_bits_of_reading(void **state) {
    struct fixture *f = *state;
    struct sl_session *whole = read_tokens(f, "full", f->first, 650, NULL, NULL, 0);
    struct sl_session *begun = read_tokens(f, "full", f->first, 64, NULL, NULL, 0);
    const struct sl_join joins[] = {{whole, 100, 290, 100}, {whole, 390, 1, 390}, {whole, 449, 64, 449}};
    struct sl_session *joined = read_tokens(f, "full", f->first, 650, begun, joins, 3);
    size_t bytes[2];
    uint8_t *expected = body_of(whole, &bytes[0]), *body = body_of(joined, &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(body, expected, bytes[0]);
    free(expected);
    free(body);
    sl_session_destroy(&whole);
    sl_session_destroy(&joined);
}

struct distance {
    double k, v; // root of the squared error, as a share of the root of the squares
};

// Compares n rows of two sessions: of all heads of a layer.
static struct distance compare(struct fixture *f, const struct sl_session *a, uint32_t first_a,
                               const struct sl_session *b, uint32_t first_b, uint32_t n, int layer) {
    double error[2] = {0}, square[2] = {0};
    size_t n_values = (size_t)n * (size_t)a->geometry.head_dim;
    float *rows = malloc(4 * n_values * sizeof *rows);
    for (int head = 0; head < a->geometry.n_kv_heads; head++) {
        struct sl_kv kv_a = sl_session_kv(a, layer, head), kv_b = sl_session_kv(b, layer, head);
        f->runtime.ops->read_rows(&kv_a, first_a, first_a + n, rows, rows + n_values);
        f->runtime.ops->read_rows(&kv_b, first_b, first_b + n, rows + 2 * n_values, rows + 3 * n_values);
        for (size_t i = 0; i < 2 * n_values; i++) {
            double d = rows[i] - rows[2 * n_values + i], x = rows[2 * n_values + i];
            error[i >= n_values] += d * d;
            square[i >= n_values] += x * x;
        }
    }
    free(rows);
    return (struct distance){sqrt(error[0] / square[0]), sqrt(error[1] / square[1])};
}

/*
 * A text that was read at position 0 is joined at position 101 + i, and compared with the same text read there by a session that holds
 * nothing before it: its tokens attend to each other alone. Tiers may round to 8 bits on the way
 * to the next layer; a quantized page is quantized twice.
 */
static void test_join_equals_reading_the_text_alone_at_its_new_positions(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *recipe;
        double k, v; // at most
    } cases[] = {{"full", 0.01, 0.01}, {"full,format=int8", 0.02, 0.01}, {"full,format=int4", 0.2, 0.1}};
    enum { FIRST = 5, AT = 101, N = 379, SHIFT = AT - FIRST };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *recipe = cases[i].recipe;
        int32_t prompt[N_TOKENS];
        struct sl_session *second = read_tokens(f, recipe, f->second, 450, NULL, NULL, 0), *there;
        memcpy(prompt, f->first, sizeof prompt);
        memcpy(prompt + AT, f->second + FIRST, N * sizeof *prompt);
        struct sl_session *begun = read_tokens(f, recipe, prompt, 64, NULL, NULL, 0);
        const struct sl_join join = {second, FIRST, N, AT};
        struct sl_session *joined = read_tokens(f, recipe, prompt, 512, begun, &join, 1);

        make_plan(f, "full", SHIFT + 450);
        assert_int_equal(sl_plan_create_session(f->plan, 0, f->arena, &there, NULL), SL_OK);
        there->n_tokens = SHIFT; // the next token's position; no slot precedes it
        memcpy(prompt + SHIFT, f->second, 450 * sizeof *prompt);
        there = read_tokens(f, "full", prompt, SHIFT + 450, there, NULL, 0);
        for (int layer = 0; layer < joined->geometry.n_layers; layer++) {
            struct distance d = compare(f, joined, AT, there, FIRST, N, layer);
            assert_true(d.k <= cases[i].k && d.v <= cases[i].v);
            if (layer == 0 && i == 0) { // values that no attention precedes have the same bits
                assert_true(d.v == 0 && d.k < 0.0005);
            }
            // Without the rotation the keys are others.
            assert_true(compare(f, second, FIRST, there, FIRST, N, layer).k > 2 * cases[i].k);
        }
        sl_session_destroy(&second);
        sl_session_destroy(&joined);
        sl_session_destroy(&there);
    }
}

static void assert_refused(struct fixture *f, struct sl_session *begun, const char *recipe, int64_t n_prompt,
                           struct sl_join join, enum sl_status expected) {
    struct sl_error err = {0};
    struct sl_reader *reader;
    make_plan(f, recipe, n_prompt);
    struct sl_reader_config config = {.plan = f->plan,
                                      .runtime = &f->runtime,
                                      .arena = f->arena,
                                      .tokens = f->first,
                                      .resumed = begun,
                                      .joins = &join,
                                      .n_joins = 1};
    assert_int_equal(sl_reader_create(&config, &reader, &err), expected);
    assert_non_null(strstr(err.text, "join: "));
}

static void test_join_refuses_what_does_not_fit(void **state) {
    struct fixture *f = *state;
    struct sl_session *from = read_tokens(f, "full", f->second, 200, NULL, NULL, 0);
    struct sl_session *begun = read_tokens(f, "full", f->first, 64, NULL, NULL, 0);
    struct sl_session *evicted = read_tokens(f, "h2o,budget=96,chunk=128", f->first, 300, NULL, NULL, 0);
    assert_refused(f, begun, "full", 300, (struct sl_join){from, 0, 100, 63}, SL_ERR_INVALID);    // before its end
    assert_refused(f, begun, "full", 300, (struct sl_join){from, 0, 0, 100}, SL_ERR_INVALID);     // nothing
    assert_refused(f, begun, "full", 300, (struct sl_join){from, 101, 100, 100}, SL_ERR_INVALID); // beyond its tokens
    assert_refused(f, begun, "full", 200, (struct sl_join){from, 0, 100, 100},
                   SL_ERR_INVALID); // nothing is left to read
    assert_refused(f, begun, "h2o,budget=96,chunk=128", 300, (struct sl_join){from, 0, 9, 100}, SL_ERR_UNSUPPORTED);
    assert_refused(f, begun, "full", 300, (struct sl_join){evicted, 0, 9, 100}, SL_ERR_UNSUPPORTED);
    from->rope_set = 1;
    assert_refused(f, begun, "full", 300, (struct sl_join){from, 0, 9, 100}, SL_ERR_UNSUPPORTED);
    sl_session_destroy(&evicted);
    sl_session_destroy(&begun);
    sl_session_destroy(&from);
}

static void test_join_without_room_changes_nothing(void **state) {
    struct fixture *f = *state;
    struct sl_error err = {0};
    struct sl_session *from = read_tokens(f, "full", f->second, 200, NULL, NULL, 0);
    make_plan(f, "full", 300);
    struct sl_arena *arena;
    struct sl_session *begun;
    assert_int_equal(sl_arena_create_mapped((size_t)1 << 17, &arena, NULL), SL_OK);
    assert_int_equal(sl_plan_create_session(f->plan, 0, arena, &begun, NULL), SL_OK);
    const struct sl_join join = {from, 0, 150, 0};
    struct sl_reader_config config = {.plan = f->plan,
                                      .runtime = &f->runtime,
                                      .arena = arena,
                                      .tokens = f->first,
                                      .resumed = begun,
                                      .joins = &join,
                                      .n_joins = 1};
    struct sl_reader *reader;
    assert_int_equal(sl_reader_create(&config, &reader, &err), SL_OK);
    assert_true(sl_reader_joins(reader));
    assert_int_equal(sl_reader_join(reader, &err), SL_ERR_EXHAUSTED);
    assert_true(sl_reader_joins(reader));
    assert_int_equal(begun->n_tokens, 0);
    assert_int_equal(begun->layers[0].heads[0].n_slots, 0);
    sl_reader_destroy(&reader);
    sl_arena_destroy(&arena);
    sl_session_destroy(&from);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_join_at_the_same_positions_has_the_bits_of_reading, setup, teardown),
        cmocka_unit_test_setup_teardown(test_join_equals_reading_the_text_alone_at_its_new_positions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_join_equals_reading_the_text_alone_at_its_new_positions, setup_yarn,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_join_refuses_what_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_join_without_room_changes_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Prompts are cut into chunks, and their layers are passed on, at the right time and in order; with the demo model.
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
#include "engine/runner/reading.h"
#include "tests/unit/capsule_body.h"

#define MAX_TOKENS  2304
#define MAX_ROWS    768
#define ARENA_BYTES ((size_t)32 << 20)

struct fixture {
    struct sl_runtime runtime;
    struct sl_arena *arena;
    int32_t tokens[MAX_TOKENS];
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sl_runtime_config config = {
        .model_dir = "models/demo", .threads = 2, .max_rows = MAX_ROWS, .tokenizer = true};
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

// The record of a reading: where its chunks ended, which layers were passed on, and how many of them before the last chunk had been
// computed for all layers.
struct reading {
    int64_t ends[32];
    int n_ends;
    int layers[SL_MAX_LAYERS];
    size_t bytes[SL_MAX_LAYERS]; // that the layer held when it was passed on
    int n_layers, n_early;
};

static void note_layer(struct reading *reading, const struct sl_session *session, int layer) {
    reading->layers[reading->n_layers] = layer;
    reading->bytes[reading->n_layers++] = sl_capsule_layer_bytes(session, layer);
    int64_t before = reading->n_ends > 0 ? reading->ends[reading->n_ends - 1] : 0;
    reading->n_early += session->n_tokens == before; // the forward pass counts the chunk when it is through
}

// Reads the next chunk, and takes layers as they become final, as a worker that ships them does.
static enum sl_status read_chunk(struct fixture *f, struct sl_reader *reader, struct reading *out,
                                 struct sl_error *err) {
    struct sl_reading reading;
    enum sl_status status =
        sl_reading_begin(&reading, &f->runtime, sl_engine_activations(f->runtime.engine), &reader, 1, err);
    int layer;
    while (status == SL_OK && sl_reading_layer(&reading)) {
        while ((layer = sl_reader_take_final(reader)) >= 0) {
            note_layer(out, sl_reader_session(reader), layer);
        }
    }
    status = status == SL_OK ? sl_reading_end(&reading, err) : status;
    while (status == SL_OK && (layer = sl_reader_take_final(reader)) >= 0) {
        note_layer(out, sl_reader_session(reader), layer);
    }
    return status == SL_OK ? sl_reader_status(reader, err) : status;
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
    struct sl_reader_config reader_config = {
        .plan = plan, .runtime = &f->runtime, .arena = f->arena, .tokens = f->tokens};
    struct sl_reader *reader;
    assert_int_equal(sl_reader_create(&reader_config, &reader, &err), SL_OK);
    while (!sl_reader_is_done(reader)) {
        if (read_chunk(f, reader, &reading, &err) != SL_OK) {
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

static void assert_ends(struct reading reading, const int64_t *ends, int n) {
    assert_int_equal(reading.n_ends, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(reading.ends[i], ends[i]);
    }
}
#define ASSERT_ENDS(reading, ...)                                                                                      \
    assert_ends((reading), (const int64_t[]){__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

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
    // Budgets that need every layer: no layer is final before the end, not even one after them that keeps everything.
    reading = read_prompt(*state, "d2o,budget=128,chunk=128", 300);
    assert_int_equal(reading.n_early, 0);
    reading = read_prompt(*state, "d2o,budget=128,chunk=128,exempt=0-1+4", 300);
    assert_int_equal(reading.n_early, 2);
}

// ---- several prompts ------------------------------------------------------------------------------------------------

// With an arena of its own, so that what is left over in its pages depends on nothing else.
struct prompt {
    struct sl_arena *arena;
    struct sl_plan *plan;
    struct sl_reader *reader;
    const char *recipe;
    int64_t n_prompt;
};

static void open_prompt(struct fixture *f, struct prompt *prompt, const char *recipe_text, int64_t n_prompt) {
    struct sl_recipe recipe;
    struct sl_kv_geometry geometry = sl_model_geometry(f->runtime.config);
    *prompt = (struct prompt){.plan = malloc(sizeof *prompt->plan), .recipe = recipe_text, .n_prompt = n_prompt};
    assert_int_equal(sl_job_recipe(recipe_text, f->runtime.config, &recipe, NULL), SL_OK);
    assert_int_equal(sl_plan_make_local(&recipe, &geometry, n_prompt, 0, prompt->plan, NULL), SL_OK);
    assert_int_equal(sl_arena_create_mapped(ARENA_BYTES, &prompt->arena, NULL), SL_OK);
    // Prompts of other lengths are other texts.
    struct sl_reader_config config = {.plan = prompt->plan,
                                      .runtime = &f->runtime,
                                      .arena = prompt->arena,
                                      .tokens = f->tokens + (MAX_TOKENS - n_prompt)};
    assert_int_equal(sl_reader_create(&config, &prompt->reader, NULL), SL_OK);
}

static void close_prompt(struct prompt *prompt) {
    sl_reader_destroy(&prompt->reader);
    sl_arena_destroy(&prompt->arena);
    free(prompt->plan);
}

static uint8_t *body_of(struct sl_reader *reader, size_t *bytes_out) {
    *bytes_out = sl_capsule_body_bytes(sl_reader_session(reader));
    uint8_t *body = malloc(*bytes_out);
    copy_body(sl_reader_session(reader), body);
    return body;
}

// Reads a prompt; writes for every pass whether the last layer attended ('a') or not ('-').
static void watch_last_layer(struct fixture *f, struct sl_reader *reader, char *seen) {
    while (!sl_reader_is_done(reader)) {
        struct sl_reading reading;
        struct sl_activations *activations = sl_engine_activations(f->runtime.engine);
        assert_int_equal(sl_reading_begin(&reading, &f->runtime, activations, &reader, 1, NULL), SL_OK);
        for (bool more = true; more; more = more && sl_reading_layer(&reading)) {
            bool is_last = reading.next_layer + 1 == f->runtime.config->n_layers;
            if (is_last) {
                reading.pass.attends[0].out[0] = NAN;
            }
            more = sl_reading_attend(&reading);
            if (is_last) {
                *seen++ = isnan(reading.pass.attends[0].out[0]) ? '-' : 'a';
            }
        }
        assert_int_equal(sl_reading_end(&reading, NULL), SL_OK);
        assert_int_equal(sl_reader_status(reader, NULL), SL_OK);
    }
}

// Nothing follows the last layer's attention but what recipes measure.
static void test_reading_attends_in_the_last_layer_only_for_recipes_that_look(void **state) {
    const struct {
        const char *recipe, *passes;
    } cases[] = {
        {"full,chunk=128", "---"},
        {"streamingllm,budget=96,chunk=128", "---"},
        {"keydiff,budget=96,chunk=128", "---"},
        {"locret,budget=96,scope=tail:20,chunk=128", "----"},
        {"h2o,budget=96,chunk=128", "aaa"},
        {"h2o,budget=96,chunk=128,exempt=last", "---"},
        {"h2o,budget=96,scope=recent:8+tail:20,chunk=128", "aaaa"}, // later turns and steps evict by it
        {"tova,budget=96,chunk=128", "aaa"},
        {"tova,budget=96,when=end,chunk=128", "--a"},
        {"snapkv,budget=96,chunk=128", "--a"},
        {"snapkv,budget=96,scope=recent:32+tail:20,chunk=128", "--a-"},
        {"roco,budget=96,chunk=128", "aaa"},
        {"d2o,budget=96,chunk=128", "aaa"},
        {"kvzip,budget=0.3,chunk=128", "---aaa"}, // while it repeats the prompt
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct prompt prompt;
        char seen[16] = "";
        open_prompt(*state, &prompt, cases[i].recipe, 300);
        watch_last_layer(*state, prompt.reader, seen);
        if (strcmp(seen, cases[i].passes) != 0) {
            fail_msg("%s: %s", cases[i].recipe, seen);
        }
        close_prompt(&prompt);
    }
}

// A second reading: rows that repeat the prompt are read and dropped.
static void test_reader_repeats_the_prompt_and_drops_the_repetition(void **state) {
    struct fixture *f = *state;
    struct prompt prompt;
    open_prompt(f, &prompt, "kvzip,budget=0.3,chunk=128", 300);
    struct sl_session *session = sl_reader_session(prompt.reader);
    int64_t n_rows = 0, before = 0;
    for (bool done = false; !done;) {
        bool repeats = session->n_tokens == 300;
        n_rows += repeats ? sl_reader_next_tokens(prompt.reader) : 0;
        assert_in_range(sl_reader_next_tokens(prompt.reader), 1, 128);
        assert_int_equal(sl_reading_step(prompt.reader, &done, NULL), SL_OK);
        struct sl_reader_progress progress = sl_reader_get_progress(prompt.reader);
        assert_true(progress.done > before && progress.total == 596); // 4 sinks are not repeated
        assert_true(session->n_tokens <= 300 && (progress.repeated_ns > 0) == repeats);
        assert_true(done == (progress.done == 596));
        before = progress.done;
    }
    assert_true(n_rows > 296);
    assert_true(sl_reader_peak_bytes(prompt.reader) <= prompt.plan->prefill_peak_bytes);
    assert_true(sl_capsule_body_bytes(session) <= prompt.plan->capsule_bytes);
    int64_t held = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            assert_true(session->layers[l].heads[h].n_slots >= 4);
            held += session->layers[l].heads[h].n_slots;
        }
    }
    assert_int_equal(held, 90 * session->geometry.n_layers * session->geometry.n_kv_heads); // of all heads together
    close_prompt(&prompt);
}

static int32_t position_of(const struct sl_session *session, int layer, int head, uint32_t slot) {
    const struct sl_page_layout *layout = &session->layers[layer].work;
    const char *page = session->layers[layer].heads[head].pages[slot / SL_PAGE_SLOTS];
    return ((const int32_t *)(const void *)(page + layout->positions))[slot % SL_PAGE_SLOTS];
}

// Every head keeps the first 4 tokens and the newest 45 (half of its budget of 90), though all heads compete.
static void test_reader_keeps_protected_slots_when_all_heads_compete(void **state) {
    struct fixture *f = *state;
    struct prompt prompt;
    open_prompt(f, &prompt, "kvzip,budget=0.3,chunk=128,scope=sinks:4+recent:0.5", 300);
    for (bool done = false; !done;) {
        assert_int_equal(sl_reading_step(prompt.reader, &done, NULL), SL_OK);
    }
    const struct sl_session *session = sl_reader_session(prompt.reader);
    for (int l = 0; l < session->geometry.n_layers; l++) {
        assert_true(session->layers[l].work.has_positions);
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            uint32_t n = session->layers[l].heads[h].n_slots;
            assert_in_range(n, 49, 300);
            for (uint32_t i = 0; i < 45; i++) {
                assert_int_equal(position_of(session, l, h, n - 1 - i), 299 - i);
                assert_true(i >= 4 || position_of(session, l, h, i) == (int32_t)i);
            }
        }
    }
    close_prompt(&prompt);
}

static void assert_not_repeated(struct fixture *f, const struct sl_runtime *runtime, const char *text,
                                enum sl_status expected, const char *says) {
    struct sl_recipe recipe;
    struct sl_kv_geometry geometry = sl_model_geometry(f->runtime.config);
    struct sl_plan *plan = malloc(sizeof *plan);
    struct sl_error err = {0};
    struct sl_reader *reader;
    assert_int_equal(sl_job_recipe(text, f->runtime.config, &recipe, &err), SL_OK);
    assert_int_equal(sl_plan_make_local(&recipe, &geometry, 200, 0, plan, &err), SL_OK);
    struct sl_reader_config config = {.plan = plan, .runtime = runtime, .arena = f->arena, .tokens = f->tokens};
    assert_int_equal(sl_reader_create(&config, &reader, &err), expected);
    assert_non_null(strstr(err.text, says));
    free(plan);
}

static void test_reader_refuses_a_second_reading_that_cannot_be(void **state) {
    struct fixture *f = *state;
    struct sl_runtime other = f->runtime;
    struct sl_model_config config = *f->runtime.config;
    other.tokenizer = NULL;
    assert_not_repeated(f, &other, "kvzip,chunk=128", SL_ERR_PRECONDITION, "no tokenizer is loaded");
    other = f->runtime;
    other.config = &config;
    config.max_positions = 320;
    assert_not_repeated(f, &other, "kvzip,chunk=128", SL_ERR_INVALID, "exceed the model's 320 positions");
}

// Far into a prompt chunks are parts of the recipe's, unless statistics are summed chunk by chunk; no bit depends on it.
static void test_reader_cuts_smaller_far_into_a_prompt(void **state) {
    struct fixture *f = *state;
    ASSERT_ENDS(read_prompt(f, "h2o,budget=1024,chunk=512", 2304), 512, 1024, 1536, 2048, 2304);
    ASSERT_ENDS(read_prompt(f, "full,format=int4,chunk=512", 2304), 512, 1024, 1536, 1792, 2048, 2304);
    uint8_t *bodies[2];
    size_t bytes[2];
    const char *const recipes[2] = {"full,format=int4,chunk=512", "full,format=int4,chunk=64"}; // never cut smaller
    for (int i = 0; i < 2; i++) {
        struct prompt prompt;
        open_prompt(f, &prompt, recipes[i], 2304);
        for (bool done = false; !done;) {
            assert_int_equal(sl_reading_step(prompt.reader, &done, NULL), SL_OK);
        }
        bodies[i] = body_of(prompt.reader, &bytes[i]);
        close_prompt(&prompt);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(bodies[0], bodies[1], bytes[0]);
    free(bodies[0]);
    free(bodies[1]);
}

// The prompt has the bits that it has when it is read alone.
static void assert_same_as_alone(struct fixture *f, const struct prompt *prompt) {
    struct prompt alone;
    struct sl_error err = {0};
    size_t alone_bytes, bytes;
    open_prompt(f, &alone, prompt->recipe, prompt->n_prompt);
    for (bool done = false; !done;) {
        assert_int_equal(sl_reading_step(alone.reader, &done, &err), SL_OK);
    }
    uint8_t *expected = body_of(alone.reader, &alone_bytes), *body = body_of(prompt->reader, &bytes);
    assert_int_equal(bytes, alone_bytes);
    assert_memory_equal(body, expected, bytes);
    free(expected);
    free(body);
    close_prompt(&alone);
}

static const struct {
    const char *recipe;
    int64_t n_prompt;
} several[] = {{"full,chunk=128", 448},           {"full,format=int4,chunk=128", 100},
               {"h2o,budget=96,chunk=128", 300},  {"snapkv,budget=128,chunk=128", 513},
               {"d2o,budget=128,chunk=128", 200}, {"kvzip,budget=0.3,chunk=128,format=int4", 310}};
enum { N_SEVERAL = sizeof several / sizeof *several };

static void test_reading_of_several_prompts_has_the_bits_of_each_alone(void **state) {
    struct fixture *f = *state;
    struct prompt prompts[N_SEVERAL];
    struct sl_error err = {0};
    for (int i = 0; i < N_SEVERAL; i++) {
        open_prompt(f, &prompts[i], several[i].recipe, several[i].n_prompt);
    }
    int n_passes = 0;
    for (;; n_passes++) { // one pass over a chunk of everything that is left
        struct sl_reader *readers[N_SEVERAL];
        struct sl_reading reading;
        int n = 0;
        for (int i = 0; i < N_SEVERAL; i++) {
            if (!sl_reader_is_done(prompts[i].reader)) {
                readers[n++] = prompts[i].reader;
            }
        }
        if (n == 0) {
            break;
        }
        assert_int_equal(
            sl_reading_begin(&reading, &f->runtime, sl_engine_activations(f->runtime.engine), readers, n, &err), SL_OK);
        while (sl_reading_layer(&reading)) {
        }
        assert_int_equal(sl_reading_end(&reading, &err), SL_OK);
    }
    assert_int_equal(n_passes, 7); // chunks of the prompt of 513 tokens, the others beside them
    for (int i = 0; i < N_SEVERAL; i++) {
        assert_same_as_alone(f, &prompts[i]);
        close_prompt(&prompts[i]);
    }
}

// A pass stands still after any layer while another one runs from its first layer to its last.
static void test_reading_stands_still_while_another_pass_runs(void **state) {
    struct fixture *f = *state;
    struct sl_activations *beside;
    struct sl_error err = {0};
    assert_int_equal(sl_activations_create(f->runtime.engine, 320, &beside, &err), SL_OK);
    for (int stop = 1; stop < f->runtime.config->n_layers; stop += 2) {
        struct prompt outer, inner;
        struct sl_reading reading;
        open_prompt(f, &outer, "h2o,budget=96,chunk=512", 400);
        open_prompt(f, &inner, "full,format=int8,chunk=512", 300);
        assert_int_equal(sl_reading_begin(&reading, &f->runtime, beside, &inner.reader, 1, &err), SL_OK);
        struct sl_reading first;
        assert_int_equal(
            sl_reading_begin(&first, &f->runtime, sl_engine_activations(f->runtime.engine), &outer.reader, 1, &err),
            SL_OK);
        for (int layer = 0; layer < stop; layer++) {
            assert_true(sl_reading_layer(&first));
        }
        while (sl_reading_layer(&reading)) {
        }
        assert_int_equal(sl_reading_end(&reading, &err), SL_OK);
        while (sl_reading_layer(&first)) {
        }
        assert_int_equal(sl_reading_end(&first, &err), SL_OK);
        assert_same_as_alone(f, &outer);
        assert_same_as_alone(f, &inner);
        close_prompt(&outer);
        close_prompt(&inner);
    }
    sl_activations_destroy(&beside);
}

static void test_reading_goes_on_when_one_of_its_prompts_fails(void **state) {
    struct fixture *f = *state;
    struct prompt prompts[2];
    struct sl_reading reading;
    struct sl_error err = {0}, lost = {0};
    open_prompt(f, &prompts[0], "full", 200);
    open_prompt(f, &prompts[1], "d2o,budget=128", 300);
    struct sl_reader *readers[] = {prompts[0].reader, prompts[1].reader};
    assert_int_equal(
        sl_reading_begin(&reading, &f->runtime, sl_engine_activations(f->runtime.engine), readers, 2, &err), SL_OK);
    assert_true(sl_reading_layer(&reading));
    sl_fail(&lost, SL_ERR_PEER_LOST, "the receiver is gone");
    sl_reader_fail(prompts[0].reader, SL_ERR_PEER_LOST, &lost);
    while (sl_reading_layer(&reading)) {
    }
    assert_int_equal(sl_reading_end(&reading, &err), SL_OK);
    assert_int_equal(sl_reader_status(prompts[0].reader, &err), SL_ERR_PEER_LOST);
    assert_string_equal(err.text, lost.text);
    assert_false(sl_reader_is_done(prompts[0].reader));
    assert_same_as_alone(f, &prompts[1]);
    close_prompt(&prompts[0]);
    close_prompt(&prompts[1]);
}

static void test_reading_ends_early_when_all_of_its_prompts_fail(void **state) {
    struct fixture *f = *state;
    struct prompt prompt;
    struct sl_reading reading;
    struct sl_error err = {0}, lost = {0};
    open_prompt(f, &prompt, "full", 200);
    assert_int_equal(
        sl_reading_begin(&reading, &f->runtime, sl_engine_activations(f->runtime.engine), &prompt.reader, 1, &err),
        SL_OK);
    assert_true(sl_reading_layer(&reading));
    sl_fail(&lost, SL_ERR_PEER_LOST, "the receiver is gone");
    sl_reader_fail(prompt.reader, SL_ERR_PEER_LOST, &lost);
    assert_false(sl_reading_layer(&reading));
    assert_int_equal(sl_reading_end(&reading, &err), SL_OK);
    assert_int_equal(sl_reader_status(prompt.reader, NULL), SL_ERR_PEER_LOST);
    close_prompt(&prompt);
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
        // A recipe that workers are sent means the same to them, whatever profile they have.
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
    struct sl_reader_config config = {.plan = plan, .runtime = &f->runtime, .arena = f->arena, .tokens = f->tokens};
    assert_int_equal(sl_reader_create(&config, &reader, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "nowhere to put them"));
    free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_cuts_at_chunks_and_where_the_tail_begins),
        cmocka_unit_test(test_reader_never_cuts_the_window_that_decides),
        cmocka_unit_test(test_reader_cuts_smaller_far_into_a_prompt),
        cmocka_unit_test(test_reader_hands_on_layers_as_they_become_final),
        cmocka_unit_test(test_reading_attends_in_the_last_layer_only_for_recipes_that_look),
        cmocka_unit_test(test_reader_repeats_the_prompt_and_drops_the_repetition),
        cmocka_unit_test(test_reader_keeps_protected_slots_when_all_heads_compete),
        cmocka_unit_test(test_reader_refuses_a_second_reading_that_cannot_be),
        cmocka_unit_test(test_reading_of_several_prompts_has_the_bits_of_each_alone),
        cmocka_unit_test(test_reading_stands_still_while_another_pass_runs),
        cmocka_unit_test(test_reading_goes_on_when_one_of_its_prompts_fails),
        cmocka_unit_test(test_reading_ends_early_when_all_of_its_prompts_fail),
        cmocka_unit_test(test_reader_refuses_offloaded_layers_without_a_place_for_them),
        cmocka_unit_test(test_job_recipe_puts_the_models_layers_in_place),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

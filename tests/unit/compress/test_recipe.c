// SPDX-License-Identifier: Apache-2.0
// The grammar: what is read, what is refused and how it is said, and that text and struct are two forms of one thing.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "compress/recipe_internal.h"

static struct sl_recipe parse(const char *text) {
    struct sl_recipe recipe;
    struct sl_error err;
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    return recipe;
}

static void assert_amount_equal(const struct sl_amount *a, const struct sl_amount *b) {
    assert_int_equal(a->slots, b->slots);
    assert_true(a->ratio == b->ratio);
}

static void assert_recipe_equal(const struct sl_recipe *a, const struct sl_recipe *b) {
    assert_int_equal(a->score, b->score);
    assert_int_equal(a->sinks, b->sinks);
    assert_amount_equal(&a->recent, &b->recent);
    assert_amount_equal(&a->budget, &b->budget);
    assert_int_equal(a->when, b->when);
    assert_int_equal(a->format, b->format);
    assert_int_equal(a->n_ranges, b->n_ranges);
    for (int i = 0; i < a->n_ranges; i++) {
        assert_int_equal(a->ranges[i].from, b->ranges[i].from);
        assert_int_equal(a->ranges[i].to, b->ranges[i].to);
        assert_int_equal(a->ranges[i].format, b->ranges[i].format);
    }
    assert_int_equal(a->positions, b->positions);
    assert_int_equal(a->chunk_tokens, b->chunk_tokens);
}

static void assert_round_trip(const struct sl_recipe *recipe) {
    char text[SL_RECIPE_TEXT_BYTES], again[SL_RECIPE_TEXT_BYTES];
    sl_recipe_format(recipe, text, sizeof text);
    struct sl_recipe parsed = parse(text);
    assert_recipe_equal(recipe, &parsed);
    assert_string_equal(sl_recipe_format(&parsed, again, sizeof again), text);
    assert_true(sl_recipe_fingerprint(recipe) == sl_recipe_fingerprint(&parsed));
    sl_recipe_write(recipe, true, text, sizeof text); // the long form means the same
    parsed = parse(text);
    assert_recipe_equal(recipe, &parsed);
}

static void test_recipe_parses_every_axis(void **state) {
    (void)state;
    struct sl_recipe r = parse("score=aas,value=off,scope=sinks:4+recent:0.5,budget=512,layers=uniform,heads=uniform,"
                               "when=end,evicted=drop,format=f16/0-1:int4/2-:int2/-3:bf16,place=resident,"
                               "positions=slot,chunk=1024");
    struct sl_recipe expected = {
        .score = SL_SCORE_AAS,
        .sinks = 4,
        .recent = {.ratio = 0.5},
        .budget = {.slots = 512},
        .when = SL_WHEN_END,
        .format = SL_KV_F16,
        .ranges = {{0, 1, SL_KV_INT4}, {2, -1, SL_KV_INT2}, {0, 3, SL_KV_BF16}},
        .n_ranges = 3,
        .positions = SL_POSITION_SLOT,
        .chunk_tokens = 1024,
    };
    assert_recipe_equal(&r, &expected);
    assert_round_trip(&r);
}

static void test_recipe_defaults_are_full(void **state) {
    (void)state;
    struct sl_recipe full = parse("full"), defaults = sl_recipe_defaults();
    assert_recipe_equal(&full, &defaults);
    assert_int_equal(full.score, SL_SCORE_NONE);
    assert_int_equal(full.format, SL_KV_F16);
    assert_int_equal(full.chunk_tokens, 512);
    assert_false(sl_recipe_evicts(&full));
}

static void test_recipe_later_words_override_earlier(void **state) {
    (void)state;
    struct sl_recipe r = parse("h2o,budget=1024,budget=0.25");
    assert_true(r.budget.slots == 0 && r.budget.ratio == 0.25);
    r = parse("format=int4,chunk=64,h2o"); // a preset leaves format and chunk alone
    assert_int_equal(r.format, SL_KV_INT4);
    assert_int_equal(r.chunk_tokens, 64);
    r = parse("streamingllm,h2o"); // but takes over eviction as a whole
    struct sl_recipe h2o = parse("h2o");
    assert_recipe_equal(&r, &h2o);
    r = parse("h2o,full");
    assert_false(sl_recipe_evicts(&r));
    r = parse("h2o,scope=sinks:4");
    assert_true(r.sinks == 4 && r.recent.ratio == 0 && r.recent.slots == 0);
    r = parse("h2o,when=chunk+end");
    assert_int_equal(r.when, SL_WHEN_CHUNK);
    r = parse("h2o,when=end+chunk");
    assert_int_equal(r.when, SL_WHEN_CHUNK);
}

static void test_recipe_presets_round_trip_or_are_refused_by_name(void **state) {
    (void)state;
    int n_built = 0, n_presets = 0;
    for (const struct sl_preset *p = sl_recipe_presets(); p->name != NULL; p++, n_presets++) {
        struct sl_recipe recipe;
        struct sl_error err;
        if (p->built) {
            char text[SL_RECIPE_TEXT_BYTES];
            recipe = parse(p->name);
            assert_string_equal(sl_recipe_format(&recipe, text, sizeof text), p->name);
            struct sl_recipe spelled_out = parse(p->text);
            assert_recipe_equal(&recipe, &spelled_out);
            assert_round_trip(&recipe);
            n_built++;
            continue;
        }
        assert_int_equal(sl_recipe_parse(p->name, &recipe, &err), SL_ERR_UNSUPPORTED);
        char expected[128];
        snprintf(expected, sizeof expected, "recipe: preset %s is not built yet; built: full, streamingllm, h2o",
                 p->name);
        assert_string_equal(err.text, expected);
        // Its text is good grammar: refused for what is not built, not for what nobody knows.
        int status = sl_recipe_parse(p->text, &recipe, &err);
        if (status != SL_ERR_UNSUPPORTED) {
            fail_msg("%s: %s", p->name, err.text);
        }
    }
    assert_int_equal(n_built, 3);
    assert_int_equal(n_presets, 13);
}

static void test_recipe_refuses_with_reason(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum sl_status status;
        const char *says;
    } cases[] = {
        {"", SL_ERR_INVALID, "the text is empty"},
        {"h2o, budget=4", SL_ERR_INVALID, "byte 0x20 at offset 4"},
        {"h2o\n", SL_ERR_INVALID, "without spaces"},
        {"\xc3\xa9", SL_ERR_INVALID, "byte 0xc3 at offset 0"},
        {"h3o", SL_ERR_INVALID, "h3o is neither a preset nor axis=value; presets: full, streamingllm, h2o (not built"},
        {",full", SL_ERR_INVALID, "an empty word"},
        {"full,", SL_ERR_INVALID, "an empty word"},
        {"colour=red", SL_ERR_INVALID, "there is no axis colour; axes: score, value, scope, budget"},
        {"=red", SL_ERR_INVALID, "there is no axis ;"},
        {"score=mas", SL_ERR_UNSUPPORTED, "recipe: score=mas is not built yet; built: none, recency, aas"},
        {"score=max", SL_ERR_INVALID, "score=max is unknown; values: none, random, recency, aas, aqas"},
        {"score=", SL_ERR_INVALID, "score= is unknown"},
        {"score=aas:4", SL_ERR_INVALID, "nothing may follow aas"},
        {"score=aas+recency", SL_ERR_INVALID, "score=aas+recency is unknown"},
        {"value=caote", SL_ERR_UNSUPPORTED, "value=caote is not built yet; built: off"},
        {"scope=std:0.5", SL_ERR_UNSUPPORTED, "scope=std is not built yet; built: sinks, recent"},
        {"scope=sinks", SL_ERR_INVALID, "expected sinks:NUMBER"},
        {"scope=sinks/4", SL_ERR_INVALID, "expected sinks:NUMBER"},
        {"scope=sinks:", SL_ERR_INVALID, "scope=sinks:: expected a whole number"},
        {"scope=sinks:0", SL_ERR_INVALID, "scope=sinks:0: expected a whole number from 1"},
        {"scope=sinks:0.5", SL_ERR_INVALID, "expected a whole number"},
        {"scope=sinks:-4", SL_ERR_INVALID, "expected a whole number"},
        {"scope=sinks:4+", SL_ERR_INVALID, "scope= is unknown"},
        {"scope=recent:1.0", SL_ERR_INVALID, "a ratio (above 0 and below 1)"},
        {"scope=recent:0", SL_ERR_INVALID, "expected a whole number from 1"},
        {"budget=0", SL_ERR_INVALID, "budget=0: expected a whole number from 1"},
        {"budget=-1", SL_ERR_INVALID, "budget=-1: expected a number of slots (1 or more) or a ratio"},
        {"budget=-0.5", SL_ERR_INVALID, "budget=-0.5"},
        {"budget=0.0", SL_ERR_INVALID, "budget=0.0"},
        {"budget=1.5", SL_ERR_INVALID, "budget=1.5"},
        {"budget=nan", SL_ERR_INVALID, "budget=nan"},
        {"budget=inf", SL_ERR_INVALID, "budget=inf"},
        {"budget=1e400", SL_ERR_INVALID, "budget=1e400"},
        {"budget=1e-400", SL_ERR_INVALID, "budget=1e-400"},
        {"budget=0x1p-2", SL_ERR_INVALID, "budget=0x1p-2"},
        {"budget=0.5.5", SL_ERR_INVALID, "budget=0.5.5"},
        {"budget=e", SL_ERR_INVALID, "budget=e"},
        {"budget=.", SL_ERR_INVALID, "budget=."},
        {"budget=20%", SL_ERR_INVALID, "budget=20%"},
        {"budget=99999999999999999999", SL_ERR_INVALID, "expected a whole number from 1 to 16777216"},
        {"layers=d2o", SL_ERR_UNSUPPORTED, "layers=d2o is not built yet; built: uniform"},
        {"heads=adaptive", SL_ERR_UNSUPPORTED, "heads=adaptive is not built yet; built: uniform"},
        {"when=step", SL_ERR_UNSUPPORTED, "when=step is not built yet; built: chunk, end"},
        {"when=", SL_ERR_INVALID, "when= is unknown"},
        {"evicted=merge", SL_ERR_UNSUPPORTED, "evicted=merge is not built yet; built: drop"},
        {"format=int3", SL_ERR_INVALID, "format=int3 is unknown; formats: f32, f16"},
        {"format=f16/0-1", SL_ERR_INVALID, "expected FROM-TO:FORMAT"},
        {"format=f16/1:int4", SL_ERR_INVALID, "expected FROM-TO:FORMAT"},
        {"format=f16/3-1:int4", SL_ERR_INVALID, "last layer 1: expected a whole number from 3"},
        {"format=f16/0-256:int4", SL_ERR_INVALID, "from 0 to 255"},
        {"format=f16/0-1:int5", SL_ERR_INVALID, "format=int5 is unknown"},
        {"place=offload/1-", SL_ERR_UNSUPPORTED, "place=offload is not built yet; built: resident"},
        {"retrieve=near", SL_ERR_UNSUPPORTED, "retrieve=near is not built yet, nor is any other value of retrieve"},
        {"retrieve=far", SL_ERR_INVALID, "values: near, pull (built: none of them)"},
        {"positions=rope", SL_ERR_INVALID, "positions=rope is unknown; values: original, slot"},
        {"chunk=100", SL_ERR_INVALID, "chunk=100 is not a multiple of 64; try chunk=64"},
        {"chunk=0", SL_ERR_INVALID, "chunk=0: expected a whole number from 64 to 8192"},
        {"chunk=16384", SL_ERR_INVALID, "from 64 to 8192"},
        // combinations
        {"score=aas,budget=64", SL_ERR_INVALID, "budget does not say when to evict"},
        {"budget=64,when=chunk", SL_ERR_INVALID, "budget needs a score"},
        {"when=chunk", SL_ERR_INVALID, "when=chunk has nothing to evict without a budget"},
        {"h2o,budget=off", SL_ERR_INVALID, "without a budget"},
        {"score=aas", SL_ERR_INVALID, "score=aas evicts nothing without a budget"},
        {"scope=sinks:4", SL_ERR_INVALID, "scope protects from nothing"},
        {"streamingllm,budget=4", SL_ERR_INVALID,
         "budget=4 is not above what scope protects (4 sinks + 0 recent = 4 slots)"},
        {"h2o,scope=sinks:4+recent:60,budget=64", SL_ERR_INVALID, "(4 sinks + 60 recent = 64 slots)"},
        {"h2o,scope=sinks:4+recent:0.5,budget=8", SL_ERR_INVALID, "(4 sinks + 4 recent = 8 slots)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_recipe recipe, before;
        struct sl_error err = {0};
        memset(&recipe, 0x5a, sizeof recipe);
        before = recipe;
        enum sl_status status = sl_recipe_parse(cases[i].text, &recipe, &err);
        if (status != cases[i].status || strstr(err.text, cases[i].says) == NULL) {
            fail_msg("\"%s\": status %d, said \"%s\", expected \"%s\"", cases[i].text, status, err.text, cases[i].says);
        }
        assert_memory_equal(&recipe, &before, sizeof recipe);
        assert_int_equal(sl_recipe_parse(cases[i].text, &recipe, NULL), cases[i].status);
    }
}

static void test_recipe_refuses_long_text_and_many_ranges(void **state) {
    (void)state;
    char text[2048];
    struct sl_recipe recipe;
    struct sl_error err;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "longer than 1023 bytes"));
    text[1023] = '\0';
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "neither a preset"));
    strcpy(text, "format=f16");
    for (int i = 0; i <= SL_MAX_FORMAT_RANGES; i++) {
        strcat(text, "/0-1:int4");
    }
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "more than 16 layer ranges"));
}

static struct sl_amount random_amount(void) {
    switch (rand() % 4) {
    case 0:
        return (struct sl_amount){.slots = 1 + rand() % 3000};
    case 1:
        return (struct sl_amount){.ratio = (double)(1 + rand() % 99) / 100};
    case 2:
        return (struct sl_amount){.ratio = ((double)rand() + 1) / ((double)RAND_MAX + 2)}; // needs all its digits
    default:
        return (struct sl_amount){0};
    }
}

static struct sl_recipe random_recipe(void) {
    struct sl_recipe r = {
        .score = (enum sl_score)(rand() % 3),
        .sinks = rand() % 2 ? rand() % 100 : 0,
        .recent = random_amount(),
        .budget = random_amount(),
        .when = (unsigned)(rand() % 3),
        .format = (enum sl_kv_format)(rand() % SL_KV_N_FORMATS),
        .n_ranges = rand() % 4 == 0 ? rand() % (SL_MAX_FORMAT_RANGES + 1) : 0,
        .positions = (enum sl_position_mode)(rand() % 2),
        .chunk_tokens = 64 * (1 + rand() % 128),
    };
    for (int i = 0; i < r.n_ranges; i++) {
        r.ranges[i].from = rand() % SL_MAX_LAYERS;
        r.ranges[i].to = rand() % 2 ? -1 : r.ranges[i].from + rand() % (SL_MAX_LAYERS - r.ranges[i].from);
        r.ranges[i].format = (enum sl_kv_format)(rand() % SL_KV_N_FORMATS);
    }
    return r;
}

static void test_recipe_format_and_parse_are_inverse(void **state) {
    (void)state;
    srand(1);
    int n_valid = 0;
    for (int i = 0; i < 20000; i++) {
        struct sl_recipe recipe = random_recipe();
        if (sl_recipe_check(&recipe, NULL) == SL_OK) {
            assert_round_trip(&recipe);
            n_valid++;
        }
    }
    assert_true(n_valid > 1000);
}

static void test_recipe_fits_its_buffer_at_its_longest(void **state) {
    (void)state;
    struct sl_recipe r = parse("score=recency,scope=sinks:16777000+recent:0.0000012345678901234567,budget=16777216,"
                               "when=chunk,format=bf16,positions=original,chunk=8192");
    r.n_ranges = SL_MAX_FORMAT_RANGES;
    for (int i = 0; i < SL_MAX_FORMAT_RANGES; i++) {
        r.ranges[i].from = r.ranges[i].to = 255;
        r.ranges[i].format = SL_KV_BF16;
    }
    assert_round_trip(&r);
    char small[10];
    assert_string_equal(sl_recipe_format(&r, small, sizeof small), "score=rec");
}

static void test_recipe_fingerprint_sees_what_changes_the_cache(void **state) {
    (void)state;
    static const char *const different[] = {
        "full",
        "full,format=f32",
        "full,format=int4",
        "full,format=f16/0-:int4",
        "full,positions=slot",
        "h2o",
        "h2o,budget=0.21",
        "h2o,budget=1024",
        "h2o,when=end",
        "h2o,scope=recent:0.25",
        "h2o,scope=sinks:4",
        "h2o,chunk=64",
        "h2o,positions=slot",
        "streamingllm",
        "streamingllm,budget=512",
    };
    enum { N = sizeof different / sizeof different[0] };
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < i; j++) {
            struct sl_recipe a = parse(different[i]), b = parse(different[j]);
            if (sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b)) {
                fail_msg("%s and %s have one fingerprint", different[i], different[j]);
            }
        }
    }
    struct sl_recipe a = parse("full"), b = parse("full,chunk=64"), c = parse("chunk=128,budget=off");
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b));
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&c));
    a = parse("h2o"), b = parse("scope=recent:0.50,when=end+chunk,budget=0.2,score=aas");
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b));
    // The same on every machine: of this text, and nothing else of the machine's.
    const char *text = "score=aas,scope=recent:0.5,budget=0.2,when=chunk,format=f16,positions=original,chunk=512";
    assert_true(sl_recipe_fingerprint(&a) == sl_hash(text, strlen(text), 1));
}

// Pieces of the grammar in any order, and bytes changed: never a crash, and what is accepted is in order.
static void test_recipe_survives_any_text(void **state) {
    (void)state;
    static const char *const pieces[] = {
        "score",
        "scope",
        "budget",
        "when",
        "format",
        "positions",
        "chunk",
        "place",
        "retrieve",
        "value",
        "=",
        "=",
        "=",
        ",",
        ",",
        ",",
        "+",
        ":",
        "/",
        "-",
        "aas",
        "recency",
        "sinks:4",
        "recent:0.5",
        "0.2",
        "1024",
        "64",
        "chunk",
        "end",
        "int4",
        "f16",
        "0-1",
        "2-",
        "h2o",
        "full",
        "streamingllm",
        "roco",
        "off",
        "slot",
        "1e-5",
        "nan",
        "0",
        "99999999999999999999999",
        "h2o,",
        ",format=f16/0-1:int4",
        ",budget=",
        ",scope=sinks:4+recent:",
    };
    srand(2);
    int n_accepted = 0;
    for (int i = 0; i < 100000; i++) {
        char text[512] = "";
        for (int n = 1 + rand() % 8; n > 0; n--) {
            strcat(text, pieces[(size_t)rand() % (sizeof pieces / sizeof pieces[0])]);
        }
        if (rand() % 4 == 0) {
            text[(size_t)rand() % strlen(text)] = (char)(rand() % 256);
        }
        struct sl_recipe recipe;
        struct sl_error err = {0};
        char *exact = strdup(text); // so that a sanitizer sees a read beyond the end
        enum sl_status status = sl_recipe_parse(exact, &recipe, &err);
        free(exact);
        if (status == SL_OK) {
            assert_round_trip(&recipe);
            n_accepted++;
        } else {
            assert_true(status == SL_ERR_INVALID || status == SL_ERR_UNSUPPORTED);
            assert_int_equal(strncmp(err.text, "recipe: ", 8), 0);
        }
    }
    assert_true(n_accepted > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipe_parses_every_axis),
        cmocka_unit_test(test_recipe_defaults_are_full),
        cmocka_unit_test(test_recipe_later_words_override_earlier),
        cmocka_unit_test(test_recipe_presets_round_trip_or_are_refused_by_name),
        cmocka_unit_test(test_recipe_refuses_with_reason),
        cmocka_unit_test(test_recipe_refuses_long_text_and_many_ranges),
        cmocka_unit_test(test_recipe_format_and_parse_are_inverse),
        cmocka_unit_test(test_recipe_fits_its_buffer_at_its_longest),
        cmocka_unit_test(test_recipe_fingerprint_sees_what_changes_the_cache),
        cmocka_unit_test(test_recipe_survives_any_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

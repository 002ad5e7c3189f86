// SPDX-License-Identifier: Apache-2.0
// The grammar: accepted and refused texts, error messages, and that text and struct are two forms of one recipe.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/internal.h"
#include "round_trip.h"

static void test_recipe_parses_every_axis_of_eviction(void **state) {
    (void)state;
    struct sl_recipe r =
        parsed_recipe("score=mas,value=fastcaote,scope=sinks:4+recent:0.25+std:0.125+stabilizers:9+tail:7,"
                      "budget=512,layers=pyramid,exempt=0-2+5+last,heads=layer,when=chunk+end+step,"
                      "evicted=drop,format=f16/0-1:bf16/2-:f32/-3:bf16,place=resident,"
                      "positions=slot,chunk=1024");
    struct sl_recipe expected = sl_recipe_default;
    expected.score = SL_SCORE_MAS;
    expected.value = SL_VALUE_FASTCAOTE;
    expected.sinks = 4;
    expected.recent.ratio = 0.25;
    expected.std = 0.125;
    expected.stabilizers = 9;
    expected.tail = 7;
    expected.budget.slots = 512;
    expected.layers = SL_LAYERS_PYRAMID;
    expected.exempt.bits[0] = 0x27;
    expected.exempt_last = true;
    expected.heads = SL_HEADS_LAYER;
    expected.when = SL_WHEN_CHUNK | SL_WHEN_STEP;
    expected.n_ranges = 3;
    expected.ranges[0].from = 0, expected.ranges[0].to = 1, expected.ranges[0].format = SL_KV_BF16;
    expected.ranges[1].from = 2, expected.ranges[1].to = -1, expected.ranges[1].format = SL_KV_F32;
    expected.ranges[2].from = 0, expected.ranges[2].to = 3, expected.ranges[2].format = SL_KV_BF16;
    expected.positions = SL_POSITION_SLOT;
    expected.chunk_tokens = 1024;
    assert_recipe_equal(&r, &expected);
    assert_round_trip(&r);

    r = parsed_recipe(
        "score=snapkv,value=caote-heads,scope=recent:64,window=48,pool=avg:5,budget=0.5,heads=adaptive,when=end");
    expected = sl_recipe_default;
    expected.score = SL_SCORE_SNAPKV;
    expected.value = SL_VALUE_CAOTE_HEADS;
    expected.recent.slots = 64;
    expected.window = 48;
    expected.pool = SL_POOL_AVG;
    expected.pool_kernel = 5;
    expected.budget.ratio = 0.5;
    expected.heads = SL_HEADS_ADAPTIVE;
    expected.when = SL_WHEN_END;
    assert_recipe_equal(&r, &expected);
    assert_round_trip(&r);

    r = parsed_recipe("score=aas,budget=0.2,layers=d2o-minmax,when=end+step,evicted=merge:0.7");
    assert_true(r.layers == SL_LAYERS_D2O_MINMAX && r.when == (SL_WHEN_END | SL_WHEN_STEP));
    assert_true(r.evicted == SL_EVICTED_MERGE && r.merge_beta == 0.7);
    assert_round_trip(&r);
    r = parsed_recipe("score=random,budget=0.2,when=chunk,seed=18446744073709551615");
    assert_true(r.seed == UINT64_MAX);
    assert_round_trip(&r);
    r = parsed_recipe("score=snapkv,scope=recent:32,pool=none,budget=64,when=end,exempt=none");
    assert_true(r.pool == SL_POOL_NONE && r.pool_kernel == 1);
    assert_round_trip(&r);
}

static void test_recipe_parses_every_axis_of_retrieval(void **state) {
    (void)state;
    struct sl_recipe r = parsed_recipe("place=offload/1+3-5+9-,scope=sinks:8+recent:56,topk=64,channels=4,bits=4");
    struct sl_recipe expected = sl_recipe_default;
    expected.offload.bits[0] = 0x3a;
    expected.offload_from = 9;
    expected.sinks = 8;
    expected.recent.slots = 56;
    expected.topk = expected.keep = 64;
    expected.channels = 4;
    expected.dense_auto = true;
    expected.dense_format = SL_KV_INT4;
    assert_recipe_equal(&r, &expected);
    assert_round_trip(&r);
    r = parsed_recipe("place=offload/3-5+4-+5-");
    assert_true(r.offload.bits[0] == 0x8 && r.offload_from == 4); // said once is enough
    assert_true(r.topk == 128 && r.channels == 8 && r.retrieve == SL_RETRIEVE_NEAR && r.ahead == 0);
    assert_true(r.keep == 128 && r.scan == SL_SCAN_STORED && r.replicas == 1);
    assert_round_trip(&r);
    r = parsed_recipe("keep=7,place=offload/1-,retrieve=near,ahead=1,scan=int1,replicas=2");
    assert_true(r.ahead == 1 && r.keep == 7 && r.scan == SL_SCAN_INT1 && r.replicas == 2);
    assert_round_trip(&r);
    r = parsed_recipe("place=offload/1-,retrieve=pull,keep=0,scan=int8,format=int8");
    assert_true(r.retrieve == SL_RETRIEVE_PULL && r.keep == 0 && r.scan == SL_SCAN_INT8 && r.format == SL_KV_INT8);
    assert_round_trip(&r);
    r = parsed_recipe("tailorkv,topk=64"); // keep has not been named: it goes with topk
    assert_int_equal(r.keep, 64);
    assert_round_trip(&r);
    r = parsed_recipe("place=offload/sparse");
    assert_true(r.offload_auto && sl_recipe_offloads(&r));
    assert_round_trip(&r);
    struct sl_recipe one = parsed_recipe("tailorkv,bits=1"), named = parsed_recipe("tailorkv-1");
    assert_recipe_equal(&one, &named);
    r = parsed_recipe("tailorkv,place=resident,scope=sinks:4,h2o"); // a preset leaves nothing of another but its format
    assert_false(sl_recipe_offloads(&r));
    assert_true(r.topk == 0 && r.channels == 0 && r.retrieve == SL_RETRIEVE_NEAR && r.dense_auto);
    assert_round_trip(&r);
    r = parsed_recipe("tailorkv-near,keep=5,scan=int8,replicas=2,place=resident,scope=sinks:4,h2o,format=f16");
    struct sl_recipe h2o = parsed_recipe("h2o");
    assert_recipe_equal(&r, &h2o);
}

// A recipe thins the offloaded layers when they have a budget, and no other layers.
static void test_recipe_thins_the_layers_that_it_offloads(void **state) {
    (void)state;
    struct sl_recipe r = parsed_recipe("score=random,scope=recent:64,budget=0.5,when=chunk,place=offload/2-3,topk=16");
    assert_true(sl_recipe_thins(&r));
    for (int layer = 0; layer < 6; layer++) {
        assert_int_equal(sl_recipe_layer_thins(&r, layer), layer == 2 || layer == 3);
        assert_int_equal(sl_recipe_layer_is_offloaded(&r, layer), layer == 2 || layer == 3);
        assert_false(sl_recipe_layer_evicts(&r, layer));
    }
    r = parsed_recipe("place=offload/2-3,topk=16"); // without a budget all slots are kept there
    assert_false(sl_recipe_thins(&r));
    for (int layer = 0; layer < 6; layer++) {
        assert_false(sl_recipe_layer_thins(&r, layer));
    }
}

static void test_recipe_defaults_are_full(void **state) {
    (void)state;
    struct sl_recipe full = parsed_recipe("full"), defaults = sl_recipe_default;
    assert_recipe_equal(&full, &defaults);
    assert_int_equal(full.score, SL_SCORE_NONE);
    assert_int_equal(full.format, SL_KV_F16);
    assert_int_equal(full.chunk_tokens, 512);
    assert_false(sl_recipe_evicts(&full));
}

static void test_recipe_later_words_override_earlier(void **state) {
    (void)state;
    struct sl_recipe r = parsed_recipe("h2o,budget=1024,budget=0.25");
    assert_true(r.budget.slots == 0 && r.budget.ratio == 0.25);
    r = parsed_recipe("format=int4,chunk=64,h2o"); // a preset leaves format and chunk alone
    assert_int_equal(r.format, SL_KV_INT4);
    assert_int_equal(r.chunk_tokens, 64);
    r = parsed_recipe("streamingllm,h2o"); // but takes over eviction as a whole
    struct sl_recipe h2o = parsed_recipe("h2o");
    assert_recipe_equal(&r, &h2o);
    r = parsed_recipe("h2o,full");
    assert_false(sl_recipe_evicts(&r));
    r = parsed_recipe("h2o,scope=sinks:4");
    assert_true(r.sinks == 4 && r.recent.ratio == 0 && r.recent.slots == 0);
    r = parsed_recipe("h2o,when=chunk+end");
    assert_int_equal(r.when, SL_WHEN_CHUNK);
    r = parsed_recipe("h2o,when=end+chunk");
    assert_int_equal(r.when, SL_WHEN_CHUNK);
}

static void test_recipe_presets_round_trip(void **state) {
    (void)state;
    static const char *const every[] = {"full",           "streamingllm",   "h2o",
                                        "scissorhands",   "tova",           "snapkv",
                                        "roco",           "random",         "h2o+caote",
                                        "tova+caote",     "snapkv+caote",   "roco+caote",
                                        "h2o+fastcaote",  "tova+fastcaote", "snapkv+fastcaote",
                                        "roco+fastcaote", "pyramidkv",      "adakv",
                                        "keydiff",        "kvzip",          "d2o",
                                        "locret",         "tailorkv",       "tailorkv-1",
                                        "tailorkv-near"};
    const struct sl_preset *p = sl_recipe_presets();
    for (size_t i = 0; i < sizeof every / sizeof every[0]; i++, p++) {
        assert_string_equal(p->name, every[i]);
        char text[SL_RECIPE_TEXT_BYTES];
        struct sl_recipe recipe = parsed_recipe(p->name), spelled_out = parsed_recipe(p->text);
        assert_string_equal(sl_recipe_format(&recipe, text, sizeof text), p->name);
        bool kvzip = strcmp(p->name, "kvzip") == 0, later = kvzip || strcmp(p->name, "locret") == 0;
        assert_true(sl_recipe_serves_later(&recipe) == (!sl_recipe_evicts(&recipe) || later));
        bool offloads = strncmp(p->name, "tailorkv", strlen("tailorkv")) == 0;
        assert_true(sl_recipe_keeps_documents(&recipe) == (strcmp(p->name, "full") == 0 || kvzip || offloads));
        assert_recipe_equal(&recipe, &spelled_out);
        assert_round_trip(&recipe);
        const char *plus = strchr(p->name, '+'); // X+caote is X with value=caote, and nothing else
        if (plus) {
            snprintf(text, sizeof text, "%.*s,value=%s", (int)(plus - p->name), p->name, plus + 1);
            struct sl_recipe weighed = parsed_recipe(text);
            assert_recipe_equal(&recipe, &weighed);
        }
    }
    assert_null(p->name);
}

// A preset's name stands for every axis that it sets: what differs in one of them must not get its name.
static void test_recipe_presets_with_one_axis_changed_round_trip(void **state) {
    (void)state;
    static const char *const changes[] = {"score=aas",
                                          "score=mas",
                                          "value=caote",
                                          "value=fastcaote",
                                          "scope=sinks:5+recent:40",
                                          "scope=recent:40",
                                          "scope=recent:40+tail:5",
                                          "scope=recent:40+stabilizers:5",
                                          "window=16",
                                          "pool=max:5",
                                          "pool=avg:7",
                                          "pool=none",
                                          "seed=3",
                                          "budget=5000",
                                          "budget=0.3",
                                          "layers=pyramid",
                                          "layers=d2o-raw",
                                          "layers=uniform",
                                          "exempt=0-1",
                                          "exempt=last",
                                          "heads=layer",
                                          "heads=adaptive",
                                          "heads=uniform",
                                          "when=chunk",
                                          "when=end",
                                          "when=chunk+step",
                                          "evicted=merge",
                                          "evicted=merge:0.7",
                                          "evicted=drop",
                                          "format=int4",
                                          "bits=4",
                                          "place=offload/2-",
                                          "topk=5",
                                          "channels=5",
                                          "retrieve=pull",
                                          "retrieve=near",
                                          "ahead=1",
                                          "keep=0",
                                          "keep=129",
                                          "scan=int8",
                                          "replicas=2",
                                          "positions=slot",
                                          "positions=original",
                                          "chunk=64"};
    int n = 0;
    for (const struct sl_preset *p = sl_recipe_presets(); p->name != NULL; p++) {
        for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
            char text[128];
            struct sl_recipe recipe;
            snprintf(text, sizeof text, "%s,%s", p->name, changes[i]);
            if (sl_recipe_parse(text, &recipe, NULL) == SL_OK) {
                assert_round_trip(&recipe);
                n++;
            }
        }
    }
    assert_true(n > 300);
}

static void test_recipe_presets_keep_what_goes_with_any_method(void **state) {
    (void)state;
    char text[SL_RECIPE_TEXT_BYTES];
    struct sl_recipe r = parsed_recipe("random,seed=7,format=int4,chunk=128,random");
    assert_true(r.seed == 7 && r.format == SL_KV_INT4 && r.chunk_tokens == 128);
    assert_string_equal(sl_recipe_format(&r, text, sizeof text), "random,seed=7,format=int4,chunk=128");
    r = parsed_recipe("chunk=128,locret");
    assert_int_equal(r.chunk_tokens, 3072);
    r = parsed_recipe("locret,chunk=512");
    assert_string_equal(sl_recipe_format(&r, text, sizeof text), "locret,chunk=512");
    r = parsed_recipe("snapkv,window=16,pool=none,exempt=0,roco"); // all of it was of the other method
    assert_string_equal(sl_recipe_format(&r, text, sizeof text), "roco");
    r = parsed_recipe("snapkv,window=16,exempt=0-1,when=end+step");
    assert_string_equal(sl_recipe_format(&r, text, sizeof text),
                        "score=snapkv,scope=recent:32,window=16,budget=1024,exempt=0-1,when=end+step");
}

static void test_recipe_is_read_as_people_write_it(void **state) {
    (void)state;
    struct sl_recipe plain, written;
    char texts[2][256];
    assert_int_equal(sl_recipe_parse("h2o,budget=0.2,format=int4", &plain, NULL), SL_OK);
    assert_int_equal(sl_recipe_parse(" H2O , Budget=20%, FORMAT=int4 ", &written, NULL), SL_OK);
    assert_string_equal(sl_recipe_format(&written, texts[0], sizeof texts[0]),
                        sl_recipe_format(&plain, texts[1], sizeof texts[1]));
    assert_true(written.budget.ratio == 0.2);
}

static void test_recipe_refuses_long_text_and_many_ranges(void **state) {
    (void)state;
    char text[4096];
    struct sl_recipe recipe;
    struct sl_error err;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "longer than 2047 bytes"));
    text[2047] = '\0';
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "neither a preset"));
    strcpy(text, "format=f16");
    for (int i = 0; i <= SL_MAX_FORMAT_RANGES; i++) {
        strcat(text, "/0-1:int4");
    }
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "more than 16 layer ranges"));
}

static double random_ratio(void) {
    return rand() % 2 ? (double)(1 + rand() % 99) / 100 // or one that needs all its digits
                      : ((double)rand() + 1) / ((double)RAND_MAX + 2);
}

static struct sl_amount random_amount(void) {
    switch (rand() % 3) {
    case 0:
        return (struct sl_amount){.slots = 1 + rand() % 3000};
    case 1:
        return (struct sl_amount){.ratio = random_ratio()};
    default:
        return (struct sl_amount){0};
    }
}

static struct sl_layers random_layers(int most) {
    struct sl_layers layers = {0};
    for (int n = rand() % 6; n > 0; n--) {
        int from = rand() % most;
        for (int l = from; l < most && l <= from + rand() % 4; l++) {
            sl_layers_add(&layers, l);
        }
    }
    return layers;
}

static bool one_in(int n) {
    return rand() % n == 0;
}

static enum sl_kv_format random_format(void) { // of both halves, or a pair: 20 from 32 on
    int format = rand() % (SL_KV_N_FORMATS + 20);
    format += format < SL_KV_N_FORMATS ? 0 : 32 - SL_KV_N_FORMATS;
    return sl_kv_format_is_of_page((enum sl_kv_format)format) ? (enum sl_kv_format)format : random_format();
}

static void random_formats(struct sl_recipe *r) {
    r->format = random_format();
    r->n_ranges = one_in(4) ? rand() % (SL_MAX_FORMAT_RANGES + 1) : 0;
    for (int i = 0; i < r->n_ranges; i++) {
        r->ranges[i].from = rand() % SL_MAX_LAYERS;
        r->ranges[i].to = rand() % 2 ? -1 : r->ranges[i].from + rand() % (SL_MAX_LAYERS - r->ranges[i].from);
        r->ranges[i].format = random_format();
    }
    r->dense_auto = one_in(5);
    r->dense_format = r->dense_auto ? random_format() : (enum sl_kv_format)0;
}

// Values that the axes can have; sl_recipe_check() chooses among their combinations.
static struct sl_recipe random_recipe(void) {
    struct sl_recipe r = sl_recipe_default;
    random_formats(&r);
    r.positions = (enum sl_position_mode)(rand() % 2);
    r.chunk_tokens = 64 * (1 + rand() % 128);
    r.sinks = rand() % 2 ? rand() % 100 : 0;
    if (one_in(4)) { // retrieval
        r.offload_auto = one_in(3);
        r.offload_from = !r.offload_auto && one_in(2) ? 1 + rand() % (SL_MAX_LAYERS - 1) : -1;
        r.offload = r.offload_auto ? r.offload : random_layers(r.offload_from < 0 ? SL_MAX_LAYERS : r.offload_from);
        r.topk = rand() % 1000;
        r.channels = rand() % 100;
        r.retrieve = (enum sl_retrieve)(rand() % 2);
        r.ahead = rand() % 2;
        r.keep = one_in(3) ? r.topk : rand() % 1000;
        r.scan = (enum sl_scan)(rand() % 3);
        r.replicas = 1 + rand() % 2;
        r.recent.slots = rand() % 100;
        if (one_in(3)) { // of a budget
            r.score = one_in(2) ? SL_SCORE_CIS : SL_SCORE_RANDOM;
            r.budget.ratio = random_ratio();
            r.when = SL_WHEN_CHUNK;
        }
        return r;
    }
    r.score = (enum sl_score)(rand() % SL_N_SCORES);
    r.value = one_in(3) ? (enum sl_value)(rand() % (SL_VALUE_FASTCAOTE_HEADS + 1)) : SL_VALUE_OFF;
    r.recent = random_amount();
    r.std = one_in(4) ? random_ratio() : 0;
    r.stabilizers = one_in(6) ? rand() % 100 : 0;
    r.tail = one_in(4) ? rand() % 1000 : 0;
    if (r.score == SL_SCORE_SNAPKV) {
        r.window = 1 + rand() % 100;
        r.pool = (enum sl_pool)(rand() % 3);
        r.pool_kernel = r.pool == SL_POOL_NONE ? 1 : 3 + 2 * (rand() % 31);
    }
    r.seed = r.score == SL_SCORE_RANDOM ? (uint64_t)rand() << 33 ^ (uint64_t)rand() : 0;
    r.budget = random_amount();
    r.layers = one_in(3) ? (enum sl_split_layers)(rand() % (SL_LAYERS_PYRAMID + 1)) : SL_LAYERS_UNIFORM;
    r.exempt = one_in(3) ? random_layers(SL_MAX_LAYERS) : r.exempt;
    r.exempt_last = one_in(4);
    r.heads = one_in(3) ? (enum sl_split_heads)(rand() % 3) : SL_HEADS_UNIFORM;
    r.when = (unsigned)(rand() % 8);
    r.when &= r.when & SL_WHEN_CHUNK ? ~(unsigned)SL_WHEN_END : ~0u; // the last chunk is a chunk
    r.evicted = one_in(3) ? SL_EVICTED_MERGE : SL_EVICTED_DROP;
    r.merge_beta = r.evicted == SL_EVICTED_MERGE && rand() % 2 ? random_ratio() : r.merge_beta;
    return r;
}

static void test_recipe_format_and_parse_are_inverse(void **state) {
    (void)state;
    srand(1);
    int n_evicting = 0, n_offloading = 0;
    for (int i = 0; i < 100000; i++) {
        struct sl_recipe recipe = random_recipe();
        if (sl_recipe_check(&recipe, NULL) == SL_OK) {
            assert_round_trip(&recipe);
            n_evicting += sl_recipe_evicts(&recipe);
            n_offloading += sl_recipe_offloads(&recipe);
        }
    }
    assert_true(n_evicting > 1000);
    assert_true(n_offloading > 1000);
}

// A recipe is resolved once, by the process that knows the model; a process that reads a resolved recipe resolves
// nothing.
static void test_recipe_resolved_text_means_the_same(void **state) {
    (void)state;
    srand(3);
    int n = 0;
    for (int i = 0; i < 100000 || n < 1000; i++) {
        struct sl_recipe recipe = random_recipe();
        struct sl_layers dense = random_layers(40);
        int n_layers = 1 + rand() % SL_MAX_LAYERS;
        char text[SL_RECIPE_TEXT_BYTES];
        if (sl_recipe_check(&recipe, NULL) != SL_OK ||
            sl_recipe_resolve(&recipe, rand() % 2 ? &dense : NULL, n_layers, NULL) != SL_OK) {
            continue;
        }
        assert_round_trip(&recipe);
        sl_recipe_format(&recipe, text, sizeof text);
        struct sl_recipe read = parsed_recipe(text);
        assert_int_equal(sl_recipe_resolve(&read, NULL, n_layers, NULL), SL_OK);
        assert_recipe_equal(&recipe, &read);
        n++;
    }
}

static void test_recipe_fits_its_buffer_at_its_longest(void **state) {
    (void)state;
    struct sl_recipe r = parsed_recipe(
        "score=snapkv,value=fastcaote-heads,scope=sinks:16777000+recent:16+stabilizers:16777015+tail:16777215,"
        "window=16,pool=none,budget=0.0000012345678901234567,layers=pyramid,exempt=last,heads=layer,"
        "when=chunk+step,evicted=drop,positions=slot,chunk=8192");
    r.n_ranges = SL_MAX_FORMAT_RANGES;
    for (int i = 0; i < SL_MAX_FORMAT_RANGES; i++) {
        r.ranges[i].from = r.ranges[i].to = 255;
        r.ranges[i].format = SL_KV_BF16;
    }
    for (int l = 1; l < SL_MAX_LAYERS; l += 2) {
        sl_layers_add(&r.exempt, l);
    }
    assert_round_trip(&r);
    char small[10];
    assert_string_equal(sl_recipe_format(&r, small, sizeof small), "score=sna");
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
        "near",
        "pull",
        "ahead=1",
        "keep",
        "scan",
        "replicas=2",
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
        "snapkv",
        "d2o",
        "tailorkv",
        "locret,",
        "exempt",
        "last",
        "offload/",
        "sparse",
        "1-",
        "3+5-7",
        "pool",
        "max:7",
        "window",
        "merge:0.5",
        "evicted",
        "layers",
        "pyramid",
        "heads",
        "adaptive",
        "topk",
        "channels",
        "bits",
        "dense:int2",
        "+step",
        "std:0.1",
        "tail:10",
        "stabilizers:",
        "seed",
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
            assert_int_equal(status, SL_ERR_INVALID);
            assert_int_equal(strncmp(err.text, "recipe: ", 8), 0);
        }
    }
    assert_true(n_accepted > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipe_parses_every_axis_of_eviction),
        cmocka_unit_test(test_recipe_parses_every_axis_of_retrieval),
        cmocka_unit_test(test_recipe_thins_the_layers_that_it_offloads),
        cmocka_unit_test(test_recipe_defaults_are_full),
        cmocka_unit_test(test_recipe_later_words_override_earlier),
        cmocka_unit_test(test_recipe_presets_round_trip),
        cmocka_unit_test(test_recipe_presets_with_one_axis_changed_round_trip),
        cmocka_unit_test(test_recipe_presets_keep_what_goes_with_any_method),
        cmocka_unit_test(test_recipe_is_read_as_people_write_it),
        cmocka_unit_test(test_recipe_refuses_long_text_and_many_ranges),
        cmocka_unit_test(test_recipe_format_and_parse_are_inverse),
        cmocka_unit_test(test_recipe_resolved_text_means_the_same),
        cmocka_unit_test(test_recipe_fits_its_buffer_at_its_longest),
        cmocka_unit_test(test_recipe_survives_any_text),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Refused recipes: the message names the axis, the reason and the remedy. And the treatment of a model's layers.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/internal.h"

struct refusal {
    const char *text;
    enum sl_status status;
    const char *says;
};

static void assert_refusals(const struct refusal *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
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

static void test_recipe_names_a_budget_or_has_a_preset_s(void **state) {
    (void)state;
    assert_true(sl_recipe_names_budget("h2o,budget=0.5") && sl_recipe_names_budget("H2O, BUDGET=64"));
    assert_false(sl_recipe_names_budget("h2o") || sl_recipe_names_budget("h2o,format=int4"));
}

static void test_recipe_refuses_bad_grammar(void **state) {
    (void)state;
    static const struct refusal cases[] = {
        {"", SL_ERR_INVALID, "the text is empty"},
        {"h2o budget=4", SL_ERR_INVALID, "byte 0x20 at offset 3: a recipe is words joined by"},
        {"h2o\n", SL_ERR_INVALID, "byte 0x0a at offset 3"},
        {"\xc3\xa9", SL_ERR_INVALID, "byte 0xc3 at offset 0"},
        {"h3o", SL_ERR_INVALID, "h3o is neither a preset nor axis=value (did you mean h2o?); presets: full, "},
        {",full", SL_ERR_INVALID, "an empty word"},
        {"full,", SL_ERR_INVALID, "an empty word"},
        {"colour=red", SL_ERR_INVALID,
         "there is no axis colour; axes: score, value, scope, window, pool, seed, budget, layers"},
        {"=red", SL_ERR_INVALID, "there is no axis ;"},
        {"score=max", SL_ERR_INVALID, "score=max is unknown; values: none, random, recency, aas, aqas"},
        {"score=", SL_ERR_INVALID, "score= is unknown"},
        {"score=aas:4", SL_ERR_INVALID, ": may not follow aas"},
        {"score=aas+recency", SL_ERR_INVALID, "score=aas+recency is unknown"},
        {"scope=sinks", SL_ERR_INVALID, "expected sinks:NUMBER"},
        {"scope=sinks/4", SL_ERR_INVALID, "/ may not follow sinks"},
        {"scope=sinks:", SL_ERR_INVALID, "scope=sinks:: expected a whole number"},
        {"scope=sinks:0", SL_ERR_INVALID, "scope=sinks:0: expected a whole number from 1"},
        {"scope=sinks:0.5", SL_ERR_INVALID, "expected a whole number"},
        {"scope=sinks:-4", SL_ERR_INVALID, "expected a whole number"},
        {"scope=sinks:4+", SL_ERR_INVALID, "scope= is unknown"},
        {"scope=recent:1.0", SL_ERR_INVALID, "a ratio (above 0 and below 1, or 20%)"},
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
        {"budget=20%x", SL_ERR_INVALID, "budget=20%x"},
        {"budget=99999999999999999999", SL_ERR_INVALID, "expected a whole number from 1 to 16777216"},
        {"when=", SL_ERR_INVALID, "when= is unknown"},
        {"format=int5", SL_ERR_INVALID, "format=int5 is unknown; formats: f32, f16"},
        {"format=f16/0-1", SL_ERR_INVALID, "expected FROM-TO:FORMAT"},
        {"format=f16/1:int4", SL_ERR_INVALID, "expected FROM-TO:FORMAT"},
        {"format=f16/3-1:int4", SL_ERR_INVALID, "last layer 1: expected a whole number from 3"},
        {"format=f16/0-256:int4", SL_ERR_INVALID, "from 0 to 255"},
        {"format=f16/0-1:int5", SL_ERR_INVALID, "format=int5 is unknown"},
        {"positions=rope", SL_ERR_INVALID, "positions=rope is unknown; values: original, slot"},
        {"chunk=100", SL_ERR_INVALID, "chunk=100 is not a multiple of 64; try chunk=64"},
        {"chunk=0", SL_ERR_INVALID, "chunk=0: expected a whole number from 64 to 8192"},
        {"chunk=16384", SL_ERR_INVALID, "from 64 to 8192"},
        {"value=criticalkv", SL_ERR_INVALID, "values: off, caote, fastcaote, caote-heads, fastcaote-heads"},
        {"scope=std:1", SL_ERR_INVALID, "scope=std:1: expected a ratio (above 0 and below 1)"},
        {"scope=std:0", SL_ERR_INVALID, "scope=std:0: expected a ratio"},
        {"scope=stabilizers:0", SL_ERR_INVALID, "scope=stabilizers:0: expected a whole number from 1"},
        {"scope=tail:0.5", SL_ERR_INVALID, "scope=tail:0.5: expected a whole number from 1"},
        {"scope=middle:4", SL_ERR_INVALID, "values: sinks, recent, std, stabilizers, tail"},
        {"window=0", SL_ERR_INVALID, "window=0: expected a whole number from 1 to 8192"},
        {"pool=max", SL_ERR_INVALID, "expected max:NUMBER"},
        {"pool=max:1", SL_ERR_INVALID, "pool=max:1: expected a whole number from 3 to 63"},
        {"pool=avg:4", SL_ERR_INVALID, "pool=avg:4 has no middle; use an odd number, e.g. pool=avg:5"},
        {"pool=none:3", SL_ERR_INVALID, ": may not follow none"},
        {"seed=-1", SL_ERR_INVALID, "seed=-1: expected a whole number"},
        {"seed=18446744073709551616", SL_ERR_INVALID, "from 0 to 18446744073709551615"},
        {"layers=d20", SL_ERR_INVALID, "values: uniform, d2o, d2o-raw, d2o-minmax, pyramid"},
        {"heads=all", SL_ERR_INVALID, "values: uniform, adaptive, layer, global"},
        {"when=sometimes", SL_ERR_INVALID, "values: chunk, end, step"},
        {"exempt=", SL_ERR_INVALID, "expected layers joined by '+': N, N-M or last"},
        {"exempt=3-", SL_ERR_INVALID, "expected layers joined by '+': N, N-M or last"},
        {"exempt=1+first", SL_ERR_INVALID, "exempt=...first: expected layers"},
        {"exempt=256", SL_ERR_INVALID, "exempt: layer 256: expected a whole number from 0 to 255"},
        {"exempt=5-3", SL_ERR_INVALID, "exempt: last layer 3: expected a whole number from 5"},
        {"evicted=merge:0", SL_ERR_INVALID, "evicted=merge:0: expected a weight above 0 and up to 1"},
        {"evicted=merge:1.5", SL_ERR_INVALID, "evicted=merge:1.5: expected a weight"},
        {"evicted=drop:0.5", SL_ERR_INVALID, ": may not follow drop"},
        {"evicted=sold", SL_ERR_INVALID, "values: drop, merge"},
        {"format=f16/dense:int5", SL_ERR_INVALID, "format=int5 is unknown"},
        {"format=f16/dense:int2/0-1:int4", SL_ERR_INVALID, "nothing may follow dense; name it last"},
        {"format=f16/sparse:int2", SL_ERR_INVALID, "or dense:FORMAT"},
        {"bits=5", SL_ERR_INVALID, "bits=5: expected 1, 2, 3, 4 or 8"},
        {"bits=", SL_ERR_INVALID, "expected 1, 2, 3, 4 or 8"},
        {"place=offload", SL_ERR_INVALID, "expected offload/LAYERS, e.g. offload/1- or offload/sparse"},
        {"place=offload:1-", SL_ERR_INVALID, ": may not follow offload"},
        {"place=offload/dense", SL_ERR_INVALID, "place=...dense: expected layers joined by '+': N, N-M or N-"},
        {"place=offload/1-2+last", SL_ERR_INVALID, "expected layers"},
        {"place=resident/1", SL_ERR_INVALID, "/ may not follow resident"},
        {"place=disk", SL_ERR_INVALID, "values: resident, offload"},
        {"retrieve=far", SL_ERR_INVALID, "retrieve=far is unknown; values: near, pull"},
        {"ahead=2", SL_ERR_INVALID, "ahead=2: expected a whole number from 0 to 1"},
        {"keep=-1", SL_ERR_INVALID, "keep=-1: expected a whole number from 0 to 16777216"},
        {"keep=topk", SL_ERR_INVALID, "keep=topk: expected a whole number from 0"},
        {"scan=f16", SL_ERR_INVALID, "scan=f16 is unknown; values: stored, int8, int1"},
        {"replicas=0", SL_ERR_INVALID, "replicas=0: expected a whole number from 1 to 2"},
        {"replicas=3", SL_ERR_INVALID, "replicas=3: expected a whole number from 1 to 2"},
        {"topk=0", SL_ERR_INVALID, "topk=0: expected a whole number from 1"},
        {"channels=513", SL_ERR_INVALID, "channels=513: expected a whole number from 1 to 512"},
    };
    assert_refusals(cases, sizeof cases / sizeof cases[0]);
}

static void test_recipe_refuses_slips_of_the_pen(void **state) {
    (void)state;
    static const struct refusal cases[] = {
        {"  ", SL_ERR_INVALID, "the text is empty"},
        {"full, ", SL_ERR_INVALID, "an empty word"},
        {"h2o,budgt=4", SL_ERR_INVALID, "there is no axis budgt (did you mean budget?); axes: "},
        {"h2o,budget=100%", SL_ERR_INVALID, "or 20%"},
        {"h2o,budget=20%%", SL_ERR_INVALID, "or 20%"},
    };
    assert_refusals(cases, sizeof cases / sizeof cases[0]);
}

static void test_recipe_refuses_axes_without_budget(void **state) {
    (void)state;
    static const struct refusal cases[] = {
        {"score=aas,budget=64", SL_ERR_INVALID, "budget does not say when to evict"},
        {"budget=64,when=chunk", SL_ERR_INVALID, "budget needs a score"},
        {"when=chunk", SL_ERR_INVALID, "when=chunk has nothing to evict without a budget"},
        {"h2o,budget=off", SL_ERR_INVALID, "without a budget"},
        {"score=aas", SL_ERR_INVALID, "score=aas evicts nothing without a budget"},
        {"scope=sinks:4", SL_ERR_INVALID, "scope protects from nothing"},
        {"value=caote", SL_ERR_INVALID, "value means nothing without a budget; add budget=... or remove value"},
        {"layers=pyramid", SL_ERR_INVALID, "layers means nothing without a budget"},
        {"exempt=0", SL_ERR_INVALID, "exempt means nothing without a budget"},
        {"exempt=last", SL_ERR_INVALID, "exempt means nothing without a budget"},
        {"heads=layer", SL_ERR_INVALID, "heads means nothing without a budget"},
        {"evicted=merge", SL_ERR_INVALID, "evicted means nothing without a budget"},
        {"scope=tail:100", SL_ERR_INVALID, "scope=tail means nothing without a budget"},
        {"scope=stabilizers:100", SL_ERR_INVALID, "scope=stabilizers means nothing without a budget"},
        {"scope=std:0.1", SL_ERR_INVALID, "scope=std means nothing without a budget"},
        {"scope=recent:4", SL_ERR_INVALID, "scope protects from nothing without a budget"},
        {"when=end+step", SL_ERR_INVALID, "when=end has nothing to evict without a budget"},
    };
    assert_refusals(cases, sizeof cases / sizeof cases[0]);
}

static void test_recipe_refuses_budget_that_is_all_protected(void **state) {
    (void)state;
    static const struct refusal cases[] = {
        {"streamingllm,budget=4", SL_ERR_INVALID,
         "budget=4 is not above what scope protects (4 sinks + 0 recent = 4 slots)"},
        {"h2o,scope=sinks:4+recent:60,budget=64", SL_ERR_INVALID, "(4 sinks + 60 recent = 64 slots)"},
        {"h2o,scope=sinks:4+recent:0.5,budget=8", SL_ERR_INVALID, "(4 sinks + 4 recent = 8 slots)"},
        {"roco,scope=sinks:4+recent:10+std:0.5,budget=28", SL_ERR_INVALID,
         "(4 sinks + 10 recent + 14 std = 28 slots); raise budget or protect less"},
        {"h2o,scope=sinks:4+recent:10+stabilizers:60,budget=64", SL_ERR_INVALID,
         "(4 sinks + 60 stabilizers = 64 slots)"},
        {"locret,budget=2500", SL_ERR_INVALID, "scope=stabilizers:2500 is not below budget=2500"},
        {"locret,budget=64", SL_ERR_INVALID, "lower stabilizers or raise budget"},
        {"roco,scope=recent:0.6+std:0.4", SL_ERR_INVALID, "scope protects the whole budget"},
        {"snapkv,scope=recent:16", SL_ERR_INVALID,
         "window=32 reaches beyond the newest slots that scope protects (16)"},
        {"snapkv,scope=recent:0.5", SL_ERR_INVALID, "set scope=recent:32 or more slots, or a smaller window"},
        {"snapkv,window=33", SL_ERR_INVALID, "window=33 reaches beyond"},
        {"score=snapkv,budget=64,when=end", SL_ERR_INVALID, "window=32 reaches beyond"},
        {"snapkv,budget=32", SL_ERR_INVALID, "budget=32 is not above what scope protects (0 sinks + 32 recent"},
    };
    assert_refusals(cases, sizeof cases / sizeof cases[0]);
}

static void test_recipe_refuses_axes_that_do_not_fit(void **state) {
    (void)state;
    static const struct refusal cases[] = {
        {"d2o,when=chunk", SL_ERR_INVALID, "layers=d2o is D2O with eviction at chunks"},
        {"d2o,layers=d2o-raw,when=chunk+step", SL_ERR_INVALID, "layers=d2o-raw is D2O with eviction at chunks"},
        {"h2o,evicted=merge", SL_ERR_INVALID, "evicted=merge is D2O with eviction at chunks"},
        {"d2o,score=ltas", SL_ERR_INVALID, "layers=d2o needs attention added up over all rows"},
        {"d2o,score=aqas", SL_ERR_INVALID, "use score=aas or mas"},
        {"d2o,score=cis", SL_ERR_INVALID, "which score=cis does not keep"},
        {"h2o,scope=std:0.1", SL_ERR_INVALID, "scope=std needs deviations of attention, which score=aas does not have"},
        {"snapkv,scope=recent:32+std:0.1", SL_ERR_INVALID, "use score=mas, or remove std"},
        {"random,value=caote", SL_ERR_INVALID,
         "value=caote weighs values by attention, and score=random is not attention"},
        {"streamingllm,value=fastcaote", SL_ERR_INVALID, "score=recency is not attention"},
        {"locret,value=caote", SL_ERR_INVALID,
         "score=cis is not attention; use score=aas, aqas, ltas, mas, snapkv, reconstruct or reconstruct_sum"},
        {"h2o,value=caote-heads", SL_ERR_INVALID, "value=caote-heads needs the weights of every query head"},
        {"roco,value=fastcaote-heads", SL_ERR_INVALID, "use score=ltas or snapkv, or value=fastcaote"},
        {"scissorhands,value=caote-heads", SL_ERR_INVALID, "score=aqas keeps their mean"},
        {"h2o,window=16", SL_ERR_INVALID, "window=16 is of score=snapkv, and score=aas has no window"},
        {"window=16", SL_ERR_INVALID, "window=16 is of score=snapkv"},
        {"h2o,pool=avg:7", SL_ERR_INVALID, "pool=avg is of score=snapkv"},
        {"h2o,pool=none", SL_ERR_INVALID, "pool=none is of score=snapkv"},
        {"h2o,seed=1", SL_ERR_INVALID, "seed=1 is of score=random"},
        {"snapkv,scope=recent:128,window=65,chunk=64", SL_ERR_INVALID, "window=65 is longer than chunk=64"},
        {"h2o,scope=stabilizers:10,when=end", SL_ERR_INVALID, "scope=stabilizers protects at every eviction but"},
        {"h2o,when=step", SL_ERR_INVALID, "when=step alone leaves the prompt above its budget; add when=chunk+step"},
        {"h2o,when=chunk+step,format=int4", SL_ERR_INVALID, "layer 0 is int4: packed pages cannot be compacted"},
        {"h2o,when=chunk+step,format=f16/2-:int2", SL_ERR_INVALID, "layer 2 is int2"},
        {"d2o,format=f16/-3:int8,exempt=0-2", SL_ERR_INVALID, "layer 3 is int8"},
        {"adakv,when=chunk", SL_ERR_INVALID, "heads=adaptive moves slots between heads"},
        {"kvzip,when=chunk", SL_ERR_INVALID, "score=reconstruct is known when the prompt has been read twice"},
        {"kvzip,when=end+step", SL_ERR_INVALID, "use when=end alone"},
        {"kvzip,scope=tail:8", SL_ERR_INVALID, "heads=global could leave a head without a slot; add scope=sinks:4"},
        {"kvzip,layers=pyramid", SL_ERR_INVALID, "heads=global divides the budget over layers as well"},
        {"kvzip,heads=pages,layers=pyramid", SL_ERR_INVALID, "heads=pages divides the budget over layers as well"},
        {"kvzip,heads=pages,when=chunk", SL_ERR_INVALID, "use when=end alone"},
        {"kvzip,heads=page", SL_ERR_INVALID, "heads=page is unknown"},
        {"snapkv,heads=global", SL_ERR_INVALID, "heads=global evicts when no query is at hand, and score=snapkv"},
        {"h2o,heads=global,scope=sinks:4", SL_ERR_INVALID, "heads=global needs the scores of all layers"},
        {"adakv,when=end+step", SL_ERR_INVALID, "use when=end, or heads=uniform"},
    };
    assert_refusals(cases, sizeof cases / sizeof cases[0]);
}

static void test_recipe_refuses_offloading_that_does_not_fit(void **state) {
    (void)state;
    static const struct refusal cases[] = {
        {"place=offload/0-", SL_ERR_INVALID,
         "place=offload cannot hold layer 0: it attends densely, and no layer before it predicts its query"},
        {"place=offload/0+3", SL_ERR_INVALID, "offload from layer 1 on"},
        {"place=offload/-3", SL_ERR_INVALID, "cannot hold layer 0"},
        {"place=offload/1-,format=int4", SL_ERR_INVALID, "place=offload keeps no rows in int4, the format of layer 1"},
        {"place=offload/1+3-,format=f16/3-4:int2", SL_ERR_INVALID, "keeps no rows in int2, the format of layer 3"},
        {"place=offload/7,format=f16/5-:int1", SL_ERR_INVALID, "keep offloaded layers in f16, bf16, f32 or int8"},
        {"place=offload/3-7,format=f16/5-5:int8", SL_ERR_INVALID,
         "place=offload keeps all layers in one format, and layer 3 is f16, layer 5 int8"},
        {"score=aas,place=offload/1-,budget=0.5,when=chunk", SL_ERR_INVALID,
         "score=aas with place=offload and a budget"},
        {"random,place=offload/1-,budget=64", SL_ERR_INVALID, "budget=64 of offloaded layers"},
        {"random,place=offload/1-,when=end", SL_ERR_INVALID, "and not with when=end; use when=chunk"},
        {"random,place=offload/1-,when=chunk+step", SL_ERR_INVALID, "and not with when=step; use when=chunk"},
        {"random,place=offload/1-,heads=adaptive", SL_ERR_INVALID, "remove heads"},
        {"random,place=offload/1-,layers=pyramid", SL_ERR_INVALID, "remove layers"},
        {"random,place=offload/1-,exempt=2", SL_ERR_INVALID, "remove exempt"},
        {"random,place=offload/1-,scope=tail:8", SL_ERR_INVALID, "remove scope=tail"},
        {"random,place=offload/1-,scope=stabilizers:8", SL_ERR_INVALID, "remove scope=stabilizers"},
        {"random,place=offload/1-,scope=recent:0.5", SL_ERR_INVALID, "give recent in slots"},
        {"random,place=offload/1-,evicted=merge", SL_ERR_INVALID, "remove evicted=merge"},
        {"random,place=offload/1-,positions=slot", SL_ERR_INVALID, "use positions=original"},
        {"random,place=offload/1-,format=int8", SL_ERR_INVALID, "format=int8 of layer 1, which place=offload thins"},
        {"tailorkv,budget=0.2,score=aas,when=end", SL_ERR_INVALID, "use score=cis (or random), or no budget"},
        {"topk=128", SL_ERR_INVALID, "topk is about slots of offloaded layers, and no layer is offloaded"},
        {"channels=8", SL_ERR_INVALID, "channels is about slots of offloaded layers"},
        {"full,retrieve=pull", SL_ERR_INVALID, "retrieve is about slots of offloaded layers"},
        {"ahead=1", SL_ERR_INVALID, "ahead is about slots of offloaded layers"},
        {"keep=0", SL_ERR_INVALID, "keep is about slots of offloaded layers"},
        {"scan=int8", SL_ERR_INVALID, "scan is about slots of offloaded layers"},
        {"h2o,replicas=2", SL_ERR_INVALID, "add place=offload/... or remove replicas"},
        {"tailorkv,ahead=1", SL_ERR_INVALID, "use retrieve=near, or remove ahead"},
        {"tailorkv,topk=1048576", SL_ERR_INVALID, "topk=1048576 and keep=1048576 are more than 1048576 rows"},
        {"tailorkv,keep=1048449", SL_ERR_INVALID, "lower topk or keep"},
        {"h2o,topk=8", SL_ERR_INVALID, "add place=offload/... or remove topk"},
        {"place=offload/1-,scope=recent:0.5", SL_ERR_INVALID, "give recent in slots"},
        {"place=offload/1-,scope=tail:4", SL_ERR_INVALID, "scope=tail means nothing without a budget"},
        {"place=offload/1-,positions=slot", SL_ERR_INVALID, "positions=slot keeps keys unrotated"},
    };
    assert_refusals(cases, sizeof cases / sizeof cases[0]);
}

// The neighbours of what is refused.
static void test_recipe_accepts_what_fits(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h2o,scope=sinks:4+recent:60,budget=65",
        "locret,budget=2501",
        "random,place=offload/1-,budget=0.5,scope=sinks:4+recent:60",
        "tailorkv,score=cis,budget=0.5,when=chunk",
        "random,place=offload/1-,format=f16/0-0:int8",
        "roco,scope=sinks:4+recent:10+std:0.5,budget=30",
        "h2o,when=chunk+step,exempt=0,format=f16/0-0:int4",
        "d2o,exempt=last,format=f16/9-9:int4",
        "d2o,score=mas",
        "tova,value=fastcaote-heads",
        "snapkv,value=caote-heads,window=32,pool=avg:3",
        "roco,value=caote,heads=layer",
        "pyramidkv,heads=adaptive",
        "pyramidkv,when=chunk+step",
        "locret,when=chunk+step,layers=pyramid,exempt=0+last",
        "h2o,evicted=merge:1,when=end",
        "random,evicted=merge,when=end,heads=adaptive,seed=3",
        "place=offload/2-4,format=f16/5-:int2",
        "tailorkv,scope=sinks:4",
        "tailorkv,keep=1048448",
        "tailorkv,retrieve=near",
        "tailorkv-near,ahead=0,scan=int1,replicas=2",
        "place=offload/5-,format=f16/5-:int8",
        "full,retrieve=near",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct sl_recipe recipe;
        struct sl_error err;
        if (sl_recipe_parse(texts[i], &recipe, &err) != SL_OK) {
            fail_msg("%s: %s", texts[i], err.text);
        }
    }
}

// Fields of layers that are offloaded, which no text sets so.
static void test_recipe_check_bounds_fields_of_offloaded_layers(void **state) {
    (void)state;
    struct sl_recipe good, bad;
#define ASSERT_REFUSED(change)                                                                                         \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    assert_int_equal(sl_recipe_check(&bad, NULL), SL_ERR_INVALID)
    assert_int_equal(sl_recipe_parse("d2o", &good, NULL), SL_OK);
    ASSERT_REFUSED(bad.topk = 1);
    ASSERT_REFUSED(bad.keep = 1);
    assert_int_equal(sl_recipe_parse("tailorkv", &good, NULL), SL_OK);
    ASSERT_REFUSED(bad.offload_from = 0);
    ASSERT_REFUSED(sl_layers_add(&bad.offload, 0));
    ASSERT_REFUSED(bad.topk = 0);
    ASSERT_REFUSED(bad.keep = SL_RECIPE_KEEP_TOPK);
    ASSERT_REFUSED(bad.ahead = 1); // of retrieve=pull
    bad = good, bad.offload_auto = false, bad.offload_from = 3;
    assert_int_equal(sl_recipe_check(&bad, NULL), SL_OK);
#undef ASSERT_REFUSED
}

// --- layers of a model -------------------------------------------------------------------------------------------

static void assert_resolves_to(const char *text, const struct sl_layers *dense, int n_layers, const char *expected) {
    struct sl_recipe recipe, again;
    struct sl_error err;
    char resolved[SL_RECIPE_TEXT_BYTES];
    assert_int_equal(sl_recipe_parse(text, &recipe, &err), SL_OK);
    if (sl_recipe_resolve(&recipe, dense, n_layers, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    assert_string_equal(sl_recipe_format(&recipe, resolved, sizeof resolved), expected);
    again = recipe; // nothing is left that another profile could say
    assert_int_equal(sl_recipe_resolve(&again, NULL, n_layers, &err), SL_OK);
    assert_memory_equal(&again, &recipe, sizeof again);
}

static void test_recipe_resolve_puts_layers_in_place(void **state) {
    (void)state;
    struct sl_layers dense = {{0}};
    sl_layers_add(&dense, 1), sl_layers_add(&dense, 2), sl_layers_add(&dense, 5);
    assert_resolves_to("full", NULL, 8, "full");
    assert_resolves_to("h2o,exempt=0", &dense, 8, "score=aas,scope=recent:0.5,budget=0.2,exempt=0,when=chunk");
    assert_resolves_to("h2o,exempt=0-1+last", NULL, 8, "score=aas,scope=recent:0.5,budget=0.2,exempt=0-1+7,when=chunk");
    assert_resolves_to("tailorkv", NULL, 8,
                       "score=none,scope=sinks:8+recent:56,place=offload/1-7,retrieve=pull,topk=128,"
                       "channels=8,format=f16/0-0:int2");
    assert_resolves_to("tailorkv,bits=1", &dense, 8,
                       "score=none,scope=sinks:8+recent:56,place=offload/3-4+6-7,retrieve=pull,topk=128,channels=8,"
                       "format=f16/0-2:int1/5-5:int1");
    assert_resolves_to("format=f32/-5:bf16/dense:int4", &dense, 6, "full,format=f32/0-5:bf16/0-2:int4/5-5:int4");
    assert_resolves_to(
        "tailorkv-near,keep=64,scan=int8,replicas=2", NULL, 8,
        "score=none,scope=sinks:8+recent:56,place=offload/1-7,ahead=1,topk=128,keep=64,channels=8,scan=int8,"
        "replicas=2,format=f16/0-0:int2");
    assert_resolves_to("place=offload/2+5-", &dense, 8, "score=none,place=offload/2+5-7,topk=128,channels=8");
}

static void test_recipe_resolve_refuses_what_does_not_fit_the_model(void **state) {
    (void)state;
    struct sl_layers dense = {{0}}, every_other = {{0}};
    for (int l = 0; l < 40; l++) {
        sl_layers_add(&dense, l);
        sl_layers_add(&every_other, 2 * l);
    }
    const struct {
        const char *text;
        const struct sl_layers *dense;
        int n_layers;
        const char *says;
    } cases[] = {
        {"tailorkv", &dense, 32, "all 32 layers of the model are dense, none is left to offload"},
        {"tailorkv", NULL, 1, "none is left to offload"},
        {"tailorkv", &every_other, 80, "dense layers make more than 16 ranges"},
        {"bits=2,place=offload/1-", &dense, 32, "keeps no rows in int2, the format of layer 1"},
        {"bits=2,h2o,when=chunk+step", NULL, 32, "layer 0 is int2: packed pages cannot be compacted"},
        {"h2o,when=chunk+step,exempt=last,format=f16/30-:int2", NULL, 32, "layer 30 is int2"},
        {"h2o,exempt=32", NULL, 32, "exempt names layer 32, but the model has layers 0 to 31"},
        {"h2o,exempt=0-31", NULL, 32, "exempt names all 32 layers of the model"},
        {"h2o,exempt=0-30+last", NULL, 32, "budget has none to evict from"},
        {"place=offload/32", NULL, 32, "place names layer 32, but the model has layers 0 to 31"},
        {"place=offload/32-", NULL, 32, "place names layer 32"},
        {"format=f16/30-32:int4", NULL, 32, "format names layer 32"},
        {"full", NULL, 0, "a model of 0 layers"},
        {"full", NULL, 257, "a model of 257 layers; 1 to 256 are possible"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_recipe recipe, before;
        struct sl_error err = {0};
        assert_int_equal(sl_recipe_parse(cases[i].text, &recipe, &err), SL_OK);
        before = recipe;
        enum sl_status status = sl_recipe_resolve(&recipe, cases[i].dense, cases[i].n_layers, &err);
        if (status != SL_ERR_INVALID || strstr(err.text, cases[i].says) == NULL) {
            fail_msg("\"%s\": status %d, said \"%s\", expected \"%s\"", cases[i].text, status, err.text, cases[i].says);
        }
        assert_memory_equal(&recipe, &before, sizeof recipe);
    }
}

static void test_a_pair_has_two_formats(void **state) {
    (void)state;
    struct sl_recipe recipe;
    struct sl_error err = {0};
    assert_int_equal(sl_recipe_parse("format=k4v4", &recipe, &err), SL_ERR_INVALID); // that is int4
    assert_non_null(strstr(err.text, "two of 16, 8, 4, 3 and 2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pair_has_two_formats),
        cmocka_unit_test(test_recipe_names_a_budget_or_has_a_preset_s),
        cmocka_unit_test(test_recipe_refuses_bad_grammar),
        cmocka_unit_test(test_recipe_refuses_slips_of_the_pen),
        cmocka_unit_test(test_recipe_refuses_axes_without_budget),
        cmocka_unit_test(test_recipe_refuses_budget_that_is_all_protected),
        cmocka_unit_test(test_recipe_refuses_axes_that_do_not_fit),
        cmocka_unit_test(test_recipe_refuses_offloading_that_does_not_fit),
        cmocka_unit_test(test_recipe_accepts_what_fits),
        cmocka_unit_test(test_recipe_check_bounds_fields_of_offloaded_layers),
        cmocka_unit_test(test_recipe_resolve_puts_layers_in_place),
        cmocka_unit_test(test_recipe_resolve_refuses_what_does_not_fit_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

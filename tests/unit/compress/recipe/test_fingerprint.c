// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a recipe: by it capsules are found again, on whatever machine.
// And the recipes that documents may have.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "base/hash.h"
#include "round_trip.h"

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
        "h2o+caote",
        "h2o+caote,value=fastcaote",
        "tova+caote",
        "tova+caote,value=caote-heads",
        "tova",
        "tova,heads=uniform",
        "random",
        "random,seed=1",
        "snapkv",
        "snapkv,window=16",
        "snapkv,pool=avg:7",
        "snapkv,pool=max:5",
        "snapkv,pool=none",
        "pyramidkv",
        "adakv",
        "snapkv,exempt=0",
        "snapkv,exempt=0-1",
        "snapkv,exempt=last",
        "roco",
        "roco,scope=sinks:4+recent:10",
        "d2o",
        "d2o,layers=d2o-raw",
        "d2o,evicted=drop",
        "d2o,evicted=merge:0.7",
        "locret",
        "locret,scope=tail:100",
        "locret,scope=stabilizers:2500",
        "tailorkv",
        "tailorkv,bits=1",
        "place=offload/1-",
        "place=offload/1",
        "place=offload/1+3",
        "place=offload/1,format=int8",
    };
    enum { N = sizeof different / sizeof different[0] };
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < i; j++) {
            struct sl_recipe a = parsed_recipe(different[i]), b = parsed_recipe(different[j]);
            if (sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b)) {
                fail_msg("%s and %s have one fingerprint", different[i], different[j]);
            }
        }
    }
    struct sl_recipe a = parsed_recipe("full"), b = parsed_recipe("full,chunk=64"),
                     c = parsed_recipe("chunk=128,budget=off");
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b));
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&c));
    // Decode's options choose which tokens it attends to, and do not change the stored KV.
    a = parsed_recipe("place=offload/1-,retrieve=pull"),
    b = parsed_recipe(
        "place=offload/1-,topk=64,channels=3,ahead=1,keep=9,scan=int8,replicas=2,scope=sinks:8+recent:56");
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b));
    assert_int_equal(sl_recipe_resolve(&a, NULL, 6, NULL), SL_OK);
    assert_int_equal(sl_recipe_resolve(&b, NULL, 6, NULL), SL_OK);
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b));
    a = parsed_recipe("h2o"), b = parsed_recipe("scope=recent:0.50,when=end+chunk,budget=0.2,score=aas");
    assert_true(sl_recipe_fingerprint(&a) == sl_recipe_fingerprint(&b));
    // The same on every machine: of this text, and nothing else of the machine's.
    const char *text =
        "score=aas,value=off,scope=recent:0.5,window=32,pool=max:7,budget=0.2,layers=uniform,exempt=none,"
        "heads=uniform,when=chunk,evicted=drop,place=resident,positions=original,seed=0,format=f16,"
        "chunk=512";
    assert_true(sl_recipe_fingerprint(&a) == sl_hash(text, strlen(text), 2));
}

// Retaining heads keep a document in pages from which no question evicts.
static void test_recipe_of_documents(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool kept;
    } cases[] = {{"full,format=int4", true},
                 {"kvzip", true},
                 {"h2o,format=int4", false},
                 {"locret,budget=0.5", false},
                 {"locret,budget=0.5,format=int4", true},
                 {"locret,budget=0.5,format=k4v2", true},
                 {"locret,budget=0.5,format=int4/0-1:f16", false},
                 {"locret,budget=0.5,format=int4/0-1:int8", true},
                 {"locret,budget=0.5,format=int4/dense:int8", false}, // only the model knows its dense layers
                 {"tailorkv", true},
                 {"tailorkv-near,scan=int1", true},
                 {"tailorkv,score=cis,budget=0.5,when=chunk", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_recipe recipe = parsed_recipe(cases[i].text);
        if (sl_recipe_keeps_documents(&recipe) != cases[i].kept) {
            fail_msg("%s", cases[i].text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipe_fingerprint_sees_what_changes_the_cache),
        cmocka_unit_test(test_recipe_of_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// The default tier of a model: files whose weights bf16 would round get the tier that does not round.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/runtime/runtime.h"
#include "engine/tensor/cpu/tiers.h"

static const char *folder; // of tools/golden_gguf.py

static const char *tier_of(const char *type, const char *tier, enum sl_weight_format weights) {
    static const struct sl_ops *ops;
    char path[512];
    struct sl_runtime runtime;
    struct sl_error err = {0};
    snprintf(path, sizeof path, "%s/types/%s.gguf", folder, type);
    struct sl_runtime_config config = {.model_dir = path, .tier = tier, .weights = weights, .threads = 1};
    if (sl_runtime_open(&config, &runtime, &err) != SL_OK) {
        fail_msg("%s: %s", path, err.text);
    }
    ops = runtime.ops;
    sl_runtime_close(&runtime);
    return ops->name;
}

static void test_tier_of_files(void **state) {
    const struct sl_ops *fastest;
    (void)state;
    unsetenv("SLUICE_TIER");
    assert_int_equal(sl_ops_select(NULL, &fastest, NULL), SL_OK);
    const char *closer = strcmp(fastest->name, "amx") == 0 ? "amx2" : fastest->name;
    assert_string_equal(tier_of("F16", "auto", SL_WEIGHT_STORED), closer);
    assert_string_equal(tier_of("Q8_0", NULL, SL_WEIGHT_STORED), fastest->name); // codes lose more than bf16 would
    assert_string_equal(tier_of("Q4_1", NULL, SL_WEIGHT_STORED), fastest->name);
    assert_string_equal(tier_of("BF16", NULL, SL_WEIGHT_STORED), fastest->name);
    assert_string_equal(tier_of("F16", NULL, SL_WEIGHT_INT4), fastest->name);
    assert_string_equal(tier_of("F16", fastest->name, SL_WEIGHT_STORED), fastest->name);
    assert_int_equal(setenv("SLUICE_TIER", fastest->name, 1), 0);
    assert_string_equal(tier_of("F16", NULL, SL_WEIGHT_STORED), fastest->name);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tier_of_files)};
    folder = argc > 1 ? argv[1] : ".";
    return cmocka_run_group_tests(tests, NULL, NULL);
}

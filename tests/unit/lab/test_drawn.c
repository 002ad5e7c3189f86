// SPDX-License-Identifier: Apache-2.0
// Purpose: a random model whose weights the device computes is the one that is written to a file: the same logits, bit by bit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/bench/rig/cell.h"
#include "lab/bench/rig/synthetic.h"
#include "tests/unit/temp_folder.h"

static struct sl_model_config small(bool tied) {
    struct sl_model_config config;
    struct sl_error err;
    assert_int_equal(sl_synthetic_config("tiny", 2, &config, &err), SL_OK);
    config.tied_embeddings = tied;
    config.retaining_hidden = 16;
    return config;
}

// Returns the logits after a prompt, [n_vocab], on the emulated device.
static float *logits_of(const struct sl_rig_config *config, bool *drawn_out) {
    struct sl_rig rig;
    struct sl_error err = {0};
    struct sl_cell cell;
    double seconds;
    assert_int_equal(sl_cell_parse("prefill:70", &cell, &err), SL_OK);
    if (sl_rig_open(config, &rig, &err) != SL_OK || sl_rig_open_cell(&rig, &cell, &err) != SL_OK ||
        sl_rig_run(&rig, &seconds, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    size_t bytes = (size_t)rig.runtime.config->n_vocab * sizeof(float);
    float *logits = malloc(bytes);
    memcpy(logits, rig.logits, bytes);
    *drawn_out = rig.runtime.ops->draw != NULL;
    assert_true(sl_rig_most_bytes(&rig) >
                sl_model_memory_bytes(rig.runtime.model) - sl_model_embedding_bytes(rig.runtime.model));
    sl_rig_close_cell(&rig);
    sl_rig_close(&rig);
    return logits;
}

static void check(bool tied) {
    struct temp_folder folder = temp_folder_create();
    struct sl_model_config config = small(tied);
    struct sl_error err;
    bool draws;
    assert_int_equal(sl_synthetic_write(&config, SL_SYNTHETIC_WRITTEN, NULL, folder.path, &err), SL_OK);
    struct sl_rig_config from_file = {.model_dir = folder.path,
                                      .device = "emulated",
                                      .threads = 2,
                                      .chunk = SL_CELL_MAX_BATCH},
                         from_device = {
                             .geometry = &config, .device = "emulated", .threads = 2, .chunk = SL_CELL_MAX_BATCH};
    float *want = logits_of(&from_file, &draws), *got = logits_of(&from_device, &draws);
    assert_true(draws);
    assert_memory_equal(got, want, (size_t)config.n_vocab * sizeof *got);
    int n_zero = 0;
    for (int i = 0; i < config.n_vocab; i++) {
        n_zero += got[i] == 0.0f;
    }
    assert_true(n_zero < config.n_vocab / 2);
    free(want);
    free(got);
    temp_folder_destroy(&folder);
}

static void test_drawn_model_is_the_written_one(void **state) {
    (void)state;
    check(false);
    check(true);
}

// Checks that weights of a written model differ: constants would hide a wrong index.
static void test_drawn_weights_differ(void **state) {
    struct sl_model_config config = small(false);
    struct temp_folder folder = temp_folder_create();
    struct sl_error err;
    (void)state;
    assert_int_equal(sl_synthetic_write(&config, SL_SYNTHETIC_WRITTEN, NULL, folder.path, &err), SL_OK);
    char path[384];
    static uint16_t weights[1 << 14];
    snprintf(path, sizeof path, "%s/model.safetensors", folder.path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, -(long)sizeof weights, SEEK_END), 0);
    assert_int_equal(fread(weights, sizeof weights, 1, file), 1);
    fclose(file);
    int n_same = 0, n_negative = 0;
    for (int i = 1; i < 1 << 14; i++) {
        n_same += weights[i] == weights[i - 1];
        n_negative += weights[i] >> 15;
    }
    assert_true(n_same < 200);
    assert_true(n_negative > 7500 && n_negative < 8900);
    temp_folder_destroy(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drawn_model_is_the_written_one),
        cmocka_unit_test(test_drawn_weights_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

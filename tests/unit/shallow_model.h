// SPDX-License-Identifier: Apache-2.0
// Purpose: the demo model cut off after its first layers, for tests that read long prompts and compare bits.
#pragma once

#include "tests/unit/temp_folder.h"

static inline struct temp_folder shallow_model(int n_layers) {
    struct temp_folder folder = temp_folder_create();
    char text[2048] = {0};
    FILE *config = fopen("models/demo/config.json", "r");
    assert_non_null(config);
    assert_true(fread(text, 1, sizeof text - 1, config) > 0 && feof(config));
    fclose(config);
    char *layers = strstr(text, "\"num_hidden_layers\": 8");
    assert_true(layers && n_layers > 0 && n_layers < 8);
    *strchr(layers, '8') = (char)('0' + n_layers);
    temp_folder_write_text(&folder, "config.json", text);
    static const char *const others[] = {"model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        temp_folder_copy(&folder, "models/demo", others[i]);
    }
    return folder;
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: tokenizers for tests: the demo model's tokenizer.json, changed, loaded from a temporary folder.
#pragma once

#include <jansson.h>
#include <stdlib.h>

#include "tests/unit/temp_folder.h"
#include "engine/text/tokenizer/tokenizer.h"

static inline json_t *demo_json(void) {
    json_error_t cause;
    json_t *json = json_load_file("models/demo/tokenizer.json", 0, &cause);
    assert_non_null(json);
    return json;
}

// Load a folder with this tokenizer.json and, unless NULL, this tokenizer_config.json. Consumes `root`.
static inline enum sl_status load_json(json_t *root, const char *config, struct sl_tokenizer **tokenizer_out,
                                       struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    temp_folder_write_text(&folder, "tokenizer.json", text);
    if (config) {
        temp_folder_write_text(&folder, "tokenizer_config.json", config);
    }
    enum sl_status status = sl_tokenizer_load(folder.path, tokenizer_out, err);
    temp_folder_destroy(&folder);
    free(text);
    json_decref(root);
    return status;
}

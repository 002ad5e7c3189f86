// SPDX-License-Identifier: Apache-2.0
// Purpose: an answer of a model folder ends at every token that one of its documents names, and at known ends of turns.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/model.h"
#include "tests/unit/temp_folder.h"

#define REQUIRED                                                                                                       \
    "\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 100, "                     \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 300"

// Returns the ends of a model with these further documents, as "7 9 2 ".
static const char *ends_with(const char *config, const char *tokenizer_config, const char *tokenizer, const char *map) {
    static char text[200];
    struct temp_folder folder = temp_folder_create();
    struct sl_model_config c;
    struct sl_error err = {0};
    temp_folder_write_text(&folder, "config.json", config);
    if (tokenizer_config != NULL) {
        temp_folder_write_text(&folder, "tokenizer_config.json", tokenizer_config);
    }
    if (tokenizer != NULL) {
        temp_folder_write_text(&folder, "tokenizer.json", tokenizer);
    }
    if (map != NULL) {
        temp_folder_write_text(&folder, "special_tokens_map.json", map);
    }
    if (sl_model_config_load(folder.path, &c, &err) != SL_OK) {
        snprintf(text, sizeof text, "%s", err.text);
    } else {
        size_t n = 0;
        text[0] = '\0';
        for (int i = 0; i < c.ends.n; i++) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%d ", c.ends.ids[i]);
        }
    }
    temp_folder_destroy(&folder);
    return text;
}

#define TOKEN(id, content, special) "{\"id\": " #id ", \"content\": \"" content "\", \"special\": " #special "}"

// SmolLM2's config.json says 0 and its tokenizer <|im_end|>: an answer ends at either.
static void test_config_ends_are_those_of_all_documents(void **state) {
    (void)state;
    const char *config = "{" REQUIRED ", \"eos_token_id\": 0}";
    const char *decoder = "\"added_tokens_decoder\": {\"0\": {\"content\": \"<|endoftext|>\", \"special\": true}, "
                          "\"1\": {\"content\": \"<|im_start|>\", \"special\": true}, "
                          "\"2\": {\"content\": \"<|im_end|>\", \"special\": true}, "
                          "\"5\": {\"content\": \"<|end|>\", \"special\": false}, "
                          "\"6\": {\"content\": \"<stop>\", \"special\": false}, "
                          "\"9999\": {\"content\": \"<|eot_id|>\", \"special\": true}}"; // beyond the vocabulary
    const char *tokenizer =
        "{\"added_tokens\": [" TOKEN(0, "<|endoftext|>", true) ", " TOKEN(2, "<|im_end|>", true) ", " TOKEN(
            5, "<|end|>", false) ", " TOKEN(6, "<stop>", false) "], \"model\": {\"vocab\": "
                                                                "{\"a\": 7, \"<end_of_turn>\": "
                                                                "8}}}";
    char text[1000];
    assert_string_equal(ends_with(config, NULL, NULL, NULL), "0 ");
    snprintf(text, sizeof text, "{%s}", decoder);
    assert_string_equal(ends_with(config, text, NULL, NULL), "0 2 "); // known turn ends that are special
    snprintf(text, sizeof text, "{\"eos_token\": \"<|im_start|>\", %s}", decoder);
    assert_string_equal(ends_with(config, text, NULL, NULL), "0 1 2 "); // and whatever the tokenizer ends with
    snprintf(text, sizeof text, "{\"eos_token\": {\"content\": \"<stop>\"}, %s}", decoder);
    assert_string_equal(ends_with(config, text, NULL, NULL), "0 6 2 ");
    // Without added_tokens_decoder it is tokenizer.json that knows.
    assert_string_equal(ends_with(config, "{\"eos_token\": \"<stop>\"}", tokenizer, NULL), "0 6 2 ");
    assert_string_equal(ends_with(config, "{\"eos_token\": \"a\"}", tokenizer, NULL), "0 7 2 ");
    assert_string_equal(ends_with(config, "{\"eos_token\": \"nowhere\"}", tokenizer, NULL), "0 2 ");
    assert_string_equal(ends_with(config, NULL, tokenizer, "{\"eos_token\": {\"content\": \"a\"}}"), "0 7 2 ");
    snprintf(text, sizeof text, "{\"eos_token\": \"a\", %s}", decoder); // not among those
    assert_string_equal(ends_with(config, text, tokenizer, NULL), "0 7 2 ");
    assert_non_null(strstr(ends_with(config, "{\"eos_token\": ", NULL, NULL), "tokenizer_config.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_ends_are_those_of_all_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

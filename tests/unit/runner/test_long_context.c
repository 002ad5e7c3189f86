// SPDX-License-Identifier: Apache-2.0
/*
 * Which frequencies a conversation rotates keys with, where the model has other ones for long contexts (longrope): the
 * demo model with such a scaling, for contexts beyond 128 tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/runner/local.h"

#define CONFIG                                                                                                         \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 256, \"intermediate_size\": 704, "                   \
    "\"num_hidden_layers\": 8, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, "             \
    "\"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"vocab_size\": 2048, \"tie_word_embeddings\": true, "        \
    "\"max_position_embeddings\": 1024, \"torch_dtype\": \"bfloat16\", \"original_max_position_embeddings\": 128, "    \
    "\"rope_scaling\": {\"rope_type\": \"longrope\", \"attention_factor\": 1.0, \"short_factor\": [" ONES              \
    "], \"long_factor\": [" EIGHTS "]}}"
#define TIMES_32(x) x ", " x ", " x ", " x ", " x ", " x ", " x ", " x
#define ONES        TIMES_32("1, 1, 1, 1")
#define EIGHTS      TIMES_32("8, 8, 8, 8")

struct fixture {
    char folder[64];
    struct sl_local *local;
};

static int setup(void **state) {
    static struct fixture f;
    static const char *const files[] = {"model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    char here[512], from[640], to[128];
    snprintf(f.folder, sizeof f.folder, "/tmp/sluice-test-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(from, sizeof from, "%s/models/demo/%s", here, files[i]);
        snprintf(to, sizeof to, "%s/%s", f.folder, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/config.json", f.folder);
    FILE *file = fopen(to, "w");
    assert_non_null(file);
    fputs(CONFIG, file);
    assert_int_equal(fclose(file), 0);
    struct sl_local_config config = {.model_dir = f.folder, .threads = 1, .arena_bytes = (size_t)64 << 20};
    struct sl_error err = {0};
    if (sl_local_open(&config, &f.local, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    struct fixture *f = *state;
    char path[128];
    sl_local_close(&f->local);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", f->folder, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(f->folder), 0);
    return 0;
}

static enum sl_status turn(struct sl_conversation *conversation, int64_t n_prompt, int max_new_tokens,
                           struct sl_error *err) {
    int32_t prompt[512];
    for (int64_t i = 0; i < n_prompt; i++) {
        prompt[i] = (int32_t)(i * 37 % 1900) + 50;
    }
    struct sl_local_request request = {.prompt = prompt,
                                       .n_prompt = n_prompt,
                                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                                       .max_new_tokens = max_new_tokens,
                                       .ignore_eos = true};
    struct sl_local_result result = {0};
    enum sl_status status = sl_conversation_turn(conversation, &request, &result, err);
    free(result.text);
    return status;
}

// The set that a first turn of this many tokens gets, in a conversation of at most max_tokens.
static int set_of(struct fixture *f, int64_t max_tokens, int64_t n_prompt, int max_new_tokens) {
    struct sl_conversation *conversation;
    struct sl_error err = {0};
    assert_int_equal(sl_conversation_open(f->local, "full", max_tokens, &conversation, &err), SL_OK);
    if (turn(conversation, n_prompt, max_new_tokens, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    int set = sl_conversation_session(conversation)->rope_set;
    sl_conversation_close(&conversation);
    return set;
}

static void test_long_context_is_what_a_job_may_reach(void **state) {
    struct fixture *f = *state;
    assert_int_equal(set_of(f, 0, 120, 8), 0);
    assert_int_equal(set_of(f, 0, 120, 9), 1); // the answer may go beyond the original context
    assert_int_equal(set_of(f, 0, 1, 8), 0);
    assert_int_equal(set_of(f, 0, 1, 128), 1);
    assert_int_equal(set_of(f, 128, 20, 8), 0);
    assert_int_equal(set_of(f, 129, 20, 8), 1); // a later turn may
}

static void test_long_context_is_not_entered_by_a_later_turn(void **state) {
    struct fixture *f = *state;
    struct sl_conversation *conversation;
    struct sl_error err = {0};
    assert_int_equal(sl_conversation_open(f->local, "full", 0, &conversation, &err), SL_OK);
    assert_int_equal(turn(conversation, 100, 8, &err), SL_OK);
    assert_int_equal(turn(conversation, 20, 8, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "136 tokens"));
    assert_int_equal(turn(conversation, 12, 8, &err), SL_OK); // nothing had happened
    sl_conversation_close(&conversation);

    assert_int_equal(sl_conversation_open(f->local, "full", 512, &conversation, &err), SL_OK);
    assert_int_equal(turn(conversation, 100, 8, &err), SL_OK);
    assert_int_equal(turn(conversation, 200, 8, &err), SL_OK);
    sl_conversation_close(&conversation);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_context_is_what_a_job_may_reach),
        cmocka_unit_test(test_long_context_is_not_entered_by_a_later_turn),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

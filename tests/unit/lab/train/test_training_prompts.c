// SPDX-License-Identifier: Apache-2.0
// Purpose: the training prompts of heads as tokens: rows and tasks by turns, prompts that are too long, and what is refused.
// lab/sluice_eval/tests/test_training.py has the texts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/train/training_prompts.h"
#include "tests/unit/temp_folder.h"

#define MODEL "models/demo"

static int set_up(void **state) {
    struct sl_tokenizer *tokenizer;
    struct sl_error err = {0};
    assert_int_equal(sl_tokenizer_load(MODEL, &tokenizer, &err), SL_OK);
    *state = tokenizer;
    return 0;
}

static int tear_down(void **state) {
    struct sl_tokenizer *tokenizer = *state;
    sl_tokenizer_destroy(&tokenizer);
    return 0;
}

static struct sl_training_prompts *open_prompts(const struct sl_training_prompts_config *config) {
    struct sl_training_prompts *prompts = NULL;
    struct sl_error err = {0};
    if (sl_training_prompts_open(config, &prompts, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return prompts;
}

static struct sl_training_prompt get(struct sl_training_prompts *prompts, uint64_t index) {
    struct sl_training_prompt prompt = {0};
    struct sl_error err = {0};
    if (sl_training_prompts_get(prompts, index, &prompt, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return prompt;
}

// Tokens [begin, end) as text. Owned by the caller.
static char *text_of(const struct sl_tokenizer *tokenizer, const struct sl_training_prompt *prompt, int64_t begin,
                     int64_t end) {
    char *text = calloc((size_t)(end - begin) * 32 + 1, 1);
    size_t used = 0;
    assert_non_null(text);
    for (int64_t i = begin; i < end; i++) {
        size_t n;
        const char *bytes = sl_tokenizer_token_bytes(tokenizer, prompt->tokens[i], &n);
        assert_true(n <= 32);
        memcpy(text + used, bytes, n);
        used += n;
    }
    return text;
}

static void test_rows_and_tasks_come_by_turns_and_again_in_another_order(void **state) {
    struct temp_folder folder = temp_folder_create();
    char path[128];
    temp_folder_write_text(&folder, "rows",
                           "{\"prompt\": \"row number A\", \"answer\": \" a\"}\n"
                           "{\"prompt\": \"row number B\", \"answer\": \" b\"}\n"
                           "{\"prompt\": \"row number C\", \"answer\": \" c\"}\n");
    snprintf(path, sizeof path, "%s/rows", folder.path);
    struct sl_training_prompts_config config = {
        .tokenizer = *state, .data = path, .tasks = {{"passkey:80-160"}, 1}, .max_tokens = 4096, .seed = 5};
    struct sl_training_prompts *prompts = open_prompts(&config), *again = open_prompts(&config);
    char orders[4][4] = {{0}};
    int64_t shortest = 4096, longest = 0;
    for (uint64_t i = 0; i < 24; i++) {
        struct sl_training_prompt prompt = get(prompts, i), same = get(again, i);
        assert_int_equal(prompt.n_tokens, same.n_tokens);
        assert_memory_equal(prompt.tokens, same.tokens, (size_t)prompt.n_tokens * sizeof *prompt.tokens);
        char *text = text_of(*state, &prompt, 0, prompt.n_tokens);
        if (i % 2 == 0) {
            const char *row = strstr(text, "row number ");
            assert_non_null(row);
            orders[i / 6][i / 2 % 3] = row[11];
        } else {
            assert_non_null(strstr(text, "pass key"));
            shortest = prompt.n_prompt < shortest ? prompt.n_prompt : shortest;
            longest = prompt.n_prompt > longest ? prompt.n_prompt : longest;
        }
        free(text);
        free(prompt.tokens);
        free(same.tokens);
    }
    bool differ = false;
    for (int round = 0; round < 4; round++) {
        assert_true(strchr(orders[round], 'A') && strchr(orders[round], 'B') && strchr(orders[round], 'C'));
        differ = differ || strcmp(orders[round], orders[0]) != 0;
    }
    assert_true(differ);
    assert_true(shortest < 110 && longest > 120 && longest <= 160);
    sl_training_prompts_close(&prompts);
    sl_training_prompts_close(&again);
    temp_folder_destroy(&folder);
}

static void test_long_prompts_lose_their_beginning(void **state) {
    struct temp_folder folder = temp_folder_create();
    char path[128];
    temp_folder_write_text(&folder, "rows", "{\"prompt\": \"1 2 3 4 5 6 7 8 9 8 7 6\", \"answer\": \" 5 4 3 2 1\"}\n");
    snprintf(path, sizeof path, "%s/rows", folder.path);
    struct sl_training_prompts_config config = {.tokenizer = *state, .data = path, .max_tokens = 4096};
    struct sl_training_prompts *prompts = open_prompts(&config);
    struct sl_training_prompt whole = get(prompts, 0);
    int64_t n_answer = whole.n_tokens - whole.n_prompt;
    sl_training_prompts_close(&prompts);
    for (int64_t most = 3; most < whole.n_tokens + 2; most++) {
        config.max_tokens = most;
        prompts = open_prompts(&config);
        struct sl_training_prompt prompt = get(prompts, 0);
        int64_t kept = most < whole.n_tokens ? most : whole.n_tokens;
        int64_t n_prompt = kept - n_answer > 2 ? kept - n_answer : 2; // an answer as long as that loses its end
        assert_int_equal(prompt.n_tokens, kept);
        assert_int_equal(prompt.n_prompt, n_prompt);
        assert_memory_equal(prompt.tokens, whole.tokens + whole.n_prompt - n_prompt, (size_t)kept * sizeof(int32_t));
        free(prompt.tokens);
        sl_training_prompts_close(&prompts);
    }
    free(whole.tokens);
    temp_folder_destroy(&folder);
}

static void test_a_writer_that_cannot_start_says_what_it_needs(void **state) {
    struct sl_training_prompts_config config = {.tokenizer = *state, .tasks = {{"passkey:80"}, 1}, .max_tokens = 4096};
    struct sl_training_prompts *prompts = NULL;
    struct sl_error err = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
    assert_int_equal(sl_training_prompts_open(&config, &prompts, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "python3"));
    assert_int_equal(setenv("PATH", path, 1), 0);
    assert_int_equal(setenv("PYTHONHOME", "/nonexistent", 1), 0); // it starts, and says nothing on its output
    assert_int_equal(sl_training_prompts_open(&config, &prompts, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "python3-numpy"));
    assert_int_equal(unsetenv("PYTHONHOME"), 0);
    assert_null(prompts);
}

int main(void) {
    if (system("python3 -c 'import numpy'") != 0) {
        puts("skipped: NumPy is missing (python3-numpy)");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_tasks_come_by_turns_and_again_in_another_order),
        cmocka_unit_test(test_long_prompts_lose_their_beginning),
        cmocka_unit_test(test_a_writer_that_cannot_start_says_what_it_needs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

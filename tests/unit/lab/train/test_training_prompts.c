// SPDX-License-Identifier: Apache-2.0
// Purpose: the training prompts of heads: rows and tasks by turns, facts in other words, prompts that are too long.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/train/training_forms.h"
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

static struct sl_training_prompt get(const struct sl_training_prompts *prompts, uint64_t index) {
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

static const char *const facts[][2] = {{"stone-window", "7001234"}, {"apple", "5550001"}};

// A sample as lab/tasks/task.h makes them.
static struct sl_sample needle_sample(void) {
    struct sl_sample sample = {0};
    struct sl_error err = {0};
    char prompt[1024];
    snprintf(prompt, sizeof prompt,
             "A text. One of the special magic numbers for %s is: %s. More of it. One of the special magic numbers for "
             "%s is: %s.\nWhat is the special magic number for %s mentioned in the provided text? The special magic "
             "number for %s mentioned in the provided text is",
             facts[0][0], facts[0][1], facts[1][0], facts[1][1], facts[1][0], facts[1][0]);
    sample.prompt = strdup(prompt);
    assert_int_equal(sl_sample_add_answer(&sample, facts[1][1], strlen(facts[1][1]), &err), SL_OK);
    return sample;
}

static void test_forms_say_all_facts_and_the_question_in_other_words(void **state) {
    (void)state;
    static const struct {
        const char *form, *prompt, *completion;
    } cases[] = {
        {"code-4",
         "A text. The code of stone-window is 7001234. More of it. The code of apple is 5550001.\nQuestion: What "
         "is the code of apple?\nAnswer: The code of apple is",
         " 5550001."},
        {"line-4", "A text.\nstone-window: 7001234\n More of it.\napple: 5550001\n\napple:", " 5550001"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_sample sample = needle_sample();
        struct sl_error err = {0};
        assert_int_equal(sl_training_form_apply(sl_training_form_find(cases[i].form), &sample, &err), SL_OK);
        assert_string_equal(sample.prompt, cases[i].prompt);
        assert_string_equal(sample.completion, cases[i].completion);
        sl_sample_cleanup(&sample);
    }
    assert_null(sl_training_form_find("dance"));
}

// The forms must know every text that the tasks write: their words are in two files.
static void test_forms_fit_what_their_tasks_write(void **state) {
    for (const struct sl_training_form *form = sl_training_forms(); form->name; form++) {
        struct sl_training_prompts_config config = {.tokenizer = *state, .max_tokens = 4096, .seed = 3};
        char task[64];
        snprintf(task, sizeof task, "%s:300", form->name);
        config.tasks = (struct sl_option_list){{task}, 1};
        struct sl_training_prompts *prompts = open_prompts(&config);
        struct sl_training_prompt prompt = get(prompts, 0);
        char *text = text_of(*state, &prompt, 0, prompt.n_tokens);
        assert_null(strstr(text, "magic"));
        free(text);
        text = text_of(*state, &prompt, prompt.n_prompt, prompt.n_tokens);
        char value[32];
        assert_int_equal(sscanf(text, " %31[0-9]", value), 1);
        char *before = text_of(*state, &prompt, 0, prompt.n_prompt);
        assert_non_null(strstr(before, value)); // the answer is in the prompt
        free(before);
        free(text);
        free(prompt.tokens);
        sl_training_prompts_close(&prompts);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms_say_all_facts_and_the_question_in_other_words),
        cmocka_unit_test(test_forms_fit_what_their_tasks_write),
        cmocka_unit_test(test_rows_and_tasks_come_by_turns_and_again_in_another_order),
        cmocka_unit_test(test_long_prompts_lose_their_beginning),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: tokenizers, a haystack and samples for tests of tasks; the fixture is made once for all tests of a program.
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/tasks/haystack.h"
#include "lab/tasks/task.h"
#include "tests/unit/text/tokenizer/tokenizer_json.h"

#define ESSAY "LICENSE" // of this project: a long text that never changes

// The demo model's, and small ones of a byte-level and a SentencePiece family, which have another begin token each.
enum { DEMO, LLAMA3, LLAMA2, N_TOKENIZERS };

struct fixture {
    struct sl_tokenizer *tokenizers[N_TOKENIZERS];
    struct sl_haystack *essay;
};

static inline struct sl_tokenizer *load_family(const char *path) {
    json_error_t cause;
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &cause);
    assert_non_null(root);
    if (load_json(root, NULL, &tokenizer, &err) != SL_OK) {
        fail_msg("%s: %s", path, err.text);
    }
    return tokenizer;
}

static inline int create_fixture(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct sl_error err = {0};
    const char *essay = ESSAY;
    assert_non_null(fixture);
    assert_int_equal(sl_tokenizer_load("models/demo", &fixture->tokenizers[DEMO], &err), SL_OK);
    fixture->tokenizers[LLAMA3] = load_family("tests/golden/tokenizer/families/llama3.json");
    fixture->tokenizers[LLAMA2] = load_family("tests/golden/tokenizer/families/llama2.json");
    assert_int_equal(sl_haystack_open(&essay, 1, &fixture->essay, &err), SL_OK);
    *state = fixture;
    return 0;
}

static inline int destroy_fixture(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < N_TOKENIZERS; i++) {
        sl_tokenizer_destroy(&fixture->tokenizers[i]);
    }
    sl_haystack_close(&fixture->essay);
    free(fixture);
    return 0;
}

static inline struct sl_task_config config_of(const struct fixture *fixture, int tokenizer, int64_t n_tokens) {
    return (struct sl_task_config){.tokenizer = fixture->tokenizers[tokenizer],
                                   .haystack = fixture->essay,
                                   .n_tokens = n_tokens,
                                   .seed = 1,
                                   .depth = -1};
}

static inline struct sl_sample make(const struct sl_task *task, const struct sl_task_config *config, uint64_t index) {
    struct sl_sample sample = {0};
    struct sl_error err = {0};
    if (sl_task_make(task, config, index, &sample, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return sample;
}

// Tokens of a text, with the begin token.
static inline int64_t count_tokens(const struct sl_tokenizer *tokenizer, const char *text) {
    int32_t *ids = NULL;
    size_t n = 0;
    struct sl_error err = {0};
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &n, &err), SL_OK);
    free(ids);
    return (int64_t)n;
}

// Returns how many tokens the smallest prompt of a task has, from the refusal of an impossible size.
static inline int64_t needed_tokens(const struct sl_task *task, struct sl_task_config config, uint64_t index) {
    struct sl_sample sample = {0};
    struct sl_error err = {0};
    config.n_tokens = 1;
    assert_int_equal(sl_task_make(task, &config, index, &sample, &err), SL_ERR_RANGE);
    assert_null(sample.prompt);
    const char *number = strstr(err.text, "it needs ");
    assert_non_null(number);
    return atoll(number + strlen("it needs "));
}

static inline int count_text(const char *text, const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) {
        n++;
    }
    return n;
}

// Returns a correct model's answer to the prompt (lab/sluice_eval's writers.py), allocated with malloc.
static inline char *answer_text(const struct sl_task *task, const struct sl_sample *sample) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    assert_non_null(out);
    bool queries = strcmp(task->name, "multiquery") == 0, kv = strcmp(task->name, "kv") == 0;
    const char *key = queries ? strstr(strrchr(sample->prompt, '\n'), " for ") + strlen(" for ") : NULL;
    for (size_t i = 0; i < sample->n_answers; i++) {
        fputs(i > 0 ? ", " : kv ? "" : " ", out);
        if (queries) { // keys in the order of the question
            fprintf(out, "%.*s: ", (int)strcspn(key, ", "), key);
            key += strcspn(key, ", ") + 2;
        }
        fputs(sample->answers[i], out);
    }
    fputs(kv ? "\"." : ".", out);
    assert_int_equal(fclose(out), 0);
    return text;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: properties of every task: its length, its depth, the same bytes from the same seed, refusals. test_task_forms.c
 *          tests each task's text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/hash.h"
#include "lab/tasks/task_internal.h"
#include "tests/unit/lab/tasks/task_fixture.h"

// --- length ----------------------------------------------------------------------------------------------------------
// Tokens of the longest thing that a prompt of this task grows by: a sentence, a fact, a pair, three entries of a list.
static int64_t longest_unit(const struct fixture *fixture, const struct sl_tokenizer *tokenizer,
                            const struct sl_task *task) {
    static const struct {
        const char *task, *unit;
    } units[] = {
        {"multikey-needles", " One of the special magic numbers for astronaut-dragonfly is: 8888888.  "},
        {"kv", ",\n \"9f3b7c1d-8e2a-4f6b-9c0d-7a5e3f1b9d8c\": \"1d9e7b3f-5a2c-8f6e-0b4d-3c7a9e1f5b8d\"       "},
        {"common-words", " 1888. astronaut-dragonfly 1999. dragonfly-astronaut 1777. astronaut-dragonfly    "},
        {"frequent-words", " xqzkj zqxjk qzxkj"},
        {"niah-noise", " The mill wheel turns."},
        {"variables", " The mill wheel turns."},
        {"passkey", " The mill wheel turns."},
        {"number", " The mill wheel turns."},
    };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(units[i].task, task->name) == 0) {
            return count_tokens(tokenizer, units[i].unit);
        }
    }
    int64_t most = 0; // running text
    for (int64_t i = 0; i < sl_haystack_n_sentences(fixture->essay); i++) {
        char *text = NULL;
        size_t n_bytes = 0;
        FILE *out = open_memstream(&text, &n_bytes);
        sl_haystack_write(fixture->essay, i, 1, out);
        fclose(out);
        int64_t n = count_tokens(tokenizer, text);
        most = n > most ? n : most;
        free(text);
    }
    return most;
}

static void test_tasks_fill_their_length(void **state) {
    const struct fixture *fixture = *state;
    static const int64_t lengths[] = {1024, 4096, 9973};
    for (int t = 0; t < N_TOKENIZERS; t++) {
        for (const struct sl_task *task = sl_tasks(); task->name; task++) {
            int64_t slack = longest_unit(fixture, fixture->tokenizers[t], task);
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                struct sl_task_config config = config_of(fixture, t, lengths[i]);
                int64_t needed = needed_tokens(task, config, i);
                if (needed > lengths[i]) {
                    continue; // exactly as many as needed: test_task_says_how_many_tokens_it_needs
                }
                struct sl_sample sample = make(task, &config, i);
                int64_t n = count_tokens(config.tokenizer, sample.prompt);
                if (n > lengths[i] || n < lengths[i] - slack) {
                    fail_msg("%s has %lld of %lld tokens; a unit has %lld at most", task->name, (long long)n,
                             (long long)lengths[i], (long long)slack);
                }
                sl_sample_cleanup(&sample);
            }
        }
    }
}

static void test_task_says_how_many_tokens_it_needs(void **state) {
    const struct fixture *fixture = *state;
    for (int t = 0; t < N_TOKENIZERS; t++) {
        for (const struct sl_task *task = sl_tasks(); task->name; task++) {
            struct sl_task_config config = config_of(fixture, t, 0);
            struct sl_sample sample = {0};
            struct sl_error err = {0};
            config.n_tokens = needed_tokens(task, config, 7);
            assert_true(config.n_tokens >= task->min_tokens);
            sample = make(task, &config, 7);
            assert_in_range(count_tokens(config.tokenizer, sample.prompt), config.n_tokens - 8, config.n_tokens);
            sl_sample_cleanup(&sample);
            config.n_tokens--;
            assert_int_equal(sl_task_make(task, &config, 7, &sample, &err), SL_ERR_RANGE);
            assert_non_null(strstr(err.text, task->name));
        }
    }
}

static void test_answers_fit_into_new_tokens(void **state) {
    const struct fixture *fixture = *state;
    for (const struct sl_task *task = sl_tasks(); task->name; task++) {
        struct sl_task_config config = config_of(fixture, DEMO, 4096);
        for (uint64_t index = 0; index < 5; index++) {
            struct sl_sample sample = make(task, &config, index);
            char *text = answer_text(task, &sample);
            assert_string_equal(sample.completion, text);
            assert_int_equal(sample.max_new_tokens, task->max_new_tokens);
            assert_true(count_tokens(config.tokenizer, text) <= sample.max_new_tokens);
            free(text);
            sl_sample_cleanup(&sample);
        }
    }
}

// --- the same bytes --------------------------------------------------------------------------------------------------
// A sample as one number: prompt and answers.
static uint64_t hash_of(const struct sl_sample *sample) {
    uint64_t hash = sl_hash(sample->prompt, strlen(sample->prompt), sample->n_answers);
    for (size_t i = 0; i < sample->n_answers; i++) {
        hash = sl_hash(sample->answers[i], strlen(sample->answers[i]), hash);
    }
    return hash;
}

// A change of these numbers changes the questions: results before and after it cannot be compared.
static void test_samples_stay_what_they_are(void **state) {
    const struct fixture *fixture = *state;
    static const struct {
        const char *task;
        uint64_t hash;
    } golden[] = {
        {"niah-noise", 0x2998592ebd74b84cu},     {"niah-essay", 0xab8277e17a7ec56eu},
        {"niah-uuid", 0x4e6f4b7e2868f1b0u},      {"multikey-4", 0xdd4ab5c70c1f906du},
        {"multikey-16", 0x77be9bbb725090a5u},    {"multikey-needles", 0x33d65f822517c2bau},
        {"multivalue", 0xd2fa99eb9656b8eeu},     {"multiquery", 0x73e8a7d388da154fu},
        {"variables", 0xe36681d26815ab6au},      {"common-words", 0x8054ca783f97d88eu},
        {"frequent-words", 0x2a99fa7a0cd9772cu}, {"passkey", 0xe11dffdb9aba0026u},
        {"number", 0x5da0edc7abe772d7u},         {"kv", 0x3200f7185b21d1e6u},
    };
    size_t i = 0;
    for (const struct sl_task *task = sl_tasks(); task->name; task++, i++) {
        struct sl_task_config config = config_of(fixture, LLAMA3, 5000);
        struct sl_sample sample = make(task, &config, 3);
        assert_true(i < sizeof golden / sizeof *golden);
        assert_string_equal(golden[i].task, task->name);
        if (hash_of(&sample) != golden[i].hash) {
            fail_msg("%s is 0x%llx", task->name, (unsigned long long)hash_of(&sample));
        }
        sl_sample_cleanup(&sample);
    }
    assert_int_equal(i, sizeof golden / sizeof *golden);
}

static void test_samples_follow_from_seed_and_index(void **state) {
    const struct fixture *fixture = *state;
    for (const struct sl_task *task = sl_tasks(); task->name; task++) {
        struct sl_task_config config = config_of(fixture, LLAMA3, 4096);
        struct sl_sample samples[4];
        for (uint64_t i = 0; i < 3; i++) { // index 2, 1, 0
            samples[i] = make(task, &config, 2 - i);
        }
        assert_true(hash_of(&samples[0]) != hash_of(&samples[1]));
        assert_true(hash_of(&samples[1]) != hash_of(&samples[2]));
        samples[3] = make(task, &config, 2);
        assert_true(hash_of(&samples[3]) == hash_of(&samples[0])); // what was made in between does not matter
        sl_sample_cleanup(&samples[3]);
        config.seed = 2;
        samples[3] = make(task, &config, 2);
        assert_true(hash_of(&samples[3]) != hash_of(&samples[0]));
        for (int i = 0; i < 4; i++) {
            sl_sample_cleanup(&samples[i]);
        }
    }
}

// --- long prompts ----------------------------------------------------------------------------------------------------
static void test_long_prompts_are_filled_too(void **state) {
    const struct fixture *fixture = *state;
    enum { N_TOKENS = 50000 };
    for (const struct sl_task *task = sl_tasks(); task->name; task++) {
        struct sl_task_config config = config_of(fixture, DEMO, N_TOKENS);
        struct sl_sample sample = make(task, &config, 0);
        assert_in_range(count_tokens(config.tokenizer, sample.prompt), N_TOKENS - 300, N_TOKENS);
        assert_true(strstr(sample.prompt, sample.answers[0]) != NULL);
        sl_sample_cleanup(&sample);
    }
}

// A task with too few different words to fill the prompt reports it, and fills what it can.
static void test_task_without_more_words_says_so(void **state) {
    const struct fixture *fixture = *state;
    const struct sl_task *task = sl_task_find("multikey-needles");
    struct sl_task_kind kind = *task->kind;
    struct sl_task small = *task;
    struct sl_task_config config = config_of(fixture, DEMO, 4096);
    struct sl_sample sample = {0};
    struct sl_error err = {0};
    kind.max_size = 20;
    small.kind = &kind;
    assert_int_equal(sl_task_make(&small, &config, 0, &sample, &err), SL_ERR_RANGE);
    assert_null(sample.prompt);
    const char *words_for = strstr(err.text, "different words for ");
    assert_non_null(words_for);
    config.n_tokens = atoll(words_for + strlen("different words for ")) - 1; // a fact fewer
    sample = make(&small, &config, 0);
    assert_int_equal(count_text(sample.prompt, " One of the special magic numbers "), kind.max_size - 1);
    sl_sample_cleanup(&sample);
}

// --- depth -----------------------------------------------------------------------------------------------------------
static void test_depth_is_where_the_fact_stands(void **state) {
    const struct fixture *fixture = *state;
    static const double depths[] = {0, 0.2, 0.5, 0.9, 1};
    int n_tasks = 0;
    for (const struct sl_task *task = sl_tasks(); task->name; task++) {
        struct sl_task_config config = config_of(fixture, DEMO, 8192);
        struct sl_sample sample = {0};
        struct sl_error err = {0};
        config.depth = 0.5;
        if (!task->has_depth) {
            assert_int_equal(sl_task_make(task, &config, 0, &sample, &err), SL_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.text, task->name));
            continue;
        }
        n_tasks++;
        for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
            config.depth = depths[i];
            sample = make(task, &config, 0);
            const char *end = strrchr(sample.prompt, '\n'); // of the context
            const char *value = strstr(sample.prompt, sample.answers[0]);
            double place = (double)(value - sample.prompt) / (double)(end - sample.prompt);
            // Within 8% of the bytes, as sentences differ; at the ends nothing may be between.
            assert_true(fabs(place - depths[i]) < 0.08);
            assert_true(depths[i] > 0 || value - sample.prompt < 120);
            assert_true(depths[i] < 1 || end - value < 80);
            sl_sample_cleanup(&sample);
        }
    }
    assert_int_equal(n_tasks, 9);
}

// In a prompt of hardly more than facts several stand in the first gap and in the last: the asked one is the outermost.
static void test_depth_comes_before_other_facts(void **state) {
    const struct fixture *fixture = *state;
    const struct sl_task *task = sl_task_find("multikey-16");
    for (uint64_t index = 0; index < 5; index++) {
        struct sl_task_config config = config_of(fixture, DEMO, 0);
        config.n_tokens = needed_tokens(task, config, index) + 150;
        for (int at_end = 0; at_end < 2; at_end++) {
            config.depth = at_end;
            struct sl_sample sample = make(task, &config, index);
            const char *value = strstr(sample.prompt, sample.answers[0]);
            assert_ptr_equal(at_end ? strstr(value, ".\n") - 7 : strpbrk(sample.prompt, "0123456789"), value);
            sl_sample_cleanup(&sample);
        }
    }
}

// --- running text ----------------------------------------------------------------------------------------------------
static void test_samples_begin_the_essay_anywhere(void **state) {
    const struct fixture *fixture = *state;
    struct sl_task_config config = config_of(fixture, DEMO, 1024);
    char begins[8][64];
    for (uint64_t i = 0; i < 8; i++) {
        struct sl_sample sample = make(sl_task_find("niah-essay"), &config, i);
        snprintf(begins[i], sizeof begins[i], "%s", sample.prompt);
        sl_sample_cleanup(&sample);
    }
    int n_same = 0;
    for (int i = 1; i < 8; i++) {
        n_same += strcmp(begins[i], begins[0]) == 0;
    }
    assert_true(n_same <= 1);
}

static struct sl_haystack *open_text(const char *text) {
    struct temp_folder folder = temp_folder_create();
    struct sl_haystack *haystack = NULL;
    struct sl_error err = {0};
    char path[96];
    const char *paths[] = {path};
    temp_folder_write_text(&folder, "essay.txt", text);
    snprintf(path, sizeof path, "%s/essay.txt", folder.path);
    assert_int_equal(sl_haystack_open(paths, 1, &haystack, &err), SL_OK);
    temp_folder_destroy(&folder);
    return haystack;
}

static void test_short_essays_are_repeated(void **state) {
    const struct fixture *fixture = *state;
    struct sl_haystack *haystack = open_text("It rained. Nobody came. We read.");
    struct sl_task_config config = config_of(fixture, DEMO, 2048);
    config.haystack = haystack;
    struct sl_sample sample = make(sl_task_find("multikey-4"), &config, 0);
    assert_in_range(count_tokens(config.tokenizer, sample.prompt), 2030, 2048);
    assert_true(count_text(sample.prompt, "Nobody came.") > 50);
    sl_sample_cleanup(&sample);
    sl_haystack_close(&haystack);
}

// A text that has the very key and value of a sample gets others.
static void test_keys_and_values_do_not_occur_in_the_essay(void **state) {
    const struct fixture *fixture = *state;
    const struct sl_task *task = sl_task_find("niah-essay");
    struct sl_task_config config = config_of(fixture, DEMO, 600);
    struct sl_sample sample = make(task, &config, 0);
    char key[64], value[64], text[256];
    const char *question = strstr(sample.prompt, "magic number for ");
    assert_int_equal(sscanf(question, "magic number for %63s", key), 1);
    snprintf(value, sizeof value, "%s", sample.answers[0]);
    sl_sample_cleanup(&sample);

    snprintf(text, sizeof text, "They sent %s to %s. It rained.", value, key);
    struct sl_haystack *haystack = open_text(text);
    config.haystack = haystack;
    sample = make(task, &config, 0);
    question = strstr(sample.prompt, "magic number for ");
    assert_int_not_equal(strncmp(question + strlen("magic number for "), key, strlen(key)), 0);
    assert_string_not_equal(sample.answers[0], value);
    assert_int_equal(count_text(sample.prompt, sample.answers[0]), 1);
    sl_sample_cleanup(&sample);
    sl_haystack_close(&haystack);
}

// --- refusals --------------------------------------------------------------------------------------------------------
static void expect_refused(const struct sl_task *task, const struct sl_task_config *config, enum sl_status status,
                           const char *why) {
    struct sl_sample sample = {0};
    struct sl_error err = {0};
    assert_int_equal(sl_task_make(task, config, 0, &sample, &err), status);
    assert_null(sample.prompt);
    assert_int_equal(sample.n_answers, 0);
    if (!strstr(err.text, why) || !strstr(err.text, task->name)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
    }
}

static void test_hostile_configs_are_refused(void **state) {
    const struct fixture *fixture = *state;
    for (const struct sl_task *task = sl_tasks(); task->name; task++) {
        struct sl_task_config good = config_of(fixture, DEMO, 4096), config = good;
        static const int64_t lengths[] = {INT64_MIN, -1, 0, 10};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            config.n_tokens = lengths[i];
            expect_refused(task, &config, SL_ERR_RANGE, "it needs");
        }
        config.n_tokens = INT64_MAX;
        expect_refused(task, &config, SL_ERR_RANGE, "at most");
        config = good;
        config.depth = NAN;
        expect_refused(task, &config, SL_ERR_INVALID, "depth");
        config.depth = 1.01;
        expect_refused(task, &config, SL_ERR_INVALID, "from 0 to 1");
    }
    struct sl_task_config config = config_of(fixture, DEMO, 4096);
    config.haystack = NULL;
    expect_refused(sl_task_find("niah-essay"), &config, SL_ERR_INVALID, "text");
    struct sl_sample sample = make(sl_task_find("niah-noise"), &config, 0); // needs none
    sl_sample_cleanup(&sample);
    assert_null(sl_task_find("niah"));
    assert_null(sl_task_find(""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_fill_their_length),
        cmocka_unit_test(test_task_says_how_many_tokens_it_needs),
        cmocka_unit_test(test_answers_fit_into_new_tokens),
        cmocka_unit_test(test_samples_stay_what_they_are),
        cmocka_unit_test(test_samples_follow_from_seed_and_index),
        cmocka_unit_test(test_long_prompts_are_filled_too),
        cmocka_unit_test(test_task_without_more_words_says_so),
        cmocka_unit_test(test_depth_is_where_the_fact_stands),
        cmocka_unit_test(test_depth_comes_before_other_facts),
        cmocka_unit_test(test_samples_begin_the_essay_anywhere),
        cmocka_unit_test(test_short_essays_are_repeated),
        cmocka_unit_test(test_keys_and_values_do_not_occur_in_the_essay),
        cmocka_unit_test(test_hostile_configs_are_refused),
    };
    return cmocka_run_group_tests(tests, create_fixture, destroy_fixture);
}

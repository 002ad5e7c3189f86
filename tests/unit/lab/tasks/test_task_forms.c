// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tests that prompts are as docs/EVALUATION.md describes: the question is at the end, each fact
 *          appears the right number of times, and the answers follow from the context.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/tasks/words.h"
#include "tests/unit/lab/tasks/task_fixture.h"

enum { N_SAMPLES = 4, N_TOKENS = 4096 };

// The prompt ends with this printf-style text.
static void expect_end(const char *prompt, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void expect_end(const char *prompt, const char *format, ...) {
    char expected[1024];
    va_list args;
    va_start(args, format);
    size_t n = (size_t)vsnprintf(expected, sizeof expected, format, args);
    va_end(args);
    assert_true(n < sizeof expected && n < strlen(prompt));
    assert_string_equal(prompt + strlen(prompt) - n, expected);
}

// Returns where this printf-style text is in the prompt; it must be there once.
static const char *find_once(const char *prompt, const char *format, ...) __attribute__((format(printf, 2, 3)));
static const char *find_once(const char *prompt, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    assert_true((size_t)vsnprintf(text, sizeof text, format, args) < sizeof text);
    va_end(args);
    if (count_text(prompt, text) != 1) {
        fail_msg("\"%s\" stands there %d times", text, count_text(prompt, text));
    }
    return strstr(prompt, text);
}

// The last line, which is the question.
static const char *question_of(const struct sl_sample *sample) {
    const char *line = strrchr(sample->prompt, '\n');
    assert_non_null(line);
    return line;
}

static void expect_digits(const char *text, size_t n) {
    assert_int_equal(strlen(text), n);
    assert_int_equal(strspn(text, "0123456789"), n);
    assert_true(text[0] != '0');
}

static void expect_uuid(const char *text) {
    assert_int_equal(strlen(text), 36);
    for (int i = 0; i < 36; i++) {
        bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;
        assert_true(hyphen ? text[i] == '-' : strchr("0123456789abcdef", text[i]) != NULL);
    }
}

typedef void (*check_fn)(const struct sl_sample *sample, int n);

// Several samples of a task, for a byte-level and a SentencePiece tokenizer.
static void check_task(void **state, const char *name, check_fn check, int n) {
    const struct fixture *fixture = *state;
    const struct sl_task *task = sl_task_find(name);
    assert_non_null(task);
    for (int t = 0; t < N_TOKENIZERS; t += 2) {
        for (uint64_t index = 0; index < N_SAMPLES; index++) {
            struct sl_task_config config = config_of(fixture, t, t == DEMO ? N_TOKENS : 2 * N_TOKENS);
            struct sl_sample sample = make(task, &config, index);
            check(&sample, n);
            sl_sample_cleanup(&sample);
        }
    }
}

// --- needles ---------------------------------------------------------------------------------------------------------
// The key of a fact or question that begins with this text. Returns what follows the key.
static const char *read_key(const char *at, const char *before, char key_out[32]) {
    const char *key = strstr(at, before);
    assert_non_null(key);
    assert_int_equal(sscanf(key + strlen(before), "%31[a-z-]", key_out), 1);
    return key + strlen(before) + strlen(key_out);
}

static void check_one_of(const struct sl_sample *sample, const char *noun, int n_facts) {
    char key[32], fact[64], text[64];
    snprintf(text, sizeof text, "\nWhat is the special magic %s for ", noun);
    read_key(question_of(sample), text, key);
    expect_end(sample->prompt,
               "\nWhat is the special magic %s for %s mentioned in the provided text? The special magic %s for %s "
               "mentioned in the provided text is",
               noun, key, noun, key);
    assert_int_equal(sample->n_answers, 1);
    assert_int_equal(count_text(sample->prompt, sample->answers[0]), 1);
    find_once(sample->prompt, " One of the special magic %ss for %s is: %s.", noun, key, sample->answers[0]);
    assert_int_equal(count_text(sample->prompt, key), 3); // the fact, and twice in the question
    snprintf(fact, sizeof fact, " One of the special magic %ss for ", noun);
    assert_true(n_facts == 0 || count_text(sample->prompt, fact) == n_facts);
}

static void check_number(const struct sl_sample *sample, int n_facts) {
    check_one_of(sample, "number", n_facts);
    expect_digits(sample->answers[0], 7);
}

static void check_uuid(const struct sl_sample *sample, int n_facts) {
    check_one_of(sample, "uuid", n_facts);
    expect_uuid(sample->answers[0]);
}

static void test_one_of_some_facts_is_asked_about(void **state) {
    check_task(state, "niah-noise", check_number, 1);
    check_task(state, "niah-essay", check_number, 1);
    check_task(state, "niah-uuid", check_uuid, 1);
    check_task(state, "multikey-4", check_number, 4);
    check_task(state, "multikey-16", check_number, 16);
}

// Nothing between one fact and the next; keys and values all differ.
static void check_only_needles(const struct sl_sample *sample, int n) {
    (void)n;
    const char *end = question_of(sample), *at = sample->prompt;
    int n_facts = 0;
    while (at < end) {
        char key[32], value[16], text[96];
        assert_int_equal(sscanf(at, " One of the special magic numbers for %31[a-z-] is: %15[0-9].", key, value), 2);
        expect_digits(value, 7);
        snprintf(text, sizeof text, " %s is: ", key);
        assert_int_equal(count_text(sample->prompt, text), 1);
        assert_int_equal(count_text(sample->prompt, value), 1);
        at += strlen(" One of the special magic numbers for  is: .") + strlen(key) + strlen(value);
        n_facts++;
    }
    assert_ptr_equal(at, end);
    assert_true(n_facts > 30);
}

static void test_only_needles_are_nothing_but_facts(void **state) {
    check_task(state, "multikey-needles", check_only_needles, 0);
    const struct fixture *fixture = *state; // and one of them, not always the same, is asked about
    int n_first = 0;
    for (uint64_t index = 0; index < 20; index++) {
        struct sl_task_config config = config_of(fixture, DEMO, 2048);
        struct sl_sample sample = make(sl_task_find("multikey-needles"), &config, index);
        char key[32];
        read_key(question_of(&sample), "special magic number for ", key);
        const char *fact =
            find_once(sample.prompt, " One of the special magic numbers for %s is: %s.", key, sample.answers[0]);
        n_first += fact == sample.prompt;
        sl_sample_cleanup(&sample);
    }
    assert_true(n_first < 5);
}

static void check_multivalue(const struct sl_sample *sample, int n) {
    char key[32];
    read_key(question_of(sample), "special magic numbers for ", key);
    expect_end(sample->prompt,
               "\nWhat are all the special magic numbers for %s mentioned in the provided text? The special magic "
               "numbers for %s mentioned in the provided text are",
               key, key);
    assert_int_equal(sample->n_answers, n);
    const char *last = sample->prompt;
    for (int i = 0; i < n; i++) {
        expect_digits(sample->answers[i], 7);
        const char *fact =
            find_once(sample->prompt, " One of the special magic numbers for %s is: %s.", key, sample->answers[i]);
        assert_true(fact >= last); // answers in the order of the text
        last = fact + 1;
    }
    assert_int_equal(count_text(sample->prompt, " One of the special magic "), n);
}

static void check_multiquery(const struct sl_sample *sample, int n) {
    char keys[4][32];
    const char *at = read_key(question_of(sample), "special magic numbers for ", keys[0]);
    for (int i = 1; i < 4; i++) {
        at = read_key(at, ", ", keys[i]);
    }
    expect_end(
        sample->prompt,
        "\nWhat are all the special magic numbers for %s, %s, %s, %s mentioned in the provided text? The special "
        "magic numbers mentioned in the provided text are",
        keys[0], keys[1], keys[2], keys[3]);
    assert_int_equal(sample->n_answers, n);
    for (int i = 0; i < n; i++) {
        expect_digits(sample->answers[i], 7);
        find_once(sample->prompt, " One of the special magic numbers for %s is: %s.", keys[i], sample->answers[i]);
    }
    assert_int_equal(count_text(sample->prompt, " One of the special magic "), n);
}

static void test_all_facts_are_asked_about(void **state) {
    check_task(state, "multivalue", check_multivalue, 4);
    check_task(state, "multiquery", check_multiquery, 4);
}

// --- the others that hide something ----------------------------------------------------------------------------------
static void check_variables(const struct sl_sample *sample, int n) {
    int number = 0;
    assert_int_equal(sscanf(question_of(sample), "\nWhich variables hold the value %d,", &number), 1);
    assert_in_range(number, 10000, 99999);
    expect_end(sample->prompt,
               "\nWhich variables hold the value %d, directly or through another variable? The variables that hold the "
               "value %d are",
               number, number);
    assert_int_equal(sample->n_answers, n);
    const char *last = find_once(sample->prompt, " VAR %s = %d.", sample->answers[0], number);
    for (int i = 1; i < n; i++) {
        assert_int_equal(strspn(sample->answers[i], "ABCDEFGHIJKLMNOPQRSTUVWXYZ"), 5);
        assert_int_equal(strlen(sample->answers[i]), 5);
        const char *fact = find_once(sample->prompt, " VAR %s = VAR %s.", sample->answers[i], sample->answers[i - 1]);
        assert_true(fact > last); // set before it is used
        last = fact;
    }
    assert_int_equal(count_text(sample->prompt, " = "), n);
}

static void check_said_twice(const struct sl_sample *sample, const char *what, size_t n_digits) {
    const char *digits = sample->answers[0];
    assert_int_equal(sample->n_answers, 1);
    expect_digits(digits, n_digits);
    find_once(sample->prompt, " The %s is %s. Remember it. %s is the %s.", what, digits, digits, what);
    assert_int_equal(count_text(sample->prompt, digits), 2);
    expect_end(sample->prompt, ".\nWhat is the %s? The %s is", what, what);
}

static void check_passkey(const struct sl_sample *sample, int n) {
    check_said_twice(sample, "pass key", (size_t)n);
}

static void check_sequence(const struct sl_sample *sample, int n) {
    check_said_twice(sample, "sequence of digits", (size_t)n);
    int run = 1, longest = 1;
    for (int i = 1; i < n; i++) {
        run = sample->answers[0][i] == sample->answers[0][i - 1] ? run + 1 : 1;
        longest = run > longest ? run : longest;
    }
    assert_in_range(longest, 2, 3); // these samples; ten different digits would be one in 59049
}

static void test_facts_in_noise(void **state) {
    check_task(state, "variables", check_variables, 5);
    check_task(state, "passkey", check_passkey, 5);
    check_task(state, "number", check_sequence, 10);
}

// Without its fact a text in noise is noise from its first sentence on.
static void test_noise_goes_on_behind_the_fact(void **state) {
    const struct fixture *fixture = *state;
    static const char noise[] = " The river runs on. The mill wheel turns. A cart goes by. The road is dry.";
    struct sl_task_config config = config_of(fixture, DEMO, 1024);
    struct sl_sample sample = make(sl_task_find("passkey"), &config, 0);
    char *fact = strstr(sample.prompt, " The pass key is ");
    size_t n_fact = strlen(" The pass key is 12345. Remember it. 12345 is the pass key.");
    memmove(fact, fact + n_fact, strlen(fact + n_fact) + 1);
    const char *end = question_of(&sample);
    for (const char *at = sample.prompt; at < end; at++) {
        assert_int_equal(*at, noise[(size_t)(at - sample.prompt) % (sizeof noise - 1)]);
    }
    sl_sample_cleanup(&sample);
}

static void check_kv(const struct sl_sample *sample, int n) {
    (void)n;
    const char *at = strchr(sample->prompt, '{'), *end = question_of(sample);
    char asked[40], key[40], value[40];
    bool found = false;
    int n_pairs = 0;
    assert_int_equal(at - sample->prompt, 1);
    assert_int_equal(sample->prompt[0], '\n');
    assert_int_equal(sscanf(end, "\nThe value of the key \"%36[0-9a-f-]\"", asked), 1);
    for (at++; sscanf(at, "\"%36[0-9a-f-]\": \"%36[0-9a-f-]\"", key, value) == 2; n_pairs++) {
        expect_uuid(key);
        expect_uuid(value);
        bool is_asked = strcmp(key, asked) == 0;
        assert_true(!is_asked || strcmp(value, sample->answers[0]) == 0);
        found = found || is_asked;
        at += 2 * 36 + strlen("\"\": \"\"");
        assert_true(strncmp(at, ",\n ", 3) == 0 || at[0] == '}');
        at += at[0] == ',' ? 3 : 1;
    }
    assert_true(found && at == end && n_pairs > 20);
    assert_int_equal(sample->n_answers, 1);
    assert_int_equal(count_text(sample->prompt, sample->answers[0]), 1);
    expect_end(sample->prompt, "}\nThe value of the key \"%s\" in the object above is \"", asked);
}

static void test_kv_is_an_object(void **state) {
    check_task(state, "kv", check_kv, 0);
}

// --- words -----------------------------------------------------------------------------------------------------------
struct counted {
    char word[32];
    int n;
};

static void count_word(struct counted *words, int *n_words_inout, int capacity, const char *word) {
    int i = 0;
    while (i < *n_words_inout && strcmp(words[i].word, word) != 0) {
        i++;
    }
    if (i == *n_words_inout) {
        assert_true(i < capacity);
        snprintf(words[i].word, sizeof words[i].word, "%s", word);
        words[i].n = 0;
        ++*n_words_inout;
    }
    words[i].n++;
}

static int by_falling_count(const void *a, const void *b) {
    return ((const struct counted *)b)->n - ((const struct counted *)a)->n;
}

enum { MAX_WORDS = 2000 };

// The words of the context, the most frequent first; `numbered`: each after " 1.", " 2." and so on.
static int count_words(const struct sl_sample *sample, bool numbered, struct counted *words) {
    const char *end = question_of(sample);
    int n_words = 0, n_entries = 0;
    for (const char *at = sample->prompt; at < end; n_entries++) {
        char word[32];
        int n_read = 0, number = 0;
        if (numbered) {
            assert_int_equal(sscanf(at, " %d. %31[a-z-]%n", &number, word, &n_read), 2);
            assert_int_equal(number, n_entries + 1);
        } else {
            assert_int_equal(sscanf(at, " %31[a-z.]%n", word, &n_read), 1);
        }
        at += n_read;
        count_word(words, &n_words, MAX_WORDS, word);
    }
    qsort(words, (size_t)n_words, sizeof *words, by_falling_count);
    return n_words;
}

static bool is_answer(const struct sl_sample *sample, const char *word) {
    for (size_t i = 0; i < sample->n_answers; i++) {
        if (strcmp(sample->answers[i], word) == 0) {
            return true;
        }
    }
    return false;
}

static void check_common(const struct sl_sample *sample, int long_list) {
    static struct counted words[MAX_WORDS];
    int n = count_words(sample, true, words);
    assert_int_equal(sample->n_answers, 10);
    assert_true(n > 20);
    int n_pairs = 0;
    for (int i = 0; i < n; i++) {
        assert_int_equal(words[i].n, i < 10 ? 30 : 3);
        assert_int_equal(is_answer(sample, words[i].word), i < 10);
        n_pairs += strchr(words[i].word, '-') != NULL;
        for (size_t a = 0; a < sample->n_answers; a++) { // naming another word names no common one
            assert_int_equal(strstr(words[i].word, sample->answers[a]) != NULL,
                             strcmp(words[i].word, sample->answers[a]) == 0);
        }
    }
    assert_int_equal(n_pairs, n > SL_N_WORDS ? n - SL_N_WORDS : 0);
    assert_int_equal(n_pairs > 0, long_list);
    expect_end(sample->prompt, "\nWhat are the 10 most common words in the list above? The 10 most common words are");
}

static void check_frequent(const struct sl_sample *sample, int n) {
    static struct counted words[MAX_WORDS];
    assert_true(count_words(sample, false, words) > 10);
    assert_string_equal(words[0].word, "...");
    assert_int_equal(sample->n_answers, n);
    for (int i = 0; i < n; i++) {
        assert_string_equal(words[i + 1].word, sample->answers[i]);
        assert_true(words[i + 1].n > words[i + 2].n); // no ties
    }
    assert_true(words[0].n > 3 * words[1].n); // 4, but for rounding
    expect_end(sample->prompt,
               "\nWhat are the three most frequent words in the text above? The three most frequent words are");
}

static void test_words_are_as_frequent_as_answers_say(void **state) {
    const struct fixture *fixture = *state;
    check_task(state, "frequent-words", check_frequent, 3);
    for (int long_list = 0; long_list < 2; long_list++) {
        struct sl_task_config config = config_of(fixture, DEMO, long_list ? 20000 : 4096);
        for (uint64_t index = 0; index < N_SAMPLES; index++) {
            struct sl_sample sample = make(sl_task_find("common-words"), &config, index);
            check_common(&sample, long_list);
            sl_sample_cleanup(&sample);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_of_some_facts_is_asked_about),
        cmocka_unit_test(test_only_needles_are_nothing_but_facts),
        cmocka_unit_test(test_all_facts_are_asked_about),
        cmocka_unit_test(test_facts_in_noise),
        cmocka_unit_test(test_noise_goes_on_behind_the_fact),
        cmocka_unit_test(test_kv_is_an_object),
        cmocka_unit_test(test_words_are_as_frequent_as_answers_say),
    };
    return cmocka_run_group_tests(tests, create_fixture, destroy_fixture);
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tasks that hide facts between the sentences of a haystack: needles, variables, passkey, number. Their size
 *          is the number of sentences.
 *
 * Design: draws facts first, then a gap for each (0: before the first sentence, size: after the last), and writes
 *         text and facts in the order of gaps.
 */
#include <assert.h>
#include <string.h>

#include "lab/tasks/task_internal.h"
#include "lab/tasks/words.h"

#define MAX_FACTS   16
#define MAX_KEYS    16
#define CHAIN       5 // variables
#define N_DIGITS    10
#define SMALL_BYTES 12 // numbers of 5 or 10 digits, names of 5 letters

struct fact {
    char text[SL_NEEDLE_BYTES];
    char value[SL_VALUE_BYTES];
    int key; // index of the key
    int64_t gap;
    bool last; // the last fact of its gap
};

// Sorts facts by gap; facts of the same gap keep their order.
static void sort_facts(struct fact *facts, int n) {
    for (int i = 1; i < n; i++) {
        struct fact fact = facts[i];
        int to = i;
        for (; to > 0 && (facts[to - 1].gap > fact.gap || (facts[to - 1].gap == fact.gap && facts[to - 1].last));
             to--) {
            facts[to] = facts[to - 1];
        }
        facts[to] = fact;
    }
}

// Places the first fact, which is asked about, at the task's depth, and the others anywhere.
static void place_facts(struct sl_draft *draft, int64_t size, struct fact *facts, int n) {
    facts[0].gap = sl_draw_place(draft, size + 1);
    facts[0].last = draft->config->depth >= 1; // nothing comes between it and the question
    for (int i = 1; i < n; i++) {
        facts[i].gap = (int64_t)sl_random_below(&draft->random, (uint64_t)size + 1);
        facts[i].last = false;
    }
    sort_facts(facts, n);
}

// Writes the context. Facts are in the order of their gaps.
static void write_context(struct sl_draft *draft, int64_t size, const struct fact *facts, int n) {
    int64_t first = 0, written = 0;
    if (draft->haystack != sl_haystack_noise()) { // makes samples of the same text differ
        first = (int64_t)sl_random_below(&draft->random, (uint64_t)sl_haystack_n_sentences(draft->haystack));
    }
    for (int i = 0; i < n; i++) {
        sl_haystack_write(draft->haystack, first + written, facts[i].gap - written, draft->prompt);
        fputs(facts[i].text, draft->prompt);
        written = facts[i].gap;
    }
    sl_haystack_write(draft->haystack, first + written, size - written, draft->prompt);
}

// --- needles ---------------------------------------------------------------------------------------------------------
static void write_question(FILE *out, const struct sl_task_kind *kind, const char *noun,
                           char keys[][SL_WORD_PAIR_BYTES]) {
    if (kind->n_asked > 1) {
        fprintf(out, "\nWhat are all the special magic %ss for ", noun);
        for (int k = 0; k < kind->n_asked; k++) {
            fprintf(out, "%s%s", k ? ", " : "", keys[k]);
        }
        fprintf(out, " mentioned in the provided text? The special magic %ss mentioned in the provided text are", noun);
    } else if (kind->n_values > 1) {
        fprintf(out,
                "\nWhat are all the special magic %ss for %s mentioned in the provided text? "
                "The special magic %ss for %s mentioned in the provided text are",
                noun, keys[0], noun, keys[0]);
    } else {
        sl_print_needle_question(out, noun, keys[0]);
    }
}

enum sl_status sl_write_needles(struct sl_draft *draft, int64_t size) {
    const struct sl_task_kind *kind = draft->task->kind;
    const char *noun = kind->uuids ? "uuid" : "number";
    char keys[MAX_KEYS][SL_WORD_PAIR_BYTES];
    struct fact facts[MAX_FACTS];
    int n = 0;
    assert(kind->n_keys <= MAX_KEYS && kind->n_keys * kind->n_values <= MAX_FACTS);
    struct sl_supply supplied_keys = sl_supply_start(draft), numbers = sl_supply_start(draft);
    for (int k = 0; k < kind->n_keys; k++) {
        sl_supply_key(&supplied_keys, keys[k]);
        for (int v = 0; v < kind->n_values; v++, n++) {
            struct fact *fact = &facts[n];
            fact->key = k;
            if (kind->uuids) {
                sl_draw_uuid(&draft->random, fact->value);
            } else {
                sl_supply_number(&numbers, fact->value);
            }
            sl_needle_text(noun, keys[k], fact->value, fact->text);
        }
    }
    place_facts(draft, size, facts, n);
    write_context(draft, size, facts, n);
    write_question(draft->prompt, kind, noun, keys);
    enum sl_status status = SL_OK; // answers in the order of the question; answers of one key in the order of the text
    for (int k = 0; k < kind->n_asked; k++) {
        for (int i = 0; i < n && status == SL_OK; i++) {
            status = facts[i].key == k ? sl_add_answer(draft, facts[i].value) : SL_OK;
        }
    }
    return status == SL_OK && kind->n_asked > 1 ? sl_complete(draft, " ", keys, ".") : status;
}

// --- variables -------------------------------------------------------------------------------------------------------
enum sl_status sl_write_variables(struct sl_draft *draft, int64_t size) {
    struct fact facts[CHAIN];
    char names[CHAIN][SMALL_BYTES];
    struct sl_supply supplied_names = sl_supply_start(draft);
    int number = 10000 + (int)sl_random_below(&draft->random, 90000);
    for (int i = 0; i < CHAIN; i++) {
        facts[i] = (struct fact){.gap = (int64_t)sl_random_below(&draft->random, (uint64_t)size + 1)};
    }
    sort_facts(facts, CHAIN); // sorted first: a variable is set before it is used
    enum sl_status status = SL_OK;
    for (int i = 0; i < CHAIN && status == SL_OK; i++) {
        sl_supply_letters(&supplied_names, 'A', names[i]);
        if (i == 0) {
            snprintf(facts[i].text, SL_NEEDLE_BYTES, " VAR %s = %d.", names[i], number);
        } else {
            snprintf(facts[i].text, SL_NEEDLE_BYTES, " VAR %s = VAR %s.", names[i], names[i - 1]);
        }
        status = sl_add_answer(draft, names[i]);
    }
    write_context(draft, size, facts, CHAIN);
    fprintf(draft->prompt,
            "\nWhich variables hold the value %d, directly or through another variable? "
            "The variables that hold the value %d are",
            number, number);
    return status;
}

// --- passkey, number -------------------------------------------------------------------------------------------------
static enum sl_status write_said_twice(struct sl_draft *draft, int64_t size, const char *what, const char *digits) {
    struct fact fact;
    snprintf(fact.text, SL_NEEDLE_BYTES, " The %s is %s. Remember it. %s is the %s.", what, digits, digits, what);
    place_facts(draft, size, &fact, 1);
    write_context(draft, size, &fact, 1);
    fprintf(draft->prompt, "\nWhat is the %s? The %s is", what, what);
    return sl_add_answer(draft, digits);
}

enum sl_status sl_write_passkey(struct sl_draft *draft, int64_t size) {
    char digits[SMALL_BYTES];
    snprintf(digits, sizeof digits, "%d", 10000 + (int)sl_random_below(&draft->random, 90000));
    return write_said_twice(draft, size, "pass key", digits);
}

// Writes digits in runs of 1 to 3, the first not 0: they are harder to copy than digits that differ.
enum sl_status sl_write_number(struct sl_draft *draft, int64_t size) {
    char digits[SMALL_BYTES] = {(char)('1' + sl_random_below(&draft->random, 9))};
    int n = 0;
    while (n < N_DIGITS) {
        // Chooses a digit that differs from the previous run's: one of the 9 others.
        char digit =
            n == 0 ? digits[0] : (char)('0' + (digits[n - 1] - '0' + 1 + (int)sl_random_below(&draft->random, 9)) % 10);
        int run = 1 + (int)sl_random_below(&draft->random, 3);
        for (int i = 0; i < run && n < N_DIGITS; i++) {
            digits[n++] = digit;
        }
    }
    return write_said_twice(draft, size, "sequence of digits", digits);
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: text that several tasks write: keys, values, names, the fact and the question of the needle tasks.
#include <assert.h>
#include <string.h>

#include "lab/tasks/task_internal.h"

#define N_NUMBERS 9000000 // of 7 digits, the first not 0
#define N_LETTERS 26
#define N_NAMES   (N_LETTERS * N_LETTERS * N_LETTERS * N_LETTERS * N_LETTERS)

struct sl_supply sl_supply_start(struct sl_draft *draft) {
    return (struct sl_supply){.key = sl_random_next(&draft->random), .without = draft->haystack};
}

static uint64_t take(struct sl_supply *supply, uint64_t n) {
    assert(supply->next < n); // tasks have a max_size
    return sl_random_permute(supply->next++, n, supply->key);
}

static bool must_not_occur(const struct sl_supply *supply, const char *text) {
    return supply->without && sl_haystack_contains(supply->without, text);
}

void sl_supply_key(struct sl_supply *supply, char *key_out) {
    do {
        sl_word_pair(take(supply, SL_N_WORD_PAIRS), key_out);
    } while (must_not_occur(supply, key_out));
}

void sl_supply_number(struct sl_supply *supply, char *value_out) {
    do {
        snprintf(value_out, SL_VALUE_BYTES, "%d", 1000000 + (int)take(supply, N_NUMBERS));
    } while (must_not_occur(supply, value_out));
}

void sl_supply_letters(struct sl_supply *supply, char first, char *name_out) {
    do {
        uint64_t number = take(supply, N_NAMES);
        for (int i = 0; i < 5; i++, number /= N_LETTERS) {
            name_out[i] = (char)(first + number % N_LETTERS);
        }
        name_out[5] = '\0';
    } while (must_not_occur(supply, name_out));
}

void sl_draw_uuid(struct sl_random *random, char *value_out) {
    uint64_t a = sl_random_next(random), b = sl_random_next(random);
    snprintf(value_out, SL_VALUE_BYTES, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(a >> 32),
             (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xffff), (unsigned)(b >> 48),
             (unsigned long long)(b & 0xffffffffffff));
}

void sl_needle_text(const char *noun, const char *key, const char *value, char *text_out) {
    snprintf(text_out, SL_NEEDLE_BYTES, " One of the special magic %ss for %s is: %s.", noun, key, value);
}

void sl_print_needle_question(FILE *out, const char *noun, const char *key) {
    fprintf(out,
            "\nWhat is the special magic %s for %s mentioned in the provided text? "
            "The special magic %s for %s mentioned in the provided text is",
            noun, key, noun, key);
}

int64_t sl_draw_place(struct sl_draft *draft, int64_t n_places) {
    int64_t place = (int64_t)sl_random_below(&draft->random, (uint64_t)n_places);
    double depth = draft->config->depth;
    return depth < 0 ? place : (int64_t)(depth * (double)(n_places - 1) + 0.5);
}

enum sl_status sl_add_answer(struct sl_draft *draft, const char *text) {
    return sl_sample_add_answer(draft->sample, text, strlen(text), draft->err);
}

enum sl_status sl_complete(struct sl_draft *draft, const char *before, char (*names)[SL_WORD_PAIR_BYTES],
                           const char *after) {
    struct sl_sample *sample = draft->sample;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&sample->completion, &n_bytes);
    SL_FAIL_IF(!out, draft->err, SL_ERR_EXHAUSTED, "no memory for an answer");
    fputs(before, out);
    for (size_t i = 0; i < sample->n_answers; i++) {
        fprintf(out, "%s%s%s%s", i ? ", " : "", names ? names[i] : "", names ? ": " : "", sample->answers[i]);
    }
    fputs(after, out);
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return failed ? sl_fail(draft->err, SL_ERR_EXHAUSTED, "no memory for an answer") : SL_OK;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the interface between the table of tasks (lab/tasks/task.c) and the writers of prompts.
 *
 * Design: a writer is a function of (draft, size). Called with another size it draws the same keys, values and
 *         positions from the same stream, so that the number of tokens grows with size, and the largest size that
 *         fits can be searched. The unit of size is sentences of haystack, facts, or words; each writer documents it.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "lab/tasks/haystack.h"
#include "lab/tasks/task.h"
#include "lab/tasks/words.h"
#include "lab/random.h"

// A prompt that is being written.
struct sl_draft {
    const struct sl_task *task;
    const struct sl_task_config *config;
    const struct sl_haystack *haystack; // the task's: noise or config's; NULL for tasks without
    struct sl_random random;            // at its initial state when a writer is called
    FILE *prompt;                       // write failures are detected when it is closed
    struct sl_sample *sample;           // takes the answers
    struct sl_error *err;
};

enum sl_haystack_use { SL_HAYSTACK_NONE, SL_HAYSTACK_NOISE, SL_HAYSTACK_ESSAY };

struct sl_task_kind {
    enum sl_status (*write)(struct sl_draft *draft, int64_t size);
    int64_t min_size; // smallest useful size
    int64_t max_size; // largest size with enough different words; 0: any
    enum sl_haystack_use haystack;
    // For sl_write_needles():
    bool uuids;                    // values are uuids, else numbers of 7 digits
    int n_keys, n_values, n_asked; // number of keys, values per key, asked keys
};

enum sl_status sl_write_needles(struct sl_draft *draft, int64_t size);        // task_needles.c: sentences
enum sl_status sl_write_variables(struct sl_draft *draft, int64_t size);      //
enum sl_status sl_write_passkey(struct sl_draft *draft, int64_t size);        //
enum sl_status sl_write_number(struct sl_draft *draft, int64_t size);         //
enum sl_status sl_write_only_needles(struct sl_draft *draft, int64_t size);   // task_records.c: facts
enum sl_status sl_write_kv(struct sl_draft *draft, int64_t size);             //                 pairs
enum sl_status sl_write_common_words(struct sl_draft *draft, int64_t size);   // task_words.c: words that are not common
enum sl_status sl_write_frequent_words(struct sl_draft *draft, int64_t size); //             words, about

#define SL_MAX_OTHER_WORDS 190096 // words that sl_write_common_words() has

// --- parts that several of them write (task_parts.c) -----------------------------------------------------------------
#define SL_VALUE_BYTES 40 // the longest value, a uuid, and a zero byte

// Draws different items one after the other, in an order specific to the sample.
struct sl_supply {
    uint64_t key, next;
    const struct sl_haystack *without; // excludes items that occur in it; NULL: none
};
struct sl_supply sl_supply_start(struct sl_draft *draft);                     // excludes items of the draft's haystack
void sl_supply_key(struct sl_supply *supply, char *key_out);                  // [SL_WORD_PAIR_BYTES] "stone-window"
void sl_supply_number(struct sl_supply *supply, char *value_out);             // [SL_VALUE_BYTES] 7 digits
void sl_supply_letters(struct sl_supply *supply, char first, char *name_out); // [6] 5 letters from 'a' or 'A' on
void sl_draw_uuid(struct sl_random *random, char *value_out);                 // [SL_VALUE_BYTES]

// Write the fact and the question of the needle tasks; noun: "number" or "uuid".
#define SL_NEEDLE_BYTES 160
void sl_needle_text(const char *noun, const char *key, const char *value, char *text_out); // [SL_NEEDLE_BYTES]
void sl_print_needle_question(FILE *out, const char *noun, const char *key);

// Draws a position in 0..n_places-1 for the asked fact: by the task's depth, or anywhere. Draws once in either case.
int64_t sl_draw_place(struct sl_draft *draft, int64_t n_places);

enum sl_status sl_add_answer(struct sl_draft *draft, const char *text);

/*
 * Writes the expected text after the prompt: all answers, sl_complete(draft, " ", NULL, "."). names: NULL, or
 * [n_answers], each written before its answer, with a colon.
 */
enum sl_status sl_complete(struct sl_draft *draft, const char *before, char (*names)[SL_WORD_PAIR_BYTES],
                           const char *after);

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of tasks, and the search for the size that fills a prompt.
 *
 * Design: writes a prompt of some size and counts its tokens; the token counts of the last sizes give the next size,
 *         within bounds (bracketed secant method). Units are alike, so about five prompts are written for any length,
 *         the first of them nearly empty.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/tasks/task_internal.h"
#include "lab/tasks/words.h"

// --- the table -------------------------------------------------------------------------------------------------------
// How the table uses writers.
#define NEEDLES(text, ...)                                                                                             \
    { .write = sl_write_needles, .haystack = SL_HAYSTACK_##text, __VA_ARGS__ }
#define ONE_OF(n) .n_keys = n, .n_values = 1, .n_asked = 1
static const struct sl_task_kind niah_noise = NEEDLES(NOISE, ONE_OF(1));
static const struct sl_task_kind niah_essay = NEEDLES(ESSAY, ONE_OF(1));
static const struct sl_task_kind niah_uuid = NEEDLES(ESSAY, ONE_OF(1), .uuids = true);
static const struct sl_task_kind multikey_4 = NEEDLES(ESSAY, ONE_OF(4));
static const struct sl_task_kind multikey_16 = NEEDLES(ESSAY, ONE_OF(16));
static const struct sl_task_kind multivalue = NEEDLES(ESSAY, .n_keys = 1, .n_values = 4, .n_asked = 1);
static const struct sl_task_kind multiquery = NEEDLES(ESSAY, .n_keys = 4, .n_values = 1, .n_asked = 4);
static const struct sl_task_kind only_needles = {
    .write = sl_write_only_needles, .min_size = 4, .max_size = SL_N_WORD_PAIRS};
static const struct sl_task_kind variables = {.write = sl_write_variables, .haystack = SL_HAYSTACK_NOISE};
static const struct sl_task_kind common_words = {
    .write = sl_write_common_words, .min_size = 10, .max_size = SL_MAX_OTHER_WORDS};
// With fewer words, ranks 4 and 5 might be equally frequent.
static const struct sl_task_kind frequent_words = {.write = sl_write_frequent_words, .min_size = 80};
static const struct sl_task_kind passkey = {.write = sl_write_passkey, .haystack = SL_HAYSTACK_NOISE};
static const struct sl_task_kind number = {.write = sl_write_number, .haystack = SL_HAYSTACK_NOISE};
static const struct sl_task_kind kv = {.write = sl_write_kv, .min_size = 4};

// To add a task: add a row here, a kind above, a writer if no existing one fits, and a line in
// docs/EVALUATION.md, and add it to lab/sluice_eval. The tests run every row.
static const struct sl_task tasks[] = {
    {"niah-noise", "the number of one key, in four sentences repeated", 24, 1, true, 40, &niah_noise},
    {"niah-essay", "the number of one key, in running text", 24, 1, true, 40, &niah_essay},
    {"niah-uuid", "the uuid of one key, in running text", 64, 1, true, 50, &niah_uuid},
    {"multikey-4", "the number of one of 4 keys", 24, 4, true, 70, &multikey_4},
    {"multikey-16", "the number of one of 16 keys", 24, 16, true, 200, &multikey_16},
    {"multikey-needles", "the number of one key among as many as fit", 24, 1, true, 70, &only_needles},
    {"multivalue", "all 4 numbers of one key", 96, 4, false, 70, &multivalue},
    {"multiquery", "the numbers of all of 4 keys", 160, 4, false, 80, &multiquery},
    {"variables", "the 5 variables that one number was passed on to", 64, 5, false, 45, &variables},
    {"common-words", "the 10 words that a list has 30 times", 160, 0, false, 950, &common_words},
    {"frequent-words", "the 3 most frequent of made-up words", 40, 0, false, 75, &frequent_words},
    // InfiniteBench's:
    {"passkey", "5 digits that are said twice", 16, 1, true, 25, &passkey},
    {"number", "10 digits in runs that are said twice", 24, 1, true, 30, &number},
    {"kv", "the value of a key in a JSON object of uuids", 64, 1, true, 85, &kv},
    {0},
};

const struct sl_task *sl_tasks(void) {
    return tasks;
}

const struct sl_task *sl_task_find(const char *name) {
    for (const struct sl_task *task = tasks; task->name; task++) {
        if (strcmp(task->name, name) == 0) {
            return task;
        }
    }
    return NULL;
}

// --- one prompt ------------------------------------------------------------------------------------------------------
struct cost {
    int64_t size, n_tokens;
};

struct trial {
    struct cost cost;
    struct sl_sample sample;
};

// draft: passed by value, so that every trial begins at the start of the random stream.
static enum sl_status make_trial(struct sl_draft draft, int64_t size, struct trial *trial_out) {
    struct trial trial = {.cost.size = size};
    size_t n_bytes = 0, n_ids = 0;
    int32_t *ids = NULL;
    draft.sample = &trial.sample;
    draft.prompt = open_memstream(&trial.sample.prompt, &n_bytes);
    SL_FAIL_IF(!draft.prompt, draft.err, SL_ERR_EXHAUSTED, "no memory for a prompt");
    enum sl_status status = draft.task->kind->write(&draft, size);
    if (status == SL_OK && !trial.sample.completion) { // most tasks share this form
        status = sl_complete(&draft, " ", NULL, ".");
    }
    bool failed = ferror(draft.prompt) != 0;
    failed = fclose(draft.prompt) != 0 || failed;
    if (status == SL_OK && failed) {
        status = sl_fail(draft.err, SL_ERR_EXHAUSTED, "no memory for a prompt of %zu bytes", n_bytes);
    }
    if (status == SL_OK) {
        status =
            sl_tokenizer_encode(draft.config->tokenizer, trial.sample.prompt, n_bytes, true, &ids, &n_ids, draft.err);
    }
    if (status != SL_OK) {
        sl_sample_cleanup(&trial.sample);
        return status;
    }
    free(ids);
    trial.cost.n_tokens = (int64_t)n_ids;
    *trial_out = trial;
    return SL_OK;
}

// --- the largest that fits -------------------------------------------------------------------------------------------
#define FIRST_STEP   32
#define N_SECANTS    10 // then bisection: it also ends for texts with unequal units
#define MOST_AT_ONCE 8  // sizes grow at most by this factor: a short prompt predicts a long one poorly

// Returns where the line through the last two costs reaches n_tokens, strictly between the bounds.
static int64_t guess_size(const struct cost *last, const struct cost *before, int64_t n_tokens, int64_t fits,
                          int64_t too_large) {
    double slope = (double)(last->n_tokens - before->n_tokens) / (double)(last->size - before->size);
    double most = MOST_AT_ONCE * (double)fits + FIRST_STEP;
    double guess = slope > 0 ? floor((double)last->size + (double)(n_tokens - last->n_tokens) / slope) : most;
    guess = fmin(fmin(guess, most), (double)too_large - 1);
    return (int64_t)fmax(guess, (double)fits + 1);
}

// Finds the largest size that fits. best_inout: the trial of the smallest size, which fits; becomes that of the
// largest.
static enum sl_status fill(const struct sl_draft *draft, struct trial *best_inout) {
    const struct sl_task_kind *kind = draft->task->kind;
    int64_t n_tokens = draft->config->n_tokens;
    int64_t too_large = kind->max_size > 0 ? kind->max_size + 1 : INT64_MAX;
    int64_t size = best_inout->cost.size + FIRST_STEP;
    struct cost before = best_inout->cost;
    for (int step = 1; best_inout->cost.size + 1 < too_large; step++) {
        struct trial trial;
        SL_TRY(make_trial(*draft, size < too_large ? size : too_large - 1, &trial));
        struct cost last = trial.cost;
        if (last.n_tokens <= n_tokens) {
            sl_sample_cleanup(&best_inout->sample);
            *best_inout = trial;
        } else {
            sl_sample_cleanup(&trial.sample);
            too_large = last.size;
        }
        if (step > N_SECANTS && too_large != INT64_MAX) {
            size = best_inout->cost.size + (too_large - best_inout->cost.size) / 2;
        } else {
            size = guess_size(&last, &before, n_tokens, best_inout->cost.size, too_large);
        }
        before = last;
    }
    return SL_OK;
}

// Rejects a task that has no more words while one more would fit: it cannot fill the prompt.
static enum sl_status check_filled(const struct sl_task *task, const struct sl_task_config *config,
                                   const struct cost *cost, struct sl_error *err) {
    if (task->kind->max_size == 0 || cost->size < task->kind->max_size) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_RANGE, "%s has different words for %lld tokens, not for %lld", task->name,
                   (long long)cost->n_tokens, (long long)config->n_tokens);
}

static enum sl_status check_config(const struct sl_task *task, const struct sl_task_config *config,
                                   struct sl_error *err) {
    SL_FAIL_IF(isnan(config->depth) || config->depth > 1, err, SL_ERR_INVALID,
               "%s: a depth of %g; it is from 0 to 1, or negative for anywhere", task->name, config->depth);
    SL_FAIL_IF(config->depth >= 0 && !task->has_depth, err, SL_ERR_UNSUPPORTED,
               "%s does not ask about one place; leave the depth out", task->name);
    SL_FAIL_IF(task->kind->haystack == SL_HAYSTACK_ESSAY && !config->haystack, err, SL_ERR_INVALID,
               "%s needs a text to hide facts in; give one", task->name);
    SL_FAIL_IF(config->n_tokens > SL_TASK_MAX_TOKENS, err, SL_ERR_RANGE,
               "%s: a prompt of %lld tokens; at most %d can be made", task->name, (long long)config->n_tokens,
               SL_TASK_MAX_TOKENS);
    return SL_OK;
}

enum sl_status sl_task_make(const struct sl_task *task, const struct sl_task_config *config, uint64_t index,
                            struct sl_sample *sample_out, struct sl_error *err) {
    const struct sl_task_kind *kind = task->kind;
    struct sl_draft draft = {.task = task,
                             .config = config,
                             .haystack = kind->haystack == SL_HAYSTACK_NOISE   ? sl_haystack_noise()
                                         : kind->haystack == SL_HAYSTACK_ESSAY ? config->haystack
                                                                               : NULL,
                             .random = sl_random_start(task->name, config->seed, index),
                             .err = err};
    struct trial best = {0};
    enum sl_status status = check_config(task, config, err);
    if (status == SL_OK) {
        status = make_trial(draft, kind->min_size, &best);
    }
    if (status == SL_OK && best.cost.n_tokens > config->n_tokens) {
        status = sl_fail(err, SL_ERR_RANGE, "%s does not fit into a prompt of %lld tokens: it needs %lld", task->name,
                         (long long)config->n_tokens, (long long)best.cost.n_tokens);
    }
    if (status == SL_OK) {
        status = fill(&draft, &best);
    }
    if (status == SL_OK) {
        status = check_filled(task, config, &best.cost, err);
    }
    if (status != SL_OK) {
        sl_sample_cleanup(&best.sample);
        return status;
    }
    best.sample.max_new_tokens = task->max_new_tokens;
    *sample_out = best.sample;
    return SL_OK;
}

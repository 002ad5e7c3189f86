// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the answers of an evaluation, each written to disk immediately, so that a run that was stopped or killed
 *          can continue.
 *
 * Design: a file of JSON lines. The first describes the run:
 *
 *     {"sluice_eval": 1, "model": "9d0c...", "weights": "stored", "tokenizer": "51ab...", "seed": 1}
 *
 * and every other one is an answer:
 *
 *     {"recipe": "h2o,budget=0.2", "cell": "niah-essay", "tokens": 4096, "depth": -1.0, "index": 0,    which question
 *      "name": "h2o", "budget": "20%", "prompt": "8f31...", "n_prompt": 4093, "n_reused": 0,
 *      "score": 1.0, "answer": " 4817263.",                     or instead of these:  "refused": "why"
 *      "shipped_bytes": 1048576, "offloaded_bytes": 0, "full_bytes": 5242880, "resident_bytes": 1114112,
 *      "slots_per_head": 818.6, "ttft_ms": 212.5, "tpot_ms": 1.3}
 *
 * An answer is identified by its recipe, in canonical form, and its question, whichever run writes it; of several,
 * the last one counts. A line that was truncated when its writer was killed is dropped. "prompt" is a hash of the
 * tokens. It detects answers to other prompts under the same name (another haystack, another file of questions)
 * before they are mixed.
 * Threads: one. Only one process at a time may open the file (SL_ERR_EXISTS).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct sl_eval_run {
    uint64_t model; // fingerprint, with its weights
    const char *weights;
    uint64_t tokenizer;
    uint64_t seed;
};

// A question under a recipe.
struct sl_eval_key {
    const char *recipe; // canonical
    const char *cell;
    int64_t n_tokens; // for a task; 0: a data set
    double depth;     // for a task; negative: anywhere
    int64_t index;
};

struct sl_eval_answer {
    const char *name, *budget; // of the recipe, as in the plan
    const char *refused;       // reason for no answer; NULL: there is one
    const char *text;
    double score; // 0 to 1
    uint64_t prompt;
    int64_t n_prompt, n_reused; // reused: not read again (lab/eval/run/answerer.h); excluded from ttft_ms
    // offloaded: 0 in lines of older files without this number, for any recipe.
    int64_t shipped_bytes, offloaded_bytes, full_bytes, resident_bytes;
    double slots_per_head, ttft_ms, tpot_ms;
};

struct sl_eval_results;

/*
 * Opens the results. path NULL: in memory alone. SL_ERR_PRECONDITION: the file belongs to another run; err gives the
 * difference. SL_ERR_INVALID: it is not a results file, or a line in its middle is invalid. SL_ERR_IO: it cannot be
 * written. SL_ERR_EXISTS: another process uses it.
 */
enum sl_status sl_eval_results_open(const char *path, const struct sl_eval_run *run,
                                    struct sl_eval_results **results_out, struct sl_error *err);
void sl_eval_results_close(struct sl_eval_results **results); // accepts NULL

// Finds an answer; returns false if there is none. The results own the texts of *answer_out.
bool sl_eval_results_find(const struct sl_eval_results *results, const struct sl_eval_key *key,
                          struct sl_eval_answer *answer_out);

// Appends an answer to the file, whole or (on failure) in a form that will be dropped.
enum sl_status sl_eval_results_add(struct sl_eval_results *results, const struct sl_eval_key *key,
                                   const struct sl_eval_answer *answer, struct sl_error *err);

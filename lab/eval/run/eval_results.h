// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the answers of an evaluation, each on disk as soon as it is there, so that a run that was stopped or killed
 *          goes on where it was.
 *
 * Design: a file of JSON lines. The first says what was asked:
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
 * Whichever run writes to it, an answer is known by its recipe, in canonical form, and its question; of several the
 * last one counts. A line that was cut off when its writer was killed is dropped. "prompt" is a hash of the tokens: the
 * answers to other prompts under the same name (another haystack, another file of questions) are noticed when they
 * would be mixed.
 * Threads: one. One process at a time has the file (SL_ERR_EXISTS).
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

// Which question under which recipe.
struct sl_eval_key {
    const char *recipe; // canonical
    const char *cell;
    int64_t n_tokens; // of a task; 0: a data set
    double depth;     // of a task; negative: anywhere
    int64_t index;
};

struct sl_eval_answer {
    const char *name, *budget; // of the recipe, as in the plan
    const char *refused;       // why there is no answer; NULL: there is one
    const char *text;
    double score; // 0 to 1
    uint64_t prompt;
    int64_t n_prompt, n_reused; // reused: of the prompt, read before (lab/eval/run/answerer.h); ttft_ms is without them
    // offloaded: 0 in lines of files that were written before there was such a number, whatever the recipe.
    int64_t shipped_bytes, offloaded_bytes, full_bytes, resident_bytes;
    double slots_per_head, ttft_ms, tpot_ms;
};

struct sl_eval_results;

/*
 * path NULL: in memory alone. SL_ERR_PRECONDITION: the file is of another run; says what differs. SL_ERR_INVALID: it is
 * no file of results, or a line in its middle is none. SL_ERR_IO: it cannot be written. SL_ERR_EXISTS: another process
 * has it.
 */
enum sl_status sl_eval_results_open(const char *path, const struct sl_eval_run *run,
                                    struct sl_eval_results **results_out, struct sl_error *err);
void sl_eval_results_close(struct sl_eval_results **results); // accepts NULL

// False: there is none. The texts of *answer_out are the results'.
bool sl_eval_results_find(const struct sl_eval_results *results, const struct sl_eval_key *key,
                          struct sl_eval_answer *answer_out);

// Write it to the file, whole or (if that fails) so that it will be dropped.
enum sl_status sl_eval_results_add(struct sl_eval_results *results, const struct sl_eval_key *key,
                                   const struct sl_eval_answer *answer, struct sl_error *err);

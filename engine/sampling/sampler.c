// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: chooses the next token from logits.
 *
 *      raw       lse = log sum_i exp(l_i),  logprob_i = l_i - lse
 *      penalty   l_i := l_i / r if l_i > 0 else l_i * r,  for every id i of the history, once
 *                l_i := l_i - frequency * n_i - presence,  for every id i that occurs n_i > 0 times in the output
 *      weights   w_i = exp((l_i - max l) / T)
 *      top-k     the k largest l_i remain
 *      top-p     of these, the fewest largest whose weights reach p of the sum remain
 *      min-p     of these, those with w_i >= min_p remain: the largest weight is 1
 *      draw      the first candidate at which the running sum of weights exceeds u times their sum, u in [0, 1)
 *
 * Choosing from the best logits of a row: penalties that are above 1, or positive, only lower logits. A candidate that is still not below
 * the last of the best after the penalty is therefore ahead of every token that is not among them. These leading
 * candidates are the leading ones of the whole row, in its order. Greedy needs one of them, top-k needs k. Top-p
 * needs the sum of all weights; for the tokens beside the best, only the sum before the penalty is known. The nucleus
 * must be the same for the most and the least that the penalty may have removed.
 *
 * Design: the vocabulary is never sorted. Top-k keeps the k best in a heap in one pass over the logits. Top-p drops
 *         the tokens that cannot matter even together, then takes the largest from a heap until p is reached. Order
 *         is total (logit descending, then id ascending), so no result depends on how a selection works. Sums run in
 *         double and in a fixed order.
 */
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/sampling/sampler.h"

struct candidate {
    double logit, weight;
    int32_t id;
};

struct sl_sampler {
    int32_t n_vocab;
    uint32_t generation;          // generation of the marks; never 0
    uint32_t *marks;              // [n_vocab] an entry equal to generation: the id is in the history
    uint32_t *n_written;          // [n_vocab] of a marked id: how often it is in the output
    struct candidate *candidates; // [n_vocab]
};

// --- parameters ------------------------------------------------------------------------------------------------------
enum sl_status sl_sampling_check(const struct sl_sampling *sampling, struct sl_error *err) {
    // Comparisons are written so that NaN fails them.
    SL_FAIL_IF(!(sampling->temperature >= 0) || !isfinite(sampling->temperature), err, SL_ERR_INVALID,
               "temperature is %g; it must be finite and at least 0", (double)sampling->temperature);
    SL_FAIL_IF(sampling->top_k < 0, err, SL_ERR_INVALID, "top_k is %d; it must be at least 1, or 0 for off",
               sampling->top_k);
    SL_FAIL_IF(!(sampling->top_p > 0 && sampling->top_p <= 1), err, SL_ERR_INVALID,
               "top_p is %g; it must be above 0 and at most 1", (double)sampling->top_p);
    SL_FAIL_IF(!(sampling->repetition_penalty > 0) || !isfinite(sampling->repetition_penalty), err, SL_ERR_INVALID,
               "repetition_penalty is %g; it must be finite and above 0", (double)sampling->repetition_penalty);
    SL_FAIL_IF(!(fabsf(sampling->frequency_penalty) <= 2), err, SL_ERR_INVALID,
               "frequency_penalty is %g; it must be -2 .. 2", (double)sampling->frequency_penalty);
    SL_FAIL_IF(!(fabsf(sampling->presence_penalty) <= 2), err, SL_ERR_INVALID,
               "presence_penalty is %g; it must be -2 .. 2", (double)sampling->presence_penalty);
    SL_FAIL_IF(!(sampling->min_p >= 0 && sampling->min_p <= 1), err, SL_ERR_INVALID, "min_p is %g; it must be 0 .. 1",
               (double)sampling->min_p);
    SL_FAIL_IF(sampling->n_logprobs < 0 || sampling->n_logprobs > SL_MAX_LOGPROBS, err, SL_ERR_INVALID,
               "n_logprobs is %d; it must be 0 .. %d", sampling->n_logprobs, SL_MAX_LOGPROBS);
    return SL_OK;
}

enum sl_status sl_sampler_create(int32_t n_vocab, struct sl_sampler **sampler_out, struct sl_error *err) {
    SL_FAIL_IF(n_vocab < 1, err, SL_ERR_INVALID, "a sampler for a vocabulary of %d tokens", n_vocab);
    SL_NEW_OR_FAIL(struct sl_sampler, sampler, err, "no memory for a sampler");
    sampler->n_vocab = n_vocab;
    sampler->marks = calloc((size_t)n_vocab, sizeof(*sampler->marks));
    sampler->n_written = malloc((size_t)n_vocab * sizeof(*sampler->n_written));
    sampler->candidates = malloc((size_t)n_vocab * sizeof(*sampler->candidates));
    if (!sampler->marks || !sampler->n_written || !sampler->candidates) {
        sl_sampler_destroy(&sampler);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a sampler of %d tokens", n_vocab);
    }
    *sampler_out = sampler;
    return SL_OK;
}

void sl_sampler_destroy(struct sl_sampler **sampler) {
    if (*sampler) {
        free((*sampler)->marks);
        free((*sampler)->n_written);
        free((*sampler)->candidates);
        free(*sampler);
    }
    *sampler = NULL;
}

// --- random numbers --------------------------------------------------------------------------------------------------
// Returns a number in [0, 1), a function of (seed, step) alone. Mixes the seed first, so that consecutive seeds give
// unrelated streams.
static double uniform(uint64_t seed, int64_t step) {
    uint64_t bits = sl_mix(sl_mix(seed + SL_GOLDEN) + ((uint64_t)step + 1) * SL_GOLDEN);
    return (double)(bits >> 11) * 0x1p-53;
}

// --- order and heap --------------------------------------------------------------------------------------------------
static bool better(const struct candidate *a, const struct candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static bool worse(const struct candidate *a, const struct candidate *b) {
    return better(b, a);
}

typedef bool (*before_fn)(const struct candidate *a, const struct candidate *b);

// Restores the heap below i: no element has one of its children before it.
static void sift_down(struct candidate *heap, int32_t n, int32_t i, before_fn before) {
    struct candidate moved = heap[i];
    for (int64_t child = 2 * (int64_t)i + 1; child < n; child = 2 * (int64_t)i + 1) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &moved)) {
            break;
        }
        heap[i] = heap[child];
        i = (int32_t)child;
    }
    heap[i] = moved;
}

static void heapify(struct candidate *heap, int32_t n, before_fn before) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) {
        sift_down(heap, n, i, before);
    }
}

// Moves the first of heap[0 .. n) to heap[n - 1]; the elements before it are a heap of n - 1.
static void pop_to_end(struct candidate *heap, int32_t n, before_fn before) {
    struct candidate top = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0, before);
    heap[n - 1] = top;
}

// --- the steps -------------------------------------------------------------------------------------------------------
// Returns true if no token counts for its occurrence in the output.
static bool is_blind_to_output(const struct sl_sampling *sampling) {
    return sampling->frequency_penalty == 0 && sampling->presence_penalty == 0;
}

// Returns how many of the last ids of the history the penalties use.
static int64_t n_penalized(const struct sl_sampling *sampling, int64_t n_history, int64_t step) {
    if (sampling->repetition_penalty != 1) {
        return n_history;
    }
    return is_blind_to_output(sampling) ? 0 : step < n_history ? step : n_history;
}

// Marks the ids that the penalties use, and counts the different ones. Returns false if one is outside the vocabulary.
static bool mark_history(struct sl_sampler *sampler, const struct sl_sampling *sampling, const int32_t *history,
                         int64_t n_history, int64_t step, int64_t *n_marked_out) {
    int64_t n_marked = 0;
    if (++sampler->generation == 0) { // after 2^32 calls old marks would look new
        memset(sampler->marks, 0, (size_t)sampler->n_vocab * sizeof(*sampler->marks));
        sampler->generation = 1;
    }
    for (int64_t i = n_history - n_penalized(sampling, n_history, step); i < n_history; i++) {
        if (history[i] < 0 || history[i] >= sampler->n_vocab) {
            return false;
        }
        const bool is_new = sampler->marks[history[i]] != sampler->generation;
        n_marked += is_new;
        sampler->marks[history[i]] = sampler->generation;
        sampler->n_written[history[i]] = (is_new ? 0 : sampler->n_written[history[i]]) + (i >= n_history - step);
    }
    *n_marked_out = n_marked;
    return true;
}

// Returns the logit of an id, after the penalties.
static struct candidate penalized(const struct sl_sampler *sampler, const struct sl_sampling *sampling, int32_t id,
                                  double logit) {
    if (sampler->marks[id] == sampler->generation) {
        const double r = sampling->repetition_penalty;
        const uint32_t n = sampler->n_written[id];
        logit = r == 1 ? logit : logit > 0 ? logit / r : logit * r;
        logit -= n > 0 ? (double)sampling->frequency_penalty * n + (double)sampling->presence_penalty : 0;
    }
    return (struct candidate){.logit = logit, .id = id};
}

// Gathers the finite logits, after the penalties, in the order of their ids. Returns how many. any_marked: some id has a penalty;
// otherwise the marks of the whole vocabulary need not be read.
static int32_t gather(struct sl_sampler *sampler, const struct sl_sampling *sampling, const float *logits,
                      bool any_marked) {
    int32_t n = 0;
    for (int32_t id = 0; id < sampler->n_vocab; id++) {
        if (isfinite(logits[id])) {
            sampler->candidates[n++] = any_marked ? penalized(sampler, sampling, id, logits[id])
                                                  : (struct candidate){.logit = logits[id], .id = id};
        }
    }
    return n;
}

static const struct candidate *best_of(const struct candidate *candidates, int32_t n) {
    const struct candidate *best = &candidates[0];
    for (int32_t i = 1; i < n; i++) {
        if (better(&candidates[i], best)) {
            best = &candidates[i];
        }
    }
    return best;
}

// Sorts a heap that has the worst on top; best first.
static void sort_heap(struct candidate *heap, int32_t n) {
    for (int32_t left = n; left > 1; left--) {
        pop_to_end(heap, left, worse);
    }
}

// Keeps the k best, best first.
static int32_t keep_top_k(struct candidate *candidates, int32_t n, int32_t k) {
    heapify(candidates, k, worse); // the worst of those kept is on top
    for (int32_t i = k; i < n; i++) {
        if (better(&candidates[i], &candidates[0])) {
            candidates[0] = candidates[i];
            sift_down(candidates, k, 0, worse);
        }
    }
    sort_heap(candidates, k);
    return k;
}

// Computes exp((l - max) / T) and returns the sum.
static double weigh(struct candidate *candidates, int32_t n, double max, double temperature) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        candidates[i].weight = exp((candidates[i].logit - max) / temperature);
        sum += candidates[i].weight;
    }
    return sum;
}

// Returns how many of the leading best-first candidates reach `enough`.
static int32_t nucleus_of_sorted(const struct candidate *candidates, int32_t n, double enough) {
    double reached = 0;
    for (int32_t i = 0; i < n; i++) {
        reached += candidates[i].weight;
        if (reached >= enough) {
            return i + 1;
        }
    }
    return n; // rounding: the sum was taken in another order
}

// Does the same for candidates in any order. The nucleus lies at the end of candidates[0 .. *n_heap_out), best last.
static int32_t nucleus_of_unsorted(struct candidate *candidates, int32_t n, double top_p, double sum,
                                   int32_t *n_heap_out) {
    // All tokens below this weight together have less than 1 - p of the sum: the others reach p without them.
    double negligible = (1 - top_p) * sum / n;
    int32_t n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        if (candidates[i].weight >= negligible) {
            candidates[n_heap++] = candidates[i];
        }
    }
    assert(n_heap > 0);
    heapify(candidates, n_heap, better);
    int32_t n_kept = 0;
    for (double reached = 0; n_kept < n_heap && reached < top_p * sum; n_kept++) {
        pop_to_end(candidates, n_heap - n_kept, better);
        reached += candidates[n_heap - n_kept - 1].weight;
    }
    *n_heap_out = n_heap;
    return n_kept;
}

static int32_t draw(struct candidate *candidates, int32_t n, const struct sl_sampling *sampling, int64_t step) {
    const double u = uniform(sampling->seed, step);
    double sum = 0, running = 0;
    for (int32_t i = 0; i < n; i++) {
        candidates[i].weight = candidates[i].weight < (double)sampling->min_p ? 0 : candidates[i].weight;
        sum += candidates[i].weight;
    }
    int32_t last = -1;
    for (int32_t i = 0; i < n; i++) {
        if (candidates[i].weight > 0) {
            last = candidates[i].id;
            running += candidates[i].weight;
            if (running > u * sum) {
                break;
            }
        }
    }
    assert(last >= 0); // the best has weight 1
    return last;
}

static int32_t sample(struct candidate *candidates, int32_t n, const struct sl_sampling *sampling, int64_t step) {
    double max = best_of(candidates, n)->logit, top_p = sampling->top_p;
    bool sorted = sampling->top_k > 0 && sampling->top_k < n;
    if (sorted) {
        n = keep_top_k(candidates, n, sampling->top_k);
    }
    double sum = weigh(candidates, n, max, sampling->temperature);
    if (top_p < 1 && sorted) {
        n = nucleus_of_sorted(candidates, n, top_p * sum);
    } else if (top_p < 1) {
        int32_t n_heap = 0;
        n = nucleus_of_unsorted(candidates, n, top_p, sum, &n_heap);
        candidates += n_heap - n;
    }
    return draw(candidates, n, sampling, step);
}

// --- log probabilities -----------------------------------------------------------------------------------------------
// Computes log sum exp of the finite logits; returns false if there is none.
static bool log_sum_exp(const float *logits, int32_t n, double *lse_out) {
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(logits[i]) && logits[i] > max) {
            max = logits[i];
        }
    }
    if (max == -INFINITY) {
        return false;
    }
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(logits[i])) {
            sum += exp(logits[i] - max);
        }
    }
    *lse_out = max + log(sum);
    return true;
}

// Lists the `wanted` most likely tokens, by insertion: there are at most SL_MAX_LOGPROBS.
static void list_alternatives(const float *logits, int32_t n_vocab, double lse, int wanted, struct sl_token *token) {
    struct candidate best[SL_MAX_LOGPROBS + 1];
    int n = 0;
    for (int32_t id = 0; id < n_vocab && wanted > 0; id++) {
        struct candidate candidate = {.logit = logits[id], .id = id};
        if (!isfinite(logits[id]) || (n == wanted && !better(&candidate, &best[n - 1]))) {
            continue;
        }
        int place = n < wanted ? n++ : n - 1;
        for (; place > 0 && better(&candidate, &best[place - 1]); place--) {
            best[place] = best[place - 1];
        }
        best[place] = candidate;
    }
    for (int i = 0; i < n; i++) {
        token->alternatives[i].id = best[i].id;
        token->alternatives[i].logprob = (float)(best[i].logit - lse);
    }
    token->n_alternatives = n;
}

enum sl_status sl_sampler_next(struct sl_sampler *sampler, const struct sl_sampling *sampling, const float *logits,
                               const int32_t *history, int64_t n_history, int64_t step, struct sl_token *token_out) {
    enum sl_status status = sl_sampling_check(sampling, NULL);
    double lse = 0;
    SL_TRY(status);
    if (!log_sum_exp(logits, sampler->n_vocab, &lse)) {
        return SL_ERR_INTERNAL;
    }
    int64_t n_marked = 0;
    if (!mark_history(sampler, sampling, history, n_history, step, &n_marked)) {
        return SL_ERR_RANGE;
    }
    int32_t n = gather(sampler, sampling, logits, n_marked > 0);
    struct sl_token token = {.id = sampling->temperature == 0 ? best_of(sampler->candidates, n)->id
                                                              : sample(sampler->candidates, n, sampling, step)};
    token.logprob = (float)(logits[token.id] - lse);
    list_alternatives(logits, sampler->n_vocab, lse, sampling->n_logprobs, &token);
    *token_out = token;
    return SL_OK;
}

// --- from the best of a row ------------------------------------------------------------------------------------------
bool sl_sampler_asks(const struct sl_sampling *sampling, int64_t n_history, struct sl_pick *pick_out) {
    bool greedy = sampling->temperature == 0, by_k = !greedy && sampling->top_k > 0;
    const bool raises =
        sampling->repetition_penalty < 1 || sampling->frequency_penalty < 0 || sampling->presence_penalty < 0;
    if (raises || (by_k && sampling->top_k > SL_MAX_CANDIDATES) || (!greedy && !by_k && sampling->top_p >= 1)) {
        return false;
    }
    int64_t most = greedy ? 1 : by_k ? sampling->top_k : SL_MAX_CANDIDATES;
    most += n_penalized(sampling, n_history, n_history); // the penalties may move as many below others
    most = most < sampling->n_logprobs ? sampling->n_logprobs : most;
    *pick_out = (struct sl_pick){.most = (int32_t)(most < SL_MAX_CANDIDATES ? most : SL_MAX_CANDIDATES),
                                 .temperature = greedy || by_k ? 0 : sampling->temperature};
    return true;
}

// The known part of a row.
struct known {
    struct candidate *candidates; // [n] after the penalty, best first
    int32_t n, n_leading;         // leading: ahead of all tokens outside the candidates
    bool complete;                // the candidates are all finite logits
    double last;                  // the lowest candidate logit, before the penalty
    double rest;                  // sum_i exp((l_i - last) / T) over the other tokens, before the penalty
    int64_t n_penalized;          // upper bound over the other tokens
};

static struct known know(struct sl_sampler *sampler, const struct sl_sampling *sampling, const struct sl_picked *picked,
                         int64_t n_marked) {
    struct known known = {.candidates = sampler->candidates,
                          .n = picked->n,
                          .complete = picked->n == picked->n_finite,
                          .last = picked->best[picked->n - 1].logit,
                          .rest = picked->rest,
                          .n_penalized = n_marked};
    for (int32_t i = 0; i < picked->n; i++) {
        int32_t id = picked->best[i].id;
        known.candidates[i] = penalized(sampler, sampling, id, picked->best[i].logit);
        known.n_penalized -= sampler->marks[id] == sampler->generation;
    }
    if (n_marked > 0) {
        heapify(known.candidates, known.n, worse);
        sort_heap(known.candidates, known.n);
    }
    const struct candidate last = {.logit = known.last, .id = picked->best[picked->n - 1].id};
    while (known.n_leading < known.n && (known.complete || !better(&last, &known.candidates[known.n_leading]))) {
        known.n_leading++;
    }
    return known;
}

// Returns how many leading candidates, whose weights are known, reach p of the sum for every possible sum. 0:
// unknown.
static int32_t nucleus_of_known(const struct known *known, double sum, double top_p, double temperature) {
    double unit = exp((known->last - known->candidates[0].logit) / temperature);
    double taken = known->rest < (double)known->n_penalized ? known->rest : (double)known->n_penalized;
    double most = sum + (known->complete ? 0 : unit * known->rest);
    double least = most - (known->complete ? 0 : unit * taken);
    double rounding = 1e-9 * most; // a million terms in another order: 1e-10
    double reached = 0;
    for (int32_t i = 0; i < known->n_leading; i++) {
        reached += known->candidates[i].weight;
        if (reached >= top_p * most + rounding) {
            return i + 1;
        }
        if (reached >= top_p * least - rounding) {
            return 0;
        }
    }
    return 0;
}

// Samples as sample() does: the same candidates in the same order, so the same token. -1: the candidates do not
// determine it.
static int32_t sample_known(const struct known *known, int32_t n_finite, const struct sl_sampling *sampling,
                            int64_t step) {
    struct candidate *candidates = known->candidates;
    int32_t n = sampling->top_k;
    bool sorted = sampling->top_k > 0 && sampling->top_k < n_finite;
    if (known->n_leading == 0 || (sorted && n > known->n_leading) || (!sorted && sampling->top_p >= 1)) {
        return -1;
    }
    double sum = weigh(candidates, sorted ? n : known->n, candidates[0].logit, sampling->temperature);
    if (sorted && sampling->top_p < 1) {
        n = nucleus_of_sorted(candidates, n, sampling->top_p * sum);
    } else if (!sorted) {
        n = nucleus_of_known(known, sum, sampling->top_p, sampling->temperature);
        for (int32_t i = 0; i < n / 2; i++) { // best last
            struct candidate moved = candidates[i];
            candidates[i] = candidates[n - 1 - i];
            candidates[n - 1 - i] = moved;
        }
    }
    return n > 0 ? draw(candidates, n, sampling, step) : -1;
}

enum sl_status sl_sampler_next_of(struct sl_sampler *sampler, const struct sl_sampling *sampling,
                                  const struct sl_picked *picked, const int32_t *history, int64_t n_history,
                                  int64_t step, struct sl_token *token_out) {
    enum sl_status status = sl_sampling_check(sampling, NULL);
    struct sl_pick asked;
    int64_t n_marked = 0;
    if (status != SL_OK || !sl_sampler_asks(sampling, n_history, &asked)) {
        return status == SL_OK ? SL_AGAIN : status;
    }
    if (picked->n_finite == 0) {
        return SL_ERR_INTERNAL;
    }
    if (!mark_history(sampler, sampling, history, n_history, step, &n_marked)) {
        return SL_ERR_RANGE;
    }
    struct known known = know(sampler, sampling, picked, n_marked);
    struct sl_token token = {.id = -1};
    if (sampling->temperature > 0) {
        token.id = sample_known(&known, picked->n_finite, sampling, step);
    } else if (known.n_leading > 0) {
        token.id = known.candidates[0].id;
    }
    if (token.id < 0 || (!known.complete && picked->n < sampling->n_logprobs)) {
        return SL_AGAIN;
    }
    for (int32_t i = 0; i < picked->n; i++) {
        float logprob = (float)(picked->best[i].logit - picked->lse);
        token.logprob = picked->best[i].id == token.id ? logprob : token.logprob;
        if (i < sampling->n_logprobs) {
            token.alternatives[i].id = picked->best[i].id;
            token.alternatives[i].logprob = logprob;
            token.n_alternatives = i + 1;
        }
    }
    *token_out = token;
    return SL_OK;
}

void sl_choice_take_row(struct sl_choice *choice, const float *logits) {
    choice->by_candidates = false;
    choice->status = sl_sampler_next(choice->sampler, choice->sampling, logits, choice->history, choice->n_history,
                                     choice->step, &choice->token);
}

bool sl_choice_take_candidates(struct sl_choice *choice, const struct sl_picked *picked) {
    enum sl_status status = sl_sampler_next_of(choice->sampler, choice->sampling, picked, choice->history,
                                               choice->n_history, choice->step, &choice->token);
    choice->by_candidates = status != SL_AGAIN;
    choice->status = choice->by_candidates ? status : choice->status;
    return choice->by_candidates;
}

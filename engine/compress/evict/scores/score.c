// SPDX-License-Identifier: Apache-2.0
// Purpose: the methods of all scores, each with its formula; keydiff.c has the one that computes by itself.
#include "engine/compress/evict/scores/score.h"

#include <assert.h>

// --- ranking ---------------------------------------------------------------------------------------------------------

static void read_state(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->read_state(in->stream, in->heads, 0, scores);
}

// The mean of `weights` over the query heads.
static void read_rows(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->mean_group(in->stream, in->heads, in->group, in->weights, scores);
}

static void read_means(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->mean_state(in->stream, in->heads, in->n_tokens, scores, (struct sl_vectors){0});
}

static void read_recency(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->recency(in->stream, in->heads, scores);
}

static void read_chance(const struct sl_score_input *in, struct sl_vectors scores) {
    in->ops->chance(in->stream, in->heads, in->recipe->seed, in->layer, in->offset, scores);
}

static void write_importance(const struct sl_ops *ops, struct sl_stream *stream, const struct sl_attend *attend) {
    ops->write_state(stream, &attend->heads, 0, attend->m, attend->importance);
}

void sl_score_deviation(const struct sl_score_input *in, struct sl_vectors deviations) {
    in->ops->mean_state(in->stream, in->heads, in->n_tokens, (struct sl_vectors){0}, deviations);
}

// --- the table -------------------------------------------------------------------------------------------------------

static const struct sl_fold sums = {.sum = 0, .square = -1, .above = -1};
static const struct sl_fold sums_and_squares = {.sum = 0, .square = 1, .above = -1};
static const struct sl_fold counts = {.sum = -1, .square = -1, .above = 0};
static const struct sl_fold largest = {.sum = 0, .square = -1, .above = -1, .largest = true};

static const struct sl_score_method methods[SL_N_SCORES] = {
    [SL_SCORE_NONE] = {.read = NULL},
    // score_j = a number in [0, 1) that depends on seed, layer, KV head and original position, and on nothing else: so it
    // needs no state, and evicts the same slots with any chunks. The baseline for every other score
    [SL_SCORE_RANDOM] = {.read = read_chance},
    // score_j = j. StreamingLLM (Xiao et al., Efficient Streaming Language Models with Attention Sinks, section 3.2) is
    // recency with protected sinks and slot positions
    [SL_SCORE_RECENCY] = {.read = read_recency},
    // score_j = sum over all rows i so far of abar[i][j], over the cache as it was: H2O (Zhang et al., Heavy-Hitter
    // Oracle, algorithm 1)
    [SL_SCORE_AAS] = {.fold = &sums, .read = read_state},
    // score_j = number of rows i with abar[i][j] > 1 / (slots that i sees): ScissorHands (Liu et al.) as RoCo's paper
    // describes it. Counts are small, so many are equal; of equal ones the oldest slot is evicted
    [SL_SCORE_AQAS] = {.fold = &counts, .read = read_state},
    // score_j = abar[last row][j]: TOVA (Oren et al., Transformers are Multi-State RNNs)
    [SL_SCORE_LTAS] = {.read = read_rows},
    // RoCo (Ren and Zhu, On the Efficacy of Eviction Policy), with the deviation that its scope uses to protect slots:
    //     score_j     = s_j / n_j                        s_j: sum over rows so far of abar[i][j], q_j: of its square
    //     deviation_j = sqrt(q_j / n_j - (s_j / n_j)^2)  n_j: queries that saw slot j, its own included
    // n_j is not stored: it equals the number of tokens from slot j's own on
    [SL_SCORE_MAS] = {.fold = &sums_and_squares, .read = read_means},
    // score_j = mean over the query heads of pool(sum over the window's rows of their attention to j): observation window
    // (Li et al., SnapKV)
    [SL_SCORE_SNAPKV] = {.read = read_rows},
    // score_j = output of the layer's retaining head for token j when it was read; it never changes: causal importance
    // (Huang et al., Locret)
    [SL_SCORE_CIS] = {.write = write_importance, .read = read_state},
    [SL_SCORE_KEYDIFF] = {.read = sl_score_read_keydiff},
    // score_j = max over the rows i that repeat the prompt, and over the query heads of the KV head, of a[i][j]: context
    // reconstruction (Kim et al., KVzip, equation 2 and algorithm 1). The rows are those of the second reading
    // (engine/runner/reader.h), instructions included, as in the authors' code. Their attention is over the whole cache.
    // The authors' code takes it over the first slots, the segment that is repeated, and the rows themselves; the two are
    // the same where one segment holds the prompt
    [SL_SCORE_RECONSTRUCT] = {.fold = &largest, .read = read_state},
    // the sum over those rows of abar[i][j]
    [SL_SCORE_RECONSTRUCT_SUM] = {.fold = &sums, .read = read_state},
};

void sl_score_accumulate(const struct sl_score_method *method, const struct sl_ops *ops, struct sl_stream *stream,
                         const struct sl_attend *attend) {
    if (method->fold != NULL) {
        ops->fold(stream, attend, 0, method->fold);
    }
    if (method->write != NULL) {
        method->write(ops, stream, attend);
    }
}

const struct sl_score_method *sl_score_method(enum sl_score score) {
    assert((int)score >= 0 && score < SL_N_SCORES);
    return &methods[score];
}

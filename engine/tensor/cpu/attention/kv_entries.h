// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the entries of a tier's table for attention and its statistics. A tier's file includes this last, once it
 *         has `attention`, its kernel, and scorer_for(), which returns the scorer for a call's statistics.
 */
#pragma once

#include "engine/tensor/cpu/attention/avx2_kv.h"

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    sl_kv_attend(stream, calls, n_calls, &attention);
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout) {
    sl_kv_attend_before(stream, args, before_inout, &attention);
}

static void fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    sl_avx2_fold_by(scorer_for(args), stream, args, first_row, what);
}

static void window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out) {
    sl_avx2_window_sums_by(scorer_for(args), stream, args, first_row, sums_out);
}

static void attend_fold(struct sl_stream *stream, const struct sl_attend *args, const struct sl_fold *what) {
    bool is_refs = args->n_heads / args->heads.n > SL_STATS_BLOCK; // fold() leaves such groups to the reference
    if (is_refs || !sl_kv_attend_fold(stream, args, what, &attention)) {
        attend(stream, args, 1);
        fold(stream, args, 0, what);
    }
}

static void fill_entries(struct sl_ops *ops) {
    ops->attend_fold = attend_fold;
    ops->attend = attend;
    ops->attend_before = attend_before;
    ops->fold = fold;
    ops->window_sums = window_sums;
}

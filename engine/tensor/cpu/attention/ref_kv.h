// SPDX-License-Identifier: Apache-2.0
// Purpose: how queries are multiplied by keys in plain C, for the reference operations that compute attention weights;
// and those operations.
#pragma once

#include "engine/tensor/ops.h"

// Writes keys[n_rows][d] = the page's first K rows as the queries need them: rotated by their slots when args->rope is
// set
void sl_ref_read_keys(const struct sl_attend *args, const struct sl_kv *kv, uint32_t page, int n_rows, float *keys);

// Writes query[d] = the row's query for query head `head`, rotated by the row's slot when args->rope is set
void sl_ref_read_query(const struct sl_attend *args, const struct sl_kv *kv, int row, int head, float *query);

// scores[j] = scale * q . K_j, j < n
void sl_ref_score_keys(const struct sl_attend *args, const float *query, const float *keys, int n, double *scores);

// Entries of the table (ref_stats.c). A tier may call them for a shape that it does not cover.
void sl_ref_fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what);
void sl_ref_window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out);

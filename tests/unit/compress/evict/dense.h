// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: compression as the papers write it down, for tests: dense attention matrices in f64, no pages, no chunks of
 *          work, one loop per formula. Reads the same invented tokens as drive.h.
 *
 * Design: where rounding could decide between two slots, either is right: dense_follow() checks that what stayed is the
 *         best there was, up to a tolerance, and then goes on with what stayed.
 */
#pragma once

#include "drive.h"

#define DENSE_SLOTS 512
#define DENSE_GROUP 4
#define DENSE_HEADS 4

// One KV head.
struct dense_head {
    int n;
    int64_t position[DENSE_SLOTS];
    double sum[DENSE_SLOTS], square[DENSE_SLOTS], above[DENSE_SLOTS], importance[DENSE_SLOTS];
    double rows[DENSE_GROUP][DENSE_SLOTS]; // attention of each query head, over the rows that the score looks at
};

struct dense_ranking {
    double score[DENSE_SLOTS], tie[DENSE_SLOTS], deviation[DENSE_SLOTS];
};

// The m tokens that the drive reads next: appended, attended to, accumulated.
void dense_read(const struct drive *drive, int layer, int head, int m, struct dense_head *dense);
// Scores of all slots; nothing is protected yet. n_tokens: read so far.
void dense_rank(const struct drive *drive, int layer, int head, const struct dense_head *dense, int64_t n_tokens,
                struct dense_ranking *ranking_out);
// +inf for what scope protects of a budget (the tail not counted).
void dense_protect(const struct drive *drive, const struct dense_head *dense, int64_t budget, int64_t stabilizers,
                   int64_t tail, struct dense_ranking *ranking);
// Asserts that the drive's head holds the best of `dense`, and reduces `dense` to the same slots.
void dense_follow(const struct drive *drive, int layer, int head, const struct dense_ranking *ranking,
                  struct dense_head *dense);

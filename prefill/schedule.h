// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: chooses the job whose chunk is next, when several prompts are open. Pure arithmetic: no threads, no clock,
 *          no engine.
 *
 * Design: the job with the shortest remaining work goes first, because that minimizes the mean time to first token: a
 *         prompt of 1k tokens does not wait for one of 128k. This rule alone would starve the long prompt, so the
 *         oldest job is owed a fixed share of all work:
 *
 *             owed += share * work    for every step of any job
 *             owed -= work            for every step of the oldest; never below 0
 *             owed  = 0               when another becomes the oldest
 *
 *         The oldest job goes first as soon as `owed` covers a step of its own, and exceeds `patience`. Patience lets a
 *         few short prompts through without a pause: a layer at the end of a long prompt takes longer than all layers of
 *         a short one. The oldest job then gets what it is owed between them. Every job becomes the oldest when those
 *         before it have ended, and each of those had its share. So no job starves, whatever other jobs arrive.
 *
 *         Work is not counted in tokens, but in units of a token at the beginning of a prompt. Attention grows with the
 *         position, so that with a small model a token at 32k costs as much as twenty of the first ones. If work were
 *         counted in tokens, a long prompt's last chunks would look short, and a share of chunks would be most of the
 *         time. With `half`, the position where attention costs as much as the weights do, a token that attends to s
 *         slots costs 1 + s / half.
 */
#pragma once

#include <stdint.h>

#define SL_SCHEDULE_SHARE    0.25                       // minimum share of all work for the oldest job
#define SL_SCHEDULE_PATIENCE (SL_SCHEDULE_SHARE * 4096) // a prefill worker's: the share of eight prompts of 512 tokens

struct sl_schedule { // zero-initialized, except patience
    int64_t oldest;  // ticket of the job that `owed` belongs to
    double owed;
    double patience; // constant
};

struct sl_schedule_job {
    int64_t ticket; // order of arrival, from 1 on
    double left;    // remaining work until the prompt has been read
    double next;    // work of its next step
};

// Returns the index of the job whose step is next, -1 when there are none. Counts the step as done. Ties go by arrival.
int sl_schedule_next(struct sl_schedule *schedule, const struct sl_schedule_job *jobs, int n_jobs);

/*
 * Adds jobs with the shortest next chunks to a pass as long as the sum of their rows is at most `rows`. chunks[n_jobs]:
 * tokens of the next chunk of each open job, 0 for a job that cannot join; chosen_inout[0] is the job whose turn it is.
 * Returns how many jobs the pass has, at most `most`.
 */
int sl_schedule_fill(const int64_t *chunks, int n_jobs, int64_t rows, int *chosen_inout, int most);

// Returns the work of reading tokens [begin, end) of a prompt; a token never attends to more than most_slots.
double sl_schedule_work(int64_t begin, int64_t end, int64_t most_slots, double half);

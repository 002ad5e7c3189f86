// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: whose chunk is next, when several prompts are open. Pure arithmetic: no threads, no clock, no engine.
 *
 * Design: the shortest remaining work goes first, because that is what makes the mean time to first token least: a
 *         prompt of 1k tokens does not wait for one of 128k. Alone it would starve the long one, so the oldest job is
 *         owed a fixed share of all work:
 *
 *             owed += share * work    for every step of anybody
 *             owed -= work            for every step of the oldest; never below 0
 *             owed  = 0               when another becomes the oldest
 *
 *         and it goes first as soon as that covers a step of its own. Every job becomes the oldest when those before it have
 *         ended, and each of those had its share: nobody starves, whatever arrives.
 *
 *         Work is counted in tokens at the beginning of a prompt, not in tokens: attention grows with the position, so
 *         that at 32k a small model's token costs twenty of its first ones. Otherwise a long prompt's last chunks would
 *         look short, and a share of chunks would be most of the time. With `half`, the position where attention costs
 *         as much as the weights do, a token that attends to s slots costs 1 + s / half.
 */
#pragma once

#include <stdint.h>

#define SL_SCHEDULE_SHARE 0.25 // of all work: the oldest job's, at least

struct sl_schedule { // all zero at the beginning
    int64_t oldest;  // ticket of the job that `owed` is about
    double owed;
};

struct sl_schedule_job {
    int64_t ticket; // order of arrival, from 1 on
    double left;    // work until it has been read
    double next;    // of that, in its next step
};

// Whose step is next: an index into jobs, -1 when there are none. Counts the step as done. Ties go by arrival.
int sl_schedule_next(struct sl_schedule *schedule, const struct sl_schedule_job *jobs, int n_jobs);

// The work of reading tokens [begin, end) of a prompt; a token never attends to more than most_slots.
double sl_schedule_work(int64_t begin, int64_t end, int64_t most_slots, double half);

// How many tokens from `begin` on cost about `work`; at least 1.
int64_t sl_schedule_tokens(double work, int64_t begin, int64_t most_slots, double half);

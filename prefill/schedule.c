// SPDX-License-Identifier: Apache-2.0
#include "prefill/schedule.h"

#include <stdbool.h>

static bool shorter(const struct sl_schedule_job *a, const struct sl_schedule_job *b) {
    return a->left < b->left || (a->left == b->left && a->ticket < b->ticket);
}

int sl_schedule_next(struct sl_schedule *schedule, const struct sl_schedule_job *jobs, int n_jobs) {
    if (n_jobs == 0) {
        return -1;
    }
    int oldest = 0, chosen = 0;
    for (int i = 1; i < n_jobs; i++) {
        oldest = jobs[i].ticket < jobs[oldest].ticket ? i : oldest;
        chosen = shorter(&jobs[i], &jobs[chosen]) ? i : chosen;
    }
    if (jobs[oldest].ticket != schedule->oldest) {
        schedule->oldest = jobs[oldest].ticket;
        schedule->owed = 0;
    }
    // A step of its own also earns the oldest job its share of that step, so the debt must cover only the rest.
    if (schedule->owed >= (1 - SL_SCHEDULE_SHARE) * jobs[oldest].next && schedule->owed >= schedule->patience) {
        chosen = oldest;
    }
    schedule->owed += SL_SCHEDULE_SHARE * jobs[chosen].next - (chosen == oldest ? jobs[oldest].next : 0);
    schedule->owed = schedule->owed > 0 ? schedule->owed : 0;
    return chosen;
}

static bool is_among(int job, const int *jobs, int n) {
    for (int i = 0; i < n; i++) {
        if (jobs[i] == job) {
            return true;
        }
    }
    return false;
}

int sl_schedule_fill(const int64_t *chunks, int n_jobs, int64_t rows, int *chosen_inout, int most) {
    int64_t used = chunks[chosen_inout[0]];
    for (int n = 1; n < most; n++) {
        int best = -1;
        for (int i = 0; i < n_jobs; i++) {
            bool can_join = chunks[i] > 0 && !is_among(i, chosen_inout, n);
            best = can_join && (best < 0 || chunks[i] < chunks[best]) ? i : best;
        }
        if (best < 0 || used + chunks[best] > rows) {
            return n;
        }
        used += chunks[best];
        chosen_inout[n] = best;
    }
    return most;
}

// Returns the sum over all positions p < end of 1 + p / half, as an integral.
static double work_before(int64_t end, int64_t most_slots, double half) {
    double n = (double)end, growing = (double)(end < most_slots ? end : most_slots);
    return n + (growing * growing / 2 + (n - growing) * (double)most_slots) / half;
}

double sl_schedule_work(int64_t begin, int64_t end, int64_t most_slots, double half) {
    return work_before(end, most_slots, half) - work_before(begin, most_slots, half);
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides when a worker that can do both goes over from reading prompts to writing answers, or back. Arithmetic over samples,
 *          without clock or registry: the coordinator and `sluice simulate` link the same function.
 *
 * Design: a role's demand is a number of workers: those that read now, or the shares of decode workers that are promised; all of them
 *         while the first job in line waits for room there. Their means over a window are compared:
 *
 *     a role is full           mean > 0.85 n
 *     a role can spare one     mean < 0.70 (n - 1), and n > 1
 *
 *         A worker goes over where one role is full and the other can spare one. No constant demand leads back: a role that is full with
 *         n workers is at least as full with n - 1. Demand that alternates faster than the window is averaged. A change back soon after
 *         a change doubles the window, up to 16 times, until no change follows soon.
 */
#pragma once

#include <stdbool.h>

enum { SL_READING, SL_WRITING, SL_N_DUTIES };

struct sl_rebalance_side {
    int n;       // workers
    double busy; // of them
    bool gives;  // one of them can take the other role
};

struct sl_rebalance { // zero-initialized but for least_s
    double least_s;   // of a window
    double window_s, began_s, sampled_s, changed_s;
    double sums[SL_N_DUTIES];          // busy workers times seconds
    double mean_s, means[SL_N_DUTIES]; // of the last whole window: its length, and busy workers
    struct sl_rebalance_side last[SL_N_DUTIES];
    int n_changes, duty; // of the last change: which duty got the worker
};

// Takes a sample, which is valid until the next. Returns the duty that is to get a worker of the other one; -1: neither.
int sl_rebalance_sample(struct sl_rebalance *rebalance, const struct sl_rebalance_side sides[SL_N_DUTIES],
                        double now_s);

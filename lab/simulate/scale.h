// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: numbers of prefill and decode workers that follow the load, by the rules of deploy/components/keda: its triggers, and what
 *          Kubernetes' autoscaler does with them.
 *
 * Design: every 15 s each trigger asks for its metric over its threshold, in workers. The number stays if that is within a tenth of it;
 *         otherwise the largest is taken: at once upwards, by at most 2 a minute; downwards the largest of the last ten minutes, by 1 in
 *         five. A worker starts for a while before it takes jobs, and drains before it is gone: it costs from its start until then.
 *         Metrics are sampled when the rule is asked, as by a Prometheus that scrapes at these times.
 */
#pragma once

#include <stdint.h>

#define SL_SCALE_EVERY_S 15
#define SL_SCALE_TICKS   40 // of which the rule remembers: the ten minutes before a number falls

struct sl_scale { // of one role
    int64_t n, least, most;
    int64_t wanted[SL_SCALE_TICKS], was[SL_SCALE_TICKS]; // what was asked for, and n, of the last ticks
    int64_t n_ticks;
};

// Takes what two triggers ask for, and returns how many workers there are to be.
int64_t sl_scale_step(struct sl_scale *scale, const double asked[2]);

struct sl_sim;
// Keeps scale->least of each role and drains the others. Then looks at the metrics regularly until the last request has ended.
void sl_sim_scale_begin(struct sl_sim *sim);

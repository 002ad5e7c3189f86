// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/rebalance.h"

#include <math.h>
#include <string.h>

#define FULL         0.85
#define SPARE        0.70
#define MOST_WINDOWS 16 // a window, in least windows
#define SOON         4  // windows

static void begin_window(struct sl_rebalance *rebalance, double now_s) {
    rebalance->began_s = now_s;
    memset(rebalance->sums, 0, sizeof rebalance->sums);
}

static void note_change(struct sl_rebalance *rebalance, int duty, double now_s) {
    bool is_back = rebalance->n_changes > 0 && rebalance->duty != duty;
    bool is_soon = now_s - rebalance->changed_s < SOON * rebalance->window_s;
    double longer_s = fmin(2 * rebalance->window_s, MOST_WINDOWS * rebalance->least_s);
    rebalance->window_s = !is_soon ? rebalance->least_s : is_back ? longer_s : rebalance->window_s;
    rebalance->duty = duty;
    rebalance->changed_s = now_s;
    rebalance->n_changes++;
}

int sl_rebalance_sample(struct sl_rebalance *rebalance, const struct sl_rebalance_side sides[SL_N_DUTIES],
                        double now_s) {
    struct sl_rebalance_side *last = rebalance->last;
    int duty = -1;
    if (sides[0].n != last[0].n || sides[1].n != last[1].n) { // of other workers, a mean says nothing
        begin_window(rebalance, now_s);
        rebalance->window_s = fmax(rebalance->window_s, rebalance->least_s);
    }
    for (int i = 0; i < SL_N_DUTIES && rebalance->began_s < now_s; i++) {
        rebalance->sums[i] += last[i].busy * (now_s - rebalance->sampled_s);
    }
    double seconds = now_s - rebalance->began_s;
    for (int i = 0; i < SL_N_DUTIES && seconds >= rebalance->window_s; i++) {
        const struct sl_rebalance_side *other = &sides[1 - i];
        bool is_full = rebalance->sums[i] > FULL * sides[i].n * seconds;
        bool can_spare = other->n > 1 && rebalance->sums[1 - i] < SPARE * (other->n - 1) * seconds;
        duty = is_full && can_spare && other->gives ? i : duty;
    }
    if (seconds >= rebalance->window_s) {
        for (int i = 0; i < SL_N_DUTIES; i++) {
            rebalance->means[i] = rebalance->sums[i] / fmax(seconds, 1e-9);
        }
        rebalance->mean_s = seconds;
        begin_window(rebalance, now_s);
    }
    if (duty >= 0) {
        note_change(rebalance, duty, now_s);
    }
    rebalance->sampled_s = now_s;
    memcpy(last, sides, sizeof rebalance->last);
    return duty;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/liveness_timer.h"

void sl_liveness_timer_reset(struct sl_liveness_timer *timer, int64_t now_ns) {
    timer->heard_ns = timer->looked_ns = now_ns;
}

int64_t sl_liveness_timer_poll(struct sl_liveness_timer *timer, int64_t now_ns, int64_t usual_ns) {
    int64_t late_ns = now_ns - timer->looked_ns - usual_ns;
    if (late_ns > 0) {
        timer->heard_ns += late_ns;
    }
    timer->looked_ns = now_ns > timer->looked_ns ? now_ns : timer->looked_ns;
    return now_ns > timer->heard_ns ? now_ns - timer->heard_ns : 0;
}

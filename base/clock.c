// SPDX-License-Identifier: Apache-2.0
// Purpose: time. Arithmetic saturates, so that "no deadline" stays none however it is combined.
#include "base/clock.h"

#include <errno.h>

static int64_t read_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * SL_NS_PER_S + t.tv_nsec;
}

int64_t sl_now_ns(void) {
    return read_ns(CLOCK_MONOTONIC);
}

int64_t sl_wall_ms(void) {
    return read_ns(CLOCK_REALTIME) / SL_NS_PER_MS;
}

int64_t sl_deadline_in_ms(int64_t ms) {
    int64_t now = sl_now_ns();
    if (ms < 0 || ms > (SL_NO_DEADLINE - now) / SL_NS_PER_MS) {
        return SL_NO_DEADLINE;
    }
    return now + ms * SL_NS_PER_MS;
}

int64_t sl_deadline_left_ms(int64_t deadline_ns) {
    if (deadline_ns == SL_NO_DEADLINE) {
        return INT64_MAX;
    }
    int64_t now = sl_now_ns();
    // Rounded up: a caller that waits this long has then really reached the deadline, and does not spin on zero.
    return deadline_ns <= now ? 0 : (deadline_ns - now - 1) / SL_NS_PER_MS + 1;
}

struct timespec sl_deadline_timespec(int64_t deadline_ns) {
    if (deadline_ns < 0) {
        deadline_ns = 0;
    }
    return (struct timespec){.tv_sec = (time_t)(deadline_ns / SL_NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % SL_NS_PER_S)};
}

void sl_sleep_ms(int64_t ms) {
    if (ms <= 0) {
        return;
    }
    struct timespec until = sl_deadline_timespec(sl_deadline_in_ms(ms));
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

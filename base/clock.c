// SPDX-License-Identifier: Apache-2.0
// Purpose: time. Arithmetic saturates, so that SL_NO_DEADLINE stays SL_NO_DEADLINE in every calculation.
#include "base/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

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

static bool is_leap(int64_t year) {
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

void sl_utc_text(int64_t wall_ms, char text_out[SL_UTC_BYTES]) {
    int64_t seconds = wall_ms / 1000, days = seconds / 86400, year = 1970;
    for (; days >= 365 + is_leap(year); year++) {
        days -= 365 + is_leap(year);
    }
    const int months[] = {31, 28 + is_leap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int month = 0;
    while (days >= months[month]) {
        days -= months[month++];
    }
    snprintf(text_out, SL_UTC_BYTES, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", (int)year, month + 1, (int)days + 1,
             (int)(seconds / 3600 % 24), (int)(seconds / 60 % 60), (int)(seconds % 60), (int)(wall_ms % 1000));
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
    // Rounds up: a caller that waits this long has really reached the deadline, and does not spin on zero.
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

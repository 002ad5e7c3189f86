// SPDX-License-Identifier: Apache-2.0
// Purpose: time. Deadlines are absolute monotonic nanoseconds, so that callees can take them as they are, without
// drift.
#pragma once

#include <stdint.h>
#include <time.h>

#define SL_NS_PER_MS   1000000LL
#define SL_NS_PER_S    1000000000LL
#define SL_NO_DEADLINE INT64_MAX

// A deadline allows a slow network or disk a millisecond for this many bytes, beside what else it allows.
#define SL_SLOW_BYTES_PER_MS 50000

#pragma GCC visibility push(default) // exported by libsluice.so (client/libsluice/sluice.h)

// Returns monotonic time.
int64_t sl_now_ns(void);

// Returns wall-clock time since the Unix epoch, for event logs that people read.
int64_t sl_wall_ms(void);

// Writes "2026-11-23T08:56:48.123Z" in UTC, for the years 1970 to 9999. Does not use the C library, which takes a lock
// for its time zones.
#define SL_UTC_BYTES 32
void sl_utc_text(int64_t wall_ms, char text_out[SL_UTC_BYTES]);

// Returns now + ms; a negative ms means no deadline.
int64_t sl_deadline_in_ms(int64_t ms);

// Returns the milliseconds left until the deadline: 0 when it has passed, INT64_MAX when there is none.
int64_t sl_deadline_left_ms(int64_t deadline_ns);

// Returns the deadline as a CLOCK_MONOTONIC timespec, for pthread_cond_timedwait() on a condition made by
// sl_cond_init().
struct timespec sl_deadline_timespec(int64_t deadline_ns);

void sl_sleep_ms(int64_t ms);

#pragma GCC visibility pop

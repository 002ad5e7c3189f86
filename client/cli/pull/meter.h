// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shows how far a download is: bytes of all its parts, their rate, and the time that is left. A terminal gets a
 *          line that is rewritten in place, a file a line every few seconds.
 *
 * Design: the rate is that of the last ten seconds. Times are arguments, so that tests choose them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { SL_METER_SAMPLES = 10 };

struct sl_meter {
    const char *name;    // of the model
    int64_t total_bytes; // 0: not known
    FILE *file;          // NULL: shows nothing
    int width;           // of the terminal; 0: `file` is not a terminal
    // the rest is private
    struct {
        int64_t ns, bytes;
    } samples[SL_METER_SAMPLES]; // a ring, one a second
    int n_samples;               // that were taken
    int64_t next_line_ns, drawn_ns;
    bool is_drawn;
};

// Takes the bytes so far at a time of the monotonic clock, and shows them. The first call tells what was there before.
void sl_meter_show(struct sl_meter *meter, int64_t now_ns, int64_t done_bytes);
// Shows a step without bytes, e.g. "checking the digest".
void sl_meter_say(struct sl_meter *meter, const char *step);
// Removes the line from the terminal.
void sl_meter_hide(struct sl_meter *meter);

// Returns the bytes per second of the last seconds; 0: not known yet.
double sl_meter_rate(const struct sl_meter *meter, int64_t now_ns, int64_t done_bytes);
// Writes "45 s", "3 min 20 s" or "1 h 5 min". Returns buf.
char *sl_meter_format_time(double seconds, char *buf, size_t buf_bytes);

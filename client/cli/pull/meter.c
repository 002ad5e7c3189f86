// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/meter.h"

#include "base/clock.h"
#include "base/options/config.h"
#include "client/cli/progress.h"

#define SAMPLE_NS (1000 * SL_NS_PER_MS)
#define REDRAW_NS (100 * SL_NS_PER_MS) // libcurl reports thousands of times a second

char *sl_meter_format_time(double seconds, char *buf, size_t buf_bytes) {
    long long s = seconds < 1e9 ? (long long)(seconds + 0.5) : 1000000000;
    if (s < 60) {
        snprintf(buf, buf_bytes, "%lld s", s);
    } else if (s < 3600) {
        snprintf(buf, buf_bytes, "%lld min %lld s", s / 60, s % 60);
    } else {
        snprintf(buf, buf_bytes, "%lld h %lld min", s / 3600, s % 3600 / 60);
    }
    return buf;
}

double sl_meter_rate(const struct sl_meter *meter, int64_t now_ns, int64_t done_bytes) {
    if (meter->n_samples == 0) {
        return 0;
    }
    int oldest = meter->n_samples > SL_METER_SAMPLES ? meter->n_samples % SL_METER_SAMPLES : 0;
    int64_t ns = now_ns - meter->samples[oldest].ns;
    return ns >= SAMPLE_NS / 2 ? (double)(done_bytes - meter->samples[oldest].bytes) * 1e9 / (double)ns : 0;
}

static void take_sample(struct sl_meter *meter, int64_t now_ns, int64_t done_bytes) {
    int last = (meter->n_samples + SL_METER_SAMPLES - 1) % SL_METER_SAMPLES;
    if (meter->n_samples == 0 || now_ns - meter->samples[last].ns >= SAMPLE_NS) {
        int next = meter->n_samples++ % SL_METER_SAMPLES;
        meter->samples[next].ns = now_ns;
        meter->samples[next].bytes = done_bytes;
    }
}

// Writes "12.3 MiB/s, 45 s left"; "" before a rate is known.
static void describe(const struct sl_meter *meter, int64_t now_ns, int64_t done_bytes, char *buf, size_t buf_bytes) {
    char per_second[32], left[32];
    double rate = sl_meter_rate(meter, now_ns, done_bytes);
    buf[0] = '\0';
    if (rate > 0) {
        int n = snprintf(buf, buf_bytes, "%s/s", sl_format_bytes(rate, per_second, sizeof per_second));
        if (meter->total_bytes >= done_bytes) {
            double seconds = (double)(meter->total_bytes - done_bytes) / rate;
            snprintf(buf + n, buf_bytes - (size_t)n, ", %s left", sl_meter_format_time(seconds, left, sizeof left));
        }
    }
}

void sl_meter_show(struct sl_meter *meter, int64_t now_ns, int64_t done_bytes) {
    if (!meter->file) {
        return;
    }
    take_sample(meter, now_ns, done_bytes);
    struct sl_progress progress = {
        .phase = meter->name, .done = done_bytes, .total = meter->total_bytes, .bytes = true};
    describe(meter, now_ns, done_bytes, progress.note, sizeof progress.note);
    if (meter->width > 0 && now_ns - meter->drawn_ns >= REDRAW_NS) {
        sl_progress_draw(&progress, meter->width, meter->file);
        meter->is_drawn = true;
        meter->drawn_ns = now_ns;
    }
    if (meter->width == 0 && sl_progress_is_due(&meter->next_line_ns, now_ns)) {
        sl_progress_print(&progress, "sluice pull", meter->file);
    }
}

void sl_meter_say(struct sl_meter *meter, const char *step) {
    if (meter->file && meter->width > 0) {
        struct sl_progress progress = {.phase = step};
        sl_progress_draw(&progress, meter->width, meter->file);
        meter->is_drawn = true;
    }
}

void sl_meter_hide(struct sl_meter *meter) {
    if (meter->is_drawn) {
        sl_progress_clear(meter->file);
        meter->is_drawn = false;
    }
}

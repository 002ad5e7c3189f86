// SPDX-License-Identifier: Apache-2.0
#include "lab/result.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/close.h"
#include "client/cli/message_json.h"

static void print_json(const struct sl_bench_result *result, double ratio) {
    json_t *line = json_pack("{s:s, s:s, s:f, s:s}", "bench", result->bench, "case", result->test, "value",
                             result->value, "unit", result->unit);
    if (result->reference != NULL) {
        json_object_update_new(line, json_pack("{s:s, s:f, s:f}", "reference", result->reference, "reference_value",
                                               result->reference_value, "ratio", ratio));
    }
    if (result->aim > 0.0) {
        json_object_set_new(line, "aim", json_real(result->aim));
        json_object_set_new(line, "reached", json_boolean(ratio >= result->aim));
    }
    sl_json_print(line, JSON_REAL_PRECISION(6), stdout);
}

static void print_row(const struct sl_bench_result *result, double ratio) {
    double scale = result->as_factor ? 1.0 : 100.0;
    const char *sign = result->as_factor ? " times" : "%";
    printf("%-44s %12.1f %-10s", result->test, result->value, result->unit);
    if (result->reference != NULL) {
        printf(" %5.1f%s%s %s (%.1f of %.1f)", scale * ratio, sign, result->as_factor ? "" : " of", result->reference,
               result->ratio_value, result->reference_value);
    }
    if (result->aim > 0.0) {
        printf("; aim %.0f%s: %s", scale * result->aim, sign, ratio >= result->aim ? "reached" : "missed");
    }
    putchar('\n');
}

void sl_bench_print(const struct sl_bench_result *result, bool json) {
    struct sl_bench_result whole = *result;
    whole.ratio_value = whole.ratio_value != 0 ? whole.ratio_value : whole.value;
    double ratio = whole.reference == NULL ? 0.0 : whole.ratio_value / whole.reference_value;
    if (whole.paired_ratio > 0) {
        ratio = whole.paired_ratio;
    }
    sl_bench_progress(NULL);
    if (!json) {
        print_row(&whole, ratio);
    } else {
        print_json(&whole, ratio);
    }
    fflush(stdout);
}

void sl_bench_print_value(const char *bench, const char *test, double value, const char *unit, bool json) {
    sl_bench_print(&(struct sl_bench_result){.bench = bench, .test = test, .value = value, .unit = unit}, json);
}

void sl_bench_print_run(struct sl_bench_result result, int64_t run, double value, bool json) {
    char test[512];
    snprintf(test, sizeof test, "%s, run %" PRId64, result.test, run);
    sl_bench_print_value(result.bench, test, value, result.unit, json);
}

void sl_bench_print_turns(struct sl_bench_result result, const double *values, const double *references, size_t n,
                          bool json) {
    double own[SL_BENCH_MAX_TURNS], reference[SL_BENCH_MAX_TURNS], ratios[SL_BENCH_MAX_TURNS];
    for (size_t i = 0; i < n; i++) {
        own[i] = values[i];
        reference[i] = references[i];
        ratios[i] = values[i] / references[i];
    }
    result.value = sl_bench_median(own, n);
    result.reference_value = sl_bench_median(reference, n);
    result.paired_ratio = sl_bench_median(ratios, n);
    sl_bench_print(&result, json);
}

void sl_bench_progress(const char *format, ...) {
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    fputs("\r\033[K", stderr);
    if (format != NULL) {
        va_list args;
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
    }
    fflush(stderr);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sl_bench_median(double *values, size_t n) {
    qsort(values, n, sizeof *values, ascending);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

double sl_bench_percentile(double *values, size_t n, double share) {
    qsort(values, n, sizeof *values, ascending);
    size_t rank = (size_t)ceil(share * (double)n);
    return n > 0 ? values[rank > 0 ? rank - 1 : 0] : 0;
}

double sl_bench_process_status(pid_t pid, const char *name) {
    char path[64], line[256];
    double value = -1;
    size_t length = strlen(name);
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && value < 0 && fgets(line, sizeof line, file)) {
        value = strncmp(line, name, length) == 0 && line[length] == ':' ? strtod(line + length + 1, NULL) : -1;
    }
    sl_close_file(file);
    return value;
}

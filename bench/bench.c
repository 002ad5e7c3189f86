// SPDX-License-Identifier: Apache-2.0
// Purpose: what all benches share: results as table rows or JSON lines, progress, medians.
#include "bench/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Names here are our own words and folder names: only what JSON requires is escaped.
static void print_json_string(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            printf("\\%c", *c);
        } else if (*c < 0x20) {
            printf("\\u%04x", *c);
        } else {
            putchar(*c);
        }
    }
    putchar('"');
}

void sl_bench_print(const struct sl_bench_result *result, bool json) {
    double ratio = result->reference == NULL ? 0.0 : result->ratio_value / result->reference_value;
    sl_bench_progress(NULL);
    if (!json) {
        printf("%-44s %12.1f %-10s", result->test, result->value, result->unit);
        if (result->reference != NULL) {
            printf(" %5.1f%% of %s (%.1f of %.1f)", 100.0 * ratio, result->reference, result->ratio_value,
                   result->reference_value);
        }
        putchar('\n');
    } else {
        printf("{\"bench\": ");
        print_json_string(result->bench);
        printf(", \"case\": ");
        print_json_string(result->test);
        printf(", \"value\": %.6g, \"unit\": ", result->value);
        print_json_string(result->unit);
        if (result->reference != NULL) {
            printf(", \"reference\": ");
            print_json_string(result->reference);
            printf(", \"reference_value\": %.6g, \"ratio\": %.4g}\n", result->reference_value, ratio);
        } else {
            printf(", \"reference\": null, \"reference_value\": null, \"ratio\": null}\n");
        }
    }
    fflush(stdout);
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

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sl_bench_median(double *values, size_t n) {
    qsort(values, n, sizeof *values, compare);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <math.h>
#include <stdarg.h>

void sl_metrics_declare(FILE *page, enum sl_metric_type type, const char *name, const char *help) {
    static const char *const types[] = {[SL_COUNTER] = "counter", [SL_GAUGE] = "gauge", [SL_HISTOGRAM] = "histogram"};
    fprintf(page, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, types[type]);
}

static void write_escaped(FILE *page, const char *text) {
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') {
            fputc('\\', page);
            fputc(*text, page);
        } else if (*text == '\n') {
            fputs("\\n", page);
        } else {
            fputc(*text, page);
        }
    }
}

// Writes whole numbers without a fraction.
static void write_value(FILE *page, double value) {
    fprintf(page, fabs(value) < 1e15 && value == floor(value) ? " %.0f\n" : " %.15g\n", value);
}

void sl_metrics_sample(FILE *page, const char *name, double value, ...) {
    va_list labels;
    va_start(labels, value);
    fputs(name, page);
    char mark = '{';
    for (const char *label; (label = va_arg(labels, const char *)) != NULL; mark = ',') {
        fprintf(page, "%c%s=\"", mark, label);
        write_escaped(page, va_arg(labels, const char *));
        fputc('"', page);
    }
    if (mark == ',') {
        fputc('}', page);
    }
    va_end(labels);
    write_value(page, value);
}

void sl_metrics_write(FILE *page, enum sl_metric_type type, const char *name, const char *help, double value) {
    sl_metrics_declare(page, type, name, help);
    sl_metrics_sample(page, name, value, NULL);
}

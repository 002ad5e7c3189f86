// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: Prometheus' text format (0.0.4) for metrics.
 *
 * Design: a page is a FILE in memory. A component with metrics declares each name once and then writes all its samples,
 *         because the format wants them together.
 *
 *     sl_metrics_declare(page, SL_GAUGE, "sluice_arena_bytes", "Memory for KV, by what it is taken for.");
 *     sl_metrics_sample(page, "sluice_arena_bytes", 4096, "state", "used", NULL);
 *
 * Threads: only one thread writes a page.
 */
#pragma once

#include <stdio.h>

enum sl_metric_type { SL_COUNTER, SL_GAUGE, SL_HISTOGRAM };

void sl_metrics_declare(FILE *page, enum sl_metric_type type, const char *name, const char *help);
// Writes a sample. After the value come names and values of labels in turn, and NULL. Values may hold any text.
void sl_metrics_sample(FILE *page, const char *name, double value, ...) __attribute__((sentinel));
// Does both for a metric without labels.
void sl_metrics_write(FILE *page, enum sl_metric_type type, const char *name, const char *help, double value);

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the figures of a simulated run, under the names that `sluice bench cluster` gives them, and its table.
 *
 * Goodput counts answers within every limit, a second, from the first request to the last answer; refused and failed
 * requests miss.
 */
#pragma once

#include <jansson.h>

#include "client/cli/table.h"
#include "lab/simulate/simulate.h"

struct sl_slo {
    double ttft_s, tpot_s, e2e_s; // INFINITY: no limit
};
// Parses "ttft:2s,tpot:100ms,e2el:1m".
enum sl_status sl_slo_parse(const char *text, struct sl_slo *slo_out, struct sl_error *err);

struct sl_spread {
    double mean, std, p50, p90, p99; // ms; NAN: of nothing
};

struct sl_figures {
    int64_t n, n_done, n_refused, n_failed, input_tokens, output_tokens, cached_tokens;
    double seconds, goodput, in_slo;
    struct sl_spread ttft, tpot, itl, e2e;
};

// SL_ERR_EXHAUSTED.
enum sl_status sl_figures_make(const struct sl_workload *workload, const struct sl_sim_result *result,
                               const struct sl_slo *slo, struct sl_figures *figures_out, struct sl_error *err);

// Returns the JSON object of a run, without the fields of its setting.
json_t *sl_figures_json(const struct sl_figures *figures, const struct sl_sim_result *result);

extern const struct sl_column sl_figures_columns[];
#define SL_N_FIGURES_COLUMNS 18
void sl_figures_add(struct sl_table *table, double rate, const char *series, const struct sl_figures *figures,
                    const struct sl_sim_result *result);

// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/figures.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options/config.h"

// --- limits ------------------------------------------------------------------------------------------------------------

enum sl_status sl_slo_parse(const char *text, struct sl_slo *slo_out, struct sl_error *err) {
    struct sl_slo slo = {INFINITY, INFINITY, INFINITY};
    char *list = strdup(text), *rest = list;
    enum sl_status status = list ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    for (char *part; status == SL_OK && (part = strsep(&rest, ",")) != NULL;) {
        char *value = part;
        const char *name = strsep(&value, ":");
        double *limit = strcmp(name, "ttft") == 0   ? &slo.ttft_s
                        : strcmp(name, "tpot") == 0 ? &slo.tpot_s
                        : strcmp(name, "e2el") == 0 ? &slo.e2e_s
                                                    : NULL;
        int64_t ms = 0;
        if (!limit || !isinf(*limit) || !value || sl_parse_duration(value, &ms) != SL_OK || ms < 1) {
            status =
                sl_fail(err, SL_ERR_INVALID, "--slo %s: expected ttft:TIME, tpot:TIME and e2el:TIME, each once", text);
        } else {
            *limit = (double)ms / 1e3;
        }
    }
    free(list);
    *slo_out = status == SL_OK ? slo : *slo_out;
    return status;
}

static bool is_good(const struct sl_sim_request *request, const struct sl_slo *slo) {
    return request->outcome == SL_SIM_DONE && request->ttft_s <= slo->ttft_s && request->tpot_s <= slo->tpot_s &&
           request->e2e_s <= slo->e2e_s;
}

// --- spreads -----------------------------------------------------------------------------------------------------------

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double percentile(const float *ordered, int64_t n, double percent) {
    double place = (double)(n - 1) * percent / 100, low = floor(place);
    int64_t i = (int64_t)low, next = i + 1 < n ? i + 1 : n - 1;
    return 1e3 * (ordered[i] + (ordered[next] - ordered[i]) * (place - low));
}

// Sorts the seconds.
static struct sl_spread spread_of(float *seconds, int64_t n) {
    if (n == 0) {
        return (struct sl_spread){NAN, NAN, NAN, NAN, NAN};
    }
    double sum = 0, squares = 0;
    qsort(seconds, (size_t)n, sizeof *seconds, ascending);
    for (int64_t i = 0; i < n; i++) {
        sum += 1e3 * seconds[i];
        squares += 1e6 * seconds[i] * seconds[i];
    }
    double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    return (struct sl_spread){mean, sqrt(fmax(variance, 0)), percentile(seconds, n, 50), percentile(seconds, n, 90),
                              percentile(seconds, n, 99)};
}

static double gap_ms(int bin) {
    return 1e-3 * exp((bin + 0.5) / 200);
}

static double gap_percentile(const uint64_t *bins, double n, double percent) {
    double seen = 0;
    int i = 0;
    while (i < SL_SIM_GAP_BINS - 1 && (seen += (double)bins[i]) < n * percent / 100) {
        i++;
    }
    return gap_ms(i);
}

static struct sl_spread spread_of_gaps(const uint64_t *bins) {
    double n = 0, sum = 0, squares = 0;
    for (int i = 0; i < SL_SIM_GAP_BINS; i++) {
        n += (double)bins[i];
        sum += (double)bins[i] * gap_ms(i);
        squares += (double)bins[i] * gap_ms(i) * gap_ms(i);
    }
    if (n == 0) {
        return (struct sl_spread){NAN, NAN, NAN, NAN, NAN};
    }
    return (struct sl_spread){sum / n, sqrt(fmax(squares / n - sum * sum / n / n, 0)), gap_percentile(bins, n, 50),
                              gap_percentile(bins, n, 90), gap_percentile(bins, n, 99)};
}

enum sl_status sl_figures_make(const struct sl_workload *workload, const struct sl_sim_result *result,
                               const struct sl_slo *slo, struct sl_figures *figures_out, struct sl_error *err) {
    struct sl_figures f = {.n = workload->n, .seconds = result->seconds};
    float *ttft = malloc((size_t)workload->n * 3 * sizeof *ttft), *tpot = ttft + workload->n, *e2e = tpot + workload->n;
    int64_t n_good = 0, n_tpot = 0;
    SL_FAIL_IF(!ttft, err, SL_ERR_EXHAUSTED, "out of memory");
    for (int64_t i = 0; i < workload->n; i++) {
        const struct sl_sim_request *request = &result->requests[i];
        f.n_refused += request->outcome == SL_SIM_REFUSED;
        f.n_failed += request->outcome == SL_SIM_FAILED || request->outcome == SL_SIM_UNFINISHED;
        n_good += is_good(request, slo);
        if (request->outcome == SL_SIM_DONE) {
            ttft[f.n_done] = request->ttft_s;
            e2e[f.n_done++] = request->e2e_s;
            f.input_tokens += workload->arrivals[i].n_prompt;
            f.output_tokens += workload->arrivals[i].n_output;
            f.cached_tokens += request->n_cached;
            if (workload->arrivals[i].n_output > 1) {
                tpot[n_tpot++] = request->tpot_s;
            }
        }
    }
    f.goodput = (double)n_good / f.seconds;
    f.in_slo = (double)n_good / (double)f.n;
    f.ttft = spread_of(ttft, f.n_done);
    f.tpot = spread_of(tpot, n_tpot);
    f.e2e = spread_of(e2e, f.n_done);
    f.itl = spread_of_gaps(result->gaps);
    free(ttft);
    *figures_out = f;
    return SL_OK;
}

// --- output ------------------------------------------------------------------------------------------------------------

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static void add_spread(json_t *json, const char *name, const struct sl_spread *s) {
    const struct {
        const char *kind;
        double value;
    } rows[] = {{"mean", s->mean}, {"median", s->p50}, {"std", s->std},
                {"p50", s->p50},   {"p90", s->p90},    {"p99", s->p99}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char key[48];
        snprintf(key, sizeof key, "%s_%s_ms", rows[i].kind, name);
        json_object_set_new(json, key, number(rows[i].value));
    }
}

json_t *sl_figures_json(const struct sl_figures *f, const struct sl_sim_result *result) {
    double tokens = (double)(f->input_tokens + f->output_tokens);
    json_t *json = json_pack(
        "{s:f, s:I, s:I, s:I, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:i, s:n, s:n}",
        "duration", f->seconds, "completed", (json_int_t)f->n_done, "failed", (json_int_t)(f->n_failed + f->n_refused),
        "refused", (json_int_t)f->n_refused, "unfinished", 0, "total_input_tokens", (json_int_t)f->input_tokens,
        "total_output_tokens", (json_int_t)f->output_tokens, "request_throughput", (double)f->n_done / f->seconds,
        "request_goodput", f->goodput, "slo_attainment", f->in_slo, "output_throughput",
        (double)f->output_tokens / f->seconds, "total_token_throughput", tokens / f->seconds, "max_concurrent_requests",
        (json_int_t)result->most_at_once, "cached_tokens", (json_int_t)f->cached_tokens, "capsule_bytes",
        result->capsule_bytes, "full_bytes", result->full_bytes, "decode_resident_bytes", result->resident_bytes,
        "retries", 0, "void", "stopped");
    add_spread(json, "ttft", &f->ttft);
    add_spread(json, "tpot", &f->tpot);
    add_spread(json, "itl", &f->itl);
    add_spread(json, "itl_per_request", &f->tpot); // the same mean of an answer's gaps
    add_spread(json, "e2el", &f->e2e);
    json_object_update_new(
        json,
        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "max_queued", (json_int_t)result->most_queued,
                  "mean_queue_s", f->n_done > 0 ? result->queued_s / (double)f->n_done : 0, "prefill_busy",
                  result->prefill_busy, "decode_busy", result->decode_busy, "worker_hours", result->worker_s / 3600,
                  "copied_bytes", result->copied_bytes, "fetched_bytes", result->fetched_bytes, "evicted",
                  (json_int_t)result->n_evicted, "role_changes", (json_int_t)result->n_rebalanced));
    return json;
}

const struct sl_column sl_figures_columns[SL_N_FIGURES_COLUMNS] = {
    {"RATE", true},          {"SERIES", false},  {"DONE", true},        {"REFUSED", true},
    {"FAILED", true},        {"GOODPUT", true},  {"IN SLO %", true},    {"TTFT P50/90/99 MS", true},
    {"TPOT", true},          {"ITL", true},      {"E2E", true},         {"MB/ANSWER", true},
    {"REUSED %", true},      {"QUEUE S", true},  {"MOST QUEUED", true}, {"PREFILL BUSY %", true},
    {"DECODE BUSY %", true}, {"WORKER H", true},
};

static const char *join(const struct sl_spread *s, int digits, char text[64]) {
    snprintf(text, 64, "%.*f/%.*f/%.*f", digits, s->p50, digits, s->p90, digits, s->p99);
    return isnan(s->p50) ? "-" : text;
}

void sl_figures_add(struct sl_table *table, double rate, const char *series, const struct sl_figures *f,
                    const struct sl_sim_result *result) {
    char ttft[64], tpot[64], itl[64], e2e[64];
    double done = fmax((double)f->n_done, 1);
    sl_table_add(table,
                 "%.4g\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64
                 "\t%.2f\t%.0f\t%s\t%s\t%s\t%s\t%.2f\t%.0f\t%.2f\t%" PRId64 "\t%.0f\t%.0f\t%.2f",
                 rate, series, f->n_done, f->n_refused, f->n_failed, f->goodput, 100 * f->in_slo,
                 join(&f->ttft, 0, ttft), join(&f->tpot, 1, tpot), join(&f->itl, 1, itl), join(&f->e2e, 0, e2e),
                 result->capsule_bytes / done / 1e6, 100 * (double)f->cached_tokens / fmax((double)f->input_tokens, 1),
                 result->queued_s / done, result->most_queued, 100 * result->prefill_busy, 100 * result->decode_busy,
                 result->worker_s / 3600);
}

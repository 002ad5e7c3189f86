// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/workload.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "lab/simulate/json_lines.h"
#include "lab/random.h"

#define MAX_TOKENS   (INT64_C(1) << 30)
#define MAX_REQUESTS (INT64_C(10) << 20)

// --- traces --------------------------------------------------------------------------------------------------------

struct loading {
    struct sl_workload workload;
    size_t n_allocated, n_blocks_allocated;
    double first_ms;
};

static enum sl_status take_blocks(struct loading *loading, const json_t *ids, struct sl_workload_arrival *arrival,
                                  struct sl_error *err) {
    struct sl_workload *workload = &loading->workload;
    arrival->first_block = workload->n_blocks;
    size_t i;
    json_t *id;
    json_array_foreach(ids, i, id) {
        SL_FAIL_IF(!json_is_integer(id), err, SL_ERR_INVALID, "hash_ids[%zu] is not an integer", i);
        SL_FAIL_IF(!SL_GROW(workload->blocks, (size_t)workload->n_blocks, loading->n_blocks_allocated), err,
                   SL_ERR_EXHAUSTED, "no memory for a trace");
        workload->blocks[workload->n_blocks++] = json_integer_value(id);
    }
    arrival->n_blocks = workload->n_blocks - arrival->first_block;
    int64_t needed = (arrival->n_prompt + SL_TRACE_BLOCK - 1) / SL_TRACE_BLOCK;
    SL_FAIL_IF(ids && arrival->n_blocks != needed, err, SL_ERR_INVALID,
               "%" PRId64 " hash_ids, and input_length %" PRId64 " has %" PRId64 " blocks", arrival->n_blocks,
               arrival->n_prompt, needed);
    return SL_OK;
}

static enum sl_status take_object(void *arg, json_t *object, struct sl_error *err) {
    struct loading *loading = arg;
    json_error_t json_err;
    double at_ms = 0;
    json_int_t n_prompt = 0, n_output = 0;
    json_t *ids = NULL;
    enum sl_status status = SL_OK;
    if (json_unpack_ex(object, &json_err, 0, "{s:F, s:I, s:I, s?o}", "timestamp", &at_ms, "input_length", &n_prompt,
                       "output_length", &n_output, "hash_ids", &ids)) {
        status = sl_fail(err, SL_ERR_INVALID, "%s", json_err.text);
    } else if (!(at_ms >= 0) || at_ms > 1e13) {
        status = sl_fail(err, SL_ERR_INVALID, "timestamp %g: 0 to 1e13 ms are possible", at_ms);
    } else if (n_prompt < 1 || n_prompt > MAX_TOKENS || n_output < 1 || n_output > MAX_TOKENS) {
        status = sl_fail(err, SL_ERR_INVALID,
                         "input_length %" JSON_INTEGER_FORMAT ", output_length %" JSON_INTEGER_FORMAT ": 1 to %" PRId64
                         " tokens are possible",
                         n_prompt, n_output, MAX_TOKENS);
    } else if (ids && !json_is_array(ids)) {
        status = sl_fail(err, SL_ERR_INVALID, "hash_ids is not a list");
    }
    struct sl_workload *workload = &loading->workload;
    SL_THEN_FAIL_IF(
        status, workload->n >= MAX_REQUESTS || !SL_GROW(workload->arrivals, (size_t)workload->n, loading->n_allocated),
        err, SL_ERR_EXHAUSTED, "no memory for more than %" PRId64 " requests", workload->n);
    if (status == SL_OK) {
        loading->first_ms = workload->n == 0 ? at_ms : loading->first_ms;
        struct sl_workload_arrival *arrival = &workload->arrivals[workload->n];
        *arrival = (struct sl_workload_arrival){(at_ms - loading->first_ms) / 1000, n_prompt, n_output, 0, 0};
        status = take_blocks(loading, ids, arrival, err);
        SL_THEN_FAIL_IF(status, workload->n > 0 && arrival->at_s < arrival[-1].at_s, err, SL_ERR_INVALID,
                        "timestamp %g is before the line above", at_ms);
        workload->n++;
    }
    return status;
}

// Sets the duration: one mean gap more than the time between arrivals, for the gap after the last one.
static void set_seconds(struct sl_workload *workload) {
    double last_s = workload->arrivals[workload->n - 1].at_s;
    workload->seconds = workload->n > 1 ? last_s * (double)workload->n / (double)(workload->n - 1) : 1;
}

enum sl_status sl_workload_load(const char *path, struct sl_workload *workload_out, struct sl_error *err) {
    struct loading loading = {0};
    enum sl_status status = sl_json_lines_read(path, take_object, &loading, err);
    SL_THEN_FAIL_IF(status, loading.workload.n == 0, err, SL_ERR_INVALID, "%s: has no requests", path);
    SL_TRY_OR(status, sl_workload_cleanup(&loading.workload));
    set_seconds(&loading.workload);
    *workload_out = loading.workload;
    return SL_OK;
}

// --- draws ---------------------------------------------------------------------------------------------------------

static double draw_normal(struct sl_random *random) { // Box and Muller
    double radius = sqrt(-2 * log(sl_random_uniform(random)));
    return radius * cos(2 * M_PI * sl_random_uniform(random));
}

// Returns a number of the gamma distribution with this shape and mean 1 (Marsaglia and Tsang, 2000).
static double draw_gamma(struct sl_random *random, double shape) {
    double less = shape < 1 ? pow(sl_random_uniform(random), 1 / shape) : 1,
           d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
    for (;;) {
        double x = draw_normal(random), v = 1 + x / sqrt(9 * d);
        v = v * v * v;
        if (v > 0 && log(sl_random_uniform(random)) < x * x / 2 + d - d * v + d * log(v)) {
            return d * v * less / shape;
        }
    }
}

static int64_t draw_length(struct sl_random *random, const struct sl_lengths *lengths) {
    double n = lengths->kind == SL_LENGTHS_EXPONENTIAL ? -lengths->a * log(sl_random_uniform(random))
               : lengths->kind == SL_LENGTHS_LOGNORMAL
                   ? lengths->a * exp(lengths->b * draw_normal(random))
                   : lengths->a + (lengths->b - lengths->a) * sl_random_uniform(random);
    n = round(n);
    return n < 1 ? 1 : n > (double)MAX_TOKENS ? MAX_TOKENS : (int64_t)n;
}

enum sl_status sl_lengths_parse(const char *option, const char *text, struct sl_lengths *lengths_out,
                                struct sl_error *err) {
    struct sl_lengths found = {0};
    int end = -1, ends[3] = {-1, -1, -1};
    if (sscanf(text, "exp:%lf%n", &found.a, &end) == 1 && end >= 0 && text[end] == '\0') {
        found.kind = SL_LENGTHS_EXPONENTIAL;
    } else if (sscanf(text, "lognormal:%lf:%lf%n", &found.a, &found.b, &ends[0]) == 2 && text[ends[0]] == '\0') {
        found.kind = SL_LENGTHS_LOGNORMAL;
    } else if (sscanf(text, "%lf%n-%lf%n", &found.a, &ends[1], &found.b, &ends[2]) >= 1 &&
               text[ends[2] >= 0 ? ends[2] : ends[1]] == '\0') {
        found.b = ends[2] >= 0 ? found.b : found.a;
    } else {
        return sl_fail(err, SL_ERR_INVALID, "--%s %s: expected N, A-B, exp:MEAN or lognormal:MEDIAN:SIGMA", option,
                       text);
    }
    bool good = found.a >= 1 && found.a <= (double)MAX_TOKENS && found.b <= (double)MAX_TOKENS &&
                (found.kind != SL_LENGTHS_LOGNORMAL || (found.b >= 0 && found.b <= 10)) &&
                (found.kind != SL_LENGTHS_UNIFORM || found.b >= found.a);
    *lengths_out = good ? found : *lengths_out;
    return good ? SL_OK
                : sl_fail(err, SL_ERR_INVALID, "--%s %s: lengths are 1 to %" PRId64 ", the first at most the second",
                          option, text, MAX_TOKENS);
}

enum sl_status sl_workload_draw(const struct sl_workload_config *config, struct sl_workload *workload_out,
                                struct sl_error *err) {
    struct sl_workload workload = {.n = config->n};
    workload.arrivals = calloc((size_t)config->n, sizeof *workload.arrivals);
    SL_FAIL_IF(!workload.arrivals, err, SL_ERR_EXHAUSTED, "no memory for %" PRId64 " requests", config->n);
    struct sl_random random = sl_random_start("workload", config->seed, 0);
    double at_s = 0;
    for (int64_t i = 0; i < config->n; i++) {
        workload.arrivals[i].at_s = at_s;
        workload.arrivals[i].n_prompt = draw_length(&random, &config->input);
        workload.arrivals[i].n_output = draw_length(&random, &config->output);
        at_s += draw_gamma(&random, config->burstiness) / config->rate;
    }
    workload.seconds = at_s > 0 ? at_s : 1;
    *workload_out = workload;
    return SL_OK;
}

void sl_workload_cleanup(struct sl_workload *workload) {
    free(workload->arrivals);
    free(workload->blocks);
    *workload = (struct sl_workload){0};
}

// --- reuse ---------------------------------------------------------------------------------------------------------

// Adds a hash to a set with open addressing. Returns whether it was there; 0 is in every set.
static bool add_hash(uint64_t *set, uint64_t mask, uint64_t hash) {
    uint64_t i = hash & mask;
    while (set[i] != 0 && set[i] != hash) {
        i = (i + 1) & mask;
    }
    bool is_known = set[i] == hash;
    set[i] = hash;
    return is_known;
}

enum sl_status sl_workload_reuse(const struct sl_workload *workload, int64_t *reused_out, struct sl_error *err) {
    uint64_t mask = 1023;
    while ((int64_t)mask < 2 * workload->n_blocks) {
        mask = 2 * mask + 1;
    }
    uint64_t *prefixes = calloc(mask + 1, sizeof *prefixes);
    SL_FAIL_IF(!prefixes, err, SL_ERR_EXHAUSTED, "no memory for a trace's beginnings");
    for (int64_t i = 0; i < workload->n; i++) {
        const struct sl_workload_arrival *arrival = &workload->arrivals[i];
        // Uses whole blocks only: the trace does not say where the last one ends. The prompt's last token is always
        // read.
        int64_t n_whole = (arrival->n_prompt - 1) / SL_TRACE_BLOCK;
        n_whole = n_whole < arrival->n_blocks ? n_whole : arrival->n_blocks;
        uint64_t hash = 0;
        reused_out[i] = 0;
        for (int64_t b = 0; b < n_whole; b++) {
            hash = sl_mix(hash + (uint64_t)workload->blocks[arrival->first_block + b] + SL_GOLDEN);
            if (add_hash(prefixes, mask, hash)) {
                reused_out[i] = (b + 1) * SL_TRACE_BLOCK;
            }
        }
    }
    free(prefixes);
    return SL_OK;
}

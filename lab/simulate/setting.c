// SPDX-License-Identifier: Apache-2.0
// Purpose: see setting.h.
#include "lab/simulate/setting.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/workers/route.h"
#include "engine/job/job_recipe.h"
#include "lab/result.h"

#define DEFAULT_COUNT 5000

// --- recipes -----------------------------------------------------------------------------------------------------------

static enum sl_status add_recipe(struct sl_sim_setting *s, const char *name, const char *text, struct sl_error *err) {
    int i = s->n_recipes;
    char shape[96];
    SL_FAIL_IF(i == SL_SIM_MAX_RECIPES, err, SL_ERR_INVALID, "at most %d recipes at once", SL_SIM_MAX_RECIPES);
    enum sl_status status = sl_job_recipe(text, &s->model, &s->recipes[i], err);
    SL_TRY(status == SL_OK ? sl_costs_load(s->options->costs, text, &s->costs[i], err) : status);
    sl_costs_shape(&s->model, shape);
    SL_FAIL_IF(s->costs[i].shape[0] && strcmp(s->costs[i].shape, shape) != 0, err, SL_ERR_INVALID,
               "%s: times of a model with %s; %s has %s: calibrate with it", s->options->costs, s->costs[i].shape,
               s->options->model, shape);
    snprintf(s->names[i], sizeof s->names[i], "%s", name);
    s->n_recipes++;
    return SL_OK;
}

static enum sl_status add_named(struct sl_sim_setting *s, const char *name, struct sl_error *err) {
    int end = -1;
    double percent;
    if (sscanf(name, "%lf%%%n", &percent, &end) != 1 || end < 0 || name[end] != '\0') {
        return add_recipe(s, name, name, err);
    }
    const struct sl_recommendation *r = sl_recipe_recommend(percent / 100, false);
    return r ? add_recipe(s, name, r->recipe, err)
             : sl_fail(err, SL_ERR_INVALID, "%s: no recommended recipe ships so little", name);
}

// Adds the usual recipes that the costs have; the full cache must be among them.
static enum sl_status add_usual(struct sl_sim_setting *s, struct sl_error *err) {
    struct sl_error ignored;
    enum sl_status status = add_recipe(s, "full", "full", err);
    if (status == SL_OK) {
        const char *usual = sl_job_default_recipe(&s->model);
        (void)(strcmp(usual, "full") != 0 && add_recipe(s, usual, usual, &ignored));
    }
    for (const struct sl_recommendation *r = sl_recipe_recommendations(false); r->recipe && status == SL_OK; r++) {
        if (!r->needs_heads && r->share < 0.5) {
            (void)add_recipe(s, r->recipe, r->recipe, &ignored);
        }
    }
    return status;
}

// --- the workload ------------------------------------------------------------------------------------------------------

static enum sl_status parse_rates(struct sl_sim_setting *s, struct sl_error *err) {
    const char *text = s->options->rates;
    while (text && s->n_rates < SL_SIM_MAX_RATES) {
        char *end;
        double rate = strtod(text, &end);
        SL_FAIL_IF(end == text || (*end != '\0' && *end != ',') || !(rate >= 1e-6 && rate <= 1e6), err, SL_ERR_INVALID,
                   "--rate %s: expected rates above 0, such as 0.5,1,2", s->options->rates);
        s->rates[s->n_rates++] = rate;
        text = *end == ',' ? end + 1 : NULL;
    }
    return text ? sl_fail(err, SL_ERR_INVALID, "--rate: at most %d rates", SL_SIM_MAX_RATES) : SL_OK;
}

static enum sl_status load_workload(struct sl_sim_setting *s, struct sl_error *err) {
    const struct sl_sim_options *o = s->options;
    struct sl_workload_config drawn = {.rate = 1,
                                       .burstiness = o->burstiness,
                                       .n = o->count > 0 ? o->count : DEFAULT_COUNT,
                                       .seed = (uint64_t)o->seed};
    enum sl_status status = sl_lengths_parse("input", o->input, &drawn.input, err);
    SL_THEN(status, sl_lengths_parse("output", o->output, &drawn.output, err));
    if (status == SL_OK) {
        status = o->trace ? sl_workload_load(o->trace, &s->workload, err) : sl_workload_draw(&drawn, &s->workload, err);
    }
    SL_TRY(status);
    if (o->count > 0 && o->count < s->workload.n) {
        s->workload.n = o->count;
    }
    double last_s = s->workload.arrivals[s->workload.n - 1].at_s;
    s->own_rate = o->trace && last_s > 0 ? (double)s->workload.n / last_s : 1;
    if (s->n_rates == 0) {
        s->rates[s->n_rates++] = o->trace ? s->own_rate * o->scale_rate : 1;
    }
    return SL_OK;
}

// --- all ---------------------------------------------------------------------------------------------------------------

static enum sl_status parse_link(struct sl_sim_setting *s, struct sl_error *err) {
    if (s->options->link) {
        char *end;
        double gbit = strtod(s->options->link, &end);
        SL_FAIL_IF(end == s->options->link || *end != '\0' || !(gbit >= 1e-3 && gbit <= 1e5), err, SL_ERR_INVALID,
                   "--link %s: expected Gbit/s from 0.001 to 100000", s->options->link);
        s->link_bytes_per_s = gbit * 1e9 / 8;
    }
    return SL_OK;
}

enum sl_status sl_sim_setting_load(const struct sl_sim_options *options, struct sl_sim_setting *s,
                                   struct sl_error *err) {
    int n_recipes = options->tool.n_arguments;
    *s = (struct sl_sim_setting){.options = options};
    SL_FAIL_IF(!options->costs, err, SL_ERR_INVALID, "--costs FILE is missing: `sluice bench calibrate` writes it");
    enum sl_status status = sl_slo_parse(options->slo, &s->slo, err);
    SL_THEN(status, parse_rates(s, err));
    SL_THEN(status, parse_link(s, err));
    SL_THEN(status, sl_route_policy_find(options->routing, &s->routing, err));
    SL_THEN_FAIL_IF(status, strcmp(s->routing->name, "deadline") == 0, err, SL_ERR_UNSUPPORTED,
                    "--routing deadline: simulated jobs have no deadlines"); // it would choose as affinity does
    SL_THEN(status, sl_model_config_load(options->model, &s->model, err));
    for (int i = 0; i < n_recipes && status == SL_OK; i++) {
        status = add_named(s, options->tool.arguments[i], err);
    }
    status = status == SL_OK && n_recipes == 0 ? add_usual(s, err) : status;
    SL_THEN(status, load_workload(s, err));
    SL_THEN(status, sl_signals_init(&s->signals, err));
    s->has_signals = status == SL_OK;
    return status == SL_ERR_NOT_FOUND ? err->status = SL_ERR_INVALID : status; // usage error
}

void sl_sim_setting_cleanup(struct sl_sim_setting *s) {
    sl_workload_cleanup(&s->workload);
    if (s->has_signals) {
        sl_signals_cleanup(&s->signals);
    }
}

static enum sl_status check(void *arg, int64_t n_ended, double at_s, struct sl_error *err) {
    struct sl_sim_setting *s = arg;
    sl_bench_progress("%" PRId64 " of %" PRId64 " requests, %.0f s of the cluster's time", n_ended, s->workload.n,
                      at_s);
    return sl_signals_check(&s->signals, err);
}

enum sl_status sl_sim_setting_run(struct sl_sim_setting *s, int recipe, double rate, const int64_t n_workers[3],
                                  struct sl_sim_result *result_out, struct sl_error *err) {
    struct sl_sim_config config = s->options->cluster;
    config.workload = &s->workload;
    config.time_scale = s->own_rate / rate;
    config.costs = &s->costs[recipe];
    config.model = &s->model;
    config.recipe = &s->recipes[recipe];
    config.n_prefill = n_workers[0];
    config.n_decode = n_workers[1];
    config.n_aggregated = n_workers[2];
    config.link_bytes_per_s = s->link_bytes_per_s;
    config.routing = s->routing;
    config.check_fn = check;
    config.arg = s;
    enum sl_status status = sl_sim_run(&config, result_out, err);
    sl_bench_progress(NULL);
    if (status != SL_OK && status != SL_ERR_CANCELLED) {
        sl_error_prefix(err, s->names[recipe]);
    }
    return status;
}

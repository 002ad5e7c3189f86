// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice simulate`: a workload at given rates through a cluster in virtual time; the figures of
// `sluice bench cluster`.
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message_json.h"
#include "coordinator/workers/route.h"
#include "lab/simulate/commands.h"
#include "lab/simulate/setting.h"

struct config {
    struct sl_sim_options shared; // first: the rows of SL_SIM_OPTIONS
    int64_t n_workers[3];         // prefill, decode, aggregated
};

static const struct sl_option options[] = {
    {"prefill", 0, SL_OPTION_INT, "0", "N", "prefill workers", SL_FIELD(config, n_workers[0]), 0, SL_SIM_MAX_NODES},
    {"decode", 0, SL_OPTION_INT, "0", "N", "decode workers", SL_FIELD(config, n_workers[1]), 0, SL_SIM_MAX_NODES},
    {"both", 0, SL_OPTION_INT, "0", "N", "workers that read prompts and write answers", SL_FIELD(config, n_workers[2]),
     0, SL_SIM_MAX_NODES},
    {"autoscale", 0, SL_OPTION_INT, "0", "N",
     "fewest workers of each role: their number follows the load up to --prefill and --decode, as in "
     "deploy/components/keda; 0: it is constant",
     SL_FIELD(config, shared.cluster.autoscale), 0, SL_SIM_MAX_NODES},
    {"start", 0, SL_OPTION_DURATION, "2m", "TIME",
     "time until a worker that --autoscale adds takes jobs, in steps of 15 s",
     SL_FIELD(config, shared.cluster.start_ms), 0, 86400000},
    SL_SIM_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice simulate",
    .usage = "--costs FILE --prefill N --decode N [options] [RECIPE...]",
    .summary =
        "Run a workload through a cluster in virtual time: the coordinator's own admission and routing, prefill's "
        "schedule and the stores' eviction, with the times of a table.",
    .epilog = "For example:\n\n"
              "    sluice bench calibrate -m demo -o costs.json\n"
              "    sluice simulate -m demo --costs costs.json --prefill 1 --decode 1 --input 1000 --rate 1,2,4\n\n"
              "RECIPE may be a share, such as 10%: what is recommended for so few bytes. docs/BENCHMARKS.md says how\n"
              "near the figures are to measured ones.\n" SL_EXIT_CODES_HELP,
    .n_arguments_max = INT_MAX,
    SL_OPTIONS(options),
};

static void print_json(const struct sl_sim_setting *s, const struct config *config, const char *recipe, double rate,
                       const struct sl_figures *figures, const struct sl_sim_result *result) {
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:s, s:I, s:s, s:I, s:I, s:I, s:I}", "backend", "simulated",
        "label", recipe, "recipe", recipe, "model_id", config->shared.model, "machine", s->costs[0].machine, "routing",
        s->routing->name, "num_prompts", (json_int_t)figures->n, "request_rate", rate, "burstiness",
        config->shared.burstiness, "workload", config->shared.trace ? "trace" : "drawn", "seed",
        (json_int_t)config->shared.seed, "slo", config->shared.slo, "prefill_workers", (json_int_t)config->n_workers[0],
        "decode_workers", (json_int_t)config->n_workers[1], "aggregated_workers", (json_int_t)config->n_workers[2],
        "kvstores", (json_int_t)config->shared.cluster.n_stores);
    json_object_update_new(line, sl_figures_json(figures, result));
    sl_json_print(line, JSON_COMPACT, stdout);
    fflush(stdout);
}

static enum sl_status run_one(struct sl_sim_setting *s, const struct config *config, int recipe, double rate,
                              struct sl_table *table, struct sl_error *err) {
    struct sl_sim_result *result = calloc(1, sizeof *result);
    struct sl_figures figures;
    SL_FAIL_IF(!result, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_sim_setting_run(s, recipe, rate, config->n_workers, result, err);
    SL_THEN(status, sl_figures_make(&s->workload, result, &s->slo, &figures, err));
    if (status == SL_OK && config->shared.tool.json) {
        print_json(s, config, s->names[recipe], rate, &figures, result);
    } else if (status == SL_OK) {
        sl_figures_add(table, rate, s->names[recipe], &figures, result);
    }
    if (status == SL_OK && result->failure[0]) {
        fprintf(stderr, "sluice simulate: %s\n", result->failure);
    }
    sl_sim_result_cleanup(result);
    free(result);
    return status;
}

static enum sl_status simulate(struct sl_sim_setting *s, const struct config *config, struct sl_error *err) {
    struct sl_table table;
    enum sl_status status = SL_OK;
    sl_table_init(&table, sl_figures_columns, SL_N_FIGURES_COLUMNS);
    for (int r = 0; r < s->n_rates && status == SL_OK; r++) {
        for (int i = 0; i < s->n_recipes && status == SL_OK; i++) {
            status = run_one(s, config, i, s->rates[r], &table, err);
        }
    }
    if (!config->shared.tool.json && table.n_cells > 0) {
        sl_table_print(&table, stdout);
        printf("Simulated, with the times of: %s.\n", s->costs[0].machine);
    }
    sl_table_cleanup(&table);
    return status;
}

static enum sl_status check(const struct config *config, struct sl_error *err) {
    const int64_t *n = config->n_workers;
    SL_FAIL_IF(n[2] == 0 && (n[0] == 0 || n[1] == 0), err, SL_ERR_INVALID,
               "expected --prefill N with --decode N, or --both N");
    SL_FAIL_IF(config->shared.cluster.rebalance_ms > 0 && n[2] == 0, err, SL_ERR_INVALID,
               "--rebalance is for workers of both roles: give --both, too");
    int64_t least = config->shared.cluster.autoscale;
    SL_FAIL_IF(least > 0 && (n[2] > 0 || least > n[0] || least > n[1]), err, SL_ERR_INVALID,
               "--autoscale %" PRId64 ": expected as many or more --prefill and --decode, and no --both", least);
    return SL_OK;
}

static enum sl_status run(void *arg, struct sl_error *err) {
    const struct config *config = arg;
    SL_NEW_OR_FAIL(struct sl_sim_setting, s, err, "out of memory");
    enum sl_status status = check(config, err);
    SL_THEN(status, sl_sim_setting_load(&config->shared, s, err));
    SL_THEN(status, simulate(s, config, err));
    sl_sim_setting_cleanup(s);
    free(s);
    return status;
}

SL_COMMAND_RUN(sl_command_simulate, config, program, run)

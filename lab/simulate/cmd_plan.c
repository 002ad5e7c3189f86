// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice plan`: how many workers a workload takes under each recipe: the fewest with which enough requests keep
 *          their limits in the simulator.
 *
 * Design: more workers never keep fewer limits, but for chance. So each number is found by doubling and halving: prefill
 *          workers beside more decode workers than the load can use, then decode workers beside these. If the two together
 *          miss, prefill gets one more. Aggregated workers are a search of their own.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message_json.h"
#include "lab/simulate/commands.h"
#include "lab/simulate/setting.h"

struct config {
    struct sl_sim_options shared; // first: the rows of SL_SIM_OPTIONS
    double in_slo;
    int64_t most;
};

static const struct sl_option options[] = {
    {"in-slo", 0, SL_OPTION_FLOAT, "90", "PERCENT", "share of the requests that must meet --slo",
     SL_FIELD(config, in_slo), 1, 100},
    {"most", 0, SL_OPTION_INT, "64", "N", "most workers of a role; a recipe that needs more is reported as impossible",
     SL_FIELD(config, most), 1, SL_SIM_MAX_NODES / 2},
    SL_SIM_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice plan",
    .usage = "--costs FILE [--trace FILE | --rate N] [options] [RECIPE...]",
    .summary = "Tell how many workers of each role a workload takes under each recipe, and how many that do both: the "
               "fewest that keep the limits in `sluice simulate`.",
    .epilog =
        "FILE of --costs is made on a machine like the workers', by `sluice bench calibrate`. " SL_EXIT_CODES_HELP,
    .n_arguments_max = INT_MAX,
    SL_OPTIONS(options),
};

struct planning {
    struct sl_sim_setting setting;
    const struct config *config;
    int recipe;
    double rate;
    int64_t n[3];              // prefill, decode, aggregated
    struct sl_figures figures; // of the last simulation
    struct sl_sim_result result;
};

// Simulates the workers of p->n. Writes whether enough requests keep their limits.
static enum sl_status ask(struct planning *p, bool *enough_out, struct sl_error *err) {
    enum sl_status status = sl_sim_setting_run(&p->setting, p->recipe, p->rate, p->n, &p->result, err);
    SL_THEN(status, sl_figures_make(&p->setting.workload, &p->result, &p->setting.slo, &p->figures, err));
    *enough_out = status == SL_OK && 100 * p->figures.in_slo >= p->config->in_slo;
    sl_sim_result_cleanup(&p->result);
    return status;
}

// Finds the least p->n[role], from `least` on, that is enough; 0: config->most is not.
static enum sl_status find_least(struct planning *p, int role, int64_t least, struct sl_error *err) {
    int64_t too_few = least - 1, enough = 0;
    enum sl_status status = SL_OK;
    for (int64_t n = least; status == SL_OK && enough - too_few != 1;) {
        bool is_enough;
        p->n[role] = n;
        status = ask(p, &is_enough, err);
        if (is_enough) {
            enough = n;
        } else if (n == p->config->most) {
            p->n[role] = 0;
            return status;
        } else {
            too_few = n;
        }
        n = enough > 0 ? (too_few + enough) / 2 : 2 * n < p->config->most ? 2 * n : p->config->most;
    }
    p->n[role] = enough;
    return status;
}

// Finds workers of both roles; p->n is 0 if there are none.
static enum sl_status find_disaggregated(struct planning *p, struct sl_error *err) {
    const int64_t most = p->config->most;
    p->n[1] = most;
    p->n[2] = 0;
    enum sl_status status = find_least(p, 0, 1, err);
    for (p->n[1] = 0; status == SL_OK && p->n[0] > 0 && p->n[1] == 0;) {
        status = find_least(p, 1, 1, err);
        if (p->n[1] == 0) {
            p->n[0] = p->n[0] < most ? p->n[0] + 1 : 0;
        }
    }
    return status;
}

static const struct sl_column columns[] = {
    {"RECIPE", false},  {"WORKERS", false},  {"PREFILL", true},
    {"DECODE", true},   {"BOTH", true},      {"ALL", true},
    {"IN SLO %", true}, {"GOODPUT", true},   {"TTFT P50/90/99 MS", true},
    {"TPOT P90", true}, {"MB/ANSWER", true},
};

static void print(const struct planning *p, bool is_aggregated, struct sl_table *table) {
    const struct sl_figures *f = &p->figures;
    const char *recipe = p->setting.names[p->recipe], *kind = is_aggregated ? "aggregated" : "prefill, decode";
    int64_t all = p->n[0] + p->n[1] + p->n[2];
    if (p->config->shared.tool.json) {
        json_t *line = json_pack("{s:s, s:s, s:f, s:I, s:I, s:I}", "recipe", recipe, "workers", kind, "request_rate",
                                 p->rate, "prefill_workers", (json_int_t)p->n[0], "decode_workers", (json_int_t)p->n[1],
                                 "aggregated_workers", (json_int_t)p->n[2]);
        json_object_update_new(line, all > 0 ? sl_figures_json(f, &p->result) : json_pack("{s:b}", "impossible", 1));
        sl_json_print(line, JSON_COMPACT, stdout);
    } else if (all == 0) {
        sl_table_add(table, "%s\t%s\t-\t-\t-\tmore than %" PRId64 " of a role\t%.0f\t-\t-\t-\t-", recipe, kind,
                     p->config->most, 100 * f->in_slo);
    } else {
        double bytes = f->n_done > 0 && !is_aggregated ? p->result.capsule_bytes / (double)f->n_done : 0;
        sl_table_add(
            table, "%s\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%.0f\t%.2f\t%.0f/%.0f/%.0f\t%.1f\t%.2f",
            recipe, kind, p->n[0], p->n[1], p->n[2], all, 100 * f->in_slo, f->goodput, f->ttft.p50, f->ttft.p90,
            f->ttft.p99, f->tpot.p90, bytes / 1e6);
    }
}

// Plans one recipe, without and with workers of both roles. Sets *possible_out if one of them keeps the limits.
static enum sl_status plan(struct planning *p, struct sl_table *table, bool *possible_out, struct sl_error *err) {
    bool is_enough = false, told = false;
    enum sl_status status = find_disaggregated(p, err);
    for (int kind = 0; kind < 2 && status == SL_OK; kind++) {
        if (kind == 1) {
            p->n[0] = p->n[1] = 0;
            status = find_least(p, 2, 1, err);
        }
        bool found = kind == 0 ? p->n[0] > 0 : p->n[2] > 0;
        if (status == SL_OK && found) {
            status = ask(p, &is_enough, err);
        } else {
            p->n[0] = p->n[1] = p->n[2] = 0;
        }
        if (status == SL_OK && !found && !told && p->result.failure[0]) { // more workers may not help
            told = true;
            fprintf(stderr, "sluice plan: %s: %s\n", p->setting.names[p->recipe], p->result.failure);
        }
        *possible_out |= found;
        if (status == SL_OK) {
            print(p, kind == 1, table);
        }
    }
    return status;
}

static enum sl_status run(void *arg, struct sl_error *err) {
    struct config *config = arg;
    struct planning *p = calloc(1, sizeof *p);
    struct sl_table table = SL_TABLE(columns);
    SL_FAIL_IF(!p, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_sim_setting_load(&config->shared, &p->setting, err);
    p->config = config;
    p->rate = p->setting.rates[0];
    SL_THEN_FAIL_IF(status, p->setting.n_rates > 1, err, SL_ERR_INVALID, "--rate: one rate is planned at a time");
    for (p->recipe = 0; p->recipe < p->setting.n_recipes && status == SL_OK; p->recipe++) {
        bool possible = false;
        status = plan(p, &table, &possible, err);
        config->shared.tool.exit_code = possible ? config->shared.tool.exit_code : SL_EXIT_FAILED;
    }
    if (!config->shared.tool.json && table.n_cells > 0) {
        sl_table_print(&table, stdout);
    }
    sl_table_cleanup(&table);
    sl_sim_setting_cleanup(&p->setting);
    free(p);
    return status;
}

SL_COMMAND_RUN(sl_command_plan, config, program, run)

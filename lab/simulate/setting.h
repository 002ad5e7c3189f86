// SPDX-License-Identifier: Apache-2.0
// Purpose: the options that `sluice simulate` and `sluice plan` share, and what they describe: model, recipes, workload,
// cluster, limits.
#pragma once

#include "base/options/config.h"
#include "client/cli/tool.h"
#include "coordinator/workers/registry.h"
#include "lab/simulate/figures.h"

#define SL_SIM_MAX_RECIPES 16
#define SL_SIM_MAX_RATES   32
#define SL_SIM_MAX_NODES   SL_MAX_WORKERS // of all kinds

struct sl_sim_options {
    struct sl_tool_config tool;
    const char *model, *costs, *trace, *rates, *input, *output, *slo, *link, *routing;
    double scale_rate, burstiness;
    int64_t count, seed;
    struct sl_sim_config cluster; // without what is loaded
};

#define SL_SIM_OPTIONS                                                                                                 \
    SL_OPTION_ROW("model", 'm', SL_OPTION_MODEL, "demo", "MODEL",                                                      \
                  "model folder, GGUF file, or a name of `sluice models`; its weights are not read",                   \
                  SL_FIELD(sl_sim_options, model)),                                                                    \
        SL_OPTION_ROW("costs", 0, SL_OPTION_STRING, NULL, "FILE",                                                      \
                      "times of the workers, as written by `sluice bench calibrate` (required)",                       \
                      SL_FIELD(sl_sim_options, costs)),                                                                \
        SL_OPTION_ROW("trace", 0, SL_OPTION_STRING, NULL, "FILE",                                                      \
                      "requests: JSON lines with timestamp, input_length, output_length, hash_ids",                    \
                      SL_FIELD(sl_sim_options, trace)),                                                                \
        SL_OPTION_ROW("scale-rate", 0, SL_OPTION_FLOAT, "1", "X", "factor of the trace's own rate, without --rate",    \
                      SL_FIELD(sl_sim_options, scale_rate), 1e-6, 1e6),                                                \
        SL_OPTION_ROW("rate", 0, SL_OPTION_STRING, NULL, "N,N", "requests a second. Default: 1, or a trace's own",     \
                      SL_FIELD(sl_sim_options, rates)),                                                                \
        SL_OPTION_ROW("count", 0, SL_OPTION_INT, "0", "N", "requests of each run; 0: 5000, or all of a trace",         \
                      SL_FIELD(sl_sim_options, count), 0, 10 << 20),                                                   \
        SL_OPTION_ROW("burstiness", 0, SL_OPTION_FLOAT, "1", "X",                                                      \
                      "shape of the gamma distribution of gaps; 1 is Poisson, less comes in bursts",                   \
                      SL_FIELD(sl_sim_options, burstiness), 1e-3, 1e3),                                                \
        SL_OPTION_ROW("input", 0, SL_OPTION_STRING, "8000", "LENGTH",                                                  \
                      "tokens of a prompt: N, A-B, exp:MEAN or lognormal:MEDIAN:SIGMA",                                \
                      SL_FIELD(sl_sim_options, input)),                                                                \
        SL_OPTION_ROW("output", 0, SL_OPTION_STRING, "300", "LENGTH", "tokens of an answer",                           \
                      SL_FIELD(sl_sim_options, output)),                                                               \
        SL_OPTION_ROW("seed", 0, SL_OPTION_INT, "1", "N", "seed of the draws", SL_FIELD(sl_sim_options, seed), 0,      \
                      1e15),                                                                                           \
        SL_OPTION_ROW("slo", 0, SL_OPTION_STRING, "ttft:2s,tpot:100ms", "LIMITS",                                      \
                      "limits that a good answer meets; also e2el:TIME", SL_FIELD(sl_sim_options, slo)),               \
        SL_OPTION_ROW("link", 0, SL_OPTION_STRING, NULL, "GBIT",                                                       \
                      "bandwidth of a node's link, in each direction. Default: that of --costs",                       \
                      SL_FIELD(sl_sim_options, link)),                                                                 \
        SL_OPTION_ROW("out-only", 0, SL_OPTION_FLAG, "no", NULL,                                                       \
                      "links limit what leaves a node, as --inject pace does, not what arrives",                       \
                      SL_FIELD(sl_sim_options, cluster.only_out)),                                                     \
        SL_OPTION_ROW("routing", 0, SL_OPTION_STRING, "affinity", "POLICY",                                            \
                      "routing of the coordinator: affinity, least-loaded or round-robin",                             \
                      SL_FIELD(sl_sim_options, routing)),                                                              \
        SL_OPTION_ROW(                                                                                                 \
            "rebalance", 0, SL_OPTION_DURATION, "0s", "TIME",                                                          \
            "as --rebalance of the coordinator: workers of both roles have one at a time, and change with the load",   \
            SL_FIELD(sl_sim_options, cluster.rebalance_ms), 0, 86400000),                                              \
        SL_OPTION_ROW("kvstore", 0, SL_OPTION_INT, "0", "N", "stores, which keep what was read",                       \
                      SL_FIELD(sl_sim_options, cluster.n_stores), 0, SL_SIM_MAX_NODES),                                \
        SL_OPTION_ROW("prefill-arena", 0, SL_OPTION_SIZE, "16G", "SIZE", "--arena of a prefill worker",                \
                      SL_FIELD(sl_sim_options, cluster.prefill_arena), 1 << 20, 1e15),                                 \
        SL_OPTION_ROW("decode-arena", 0, SL_OPTION_SIZE, "16G", "SIZE", "--arena of a decode or aggregated worker",    \
                      SL_FIELD(sl_sim_options, cluster.decode_arena), 1 << 20, 1e15),                                  \
        SL_OPTION_ROW("store-arena", 0, SL_OPTION_SIZE, "64G", "SIZE", "--arena of a kvstore",                         \
                      SL_FIELD(sl_sim_options, cluster.store_arena), 1 << 20, 2e12),                                   \
        SL_OPTION_ROW("prefill-jobs", 0, SL_OPTION_INT, "16", "N", "--max-jobs of a prefill worker",                   \
                      SL_FIELD(sl_sim_options, cluster.prefill_jobs), 1, 4096),                                        \
        SL_OPTION_ROW("max-jobs", 0, SL_OPTION_INT, "16", "N", "--max-jobs of a decode or aggregated worker",          \
                      SL_FIELD(sl_sim_options, cluster.decode_jobs), 1, 4096),                                         \
        SL_OPTION_ROW("jobs", 0, SL_OPTION_INT, "0", "N",                                                              \
                      "--max-jobs of the coordinator; 0: as many as the workers take",                                 \
                      SL_FIELD(sl_sim_options, cluster.max_jobs), 0, 1 << 20),                                         \
        SL_OPTION_ROW("queue", 0, SL_OPTION_INT, "256", "N", "--queue of the coordinator",                             \
                      SL_FIELD(sl_sim_options, cluster.max_queued), 1, 1 << 20),                                       \
        SL_OPTION_ROW("keep", 0, SL_OPTION_DURATION, "60s", "TIME", "--keep of a kvstore",                             \
                      SL_FIELD(sl_sim_options, cluster.keep_ms), 0, 86400000),                                         \
        SL_OPTION_ROW("ttl", 0, SL_OPTION_DURATION, "10m", "TIME", "--ttl of a kvstore",                               \
                      SL_FIELD(sl_sim_options, cluster.ttl_ms), 0, 31536000000),                                       \
        SL_LOCAL_TOOL_OPTIONS

struct sl_sim_setting {
    const struct sl_sim_options *options;
    struct sl_model_config model;
    struct sl_workload workload; // at rate 1, or of the trace
    double own_rate;             // of the workload
    double rates[SL_SIM_MAX_RATES];
    int n_rates, n_recipes;
    char names[SL_SIM_MAX_RECIPES][SL_RECIPE_TEXT_BYTES];
    struct sl_recipe recipes[SL_SIM_MAX_RECIPES];
    struct sl_costs costs[SL_SIM_MAX_RECIPES];
    struct sl_slo slo;
    double link_bytes_per_s;
    const struct sl_route_policy *routing;
    struct sl_signals signals;
    bool has_signals;
};

/*
 * Loads everything. The positional arguments are recipes. Without them: the full cache, the model's default, and those recommended for fewer bytes, as far as
 * the costs have them; N% is the recipe recommended to ship this much. The caller cleans up, after a failure too.
 */
enum sl_status sl_sim_setting_load(const struct sl_sim_options *options, struct sl_sim_setting *setting_out,
                                   struct sl_error *err);
void sl_sim_setting_cleanup(struct sl_sim_setting *setting);

// Simulates one recipe at one rate in a cluster of these workers. The caller cleans up *result_out.
enum sl_status sl_sim_setting_run(struct sl_sim_setting *setting, int recipe, double rate, const int64_t n_workers[3],
                                  struct sl_sim_result *result_out, struct sl_error *err);

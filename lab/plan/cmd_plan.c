// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice plan`: computes how many workers a workload needs under each recipe, and shows the arithmetic.
#include <limits.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message_json.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"
#include "engine/job/job_recipe.h"
#include "lab/plan/plan.h"
#include "lab/plan/sizing.h"

struct plan_config {
    struct sl_tool_config tool;
    const char *model, *cells, *trace;
    double rate_scale, rate, prompt_tokens, answer_tokens, spread, link_gbit, in_time, headroom;
    int64_t n_requests, seed, ttft_ms, tpot_ms, prefill_arena, decode_arena, store_arena, max_batch, keep_ms;
};

static const struct sl_option options[] = {
    {"model", 'm', SL_OPTION_MODEL, "demo", "MODEL",
     "model folder, GGUF file, or a name of `sluice models`; its weights are not read", SL_FIELD(plan_config, model)},
    {"cells", 0, SL_OPTION_STRING, NULL, "FILE",
     "how fast a worker is: what `sluice bench cells --json` printed (required)", SL_FIELD(plan_config, cells)},
    {"trace", 0, SL_OPTION_STRING, NULL, "FILE",
     "requests: JSON lines with timestamp, input_length, output_length, hash_ids", SL_FIELD(plan_config, trace)},
    {"rate-scale", 0, SL_OPTION_FLOAT, "1", "X", "play the trace so much faster", SL_FIELD(plan_config, rate_scale),
     1e-6, 1e6},
    {"rate", 0, SL_OPTION_FLOAT, "1", "N", "without a trace: requests a second, a Poisson process",
     SL_FIELD(plan_config, rate), 1e-6, 1e6},
    {"prompt-tokens", 0, SL_OPTION_FLOAT, "8000", "N", "without a trace: mean length of prompts",
     SL_FIELD(plan_config, prompt_tokens), 1, 1e8},
    {"answer-tokens", 0, SL_OPTION_FLOAT, "300", "N", "without a trace: mean length of answers",
     SL_FIELD(plan_config, answer_tokens), 1, 1e8},
    {"spread", 0, SL_OPTION_FLOAT, "1", "SIGMA", "without a trace: of both lengths, which are lognormal; 0: all alike",
     SL_FIELD(plan_config, spread), 0, 4},
    {"requests", 0, SL_OPTION_INT, "5000", "N", "without a trace: how many are drawn",
     SL_FIELD(plan_config, n_requests), 1, 1 << 20},
    {"seed", 0, SL_OPTION_INT, "1", "N", "without a trace: of the draws", SL_FIELD(plan_config, seed), 0, 1e15},
    {"ttft", 0, SL_OPTION_DURATION, "5s", "TIME", "promise: the first token comes so soon",
     SL_FIELD(plan_config, ttft_ms), 1, 86400000},
    {"tpot", 0, SL_OPTION_DURATION, "200ms", "TIME", "promise: each further token takes no longer",
     SL_FIELD(plan_config, tpot_ms), 1, 86400000},
    {"in-time", 0, SL_OPTION_FLOAT, "90", "PERCENT", "of the requests, for which --ttft must hold",
     SL_FIELD(plan_config, in_time), 1, 100},
    {"headroom", 0, SL_OPTION_FLOAT, "80", "PERCENT", "of the workers' time, that the arithmetic plans with",
     SL_FIELD(plan_config, headroom), 1, 100},
    {"prefill-arena", 0, SL_OPTION_SIZE, "16G", "SIZE", "--arena of a prefill worker",
     SL_FIELD(plan_config, prefill_arena), 1 << 20, 1e15},
    {"decode-arena", 0, SL_OPTION_SIZE, "16G", "SIZE", "--arena of a decode worker",
     SL_FIELD(plan_config, decode_arena), 1 << 20, 1e15},
    {"store-arena", 0, SL_OPTION_SIZE, "64G", "SIZE", "--arena of a kvstore", SL_FIELD(plan_config, store_arena),
     1 << 20, 1e15},
    {"max-jobs", 0, SL_OPTION_INT, "16", "N", "--max-jobs of a decode worker", SL_FIELD(plan_config, max_batch), 1,
     4096},
    {"link", 0, SL_OPTION_FLOAT, "10", "GBIT", "a second, into a decode worker", SL_FIELD(plan_config, link_gbit), 1e-3,
     1e5},
    {"keep", 0, SL_OPTION_DURATION, "10m", "TIME",
     "stores keep what was read for so long; 0s: none, but for offloaded layers", SL_FIELD(plan_config, keep_ms), 0,
     86400000},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice plan",
    .usage = "--cells FILE [--trace FILE | --rate N] [options] [RECIPE...]",
    .summary = "Tell how many workers of each role a workload takes under each recipe, with the arithmetic. Without "
               "recipes: the "
               "full cache, the model's default, and what is recommended for fewer bytes.",
    .epilog = "FILE of --cells is made on a machine like the workers', with as many threads as they have:\n"
              "  sluice bench cells -m MODEL --cell prefill:512 --cell prefill:4096 --cell decode:512x1 --cell "
              "decode:512x16\n"
              "    --cell decode:4096x1 --json > FILE\n"
              "Longer prompts and greater batches make it better. " SL_EXIT_CODES_HELP,
    .n_arguments_max = INT_MAX,
    SL_OPTIONS(options),
};

#define MAX_RECIPES 32

struct planned {
    char name[SL_RECIPE_TEXT_BYTES];
    struct sl_recipe recipe;
    struct sl_sizing sizing;
};

struct planning {
    struct plan_config config;
    struct sl_model_config model;
    struct sl_sizing_config sizing;
    struct sl_workload workload;
    struct planned planned[MAX_RECIPES];
    int n;
};

static int64_t n_workers(int64_t counted, int64_t played) {
    return counted > played ? counted : played;
}

static int64_t n_prefill(const struct sl_sizing *sizing) {
    return n_workers(sizing->n_prefill, sizing->played_prefill);
}

static int64_t n_decode(const struct sl_sizing *sizing) {
    return n_workers(sizing->n_decode, sizing->played_decode);
}

// --- output --------------------------------------------------------------------------------------------------------

static void print_table(const struct planning *p) {
    static const struct sl_column columns[] = {
        {"RECIPE", false},  {"CAPSULE", true},  {"IN DECODE", true}, {"AT ONCE", true},
        {"PREFILL", true},  {"DECODE", true},   {"STORES", true},    {"IN TIME", true},
        {"TTFT P50", true}, {"TTFT P90", true}, {"TTFT P99", true},
    };
    struct sl_table table = SL_TABLE(columns);
    for (int i = 0; i < p->n; i++) {
        const struct sl_sizing *s = &p->planned[i].sizing;
        char capsule[24], decode[24];
        sl_format_bytes(s->capsule_bytes, capsule, sizeof capsule);
        sl_format_bytes(s->decode_bytes, decode, sizeof decode);
        if (s->impossible) {
            sl_table_add(&table, "%s\t%s\t%s\t%" PRId64 "\t-\t-\t-\t-\t-\t-\t-", p->planned[i].name, capsule, decode,
                         s->places);
        } else {
            sl_table_add(&table,
                         "%s\t%s\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64
                         "\t%.1f%%\t%.2f s\t%.2f s\t%.2f s",
                         p->planned[i].name, capsule, decode, s->places, n_prefill(s), n_decode(s), s->n_stores,
                         100 * s->in_time, s->ttft_p50_s, s->ttft_p90_s, s->ttft_p99_s);
        }
    }
    sl_table_finish(&table, stdout);
}

static void print_speed(const struct planning *p) {
    const struct sl_speed *speed = &p->sizing.speed;
    printf("\nA worker, fitted to %d cells of prefill (within %.0f%%) and %d of decode (within %.0f%%):\n"
           "  a prompt of n tokens takes %.3g us * n + %.3g ns * n^2 / 2\n"
           "  a step takes %.3g ms + %.3g ms a job + %.3g ms a GiB of KV\n",
           speed->n_prefill, 100 * speed->worst_prefill_error, speed->n_decode, 100 * speed->worst_decode_error,
           speed->token_s * 1e6, speed->pair_s * 1e9, speed->step_s * 1e3, speed->row_s * 1e3,
           speed->byte_s * 1e3 * (1 << 30));
}

static void print_arithmetic(const struct planning *p, const struct planned *planned) {
    const struct sl_sizing *s = &planned->sizing;
    char decode[24], arena[24], stored[24], store_arena[24], peak[24];
    sl_format_bytes(s->decode_bytes, decode, sizeof decode);
    sl_format_bytes((double)p->sizing.decode_arena, arena, sizeof arena);
    sl_format_bytes(s->stored_bytes, stored, sizeof stored);
    sl_format_bytes((double)p->sizing.store_arena, store_arena, sizeof store_arena);
    sl_format_bytes((double)s->largest_prefill_bytes, peak, sizeof peak);
    printf("\n%s\n", planned->name);
    if (s->n_too_long + s->n_too_big > 0) {
        printf("  left out: %" PRId64 " requests beyond the model's %" PRId64 " positions, %" PRId64
               " that fit no arena\n",
               s->n_too_long, p->sizing.max_positions, s->n_too_big);
    }
    if (s->n_jobs > 0) {
        printf("  %" PRId64 " requests, %.3g a second: %.0f tokens read, of which %.0f are reused, and %.0f written\n",
               s->n_jobs, s->rate, s->prompt_tokens, s->reused_tokens, s->output_tokens);
    }
    if (s->impossible) {
        printf("  impossible: %s\n", s->impossible);
        return;
    }
    printf("  prefill  %.3g/s * %.3g s = %.2f of its time; / %.2f: %" PRId64 "; played: %" PRId64
           " (arena: %s at the longest)\n",
           s->rate, s->prefill_s, s->prefill_load, p->sizing.headroom, s->n_prefill, s->played_prefill, peak);
    printf("  decode   %s / %s: %" PRId64 " jobs; --tpot and --max-jobs: %" PRId64 "; a step of %" PRId64 ": %.3g ms\n",
           arena, decode, s->places_by_arena, s->places_by_time, s->places, 1e3 * s->step_s);
    printf("           %.3g/s * %.3g s / %" PRId64 " = %.2f of its places; / %.2f: %" PRId64 "; played: %" PRId64 "\n",
           s->rate, s->lifetime_s, s->places, s->decode_load, p->sizing.headroom, s->n_decode, s->played_decode);
    if (s->n_stores > 0) {
        printf("  stores   %s kept or held / %s: %" PRId64 "\n", stored, store_arena, s->n_stores);
    }
}

static void print_json(const struct planned *planned) {
    const struct sl_sizing *s = &planned->sizing;
    json_t *json =
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "recipe", planned->name,
                  "requests", (json_int_t)s->n_jobs, "too_long", (json_int_t)s->n_too_long, "too_big",
                  (json_int_t)s->n_too_big, "rate", s->rate, "prompt_tokens", s->prompt_tokens, "output_tokens",
                  s->output_tokens, "reused_tokens", s->reused_tokens, "capsule_bytes", s->capsule_bytes,
                  "decode_bytes", s->decode_bytes, "prefill_s", s->prefill_s, "largest_prefill_bytes",
                  (json_int_t)s->largest_prefill_bytes, "largest_decode_bytes", (json_int_t)s->largest_decode_bytes);
    json_t *more = s->impossible ? json_pack("{s:s}", "impossible", s->impossible)
                                 : json_pack("{s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "jobs_at_once",
                                             (json_int_t)s->places, "jobs_by_arena", (json_int_t)s->places_by_arena,
                                             "step_s", s->step_s, "lifetime_s", s->lifetime_s, "prefill_workers",
                                             (json_int_t)n_prefill(s), "decode_workers", (json_int_t)n_decode(s),
                                             "kvstores", (json_int_t)s->n_stores, "in_time", s->in_time, "ttft_p50_s",
                                             s->ttft_p50_s, "ttft_p90_s", s->ttft_p90_s, "ttft_p99_s", s->ttft_p99_s);
    if (json && more) {
        json_object_update(json, more);
    }
    json_decref(more);
    sl_json_print(json, JSON_COMPACT, stdout);
}

// --- the command ---------------------------------------------------------------------------------------------------

static enum sl_status add_recipe(struct planning *p, const char *text, struct sl_error *err) {
    if (p->n == MAX_RECIPES) {
        return sl_fail(err, SL_ERR_INVALID, "at most %d recipes at once", MAX_RECIPES);
    }
    struct planned *planned = &p->planned[p->n];
    enum sl_status status = sl_job_recipe(text, &p->model, &planned->recipe, err);
    if (status == SL_OK) {
        snprintf(planned->name, sizeof planned->name, "%s", text);
        p->n++;
    }
    return status;
}

static enum sl_status add_usual_recipes(struct planning *p, struct sl_error *err) {
    enum sl_status status = add_recipe(p, "full", err);
    status = status == SL_OK ? add_recipe(p, sl_job_default_recipe(&p->model), err) : status;
    for (const struct sl_recommendation *r = sl_recipe_recommendations(false); r->recipe && status == SL_OK; r++) {
        if (!r->needs_heads && r->share < 0.5) {
            status = add_recipe(p, r->recipe, err);
        }
    }
    return status;
}

static enum sl_status prepare(struct planning *p, char **recipes, int n_recipes, struct sl_error *err) {
    const struct plan_config *config = &p->config;
    if (!config->cells) {
        return sl_fail(err, SL_ERR_INVALID,
                       "--cells FILE is missing: how fast a worker is; see --help for how to measure it");
    }
    enum sl_status status = sl_model_config_load(config->model, &p->model, err);
    for (int i = 0; i < n_recipes && status == SL_OK; i++) {
        status = add_recipe(p, recipes[i], err);
    }
    if (status == SL_OK && n_recipes == 0) {
        status = add_usual_recipes(p, err);
    }
    struct sl_kv_geometry geometry = sl_model_geometry(&p->model);
    p->sizing = (struct sl_sizing_config){
        .geometry = geometry,
        .max_positions = p->model.max_positions,
        .ttft_s = (double)config->ttft_ms / 1e3,
        .token_s = (double)config->tpot_ms / 1e3,
        .in_time = config->in_time / 100,
        .headroom = config->headroom / 100,
        .prefill_arena = config->prefill_arena,
        .decode_arena = config->decode_arena,
        .store_arena = config->store_arena,
        .max_batch = config->max_batch,
        .ship_rate = config->link_gbit * 1e9 / 8,
        .keep_s = (double)config->keep_ms / 1e3,
    };
    if (status == SL_OK) {
        int64_t full_bytes = INT64_C(4) * geometry.n_layers * geometry.n_kv_heads * geometry.head_dim;
        status = sl_speed_load(config->cells, full_bytes, &p->sizing.speed, err);
    }
    if (status != SL_OK) {
        return status;
    }
    if (config->trace) {
        return sl_workload_load(config->trace, config->rate_scale, &p->workload, err);
    }
    struct sl_workload_config drawn = {config->rate,          config->n_requests, config->prompt_tokens,
                                       config->answer_tokens, config->spread,     (uint64_t)config->seed};
    return sl_workload_draw(&drawn, &p->workload, err);
}

static enum sl_status plan(struct planning *p, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int i = 0; i < p->n && status == SL_OK; i++) {
        status = sl_sizing_make(&p->sizing, &p->workload, &p->planned[i].recipe, &p->planned[i].sizing, err);
        if (status != SL_OK) {
            sl_error_prefix(err, p->planned[i].name);
        }
    }
    if (status != SL_OK) {
        return status;
    }
    if (p->config.tool.json) {
        for (int i = 0; i < p->n; i++) {
            print_json(&p->planned[i]);
        }
        return SL_OK;
    }
    print_table(p);
    print_speed(p);
    for (int i = 0; i < p->n; i++) {
        print_arithmetic(p, &p->planned[i]);
    }
    return SL_OK;
}

int sl_command_plan(int argc, char **argv) {
    struct planning *p = calloc(1, sizeof *p);
    if (!p) {
        fprintf(stderr, "sluice plan: out of memory\n");
        return sl_exit_of(SL_ERR_EXHAUSTED);
    }
    struct sl_error err = {0};
    int first, code;
    if (sl_tool_parse(&program, argc, argv, &p->config, &first, &code)) {
        enum sl_status status = prepare(p, argv + first, argc - first, &err);
        status = status == SL_OK ? plan(p, &err) : status;
        code = status == SL_OK ? SL_EXIT_OK : sl_tool_complain("plan", &err);
        for (int i = 0; i < p->n && code == SL_EXIT_OK; i++) {
            code = p->planned[i].sizing.impossible ? SL_EXIT_FAILED : code;
        }
    }
    sl_workload_cleanup(&p->workload);
    free(p);
    return code;
}

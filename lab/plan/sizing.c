// SPDX-License-Identifier: Apache-2.0
// Purpose: see sizing.h.
#include "lab/plan/sizing.h"

#include <math.h>
#include <stdlib.h>

#include "engine/compress/plan/plan.h"
#include "lab/plan/play.h"

#define MAX_WORKERS 4096 // per role: reports more as impossible

static double smaller(double a, double b) {
    return a < b ? a : b;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

struct sizer {
    const struct sl_sizing_config *config;
    const struct sl_workload *workload;
    const struct sl_recipe *recipe;
    struct sl_sizing *sizing;
    struct sl_plan *plan;     // of the current job: tens of kilobytes
    int64_t *reused;          // [workload.n]
    struct sl_play_job *jobs; // [sizing.n_jobs]
    int64_t *n_output;        // output tokens of those jobs
};

// --- what jobs take ------------------------------------------------------------------------------------------------

// Adds a job. The capsule covers all of the prompt except its last token, which decode reads.
static enum sl_status add_job(struct sizer *sizer, int64_t i, struct sl_error *err) {
    const struct sl_sizing_config *config = sizer->config;
    const struct sl_workload_arrival *arrival = &sizer->workload->arrivals[i];
    struct sl_sizing *sizing = sizer->sizing;
    if (arrival->n_prompt + arrival->n_output > config->max_positions) {
        sizing->n_too_long++;
        return SL_OK;
    }
    int64_t n_read = arrival->n_prompt > 1 ? arrival->n_prompt - 1 : 1;
    enum sl_status status = sl_plan_make(sizer->recipe, &config->geometry, n_read, 0, sizer->plan, err);
    if (status != SL_OK) {
        return status;
    }
    double capsule_bytes = (double)sizer->plan->capsule_bytes;
    int64_t decode_bytes = (int64_t)sl_plan_decode_bytes(sizer->plan, arrival->n_output + 1);
    int64_t prefill_bytes = (int64_t)sizer->plan->prefill_peak_bytes;
    if (decode_bytes > config->decode_arena || prefill_bytes > config->prefill_arena) {
        sizing->n_too_big++;
        return SL_OK;
    }
    int64_t reused = sizer->reused[i] < n_read ? sizer->reused[i] : n_read;
    sizer->n_output[sizing->n_jobs] = arrival->n_output;
    struct sl_play_job *job = &sizer->jobs[sizing->n_jobs++];
    job->at_s = arrival->at_s;
    job->prefill_s = sl_speed_prefill_s(&config->speed, reused, n_read);
    job->first_s = capsule_bytes / config->ship_rate;
    job->bytes = decode_bytes;
    sizing->prompt_tokens += (double)arrival->n_prompt;
    sizing->output_tokens += (double)arrival->n_output;
    sizing->reused_tokens += (double)reused;
    sizing->prefill_s += job->prefill_s;
    sizing->capsule_bytes += capsule_bytes;
    sizing->remote_kv_bytes += (double)sl_plan_remote_kv_bytes(sizer->plan) * sizer->recipe->replicas;
    if (prefill_bytes > sizing->largest_prefill_bytes) {
        sizing->largest_prefill_bytes = prefill_bytes;
    }
    if (decode_bytes > sizing->largest_decode_bytes) {
        sizing->largest_decode_bytes = decode_bytes;
    }
    return SL_OK;
}

static enum sl_status add_jobs(struct sizer *sizer, struct sl_error *err) {
    const struct sl_workload *workload = sizer->workload;
    struct sl_sizing *sizing = sizer->sizing;
    enum sl_status status = SL_OK;
    if (sizer->config->keep_s > 0) {
        status = sl_workload_reuse(workload, sizer->config->keep_s, !sl_recipe_evicts(sizer->recipe),
                                   sizer->recipe->chunk_tokens, sizer->reused, err);
    }
    for (int64_t i = 0; i < workload->n && status == SL_OK; i++) {
        status = add_job(sizer, i, err);
    }
    double n = (double)sizing->n_jobs;
    if (status != SL_OK || n == 0) {
        return status;
    }
    double *sums[] = {&sizing->prompt_tokens, &sizing->output_tokens, &sizing->reused_tokens,
                      &sizing->prefill_s,     &sizing->capsule_bytes, &sizing->remote_kv_bytes};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        *sums[i] /= n;
    }
    sizing->rate = n / workload->seconds;
    return SL_OK;
}

// --- arithmetic ----------------------------------------------------------------------------------------------------

// Computes the mean bytes of a job on a decode worker at a random moment, weighted by how long each job stays. Steps
// take equally long for all jobs, so the weights are the answers' lengths.
static void weigh_decode_bytes(struct sizer *sizer) {
    double bytes = 0, tokens = 0;
    for (int64_t i = 0; i < sizer->sizing->n_jobs; i++) {
        bytes += (double)sizer->jobs[i].bytes * (double)sizer->n_output[i];
        tokens += (double)sizer->n_output[i];
    }
    sizer->sizing->decode_bytes = bytes / tokens;
}

static void count_places(struct sizer *sizer) {
    const struct sl_sizing_config *config = sizer->config;
    struct sl_sizing *sizing = sizer->sizing;
    const struct sl_speed *speed = &config->speed;
    double of_job_s = speed->row_s + speed->byte_s * sizing->decode_bytes;
    double left_s = config->token_s - speed->step_s;
    double by_time = left_s < 0 ? 0 : of_job_s > 0 ? left_s / of_job_s : (double)config->max_batch;
    sizing->places_by_time = (int64_t)smaller(by_time, (double)config->max_batch);
    sizing->places_by_arena = (int64_t)((double)config->decode_arena / sizing->decode_bytes);
    sizing->places =
        sizing->places_by_time < sizing->places_by_arena ? sizing->places_by_time : sizing->places_by_arena;
    sizing->step_s = sl_speed_step_s(speed, (double)sizing->places, (double)sizing->places * sizing->decode_bytes);
}

static void count_workers(struct sizer *sizer) {
    const struct sl_sizing_config *config = sizer->config;
    struct sl_sizing *sizing = sizer->sizing;
    double n = (double)sizing->n_jobs, lifetime_s = 0;
    for (int64_t i = 0; i < sizing->n_jobs; i++) {
        struct sl_play_job *job = &sizer->jobs[i];
        job->first_s += sizing->step_s;
        job->write_s = sizing->step_s * (double)(sizer->n_output[i] - 1);
        lifetime_s += job->prefill_s + job->first_s + job->write_s;
    }
    sizing->lifetime_s = lifetime_s / n;
    sizing->prefill_load = sizing->rate * sizing->prefill_s;
    sizing->decode_load = sizing->rate * sizing->lifetime_s / (double)sizing->places;
    sizing->stored_bytes = sizing->rate * config->keep_s * (sizing->capsule_bytes + sizing->remote_kv_bytes) +
                           sizing->rate * sizing->lifetime_s * sizing->remote_kv_bytes;
    sizing->n_prefill = (int64_t)larger(1, ceil(sizing->prefill_load / config->headroom));
    sizing->n_decode = (int64_t)larger(1, ceil(sizing->decode_load / config->headroom));
    sizing->n_stores = (int64_t)ceil(sizing->stored_bytes / (double)config->store_arena);
    if (sizing->remote_kv_bytes > 0 && sizing->n_stores < sizer->recipe->replicas) {
        sizing->n_stores = sizer->recipe->replicas;
    }
}

// --- the play ------------------------------------------------------------------------------------------------------

static enum sl_status play(const struct sizer *sizer, int64_t n_prefill, int64_t n_decode, struct sl_play *play_out,
                           struct sl_error *err) {
    struct sl_play_config config = {
        .jobs = sizer->jobs,
        .n = sizer->sizing->n_jobs,
        .n_prefill = n_prefill,
        .n_decode = n_decode,
        .arena_bytes = sizer->config->decode_arena,
        .n_places = sizer->sizing->places_by_time, // their own bytes limit them in the arena
        .ttft_s = sizer->config->ttft_s,
    };
    return sl_play(&config, play_out, err);
}

static int64_t one_more(int64_t n) {
    return n + 1 + n / 32;
}

static enum sl_status play_all(struct sizer *sizer, struct sl_error *err) {
    struct sl_sizing *sizing = sizer->sizing;
    int64_t n_prefill = (int64_t)larger(1, ceil(sizing->prefill_load));
    int64_t n_decode = (int64_t)larger(1, ceil(sizing->decode_load));
    struct sl_play played;
    enum sl_status status = play(sizer, n_prefill, n_decode, &played, err);
    while (status == SL_OK && played.in_time < sizer->config->in_time && n_prefill < MAX_WORKERS &&
           n_decode < MAX_WORKERS) {
        if (played.waited_prefill_s >= played.waited_decode_s) {
            n_prefill = one_more(n_prefill);
        } else {
            n_decode = one_more(n_decode);
        }
        status = play(sizer, n_prefill, n_decode, &played, err);
    }
    sizing->played_prefill = n_prefill;
    sizing->played_decode = n_decode;
    if (status == SL_OK && played.in_time < sizer->config->in_time) {
        sizing->impossible = "4096 workers of a role are not enough";
    }
    n_prefill = n_prefill > sizing->n_prefill ? n_prefill : sizing->n_prefill;
    n_decode = n_decode > sizing->n_decode ? n_decode : sizing->n_decode;
    status = status == SL_OK ? play(sizer, n_prefill, n_decode, &played, err) : status;
    sizing->in_time = played.in_time;
    sizing->ttft_p50_s = played.p50_s;
    sizing->ttft_p90_s = played.p90_s;
    sizing->ttft_p99_s = played.p99_s;
    return status;
}

// Returns the share of jobs whose first token is in time without any waiting.
static double in_time_alone(const struct sizer *sizer) {
    int64_t n = 0;
    for (int64_t i = 0; i < sizer->sizing->n_jobs; i++) {
        n += sizer->jobs[i].prefill_s + sizer->jobs[i].first_s <= sizer->config->ttft_s;
    }
    return (double)n / (double)sizer->sizing->n_jobs;
}

static enum sl_status size(struct sizer *sizer, struct sl_error *err) {
    struct sl_sizing *sizing = sizer->sizing;
    enum sl_status status = add_jobs(sizer, err);
    if (status != SL_OK) {
        return status;
    }
    if (sizing->n_jobs == 0) {
        sizing->impossible = "no request fits the model's positions and the workers' arenas";
        return SL_OK;
    }
    weigh_decode_bytes(sizer);
    count_places(sizer);
    if (sizing->places < 1) {
        sizing->impossible = sizing->places_by_time < 1 ? "a step with a single job takes longer than --tpot"
                                                        : "the decode arena holds no mean job";
        return SL_OK;
    }
    count_workers(sizer);
    sizing->in_time = in_time_alone(sizer);
    if (sizing->in_time < sizer->config->in_time) {
        sizing->impossible =
            "too many prompts take longer than --ttft even where nobody waits: faster workers, or shorter prompts";
        return SL_OK;
    }
    return play_all(sizer, err);
}

enum sl_status sl_sizing_make(const struct sl_sizing_config *config, const struct sl_workload *workload,
                              const struct sl_recipe *recipe, struct sl_sizing *sizing_out, struct sl_error *err) {
    *sizing_out = (struct sl_sizing){0};
    size_t n = (size_t)workload->n;
    struct sizer sizer = {
        .config = config,
        .workload = workload,
        .recipe = recipe,
        .sizing = sizing_out,
        .plan = malloc(sizeof *sizer.plan),
        .reused = calloc(n, sizeof *sizer.reused),
        .jobs = calloc(n, sizeof *sizer.jobs),
        .n_output = calloc(n, sizeof *sizer.n_output),
    };
    enum sl_status status = sizer.plan && sizer.reused && sizer.jobs && sizer.n_output
                                ? size(&sizer, err)
                                : sl_fail(err, SL_ERR_EXHAUSTED, "no memory to plan for %zu requests", n);
    free(sizer.plan);
    free(sizer.reused);
    free(sizer.jobs);
    free(sizer.n_output);
    return status;
}

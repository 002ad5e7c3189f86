// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see play.h.
 * Design: jobs start in order, so time only moves forward. Two heaps hold when prefill workers become free, and when
 *         decode workers release memory.
 */
#include "lab/plan/play.h"

#include <math.h>
#include <stdlib.h>

#include "lab/result.h"

// An event and its time: a prefill worker becomes free, or a decode worker gets back `bytes` and a batch slot.
struct moment {
    double at_s;
    int64_t bytes, worker;
};

// A heap; moments[0] is the earliest.
struct heap {
    struct moment *moments;
    int64_t n;
};

static void push(struct heap *heap, struct moment moment) {
    int64_t i = heap->n++;
    for (; i > 0 && heap->moments[(i - 1) / 2].at_s > moment.at_s; i = (i - 1) / 2) {
        heap->moments[i] = heap->moments[(i - 1) / 2];
    }
    heap->moments[i] = moment;
}

static struct moment pop(struct heap *heap) {
    struct moment first = heap->moments[0], last = heap->moments[--heap->n];
    int64_t i = 0;
    for (int64_t child = 1; child < heap->n; child = 2 * i + 1) {
        child += child + 1 < heap->n && heap->moments[child + 1].at_s < heap->moments[child].at_s;
        if (heap->moments[child].at_s >= last.at_s) {
            break;
        }
        heap->moments[i] = heap->moments[child];
        i = child;
    }
    heap->moments[i] = last;
    return first;
}

struct decode_worker {
    int64_t free_bytes, free_places;
};

struct stage {
    const struct sl_play_config *config;
    struct heap prefill, decode;
    struct decode_worker *workers; // [n_decode]
    double *ttft_s;                // [n]
};

static void give_back(struct stage *stage, double now_s) {
    while (stage->decode.n > 0 && stage->decode.moments[0].at_s <= now_s) {
        struct moment moment = pop(&stage->decode);
        stage->workers[moment.worker].free_bytes += moment.bytes;
        stage->workers[moment.worker].free_places++;
    }
}

// Returns the decode worker with the most free memory among those that can take the job; -1: none can now.
static int64_t find_room(const struct stage *stage, int64_t bytes) {
    int64_t best = -1;
    for (int64_t i = 0; i < stage->config->n_decode; i++) {
        const struct decode_worker *worker = &stage->workers[i];
        if (worker->free_places > 0 && worker->free_bytes >= bytes &&
            (best < 0 || worker->free_bytes > stage->workers[best].free_bytes)) {
            best = i;
        }
    }
    return best;
}

static void play_jobs(struct stage *stage, struct sl_play *play) {
    const struct sl_play_config *config = stage->config;
    double now_s = 0;
    int64_t n_in_time = 0;
    for (int64_t i = 0; i < config->n; i++) {
        const struct sl_play_job *job = &config->jobs[i];
        now_s = fmax(now_s, job->at_s);
        double free_s = pop(&stage->prefill).at_s;
        play->waited_prefill_s += fmax(0, free_s - now_s);
        now_s = fmax(now_s, free_s);
        give_back(stage, now_s);
        int64_t worker = find_room(stage, job->bytes);
        double asked_s = now_s;
        while (worker < 0) { // ends: each job fits an empty worker, and only finitely many release memory
            now_s = stage->decode.moments[0].at_s;
            give_back(stage, now_s);
            worker = find_room(stage, job->bytes);
        }
        play->waited_decode_s += now_s - asked_s;
        double read_s = now_s + job->prefill_s, first_s = read_s + job->first_s;
        stage->workers[worker].free_bytes -= job->bytes;
        stage->workers[worker].free_places--;
        push(&stage->prefill, (struct moment){read_s, 0, 0});
        push(&stage->decode, (struct moment){first_s + job->write_s, job->bytes, worker});
        stage->ttft_s[i] = first_s - job->at_s;
        n_in_time += stage->ttft_s[i] <= config->ttft_s;
    }
    qsort(stage->ttft_s, (size_t)config->n, sizeof *stage->ttft_s, sl_bench_ascending);
    play->in_time = (double)n_in_time / (double)config->n;
    play->p50_s = stage->ttft_s[config->n / 2];
    play->p90_s = stage->ttft_s[config->n * 9 / 10];
    play->p99_s = stage->ttft_s[config->n * 99 / 100];
}

enum sl_status sl_play(const struct sl_play_config *config, struct sl_play *play_out, struct sl_error *err) {
    *play_out = (struct sl_play){0};
    struct stage stage = {
        .config = config,
        .prefill.moments = malloc((size_t)config->n_prefill * sizeof(struct moment)),
        .decode.moments = malloc((size_t)config->n * sizeof(struct moment)),
        .workers = malloc((size_t)config->n_decode * sizeof(struct decode_worker)),
        .ttft_s = malloc((size_t)config->n * sizeof(double)),
    };
    enum sl_status status = SL_OK;
    if (!stage.prefill.moments || !stage.decode.moments || !stage.workers || !stage.ttft_s) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory to play %lld jobs", (long long)config->n);
        goto out;
    }
    for (int64_t i = 0; i < config->n_prefill; i++) {
        push(&stage.prefill, (struct moment){0, 0, 0});
    }
    for (int64_t i = 0; i < config->n_decode; i++) {
        stage.workers[i] = (struct decode_worker){config->arena_bytes, config->n_places};
    }
    play_jobs(&stage, play_out);
out:
    free(stage.prefill.moments);
    free(stage.decode.moments);
    free(stage.workers);
    free(stage.ttft_s);
    return status;
}

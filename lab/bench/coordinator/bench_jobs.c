// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: clients of Generate for one phase of `sluice bench coordinator` (lab/sluice_eval/sluice_bench/coordinator.py): with a number of
 *          jobs in flight at all times, which gives a rate, or with jobs at equal intervals, which gives the added latency: from the
 *          request to the last event, less what the workers (waiting_workers.c) report to have waited. With --direct, each client asks
 *          two workers itself, in the coordinator's order: that is what clients and workers take without a coordinator. Prints one JSON object.
 *
 * Design: one thread drives all clients, by the streams' news. It lags by the time from news to reading, or from the interval to
 *         the request.
 */
#include "lab/bench/coordinator/coordinator_benches.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/locked.h"
#include "base/thread.h"
#include "client/cli/message_json.h"
#include "client/cli/tool.h"
#include "lab/result.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define JOB_MS        300000
#define MAX_JOBS      30000 // in flight
#define MAX_SAMPLES   (1 << 20)
#define N_CONNECTIONS 8
#define N_PROMPT      20
#define WARM_SHARE    0.3 // of the first phase, which does not count

struct options {
    const char *coordinator, *direct;
    int64_t n_clients, n_tokens;
    double seconds, rate;
};

static const struct sl_option option_table[] = {
    {"coordinator", 'c', SL_OPTION_STRING, "127.0.0.1:7600", "HOST:PORT", "coordinator to ask",
     SL_FIELD(options, coordinator)},
    {"direct", 0, SL_OPTION_STRING, "", "DECODE,PREFILL", "addresses of workers to ask, instead of a coordinator",
     SL_FIELD(options, direct)},
    {"clients", 0, SL_OPTION_INT, "256", "N", "jobs in flight at most", SL_FIELD(options, n_clients), 1, MAX_JOBS},
    {"seconds", 0, SL_OPTION_FLOAT, "10", "S", "time during which jobs are submitted", SL_FIELD(options, seconds), 1,
     3600},
    {"per-second", 0, SL_OPTION_FLOAT, "0", "N", "jobs a second; 0: all clients are busy at all times, after a while",
     SL_FIELD(options, rate), 0, 1e6},
    {"tokens", 0, SL_OPTION_INT, "8", "N", "tokens of an answer", SL_FIELD(options, n_tokens), 1, 1024},
};

struct bench {
    struct options options;
    struct sl_signals signals;
};

// ---- clients --------------------------------------------------------------------------------------------------------

struct load;

enum step { RESERVE, PREFILL, DECODE, GENERATE }; // the last: a coordinator takes the others

struct client {
    struct load *load;
    struct sl_rpc_channel *channel, *prefill; // to the coordinator, or to two workers
    enum step step;
    double waited_ms; // while its prompt was read
    struct sl_rpc_stream *stream;
    int64_t begin_ns, news_ns;
    bool queued;
    struct client *next; // in the queue, or among the idle ones
};

struct load {
    const struct bench *bench;
    pthread_mutex_t mutex; // guards the queue, and the clients' news
    pthread_cond_t news;
    struct client *head, **tail;
    struct client *clients, *idle;
    int64_t n_clients, n_running;
    int64_t count_from_ns, end_ns;
    int64_t n_counted, n_ended, n_failed;
    struct sl_error why; // of the first failure
    double *total_ms, *added_ms, *lag_ms;
    size_t n_samples, n_lags;
};

static void on_news(void *arg) {
    struct client *client = arg;
    struct load *load = client->load;
    SL_LOCKED(&load->mutex);
    if (!client->queued) {
        client->queued = true;
        client->news_ns = sl_now_ns();
        client->next = NULL;
        *load->tail = client;
        load->tail = &client->next;
        pthread_cond_signal(&load->news);
    }
}

static struct client *next_news(struct load *load, int64_t until_ns) {
    SL_LOCKED(&load->mutex);
    while (!load->head && sl_cond_wait_until(&load->news, &load->mutex, until_ns) == SL_OK) {
    }
    struct client *client = load->head;
    if (client) {
        load->head = client->next;
        load->tail = load->head ? load->tail : &load->head;
        client->queued = false;
    }
    return client;
}

static bool is_queued(struct client *client) {
    SL_LOCKED(&client->load->mutex);
    return client->queued;
}

static void note_lag(struct load *load, int64_t since_ns, int64_t now_ns) {
    if (now_ns >= load->count_from_ns && load->n_lags < MAX_SAMPLES) {
        load->lag_ms[load->n_lags++] = (double)(now_ns - since_ns) / SL_NS_PER_MS;
    }
}

static void note_failure(struct load *load, const struct sl_error *err) {
    load->why = load->n_failed++ == 0 ? *err : load->why;
}

// Opens the call of the client's step.
static enum sl_status open_call(struct load *load, struct client *client, struct sl_error *err) {
    static int32_t ids[N_PROMPT] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
    Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__GenerateRequest generate = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__ReserveRequest reserve = SLUICE__V1__RESERVE_REQUEST__INIT;
    Sluice__V1__PrefillRequest prefill = SLUICE__V1__PREFILL_REQUEST__INIT;
    Sluice__V1__DecodeRequest decode = SLUICE__V1__DECODE_REQUEST__INIT;
    tokens.ids = ids;
    tokens.n_ids = N_PROMPT;
    generate.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    generate.tokens = prefill.tokens = decode.prompt = &tokens;
    generate.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    generate.max_new_tokens = decode.max_new_tokens = (int32_t)load->bench->options.n_tokens;
    generate.ignore_eos = true;
    const struct {
        const struct sl_rpc_method *method;
        const ProtobufCMessage *request;
    } calls[] = {[RESERVE] = {&sl_method_decode_reserve, &reserve.base},
                 [PREFILL] = {&sl_method_prefill_run, &prefill.base},
                 [DECODE] = {&sl_method_decode_run, &decode.base},
                 [GENERATE] = {&sl_method_inference_generate, &generate.base}};
    SL_TRY(sl_rpc_stream_open(client->step == PREFILL ? client->prefill : client->channel, calls[client->step].method,
                              calls[client->step].request, sl_deadline_in_ms(JOB_MS), NULL, &client->stream, err));
    sl_rpc_stream_on_news(client->stream, on_news, client);
    return SL_OK;
}

static void ask(struct load *load, struct client *client) {
    struct sl_error err = {0};
    client->begin_ns = sl_now_ns();
    client->step = client->prefill ? RESERVE : GENERATE;
    if (open_call(load, client, &err) != SL_OK) {
        note_failure(load, &err);
        client->next = load->idle;
        load->idle = client;
        return;
    }
    load->n_running++;
}

static void count_answer(struct load *load, const struct client *client, const Sluice__V1__Statistics *statistics) {
    int64_t now_ns = sl_now_ns();
    if (now_ns < load->count_from_ns || now_ns >= load->end_ns) {
        return;
    }
    load->n_counted++;
    if (statistics && statistics->retrieval && load->n_samples < MAX_SAMPLES) {
        double total_ms = (double)(now_ns - client->begin_ns) / SL_NS_PER_MS;
        load->total_ms[load->n_samples] = total_ms;
        load->added_ms[load->n_samples++] =
            total_ms - client->waited_ms - statistics->prefill_ms - statistics->retrieval->wait_ms;
    }
}

// Notes a message. Returns whether the client's step has its result, and the next one may begin.
static bool take(struct load *load, struct client *client, const ProtobufCMessage *message) {
    const Sluice__V1__Event *event = (const Sluice__V1__Event *)message;
    const Sluice__V1__PrefillEvent *read = (const Sluice__V1__PrefillEvent *)message;
    const Sluice__V1__DecodeEvent *written = (const Sluice__V1__DecodeEvent *)message;
    switch (client->step) {
    case RESERVE:
        client->waited_ms = 0;
        return true;
    case PREFILL:
        if (read->what_case != SLUICE__V1__PREFILL_EVENT__WHAT_DONE || !read->done->statistics) {
            return false;
        }
        client->waited_ms = read->done->statistics->prefill_ms;
        return true;
    case DECODE:
        if (written->what_case == SLUICE__V1__DECODE_EVENT__WHAT_DONE) {
            count_answer(load, client, written->done->statistics);
            return true;
        }
        return false;
    default:
        if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED && event->finished->status_code == 0) {
            count_answer(load, client, event->finished->statistics);
        }
        return false; // it has an orderly end
    }
}

// Reads all that is there. Returns whether the job has ended.
static bool hear(struct load *load, struct client *client) {
    for (;;) {
        struct sl_error err = {0};
        ProtobufCMessage *message;
        enum sl_status status = sl_rpc_stream_next(client->stream, 0, &message, &err);
        if (status != SL_OK) {
            if (status == SL_ERR_NOT_FOUND && client->step != GENERATE && !err.text[0]) {
                sl_fail(&err, status, "a worker ended its call without a result");
            }
            if (err.text[0]) {
                note_failure(load, &err);
            }
            return status != SL_AGAIN;
        }
        const bool has_result = take(load, client, message);
        protobuf_c_message_free_unpacked(message, NULL);
        if (!has_result) {
            continue;
        }
        if (client->step == DECODE) {
            return true;
        }
        client->step++;
        sl_rpc_stream_close(&client->stream);
        if (open_call(load, client, &err) != SL_OK) {
            note_failure(load, &err);
            return true;
        }
    }
}

/*
 * Runs one phase: for `rate` 0, with all clients busy at all times, after a while; else with `rate` jobs a second. Returns when all jobs have ended.
 */
static enum sl_status run_phase(struct load *load, double rate, struct sl_signals *signals, struct sl_error *err) {
    const int64_t begin_ns = sl_now_ns(), span_ns = (int64_t)(load->bench->options.seconds * SL_NS_PER_S);
    load->end_ns = begin_ns + span_ns;
    load->count_from_ns = begin_ns + (int64_t)(WARM_SHARE * (double)span_ns);
    int64_t due_ns = begin_ns, now_ns;
    const int64_t step_ns =
        rate > 0 ? (int64_t)(SL_NS_PER_S / rate) : (load->count_from_ns - begin_ns) / load->n_clients;
    while ((now_ns = sl_now_ns()) < load->end_ns || load->n_running > 0) {
        if (sl_signals_check(signals, err) != SL_OK) {
            return err->status;
        }
        bool all_are_due = rate == 0 && now_ns >= load->count_from_ns; // until then, one after the other begins
        while (load->idle && (all_are_due || due_ns <= now_ns) && now_ns < load->end_ns) {
            struct client *client = load->idle;
            load->idle = client->next;
            if (rate > 0) {
                note_lag(load, due_ns, now_ns);
            }
            due_ns += step_ns;
            ask(load, client);
            if (!client->stream) { // it could not ask, and would not the next moment
                break;
            }
        }
        int64_t wait_ns = now_ns + 100 * SL_NS_PER_MS;
        struct client *client = next_news(load, load->idle && due_ns > now_ns && due_ns < wait_ns ? due_ns : wait_ns);
        if (!client) {
            continue;
        }
        if (client->stream) {
            note_lag(load, client->news_ns, sl_now_ns());
            if (!hear(load, client)) {
                continue;
            }
            sl_rpc_stream_close(&client->stream);
            load->n_running--;
            load->n_ended++;
        }
        if (!is_queued(client)) { // else the news of what was read already: it is idle when that was taken
            client->next = load->idle;
            load->idle = client;
        }
    }
    return SL_OK;
}

// ---- the bench --------------------------------------------------------------------------------------------------------

static void print(struct load *load) {
    double *total_ms = load->total_ms, *added_ms = load->added_ms;
    json_t *line = json_pack("{s:f, s:I, s:I, s:s, s:f, s:f, s:f, s:f}", "jobs_per_s",
                             (double)load->n_counted / ((1 - WARM_SHARE) * load->bench->options.seconds), "ended",
                             (json_int_t)load->n_ended, "failed", (json_int_t)load->n_failed, "why",
                             load->n_failed > 0 ? load->why.text : "", "latency_ms_p50",
                             sl_bench_percentile(total_ms, load->n_samples, 0.5), "added_ms_p50",
                             sl_bench_percentile(added_ms, load->n_samples, 0.5), "added_ms_p99",
                             sl_bench_percentile(added_ms, load->n_samples, 0.99), "lag_ms_p99",
                             sl_bench_percentile(load->lag_ms, load->n_lags, 0.99));
    sl_json_print(line, 0, stdout);
    fflush(stdout);
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    struct load load = {.bench = b, .n_clients = b->options.n_clients};
    struct sl_rpc_channel *channels[N_CONNECTIONS] = {0}, *prefill[N_CONNECTIONS] = {0};
    const char *comma = strchr(b->options.direct, ',');
    SL_FAIL_IF(b->options.direct[0] && !comma, err, SL_ERR_INVALID, "--direct %s: expected DECODE,PREFILL",
               b->options.direct);
    char *address =
        comma ? strndup(b->options.direct, (size_t)(comma - b->options.direct)) : strdup(b->options.coordinator);
    SL_FAIL_IF(!address, err, SL_ERR_EXHAUSTED, "no memory for an address");
    sl_descriptors_raise();
    pthread_mutex_init(&load.mutex, NULL);
    sl_cond_init(&load.news);
    load.tail = &load.head;
    load.clients = calloc((size_t)load.n_clients, sizeof *load.clients);
    load.total_ms = calloc(3 * MAX_SAMPLES, sizeof *load.total_ms);
    enum sl_status status =
        load.clients && load.total_ms ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for clients");
    sl_rpc_init();
    for (int i = 0; i < N_CONNECTIONS && status == SL_OK; i++) {
        status = sl_rpc_channel_create_alone(address, NULL, SL_ROLE_ANY, &channels[i], err);
        SL_THEN_IF(status, comma != NULL, sl_rpc_channel_create_alone(comma + 1, NULL, SL_ROLE_ANY, &prefill[i], err));
    }
    free(address);
    if (status == SL_OK) {
        load.added_ms = load.total_ms + MAX_SAMPLES;
        load.lag_ms = load.added_ms + MAX_SAMPLES;
        for (int64_t i = 0; i < load.n_clients; i++) {
            struct client *client = &load.clients[i];
            *client = (struct client){.load = &load,
                                      .channel = channels[i % N_CONNECTIONS],
                                      .prefill = prefill[i % N_CONNECTIONS],
                                      .next = load.idle};
            load.idle = client;
        }
        status = run_phase(&load, b->options.rate, &b->signals, err);
    }
    if (status == SL_OK) {
        print(&load);
    }
    return status; // the process ends, and with it calls and memory
}

SL_BENCH(jobs, "[options]", "Ask a coordinator for answers, and print rates and latencies; what `coordinator` starts.",
         .counts = true, .check = NULL);

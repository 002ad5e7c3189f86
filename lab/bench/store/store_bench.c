// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures a kvstore against Redis: PUT and GET of capsules, by one client and by several; and how fast the
 *          store's index finds the longest stored prefix of a long prompt, and the memory that an entry takes.
 *
 * Design: kvstores and redis-server are children of this process, whose threads are the clients. The clients of the
 *         kvstore share a fabric and a channel, as the jobs of a worker do; each client of Redis has a connection. A
 *         PUT reserves and ships a capsule under a new key; a GET looks it up, grants memory and has it shipped: the
 *         calls of a prefill worker, with the digests that Redis has not. Redis answers over its Unix socket where the
 *         kvstore uses shared memory. Runs of both alternate.
 */
#include "lab/bench/store/store_bench.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"
#include "base/thread.h"
#include "client/cli/tool.h"
#include "lab/bench/store/clients.h"
#include "lab/bench/store/index.h"
#include "lab/bench/store/redis.h"
#include "lab/result.h"

#define TURN_BYTES  ((int64_t)256 << 20) // about what a run moves
#define AIM_SHM     5.0                  // times Redis, GET of 1 MiB and more
#define AIM_TCP     1.0
#define MAX_CLIENTS 64

static const struct {
    const char *transport, *reference;
    double aim;
} ways[] = {{"shm", "redis, Unix socket", AIM_SHM}, {"tcp", "redis, TCP", AIM_TCP}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };
static const int64_t sizes[] = {64 << 10, 1 << 20, 64 << 20};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

struct options {
    int64_t largest, clients, entries, runs;
    bool json;
};

static const struct sl_option option_table[] = {
    {"largest", 0, SL_OPTION_SIZE, "64M", "SIZE",
     "the largest capsule: of 64 KiB, 1 MiB and 64 MiB, larger ones are left out", SL_FIELD(options, largest), 64 << 10,
     64 << 20},
    {"clients", 0, SL_OPTION_INT, "8", "N", "clients at once, measured after a single one", SL_FIELD(options, clients),
     1, MAX_CLIENTS},
    {"entries", 0, SL_OPTION_INT, "1000000", "N", "keys in the index when chains are looked up",
     SL_FIELD(options, entries), 1024, 20000000},
    {"runs", 0, SL_OPTION_INT, "5", "N", "runs of each, in turns", SL_FIELD(options, runs), 1, SL_BENCH_MAX_TURNS},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench {
    struct options options;
    struct sl_signals signals;
    struct sl_store_rig stores[N_WAYS];
    struct sl_redis redis;
    bool has_redis;
    struct sl_store_bench_client clients[MAX_CLIENTS];
    struct sl_store_ends ends; // of the store that is measured now
};

// Runs the operation in all clients at once. rate_out: MB/s of all.
static enum sl_status run_turn(struct bench *b, enum sl_store_op op, int n_clients, double *rate_out,
                               struct sl_error *err) {
    pthread_t threads[MAX_CLIENTS];
    int64_t n = TURN_BYTES / b->ends.size / n_clients, begin_ns = sl_now_ns();
    n = n < 2 ? 2 : n > 256 ? 256 : n;
    enum sl_status status = sl_signals_check(&b->signals, err);
    int started = 0;
    for (; started < n_clients && status == SL_OK; started += status == SL_OK) {
        struct sl_store_bench_client *c = &b->clients[started];
        c->op = op;
        c->n = n;
        status = sl_thread_start("client", sl_store_client_run, c, &threads[started], err);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        if (status == SL_OK && b->clients[i].status != SL_OK) {
            *err = b->clients[i].err;
            status = b->clients[i].status;
        }
    }
    *rate_out = (double)(n * n_clients * b->ends.size) * 1e3 / (double)(sl_now_ns() - begin_ns);
    return status;
}

static const char *size_name(int64_t size) {
    return size >= 64 << 20 ? "64 MiB" : size >= 1 << 20 ? "1 MiB" : "64 KiB";
}

// Prints the two calls of a GET. At 64 KiB the second takes what its messages take; the rest of a larger one is bytes.
static void print_calls(const struct sl_store_bench_client *c, const char *get, bool json) {
    char name[128];
    snprintf(name, sizeof name, "%s: look-up", get);
    sl_bench_print_value("store", name, (double)c->look_up_ns / (double)c->n_got / 1e3, "us", json);
    snprintf(name, sizeof name, "%s: fetch", get);
    sl_bench_print_value("store", name, (double)c->fetch_ns / (double)c->n_got / 1e3, "us", json);
}

static enum sl_status measure_both(struct bench *b, int way, int n_clients, struct sl_error *err) {
    double rates[4][SL_BENCH_MAX_TURNS];
    char names[2][96];
    static const char *const words[] = {"PUT", "GET"};
    enum sl_status status = SL_OK;
    struct sl_bench_result result = {.bench = "store", .unit = "MB/s", .as_factor = true};
    for (int g = 0; g < 2; g++) {
        snprintf(names[g], sizeof names[g], "%s %s over %s, %d client%s", words[g], size_name(b->ends.size),
                 ways[way].transport, n_clients, n_clients > 1 ? "s" : "");
    }
    b->clients[0].n_got = b->clients[0].look_up_ns = b->clients[0].fetch_ns = 0;
    for (int64_t r = 0; r < b->options.runs && status == SL_OK; r++) {
        for (int op = 0; op < (b->has_redis ? 4 : 2) && status == SL_OK; op++) {
            sl_bench_progress("%s, run %" PRId64, names[op % 2], r + 1);
            status = run_turn(b, (enum sl_store_op)op, n_clients, &rates[op][r], err);
        }
        for (int g = 0; g < 2 && status == SL_OK; g++) {
            result.test = names[g];
            sl_bench_print_run(result, r + 1, rates[g][r], b->options.json);
        }
    }
    for (int g = 0; g < 2 && status == SL_OK; g++) {
        result.test = names[g];
        result.reference = b->has_redis ? ways[way].reference : NULL;
        result.aim = b->has_redis && g == 1 && b->ends.size >= 1 << 20 ? ways[way].aim : 0;
        if (b->has_redis) {
            sl_bench_print_turns(result, rates[g], rates[g + 2], (size_t)b->options.runs, b->options.json);
        } else {
            result.value = sl_bench_median(rates[g], (size_t)b->options.runs);
            sl_bench_print(&result, b->options.json);
        }
    }
    if (n_clients == 1 && status == SL_OK) {
        print_calls(&b->clients[0], names[1], b->options.json);
    }
    return status;
}

static enum sl_status connect_all(struct bench *b, int way, struct sl_error *err) {
    b->ends.store = &b->stores[way];
    b->ends.block_bytes = (size_t)b->options.largest + 4096;
    enum sl_status status = sl_store_rig_connect(b->ends.store, ways[way].transport, err);
    SL_THEN(status,
            sl_fabric_region_create(b->ends.store->fabric, b->ends.block_bytes * (size_t)(b->options.clients + 1), 0,
                                    &b->ends.store->region, err));
    if (status == SL_OK) {
        b->ends.source = b->ends.store->region;
        b->ends.blocks = b->ends.source + b->ends.block_bytes;
        memset(b->ends.blocks, 1, b->ends.block_bytes * (size_t)b->options.clients);
        sl_random_halves(b->ends.store->region, (size_t)b->options.largest / sizeof(uint16_t), 1);
    }
    for (int i = 0; i < b->options.clients && status == SL_OK; i++) {
        struct sl_store_bench_client *c = &b->clients[i];
        c->fd = -1;
        c->n_stored = 0;
        status = b->has_redis ? sl_redis_connect(&b->redis, way == 1, &c->fd, err) : SL_OK;
    }
    return status;
}

static enum sl_status measure_way(struct bench *b, int way, struct sl_error *err) {
    enum sl_status status = connect_all(b, way, err);
    for (int s = 0; s < N_SIZES && status == SL_OK && sizes[s] <= b->options.largest; s++) {
        status = sl_store_ends_take_size(&b->ends, sizes[s], err);
        SL_THEN(status, measure_both(b, way, 1, err));
        if (b->options.clients > 1 && status == SL_OK) {
            status = measure_both(b, way, (int)b->options.clients, err);
        }
        if (s == 0 && way == 1 && status == SL_OK) {
            double rate = 0;
            status = sl_store_client_look_up(&b->clients[0], &rate, err);
            if (status == SL_OK) {
                sl_bench_print_value("store", "look-up of 128k tokens, one client, by gRPC", rate, "calls/s",
                                     b->options.json);
            }
        }
    }
    for (int i = 0; i < b->options.clients; i++) {
        sl_close(b->clients[i].fd);
        b->clients[i].fd = -1;
    }
    sl_store_rig_close(b->ends.store);
    return status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    char arena[32];
    // Holds, for each client, the two capsules of a turn, the one of the turn before that --keep holds, and a spare
    // one.
    snprintf(arena, sizeof arena, "%" PRId64 "M", ((4 * b->options.clients + 2) * b->options.largest >> 20) + 256);
    enum sl_status status = sl_redis_start(&b->redis, err); // children are forked before this process has threads
    b->has_redis = status == SL_OK;
    if (status == SL_ERR_NOT_FOUND) {
        fprintf(stderr, "sluice bench store: %s: the store is measured alone\n", err->text);
        status = SL_OK;
    }
    for (int way = 0; way < N_WAYS && status == SL_OK; way++) {
        status = sl_store_rig_start(&b->stores[way], ways[way].transport, arena, &b->signals, err);
    }
    if (status == SL_OK) {
        sl_rpc_init();
        status = sl_arena_create_mapped((size_t)128 << 20, &b->ends.arena, err);
    }
    for (int i = 0; i < b->options.clients; i++) {
        b->clients[i] = (struct sl_store_bench_client){.ends = &b->ends, .index = i, .fd = -1};
        sem_init(&b->clients[i].released, 0, 0);
    }
    SL_THEN(status,
            sl_index_bench_run(
                &(struct sl_index_bench){b->ends.arena, b->options.entries, &b->signals, b->options.json}, err));
    for (int way = 0; way < N_WAYS; way++) {
        SL_THEN(status, measure_way(b, way, err));
        sl_store_rig_close(&b->stores[way]);
    }
    sl_redis_stop(&b->redis);
    free(b->ends.header);
    sl_arena_destroy(&b->ends.arena);
    return status;
}

SL_BENCH(store, "[options]",
         "Measure a kvstore against Redis: PUT and GET of capsules; and the look-up of long prompts.", .check = NULL);

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures a kvstore against Redis: PUT and GET of capsules, by one client and by several; and how fast the store's
 *          index finds the longest stored prefix of a long prompt, and the memory that an entry takes.
 *
 * Design: kvstores and redis-server are children of this process, whose threads are the clients. The clients of the kvstore
 *         share a fabric and a channel, as the jobs of a worker do; each client of Redis has a connection. A PUT reserves
 *         and ships a capsule under a new key; a GET looks it up, grants memory, has it shipped and releases it: the calls of a
 *         prefill worker, with the digests that Redis has not. Redis answers over its Unix socket where the kvstore
 *         uses shared memory. Runs of both alternate.
 */
#include <inttypes.h>
#include <malloc.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/options/config.h"
#include "base/thread.h"
#include "engine/kvcache/capsule.h"
#include "kvstore/memory/capsule_cache.h"
#include "lab/bench/bench.h"
#include "lab/bench/rig/redis.h"
#include "lab/bench/rig/store_rig.h"
#include "lab/result.h"
#include "net/node/send.h"
#include "proto/methods.h"

#define MAX_CLIENTS  64
#define CALL_MS      30000
#define TURN_BYTES   ((int64_t)256 << 20) // about what a run moves
#define MODEL        11
#define CHAIN_TOKENS 131072
#define CHAIN_KEYS   (CHAIN_TOKENS / SL_PREFIX_BLOCK)
#define STORED_KEYS  1024 // of a capsule of that length
#define N_CHAINS     64   // that are looked up in turn
#define AIM_SHM      5.0  // times Redis, GET of 1 MiB and more
#define AIM_TCP      1.0

enum op { PUT_STORE, GET_STORE, PUT_REDIS, GET_REDIS };
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
    {"largest", 0, SL_OPTION_SIZE, "64M", "SIZE", "of the capsules of 64 KiB, 1 MiB and 64 MiB",
     SL_FIELD(options, largest), 64 << 10, 64 << 20},
    {"clients", 0, SL_OPTION_INT, "8", "N", "measured after one", SL_FIELD(options, clients), 1, MAX_CLIENTS},
    {"entries", 0, SL_OPTION_INT, "1000000", "N", "keys in the index when chains are looked up",
     SL_FIELD(options, entries), STORED_KEYS, 20000000},
    {"runs", 0, SL_OPTION_INT, "5", "N", "of each, by turns", SL_FIELD(options, runs), 1, SL_BENCH_MAX_TURNS},
    {"json", 'j', SL_OPTION_FLAG, "no", NULL, "one JSON object a line", SL_FIELD(options, json)},
};

struct bench;
struct client {
    struct bench *bench;
    enum op op;
    int index, fd;       // fd: to Redis
    int64_t n, n_stored; // of this run; capsules stored ever
    sem_t released;
    enum sl_status status;
    struct sl_error err;
};

struct bench {
    struct options options;
    struct sl_signals signals;
    struct sl_store_rig stores[N_WAYS];
    struct sl_redis redis;
    bool has_redis;
    struct client clients[MAX_CLIENTS];
    // What is measured now: the store, the capsules' size, header and tokens.
    struct sl_store_rig *store;
    struct sl_arena *arena; // of the sessions that headers describe, never touched
    int64_t size, n_tokens;
    uint8_t *header, *source, *blocks;
    size_t header_bytes, block_bytes;
};

// --- capsules --------------------------------------------------------------------------------------------------------

// Writes the header of a capsule of one head whose body has about `bytes`. Returns its tokens in *n_tokens_out.
static enum sl_status write_header(struct sl_arena *arena, int64_t bytes, const struct sl_capsule_id *id,
                                   struct sl_capsule_bytes *capsule, int64_t *n_tokens_out, struct sl_error *err) {
    struct sl_page_layout layout;
    struct sl_session *session = NULL;
    enum sl_status status = sl_page_layout_init(&layout, SL_KV_F16, 64, 0, false);
    int64_t n_tokens = bytes / (int64_t)layout.bytes * SL_PAGE_SLOTS;
    struct sl_session_config config = {
        .geometry = {1, 1, 64}, .max_slots = n_tokens, .work = &layout, .packed = &layout};
    status = status == SL_OK ? sl_session_create(&config, arena, &session, err) : status;
    status = status == SL_OK ? sl_session_reserve(session, 0, (int)n_tokens) : status;
    if (status == SL_OK) {
        sl_session_set_slots(session, 0, 0, (uint32_t)n_tokens);
        session->n_tokens = *n_tokens_out = n_tokens;
        capsule->body_bytes = sl_capsule_body_bytes(session);
        status = sl_capsule_write_header(session, id, &capsule->header, &capsule->header_bytes, err);
    }
    sl_session_destroy(&session);
    return status;
}

static struct sl_capsule_id id_of(uint64_t size, uint64_t client, uint64_t number) {
    struct sl_capsule_id id = {MODEL, size, {{0}}};
    uint64_t words[2] = {client + 1, number + 1};
    memcpy(id.prefix_hash.bytes, words, sizeof words);
    return id;
}

// --- calls -----------------------------------------------------------------------------------------------------------

static enum sl_status call(const struct client *c, const struct sl_rpc_method *method, const ProtobufCMessage *request,
                           void *reply_out, struct sl_error *err) {
    return sl_rpc_unary(c->bench->store->channel, method, request, sl_deadline_in_ms(CALL_MS), NULL, reply_out, err);
}

static enum sl_status put(struct client *c, struct sl_error *err) {
    const struct bench *b = c->bench;
    struct sl_capsule_id id = id_of((uint64_t)b->size, (uint64_t)c->index, (uint64_t)c->n_stored);
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    Sluice__V1__Grant *grant = NULL;
    uint8_t *header = NULL;
    size_t header_bytes;
    key.model_fingerprint = id.model_fingerprint;
    key.recipe_fingerprint = id.recipe_fingerprint;
    key.n_tokens = b->n_tokens;
    key.prefix_hash = (ProtobufCBinaryData){sizeof id.prefix_hash, id.prefix_hash.bytes};
    request.key = &key;
    request.capsule_bytes = b->size;
    enum sl_status status =
        sl_capsule_rekey_header(b->header, b->header_bytes, &id.prefix_hash, &header, &header_bytes, err);
    status = status == SL_OK ? call(c, &sl_method_store_reserve, &request.base, &grant, err) : status;
    if (status == SL_OK) {
        struct sl_send send = {.destination = grant,
                               .body = b->source,
                               .body_bytes = (size_t)b->size,
                               .header = header,
                               .header_bytes = header_bytes,
                               .deadline_ns = sl_deadline_in_ms(CALL_MS)};
        status = sl_send_capsule(b->store->fabric, &send, err);
        protobuf_c_message_free_unpacked(&grant->base, NULL);
        c->n_stored += status == SL_OK;
    }
    free(header);
    return status;
}

// Looks prefixes up, longest first. A store may take a moment to find what has just arrived.
static enum sl_status look_up(const struct client *c, Sluice__V1__PrefixKey **keys, size_t n_keys,
                              Sluice__V1__LookupReply **reply_out, struct sl_error *err) {
    Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
    request.model_fingerprint = MODEL;
    request.recipe_fingerprint = (uint64_t)c->bench->size;
    request.n_prefixes = n_keys;
    request.prefixes = keys;
    int64_t deadline_ns = sl_deadline_in_ms(CALL_MS);
    enum sl_status status;
    while ((status = call(c, &sl_method_store_lookup, &request.base, reply_out, err)) == SL_ERR_NOT_FOUND &&
           sl_now_ns() < deadline_ns) {
        sl_sleep_ms(1);
    }
    return status;
}

static enum sl_status release(const struct client *c, Sluice__V1__LookupReply *found, struct sl_error *err) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = found->lease_id;
    enum sl_status status = call(c, &sl_method_store_release, &request.base, NULL, err);
    protobuf_c_message_free_unpacked(&found->base, NULL);
    return status;
}

static void on_complete(void *arg, const void *header, size_t header_bytes, size_t body_bytes) {
    (void)arg, (void)header, (void)header_bytes, (void)body_bytes; // the store's reply to Fetch says it
}

static void on_failure(void *arg, enum sl_status status, const char *text) {
    (void)arg, (void)status, (void)text; // likewise
}

static void on_release(void *client) {
    sem_post(&((struct client *)client)->released);
}

// Has the store ship what was found into the client's block.
static enum sl_status fetch(struct client *c, const Sluice__V1__LookupReply *found, struct sl_error *err) {
    static const struct sl_grant_events events = {on_complete, on_failure, on_release};
    const struct bench *b = c->bench;
    struct sl_grant_plan plan = {.block = b->blocks + (size_t)c->index * b->block_bytes,
                                 .bytes = (size_t)b->size,
                                 .deadline_ns = sl_deadline_in_ms(CALL_MS),
                                 .events = &events,
                                 .arg = c};
    struct sl_grant *grant;
    Sluice__V1__Grant destination = SLUICE__V1__GRANT__INIT;
    Sluice__V1__FetchRequest request = SLUICE__V1__FETCH_REQUEST__INIT;
    enum sl_status status =
        sl_grant_open(b->store->fabric, &plan, &grant, &destination.ticket.data, &destination.ticket.len, err);
    if (status != SL_OK) {
        return status;
    }
    destination.capacity_bytes = b->size;
    request.lease_id = found->lease_id;
    request.destination = &destination;
    status = call(c, &sl_method_store_fetch, &request.base, NULL, err);
    free(destination.ticket.data);
    sl_grant_close(&grant);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += CALL_MS / 1000;
    return sem_clockwait(&c->released, CLOCK_MONOTONIC, &until) == 0 || status != SL_OK
               ? status
               : sl_fail(err, SL_ERR_DEADLINE, "the fabric did not give the client's memory back in %d ms", CALL_MS);
}

static enum sl_status get(struct client *c, struct sl_error *err) {
    struct sl_capsule_id id = id_of((uint64_t)c->bench->size, (uint64_t)c->index, (uint64_t)c->n_stored - 1);
    Sluice__V1__PrefixKey key = SLUICE__V1__PREFIX_KEY__INIT, *keys[] = {&key};
    Sluice__V1__LookupReply *found;
    key.n_tokens = c->bench->n_tokens;
    key.hash = (ProtobufCBinaryData){sizeof id.prefix_hash, id.prefix_hash.bytes};
    enum sl_status status = look_up(c, keys, 1, &found, err);
    if (status == SL_OK) {
        status = fetch(c, found, err);
        enum sl_status ended = release(c, found, status == SL_OK ? err : NULL);
        status = status == SL_OK ? ended : status;
    }
    return status;
}

// --- turns -----------------------------------------------------------------------------------------------------------

static void *be_client(void *client) {
    struct client *c = client;
    const struct bench *b = c->bench;
    char key[32];
    snprintf(key, sizeof key, "client-%d", c->index);
    c->status = SL_OK;
    for (int64_t i = 0; i < c->n && c->status == SL_OK; i++) {
        uint8_t *block = b->blocks + (size_t)c->index * b->block_bytes;
        c->status = c->op == PUT_STORE   ? put(c, &c->err)
                    : c->op == GET_STORE ? get(c, &c->err)
                    : c->op == PUT_REDIS ? sl_redis_set(c->fd, key, b->source, (size_t)b->size, &c->err)
                                         : sl_redis_get(c->fd, key, block, (size_t)b->size, &c->err);
    }
    return NULL;
}

// Runs the operation in all clients at once. rate_out: MB/s of all.
static enum sl_status run_turn(struct bench *b, enum op op, int n_clients, double *rate_out, struct sl_error *err) {
    pthread_t threads[MAX_CLIENTS];
    int64_t n = TURN_BYTES / b->size / n_clients, begin_ns = sl_now_ns();
    n = n < 2 ? 2 : n > 256 ? 256 : n;
    enum sl_status status = sl_signals_check(&b->signals, err);
    int started = 0;
    for (; started < n_clients && status == SL_OK; started += status == SL_OK) {
        struct client *c = &b->clients[started];
        c->op = op;
        c->n = n;
        status = sl_thread_start("client", be_client, c, &threads[started], err);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        if (status == SL_OK && b->clients[i].status != SL_OK) {
            *err = b->clients[i].err;
            status = b->clients[i].status;
        }
    }
    *rate_out = (double)(n * n_clients * b->size) * 1e3 / (double)(sl_now_ns() - begin_ns);
    return status;
}

static const char *size_name(int64_t size) {
    return size >= 64 << 20 ? "64 MiB" : size >= 1 << 20 ? "1 MiB" : "64 KiB";
}

static enum sl_status measure_both(struct bench *b, int way, int n_clients, struct sl_error *err) {
    double rates[4][SL_BENCH_MAX_TURNS];
    char names[2][96];
    static const char *const words[] = {"PUT", "GET"};
    enum sl_status status = SL_OK;
    struct sl_bench_result result = {.bench = "store", .unit = "MB/s", .as_factor = true};
    for (int g = 0; g < 2; g++) {
        snprintf(names[g], sizeof names[g], "%s %s over %s, %d client%s", words[g], size_name(b->size),
                 ways[way].transport, n_clients, n_clients > 1 ? "s" : "");
    }
    for (int64_t r = 0; r < b->options.runs && status == SL_OK; r++) {
        for (int op = 0; op < (b->has_redis ? 4 : 2) && status == SL_OK; op++) {
            sl_bench_progress("%s, run %" PRId64, names[op % 2], r + 1);
            status = run_turn(b, (enum op)op, n_clients, &rates[op][r], err);
        }
        for (int g = 0; g < 2 && status == SL_OK; g++) {
            result.test = names[g];
            sl_bench_print_run(result, r + 1, rates[g][r], b->options.json);
        }
    }
    for (int g = 0; g < 2 && status == SL_OK; g++) {
        result.test = names[g];
        result.reference = b->has_redis ? ways[way].reference : NULL;
        result.aim = b->has_redis && g == 1 && b->size >= 1 << 20 ? ways[way].aim : 0;
        if (b->has_redis) {
            sl_bench_print_turns(result, rates[g], rates[g + 2], (size_t)b->options.runs, b->options.json);
        } else {
            result.value = sl_bench_median(rates[g], (size_t)b->options.runs);
            sl_bench_print(&result, b->options.json);
        }
    }
    return status;
}

// --- look-ups --------------------------------------------------------------------------------------------------------

static enum sl_status print_rate(const struct bench *b, const char *name, double value, const char *unit) {
    sl_bench_print(&(struct sl_bench_result){.bench = "store", .test = name, .value = value, .unit = unit},
                   b->options.json);
    return SL_OK;
}

// Measures look-ups of a long prompt, of which the store has the beginning, with the call of a worker.
static enum sl_status measure_calls(struct bench *b, struct sl_error *err) {
    enum { N = 100 };
    struct client *c = &b->clients[0];
    struct sl_capsule_id stored = id_of((uint64_t)b->size, 0, (uint64_t)c->n_stored - 1);
    static struct sl_hash128 hashes[CHAIN_KEYS];
    static Sluice__V1__PrefixKey keys[CHAIN_KEYS], *pointers[CHAIN_KEYS];
    for (int i = 0; i < CHAIN_KEYS; i++) {
        hashes[i] = id_of(0, MAX_CLIENTS, (uint64_t)i).prefix_hash;
        sluice__v1__prefix_key__init(&keys[i]);
        keys[i].n_tokens = (int64_t)(CHAIN_KEYS - i) * SL_PREFIX_BLOCK;
        bool is_stored = keys[i].n_tokens == b->n_tokens;
        keys[i].hash = (ProtobufCBinaryData){16, is_stored ? stored.prefix_hash.bytes : hashes[i].bytes};
        pointers[i] = &keys[i];
    }
    enum sl_status status = SL_OK;
    double ns = 0;
    for (int i = 0; i < N && status == SL_OK; i++) {
        Sluice__V1__LookupReply *found;
        int64_t begin_ns = sl_now_ns();
        status = look_up(c, pointers, CHAIN_KEYS, &found, err);
        ns += (double)(sl_now_ns() - begin_ns);
        status = status == SL_OK ? release(c, found, err) : status;
    }
    return status == SL_OK ? print_rate(b, "look-up of 128k tokens, one client, by gRPC", N * 1e9 / ns, "calls/s")
                           : status;
}

// Puts a capsule of 128k tokens into the cache, found under STORED_KEYS prefixes.
static enum sl_status put_entries(struct sl_capsule_cache *cache, struct sl_arena *arena, uint64_t number,
                                  const struct sl_capsule_bytes *like, struct sl_error *err) {
    struct sl_hash128 hashes[STORED_KEYS - 1];
    for (int i = 0; i < STORED_KEYS - 1; i++) {
        hashes[i] = id_of(0, number, (uint64_t)i).prefix_hash;
    }
    struct sl_capsule_keys keys = {.id = id_of(0, number, STORED_KEYS - 1),
                                   .hashes = hashes,
                                   .n_hashes = STORED_KEYS - 1,
                                   .stride = CHAIN_TOKENS / STORED_KEYS};
    struct sl_capsule_bytes capsule = {.body_bytes = like->body_bytes, .body = sl_arena_alloc(arena, like->body_bytes)};
    enum sl_status status =
        capsule.body ? sl_capsule_rekey_header(like->header, like->header_bytes, &keys.id.prefix_hash, &capsule.header,
                                               &capsule.header_bytes, err)
                     : sl_fail(err, SL_ERR_EXHAUSTED, "no address space for %" PRIu64 " capsules", number + 1);
    return status == SL_OK ? sl_capsule_cache_put(cache, &keys, &capsule, err) : status;
}

static size_t malloced_bytes(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

// Looks up chains of which the first half is stored.
static enum sl_status look_up_chains(struct bench *b, struct sl_capsule_cache *cache, int64_t n_capsules,
                                     struct sl_error *err) {
    struct sl_prefix *chains = malloc(sizeof *chains * CHAIN_KEYS * N_CHAINS);
    if (!chains) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    for (int64_t i = 0; i < CHAIN_KEYS * N_CHAINS; i++) {
        int64_t chain = i / CHAIN_KEYS, n_tokens = (CHAIN_KEYS - i % CHAIN_KEYS) * SL_PREFIX_BLOCK;
        int64_t key = n_tokens / (CHAIN_TOKENS / STORED_KEYS) - 1;
        bool is_stored = n_tokens <= CHAIN_TOKENS / 2 && n_tokens % (CHAIN_TOKENS / STORED_KEYS) == 0;
        uint64_t capsule = (uint64_t)(chain * n_capsules / N_CHAINS);
        chains[i] = (struct sl_prefix){
            is_stored ? id_of(0, capsule, (uint64_t)key) : id_of(0, (uint64_t)INT64_MAX, (uint64_t)i), n_tokens};
    }
    enum { N = 4096 };
    int64_t begin_ns = sl_now_ns(), n_wrong = 0;
    for (int i = 0; i < N; i++) {
        const struct sl_prefix *chain = chains + (size_t)(i % N_CHAINS) * CHAIN_KEYS;
        size_t at = 0;
        struct sl_stored *stored = sl_capsule_cache_pin_longest(cache, chain, CHAIN_KEYS, &at);
        n_wrong += !stored || chain[at].n_tokens != CHAIN_TOKENS / 2;
        if (stored) {
            sl_capsule_cache_unpin(cache, stored);
        }
    }
    double rate = N * 1e9 / (double)(sl_now_ns() - begin_ns);
    free(chains);
    if (n_wrong > 0) {
        return sl_fail(err, SL_ERR_INTERNAL, "%" PRId64 " of %d look-ups did not find the stored half", n_wrong, N);
    }
    char name[96];
    snprintf(name, sizeof name, "look-up of 128k tokens, half of them stored, among %" PRId64 " entries",
             n_capsules * STORED_KEYS);
    return print_rate(b, name, rate, "chains/s");
}

static enum sl_status measure_index(struct bench *b, struct sl_error *err) {
    int64_t n_capsules = (b->options.entries + STORED_KEYS - 1) / STORED_KEYS, n_tokens;
    struct sl_capsule_bytes like = {0};
    struct sl_capsule_cache *cache = NULL;
    struct sl_arena *arena = NULL;
    struct sl_capsule_id none = id_of(0, 0, 0);
    enum sl_status status =
        write_header(b->arena, (int64_t)CHAIN_TOKENS * 64 * 2 * sizeof(uint16_t), &none, &like, &n_tokens, err);
    if (status == SL_OK) {
        status = sl_arena_create_mapped((size_t)(n_capsules + 1) * like.body_bytes, &arena, err);
    }
    status = status == SL_OK ? sl_capsule_cache_create(arena, 0, &cache, err) : status;
    size_t before = malloced_bytes();
    for (int64_t i = 0; i < n_capsules && status == SL_OK; i++) {
        status = put_entries(cache, arena, (uint64_t)i, &like, err);
        status = status == SL_OK ? sl_signals_check(&b->signals, err) : status;
    }
    double bytes = (double)(malloced_bytes() - before) / (double)(n_capsules * STORED_KEYS);
    status = status == SL_OK ? print_rate(b, "memory of the index", bytes, "bytes/entry") : status;
    status = status == SL_OK ? look_up_chains(b, cache, n_capsules, err) : status;
    free(like.header);
    sl_capsule_cache_destroy(&cache);
    sl_arena_destroy(&arena);
    return status;
}

// --- the whole -------------------------------------------------------------------------------------------------------

static enum sl_status take_size(struct bench *b, int64_t size, struct sl_error *err) {
    struct sl_capsule_bytes capsule = {0};
    struct sl_capsule_id id = id_of((uint64_t)size, 0, 0);
    free(b->header);
    b->header = NULL;
    enum sl_status status = write_header(b->arena, size, &id, &capsule, &b->n_tokens, err);
    b->header = capsule.header;
    b->header_bytes = capsule.header_bytes;
    b->size = size;
    return status != SL_OK || (int64_t)capsule.body_bytes == size
               ? status
               : sl_fail(err, SL_ERR_INTERNAL, "a capsule of %" PRId64 " bytes has %zu", size, capsule.body_bytes);
}

static enum sl_status connect_all(struct bench *b, int way, struct sl_error *err) {
    b->store = &b->stores[way];
    b->block_bytes = (size_t)b->options.largest + 4096;
    enum sl_status status = sl_store_rig_connect(b->store, ways[way].transport, err);
    if (status == SL_OK) {
        status = sl_fabric_region_create(b->store->fabric, b->block_bytes * (size_t)(b->options.clients + 1), 0,
                                         &b->store->region, err);
    }
    if (status == SL_OK) {
        b->source = b->store->region;
        b->blocks = b->source + b->block_bytes;
        memset(b->blocks, 1, b->block_bytes * (size_t)b->options.clients);
        sl_random_halves(b->store->region, (size_t)b->options.largest / sizeof(uint16_t), 1);
    }
    for (int i = 0; i < b->options.clients && status == SL_OK; i++) {
        struct client *c = &b->clients[i];
        c->fd = -1;
        c->n_stored = 0;
        status = b->has_redis ? sl_redis_connect(&b->redis, way == 1, &c->fd, err) : SL_OK;
    }
    return status;
}

static enum sl_status measure_way(struct bench *b, int way, struct sl_error *err) {
    enum sl_status status = connect_all(b, way, err);
    for (int s = 0; s < N_SIZES && status == SL_OK && sizes[s] <= b->options.largest; s++) {
        status = take_size(b, sizes[s], err);
        status = status == SL_OK ? measure_both(b, way, 1, err) : status;
        if (b->options.clients > 1 && status == SL_OK) {
            status = measure_both(b, way, (int)b->options.clients, err);
        }
        if (s == 0 && way == 1 && status == SL_OK) {
            status = measure_calls(b, err);
        }
    }
    for (int i = 0; i < b->options.clients; i++) {
        if (b->clients[i].fd >= 0) {
            close(b->clients[i].fd);
        }
        b->clients[i].fd = -1;
    }
    sl_store_rig_close(b->store);
    return status;
}

static enum sl_status run(void *bench, struct sl_error *err) {
    struct bench *b = bench;
    char arena[32];
    snprintf(arena, sizeof arena, "%" PRId64 "M", ((2 * b->options.clients + 2) * b->options.largest >> 20) + 256);
    enum sl_status status = sl_redis_start(&b->redis, err); // children are forked before this process has threads
    b->has_redis = status == SL_OK;
    if (status == SL_ERR_NOT_FOUND) {
        fprintf(stderr, "sluice bench store: %s: the store is measured alone\n", err->text);
        status = SL_OK;
    }
    for (int way = 0; way < N_WAYS && status == SL_OK; way++) {
        status = sl_store_rig_start(&b->stores[way], ways[way].transport, arena, stderr, err);
    }
    if (status == SL_OK) {
        sl_rpc_init();
        status = sl_arena_create_mapped((size_t)128 << 20, &b->arena, err);
    }
    for (int i = 0; i < b->options.clients; i++) {
        b->clients[i] = (struct client){.bench = b, .index = i, .fd = -1};
        sem_init(&b->clients[i].released, 0, 0);
    }
    status = status == SL_OK ? measure_index(b, err) : status;
    for (int way = 0; way < N_WAYS; way++) {
        status = status == SL_OK ? measure_way(b, way, err) : status;
        sl_store_rig_close(&b->stores[way]);
    }
    sl_redis_stop(&b->redis);
    free(b->header);
    sl_arena_destroy(&b->arena);
    return status;
}

const struct sl_bench sl_bench_store = {
    .name = "sluice bench store",
    .usage = "[options]",
    .summary = "Measure a kvstore against Redis: PUT and GET of capsules; and the look-up of long prompts.",
    SL_OPTIONS(option_table),
    .bytes = sizeof(struct bench),
    .signals = offsetof(struct bench, signals),
    .run = run,
};

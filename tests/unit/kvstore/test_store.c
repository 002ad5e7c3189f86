// SPDX-License-Identifier: Apache-2.0
// A real sluice-kvstore answers workers' calls as remote KV in this process does; then it is overloaded, stopped and killed.
#include "annex_request.h"
#include "harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/fabric/fetch.h"
#include "engine/offload/remote_kv/near.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc.h"

#define N_TOKENS    300 // 128 in a first segment, the rest, with a partial page, in a second
#define N_FIRST     128
#define ARENA_BYTES ((size_t)8 << 20)
#define HEAD_DIM    64
#define N_ASKERS    4
#define WAIT_MS     20000 // sanitizers are slow

struct store {
    pid_t pid;
    FILE *output;
    char rpc[128];
    struct sl_rpc_channel *channel;
};

// Shared by the tests: two stores (the second one opens no remote KV once it has scanned), and the same remote KV here.
static struct store stores[2];
static struct sl_fabric *fabric;
static uint8_t *source;
static void *memory;
static struct sl_arena *arena;
static struct sl_kv_segment *segments[2];
static const struct sl_ops *ops;
static struct prompt prompt;

// Before any thread is started.
static void start_store(struct store *store, const char *name, const char *max_scan_load) {
    const char *bin = getenv("SLUICE_BIN");
    char path[4096];
    int ends[2];
    snprintf(path, sizeof path, "%s/sluice-kvstore", bin ? bin : "build/bin");
    assert_int_equal(pipe(ends), 0);
    store->pid = fork();
    if (store->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that fails leaves none behind
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl(path, path, "--name", name, "--coordinator", "127.0.0.1:1", "--arena", "64M", "--lease", "30s",
              "--scan-threads", "2", "--max-scan-load", max_scan_load, "--transport", "tcp", "--log", "error",
              (char *)NULL);
        _exit(127);
    }
    assert_true(store->pid > 0);
    close(ends[1]);
    store->output = fdopen(ends[0], "r");
    char line[512] = "";
    if (!fgets(line, sizeof line, store->output) || sscanf(line, "ready rpc=%127s", store->rpc) != 1) {
        fail_msg("%s did not start: %s", path, line);
    }
}

static int end_store(struct store *store, int signal_number) {
    int status;
    kill(store->pid, signal_number);
    assert_int_equal(waitpid(store->pid, &status, 0), store->pid);
    fclose(store->output);
    sl_rpc_channel_destroy(&store->channel);
    return status;
}

static int open_all(void **state) {
    (void)state;
    start_store(&stores[0], "kvstore-0", "1");
    start_store(&stores[1], "kvstore-1", "0");
    sl_rpc_init();
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = "tcp"};
    void *region;
    assert_int_equal(sl_fabric_create(&config, &fabric, NULL), SL_OK);
    assert_int_equal(sl_fabric_region_create(fabric, 1 << 20, 0, &region, NULL), SL_OK);
    source = region;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sl_rpc_channel_create(stores[i].rpc, NULL, SL_ROLE_ANY, &stores[i].channel, NULL), SL_OK);
    }
    memory = aligned_alloc(4096, ARENA_BYTES);
    assert_int_equal(sl_arena_create(memory, ARENA_BYTES, &arena, NULL), SL_OK);
    assert_int_equal(sl_ops_select("auto", &ops, NULL), SL_OK);
    segments[0] = make_segment(arena, &test_family, 0, N_FIRST, 1);
    segments[1] = make_segment(arena, &test_family, N_FIRST, N_TOKENS, 1);
    make_prompt(&prompt, 1, 0, N_TOKENS);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    sl_kv_segment_unref(&segments[0]);
    sl_kv_segment_unref(&segments[1]);
    sl_arena_destroy(&arena);
    free(memory);
    sl_fabric_destroy(&fabric);
    sl_rpc_shutdown();
    return 0;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

static enum sl_status call(const struct store *store, const struct sl_rpc_method *method,
                           const ProtobufCMessage *request, void *reply_out, struct sl_error *err) {
    return sl_rpc_unary(store->channel, method, request, sl_deadline_in_ms(WAIT_MS), NULL, reply_out, err);
}

static enum sl_status open_annex(const struct store *store, Sluice__V1__Annex **remote_kv_out, struct sl_error *err) {
    struct annex_request request;
    make_annex_request(&request, &prompt, N_TOKENS);
    return call(store, &sl_method_store_open_annex, &request.message.base, remote_kv_out, err);
}

static enum sl_status grant(const struct store *store, const char *lease_id, int64_t begin, int64_t end,
                            Sluice__V1__Grant **grant_out) {
    Sluice__V1__GrantStretchRequest request = SLUICE__V1__GRANT_STRETCH_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    request.begin = begin;
    request.n_tokens = (int32_t)(end - begin);
    return call(store, &sl_method_store_grant_stretch, &request.base, grant_out, NULL);
}

static void ship_segment(const struct store *store, const char *lease_id, int64_t begin, int64_t end) {
    Sluice__V1__Grant *granted;
    struct sl_kv_segment_config config;
    struct sl_ship *ship;
    struct sl_error err = {0};
    assert_int_equal(grant(store, lease_id, begin, end, &granted), SL_OK);
    assert_int_equal(sl_kv_family_config(&test_family, begin, end, &config, NULL), SL_OK);
    assert_int_equal(granted->capacity_bytes, sl_kv_segment_block_bytes(&config));
    fill_block(source, &config, 1);
    assert_int_equal(
        sl_ship_open(fabric, granted->ticket.data, granted->ticket.len, sl_deadline_in_ms(WAIT_MS), &ship, &err),
        SL_OK);
    assert_int_equal(sl_ship_piece(ship, 0, source, sl_kv_segment_block_bytes(&config)), SL_OK);
    if (sl_ship_finish(ship, "segment", 7, &err) != SL_OK) {
        fail_msg("not shipped: %s", err.text);
    }
    sl_ship_close(&ship);
    sluice__v1__grant__free_unpacked(granted, NULL);
}

// One call: about how many tokens the remote KV can be asked.
static int64_t ask_tokens(const struct store *store, const char *lease_id) {
    Sluice__V1__AwaitAnnexRequest request = SLUICE__V1__AWAIT_ANNEX_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    request.n_tokens = N_TOKENS;
    Sluice__V1__AwaitAnnexReply *reply;
    assert_int_equal(call(store, &sl_method_store_await_annex, &request.base, &reply, NULL), SL_OK);
    int64_t n_tokens = reply->n_tokens;
    sluice__v1__await_annex_reply__free_unpacked(reply, NULL);
    return n_tokens;
}

static void await_annex(const struct store *store, const char *lease_id) {
    int64_t deadline_ns = sl_deadline_in_ms(30000), n_tokens;
    while ((n_tokens = ask_tokens(store, lease_id)) < N_TOKENS && sl_now_ns() < deadline_ns) {
    }
    assert_int_equal(n_tokens, N_TOKENS);
}

static void release(const struct store *store, const char *lease_id) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    assert_int_equal(call(store, &sl_method_store_release, &request.base, NULL, NULL), SL_OK);
}

static Sluice__V1__StoreStatsReply *get_stats(const struct store *store) {
    Sluice__V1__StoreStatsRequest request = SLUICE__V1__STORE_STATS_REQUEST__INIT;
    Sluice__V1__StoreStatsReply *reply;
    assert_int_equal(call(store, &sl_method_store_stats, &request.base, &reply, NULL), SL_OK);
    return reply;
}

// A remote KV of the store with all tokens: shipped where they are not stored.
static Sluice__V1__Annex *open_whole(const struct store *store) {
    Sluice__V1__Annex *remote_kv;
    struct sl_error err = {0};
    if (open_annex(store, &remote_kv, &err) != SL_OK) {
        fail_msg("not opened: %s", err.text);
    }
    if (remote_kv->n_tokens < N_FIRST) {
        ship_segment(store, remote_kv->lease_id, 0, N_FIRST);
    }
    if (remote_kv->n_tokens < N_TOKENS) {
        ship_segment(store, remote_kv->lease_id, N_FIRST, N_TOKENS);
    }
    await_annex(store, remote_kv->lease_id);
    return remote_kv;
}

// ---- questions ------------------------------------------------------------------------------------------------------

// One asker: a remote KV there, the same here, and a connection between.
struct asker {
    const struct store *store;
    Sluice__V1__Annex *remote;
    struct sl_connection *connection;
    struct sl_remote_kv *local;
    struct sl_near_memory *local_memory;
    struct sl_remote_kv_scratch *scratch;
    int n_wrong; // threads of cmocka's tests may not fail by themselves
    char text[512];
};

static void open_asker(struct asker *asker, const struct store *store) {
    *asker = (struct asker){.store = store, .remote = open_whole(store)};
    assert_int_equal(sl_connection_open(fabric, asker->remote->fabric_address, asker->remote->fabric_epoch,
                                        &asker->connection, NULL),
                     SL_OK);
    assert_int_equal(sl_remote_kv_create(ops, test_family.first_offloaded_head, test_family.n_offloaded_heads, HEAD_DIM,
                                         N_TOKENS, &asker->local, NULL),
                     SL_OK);
    assert_int_equal(sl_remote_kv_append(asker->local, segments[0], NULL), SL_OK);
    assert_int_equal(sl_remote_kv_append(asker->local, segments[1], NULL), SL_OK);
    assert_int_equal(sl_near_memory_create(asker->local, &asker->local_memory, NULL), SL_OK);
    asker->scratch = sl_remote_kv_scratch_create(NULL);
    assert_non_null(asker->scratch);
}

static void close_asker(struct asker *asker) {
    release(asker->store, asker->remote->lease_id);
    sl_connection_close(&asker->connection);
    sl_near_memory_destroy(&asker->local_memory);
    sl_remote_kv_destroy(&asker->local);
    sl_remote_kv_scratch_destroy(&asker->scratch);
    sluice__v1__annex__free_unpacked(asker->remote, NULL);
}

static enum sl_status ask(struct asker *asker, const void *request, size_t request_bytes, void *answer, size_t capacity,
                          size_t *n_out, struct sl_error *err) {
    struct sl_fabric_request *it;
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    struct sl_fabric_question question = {request, request_bytes, answer, capacity, deadline};
    enum sl_status status = sl_fabric_request_open(asker->connection, &question, &it, err);
    if (status == SL_OK) {
        status = sl_fabric_request_wait(it, deadline, n_out, err);
        sl_fabric_request_close(&it);
    }
    return status;
}

static void complain(struct asker *asker, const char *what, const char *why) {
    asker->n_wrong++;
    snprintf(asker->text, sizeof asker->text, "%s: %s", what, why);
}

// Ask there and here: the bodies must be the same bytes. body: what follows the request's head.
static void compare(struct asker *asker, struct sl_near_request request, const void *body, size_t body_bytes) {
    uint8_t asked[sizeof request + 1024];
    request.magic = SL_NEAR_MAGIC;
    request.version = SL_NEAR_VERSION;
    request.remote_kv_id = asker->remote->annex_id;
    request.first_offloaded_head = (uint32_t)test_family.first_offloaded_head;
    request.n_offloaded_heads = (uint32_t)test_family.n_offloaded_heads;
    memcpy(asked, &request, sizeof request);
    memcpy(asked + sizeof request, body, body_bytes);
    struct sl_near_shape shape = {HEAD_DIM, SL_KV_F16, SL_KV_F16, N_TOKENS};
    size_t capacity = sl_near_answer_limit(&shape, &request);
    capacity = (capacity + SL_NEAR_REFUSAL_BYTES + 63) / 64 * 64;
    uint8_t *there = aligned_alloc(64, capacity), *here = aligned_alloc(64, capacity);
    size_t n_there = 0, n_here = 0;
    struct sl_near_answer head;
    const uint8_t *answered;
    struct sl_error err = {0};
    if (ask(asker, asked, sizeof request + body_bytes, there, capacity, &n_there, &err) != SL_OK ||
        sl_near_check(&request, there, n_there, &head, &answered, &err) != SL_OK) {
        complain(asker, "ask", err.text);
    } else {
        sl_near_serve(asker->local, asker->local_memory, asker->scratch, asked, sizeof request + body_bytes, here,
                      &n_here);
        memcpy(&head, here, sizeof head);
        if (head.status != SL_OK) {
            complain(asker, "here", (const char *)here + sizeof head);
        } else if (n_there != n_here || memcmp(answered, here + sizeof head, n_here - sizeof head) != 0) {
            complain(asker, "compare", "the answers differ");
        }
    }
    free(there);
    free(here);
}

static void make_query(int seed, float *q) {
    uint64_t x = (uint64_t)seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < test_family.n_offloaded_heads * HEAD_DIM; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        q[i] = (float)(int64_t)(x >> 40) / (1 << 23) - 1;
    }
}

static void ask_topk(struct asker *asker, int seed, uint64_t sequence) {
    float q[2 * HEAD_DIM];
    make_query(seed, q);
    struct sl_near_request request = {.kind = SL_NEAR_TOPK,
                                      .n_channels = 8,
                                      .topk = 32,
                                      .places = 64,
                                      .first = 4,
                                      .last = N_TOKENS - 8,
                                      .sequence = sequence};
    compare(asker, request, q, sizeof q);
}

static void test_store_answers_as_a_remote_kv_of_this_process(void **state) {
    (void)state;
    struct asker asker;
    open_asker(&asker, &stores[0]);
    for (int i = 0; i < 20; i++) {
        ask_topk(&asker, i, (uint64_t)i + 1); // a later answer has only what is new
    }
    uint32_t tokens[] = {0, 127, 128, 299};
    compare(&asker, (struct sl_near_request){.kind = SL_NEAR_ROWS, .n_tokens = 4}, tokens, sizeof tokens);
    uint16_t channels[] = {1, 5, 63, 0, 2, 40};
    compare(&asker, (struct sl_near_request){.kind = SL_NEAR_CHANNELS, .n_channels = 3, .last = N_TOKENS}, channels,
            sizeof channels);
    compare(&asker, (struct sl_near_request){.kind = SL_NEAR_ABSMAX}, "", 0);
    if (asker.n_wrong) {
        fail_msg("%d wrong answers: %s", asker.n_wrong, asker.text);
    }
    Sluice__V1__StoreStatsReply *stats = get_stats(&stores[0]);
    assert_int_equal(stats->annexes, 1);
    assert_int_equal(stats->leases, 1);
    assert_int_equal(stats->stretches, 2);
    assert_true(stats->stretch_bytes > 0);
    assert_int_equal(stats->questions, 23);
    assert_true(stats->scanned_bytes > 0);
    sluice__v1__store_stats_reply__free_unpacked(stats, NULL);
    close_asker(&asker);
}

static void test_store_is_read_one_sided_where_its_map_says(void **state) {
    (void)state;
    struct asker asker;
    open_asker(&asker, &stores[0]);
    struct sl_near_request request = {.magic = SL_NEAR_MAGIC,
                                      .version = SL_NEAR_VERSION,
                                      .remote_kv_id = asker.remote->annex_id,
                                      .kind = SL_NEAR_MAP,
                                      .first_offloaded_head = (uint32_t)test_family.first_offloaded_head,
                                      .n_offloaded_heads = (uint32_t)test_family.n_offloaded_heads};
    _Alignas(64) uint8_t answer[4096];
    size_t n_bytes, n_map;
    struct sl_near_answer head;
    const uint8_t *body;
    const struct sl_near_segment *map;
    struct sl_error err = {0};
    assert_int_equal(ask(&asker, &request, sizeof request, answer, sizeof answer, &n_bytes, &err), SL_OK);
    assert_int_equal(sl_near_check(&request, answer, n_bytes, &head, &body, &err), SL_OK);
    assert_int_equal(sl_near_read_map(body, answer + n_bytes, &map, &n_map, &err), SL_OK);
    assert_int_equal(n_map, 2);
    for (int i = 0; i < 2; i++) {
        const struct sl_kv_segment_config *config = sl_kv_segment_get_config(segments[i]);
        assert_int_equal(map[i].begin, config->begin);
        assert_int_equal(map[i].n_slots, config->n_slots);
        size_t bytes = sl_kv_segment_block_bytes(config), stride;
        struct sl_fetch_range range = {map[i].offset, source, bytes};
        struct sl_fetch *fetch;
        struct sl_fetch_plan plan = {asker.remote->window.data, asker.remote->window.len, &range, 1,
                                     sl_deadline_in_ms(WAIT_MS)};
        assert_int_equal(sl_fetch_open(asker.connection, &plan, &fetch, &err), SL_OK);
        if (sl_fetch_wait(fetch, sl_deadline_in_ms(WAIT_MS), &err) != SL_OK) {
            fail_msg("not fetched: %s", err.text);
        }
        sl_fetch_close(&fetch);
        assert_memory_equal(source, sl_kv_segment_pages(segments[i], &stride), bytes);
    }
    close_asker(&asker);
}

static void *ask_often(void *arg) {
    struct asker *asker = arg;
    for (int i = 0; i < 50 && asker->n_wrong == 0; i++) {
        ask_topk(asker, i * 31 + 7, (uint64_t)i + 1);
    }
    return NULL;
}

static void test_store_answers_several_askers_at_once(void **state) {
    (void)state;
    struct asker askers[N_ASKERS];
    pthread_t threads[N_ASKERS];
    for (int i = 0; i < N_ASKERS; i++) {
        open_asker(&askers[i], &stores[0]);
    }
    Sluice__V1__StoreStatsReply *stats = get_stats(&stores[0]);
    assert_int_equal(stats->annexes, N_ASKERS);
    assert_int_equal(stats->stretches, 2); // all of them share what the first test has shipped
    sluice__v1__store_stats_reply__free_unpacked(stats, NULL);
    for (int i = 0; i < N_ASKERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &askers[i]), 0);
    }
    for (int i = 0; i < N_ASKERS; i++) {
        pthread_join(threads[i], NULL);
        if (askers[i].n_wrong) {
            fail_msg("asker %d: %s", i, askers[i].text);
        }
        close_asker(&askers[i]);
    }
    stats = get_stats(&stores[0]);
    assert_int_equal(stats->annexes, 0);
    assert_int_equal(stats->leases, 0);
    sluice__v1__store_stats_reply__free_unpacked(stats, NULL);
}

// More questions than threads, about the same offloaded heads of remote KVs that begin alike, share passes. Half
// of the askers want rows, in an order that must be kept: each answer has what those before it have not brought.
static void test_store_answers_what_has_piled_up(void **state) {
    (void)state;
    enum { N_EACH = 32, MAX_ANSWER = 20480 };
    struct asker askers[N_ASKERS];
    struct sl_fabric_request *sent[N_ASKERS][N_EACH];
    uint8_t *there = aligned_alloc(64, (size_t)N_ASKERS * N_EACH * MAX_ANSWER);
    _Alignas(64) uint8_t here[MAX_ANSWER];
    struct {
        struct sl_near_request head;
        float q[2 * HEAD_DIM];
    } requests[N_ASKERS][N_EACH];
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    struct sl_error err = {0};
    for (int i = 0; i < N_ASKERS; i++) {
        open_asker(&askers[i], &stores[0]);
        for (int j = 0; j < N_EACH; j++) {
            requests[i][j].head =
                (struct sl_near_request){.magic = SL_NEAR_MAGIC,
                                         .version = SL_NEAR_VERSION,
                                         .remote_kv_id = askers[i].remote->annex_id,
                                         .kind = SL_NEAR_TOPK,
                                         .flags = i % 2 ? SL_NEAR_PROBE : 0,
                                         .first_offloaded_head = (uint32_t)test_family.first_offloaded_head,
                                         .n_offloaded_heads = (uint32_t)test_family.n_offloaded_heads,
                                         .n_channels = 8,
                                         .topk = 32,
                                         .places = 64,
                                         .last = N_TOKENS,
                                         .sequence = (uint64_t)j + 1};
            make_query(i * N_EACH + j, requests[i][j].q);
        }
    }
    for (int k = 0; k < N_ASKERS * N_EACH; k++) { // all of them before any is waited for
        int i = k % N_ASKERS, j = k / N_ASKERS;
        struct sl_fabric_question question = {&requests[i][j], sizeof requests[i][j], there + (size_t)k * MAX_ANSWER,
                                              MAX_ANSWER, deadline};
        assert_int_equal(sl_fabric_request_open(askers[i].connection, &question, &sent[i][j], &err), SL_OK);
    }
    for (int k = 0; k < N_ASKERS * N_EACH; k++) {
        int i = k % N_ASKERS, j = k / N_ASKERS;
        const uint8_t *answer = there + (size_t)k * MAX_ANSWER, *body;
        size_t n_there, n_here;
        struct sl_near_answer head;
        if (sl_fabric_request_wait(sent[i][j], deadline, &n_there, &err) != SL_OK ||
            sl_near_check(&requests[i][j].head, answer, n_there, &head, &body, &err) != SL_OK) {
            fail_msg("question %d of asker %d: %s", j, i, err.text);
        }
        sl_fabric_request_close(&sent[i][j]);
        sl_near_serve(askers[i].local, askers[i].local_memory, askers[i].scratch, &requests[i][j],
                      sizeof requests[i][j], here, &n_here);
        assert_int_equal(n_there, n_here);
        assert_memory_equal(body, here + sizeof head, n_here - sizeof head);
    }
    for (int i = 0; i < N_ASKERS; i++) {
        close_asker(&askers[i]);
    }
    free(there);
}

static void test_store_tells_what_it_does_not_have(void **state) {
    (void)state;
    struct asker asker;
    open_asker(&asker, &stores[0]);
    struct sl_near_request request = {.magic = SL_NEAR_MAGIC,
                                      .version = SL_NEAR_VERSION,
                                      .remote_kv_id = asker.remote->annex_id + 1,
                                      .kind = SL_NEAR_ABSMAX,
                                      .first_offloaded_head = (uint32_t)test_family.first_offloaded_head,
                                      .n_offloaded_heads = 1};
    _Alignas(64) uint8_t answer[4096];
    size_t n_bytes;
    struct sl_near_answer head;
    const uint8_t *body;
    struct sl_error err = {0};
    assert_int_equal(ask(&asker, &request, sizeof request, answer, sizeof answer, &n_bytes, &err), SL_OK);
    assert_int_equal(sl_near_check(&request, answer, n_bytes, &head, &body, &err), SL_ERR_NOT_FOUND);
    request.remote_kv_id--;
    request.first_offloaded_head = 100;
    assert_int_equal(ask(&asker, &request, sizeof request, answer, sizeof answer, &n_bytes, &err), SL_OK);
    assert_int_equal(sl_near_check(&request, answer, n_bytes, &head, &body, &err), SL_ERR_INVALID);
    assert_int_equal(ask(&asker, "?", 1, answer, sizeof answer, &n_bytes, &err), SL_OK);
    memcpy(&head, answer, sizeof head);
    assert_int_equal(head.status, SL_ERR_INVALID);
    Sluice__V1__Grant *granted;
    assert_int_equal(grant(&stores[0], asker.remote->lease_id, 0, N_FIRST, &granted), SL_ERR_EXISTS);
    assert_int_equal(grant(&stores[0], "annex-0-0", 0, N_FIRST, &granted), SL_ERR_NOT_FOUND);
    close_asker(&asker);
}

static void test_store_that_scans_all_the_time_takes_nobody_in(void **state) {
    (void)state;
    struct asker asker;
    open_asker(&asker, &stores[1]);
    struct sl_error err = {0};
    enum sl_status status = SL_OK;
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    for (uint64_t i = 1; status == SL_OK && sl_now_ns() < deadline; i++) {
        ask_topk(&asker, (int)i, i);
        if (i % 50 == 0) {
            Sluice__V1__Annex *remote_kv;
            status = open_annex(&stores[1], &remote_kv, &err);
            if (status == SL_OK) {
                release(&stores[1], remote_kv->lease_id);
                sluice__v1__annex__free_unpacked(remote_kv, NULL);
            }
        }
    }
    assert_int_equal(asker.n_wrong, 0);
    assert_int_equal(status, SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "--max-scan-load"));
    close_asker(&asker);
}

static void test_store_stops_with_remote_kvs_open_and_is_missed_when_killed(void **state) {
    (void)state;
    struct asker asker;
    open_asker(&asker, &stores[0]);
    ask_topk(&asker, 1, 1);
    assert_int_equal(asker.n_wrong, 0);
    int status = end_store(&stores[0], SIGTERM);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    struct sl_near_request request = {.magic = SL_NEAR_MAGIC, .version = SL_NEAR_VERSION, .kind = SL_NEAR_ABSMAX};
    _Alignas(64) uint8_t answer[4096];
    size_t n_bytes;
    struct sl_error err = {0};
    assert_int_equal(ask(&asker, &request, sizeof request, answer, sizeof answer, &n_bytes, &err), SL_ERR_PEER_LOST);
    end_store(&stores[1], SIGKILL);
    sl_connection_close(&asker.connection);
    sl_near_memory_destroy(&asker.local_memory);
    sl_remote_kv_destroy(&asker.local);
    sl_remote_kv_scratch_destroy(&asker.scratch);
    sluice__v1__annex__free_unpacked(asker.remote, NULL);
}

// A call of AwaitAnnex is one of a bounded number: it does not stay until the tokens come.
static void test_store_says_soon_that_tokens_have_not_come(void **state) {
    (void)state;
    Sluice__V1__Annex *remote_kv;
    assert_int_equal(open_annex(&stores[0], &remote_kv, NULL), SL_OK);
    assert_int_equal(remote_kv->n_tokens, 0);
    int64_t began_ns = sl_now_ns();
    assert_int_equal(ask_tokens(&stores[0], remote_kv->lease_id), 0);
    assert_in_range((sl_now_ns() - began_ns) / SL_NS_PER_MS, 900, 4000); // what callers wait for is 5000
    ship_segment(&stores[0], remote_kv->lease_id, 0, N_FIRST);
    int64_t deadline_ns = sl_deadline_in_ms(30000), n_tokens;
    while ((n_tokens = ask_tokens(&stores[0], remote_kv->lease_id)) < N_FIRST && sl_now_ns() < deadline_ns) {
    }
    assert_int_equal(n_tokens, N_FIRST); // fewer than asked for, and said
    release(&stores[0], remote_kv->lease_id);
    sluice__v1__annex__free_unpacked(remote_kv, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_says_soon_that_tokens_have_not_come),
        cmocka_unit_test(test_store_answers_as_a_remote_kv_of_this_process),
        cmocka_unit_test(test_store_is_read_one_sided_where_its_map_says),
        cmocka_unit_test(test_store_answers_several_askers_at_once),
        cmocka_unit_test(test_store_answers_what_has_piled_up),
        cmocka_unit_test(test_store_tells_what_it_does_not_have),
        cmocka_unit_test(test_store_that_scans_all_the_time_takes_nobody_in),
        cmocka_unit_test(test_store_stops_with_remote_kvs_open_and_is_missed_when_killed),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

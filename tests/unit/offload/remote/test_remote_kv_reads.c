// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: rows and channels that a source reads one-sided: the bytes are those of the answers that the store would have
 *          given, in every format, of several shares; and where a read fails, or may not be believed, the store is asked.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/fetch.h"
#include "net/offload/remote/remote_source.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/unit/fabric/harness.h"
#include "tests/unit/offload/remote_kv/fixture.h"

#define N_HEADS     4
#define D           16
#define N_TOKENS    1100 // segments of 512, 512, 64 and 12 tokens
#define N_SEGMENTS  4
#define N_CHANNELS  5
#define N_ROWS      33
#define LEASE_MS    60000
#define DEADLINE_MS 10000
#define MOST_SHARES 2
#define ARENA_BYTES (4u << 20)

// A store's side: a remote KV in its region, and the threads that answer.
struct store {
    struct sl_fabric *fabric;
    struct sl_arena *arena;
    uint8_t *region;
    struct sl_remote_kv *remote_kv;
    struct sl_remote_kv_scratch *scratch;
    struct sl_window *window;
    uint8_t *ticket;
    size_t ticket_bytes;
    atomic_int n_asked[8]; // by kind
};

struct scene {
    enum sl_kv_format work, scan;
    int n_shares, n_replicas;
    struct store stores[MOST_SHARES][2]; // [share][replica]
    struct sl_fabric *fabric;            // the reader's
    struct sl_connections *connections;
    struct sl_source *source;
    struct sl_plan plan;
    uint64_t seed;
};

// --- the store -------------------------------------------------------------------------------------------------------

static size_t write_map(const struct store *store, const struct sl_near_request *head, uint8_t *answer) {
    struct sl_near_segment *at = (struct sl_near_segment *)(answer + sizeof(struct sl_near_answer)), *first = at;
    const struct sl_kv_segment *segment;
    for (int i = 0; (segment = sl_remote_kv_segment(store->remote_kv, i)) != NULL; i++, at++) {
        const struct sl_kv_segment_config *config = sl_kv_segment_get_config(segment);
        size_t page_stride, scan_stride;
        const uint8_t *pages = sl_kv_segment_pages(segment, &page_stride);
        const uint8_t *indexes = sl_kv_segment_key_indexes(segment, &scan_stride);
        *at = (struct sl_near_segment){config->begin,
                                       config->n_slots,
                                       (uint32_t)config->n_offloaded_heads,
                                       (uint64_t)(pages - store->region),
                                       (uint64_t)(indexes - store->region),
                                       scan_stride};
    }
    struct sl_near_answer said = {
        .magic = SL_NEAR_MAGIC, .kind = SL_NEAR_MAP, .n_offloaded_heads = head->n_offloaded_heads};
    said.n_bytes = (size_t)((uint8_t *)at - (uint8_t *)first);
    memcpy(answer, &said, sizeof said);
    return sizeof said + said.n_bytes;
}

static void on_question(void *arg, struct sl_fabric_incoming *question) {
    struct store *store = arg;
    struct sl_near_request head;
    size_t request_bytes, bytes;
    const void *request = sl_fabric_incoming_body(question, &request_bytes);
    memcpy(&head, request, sizeof head);
    atomic_fetch_add(&store->n_asked[head.kind], 1);
    uint8_t *answer = malloc(sl_near_answer_bytes(store->remote_kv, request, request_bytes) + SL_NEAR_REFUSAL_BYTES +
                             N_SEGMENTS * sizeof(struct sl_near_segment));
    if (head.kind == SL_NEAR_MAP) {
        bytes = write_map(store, &head, answer);
    } else {
        sl_near_serve(store->remote_kv, NULL, store->scratch, request, request_bytes, answer, &bytes);
    }
    sl_fabric_incoming_reply(&question, answer, bytes, free, answer);
}

static void add_segment(struct scene *s, struct store *store, int first_offloaded_head, int n_offloaded_heads,
                        int64_t begin, uint32_t n) {
    struct sl_error err;
    const struct sl_ops *ops;
    struct sl_kv_segment_config config = {
        begin, n, first_offloaded_head, n_offloaded_heads, s->plan.work[0], s->plan.work[0].format, s->scan};
    if (s->plan.recipe.format == SL_KV_INT8) {
        config.rows = SL_KV_INT8;
    }
    assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
    size_t bytes = sl_kv_segment_block_bytes(&config);
    uint8_t *block = sl_arena_alloc(store->arena, bytes);
    assert_non_null(block);
    uint64_t seed = s->seed + (uint64_t)begin; // of both replicas the same
    for (size_t i = 0; i < bytes; i++) {
        block[i] = (uint8_t)(next_random(&seed) >> 24) & 0xbb; // finite and small in every format
    }
    struct sl_kv_segment *segment;
    if (sl_kv_segment_create(&config, ops, NULL, store->arena, block, &segment, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(sl_remote_kv_append(store->remote_kv, segment, &err), SL_OK);
    sl_kv_segment_unref(&segment);
}

static void start_store(struct scene *s, int share, int replica, const char *transport) {
    static const uint32_t cuts[N_SEGMENTS] = {512, 512, 64, 12};
    struct store *store = &s->stores[share][replica];
    struct sl_error err;
    const struct sl_ops *ops;
    int n_offloaded_heads = N_HEADS / s->n_shares, first = share * n_offloaded_heads;
    assert_int_equal(sl_ops_select("auto", &ops, &err), SL_OK);
    store->fabric = start_fabric(transport, "127.0.0.1:0", NULL, 500);
    store->region = make_region(store->fabric, ARENA_BYTES);
    assert_int_equal(sl_arena_create(store->region, ARENA_BYTES, &store->arena, &err), SL_OK);
    assert_int_equal(sl_remote_kv_create(ops, first, n_offloaded_heads, D, N_TOKENS, &store->remote_kv, &err), SL_OK);
    int64_t begin = 0;
    for (int i = 0; i < N_SEGMENTS; begin += cuts[i++]) {
        add_segment(s, store, first, n_offloaded_heads, begin, cuts[i]);
    }
    store->scratch = sl_remote_kv_scratch_create(NULL);
    assert_int_equal(sl_window_open(store->fabric, store->region, ARENA_BYTES, &store->window, &store->ticket,
                                    &store->ticket_bytes, &err),
                     SL_OK);
    assert_int_equal(sl_window_show(store->window, store->region, ARENA_BYTES, &err), SL_OK);
    sl_fabric_on_request(store->fabric, on_question, store);
}

static void stop_store(struct store *store) {
    if (!store->fabric) {
        return;
    }
    sl_window_close(&store->window);
    free(store->ticket);
    sl_remote_kv_destroy(&store->remote_kv);
    sl_arena_destroy(&store->arena);
    sl_fabric_destroy(&store->fabric);
    sl_remote_kv_scratch_destroy(&store->scratch);
}

// --- the reader ------------------------------------------------------------------------------------------------------

struct setting {
    const char *transport, *inject;
    enum sl_kv_format work, scan;
    int n_shares, n_replicas;
    int64_t lease_ms;
    bool int8_rows;
};

static void start(struct scene *s, const struct setting *setting) {
    struct sl_error err = {0};
    Sluice__V1__AnnexShare remote_kvs[4], *pointers[4];
    Sluice__V1__StoreShare shares[4];
    size_t n = 0;
    memset(s, 0, sizeof *s);
    s->scan = setting->scan;
    s->n_shares = setting->n_shares;
    s->n_replicas = setting->n_replicas;
    s->seed = 11;
    s->plan.geometry = (struct sl_kv_geometry){.n_layers = 1, .n_kv_heads = N_HEADS, .head_dim = D};
    s->plan.n_prompt = N_TOKENS;
    s->plan.recipe.retrieve = SL_RETRIEVE_PULL;
    s->plan.recipe.scan = setting->scan == SL_KV_INT8   ? SL_SCAN_INT8
                          : setting->scan == SL_KV_INT1 ? SL_SCAN_INT1
                                                        : SL_SCAN_STORED;
    sl_layers_add(&s->plan.recipe.offload, 0);
    s->plan.recipe.format = setting->int8_rows ? SL_KV_INT8 : setting->work;
    assert_int_equal(sl_page_layout_init(&s->plan.work[0], setting->work, D, 0, false), SL_OK);
    s->fabric = start_fabric(setting->transport, "127.0.0.1:0", setting->inject, 500);
    for (int i = 0; i < s->n_shares; i++) {
        for (int r = 0; r < s->n_replicas; r++, n++) {
            struct store *store = &s->stores[i][r];
            start_store(s, i, r, setting->transport);
            shares[n] = (Sluice__V1__StoreShare)SLUICE__V1__STORE_SHARE__INIT;
            shares[n].address = (char *)"store";
            shares[n].first_lane = i * (N_HEADS / s->n_shares);
            shares[n].n_lanes = N_HEADS / s->n_shares;
            shares[n].replica = r;
            remote_kvs[n] = (Sluice__V1__AnnexShare)SLUICE__V1__ANNEX_SHARE__INIT;
            remote_kvs[n].share = &shares[n];
            remote_kvs[n].annex_id = 1;
            remote_kvs[n].fabric_address = (char *)sl_fabric_address(store->fabric);
            remote_kvs[n].fabric_epoch = sl_fabric_epoch(store->fabric);
            remote_kvs[n].window.data = store->ticket;
            remote_kvs[n].window.len = store->ticket_bytes;
            remote_kvs[n].lease_ms = setting->lease_ms;
            pointers[n] = &remote_kvs[n];
        }
    }
    assert_int_equal(sl_connections_create(s->fabric, &s->connections, &err), SL_OK);
    if (sl_remote_source_create(s->connections, pointers, n, &s->plan, &s->source, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static void stop(struct scene *s) {
    s->source->ops->destroy(&s->source);
    sl_connections_destroy(&s->connections);
    stop_fabric(&s->fabric); // no connection, no request, no fetch is left
    for (int i = 0; i < s->n_shares; i++) {
        for (int r = 0; r < s->n_replicas; r++) {
            stop_store(&s->stores[i][r]);
        }
    }
}

struct request {
    struct sl_near_request head;
    union {
        uint32_t tokens[N_ROWS];
        uint16_t channels[N_HEADS * N_CHANNELS];
    } body;
};

static size_t bytes_of(const struct request *request) {
    return sizeof request->head + (request->head.kind == SL_NEAR_ROWS
                                       ? request->head.n_tokens * sizeof(uint32_t)
                                       : request->head.n_offloaded_heads * N_CHANNELS * sizeof(uint16_t));
}

static struct request make_request(struct scene *s, enum sl_near_kind kind, int share) {
    int n_offloaded_heads = N_HEADS / s->n_shares;
    struct request request = {.head = {.magic = SL_NEAR_MAGIC,
                                       .version = SL_NEAR_VERSION,
                                       .kind = kind,
                                       .first_offloaded_head = (uint32_t)(share * n_offloaded_heads),
                                       .n_offloaded_heads = (uint32_t)n_offloaded_heads}};
    if (kind == SL_NEAR_ROWS) {
        request.head.n_tokens = N_ROWS;
        for (int i = 0; i < N_ROWS; i++) {
            request.body.tokens[i] = (uint32_t)random_int(&s->seed, 0, N_TOKENS - 1); // in any order
        }
        request.body.tokens[0] = N_TOKENS - 1;
        return request;
    }
    request.head.n_channels = N_CHANNELS;
    request.head.last = random_int(&s->seed, 1, 2) == 1 ? N_TOKENS : random_int(&s->seed, 1, N_TOKENS);
    for (int offloaded_head = 0; offloaded_head < n_offloaded_heads; offloaded_head++) {
        int c = random_int(&s->seed, 0, 3);
        for (int i = 0; i < N_CHANNELS; i++, c += random_int(&s->seed, 1, 2)) {
            request.body.channels[offloaded_head * N_CHANNELS + i] = (uint16_t)c;
        }
    }
    return request;
}

static struct sl_asked *ask(struct scene *s, struct request *request) {
    struct sl_near_shape shape = {D, s->plan.work[0].format, s->scan, N_TOKENS};
    struct sl_asked *asked = NULL;
    struct sl_error err = {0};
    assert_int_equal(s->source->ops->ask(s->source, &request->head, bytes_of(request),
                                         sl_near_answer_limit(&shape, &request->head), sl_deadline_in_ms(DEADLINE_MS),
                                         &asked, &err),
                     SL_OK);
    return asked;
}

// Checks the replies against what the remote KV itself answers.
static void assert_answered(struct scene *s, struct sl_asked **asked, const struct request *request, int share) {
    const struct sl_remote_kv *remote_kv = s->stores[share][s->n_replicas - 1].remote_kv;
    const void *answer;
    size_t bytes, expected_bytes, head = sizeof(struct sl_near_answer);
    struct sl_error err = {0};
    if (s->source->ops->wait(s->source, *asked, &answer, &bytes, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    char *expected = malloc(sl_near_answer_bytes(remote_kv, request, bytes_of(request)) + SL_NEAR_REFUSAL_BYTES);
    struct sl_remote_kv_scratch *scratch = sl_remote_kv_scratch_create(NULL);
    sl_near_serve(remote_kv, NULL, scratch, request, bytes_of(request), expected, &expected_bytes);
    struct sl_near_answer said;
    memcpy(&said, expected, sizeof said);
    assert_int_equal(said.status, SL_OK);
    assert_int_equal(bytes, expected_bytes);
    assert_memory_equal((const char *)answer + head, expected + head, bytes - head);
    struct sl_near_answer head_out;
    const uint8_t *body;
    assert_int_equal(sl_near_check(&request->head, answer, bytes, &head_out, &body, &err), SL_OK);
    free(expected);
    sl_remote_kv_scratch_destroy(&scratch);
    s->source->ops->forget(s->source, asked);
}

static void answer_one(struct scene *s, enum sl_near_kind kind, int share) {
    struct request request = make_request(s, kind, share);
    struct sl_asked *asked = ask(s, &request);
    assert_answered(s, &asked, &request, share);
}

// Ask until the store's map is here.
static void warm_up(struct scene *s, int share) {
    int64_t until_ns = sl_deadline_in_ms(DEADLINE_MS);
    for (uint64_t before = s->source->n_reads; s->source->n_reads == before;) {
        answer_one(s, SL_NEAR_CHANNELS, share);
        assert_true(sl_now_ns() < until_ns);
    }
}

static int n_asked(struct scene *s, int share, int replica, enum sl_near_kind kind) {
    return atomic_load(&s->stores[share][replica].n_asked[kind]);
}

// --- tests -----------------------------------------------------------------------------------------------------------

static void read_all_formats(const char *transport, const char *inject) {
    static const enum sl_kv_format works[] = {SL_KV_F32, SL_KV_F16, SL_KV_BF16};
    for (int i = 0; i < 9; i++) {
        enum sl_kv_format work = works[i / 3], scans[] = {work, SL_KV_INT8, SL_KV_INT1};
        struct setting setting = {transport, inject, work, scans[i % 3], 1 + i % 2, 1, LEASE_MS, false};
        struct scene s;
        start(&s, &setting);
        for (int share = 0; share < s.n_shares; share++) {
            warm_up(&s, share);
        }
        uint64_t reads = s.source->n_reads, asks = s.source->n_asks;
        for (int turn = 0; turn < 6; turn++) {
            struct request a = make_request(&s, SL_NEAR_ROWS, 0),
                           b = make_request(&s, SL_NEAR_CHANNELS, s.n_shares - 1);
            struct sl_asked *first = ask(&s, &a), *second = ask(&s, &b);
            assert_answered(&s, &second, &b, s.n_shares - 1);
            assert_answered(&s, &first, &a, 0);
        }
        assert_int_equal(s.source->n_reads - reads, 12);
        assert_int_equal(s.source->n_asks, asks);
        stop(&s);
    }
}

static void test_reads_are_what_the_store_would_answer(void **state) {
    (void)state;
    read_all_formats("shm", NULL);
}

static void test_reads_by_gets_are_what_the_store_would_answer(void **state) {
    (void)state;
    read_all_formats("shm", "get:1");
}

static void test_int8_rows_are_asked_for(void **state) {
    (void)state;
    struct scene s;
    start(&s, &(struct setting){"shm", NULL, SL_KV_F16, SL_KV_INT8, 1, 1, LEASE_MS, true});
    warm_up(&s, 0);
    uint64_t reads = s.source->n_reads;
    int before = n_asked(&s, 0, 0, SL_NEAR_ROWS);
    answer_one(&s, SL_NEAR_ROWS, 0);
    assert_int_equal(n_asked(&s, 0, 0, SL_NEAR_ROWS), before + 1);
    assert_int_equal(s.source->n_reads, reads);
    answer_one(&s, SL_NEAR_CHANNELS, 0); // of the decoded rows
    assert_int_equal(s.source->n_reads, reads + 1);
    stop(&s);
}

static void test_over_tcp_everything_is_asked_for(void **state) {
    (void)state;
    struct scene s;
    start(&s, &(struct setting){"tcp", NULL, SL_KV_F16, SL_KV_F16, 1, 1, LEASE_MS, false});
    for (int i = 0; i < 4; i++) {
        answer_one(&s, SL_NEAR_CHANNELS, 0);
        answer_one(&s, SL_NEAR_ROWS, 0);
    }
    assert_int_equal(s.source->n_reads, 0);
    assert_int_equal(n_asked(&s, 0, 0, SL_NEAR_MAP), 0);
    stop(&s);
}

static void test_a_lease_is_renewed_by_questions(void **state) {
    (void)state;
    struct scene s;
    start(&s, &(struct setting){"shm", NULL, SL_KV_F16, SL_KV_F16, 1, 1, 300, false});
    warm_up(&s, 0);
    int before = n_asked(&s, 0, 0, SL_NEAR_CHANNELS);
    int64_t until_ns = sl_deadline_in_ms(1000);
    while (sl_now_ns() < until_ns) {
        answer_one(&s, SL_NEAR_CHANNELS, 0);
    }
    assert_true(n_asked(&s, 0, 0, SL_NEAR_CHANNELS) > before); // never more than 100 ms without one
    assert_true(s.source->n_reads > 1);
    stop(&s);
}

// The store exits while a read is under way: the other store answers it.
static void test_where_a_read_fails_the_other_store_is_asked(void **state) {
    (void)state;
    struct scene s;
    start(&s, &(struct setting){"shm", "get:1", SL_KV_F16, SL_KV_F16, 1, 2, LEASE_MS, false});
    warm_up(&s, 0);
    struct request request = make_request(&s, SL_NEAR_CHANNELS, 0);
    struct sl_asked *asked = ask(&s, &request);
    uint64_t replica_asks = s.source->n_replica_asks;
    stop_store(&s.stores[0][0]);
    assert_answered(&s, &asked, &request, 0); // read to its end, or asked for
    for (int i = 0; i < 3; i++) {
        answer_one(&s, SL_NEAR_ROWS, 0);
    }
    assert_true(s.source->n_replica_asks > replica_asks);
    assert_true(n_asked(&s, 0, 1, SL_NEAR_ROWS) + n_asked(&s, 0, 1, SL_NEAR_CHANNELS) > 0);
    stop(&s);
}

// A read that is given up at once: nothing is left of it (stop_fabric() looks).
static void test_reads_can_be_given_up(void **state) {
    (void)state;
    struct scene s;
    start(&s, &(struct setting){"shm", NULL, SL_KV_F32, SL_KV_F32, 1, 1, LEASE_MS, false});
    warm_up(&s, 0);
    for (int i = 0; i < 20; i++) {
        struct request request = make_request(&s, SL_NEAR_CHANNELS, 0);
        struct sl_asked *asked = ask(&s, &request);
        s.source->ops->forget(s.source, &asked);
        assert_null(asked);
    }
    answer_one(&s, SL_NEAR_CHANNELS, 0);
    stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_are_what_the_store_would_answer),
        cmocka_unit_test(test_reads_by_gets_are_what_the_store_would_answer),
        cmocka_unit_test(test_int8_rows_are_asked_for),
        cmocka_unit_test(test_over_tcp_everything_is_asked_for),
        cmocka_unit_test(test_a_lease_is_renewed_by_questions),
        cmocka_unit_test(test_where_a_read_fails_the_other_store_is_asked),
        cmocka_unit_test(test_reads_can_be_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

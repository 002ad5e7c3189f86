// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: requests about remote KVs over fabrics of one process. The bytes are those of a local remote KV, a second
 *          store answers where the first is slow or lost, and an unanswered request ends in time, with an error that
 *          names the store.
 */
#include "net/offload/remote/remote_source.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "tests/unit/fabric/harness.h"
#include "tests/unit/offload/remote_kv/fixture.h"
#include "tests/unit/offload/remote_kv/shared_blocks.h"
#include "tests/unit/offload/remote_kv/shares.h"
#include "tests/unit/slowness.h"

#define N_HEADS     4
#define D           16
#define N_TOKENS    200
#define TOPK        12
#define MAX_HELD    8
#define DEADLINE_MS (4000 * SLOWNESS) // of a question that is to be answered

// A kvstore's side: what its fabric is asked, it answers at once from one remote KV, or holds back.
struct store {
    struct sl_fabric *fabric;
    const struct sl_remote_kv *remote_kv;
    struct sl_near_memory *memory;
    struct sl_remote_kv_scratch *scratch;
    uint64_t remote_kv_id;
    atomic_bool holds;
    atomic_int refuses_with; // enum sl_status; 0: it answers
    atomic_int n_questions, n_resets, n_held, n_wrong_ids;
    struct sl_fabric_incoming *held[MAX_HELD];
    char name[16];
};

static void release(void *arg) {
    free(arg);
}

// On the progress thread, which a test may keep for an answer this small.
static void on_question(void *arg, struct sl_fabric_incoming *question) {
    struct store *store = arg;
    struct sl_near_request head;
    size_t request_bytes;
    const void *request = sl_fabric_incoming_body(question, &request_bytes);
    memcpy(&head, request, sizeof head);
    atomic_fetch_add(&store->n_questions, 1);
    atomic_fetch_add(&store->n_resets, (head.flags & SL_NEAR_RESET) != 0);
    atomic_fetch_add(&store->n_wrong_ids, head.remote_kv_id != store->remote_kv_id);
    if (atomic_load(&store->holds)) {
        store->held[atomic_fetch_add(&store->n_held, 1) % MAX_HELD] = question;
        return;
    }
    size_t bytes = sl_near_answer_bytes(store->remote_kv, request, request_bytes);
    void *answer = malloc(bytes + SL_NEAR_REFUSAL_BYTES);
    if (atomic_load(&store->refuses_with) != SL_OK) {
        struct sl_near_answer refusal = {
            .magic = SL_NEAR_MAGIC, .status = atomic_load(&store->refuses_with), .kind = head.kind, .n_bytes = 3};
        memcpy(answer, &refusal, sizeof refusal);
        memcpy((char *)answer + sizeof refusal, "why", 3);
        sl_fabric_incoming_reply(&question, answer, sizeof refusal + 3, release, answer);
        return;
    }
    sl_near_serve(store->remote_kv, store->memory, store->scratch, request, request_bytes, answer, &bytes);
    sl_fabric_incoming_reply(&question, answer, bytes, release, answer);
}

struct scene {
    struct offloaded_heads offloaded_heads;
    struct shares *shares;     // the remote KVs
    struct sl_fabric *fabric;  // the asker's
    struct store stores[2][2]; // [share][replica]
    int n_shares, n_replicas;
    struct sl_connections *connections;
    struct sl_source *source;
    struct sl_near_shape shape;
};

static void start_store(struct scene *s, int share, int replica) {
    struct sl_error err;
    struct store *store = &s->stores[share][replica];
    store->remote_kv = s->shares->remote_kvs[share];
    store->remote_kv_id = (uint64_t)(100 + 10 * share + replica);
    store->scratch = sl_remote_kv_scratch_create(NULL);
    assert_int_equal(sl_near_memory_create(store->remote_kv, &store->memory, &err), SL_OK);
    snprintf(store->name, sizeof store->name, "store-%d-%d", share, replica);
    store->fabric = start_fabric("tcp", "127.0.0.1:0", NULL, 500);
    sl_fabric_on_request(store->fabric, on_question, store);
}

static void stop_store(struct store *store) {
    if (!store->fabric) {
        return;
    }
    for (int i = 0; i < atomic_load(&store->n_held); i++) {
        sl_fabric_incoming_reply(&store->held[i], NULL, 0, release, NULL);
    }
    sl_fabric_destroy(&store->fabric);
    sl_near_memory_destroy(&store->memory);
    sl_remote_kv_scratch_destroy(&store->scratch);
}

// Offloaded heads of one layer that is offloaded.
static const struct sl_plan *plan_of_offloaded_heads(void) {
    static struct sl_plan plan;
    plan = (struct sl_plan){.geometry = {.n_layers = 1, .n_kv_heads = N_HEADS, .head_dim = D}, .n_prompt = N_TOKENS};
    plan.recipe.retrieve = SL_RETRIEVE_NEAR;
    sl_layers_add(&plan.recipe.offload, 0);
    assert_int_equal(sl_page_layout_init(&plan.work[0], SL_KV_F16, D, 0, false), SL_OK);
    return &plan;
}

static enum sl_status create_source(struct scene *s, struct sl_source **source_out, struct sl_error *err) {
    Sluice__V1__AnnexShare remote_kvs[4], *pointers[4];
    Sluice__V1__StoreShare shares[4];
    size_t n = 0;
    for (int i = s->n_shares - 1; i >= 0; i--) { // in any order
        for (int r = s->n_replicas - 1; r >= 0; r--, n++) {
            struct store *store = &s->stores[i][r];
            shares[n] = (Sluice__V1__StoreShare)SLUICE__V1__STORE_SHARE__INIT;
            shares[n].address = store->name;
            shares[n].first_lane = s->shares->base.shares[i].first_offloaded_head;
            shares[n].n_lanes = s->shares->base.shares[i].n_offloaded_heads;
            shares[n].replica = r;
            remote_kvs[n] = (Sluice__V1__AnnexShare)SLUICE__V1__ANNEX_SHARE__INIT;
            remote_kvs[n].share = &shares[n];
            remote_kvs[n].annex_id = store->remote_kv_id;
            remote_kvs[n].fabric_address = (char *)sl_fabric_address(store->fabric);
            remote_kvs[n].fabric_epoch = sl_fabric_epoch(store->fabric);
            pointers[n] = &remote_kvs[n];
        }
    }
    return sl_remote_source_create(s->connections, pointers, n, plan_of_offloaded_heads(), source_out, err);
}

static void start(struct scene *s, int n_shares, int n_replicas) {
    struct sl_error err = {0};
    memset(s, 0, sizeof *s);
    s->n_shares = n_shares;
    s->n_replicas = n_replicas;
    offloaded_heads_create(&s->offloaded_heads, SL_KV_F16, N_HEADS, D, N_TOKENS, 7);
    s->shares = shares_create(s->offloaded_heads.ops, s->offloaded_heads.arena, s->offloaded_heads.kv, N_HEADS,
                              N_TOKENS, SL_KV_F16, n_shares);
    s->shape = (struct sl_near_shape){D, SL_KV_F16, SL_KV_F16, N_TOKENS};
    s->fabric = start_fabric("tcp", NULL, NULL, 500);
    for (int i = 0; i < n_shares; i++) {
        for (int r = 0; r < n_replicas; r++) {
            start_store(s, i, r);
        }
    }
    assert_int_equal(sl_connections_create(s->fabric, &s->connections, &err), SL_OK);
    if (create_source(s, &s->source, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static void stop(struct scene *s) {
    s->source->ops->destroy(&s->source);
    assert_null(s->source);
    sl_connections_destroy(&s->connections);
    stop_fabric(&s->fabric); // no connection, no request is left
    for (int i = 0; i < s->n_shares; i++) {
        for (int r = 0; r < s->n_replicas; r++) {
            assert_int_equal(atomic_load(&s->stores[i][r].n_wrong_ids), 0);
            stop_store(&s->stores[i][r]);
        }
    }
    shares_destroy(&s->shares);
    offloaded_heads_destroy(&s->offloaded_heads);
}

struct topk {
    struct sl_near_request head;
    float q[2][D];
};

static struct topk make_topk(struct scene *s, int first_offloaded_head, uint64_t sequence) {
    struct topk request = {.head = {.magic = SL_NEAR_MAGIC,
                                    .version = SL_NEAR_VERSION,
                                    .kind = SL_NEAR_TOPK,
                                    .first_offloaded_head = (uint32_t)first_offloaded_head,
                                    .n_offloaded_heads = 2,
                                    .n_channels = 4,
                                    .topk = TOPK,
                                    .places = TOPK + 8,
                                    .last = N_TOKENS,
                                    .sequence = sequence}};
    random_query(&s->offloaded_heads, request.q[0]);
    random_query(&s->offloaded_heads, request.q[1]);
    return request;
}

static struct sl_asked *ask(struct scene *s, struct topk *request, int64_t deadline_ms) {
    struct sl_asked *asked = NULL;
    struct sl_error err = {0};
    size_t capacity = sl_near_answer_limit(&s->shape, &request->head);
    assert_int_equal(s->source->ops->ask(s->source, &request->head, sizeof *request, capacity,
                                         sl_deadline_in_ms(deadline_ms), &asked, &err),
                     SL_OK);
    return asked;
}

// The answer is what this remote KV and an asker's memory of its own give, but for the time that it took.
static void assert_answered(struct scene *s, struct sl_asked **asked, const struct topk *request, int share,
                            struct sl_near_memory *memory) {
    const void *answer;
    size_t bytes, expected_bytes;
    struct sl_error err = {0};
    if (s->source->ops->wait(s->source, *asked, &answer, &bytes, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(s->source->ops->is_there(s->source, *asked));
    char *expected = malloc(sl_near_answer_bytes(s->shares->remote_kvs[share], request, sizeof *request));
    struct sl_remote_kv_scratch *scratch = sl_remote_kv_scratch_create(NULL);
    sl_near_serve(s->shares->remote_kvs[share], memory, scratch, request, sizeof *request, expected, &expected_bytes);
    assert_int_equal(bytes, expected_bytes);
    assert_int_equal((uintptr_t)answer % 64, 0);
    size_t head = sizeof(struct sl_near_answer);
    assert_memory_equal((const char *)answer + head, expected + head, bytes - head);
    free(expected);
    sl_remote_kv_scratch_destroy(&scratch);
    s->source->ops->forget(s->source, asked);
    assert_null(*asked);
}

// --- tests ---------------------------------------------------------------------------------------------------------

static void test_remote_source_gives_what_a_remote_kv_answers(void **state) {
    struct scene *s = *state;
    start(s, 2, 1);
    for (uint64_t sequence = 0; sequence < 6; sequence++) { // what lies in the places is remembered on both sides
        struct topk a = make_topk(s, 0, sequence), b = make_topk(s, 2, sequence);
        struct sl_asked *first = ask(s, &a, DEADLINE_MS), *second = ask(s, &b, DEADLINE_MS);
        assert_answered(s, &second, &b, 1, s->shares->memories[1]);
        assert_answered(s, &first, &a, 0, s->shares->memories[0]);
    }
    assert_int_equal(s->source->n_asks, 12);
    assert_int_equal(s->source->n_replica_asks, 0);
    assert_int_equal(s->source->bytes_sent, 12 * sizeof(struct topk));
    assert_true(s->source->bytes_received > 0);
    assert_int_equal(atomic_load(&s->stores[0][0].n_resets), 1); // the first: no store had answered before
    stop(s);
}

static void test_remote_source_answers_in_shared_memory_of_a_device(void **state) {
    struct scene *s = *state;
    struct shared_blocks blocks = {.device = {.ops = &shared_blocks_ops}};
    start(s, 1, 1);
    s->source->device = &blocks.device;
    for (uint64_t sequence = 0; sequence < 3; sequence++) {
        struct topk request = make_topk(s, 0, sequence);
        struct sl_asked *asked = ask(s, &request, DEADLINE_MS);
        const void *answer;
        size_t bytes;
        struct sl_error err = {0};
        assert_int_equal(s->source->ops->wait(s->source, asked, &answer, &bytes, &err), SL_OK);
        assert_ptr_equal(answer, blocks.newest);
        assert_int_equal(blocks.n, 1);
        assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
    }
    stop(s);
    assert_int_equal(blocks.n, 0);
}

static void test_remote_source_asks_the_other_store_where_one_is_slow(void **state) {
    struct scene *s = *state;
    start(s, 1, 2);
    struct store *first = &s->stores[0][0], *second = &s->stores[0][1];
    struct topk request = make_topk(s, 0, 0);
    struct sl_asked *asked = ask(s, &request, DEADLINE_MS);
    assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
    assert_int_equal(atomic_load(&first->n_questions), 1);

    atomic_store(&first->holds, true);
    int64_t begin_ns = sl_now_ns();
    request = make_topk(s, 0, 1);
    asked = ask(s, &request, 2000 * SLOWNESS);
    request.head.flags = SL_NEAR_RESET; // so the second was asked: it has never seen these offloaded heads
    assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
    assert_true(sl_now_ns() - begin_ns >= 1000 * SLOWNESS * SL_NS_PER_MS);
    assert_int_equal(atomic_load(&second->n_questions), 1);
    assert_int_equal(atomic_load(&second->n_resets), 1);
    assert_int_equal(s->source->n_replica_asks, 1);

    for (uint64_t sequence = 2; sequence < 5; sequence++) { // the store that answered gets all later requests
        request = make_topk(s, 0, sequence);
        asked = ask(s, &request, DEADLINE_MS);
        assert_int_equal(request.head.flags, 0);
        assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
    }
    assert_int_equal(atomic_load(&first->n_questions), 2);
    assert_int_equal(atomic_load(&second->n_questions), 4);
    stop(s);
}

static void test_remote_source_goes_on_with_the_other_store_where_one_is_lost(void **state) {
    struct scene *s = *state;
    start(s, 1, 2);
    struct topk request = make_topk(s, 0, 0);
    struct sl_asked *asked = ask(s, &request, DEADLINE_MS);
    assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
    stop_store(&s->stores[0][0]);
    int64_t begin_ns = sl_now_ns();
    for (uint64_t sequence = 1; sequence < 4; sequence++) {
        request = make_topk(s, 0, sequence);
        asked = ask(s, &request, 20000 * SLOWNESS);
        request.head.flags = sequence == 1 ? SL_NEAR_RESET : 0;
        assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
    }
    assert_true(sl_now_ns() - begin_ns < 8000 * SLOWNESS * SL_NS_PER_MS); // not half of the time
    stop(s);
}

static void test_remote_source_goes_on_with_the_other_store_where_one_refuses(void **state) {
    struct scene *s = *state;
    static const enum sl_status refusals[] = {SL_ERR_NOT_FOUND, SL_ERR_EXHAUSTED, SL_ERR_PEER_LOST};
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        start(s, 1, 2);
        atomic_store(&s->stores[0][0].refuses_with, (int)refusals[i]);
        int64_t begin_ns = sl_now_ns();
        struct topk request = make_topk(s, 0, 0);
        struct sl_asked *asked = ask(s, &request, 20000 * SLOWNESS);
        request.head.flags = SL_NEAR_RESET;
        assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
        assert_true(sl_now_ns() - begin_ns < 8000 * SLOWNESS * SL_NS_PER_MS); // not half of the time
        stop(s);
    }
}

// With one store, the refusal is the final error; the reader waits for one that may pass.
static void test_remote_source_says_why_a_store_refuses(void **state) {
    struct scene *s = *state;
    static const struct {
        enum sl_status said, expected;
    } cases[] = {{SL_ERR_NOT_FOUND, SL_ERR_PEER_STALE}, {SL_ERR_EXHAUSTED, SL_ERR_EXHAUSTED}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_error err = {0};
        const void *answer;
        size_t bytes;
        start(s, 1, 1);
        atomic_store(&s->stores[0][0].refuses_with, (int)cases[i].said);
        struct topk request = make_topk(s, 0, 0);
        struct sl_asked *asked = ask(s, &request, 1000 * SLOWNESS);
        assert_int_equal(s->source->ops->wait(s->source, asked, &answer, &bytes, &err), cases[i].expected);
        assert_int_equal(err.reason, SL_REASON_STORE);
        assert_string_equal(err.culprit, "store-0-0");
        assert_non_null(strstr(err.text, "why"));
        s->source->ops->forget(s->source, &asked);
        stop(s);
    }
}

// A share is lost when all its stores are; one that is merely slow may answer the next question.
static void test_remote_source_names_the_stores_that_do_not_answer(void **state) {
    struct scene *s = *state;
    for (int n_lost = 1; n_lost <= 2; n_lost++) {
        struct sl_error err = {0};
        const void *answer;
        size_t bytes;
        start(s, 1, 2);
        stop_store(&s->stores[0][0]);
        atomic_store(&s->stores[0][1].holds, true);
        if (n_lost == 2) {
            stop_store(&s->stores[0][1]);
        }
        struct topk request = make_topk(s, 0, 0);
        struct sl_asked *asked = ask(s, &request, 600 * SLOWNESS);
        int64_t begin_ns = sl_now_ns();
        enum sl_status status = s->source->ops->wait(s->source, asked, &answer, &bytes, &err);
        assert_int_equal(status, n_lost == 1 ? SL_ERR_DEADLINE : SL_ERR_PEER_LOST);
        assert_true(sl_now_ns() - begin_ns < 4000 * SLOWNESS * SL_NS_PER_MS);
        assert_int_equal(err.reason, SL_REASON_STORE);
        assert_true(sl_error_blames(&err, "store-0-0"));
        assert_true(sl_error_blames(&err, "store-0-1"));
        s->source->ops->forget(s->source, &asked);
        stop(s);
    }
}

// Another process at the address does not have the remote KV: the reader does not wait for it.
static void test_remote_source_does_not_wait_for_a_store_that_began_anew(void **state) {
    struct scene *s = *state;
    struct sl_error err = {0};
    const void *answer;
    size_t bytes;
    start(s, 1, 1);
    Sluice__V1__StoreShare share = SLUICE__V1__STORE_SHARE__INIT;
    Sluice__V1__AnnexShare remote_kv = SLUICE__V1__ANNEX_SHARE__INIT, *pointer = &remote_kv;
    share.address = s->stores[0][0].name;
    share.n_lanes = N_HEADS;
    remote_kv.share = &share;
    remote_kv.fabric_address = (char *)sl_fabric_address(s->stores[0][0].fabric);
    remote_kv.fabric_epoch = sl_fabric_epoch(s->stores[0][0].fabric) + 1;
    struct sl_source *source;
    assert_int_equal(sl_remote_source_create(s->connections, &pointer, 1, plan_of_offloaded_heads(), &source, &err),
                     SL_OK);
    struct topk request = make_topk(s, 0, 0);
    struct sl_asked *asked;
    int64_t begin_ns = sl_now_ns();
    assert_int_equal(source->ops->ask(source, &request.head, sizeof request,
                                      sl_near_answer_limit(&s->shape, &request.head),
                                      sl_deadline_in_ms(20000 * SLOWNESS), &asked, &err),
                     SL_OK);
    assert_int_equal(source->ops->wait(source, asked, &answer, &bytes, &err), SL_ERR_PEER_STALE);
    assert_true(sl_now_ns() - begin_ns < 10000 * SLOWNESS * SL_NS_PER_MS);
    source->ops->forget(source, &asked);
    source->ops->destroy(&source);
    stop(s);
}

static void test_remote_source_shares_lines_and_leaves_nothing_open(void **state) {
    struct scene *s = *state;
    struct sl_error err = {0};
    struct sl_source *other;
    struct sl_fabric_stats stats;
    start(s, 1, 1);
    assert_int_equal(create_source(s, &other, &err), SL_OK);
    struct topk request = make_topk(s, 0, 0);
    struct sl_asked *asked = ask(s, &request, DEADLINE_MS);
    assert_answered(s, &asked, &request, 0, s->shares->memories[0]);
    struct topk again = make_topk(s, 0, 0);
    asked = NULL;
    size_t capacity = sl_near_answer_limit(&s->shape, &again.head);
    assert_int_equal(
        other->ops->ask(other, &again.head, sizeof again, capacity, sl_deadline_in_ms(DEADLINE_MS), &asked, &err),
        SL_OK);
    sl_fabric_get_stats(s->fabric, &stats);
    assert_int_equal(stats.connections_open, 1);
    other->ops->forget(other, &asked); // perhaps not answered yet
    other->ops->destroy(&other);
    stop(s);
}

static void test_remote_source_refuses_shares_that_do_not_fit(void **state) {
    struct scene *s = *state;
    static const struct {
        int n, first[3], n_offloaded_heads[3];
    } cases[] = {
        {0, {0}, {0}},             // none
        {1, {0}, {3}},             // one offloaded head is nowhere
        {2, {0, 3}, {2, 1}},       // one between them
        {2, {0, 1}, {2, 3}},       // one twice
        {1, {0}, {5}},             // more than there are
        {1, {-1}, {5}},            // not offloaded heads
        {3, {0, 0, 0}, {4, 4, 4}}, // more replicas than two
    };
    start(s, 1, 1);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sl_error err = {0};
        struct sl_source *source = NULL;
        Sluice__V1__StoreShare shares[3];
        Sluice__V1__AnnexShare remote_kvs[3], *pointers[3];
        for (int i = 0; i < cases[c].n; i++) {
            shares[i] = (Sluice__V1__StoreShare)SLUICE__V1__STORE_SHARE__INIT;
            shares[i].first_lane = cases[c].first[i];
            shares[i].n_lanes = cases[c].n_offloaded_heads[i];
            remote_kvs[i] = (Sluice__V1__AnnexShare)SLUICE__V1__ANNEX_SHARE__INIT;
            remote_kvs[i].share = &shares[i];
            pointers[i] = &remote_kvs[i];
        }
        assert_int_equal(sl_remote_source_create(s->connections, pointers, (size_t)cases[c].n,
                                                 plan_of_offloaded_heads(), &source, &err),
                         SL_ERR_INVALID);
        assert_null(source);
        assert_non_null(strstr(err.text, "remote KV:"));
    }
    stop(s);
}

// A test that fails leaves stop() out: its stores, which work in threads of their own, must not outlive the scene.
static int set_up(void **state) {
    *state = calloc(1, sizeof(struct scene));
    return *state == NULL;
}

static int tear_down(void **state) {
    struct scene *s = *state;
    for (int i = 0; i < 4; i++) {
        stop_store(&s->stores[i / 2][i % 2]);
    }
    if (s->source == NULL) { // otherwise what asked is waiting still
        free(s);
    }
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_remote_source_gives_what_a_remote_kv_answers),
        TEST(test_remote_source_answers_in_shared_memory_of_a_device),
        TEST(test_remote_source_asks_the_other_store_where_one_is_slow),
        TEST(test_remote_source_goes_on_with_the_other_store_where_one_is_lost),
        TEST(test_remote_source_goes_on_with_the_other_store_where_one_refuses),
        TEST(test_remote_source_says_why_a_store_refuses),
        TEST(test_remote_source_names_the_stores_that_do_not_answer),
        TEST(test_remote_source_does_not_wait_for_a_store_that_began_anew),
        TEST(test_remote_source_shares_lines_and_leaves_nothing_open),
        TEST(test_remote_source_refuses_shares_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

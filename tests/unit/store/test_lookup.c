// SPDX-License-Identifier: Apache-2.0
// Purpose: how long jobs wait for a store that does not answer their look-ups, or answers wrongly, and when it is asked again;
// which prefixes they ask for, and how much of the matched capsule they take. The calls and the clock are this file's: time passes
// only while a job waits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/store/store.h"
#include "proto/methods.h"

#define STORE  "kvstore-1@127.0.0.1:7001"
#define TOKENS 400 // a job waits 250 + 50 ms

static int64_t now_ms;

// Says how the store treats the next calls, and counts them.
static struct {
    int64_t takes_ms;
    enum sl_status status;
    int n_calls, n_open;
    Sluice__V1__LookupReply match; // of the next look-up
    // The last look-up asked for these keys:
    size_t n_keys;
    int64_t n_tokens[16];
    struct sl_hash128 hashes[16];
} store;

struct sl_rpc_stream {
    int64_t ends_ms, limit_ms;
    enum sl_status status;
};

int64_t __wrap_sl_now_ns(void);
int64_t __wrap_sl_now_ns(void) {
    return now_ms * SL_NS_PER_MS;
}

int64_t __wrap_sl_deadline_in_ms(int64_t ms);
int64_t __wrap_sl_deadline_in_ms(int64_t ms) {
    return (now_ms + ms) * SL_NS_PER_MS;
}

int64_t __wrap_sl_deadline_left_ms(int64_t deadline_ns);
int64_t __wrap_sl_deadline_left_ms(int64_t deadline_ns) {
    const int64_t left_ms = deadline_ns / SL_NS_PER_MS - now_ms;
    return left_ms > 0 ? left_ms : 0;
}

enum sl_status __wrap_sl_rpc_stream_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                                         const ProtobufCMessage *request, int64_t deadline_ns,
                                         struct sl_rpc_call *parent, struct sl_rpc_stream **stream_out,
                                         struct sl_error *err);
enum sl_status __wrap_sl_rpc_stream_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                                         const ProtobufCMessage *request, int64_t deadline_ns,
                                         struct sl_rpc_call *parent, struct sl_rpc_stream **stream_out,
                                         struct sl_error *err) {
    (void)err;
    const Sluice__V1__LookupRequest *asked = (const Sluice__V1__LookupRequest *)request;
    store.n_keys = asked->n_prefixes;
    for (size_t i = 0; i < asked->n_prefixes && i < 16; i++) {
        store.n_tokens[i] = asked->prefixes[i]->n_tokens;
        assert_true(sl_hash128_read(asked->prefixes[i]->hash.data, asked->prefixes[i]->hash.len, &store.hashes[i]));
    }
    assert_non_null(channel);
    assert_ptr_equal(method, &sl_method_store_lookup);
    assert_null(parent); // or the end of a job would look like a failure of the store
    struct sl_rpc_stream *stream = calloc(1, sizeof *stream);
    assert_non_null(stream);
    *stream = (struct sl_rpc_stream){now_ms + store.takes_ms, deadline_ns / SL_NS_PER_MS, store.status};
    store.n_calls++;
    store.n_open++;
    *stream_out = stream;
    return SL_OK;
}

enum sl_status __wrap_sl_rpc_stream_next(struct sl_rpc_stream *stream, int64_t wait_ms, ProtobufCMessage **message_out,
                                         struct sl_error *err);
enum sl_status __wrap_sl_rpc_stream_next(struct sl_rpc_stream *stream, int64_t wait_ms, ProtobufCMessage **message_out,
                                         struct sl_error *err) {
    const int64_t ends_ms = stream->ends_ms < stream->limit_ms ? stream->ends_ms : stream->limit_ms;
    if (now_ms + wait_ms < ends_ms) {
        now_ms += wait_ms;
        return SL_AGAIN;
    }
    now_ms = now_ms > ends_ms ? now_ms : ends_ms;
    if (stream->ends_ms > stream->limit_ms) {
        return sl_fail(err, SL_ERR_DEADLINE, "Deadline Exceeded");
    }
    if (stream->status != SL_OK) {
        return sl_fail(err, stream->status, "the store says so");
    }
    Sluice__V1__LookupReply *reply = calloc(1, sizeof *reply);
    assert_non_null(reply);
    *reply = store.match;
    if (reply->capsule_hash.len > 0) {
        reply->capsule_hash.data = malloc(reply->capsule_hash.len);
        memcpy(reply->capsule_hash.data, store.match.capsule_hash.data, reply->capsule_hash.len);
    }
    *message_out = &reply->base;
    return SL_OK;
}

void __wrap_sl_rpc_stream_close(struct sl_rpc_stream **stream);
void __wrap_sl_rpc_stream_close(struct sl_rpc_stream **stream) {
    store.n_open -= *stream != NULL;
    free(*stream);
    *stream = NULL;
}

// ---- jobs ------------------------------------------------------------------------------------------------------------

static struct sl_store_client *client;
static bool is_alive;

static bool alive(void *arg) {
    (void)arg;
    return is_alive;
}

static int32_t tokens[TOKENS];
static const struct sl_hash128 salt = {{7}};
static struct sl_plan plan;

static struct sl_store_job job_at(const char *address) {
    static const struct sl_capsule_id id = {0};
    static char call; // the job's
    return (struct sl_store_job){.client = client,
                                 .address = address,
                                 .plan = &plan,
                                 .id = &id,
                                 .tokens = tokens,
                                 .salt = &salt,
                                 .parent = (struct sl_rpc_call *)&call,
                                 .alive = alive};
}

// Looks a prompt up, and checks how long that took the job, and how many calls it made.
static void expect(const char *address, enum sl_status expected, int64_t expected_ms, int n_calls) {
    struct sl_store_job job = job_at(address);
    struct sl_store_match match;
    struct sl_error err = {0};
    const int64_t began_ms = now_ms;
    const int before = store.n_calls;
    const enum sl_status status = sl_store_lookup(&job, &match, &err);
    if (status != expected || now_ms - began_ms != expected_ms || store.n_calls - before != n_calls) {
        fail_msg("%s after %lld ms and %d calls: %s", sl_status_text(status), (long long)(now_ms - began_ms),
                 store.n_calls - before, err.text);
    }
}

static int begin(void **state) {
    (void)state;
    static struct sl_node node;
    memset(&store, 0, sizeof store);
    sluice__v1__lookup_reply__init(&store.match);
    store.match.n_tokens = store.match.capsule_tokens = TOKENS;
    store.match.capsule_bytes = 1;
    memset(&plan, 0, sizeof plan);
    plan.n_prompt = TOKENS;
    assert_int_equal(sl_recipe_parse("full", &plan.recipe, NULL), SL_OK);
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = i * i % 1009;
    }
    is_alive = true;
    now_ms = 1000000;
    return sl_store_client_create(&node, &client, NULL) != SL_OK;
}

static int end(void **state) {
    (void)state;
    sl_store_client_destroy(&client);
    return store.n_open != 0; // a call that was left is closed
}

// ---- tests -----------------------------------------------------------------------------------------------------------

static void test_a_job_waits_a_part_of_what_reading_takes(void **state) {
    (void)state;
    store.takes_ms = 1500;
    expect(STORE, SL_ERR_DEADLINE, 300, 1);
    expect(STORE, SL_ERR_PEER_STALE, 0, 0); // the call goes on
    now_ms += 1100;
    expect(STORE, SL_ERR_PEER_STALE, 0, 0);
    store.takes_ms = 200;
    now_ms += 100; // it has answered
    expect(STORE, SL_OK, 200, 1);
    store.takes_ms = 10000; // it never will: the call ends after 2 s
    expect(STORE, SL_ERR_DEADLINE, 300, 1);
    now_ms += 1700;
    store.takes_ms = 0;
    expect(STORE, SL_ERR_PEER_STALE, 0, 0);
    now_ms += 9999;
    expect(STORE, SL_ERR_PEER_STALE, 0, 0);
}

static void test_a_store_that_fails_again_is_avoided_for_longer(void **state) {
    (void)state;
    store.takes_ms = 280;
    store.status = SL_ERR_EXHAUSTED;
    expect(STORE, SL_ERR_PEER_STALE, 280, 1);
    static const int avoid_s[] = {10, 20, 40, 80, 80};
    for (size_t i = 0; i < sizeof avoid_s / sizeof *avoid_s; i++) {
        now_ms += 1000 * avoid_s[i] - 1;
        expect(STORE, SL_ERR_PEER_STALE, 0, 0);
        now_ms++;
        expect(STORE, SL_ERR_DEADLINE, 0, 1); // on trial: the job that asks does not wait
        expect(STORE, SL_ERR_PEER_STALE, 0, 0);
        now_ms += 280;
        expect(STORE, SL_ERR_PEER_STALE, 0, 0); // it has failed
    }
    store.status = SL_ERR_NOT_FOUND; // well again
    now_ms += 80000;
    expect(STORE, SL_ERR_DEADLINE, 0, 1);
    now_ms += 280;
    expect(STORE, SL_ERR_NOT_FOUND, 280, 1);
    store.status = SL_ERR_EXHAUSTED; // a store that does well on trial alone does not begin anew
    expect(STORE, SL_ERR_PEER_STALE, 280, 1);
    now_ms += 79999;
    expect(STORE, SL_ERR_PEER_STALE, 0, 0);
    store.status = SL_OK;
    now_ms++;
    expect(STORE, SL_ERR_DEADLINE, 0, 1);
    now_ms += 100000; // one that has done well for long does
    expect(STORE, SL_OK, 280, 1);
    store.status = SL_ERR_EXHAUSTED;
    expect(STORE, SL_ERR_PEER_STALE, 280, 1);
    now_ms += 10000;
    expect(STORE, SL_ERR_DEADLINE, 0, 1);
}

static void test_a_store_that_registers_anew_keeps_its_record(void **state) {
    (void)state;
    store.status = SL_ERR_EXHAUSTED;
    expect(STORE, SL_ERR_PEER_STALE, 0, 1);
    expect("kvstore-1@127.0.0.1:7002", SL_ERR_PEER_STALE, 0, 0);
    expect("kvstore-1@127.0.0.2:7001", SL_ERR_PEER_STALE, 0, 0);
    now_ms += 10000;
    expect("kvstore-1@127.0.0.1:7003", SL_ERR_DEADLINE, 0, 1);
    store.status = SL_OK;
    expect("kvstore-1@127.0.0.1:7003", SL_ERR_PEER_STALE, 0, 0); // the outcome of the trial
    now_ms += 19999;
    expect("kvstore-1@127.0.0.1:7004", SL_ERR_PEER_STALE, 0, 0);
    now_ms++;
    expect("kvstore-1@127.0.0.1:7005", SL_ERR_DEADLINE, 0, 1);
    expect("kvstore-1@127.0.0.1:7005", SL_OK, 0, 1);
    expect("kvstore-1@127.0.0.1:7006", SL_OK, 0, 1); // what it has made good, too
    expect("kvstore-12@127.0.0.1:7001", SL_OK, 0, 1);
    expect("127.0.0.1:7001", SL_OK, 0, 1); // without certificates there are no names
    store.status = SL_ERR_EXHAUSTED;
    expect("kvstore-20@127.0.0.1:7001", SL_ERR_PEER_STALE, 0, 1);
    store.status = SL_OK;
    expect("kvstore-2@127.0.0.1:7001", SL_OK, 0, 1);
}

static void test_the_end_of_a_job_is_no_failure_of_the_store(void **state) {
    (void)state;
    store.takes_ms = 1500;
    is_alive = false;
    expect(STORE, SL_ERR_CANCELLED, 250, 1);
    is_alive = true;
    store.takes_ms = 0;
    expect(STORE, SL_OK, 0, 1);
    store.status = SL_ERR_PEER_LOST; // it costs nothing to ask, and the coordinator finds out
    expect(STORE, SL_ERR_PEER_LOST, 0, 1);
    expect(STORE, SL_ERR_PEER_LOST, 0, 1);
}

// Looks the prompt up, and returns how many tokens of it the match covers, if the store answers with 320 tokens in a capsule
// of n_capsule; they are the prompt's, or `other`.
static int64_t matched(int64_t n_capsule, bool other) {
    struct sl_store_job job = job_at(STORE);
    struct sl_store_match match;
    struct sl_error err = {0};
    struct sl_hash128 hash = sl_prefix_hash(&salt, tokens, n_capsule < TOKENS ? n_capsule : TOKENS);
    hash.bytes[0] ^= other;
    store.match.n_tokens = 320;
    store.match.capsule_tokens = n_capsule;
    store.match.capsule_hash = (ProtobufCBinaryData){sizeof hash, hash.bytes};
    assert_int_equal(sl_store_lookup(&job, &match, &err), SL_OK);
    assert_int_equal(match.capsule_tokens, n_capsule);
    return match.n_tokens;
}

static void test_a_prompt_that_begins_with_a_whole_capsule_takes_all_of_it(void **state) {
    (void)state;
    assert_int_equal(matched(350, false), 350);
    assert_int_equal(matched(383, false), 383);
    assert_int_equal(matched(350, true), 320); // it ends otherwise
    assert_int_equal(matched(320, false), 320);
    assert_int_equal(matched(399, false), 399);
    assert_int_equal(matched(401, false), 320); // longer than the prompt
    assert_int_equal(sl_recipe_parse("full,format=int4", &plan.recipe, NULL), SL_OK);
    assert_int_equal(matched(350, false), 350);
    // Offloaded layers are continued at whole pages, evicted ones between chunks.
    assert_int_equal(sl_recipe_parse("place=offload/1-", &plan.recipe, NULL), SL_OK);
    assert_int_equal(matched(350, false), 320);
    assert_int_equal(sl_recipe_parse("snapkv,budget=0.5", &plan.recipe, NULL), SL_OK);
    assert_int_equal(matched(350, false), 320);
}

// Checks which prefixes the job asks for, in order.
static void expect_keys(int64_t whole_tokens, const int64_t *expected, size_t n) {
    struct sl_store_job job = job_at(STORE);
    struct sl_store_match match;
    struct sl_error err = {0};
    job.whole_tokens = whole_tokens;
    assert_int_equal(sl_store_lookup(&job, &match, &err), SL_OK);
    assert_int_equal(store.n_keys, n);
    for (size_t i = 0; i < n; i++) {
        struct sl_hash128 hash = sl_prefix_hash(&salt, tokens, expected[i]);
        assert_int_equal(store.n_tokens[i], expected[i]);
        assert_true(sl_hash128_equals(&hash, &store.hashes[i]));
    }
}

static void test_a_job_asks_for_the_whole_capsule_that_its_prompt_begins_with(void **state) {
    (void)state;
    expect_keys(0, (const int64_t[]){400, 384, 320, 256, 192, 128, 64}, 7);
    expect_keys(350, (const int64_t[]){400, 384, 350, 320, 256, 192, 128, 64}, 8);
    expect_keys(399, (const int64_t[]){400, 399, 384, 320, 256, 192, 128, 64}, 8);
    expect_keys(30, (const int64_t[]){400, 384, 320, 256, 192, 128, 64, 30}, 8);
    expect_keys(320, (const int64_t[]){400, 384, 320, 256, 192, 128, 64}, 7); // once
    expect_keys(400, (const int64_t[]){400, 384, 320, 256, 192, 128, 64}, 7);
    expect_keys(401, (const int64_t[]){400, 384, 320, 256, 192, 128, 64}, 7);
    plan.n_prompt = 40;
    store.match.n_tokens = store.match.capsule_tokens = 30;
    expect_keys(30, (const int64_t[]){40, 30}, 2);
    plan.n_prompt = TOKENS;
    assert_int_equal(sl_recipe_parse("place=offload/1-", &plan.recipe, NULL), SL_OK);
    expect_keys(350, (const int64_t[]){400, 384, 320, 256, 192, 128, 64}, 7);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_job_waits_a_part_of_what_reading_takes, begin, end),
        cmocka_unit_test_setup_teardown(test_a_store_that_fails_again_is_avoided_for_longer, begin, end),
        cmocka_unit_test_setup_teardown(test_a_store_that_registers_anew_keeps_its_record, begin, end),
        cmocka_unit_test_setup_teardown(test_the_end_of_a_job_is_no_failure_of_the_store, begin, end),
        cmocka_unit_test_setup_teardown(test_a_prompt_that_begins_with_a_whole_capsule_takes_all_of_it, begin, end),
        cmocka_unit_test_setup_teardown(test_a_job_asks_for_the_whole_capsule_that_its_prompt_begins_with, begin, end),
    };
    sl_rpc_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}

// SPDX-License-Identifier: Apache-2.0
// Questions to a store's threads over a real fabric on the loopback interface: each is answered, also those that come while it stops.
#include "tests/unit/kvstore/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/request.h"
#include "kvstore/remote_kv/questions.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define LEASE_MS    30000
#define WAIT_MS     5000

struct fixture {
    struct parts parts;
    struct sl_remote_kv_table *remote_kvs;
    struct sl_questions *questions;
    struct sl_connection *connection;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    open_parts(&fixture->parts, ARENA_BYTES, LEASE_MS, 0);
    struct sl_fabric *fabric = fixture->parts.receiver;
    struct sl_remote_kv_table_config remote_kvs = {
        .room = &fixture->parts.room, .lease_ms = LEASE_MS, .fabric = fabric};
    assert_int_equal(sl_ops_select("auto", &remote_kvs.ops, NULL), SL_OK);
    assert_int_equal(sl_remote_kv_table_create(&remote_kvs, &fixture->remote_kvs, NULL), SL_OK);
    struct sl_questions_config config = {
        .fabric = fabric, .arena = fixture->parts.arena, .remote_kvs = fixture->remote_kvs, .n_threads = 3};
    assert_int_equal(sl_questions_create(&config, &fixture->questions, NULL), SL_OK);
    assert_int_equal(sl_connection_open(fixture->parts.sender, sl_fabric_address(fabric), sl_fabric_epoch(fabric),
                                        &fixture->connection, NULL),
                     SL_OK);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_connection_close(&fixture->connection);
    sl_questions_stop(fixture->questions);
    sl_remote_kv_table_destroy(&fixture->remote_kvs);
    close_parts(&fixture->parts);
    sl_questions_destroy(&fixture->questions);
    free(fixture);
    return 0;
}

// Sends a request about a remote KV without a lease.
static enum sl_status ask(struct fixture *fixture) {
    struct sl_near_request request = {.magic = SL_NEAR_MAGIC,
                                      .version = SL_NEAR_VERSION,
                                      .remote_kv_id = 1,
                                      .kind = SL_NEAR_ABSMAX,
                                      .n_offloaded_heads = 1};
    _Alignas(64) uint8_t answer[SL_NEAR_REFUSAL_BYTES];
    struct sl_near_answer head;
    const uint8_t *body;
    size_t n_bytes;
    struct sl_fabric_request *it;
    struct sl_error err = {0};
    int64_t deadline_ns = sl_deadline_in_ms(WAIT_MS);
    assert_int_equal(sl_fabric_request_open(
                         fixture->connection,
                         &(struct sl_fabric_question){&request, sizeof request, answer, sizeof answer, deadline_ns},
                         &it, NULL),
                     SL_OK);
    if (sl_fabric_request_wait(it, deadline_ns, &n_bytes, &err) != SL_OK) {
        fail_msg("no answer: %s", err.text);
    }
    sl_fabric_request_close(&it);
    enum sl_status status = sl_near_check(&request, answer, n_bytes, &head, &body, &err);
    assert_int_not_equal(err.text[0], '\0');
    return status;
}

static void test_questions_that_come_while_the_store_stops_are_answered(void **state) {
    struct fixture *fixture = *state;
    assert_int_equal(ask(fixture), SL_ERR_NOT_FOUND);
    sl_questions_stop(fixture->questions);
    assert_int_equal(ask(fixture), SL_ERR_PEER_LOST); // so its asker goes to another store at once
    assert_int_equal(ask(fixture), SL_ERR_PEER_LOST);
    struct sl_questions_stats stats;
    sl_questions_get_stats(fixture->questions, &stats);
    assert_int_equal(stats.n_answered, 1);
    assert_int_equal(stats.n_threads, 0);
}

static void test_questions_have_a_progress_counter_for_each_thread(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        assert_non_null(sl_questions_progress_counter(fixture->questions, i));
    }
    assert_null(sl_questions_progress_counter(fixture->questions, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_questions_that_come_while_the_store_stops_are_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_questions_have_a_progress_counter_for_each_thread, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: the memory that requests may take, each by its length and all together, and that it is released.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>

#include "net/rpc/rpc_internal.h"
#include "tests/unit/rpc/echo_service.h"

#define MIB (INT64_C(1) << 20)

static void test_accounts(void **state) {
    (void)state;
    struct sl_rpc_budget budget;
    struct sl_rpc_account account, other;
    struct sl_error err = {0};
    atomic_init(&budget.left, 10 * MIB);
    sl_rpc_account_open(&account, &budget);
    sl_rpc_account_open(&other, &budget);
    sl_rpc_account_begin(&account, 1000);
    assert_int_equal(sl_rpc_account_complain(&account, "x", &err), SL_OK);
    assert_true(sl_rpc_account_take(&account, 1000));
    assert_false(sl_rpc_account_take(&account, 2 * MIB));
    assert_int_equal(sl_rpc_account_complain(&account, "x", &err), SL_ERR_INVALID);
    assert_false(sl_rpc_account_take(&account, SIZE_MAX));
    assert_int_equal(atomic_load(&budget.left), 10 * MIB - 1000); // what was refused was not taken

    sl_rpc_account_begin(&other, 8 * MIB);
    assert_true(sl_rpc_account_take(&other, 9 * MIB));
    assert_false(sl_rpc_account_take(&other, MIB));
    assert_int_equal(sl_rpc_account_complain(&other, "x", &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "retry in"));
    assert_false(sl_rpc_account_hold(&other, MIB));
    assert_true(sl_rpc_account_hold(&other, MIB / 2));
    sl_rpc_account_begin(&other, 1); // the message before is gone, what is held is not
    assert_int_equal(atomic_load(&budget.left), 10 * MIB - 1000 - MIB / 2);
    assert_int_equal(sl_rpc_account_complain(&other, "x", &err), SL_OK);
    sl_rpc_account_close(&other);
    sl_rpc_account_close(&account);
    assert_int_equal(atomic_load(&budget.left), 10 * MIB);
}

// ---- a server ----------------------------------------------------------------------------------------------------------

static const struct sl_rpc_method list = {"/test.List/List", SL_RPC_UNARY, &sluice__v1__list_reply__descriptor,
                                          &sluice__v1__job__descriptor};
static const struct sl_rpc_method parts = {"/test.List/Parts", SL_RPC_BIDI, &sluice__v1__list_reply__descriptor,
                                           &sluice__v1__job__descriptor};
static const struct sl_rpc_method *const methods[] = {&list, &parts};
static const struct sl_rpc_service service = {"test.List", methods, 2};
static atomic_int n_handled;
static atomic_bool go_on; // handlers wait for it

static enum sl_status count(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                            struct sl_error *err) {
    (void)context, (void)request, (void)err;
    atomic_fetch_add(&n_handled, 1);
    int64_t give_up_ns = sl_deadline_in_ms(20000);
    while (!atomic_load(&go_on) && sl_now_ns() < give_up_ns) {
        sl_sleep_ms(2);
    }
    Sluice__V1__Job reply = SLUICE__V1__JOB__INIT;
    return sl_rpc_call_send(call, &reply.base);
}

// Says how many jobs its parts had; holds 100 KiB for each part.
static enum sl_status add_up(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                             struct sl_error *err) {
    (void)context, (void)request;
    Sluice__V1__Job reply = SLUICE__V1__JOB__INIT;
    for (;;) {
        ProtobufCMessage *part;
        enum sl_status status = sl_rpc_call_receive(call, &sluice__v1__list_reply__descriptor, &part, err);
        if (status == SL_ERR_NOT_FOUND) {
            return sl_rpc_call_send(call, &reply.base);
        }
        if (status != SL_OK) {
            return status;
        }
        reply.n_prompt_tokens += (int64_t)((Sluice__V1__ListReply *)part)->n_jobs;
        protobuf_c_message_free_unpacked(part, NULL);
        status = sl_rpc_call_hold(call, 100 << 10, err);
        if (status != SL_OK) {
            return status;
        }
    }
}

static const struct sl_rpc_handler handlers[] = {{&list, count, SL_ROLE_ANY}, {&parts, add_up, SL_ROLE_ANY}};
static const struct sl_rpc_implementation implementation = {.service = &service, .handlers = handlers, .n_handlers = 2};
static struct sl_rpc_server *server;
static struct sl_rpc_channel *channel;

static int set_up(void **state) {
    (void)state;
    sl_rpc_init();
    const struct sl_rpc_server_config config = {
        .listen = "127.0.0.1:0", .services = &implementation, .n_services = 1, .request_bytes = 5 * MIB};
    return sl_rpc_server_start(&config, &server, NULL) == SL_OK &&
                   sl_rpc_channel_create(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channel, NULL) == SL_OK
               ? 0
               : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_rpc_channel_destroy(&channel);
    sl_rpc_server_stop(&server, 0);
    sl_rpc_shutdown();
    return 0;
}

// A reply with n empty jobs: two bytes each on the wire, hundreds in memory.
static Sluice__V1__ListReply *make_list(size_t n) {
    static Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
    Sluice__V1__ListReply *message = malloc(sizeof *message);
    sluice__v1__list_reply__init(message);
    message->n_jobs = n;
    message->jobs = malloc(n * sizeof(Sluice__V1__Job *));
    for (size_t i = 0; i < n; i++) {
        message->jobs[i] = &job;
    }
    return message;
}

static void free_list(Sluice__V1__ListReply *message) {
    free(message->jobs);
    free(message);
}

static enum sl_status ask(size_t n, struct sl_error *err) {
    Sluice__V1__ListReply *message = make_list(n);
    enum sl_status status = sl_rpc_unary(channel, &list, &message->base, sl_deadline_in_ms(30000), NULL, NULL, err);
    free_list(message);
    return status;
}

static atomic_int n_refused;

static void *ask_quietly(void *arg) {
    struct sl_error err;
    enum sl_status *status = arg;
    *status = ask(3500, &err); // some 0.7 MiB in memory
    if (*status == SL_ERR_EXHAUSTED && strstr(err.text, "retry in 1000 ms")) {
        atomic_fetch_add(&n_refused, 1);
    }
    return NULL;
}

static void test_a_request_is_bounded_by_its_length(void **state) {
    (void)state;
    struct sl_error err = {0};
    atomic_store(&go_on, true);
    atomic_store(&n_handled, 0);
    assert_int_equal(ask(1000, &err), SL_OK);
    assert_int_equal(ask(100000, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "/test.List/List: takes more memory"));
    assert_int_equal(atomic_load(&n_handled), 1);
    for (int i = 0; i < 200; i++) { // what was refused has come back
        assert_int_equal(ask(100000, &err), SL_ERR_INVALID);
    }
    assert_int_equal(ask(1000, &err), SL_OK);
}

static void test_all_requests_are_bounded_together(void **state) {
    (void)state;
    enum { N = 12 };
    pthread_t threads[N];
    enum sl_status statuses[N];
    struct sl_error err = {0};
    atomic_store(&go_on, false);
    atomic_store(&n_handled, 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(sl_thread_start("asker", ask_quietly, &statuses[i], &threads[i], &err), SL_OK);
    }
    int64_t give_up_ns = sl_deadline_in_ms(10000);
    while (atomic_load(&n_handled) + atomic_load(&n_refused) < N && sl_now_ns() < give_up_ns) {
        sl_sleep_ms(2);
    }
    const int n_in = atomic_load(&n_handled), n_out = atomic_load(&n_refused);
    atomic_store(&go_on, true);
    int n_ok = 0;
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        n_ok += statuses[i] == SL_OK;
    }
    assert_int_equal(n_in + n_out, N);
    assert_int_equal(n_ok, n_in);
    assert_true(n_in >= 3 && n_in <= 8); // of 5 MiB
    for (int i = 0; i < 20; i++) {       // and all of it comes back
        assert_int_equal(ask(3500, &err), SL_OK);
    }
}

struct feed {
    Sluice__V1__ListReply *message;
    int n_left;
};

static const ProtobufCMessage *next_part(void *arg) {
    struct feed *feed = arg;
    return feed->n_left-- > 0 ? &feed->message->base : NULL;
}

static void test_parts_are_bounded_one_by_one_and_by_what_is_held(void **state) {
    (void)state;
    struct sl_error err = {0};
    const struct {
        size_t n_jobs;
        int n_parts;
        enum sl_status status;
    } rows[] = {{3000, 30, SL_OK},
                {3000, 100, SL_ERR_EXHAUSTED},
                {100000, 1, SL_ERR_INVALID},
                {0, 0, SL_OK},
                {3000, 30, SL_OK}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct feed feed = {make_list(rows[i].n_jobs), rows[i].n_parts};
        ProtobufCMessage *reply = NULL;
        enum sl_status status =
            sl_rpc_upload(channel, &parts, next_part, &feed, sl_deadline_in_ms(30000), &reply, &err);
        assert_int_equal(status, rows[i].status);
        if (status == SL_OK) {
            assert_int_equal(((Sluice__V1__Job *)reply)->n_prompt_tokens, (int64_t)rows[i].n_jobs * rows[i].n_parts);
            protobuf_c_message_free_unpacked(reply, NULL);
        }
        free_list(feed.message);
    }
    assert_true(echo_no_calls(5000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accounts),
        cmocka_unit_test(test_a_request_is_bounded_by_its_length),
        cmocka_unit_test(test_all_requests_are_bounded_together),
        cmocka_unit_test(test_parts_are_bounded_one_by_one_and_by_what_is_held),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

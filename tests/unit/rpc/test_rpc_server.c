// SPDX-License-Identifier: Apache-2.0
// Purpose: which services a server starts with: each of their methods has one handler.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "tests/unit/rpc/echo_service.h"

static enum sl_status answer_nothing(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err) {
    (void)context;
    (void)call;
    (void)request;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "nothing to answer");
}

static enum sl_status start(const struct sl_rpc_implementation *services, size_t n_services, struct sl_error *err) {
    const struct sl_rpc_server_config config = {
        .listen = "127.0.0.1:0", .services = services, .n_services = n_services};
    struct sl_rpc_server *server = NULL;
    const enum sl_status status = sl_rpc_server_start(&config, &server, err);
    assert_int_equal(server != NULL, status == SL_OK);
    sl_rpc_server_stop(&server, 0);
    return status;
}

static void test_server_wants_a_handler_for_each_method(void **state) {
    (void)state;
    const struct sl_rpc_handler handlers[] = {
        {&echo_relay, answer_nothing, SL_ROLE_ANY}, {&echo_watch, answer_nothing, SL_ROLE_ANY},
        {&echo_chat, answer_nothing, SL_ROLE_ANY},  {&echo_get, answer_nothing, SL_ROLE_ANY},
        {&echo_get, answer_nothing, SL_ROLE_ANY},   {&echo_follow, answer_nothing, SL_ROLE_ANY}};
    struct sl_rpc_implementation service = {.service = &echo_service, .handlers = handlers, .n_handlers = 4};
    struct sl_error err = {0};
    assert_int_equal(start(&service, 1, &err), SL_ERR_INTERNAL);
    assert_string_equal(err.text, "/test.Echo/Follow has 0 handlers, not one");
    service.n_handlers = 5;
    assert_int_equal(start(&service, 1, &err), SL_ERR_INTERNAL);
    assert_string_equal(err.text, "/test.Echo/Get has 2 handlers, not one");
    service.n_handlers = 6;
    assert_int_equal(start(&service, 1, &err), SL_ERR_INTERNAL);
    assert_string_equal(err.text, "test.Echo has handlers of methods that are not its own");
}

static void test_server_serves_a_service_once(void **state) {
    (void)state;
    const struct sl_rpc_handler handlers[] = {{&echo_get, answer_nothing, SL_ROLE_ANY}};
    static const struct sl_rpc_method *const methods[] = {&echo_get};
    const struct sl_rpc_service only_get = {"test.Echo", methods, 1};
    const struct sl_rpc_implementation services[2] = {{.service = &only_get, .handlers = handlers, .n_handlers = 1},
                                                      {.service = &only_get, .handlers = handlers, .n_handlers = 1}};
    struct sl_error err = {0};
    assert_int_equal(start(services, 1, &err), SL_OK);
    assert_int_equal(start(services, 2, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "method /test.Echo/Get is there twice");
}

int main(void) {
    sl_rpc_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server_wants_a_handler_for_each_method),
        cmocka_unit_test(test_server_serves_a_service_once),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}

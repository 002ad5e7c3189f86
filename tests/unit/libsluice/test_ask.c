// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an answer as text alone; and clients that start what they need and stop it again.
 * The coordinator is a real gRPC server whose job answers "Hi", one byte after the other, and ends as the script says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/libsluice/sluice.h"
#include "proto/methods.h"
#include "net/rpc/rpc.h"

static struct {
    int32_t code; // the job's
    struct sl_rpc_server *server;
} coordinator;

static enum sl_status send(struct sl_rpc_call *call, Sluice__V1__Event *event, int64_t sequence) {
    event->sequence = sequence;
    event->job_id = (char *)"job-1";
    return sl_rpc_call_send(call, &event->base);
}

static enum sl_status handle_watch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    static const char *const texts[] = {"H", "", "i"};
    (void)service;
    (void)request;
    (void)err;
    for (int i = 0; i < 3; i++) {
        Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
        Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
        token.index = i;
        token.text = (char *)texts[i];
        event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
        event.token = &token;
        if (send(call, &event, i + 1) != SL_OK) {
            return SL_ERR_CANCELLED;
        }
    }
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.status_code = coordinator.code;
    finished.status_text = (char *)(coordinator.code ? "decode-0 is gone" : "");
    event.what_case = SLUICE__V1__EVENT__WHAT_FINISHED;
    event.finished = &finished;
    return send(call, &event, 4);
}

static enum sl_status handle_submit(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                    struct sl_error *err) {
    (void)service;
    if (strcmp(((const Sluice__V1__GenerateRequest *)request)->text, "nonsense") == 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: there is no nonsense");
    }
    Sluice__V1__SubmitReply reply = SLUICE__V1__SUBMIT_REPLY__INIT;
    reply.job_id = (char *)"job-1";
    return sl_rpc_call_send(call, &reply.base);
}

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_inference_watch, handle_watch, SL_ROLE_ANY},
    {&sl_method_inference_submit, handle_submit, SL_ROLE_ANY},
};
static const struct sl_rpc_method *const methods[] = {&sl_method_inference_watch, &sl_method_inference_submit};
static const struct sl_rpc_service inference = {"sluice.v1.Inference", methods, 2};
static const struct sl_rpc_implementation service = {
    .service = &inference, .handlers = handlers, .n_handlers = 2, .context = &coordinator};

static void append(void *text, const char *piece) {
    assert_true(piece[0] != '\0');
    assert_true(strlen(text) + strlen(piece) < 8);
    strcat(text, piece);
}

static enum sl_status ask(const char *prompt, char text[8], struct sl_error *err) {
    struct sl_client *client = NULL;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = (char *)prompt;
    text[0] = '\0';
    assert_int_equal(sl_client_connect(sl_rpc_server_address(coordinator.server), NULL, &client, NULL), SL_OK);
    enum sl_status status = sl_client_ask(client, &request, sl_deadline_in_ms(60000), append, text, err);
    sl_client_close(&client);
    return status;
}

static void test_ask_gives_the_text(void **state) {
    (void)state;
    char text[8];
    struct sl_error err = {0};
    coordinator.code = 0;
    assert_int_equal(ask("Say hi", text, &err), SL_OK);
    assert_string_equal(text, "Hi");
}

static void test_ask_fails_where_the_job_does(void **state) {
    (void)state;
    char text[8];
    struct sl_error err = {0};
    coordinator.code = 14; // UNAVAILABLE
    assert_int_equal(ask("Say hi", text, &err), SL_ERR_PEER_LOST);
    assert_string_equal(text, "Hi");
    assert_non_null(strstr(err.text, "decode-0 is gone"));
    assert_int_equal(ask("nonsense", text, &err), SL_ERR_INVALID);
    assert_string_equal(text, "");
    assert_non_null(strstr(err.text, "there is no nonsense"));
    assert_int_equal(ask("Say hi", text, NULL), SL_ERR_PEER_LOST); // a caller may pass no err
}

// Before the server, which starts the same for itself.
static void test_clients_start_what_they_need_and_stop_it(void **state) {
    (void)state;
    struct sl_client *first = NULL, *second = NULL;
    struct sl_error err = {0};
    for (int round = 0; round < 2; round++) {
        assert_false(sl_rpc_is_up());
        assert_int_equal(sl_client_connect("127.0.0.1:1", NULL, &first, &err), SL_OK);
        assert_int_equal(sl_client_connect("127.0.0.1:1", NULL, &second, &err), SL_OK);
        assert_int_equal(sl_client_connect("nonsense", NULL, &(struct sl_client *){NULL}, &err), SL_ERR_INVALID);
        sl_client_close(&first);
        assert_true(sl_rpc_is_up());
        assert_int_equal(sl_client_cancel(second, "job-1", sl_deadline_in_ms(50), NULL, &err) == SL_OK, false);
        sl_client_close(&second);
    }
    assert_false(sl_rpc_is_up());
    sl_client_init(); // for a caller that keeps it up between clients
    assert_int_equal(sl_client_connect("127.0.0.1:1", NULL, &first, &err), SL_OK);
    sl_client_close(&first);
    assert_true(sl_rpc_is_up());
    sl_client_shutdown();
    assert_false(sl_rpc_is_up());
}

static int start(void **state) {
    (void)state;
    struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = &service, .n_services = 1};
    sl_rpc_init();
    return sl_rpc_server_start(&config, &coordinator.server, NULL) == SL_OK ? 0 : -1;
}

static int stop(void **state) {
    (void)state;
    sl_rpc_server_stop(&coordinator.server, 0);
    assert_true(sl_rpc_is_up()); // gRPC is still up for its owner, although the client used it meanwhile
    sl_rpc_shutdown();
    return 0;
}

int main(void) {
    const struct CMUnitTest alone[] = {cmocka_unit_test(test_clients_start_what_they_need_and_stop_it)};
    const struct CMUnitTest served[] = {
        cmocka_unit_test(test_ask_gives_the_text),
        cmocka_unit_test(test_ask_fails_where_the_job_does),
    };
    return cmocka_run_group_tests(alone, NULL, NULL) + cmocka_run_group_tests(served, start, stop);
}

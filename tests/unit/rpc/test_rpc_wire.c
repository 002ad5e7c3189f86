// SPDX-License-Identifier: Apache-2.0
// Purpose: strings with a zero byte are refused by field, in requests of each kind and in replies; others pass unchanged.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc_wire.h"
#include "tests/unit/rpc/echo_service.h"

#define SPAN(text)                                                                                                     \
    (struct sl_rpc_span) {                                                                                             \
        (const uint8_t *)(text), sizeof(text) - 1                                                                      \
    }

static enum sl_status check(struct sl_rpc_span message, struct sl_error *err) {
    return sl_rpc_strings_check(&sluice__v1__generate_request__descriptor, message, err);
}

static void test_strings_with_a_zero_byte_are_refused_by_field(void **state) {
    (void)state;
    const struct {
        struct sl_rpc_span message;
        const char *field;
    } cases[] = {
        {SPAN("\x0a\x03"
              "a\0b"),
         "text: "},
        {SPAN("\x0a\x01\0"), "text: "},                     // nothing else in it
        {SPAN("\x08\x07\x62\x02k\0"), "idempotency_key: "}, // after a field that is not a string
        {SPAN("\x0a\x01"
              "a\x0a\x02"
              "b\0"),
         "text: "},                              // the second of two, which counts
        {SPAN("\x8a\x80\x00\x02z\0"), "text: "}, // a key and a length may be longer than they need be
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_error err = {0};
        assert_int_equal(check(cases[i].message, &err), SL_ERR_INVALID);
        assert_memory_equal(err.text, cases[i].field, strlen(cases[i].field));
        assert_non_null(strstr(err.text, "U+0000"));
    }
}

static void test_strings_in_nested_and_repeated_messages_are_refused_by_path(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage first = SLUICE__V1__CHAT_MESSAGE__INIT, second = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[] = {&first, &second};
    first.role = second.role = (char *)"user";
    first.content = (char *)"one";
    second.content = (char *)"two!three";
    chat.n_messages = 2;
    chat.messages = messages;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    uint8_t bytes[128];
    struct sl_rpc_span message = {bytes, sluice__v1__generate_request__pack(&request, bytes)};
    struct sl_error err = {0};
    assert_int_equal(check(message, &err), SL_OK);
    *(uint8_t *)memchr(bytes, '!', message.bytes) = '\0';
    assert_int_equal(check(message, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "chat.messages.content: "));
}

static void test_strings_check_lets_the_rest_pass(void **state) {
    (void)state;
    const struct sl_rpc_span cases[] = {
        SPAN(""),
        SPAN("\x0a\x00"),                 // an empty text
        SPAN("\x0a\x02\xc3\xa4"),         // U+00E4
        SPAN("\xfa\x7f\x02z\0"),          // of a field that we do not know
        SPAN("\x12\x03\x0a\x01\0"),       // a token, 0
        SPAN("\x0a\x05\0"),               // shorter than it says: unpacking refuses it
        SPAN("\x0a\xff\xff\xff\xff\xff"), // and this
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(check(cases[i], NULL), SL_OK);
    }
    const struct sl_rpc_span salt = SPAN("\x0a\x02s\0"); // bytes, not a string
    assert_int_equal(sl_rpc_strings_check(&sluice__v1__grant__descriptor, salt, NULL), SL_OK);
}

// No message of the contract contains itself, so the test makes a type that does.
static void test_strings_check_is_bounded_in_depth(void **state) {
    (void)state;
    static ProtobufCMessageDescriptor node;
    static ProtobufCFieldDescriptor inner = {
        .name = "inner", .id = 1, .type = PROTOBUF_C_TYPE_MESSAGE, .descriptor = &node};
    static const ProtobufCIntRange ranges[] = {{1, 0}, {0, 1}};
    node = (ProtobufCMessageDescriptor){
        .magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC, .n_fields = 1, .fields = &inner, .n_field_ranges = 1};
    node.field_ranges = ranges;
    uint8_t bytes[200];
    struct sl_error err = {0};
    for (size_t n = 2; n <= 120; n += 2) { // each is in the next: 0a, and a length below 128
        bytes[sizeof bytes - n] = 0x0a;
        bytes[sizeof bytes - n + 1] = (uint8_t)(n - 2);
        const struct sl_rpc_span message = {bytes + sizeof bytes - n, n};
        assert_int_equal(sl_rpc_strings_check(&node, message, &err), n / 2 <= 32 ? SL_OK : SL_ERR_INVALID);
    }
}

// ---- over gRPC: a message with bytes in place of the string, which a C string could not say ---------------------------

static const struct sl_rpc_method get_bytes = {"/test.Echo/Get", SL_RPC_UNARY, &sluice__v1__grant__descriptor,
                                               &sluice__v1__job__descriptor};
static const struct sl_rpc_method chat_bytes = {"/test.Echo/Chat", SL_RPC_BIDI, &sluice__v1__grant__descriptor,
                                                &sluice__v1__job__descriptor};
static const struct sl_rpc_method answer = {"/test.Bytes/Get", SL_RPC_UNARY, &sluice__v1__job_request__descriptor,
                                            &sluice__v1__grant__descriptor};
static const struct sl_rpc_method answer_as_text = {
    "/test.Bytes/Get", SL_RPC_UNARY, &sluice__v1__job_request__descriptor, &sluice__v1__submit_reply__descriptor};

static enum sl_status answer_zero(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                  struct sl_error *err) {
    (void)context, (void)request, (void)err;
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.ticket = (ProtobufCBinaryData){3, (uint8_t *)"a\0b"};
    return sl_rpc_call_send(call, &grant.base);
}

static struct sl_rpc_channel *channel_to(struct sl_rpc_server *server) {
    struct sl_rpc_channel *channel = NULL;
    assert_int_equal(sl_rpc_channel_create(sl_rpc_server_address(server), NULL, SL_ROLE_ANY, &channel, NULL), SL_OK);
    return channel;
}

static const ProtobufCMessage *next_once(void *arg) {
    Sluice__V1__Grant **grant = arg, *next = *grant;
    *grant = NULL;
    return next ? &next->base : NULL;
}

static void test_server_refuses_requests_by_field(void **state) {
    (void)state;
    struct echo echo;
    struct sl_rpc_server *server;
    struct sl_error err = {0};
    echo_init(&echo);
    assert_int_equal(echo_start(&echo, "127.0.0.1:0", 0, &server, &err), SL_OK);
    struct sl_rpc_channel *channel = channel_to(server);
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT, *part = &grant;
    grant.ticket = (ProtobufCBinaryData){9, (uint8_t *)"job-1\0two"};
    const int64_t deadline_ns = sl_deadline_in_ms(10000);
    assert_int_equal(sl_rpc_unary(channel, &get_bytes, &grant.base, deadline_ns, NULL, NULL, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "job_id: a zero byte (U+0000) is not allowed in a string");
    assert_int_equal(sl_rpc_upload(channel, &chat_bytes, next_once, &part, deadline_ns, NULL, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "job_id: a zero byte (U+0000) is not allowed in a string");
    grant.ticket.len = 5;
    assert_int_equal(sl_rpc_unary(channel, &get_bytes, &grant.base, deadline_ns, NULL, NULL, &err), SL_OK);
    sl_rpc_channel_destroy(&channel);
    echo_stop(&echo, &server, 1000);
}

static void test_client_refuses_replies_by_field(void **state) {
    (void)state;
    static const struct sl_rpc_method *const methods[] = {&answer};
    static const struct sl_rpc_service service = {"test.Bytes", methods, 1};
    static const struct sl_rpc_handler handlers[] = {{&answer, answer_zero, SL_ROLE_ANY}};
    const struct sl_rpc_implementation implementation = SL_RPC_IMPLEMENTATION(&service, handlers, NULL);
    const struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = &implementation, .n_services = 1};
    struct sl_rpc_server *server;
    struct sl_error err = {0};
    assert_int_equal(sl_rpc_server_start(&config, &server, &err), SL_OK);
    struct sl_rpc_channel *channel = channel_to(server);
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    const int64_t deadline_ns = sl_deadline_in_ms(10000);
    assert_int_equal(sl_rpc_unary(channel, &answer, &request.base, deadline_ns, NULL, NULL, &err), SL_OK);
    assert_int_equal(sl_rpc_unary(channel, &answer_as_text, &request.base, deadline_ns, NULL, NULL, &err),
                     SL_ERR_PEER_CORRUPT);
    assert_string_equal(err.text, "/test.Bytes/Get: job_id: a zero byte (U+0000) is not allowed in a string");
    struct sl_rpc_stream *stream;
    ProtobufCMessage *message;
    assert_int_equal(sl_rpc_stream_open(channel, &answer_as_text, &request.base, deadline_ns, NULL, &stream, &err),
                     SL_OK);
    assert_int_equal(sl_rpc_stream_next(stream, 10000, &message, &err), SL_ERR_PEER_CORRUPT);
    assert_non_null(strstr(err.text, "job_id: a zero byte"));
    sl_rpc_stream_close(&stream);
    sl_rpc_channel_destroy(&channel);
    sl_rpc_server_stop(&server, 1000);
}

int main(void) {
    sl_rpc_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings_with_a_zero_byte_are_refused_by_field),
        cmocka_unit_test(test_strings_in_nested_and_repeated_messages_are_refused_by_path),
        cmocka_unit_test(test_strings_check_lets_the_rest_pass),
        cmocka_unit_test(test_strings_check_is_bounded_in_depth),
        cmocka_unit_test(test_server_refuses_requests_by_field),
        cmocka_unit_test(test_client_refuses_replies_by_field),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}

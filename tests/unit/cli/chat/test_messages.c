// SPDX-License-Identifier: Apache-2.0
// Messages of a chat, and the documents that come before a question.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "client/cli/chat/messages.h"

static void add_document(struct sl_messages *messages, const char *text) {
    struct sl_error err = {0};
    assert_int_equal(sl_messages_add_document(messages, strdup(text), &err), SL_OK);
}

static void add_user(struct sl_messages *messages, const char *line) {
    struct sl_error err = {0};
    assert_int_equal(sl_messages_add_user(messages, line, &err), SL_OK);
}

static void add_answer(struct sl_messages *messages, const char *text) {
    struct sl_error err = {0};
    assert_int_equal(sl_messages_add(messages, "assistant", text, &err), SL_OK);
}

static const char *last(const struct sl_messages *messages) {
    return messages->items[messages->n - 1].content;
}

static void test_messages_begin_with_documents_once(void **state) {
    (void)state;
    struct sl_messages messages = {0};
    add_document(&messages, "one");
    add_document(&messages, "two");
    add_user(&messages, "What?");
    assert_string_equal(last(&messages), "one\ntwo\nWhat?");
    add_answer(&messages, "This.");
    add_user(&messages, "And?");
    assert_string_equal(last(&messages), "And?");
    sl_messages_cleanup(&messages);
}

static void test_messages_taken_back_leave_their_documents_to_the_next(void **state) {
    (void)state;
    struct sl_messages messages = {0};
    add_document(&messages, "one");
    for (int i = 0; i < 3; i++) { // as often as it fails
        add_user(&messages, "What?");
        assert_string_equal(last(&messages), "one\nWhat?");
        assert_true(sl_messages_take_back(&messages));
        assert_int_equal(messages.n, 0);
    }
    add_document(&messages, "two");
    add_user(&messages, "And?");
    assert_string_equal(last(&messages), "one\ntwo\nAnd?");
    add_answer(&messages, "This.");
    add_user(&messages, "Else?");
    assert_false(sl_messages_take_back(&messages)); // it had none
    add_user(&messages, "Else?");
    assert_string_equal(last(&messages), "Else?");
    assert_int_equal(messages.n, 3);
    sl_messages_cleanup(&messages);
}

static void test_messages_cleared_keep_the_system_message_alone(void **state) {
    (void)state;
    struct sl_messages messages = {0};
    struct sl_error err = {0};
    assert_int_equal(sl_messages_add(&messages, "system", "Be brief.", &err), SL_OK);
    add_document(&messages, "one");
    add_user(&messages, "What?");
    add_document(&messages, "two");
    sl_messages_clear(&messages);
    assert_int_equal(messages.n, 1);
    assert_string_equal(last(&messages), "Be brief.");
    add_user(&messages, "And?");
    assert_string_equal(last(&messages), "And?");
    sl_messages_cleanup(&messages);
}

static void test_messages_as_text_follow_on_each_other(void **state) {
    (void)state;
    struct sl_messages messages = {0};
    struct sl_error err = {0};
    Sluice__V1__GenerateRequest request;
    sluice__v1__generate_request__init(&request);
    add_user(&messages, "What?");
    add_answer(&messages, " This.");
    add_user(&messages, "And?");
    assert_int_equal(sl_messages_request(&messages, true, &request, &err), SL_OK);
    assert_string_equal(request.text, "What? This.\nAnd?");
    assert_int_equal(sl_messages_request(&messages, false, &request, &err), SL_OK);
    assert_int_equal(request.chat->n_messages, 3);
    assert_string_equal(request.chat->messages[1]->role, "assistant");
    sl_messages_cleanup(&messages);
}

static void test_an_answer_that_repeats_itself(void **state) {
    (void)state;
    char text[4096];
    for (size_t period = 1; period <= 300; period++) {
        for (size_t i = 0; i < sizeof text; i++) {
            text[i] = (char)('a' + (i % period) * 7 % 26 + (i % period == period - 1 ? 1 : 0));
        }
        text[0] = '!'; // how it began does not matter
        assert_int_equal(sl_repeats_itself(text, sizeof text), period <= 256);
        assert_false(sl_repeats_itself(text, 1023));
        text[sizeof text - 512] = '!';
        assert_false(sl_repeats_itself(text, sizeof text));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_begin_with_documents_once),
        cmocka_unit_test(test_messages_taken_back_leave_their_documents_to_the_next),
        cmocka_unit_test(test_messages_cleared_keep_the_system_message_alone),
        cmocka_unit_test(test_messages_as_text_follow_on_each_other),
        cmocka_unit_test(test_an_answer_that_repeats_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// A request with a document is the request of the whole prompt, or says why it cannot be.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "coordinator/documents/document_prompt.h"

#define MODEL 11

static struct sl_document *make(bool chat) {
    struct sl_document *document = NULL;
    assert_int_equal(sl_document_create("acme", "gpl", "what is said", &document, NULL), SL_OK);
    document->model_fingerprint = MODEL;
    document->chat = chat;
    strcpy(document->recipe, "full,format=int4");
    return document;
}

static void test_document_prompt_of_a_text(void **state) {
    (void)state;
    struct sl_document *document = make(false);
    struct sl_document_prompt prompt;
    struct sl_error err = {0};
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = (char *)"and why?";
    request.label = (char *)"mine";
    assert_int_equal(sl_document_prompt_init(&prompt, document, MODEL, &request, &err), SL_OK);
    assert_string_equal(prompt.request.text, "what is said\nand why?");
    assert_string_equal(prompt.request.recipe, "full,format=int4");
    assert_string_equal(prompt.request.label, "mine");
    assert_string_equal(request.text, "and why?"); // the client's is untouched
    sl_document_prompt_cleanup(&prompt);
    request.recipe = (char *)"full";
    assert_int_equal(sl_document_prompt_init(&prompt, document, MODEL, &request, &err), SL_OK);
    assert_string_equal(prompt.request.recipe, "full"); // the caller compares
    sl_document_prompt_cleanup(&prompt);
    sl_document_unref(&document);
}

static void test_document_prompt_of_a_chat(void **state) {
    (void)state;
    struct sl_document *document = make(true);
    struct sl_document_prompt prompt;
    struct sl_error err = {0};
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage messages[3], *list[3];
    const char *contents[] = {"and why?", "because", "really?"};
    for (int i = 0; i < 3; i++) {
        sluice__v1__chat_message__init(&messages[i]);
        messages[i].role = (char *)(i == 1 ? "assistant" : "user");
        messages[i].content = (char *)contents[i];
        list[i] = &messages[i];
    }
    chat.messages = list;
    chat.n_messages = 3;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    assert_int_equal(sl_document_prompt_init(&prompt, document, MODEL, &request, &err), SL_OK);
    assert_int_equal(prompt.request.chat->n_messages, 3);
    assert_string_equal(prompt.request.chat->messages[0]->content, "what is said\nand why?");
    assert_string_equal(prompt.request.chat->messages[0]->role, "user");
    assert_ptr_equal(prompt.request.chat->messages[1], &messages[1]);
    assert_ptr_equal(prompt.request.chat->messages[2], &messages[2]);
    assert_string_equal(messages[0].content, "and why?");
    assert_ptr_equal(list[0], &messages[0]);
    sl_document_prompt_cleanup(&prompt);
    messages[0].role = (char *)"system";
    assert_int_equal(sl_document_prompt_init(&prompt, document, MODEL, &request, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "first message must be a user's"));
    chat.n_messages = 0;
    assert_int_equal(sl_document_prompt_init(&prompt, document, MODEL, &request, &err), SL_ERR_INVALID);
    sl_document_unref(&document);
}

static void test_document_prompt_refuses_what_does_not_fit(void **state) {
    (void)state;
    struct sl_document *for_chats = make(true), *for_texts = make(false);
    struct sl_document_prompt prompt;
    struct sl_error err = {0};
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = (char *)"x";
    assert_int_equal(sl_document_prompt_init(&prompt, for_chats, MODEL, &request, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "was read for chats"));
    assert_int_equal(sl_document_prompt_init(&prompt, for_texts, MODEL + 1, &request, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "another model"));
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    assert_int_equal(sl_document_prompt_init(&prompt, for_texts, MODEL, &request, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "was read for texts"));
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    assert_int_equal(sl_document_prompt_init(&prompt, for_texts, MODEL, &request, &err), SL_ERR_INVALID);
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT__NOT_SET;
    assert_int_equal(sl_document_prompt_init(&prompt, for_texts, MODEL, &request, &err), SL_ERR_INVALID);
    sl_document_unref(&for_chats);
    sl_document_unref(&for_texts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_document_prompt_of_a_text),
        cmocka_unit_test(test_document_prompt_of_a_chat),
        cmocka_unit_test(test_document_prompt_refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

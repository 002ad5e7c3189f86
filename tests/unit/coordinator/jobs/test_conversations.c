// SPDX-License-Identifier: Apache-2.0
// Purpose: what is remembered of conversations, for how many of whom, and whose sessions are let go.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <string.h>

#include "coordinator/jobs/conversations.h"

static const int32_t tokens[] = {1, 2, 3};

static struct sl_job_turn begin(struct sl_conversations *c, const char *tenant, char *id, const char *lease) {
    Sluice__V1__Conversation conversation = SLUICE__V1__CONVERSATION__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    conversation.id = id;
    conversation.keep_ms = 1000;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = "lantern";
    request.conversation = &conversation;
    struct sl_request_rules rules = {0};
    struct sl_job_turn turn;
    int32_t *prompt;
    int64_t n_prompt;
    struct sl_error err;
    assert_int_equal(sl_conversations_begin_turn(c, &rules, tenant, &request, &turn, &prompt, &n_prompt, &err), SL_OK);
    assert_null(prompt);
    strcpy(turn.lease_id, lease);
    return turn;
}

static struct sl_sessions_left end(struct sl_conversations *c, const char *tenant, const struct sl_job_turn *turn) {
    struct sl_job_spec spec = {0};
    struct sl_sessions_left left = {0};
    strcpy(spec.tenant, tenant);
    sl_conversations_end_turn(c, &spec, turn, tokens, 3, "answer", &left);
    return left;
}

static void test_conversations_replace_their_session(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    // Two turns at the same time, and another tenant's under the same id.
    struct sl_job_turn a = begin(c, "acme", "one", "kept-a"), b = begin(c, "acme", "one", "kept-b"), got;
    struct sl_job_turn other = begin(c, "umbrella", "one", "kept-c");
    assert_int_equal(end(c, "acme", &a).n, 0);
    assert_int_equal(end(c, "umbrella", &other).n, 0);
    struct sl_sessions_left left = end(c, "acme", &b);
    assert_int_equal(left.n, 1);
    assert_string_equal(left.of[0].lease_id, "kept-a");
    assert_int_equal(end(c, "acme", &b).n, 0); // the same session is not left
    assert_int_equal(sl_conversations_count(c), 2);
    assert_true(sl_conversations_forget(c, "acme", "one", &got));
    assert_string_equal(got.lease_id, "kept-b");
    assert_false(sl_conversations_forget(c, "acme", "one", &got));
    assert_true(sl_conversations_forget(c, "umbrella", "one", &got));
    sl_conversations_destroy(&c);
}

static void test_conversations_ended_in_the_middle_of_a_turn(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    struct sl_job_turn got, turn = begin(c, "acme", "one", "kept-a"), other = begin(c, "umbrella", "one", "kept-b");
    assert_false(sl_conversations_forget(c, "acme", "one", &got));
    struct sl_sessions_left left = end(c, "acme", &turn);
    assert_int_equal(left.n, 1);
    assert_string_equal(left.of[0].lease_id, "kept-a");
    assert_int_equal(sl_conversations_count(c), 0);
    assert_int_equal(end(c, "umbrella", &other).n, 0);
    turn = begin(c, "acme", "one", "kept-c"); // a new one under the id of one that was ended
    assert_int_equal(end(c, "acme", &turn).n, 0);
    assert_int_equal(sl_conversations_count(c), 2);
    sl_conversations_destroy(&c);
}

static void test_conversations_of_one_tenant_do_not_push_out_others(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    struct sl_job_turn got, turn = begin(c, "acme", "one", "kept-a");
    assert_int_equal(end(c, "acme", &turn).n, 0);
    int n_left = 0;
    for (int i = 0; i < 1100; i++) {
        char id[32], lease[32];
        snprintf(id, sizeof id, "flood-%d", i);
        snprintf(lease, sizeof lease, "kept-%d", i);
        turn = begin(c, "umbrella", id, lease);
        n_left += end(c, "umbrella", &turn).n;
    }
    assert_int_equal(sl_conversations_count(c) + n_left, 1101);
    assert_true(n_left > 0);
    assert_false(sl_conversations_forget(c, "umbrella", "flood-0", &got));
    assert_true(sl_conversations_forget(c, "umbrella", "flood-1099", &got));
    assert_true(sl_conversations_forget(c, "acme", "one", &got));
    sl_conversations_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations_replace_their_session),
        cmocka_unit_test(test_conversations_ended_in_the_middle_of_a_turn),
        cmocka_unit_test(test_conversations_of_one_tenant_do_not_push_out_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

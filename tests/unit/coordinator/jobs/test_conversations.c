// SPDX-License-Identifier: Apache-2.0
// Purpose: which conversations are remembered, how many per tenant, and which sessions are released.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/jobs/conversations.h"
#include "engine/job/job_recipe.h"
#include "tests/unit/scarce.h"

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
    struct sl_turn_prompt prompt;
    struct sl_error err;
    assert_int_equal(sl_conversations_begin_turn(c, &rules, tenant, &request, &turn, &prompt, &err), SL_OK);
    assert_null(prompt.tokens);
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
    struct sl_job_turn a = begin(c, "acme", "one", "kept-a"), b = begin(c, "acme", "one", "kept-b");
    struct sl_job_turn other = begin(c, "umbrella", "one", "kept-c");
    assert_int_equal(end(c, "acme", &a).n, 0);
    assert_int_equal(end(c, "umbrella", &other).n, 0);
    struct sl_sessions_left left = end(c, "acme", &b);
    assert_int_equal(left.n, 1);
    assert_string_equal(left.of[0].lease_id, "kept-a");
    assert_int_equal(end(c, "acme", &b).n, 0); // the same session is not left
    struct sl_sessions_left got = {0};
    assert_true(sl_conversations_forget(c, "acme", "one", &got));
    assert_int_equal(got.n, 1);
    assert_string_equal(got.of[0].lease_id, "kept-b");
    assert_false(sl_conversations_forget(c, "acme", "one", &got));
    assert_true(sl_conversations_forget(c, "umbrella", "one", &got));
    sl_conversations_destroy(&c);
}

static void test_conversations_ended_in_the_middle_of_a_turn(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    struct sl_sessions_left got = {0};
    struct sl_job_turn turn = begin(c, "acme", "one", "kept-a"), other = begin(c, "umbrella", "one", "kept-b");
    assert_false(sl_conversations_forget(c, "acme", "one", &got));
    struct sl_sessions_left left = end(c, "acme", &turn);
    assert_int_equal(left.n, 1);
    assert_string_equal(left.of[0].lease_id, "kept-a");
    assert_false(sl_conversations_forget(c, "acme", "one", &got));
    assert_int_equal(end(c, "umbrella", &other).n, 0);
    turn = begin(c, "acme", "one", "kept-c"); // a new one under the id of one that was ended
    assert_int_equal(end(c, "acme", &turn).n, 0);
    assert_true(sl_conversations_forget(c, "acme", "one", &got));
    assert_true(sl_conversations_forget(c, "umbrella", "one", &got));
    sl_conversations_destroy(&c);
}

static void test_conversations_of_one_tenant_do_not_push_out_others(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    struct sl_sessions_left got = {0};
    struct sl_job_turn turn = begin(c, "acme", "one", "kept-a");
    assert_int_equal(end(c, "acme", &turn).n, 0);
    int n_left = 0;
    for (int i = 0; i < 1100; i++) {
        char id[32], lease[32];
        snprintf(id, sizeof id, "flood-%d", i);
        snprintf(lease, sizeof lease, "kept-%d", i);
        turn = begin(c, "umbrella", id, lease);
        n_left += end(c, "umbrella", &turn).n;
    }
    assert_false(sl_conversations_forget(c, "umbrella", "flood-0", &got));
    assert_true(sl_conversations_forget(c, "umbrella", "flood-1099", &got));
    assert_true(sl_conversations_forget(c, "acme", "one", &got));
    int n_there = 2;
    for (int i = 0; i < 1099; i++) {
        char id[32];
        struct sl_sessions_left of_one = {0};
        snprintf(id, sizeof id, "flood-%d", i);
        n_there += sl_conversations_forget(c, "umbrella", id, &of_one);
    }
    assert_true(n_left > 0);
    assert_int_equal(n_there + n_left, 1101);
    sl_conversations_destroy(&c);
}

// ---- copies in stores -----------------------------------------------------------------------------------------------

static struct sl_tokenizer *tokenizer;
static struct sl_model_config model;
static struct sl_request_rules rules;

static int load(void **state) {
    (void)state;
    assert_int_equal(sl_tokenizer_load("models/demo", &tokenizer, NULL), SL_OK);
    assert_int_equal(sl_model_config_load("models/demo", &model, NULL), SL_OK);
    rules = (struct sl_request_rules){.tokenizer = tokenizer, .model = &model};
    return 0;
}

static int unload(void **state) {
    (void)state;
    sl_tokenizer_destroy(&tokenizer);
    return 0;
}

// One turn as a job's runner and its coordinator make it, in a conversation of texts.
struct job {
    struct sl_job_spec spec;
    struct sl_job_turn turn; // as it ends
    bool goes_on;
};

static enum sl_status begin_job(struct sl_conversations *c, char *text, struct job *job, struct sl_error *err) {
    Sluice__V1__Conversation conversation = SLUICE__V1__CONVERSATION__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    conversation.id = "one";
    conversation.keep_ms = 1000;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = text;
    request.conversation = &conversation;
    *job = (struct job){.spec = {.tenant = "acme", .recipe = "full", .max_new_tokens = 4}};
    struct sl_job_spec *spec = &job->spec;
    assert_int_equal(sl_job_recipe(spec->recipe, rules.model, &spec->parsed_recipe, err), SL_OK);
    struct sl_turn_prompt prompt;
    enum sl_status status = sl_conversations_begin_turn(c, &rules, "acme", &request, &spec->turn, &prompt, err);
    spec->tokens = prompt.tokens;
    spec->n_tokens = prompt.n_tokens;
    job->goes_on = spec->tokens != NULL;
    if (status == SL_OK && !job->goes_on) {
        size_t n;
        status = sl_tokenizer_encode(tokenizer, text, strlen(text), false, &spec->tokens, &n, err);
        spec->n_tokens = (int64_t)n;
    }
    status = status == SL_OK ? sl_conversations_plan_turn(&rules, spec, err) : status;
    if (status != SL_OK) {
        free(spec->tokens);
        spec->tokens = NULL;
    }
    return status;
}

static void begin_turn(struct sl_conversations *c, char *text, struct job *job) {
    struct sl_error err = {0};
    if (begin_job(c, text, job, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

// Its session gets this number: as its lease, its history, and its copy's. stored: there is a copy.
static struct sl_sessions_left end_turn(struct sl_conversations *c, struct job *job, char *answer, int number,
                                        bool stored) {
    struct sl_sessions_left left = {0};
    int64_t n = job->spec.n_tokens;
    int32_t *all = malloc(sizeof *all * (size_t)(n + 1));
    memcpy(all, job->spec.tokens, sizeof *all * (size_t)n);
    all[n] = 9;
    job->turn = job->spec.turn;
    job->turn.n_kept = n;
    job->turn.kept_bytes = 4096;
    job->turn.history = (struct sl_hash128){{(uint8_t)number}};
    snprintf(job->turn.lease_id, sizeof job->turn.lease_id, "kept-%d", number);
    job->turn.copy = (struct sl_session_copy){.history = job->turn.history, .n_tokens = n, .bytes = 4096};
    strcpy(job->turn.copy.store, stored ? "store:1" : "");
    sl_conversations_end_turn(c, &job->spec, &job->turn, all, n + 1, answer, &left);
    free(all);
    free(job->spec.tokens);
    return left;
}

// The numbers of the copies and sessions that are left, copies as 100 + number; sorted.
static void assert_left(const struct sl_sessions_left *left, int n, const int *numbers) {
    assert_int_equal(left->n, n);
    for (int i = 0; i < n; i++) {
        bool found = false;
        for (int j = 0; j < n && !found; j++) {
            const struct sl_left *one = &left->of[j];
            char name[16];
            snprintf(name, sizeof name, "kept-%d", numbers[i]);
            found =
                one->copy.store[0] ? 100 + one->copy.history.bytes[0] == numbers[i] : strcmp(one->lease_id, name) == 0;
        }
        if (!found) {
            fail_msg("%d is not left", numbers[i]);
        }
    }
}

static void test_conversations_keep_the_last_two_copies(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    struct sl_sessions_left left;
    struct job job;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    begin_turn(c, "Once", &job);
    assert_false(job.goes_on);
    left = end_turn(c, &job, " upon", 1, true);
    assert_left(&left, 0, NULL);
    begin_turn(c, "Once upon a", &job);
    assert_true(job.goes_on);
    assert_string_equal(job.spec.turn.lease_id, "kept-1");
    assert_string_equal(job.spec.turn.copy.store, "store:1");
    assert_string_equal(job.spec.turn.earlier.store, "");
    left = end_turn(c, &job, " time", 2, true);
    assert_left(&left, 1, (int[]){1});
    begin_turn(c, "Once upon a time there", &job);
    assert_int_equal(job.spec.turn.earlier.history.bytes[0], 1);
    left = end_turn(c, &job, " was", 3, true);
    assert_left(&left, 2, (int[]){2, 101});

    // A client that repeats the last request continues from the end of the turn before; a copy of another answer replaces the old one.
    begin_turn(c, "Once upon a time there", &job);
    assert_true(job.goes_on);
    assert_string_equal(job.spec.turn.lease_id, "");
    assert_int_equal(job.spec.turn.copy.history.bytes[0], 2);
    assert_true(job.spec.turn.n_kept > 0 && job.spec.turn.n_kept < job.spec.n_tokens);
    left = end_turn(c, &job, " is", 4, true);
    assert_left(&left, 2, (int[]){3, 103});
    begin_turn(c, "Once upon a time there is a", &job); // and the conversation goes on
    assert_int_equal(job.spec.turn.copy.history.bytes[0], 4);
    left = end_turn(c, &job, " lantern", 5, true);
    assert_left(&left, 2, (int[]){4, 102});
    begin_turn(c, "Once upon a time there is a", &job); // repeated, with the same answer: the same copy stays
    assert_int_equal(job.spec.turn.copy.history.bytes[0], 4);
    left = end_turn(c, &job, " lantern", 5, true);
    assert_left(&left, 0, NULL);

    // A different text continues no earlier turn: no session is of use.
    begin_turn(c, "Something else", &job);
    assert_false(job.goes_on);
    left = end_turn(c, &job, "!", 6, true);
    assert_left(&left, 3, (int[]){5, 104, 105});
    left = (struct sl_sessions_left){0};
    assert_true(sl_conversations_forget(c, "acme", "one", &left));
    assert_left(&left, 2, (int[]){6, 106});
    sl_conversations_destroy(&c);
}

static void test_conversations_go_back_over_turns_without_a_copy(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    struct sl_sessions_left left = {0};
    struct job job;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    begin_turn(c, "Once", &job);
    (void)end_turn(c, &job, " upon", 1, true);
    begin_turn(c, "Once upon a", &job);
    (void)end_turn(c, &job, " time", 2, false);
    begin_turn(c, "Once upon a time there", &job);
    assert_string_equal(job.spec.turn.lease_id, "kept-2");
    assert_string_equal(job.spec.turn.copy.store, "");
    assert_int_equal(job.spec.turn.earlier.history.bytes[0], 1);
    left = end_turn(c, &job, " was", 3, false);
    assert_left(&left, 1, (int[]){2}); // the only copy stays

    // A copy that comes after the end belongs to the last turn, or to none.
    struct sl_session_copy late = {.store = "store:2", .history = {{3}}},
                           later = {.store = "store:2", .history = {{2}}};
    assert_false(sl_conversations_copied(c, "acme", "one", &later));
    assert_false(sl_conversations_copied(c, "umbrella", "one", &late));
    assert_true(sl_conversations_copied(c, "acme", "one", &late));
    begin_turn(c, "Once upon a time there was a", &job);
    assert_string_equal(job.spec.turn.copy.store, "store:2");
    left = end_turn(c, &job, " lantern", 4, true);
    assert_left(&left, 2, (int[]){3, 101});

    // Under another recipe no copy is of use, and none stays.
    struct sl_error err;
    begin_turn(c, "Once upon a time there was a lantern in", &job);
    strcpy(job.spec.recipe, "full,format=int8");
    assert_int_equal(sl_conversations_plan_turn(&rules, &job.spec, &err), SL_OK);
    assert_int_equal(job.spec.turn.n_kept, 0);
    assert_string_equal(job.spec.turn.copy.store, "");
    assert_string_equal(job.spec.turn.earlier.store, "");
    left = end_turn(c, &job, " a", 5, true);
    assert_left(&left, 3, (int[]){4, 103, 104});
    assert_false(sl_conversations_copied(c, "acme", "one", &late));
    sl_conversations_destroy(&c);
}

// ---- without memory -------------------------------------------------------------------------------------------------

static enum sl_status create(void *arg, struct sl_error *err) {
    return sl_conversations_create(arg, err);
}

// A turn that finds no memory is refused, or read as any other's; nothing that was known is lost.
static void test_conversations_begin_without_memory(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    struct job job;
    assert_true(assert_refused_without_memory(create, &c) >= 2);
    begin_turn(c, "Once", &job);
    (void)end_turn(c, &job, " upon", 1, true);
    int n_whole = 0, n_refused = 0;
    for (int n = 0;; n++) {
        struct sl_error err = {0};
        scarce_begin(n);
        enum sl_status status = begin_job(c, "Once upon a time", &job, &err);
        bool failed = scarce_end();
        n_whole += status == SL_OK && !job.goes_on;
        n_refused += status == SL_ERR_EXHAUSTED;
        assert_true(status == SL_OK || status == SL_ERR_EXHAUSTED);
        free(job.spec.tokens);
        if (!failed) {
            assert_true(status == SL_OK && job.goes_on);
            break;
        }
    }
    assert_true(n_whole > 0 && n_refused > 1);
    sl_conversations_destroy(&c);
}

// An answer that finds none ends the conversation: its sessions and copies are left, of this turn and of those before.
static void test_conversations_end_without_memory(void **state) {
    (void)state;
    struct sl_conversations *c = NULL;
    struct job job;
    assert_int_equal(sl_conversations_create(&c, NULL), SL_OK);
    begin_turn(c, "Once", &job);
    (void)end_turn(c, &job, " upon", 1, true);
    begin_turn(c, "Once upon a", &job);
    scarce_begin(1); // the first one is this file's
    struct sl_sessions_left left = end_turn(c, &job, " time", 2, true);
    assert_true(scarce_end());
    assert_left(&left, 4, (int[]){1, 2, 101, 102});
    begin_turn(c, "Once upon a time there", &job);
    assert_false(job.goes_on);
    free(job.spec.tokens);
    sl_conversations_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations_replace_their_session),
        cmocka_unit_test(test_conversations_ended_in_the_middle_of_a_turn),
        cmocka_unit_test(test_conversations_of_one_tenant_do_not_push_out_others),
        cmocka_unit_test(test_conversations_keep_the_last_two_copies),
        cmocka_unit_test(test_conversations_go_back_over_turns_without_a_copy),
        cmocka_unit_test(test_conversations_begin_without_memory),
        cmocka_unit_test(test_conversations_end_without_memory),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

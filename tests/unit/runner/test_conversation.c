// SPDX-License-Identifier: Apache-2.0
/*
 * Turns on one compressed session, with the demo model: what a turn reads, what it holds, and that under `full` it
 * writes what one job with everything in its prompt writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/job/job_recipe.h"
#include "engine/runner/local.h"

#define N_DOCUMENT 400
#define N_QUESTION 30
#define N_ANSWER   12
#define N_TURNS    3

static int setup(void **state) {
    struct sl_local_config config = {.model_dir = "models/demo", .threads = 2, .arena_bytes = (size_t)64 << 20};
    struct sl_local *local;
    struct sl_error err = {0};
    if (sl_local_open(&config, &local, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    *state = local;
    return 0;
}

static int teardown(void **state) {
    struct sl_local *local = *state;
    sl_local_close(&local);
    return 0;
}

// Ids that repeat themselves now and then, so that attention has something to find.
static void fill(int32_t *ids, int64_t n, int32_t seed) {
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)((i * 37 + i / 50 * 11 + seed * 101) % 1900) + 50;
    }
}

struct answer {
    int32_t ids[N_ANSWER];
    int64_t n;
};

static enum sl_status keep(void *arg, const struct sl_output_token *written) {
    struct answer *answer = arg;
    assert_true(answer->n < N_ANSWER);
    answer->ids[answer->n++] = written->token.id;
    return SL_OK;
}

static struct sl_local_request request_of(const int32_t *prompt, int64_t n, struct answer *answer) {
    *answer = (struct answer){0};
    return (struct sl_local_request){.prompt = prompt,
                                     .n_prompt = n,
                                     .sampling = {.top_p = 1, .repetition_penalty = 1.1f},
                                     .max_new_tokens = N_ANSWER,
                                     .ignore_eos = true,
                                     .token_fn = keep,
                                     .arg = answer};
}

static struct sl_conversation *open_conversation(struct sl_local *local, const char *recipe) {
    struct sl_conversation *conversation;
    struct sl_error err = {0};
    if (sl_conversation_open(local, recipe, 0, &conversation, &err) != SL_OK) {
        fail_msg("%s: %s", recipe, err.text);
    }
    return conversation;
}

static struct sl_local_result turn(struct sl_conversation *conversation, const char *recipe, const int32_t *prompt,
                                   int64_t n, struct answer *answer) {
    struct sl_local_request request = request_of(prompt, n, answer);
    struct sl_local_result result = {0};
    struct sl_error err = {0};
    if (sl_conversation_turn(conversation, &request, &result, &err) != SL_OK) {
        fail_msg("%s: %s", recipe, err.text);
    }
    free(result.text);
    result.text = NULL;
    return result;
}

// ---- the same answer ------------------------------------------------------------------------------------------------

static void check_turns_equal_one_job(struct sl_local *local, const char *recipe, int64_t n_first) {
    int32_t all[N_DOCUMENT + N_TURNS * (N_QUESTION + N_ANSWER)];
    fill(all, n_first, 1);
    int64_t n = n_first, n_new = n_first;
    struct sl_conversation *conversation = open_conversation(local, recipe);
    for (int t = 0; t < N_TURNS; t++) {
        struct answer answer, expected;
        struct sl_local_result result = turn(conversation, recipe, all + n - n_new, n_new, &answer);
        assert_int_equal(result.n_tokens, n);
        assert_int_equal(result.n_read, t == 0 ? n : n_new + 1); // and the last token of the answer before

        struct sl_local_request request = request_of(all, n, &expected);
        request.recipe = recipe;
        struct sl_error err = {0};
        assert_int_equal(sl_local_generate(local, &request, &result, &err), SL_OK);
        free(result.text);
        assert_int_equal(answer.n, N_ANSWER);
        assert_memory_equal(answer.ids, expected.ids, sizeof answer.ids);

        memcpy(all + n, answer.ids, sizeof answer.ids);
        n_new = t == 1 ? 1 : N_QUESTION; // a turn of a single token, too
        fill(all + n + N_ANSWER, n_new, t + 2);
        n += N_ANSWER + n_new;
    }
    sl_conversation_close(&conversation);
}

static void test_conversation_writes_what_one_job_with_everything_writes(void **state) {
    check_turns_equal_one_job(*state, "full,chunk=64", N_DOCUMENT);
    check_turns_equal_one_job(*state, "full", N_DOCUMENT);
    check_turns_equal_one_job(*state, "full", 1); // nothing is prefilled before the first answer
}

// ---- the budget -----------------------------------------------------------------------------------------------------

static void assert_within(const struct sl_session *session, const struct sl_plan *plan, int64_t more,
                          const char *recipe) {
    int64_t held = 0, allowed = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        bool exempt = sl_layers_has(&plan->recipe.exempt, l);
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            int64_t n = session->layers[l].heads[h].n_slots;
            held += exempt ? 0 : n;
            allowed += exempt ? 0 : plan->budget_slots + plan->tail_slots + more;
        }
    }
    if (held > allowed) { // over all heads: layers and heads may trade
        fail_msg("%s: %lld slots are held, %lld allowed", recipe, (long long)held, (long long)allowed);
    }
}

static void check_budget_over_turns(struct sl_local *local, const char *text) {
    const struct sl_model_config *model = sl_local_model(local);
    struct sl_kv_geometry geometry = sl_model_geometry(model);
    struct sl_recipe recipe;
    struct sl_plan *plan = malloc(sizeof *plan);
    struct sl_error err = {0};
    assert_int_equal(sl_job_recipe(text, model, &recipe, &err), SL_OK);
    int32_t ids[N_DOCUMENT];
    struct answer answer;
    struct sl_conversation *conversation = open_conversation(local, text);
    int64_t n_tokens = 0, n_evicted = 0;
    for (int t = 0; t < N_TURNS; t++) {
        int64_t n_new = t == 0 ? N_DOCUMENT : t == 1 ? 150 : N_QUESTION;
        fill(ids, n_new, t + 1);
        struct sl_local_result result = turn(conversation, text, ids, n_new, &answer);
        n_tokens += n_new;
        assert_int_equal(result.n_tokens, n_tokens);
        assert_int_equal(result.n_read, t == 0 ? n_new : n_new + 1);
        n_tokens += N_ANSWER;
        n_evicted += result.slots_evicted;
        // Everything but the answer's last token has been read, whatever is held of it.
        const struct sl_session *session = sl_conversation_session(conversation);
        assert_int_equal(session->n_tokens, n_tokens - 1);
        assert_int_equal(sl_plan_make_local(&recipe, &geometry, n_tokens - N_ANSWER - 1, 0, plan, &err), SL_OK);
        bool steps = (recipe.when & SL_WHEN_STEP) != 0;
        bool repeats = sl_recipe_repeats(&recipe); // the first turn's prompt; all that comes later is kept
        assert_within(session, plan, repeats ? n_tokens - N_DOCUMENT : steps ? 0 : N_ANSWER, text);
        assert_int_equal(result.slots.n_layers, geometry.n_layers);
        for (int l = 0; l < geometry.n_layers; l++) {
            assert_true(result.slots.min[l] >= 1 && result.slots.min[l] <= result.slots.max[l]);
            assert_true((float)result.slots.min[l] <= result.slots.mean[l]);
        }
    }
    assert_true(n_evicted > 0);
    sl_conversation_close(&conversation);
    free(plan);
}

static void test_conversation_stays_within_the_budget_of_every_preset(void **state) {
    struct sl_local *local = *state;
    int n_checked = 0;
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name; preset++) {
        char text[SL_RECIPE_TEXT_BYTES];
        struct sl_recipe recipe;
        snprintf(text, sizeof text, "%s,budget=128,chunk=64", preset->name);
        if (sl_recipe_parse(preset->name, &recipe, NULL) != SL_OK || !sl_recipe_evicts(&recipe) ||
            sl_score_get_traits(recipe.score)->wants_importance) {
            continue;
        }
        check_budget_over_turns(local, text);
        n_checked++;
    }
    assert_true(n_checked >= 10);
    check_budget_over_turns(local, "h2o,budget=128,chunk=64,when=chunk+step");
    check_budget_over_turns(local, "h2o,budget=0.3,chunk=64");
    check_budget_over_turns(local, "h2o,budget=128,chunk=64,exempt=0,format=f16/0-0:int4"); // only what stays is packed
    check_budget_over_turns(local, "streamingllm,budget=100,chunk=128,when=end+step");
    check_budget_over_turns(local, "snapkv,budget=128,chunk=64,when=chunk+end");
}

static void test_conversation_appends_behind_quantized_pages(void **state) {
    struct sl_local *local = *state;
    static const char *const recipes[] = {"full,format=int4", "h2o,budget=128,chunk=64,format=int8", "tailorkv"};
    for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++) {
        int32_t ids[N_DOCUMENT];
        struct answer answer;
        struct sl_conversation *conversation = open_conversation(local, recipes[r]);
        uint32_t n_packed = 0;
        for (int t = 0; t < N_TURNS; t++) {
            int64_t n_new = t == 0 ? N_DOCUMENT : 100;
            fill(ids, n_new, t + 1);
            turn(conversation, recipes[r], ids, n_new, &answer);
            const struct sl_head *head = &sl_conversation_session(conversation)->layers[0].heads[0];
            assert_true(head->n_packed >= (t == 0 ? 1 : n_packed)); // never taken back
            assert_true(head->n_slots > head->n_packed * SL_PAGE_SLOTS);
            n_packed = head->n_packed;
        }
        sl_conversation_close(&conversation);
    }
}

// The first prompt is thinned before it would be shipped; what comes later is decode's, and stays.
static void test_conversation_thins_what_prefill_reads(void **state) {
    struct sl_local *local = *state;
    const char *recipe = "tailorkv,score=random,budget=0.4,when=chunk,scope=sinks:4+recent:32,topk=16";
    struct sl_recipe resolved; // which layers are dense is the model's profile's to say
    assert_int_equal(sl_job_recipe(recipe, sl_local_model(local), &resolved, NULL), SL_OK);
    struct sl_conversation *conversation = open_conversation(local, recipe);
    for (int t = 0; t < N_TURNS; t++) {
        int32_t ids[N_DOCUMENT];
        struct answer answer;
        int64_t n_new = t == 0 ? N_DOCUMENT : 100, n_read = N_DOCUMENT - 1, n_kept = (n_read * 4 + 9) / 10;
        fill(ids, n_new, t + 1);
        struct sl_local_result result = turn(conversation, recipe, ids, n_new, &answer);
        const struct sl_session *session = sl_conversation_session(conversation);
        int n_thinned = 0;
        for (int l = 0; l < session->geometry.n_layers; l++) {
            bool thinned = sl_layers_has(&resolved.offload, l);
            assert_int_equal(session->layers[l].heads[1].n_slots, session->n_tokens - (thinned ? n_read - n_kept : 0));
            n_thinned += thinned;
        }
        assert_true(n_thinned > 0 && !sl_layers_has(&resolved.offload, 0));
        assert_int_equal(result.slots_evicted, t > 0 ? 0 : (n_read - n_kept) * n_thinned * 2);
    }
    sl_conversation_close(&conversation);
}

// ---- error estimates ------------------------------------------------------------------------------------------------

static void test_conversation_estimates_errors_only_where_asked_and_writes_the_same(void **state) {
    struct sl_local *local = *state;
    static const struct {
        const char *recipe;
        bool evicts, quantizes;
    } cases[] = {{"full", false, false},
                 {"full,format=int4", false, true},
                 {"streamingllm,budget=100,chunk=128", true, false},
                 {"h2o,budget=128,chunk=64,format=int8", true, true},
                 {"score=random,budget=100,when=chunk+step,chunk=64", true, false},
                 {"d2o,budget=128", true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *recipe = cases[i].recipe;
        struct sl_conversation *asking = open_conversation(local, recipe), *other = open_conversation(local, recipe);
        for (int t = 0; t < 3; t++) { // asked for, not, and again
            int32_t ids[N_DOCUMENT];
            int64_t n = t == 0 ? N_DOCUMENT : N_QUESTION;
            fill(ids, n, t + 1);
            struct answer with, without;
            struct sl_local_request request = request_of(ids, n, &with);
            request.estimate_errors = t != 1;
            struct sl_local_result result;
            struct sl_error err;
            assert_int_equal(sl_conversation_turn(asking, &request, &result, &err), SL_OK);
            free(result.text);
            const struct sl_error_statistics *errors = &result.errors;
            assert_int_equal(turn(other, recipe, ids, n, &without).errors.n_layers, 0);
            assert_memory_equal(with.ids, without.ids, sizeof with.ids);
            assert_int_equal(errors->n_layers, t == 1 ? 0 : sl_local_model(local)->n_layers);
            for (int l = 0; t == 0 && l < errors->n_layers; l++) {
                assert_int_equal(errors->evicted_attention[l] > 0, cases[i].evicts);
                assert_int_equal(errors->evicting_rows[l] > 0, cases[i].evicts);
                assert_true(errors->evicted_attention[l] < 1);
                assert_int_equal(errors->key_error[l] > 0, cases[i].quantizes);
                assert_int_equal(errors->value_error[l] > 0, cases[i].quantizes);
            }
            if (t == 2 && strstr(recipe, "step")) { // this turn's alone: one row for every token it has read
                assert_int_equal(errors->evicting_rows[0], N_QUESTION + N_ANSWER);
            }
        }
        sl_conversation_close(&asking);
        sl_conversation_close(&other);
    }
}

// ---- refusals -------------------------------------------------------------------------------------------------------

static enum sl_status give_up(void *arg, int64_t done, int64_t total) {
    (void)arg, (void)done, (void)total;
    return SL_ERR_CANCELLED;
}

// The session is that of the document again before each question, also where answers evict or fill pages.
static void test_conversation_asks_each_question_of_a_document_alone(void **state) {
    static const char *const recipes[] = {"full", "full,format=int4", "h2o,budget=100", "d2o,budget=100"};
    int32_t document[N_DOCUMENT], questions[2][N_QUESTION];
    fill(document, N_DOCUMENT, 1);
    fill(questions[0], N_QUESTION, 2);
    fill(questions[1], N_QUESTION, 3);
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        struct sl_conversation *conversation = open_conversation(*state, recipes[i]);
        struct sl_local_result result;
        struct sl_error err = {0};
        struct sl_local_request read = {.prompt = document, .n_prompt = N_DOCUMENT};
        assert_int_equal(sl_conversation_read_document(conversation, &read, &result, &err), SL_OK);
        assert_int_equal(result.n_tokens, N_DOCUMENT);
        struct answer answers[3];
        for (int turn = 0; turn < 3; turn++) {
            struct sl_local_request request = request_of(questions[turn % 2], N_QUESTION, &answers[turn]);
            assert_int_equal(sl_conversation_turn(conversation, &request, &result, &err), SL_OK);
            assert_int_equal(result.n_tokens, N_DOCUMENT + N_QUESTION);
            assert_int_equal(result.n_read, N_QUESTION + 1);
            free(result.text);
        }
        assert_memory_equal(answers[0].ids, answers[2].ids, sizeof answers[0].ids);
        assert_memory_not_equal(answers[0].ids, answers[1].ids, sizeof answers[0].ids);
        sl_conversation_close(&conversation);
    }
    struct sl_conversation *offloading = open_conversation(*state, "tailorkv");
    struct sl_local_request read = {.prompt = document, .n_prompt = N_DOCUMENT};
    struct sl_local_result result;
    assert_int_equal(sl_conversation_read_document(offloading, &read, &result, NULL), SL_ERR_UNSUPPORTED);
    sl_conversation_close(&offloading);
}

static void test_conversation_refuses_what_cannot_be(void **state) {
    struct sl_local *local = *state;
    struct sl_conversation *conversation = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_conversation_open(local, "h2o,budget=nonsense", 0, &conversation, &err), SL_ERR_INVALID);
    assert_null(conversation);

    int32_t ids[N_DOCUMENT];
    struct answer answer;
    fill(ids, N_DOCUMENT, 1);
    assert_int_equal(sl_conversation_open(local, "full", 100, &conversation, &err), SL_OK);
    struct sl_local_request request = request_of(ids, 95, &answer);
    struct sl_local_result result;
    assert_int_equal(sl_conversation_turn(conversation, &request, &result, &err), SL_ERR_INVALID); // with the answer
    request.n_prompt = 0;
    assert_int_equal(sl_conversation_turn(conversation, &request, &result, &err), SL_ERR_INVALID);
    turn(conversation, "full", ids, 20, &answer); // nothing has happened before
    request = request_of(ids, 30, &answer);
    request.progress_fn = give_up;
    assert_int_equal(sl_conversation_turn(conversation, &request, &result, &err), SL_ERR_CANCELLED);
    request.progress_fn = NULL;
    assert_int_equal(sl_conversation_turn(conversation, &request, &result, &err), SL_ERR_PRECONDITION);
    sl_conversation_close(&conversation);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation_writes_what_one_job_with_everything_writes),
        cmocka_unit_test(test_conversation_stays_within_the_budget_of_every_preset),
        cmocka_unit_test(test_conversation_appends_behind_quantized_pages),
        cmocka_unit_test(test_conversation_thins_what_prefill_reads),
        cmocka_unit_test(test_conversation_estimates_errors_only_where_asked_and_writes_the_same),
        cmocka_unit_test(test_conversation_asks_each_question_of_a_document_alone),
        cmocka_unit_test(test_conversation_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

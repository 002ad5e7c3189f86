// SPDX-License-Identifier: Apache-2.0
// Purpose: prompts are put together as promised, and what is not a text is refused with its place.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/request.h"
#include "engine/compress/recipe/recipe.h"

static char path[] = "/tmp/sluice-test-request-XXXXXX";

static int make_file(void **state) {
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

static void write_file(const char *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static struct sl_request_config plain(void) {
    return (struct sl_request_config){.recipe = "",
                                      .label = "",
                                      .max_new = 1,
                                      .top_p = 1,
                                      .repetition_penalty = 1,
                                      .deadline_ms = 1000,
                                      .generation_config = "auto"};
}

static void test_request_names_documents_with_commas(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    struct sl_request request;
    struct sl_error err = {0};
    config.prompt = "why?";
    config.document = "gpl";
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_string_equal(request.message.document, "gpl");
    assert_int_equal(request.message.n_documents, 0);
    sl_request_cleanup(&request);
    config.document = "gpl,mit,a.b-c";
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_string_equal(request.message.document, "");
    assert_int_equal(request.message.n_documents, 3);
    assert_string_equal(request.message.documents[0], "gpl");
    assert_string_equal(request.message.documents[2], "a.b-c");
    sl_request_cleanup(&request);
    char many[700];
    memset(many, 'a', sizeof many - 1);
    many[sizeof many - 1] = '\0';
    many[9] = ',';
    const char *const bad[] = {"gpl,", ",gpl", "gpl,,mit", "1,2,3,4,5,6,7,8,9", many};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config.document = bad[i];
        assert_int_equal(sl_request_init(&request, &config, &err), SL_ERR_INVALID);
    }
}

static void test_request_joins_document_and_question(void **state) {
    (void)state;
    write_file("the document", 12);
    struct sl_request_config config = plain();
    config.prompt_file = path;
    config.questions = (struct sl_option_list){{"the question?"}, 1};
    config.recipe = "h2o,budget=64";
    config.stop = "END";
    config.max_new = 9;
    config.has_max_new = config.has_seed = true;
    config.top_p = 0.5;
    config.has_top_p = true;
    config.seed = 77;
    struct sl_request request;
    struct sl_error err;
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_int_equal(request.message.prompt_case, SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT);
    assert_string_equal(request.message.text, "the document\nthe question?");

    // Pack and unpack the message, as the coordinator will see it.
    size_t n = sluice__v1__generate_request__get_packed_size(&request.message);
    uint8_t *bytes = malloc(n);
    sluice__v1__generate_request__pack(&request.message, bytes);
    Sluice__V1__GenerateRequest *seen = sluice__v1__generate_request__unpack(NULL, n, bytes);
    assert_string_equal(seen->text, "the document\nthe question?");
    assert_string_equal(seen->recipe, "h2o,budget=64");
    assert_int_equal(seen->max_new_tokens, 9);
    assert_int_equal(seen->n_stop, 1);
    assert_string_equal(seen->stop[0], "END");
    assert_int_equal(seen->deadline_ms, 1000);
    assert_true(seen->sampling->top_p == 0.5f);
    assert_int_equal(seen->sampling->temperature_present_case, 0); // the model's own
    assert_int_equal(seen->sampling->seed_present_case, SLUICE__V1__SAMPLING__SEED_PRESENT_SEED);
    assert_int_equal(seen->sampling->seed, 77);
    sluice__v1__generate_request__free_unpacked(seen, NULL);
    free(bytes);
    sl_request_cleanup(&request);
}

// "none": all fields are set, so that none is left to the model.
static void test_request_can_do_without_the_models_sampling(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    struct sl_request request;
    struct sl_error err;
    config.prompt = "the document";
    config.generation_config = "none";
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_int_equal(request.message.max_new_tokens_present_case, 0); // what fits
    assert_int_equal(request.sampling.seed_present_case, 0);          // drawn
    assert_int_equal(request.sampling.temperature_present_case, SLUICE__V1__SAMPLING__TEMPERATURE_PRESENT_TEMPERATURE);
    assert_int_equal(request.sampling.top_k_present_case, SLUICE__V1__SAMPLING__TOP_K_PRESENT_TOP_K);
    assert_int_equal(request.sampling.top_p_present_case, SLUICE__V1__SAMPLING__TOP_P_PRESENT_TOP_P);
    assert_int_equal(request.sampling.repetition_penalty_present_case,
                     SLUICE__V1__SAMPLING__REPETITION_PENALTY_PRESENT_REPETITION_PENALTY);
    assert_int_equal(request.sampling.min_p_present_case, SLUICE__V1__SAMPLING__MIN_P_PRESENT_MIN_P);
    assert_true(request.sampling.temperature == 0 && request.sampling.top_p == 1 && request.sampling.min_p == 0);
    sl_request_cleanup(&request);
    config.generation_config = "auto";
    config.frequency_penalty = 0.5;
    config.presence_penalty = -1;
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_int_equal(request.sampling.min_p_present_case, 0); // the model's
    assert_true(request.sampling.frequency_penalty == 0.5f && request.sampling.presence_penalty == -1);
    sl_request_cleanup(&request);
    config.generation_config = "maybe";
    assert_int_equal(sl_request_init(&request, &config, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "--generation-config maybe"));
}

static void test_request_keeps_further_questions_as_turns(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    struct sl_request request;
    struct sl_error err;
    config.prompt = "the document";
    config.questions = (struct sl_option_list){{"one?", "two?", "three?"}, 3};
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_string_equal(request.prompt, "the document\none?");
    assert_int_equal(request.n_turns, 2);
    assert_string_equal(request.turns[0], "two?");
    assert_string_equal(request.turns[1], "three?");
    assert_int_equal(sl_request_check_one_turn(&request, &err), SL_ERR_INVALID);
    sl_request_cleanup(&request);
    config.questions.n = 1;
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_int_equal(request.n_turns, 0);
    assert_int_equal(sl_request_check_one_turn(&request, &err), SL_OK);
    sl_request_cleanup(&request);
}

static void test_request_takes_either_part_alone(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    struct sl_request request;
    config.questions = (struct sl_option_list){{"only this"}, 1};
    assert_int_equal(sl_request_init(&request, &config, NULL), SL_OK);
    assert_string_equal(request.prompt, "only this");
    sl_request_cleanup(&request);
    config.questions = (struct sl_option_list){.n = 0};
    config.prompt = "only that";
    assert_int_equal(sl_request_init(&request, &config, NULL), SL_OK);
    assert_string_equal(request.prompt, "only that");
    sl_request_cleanup(&request);
}

static void assert_refused(const struct sl_request_config *config, const char *word) {
    struct sl_request request;
    struct sl_error err = {0};
    assert_int_equal(sl_request_init(&request, config, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, word));
}

// Without --chat or --raw, the model's kind decides.
static void test_request_is_a_chat_where_the_model_takes_chats(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct sl_request_config config = plain();
        bool takes_chats = i & 1;
        config.prompt = "the document";
        config.chat = (i & 6) == 2;
        config.raw = (i & 6) == 4;
        config.questions = (struct sl_option_list){{"a?", "b?"}, .n = (i & 6) == 6 ? 2 : 1};
        bool chat = config.chat || (takes_chats && (i & 6) == 0);
        struct sl_request request;
        struct sl_error err = {0};
        assert_int_equal(sl_request_is_open(&config), (i & 6) == 0);
        assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
        assert_int_equal(sl_request_choose(&request, &config, takes_chats, &err), SL_OK);
        assert_int_equal(request.message.prompt_case,
                         chat ? SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT : SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT);
        config.system = "Be brief.";
        if (sl_request_is_open(&config)) {
            assert_int_equal(sl_request_choose(&request, &config, takes_chats, &err),
                             takes_chats ? SL_OK : SL_ERR_INVALID);
        }
        sl_request_cleanup(&request);
    }
}

static void test_request_makes_messages_of_a_chat(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    struct sl_request request;
    struct sl_error err;
    config.prompt = "the document";
    config.questions = (struct sl_option_list){{"the question?"}, 1};
    config.system = "Be brief.";
    config.raw = true;
    assert_refused(&config, "--system is for chats");
    config.chat = true;
    assert_refused(&config, "--chat and --raw exclude each other");
    config.raw = false;
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_int_equal(request.message.prompt_case, SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT);
    assert_int_equal(request.message.chat->n_messages, 2);
    assert_string_equal(request.message.chat->messages[0]->role, "system");
    assert_string_equal(request.message.chat->messages[0]->content, "Be brief.");
    assert_string_equal(request.message.chat->messages[1]->role, "user");
    assert_string_equal(request.message.chat->messages[1]->content, "the document\nthe question?");
    sl_request_cleanup(&request);

    config.system = NULL;
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_int_equal(request.message.chat->n_messages, 1);
    assert_string_equal(request.message.chat->messages[0]->role, "user");
    sl_request_cleanup(&request);
    config.system = "\xff";
    assert_refused(&config, "--system is not valid UTF-8");
    config.system = NULL;
    config.questions = (struct sl_option_list){{"a", "b"}, 2};
    assert_refused(&config, "--chat takes one turn");
}

static void test_request_refuses_what_is_not_a_prompt(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    assert_refused(&config, "--prompt-file");
    config.prompt = "";
    assert_refused(&config, "empty");
    config.prompt_file = path;
    assert_refused(&config, "exclude");
    config.prompt = NULL;
    config.prompt_file = "/nonexistent/file";
    assert_refused(&config, "/nonexistent/file: No such file");
    config.prompt_file = "/";
    assert_refused(&config, "directory");
}

static void test_request_refuses_bytes_that_are_no_text(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    config.prompt_file = path;
    write_file("ab\0cd", 5);
    assert_refused(&config, "zero byte");
    write_file("abc\xff", 4);
    assert_refused(&config, "byte 3");
    config.prompt_file = NULL;
    config.questions = (struct sl_option_list){{"\xc3"}, 1};
    assert_refused(&config, "--question is not valid UTF-8 at byte 0");
}

static void test_request_bounds_the_prompt(void **state) {
    (void)state;
    size_t n = SL_MAX_PROMPT_BYTES;
    char *text = malloc(n + 2);
    memset(text, 'a', n + 1);
    text[n + 1] = '\0';
    struct sl_request_config config = plain();
    config.prompt_file = path;
    write_file(text, n + 1);
    assert_refused(&config, "larger than 64 MiB");
    write_file(text, n);
    struct sl_request request;
    assert_int_equal(sl_request_init(&request, &config, NULL), SL_OK);
    assert_int_equal(strlen(request.prompt), n);
    sl_request_cleanup(&request);
    config.questions = (struct sl_option_list){{"one byte too many"}, 1};
    assert_refused(&config, "larger than 64 MiB");
    free(text);
}

static void check_recommended(struct sl_request_config config) {
    for (const struct sl_recommendation *r = sl_recipe_recommendations(config.later); r->recipe; r++) {
        assert_true(r[1].recipe == NULL || r[1].share < r->share);
        struct sl_recipe recipe;
        assert_int_equal(sl_recipe_parse(r->recipe, &recipe, NULL), SL_OK);
        assert_int_equal(sl_score_get_traits(recipe.score)->wants_importance, r->needs_heads);
        assert_false(sl_recipe_offloads(&recipe));
        char needs[SL_CAUTION_BYTES];
        sl_recommendation_needs(r, needs);
        assert_int_equal(needs[0] == '\0', !sl_recipe_evicts(&recipe));
        assert_int_equal(strstr(needs, "a second reading of the text") == needs,
                         config.later && sl_recipe_evicts(&recipe));
        assert_true(sl_recipe_serves_later(&recipe) || !config.later);
        char canonical[SL_RECIPE_TEXT_BYTES];
        sl_recipe_format(&recipe, canonical, sizeof canonical);
        assert_true(!config.later || sl_recipe_loss(canonical, 1) == sl_recipe_loss(r->recipe, 1));
        assert_true(!config.later || sl_recipe_loss(canonical, 1) != NULL);
        for (double above = 0; above < 0.5; above += 0.4) { // that share, or a little more
            config.ship_at_most = 100 * r->share + above;
            struct sl_request request;
            struct sl_error err;
            assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
            assert_string_equal(request.message.recipe, r->recipe);
            sl_request_cleanup(&request);
        }
    }
}

static void test_request_without_a_recipe_takes_the_recommended_one(void **state) {
    (void)state;
    struct sl_request_config config = plain();
    config.recipe = NULL;
    config.prompt = "p";
    struct sl_request usual;
    assert_int_equal(sl_request_init(&usual, &config, NULL), SL_OK);
    assert_string_equal(usual.message.recipe, ""); // the cluster's own
    sl_request_cleanup(&usual);
    check_recommended(config);
    config.later = true;
    check_recommended(config);
    config.ship_at_most = 5; // what a question in the prompt may have
    assert_refused(&config, "--ship-at-most 5");
    config.later = false;
    config.ship_at_most = 0.1;
    assert_refused(&config, "--ship-at-most 0.1");
    config.ship_at_most = 20;
    config.recipe = "h2o";
    assert_refused(&config, "leave it out, or --recipe h2o");
    config.ship_at_most = 0;
    struct sl_request request;
    struct sl_error err;
    assert_int_equal(sl_request_init(&request, &config, &err), SL_OK);
    assert_string_equal(request.message.recipe, "h2o");
    sl_request_cleanup(&request);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_names_documents_with_commas),
        cmocka_unit_test(test_request_joins_document_and_question),
        cmocka_unit_test(test_request_without_a_recipe_takes_the_recommended_one),
        cmocka_unit_test(test_request_can_do_without_the_models_sampling),
        cmocka_unit_test(test_request_keeps_further_questions_as_turns),
        cmocka_unit_test(test_request_takes_either_part_alone),
        cmocka_unit_test(test_request_is_a_chat_where_the_model_takes_chats),
        cmocka_unit_test(test_request_makes_messages_of_a_chat),
        cmocka_unit_test(test_request_refuses_what_is_not_a_prompt),
        cmocka_unit_test(test_request_refuses_bytes_that_are_no_text),
        cmocka_unit_test(test_request_bounds_the_prompt),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}

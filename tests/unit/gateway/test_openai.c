// SPDX-License-Identifier: Apache-2.0
// Purpose: translation of OpenAI's API to Sluice's and back, without a cluster: requests, transcripts of answers, and names of failures.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "engine/compress/recipe/recipe.h"
#include "gateway/openai/answer.h"
#include "gateway/openai/refusal.h"
#include "gateway/openai/request.h"

static struct sl_openai_request *request;

static void ask(bool is_chat, const char *body) {
    struct sl_refusal refusal = {0};
    sl_openai_request_destroy(&request);
    enum sl_status status = sl_openai_request_parse(is_chat, body, strlen(body), NULL, &request, &refusal);
    if (status != SL_OK) {
        fail_msg("%s: %s", body, refusal.text);
    }
}

static int forget(void **state) {
    (void)state;
    sl_openai_request_destroy(&request);
    return 0;
}

static void test_zero_characters_are_refused_by_field(void **state) {
    (void)state;
    static const struct {
        const char *body, *text, *param;
    } rows[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"a\\u0000b\"}]}",
         "messages[1].content: the character U+0000 is not allowed", "messages"},
        {"{\"prompt\": \"x\", \"stop\": [\"\\u0000\"]}", "stop[0]: the character U+0000 is not allowed", "stop"},
        {"{\"user\": \"\\u0000\", \"prompt\": \"x\"}", "user: the character U+0000 is not allowed", "user"},
        {"{\"prompt\": \"\\u0000\"", "the body is not JSON: ", ""}, // nor is it whole
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_refusal refusal = {0};
        struct sl_openai_request *none = NULL;
        assert_int_equal(sl_openai_request_parse(true, rows[i].body, strlen(rows[i].body), NULL, &none, &refusal),
                         SL_ERR_INVALID);
        assert_memory_equal(refusal.text, rows[i].text, strlen(rows[i].text));
        assert_string_equal(refusal.param, rows[i].param);
    }
}

static void test_a_completion_is_a_request(void **state) {
    (void)state;
    ask(false, "{\"prompt\": \"a \\u00e9\", \"reuse\": false, \"stop\": [\"x\", \"yz\"], \"max_tokens\": 7, \"seed\": "
               "-1, \"top_k\": -1, "
               "\"top_p\": 0.5,"
               " \"logprobs\": 0, \"ignore_eos\": true, \"recipe\": \"h2o\", \"stream\": true, \"user\": \"me\"}");
    const Sluice__V1__GenerateRequest *message = &request->message;
    assert_int_equal(message->prompt_case, SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT);
    assert_string_equal(message->text, "a \xc3\xa9");
    assert_int_equal(message->n_stop, 2);
    assert_string_equal(message->stop[1], "yz");
    assert_int_equal(message->max_new_tokens, 7);
    assert_true(message->sampling->seed == UINT64_MAX);
    assert_int_equal(message->sampling->seed_present_case, SLUICE__V1__SAMPLING__SEED_PRESENT_SEED);
    assert_int_equal(message->sampling->top_k, 0); // others' word for off
    assert_true(message->sampling->top_p == 0.5f);
    assert_int_equal(message->sampling->temperature_present_case,
                     0); // the model's, if it has one; else theirs, not ours
    assert_true(message->sampling->usual_temperature == 1);
    assert_int_equal(message->sampling->logprobs, 1); // a token's own bytes come with alternatives
    assert_int_equal(request->n_top_logprobs, 0);
    assert_true(message->ignore_eos && message->no_reuse && request->stream && request->wants_logprobs);
    assert_string_equal(message->recipe, "h2o");
    ask(false, "{\"prompt\": \"a\", \"reuse\": true}");
    assert_false(request->message.no_reuse);
}

// A chat over HTTP is compressed with its question; a document before it.
static void test_a_share_takes_the_recipe_for_questions_that_are_there_or_come_later(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\": \"x\", \"ship_at_most\": 17%s}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": "
        "\"assistant\", \"content\": \"y\"}, {\"role\": \"user\", \"content\": \"z\"}], "
        "\"ship_at_most\": 17%s}"};
    for (int is_chat = 0; is_chat < 2; is_chat++) {
        char body[256];
        static const char *const more[] = {"", ", \"document\": \"d\"", ", \"documents\": [\"d\", \"e\"]"};
        for (int i = 0; i < 3; i++) {
            snprintf(body, sizeof body, bodies[is_chat], more[i]);
            ask(is_chat, body);
            assert_string_equal(request->message.recipe, sl_recipe_recommend(0.17, i > 0)->recipe);
        }
    }
    assert_string_not_equal(sl_recipe_recommend(0.17, false)->recipe, sl_recipe_recommend(0.17, true)->recipe);
}

static void test_what_asks_for_nothing_is_ignored_and_named(void **state) {
    (void)state;
    ask(true,
        "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [], \"annotations\": [{}], "
        "\"reasoning_content\": \"\", \"name\": \"a\"}, {\"role\": \"user\", \"name\": \"b\", \"content\": [{\"type\": "
        "\"text\", \"text\": \"x\", \"cache_control\": {\"a\": 1}}]}], \"service_tier\": \"auto\", \"n\": 1, "
        "\"tools\": [],"
        " \"reasoning_effort\": \"low\", \"new\\r\\nfield\": {}, \"stream\": true, "
        "\"stream_options\": {\"include_obfuscation\": true, \"include_usage\": null}}");
    assert_string_equal(request->message.chat->messages[0]->content, "");
    static const char *const named[] = {"messages.tool_calls",
                                        "messages.annotations",
                                        "messages.reasoning_content",
                                        "messages.name",
                                        "messages.content.cache_control",
                                        "service_tier",
                                        "n",
                                        "reasoning_effort",
                                        "tools",
                                        "new??field",
                                        "stream_options.include_obfuscation"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        assert_non_null(strstr(request->ignored, named[i]));
        n += strlen(named[i]) + 2;
    }
    assert_int_equal(strlen(request->ignored), n - 2); // each once, and nothing else
    ask(false,
        "{\"prompt\": \"x\", \"dry_multiplier\": 0, \"tfs_z\": 1.0, \"think\": false, \"separate_reasoning\": true}");
    assert_string_equal(request->ignored, "dry_multiplier, tfs_z, think, separate_reasoning");
    char body[4096] = "{\"prompt\": \"x\"";
    for (int i = 0; i < 60; i++) {
        snprintf(body + strlen(body), sizeof body - strlen(body), ", \"unknown_%d\": []", i);
    }
    strcat(body, "}");
    ask(false, body);
    assert_string_equal(request->ignored + strlen(request->ignored) - 5, ", ...");
    ask(false, "{\"prompt\": \"x\", \"temperature\": null, \"model\": \"\", \"stop\": \"\", \"recipe\": "
               "\"\", \"stream_options\": {}, \"logprobs\": false, \"max_tokens\": \"\"}");
    assert_string_equal(request->ignored, "");
    assert_true(request->model == NULL && !request->wants_logprobs);
    assert_true(request->message.n_stop == 0 && request->message.max_new_tokens_present_case == 0);
}

static void test_what_asks_for_something_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *field, *text;
    } rows[] = {
        {"\"n\": 2", "n is not supported"},
        {"\"tools\": [{}]", "tools is not supported"},
        {"\"tool_choice\": \"required\"", "tool_choice is not supported"},
        {"\"response_format\": {\"type\": \"json_schema\"}", "response_format is not supported"},
        {"\"store\": true", "store is not supported"},
        {"\"min_tokens\": 3", "min_tokens is not supported"},
        {"\"nonsense\": false", "unknown field \"nonsense\""},
        {"\"modalities\": [\"text\", \"audio\"]", "modalities is not supported"},
        {"\"stream_options\": {\"continuous_usage_stats\": true}",
         "stream_options.continuous_usage_stats is not supported"},
        {"\"seed\": 9223372036854775808",
         "seed: is 9.2233720368547758e+18, must be an integer, -9223372036854775808 to 9223372036854775807"},
        {"\"seed\": 1.5", "seed: expected an integer"},
        {"\"temperature\": 1e10", "temperature: is 1e+10, must be -1e9 to 1e9"},
        {"\"dry_multiplier\": 0.8", "dry_multiplier is not supported"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        struct sl_refusal refusal = {0};
        struct sl_openai_request *none = NULL;
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], %s}", rows[i].field);
        assert_int_equal(sl_openai_request_parse(true, body, strlen(body), NULL, &none, &refusal), SL_ERR_INVALID);
        assert_string_equal(refusal.text, rows[i].text);
    }
    // A long integer in a field that is not used harms no other.
    ask(false, "{\"prompt\": [5, 6], \"max_tokens\": 7, \"seed\": -3, \"metadata\": {\"id\": 123456789012345678901}}");
    assert_int_equal(request->message.max_new_tokens, 7);
    assert_true(request->message.sampling->seed == (uint64_t)-3);
    assert_int_equal(request->message.tokens->ids[1], 6);
}

static void test_several_prompts(void **state) {
    (void)state;
    ask(false, "{\"prompt\": [\"one\", \"two\", \"\"]}");
    assert_int_equal(request->n_prompts, 3);
    assert_string_equal(request->message.text, "one");
    sl_openai_request_select(request, 1);
    assert_string_equal(request->message.text, "two");
    ask(false, "{\"prompt\": [[5, 6], [7]]}");
    assert_int_equal(request->message.tokens->n_ids, 2);
    sl_openai_request_select(request, 1);
    assert_int_equal(request->message.tokens->n_ids, 1);
    assert_int_equal(request->message.tokens->ids[0], 7);
    static const char *const bad[] = {"{\"prompt\": [\"a\", [5]]}", "{\"prompt\": [[5], \"a\"]}",
                                      "{\"prompt\": [[5], [-1]]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_refusal refusal = {0};
        struct sl_openai_request *none = NULL;
        assert_int_equal(sl_openai_request_parse(false, bad[i], strlen(bad[i]), NULL, &none, &refusal), SL_ERR_INVALID);
        assert_string_equal(refusal.param, "prompt");
    }
}

static void test_prompts_of_other_shapes(void **state) {
    (void)state;
    static const char *const texts[] = {"{\"prompt\": \"one\"}", "{\"prompt\": [\"one\"]}"};
    static const char *const ids[] = {"{\"prompt\": [5, 6]}", "{\"prompt\": [[5, 6]]}"};
    for (int i = 0; i < 2; i++) {
        ask(false, texts[i]);
        assert_string_equal(request->message.text, "one");
        ask(false, ids[i]);
        assert_int_equal(request->message.tokens->n_ids, 2);
        assert_int_equal(request->message.tokens->ids[1], 6);
    }
}

static void test_a_chat_is_a_request(void **state) {
    (void)state;
    ask(true, "{\"messages\": [{\"role\": \"developer\", \"content\": \"x\"}, {\"role\": \"user\", \"name\": null,"
              " \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}],"
              " \"max_tokens\": 3, \"max_completion_tokens\": 4, \"n\": 1, \"tools\": [], \"response_format\": "
              "{\"type\": \"text\"}}");
    const Sluice__V1__Chat *chat = request->message.chat;
    assert_int_equal(chat->n_messages, 2);
    assert_string_equal(chat->messages[0]->role, "system");
    assert_string_equal(chat->messages[1]->content, "ab");
    assert_int_equal(request->message.max_new_tokens, 4);
}

static void test_a_request_about_several_documents(void **state) {
    (void)state;
    ask(true,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"documents\": [\"gpl\", \"mit\"], \"reread\": 0}");
    assert_int_equal(request->message.n_documents, 2);
    assert_string_equal(request->message.documents[1], "mit");
    assert_int_equal(request->message.reread_present_case, SLUICE__V1__GENERATE_REQUEST__REREAD_PRESENT_REREAD);
    assert_int_equal(request->message.reread, 0);
    sl_openai_request_destroy(&request);
    static const struct {
        const char *fields, *param;
    } rows[] = {{"\"documents\": \"gpl\"", "documents"},
                {"\"documents\": []", "documents"},
                {"\"documents\": [\"gpl\", 5]", "documents"},
                {"\"documents\": [\"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\", \"8\", \"9\"]", "documents"},
                {"\"reread\": -1", "reread"},
                {"\"reread\": 1.5", "reread"},
                {"\"reread\": 2147483648", "reread"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        struct sl_refusal refusal = {0};
        snprintf(body, sizeof body, "{\"prompt\": \"a\", %s}", rows[i].fields);
        assert_int_equal(sl_openai_request_parse(false, body, strlen(body), NULL, &request, &refusal), SL_ERR_INVALID);
        assert_string_equal(refusal.param, rows[i].param);
        assert_int_equal(refusal.http_status, 400);
    }
    ask(false, "{\"prompt\": \"a\"}"); // without the field, the coordinator chooses
    assert_int_equal(request->message.reread_present_case, SLUICE__V1__GENERATE_REQUEST__REREAD_PRESENT__NOT_SET);
}

static Sluice__V1__Token token_of(const char *text, const char *raw, Sluice__V1__Alternative **list, size_t n) {
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.text = (char *)text;
    token.raw = (ProtobufCBinaryData){strlen(raw), (uint8_t *)raw};
    token.logprob = -0.5f;
    token.alternatives = list;
    token.n_alternatives = n;
    return token;
}

static Sluice__V1__Statistics statistics;

static Sluice__V1__Finished finished_by(Sluice__V1__Finished__Reason reason, const char *text) {
    sluice__v1__statistics__init(&statistics);
    statistics.n_prompt_tokens = 5;
    statistics.n_output_tokens = 2;
    statistics.n_reused_tokens = 4;
    statistics.recipe = "full";
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.reason = reason;
    finished.text = (char *)text;
    finished.statistics = &statistics;
    return finished;
}

// Frees `said`; without what is measured.
static void assert_said(char *said, const char *expected) {
    assert_non_null(said);
    char *measured = strstr(said, ",\"sluice\":{");
    if (measured) {
        char *end = strchr(measured, '}') + 1;
        memmove(measured, end, strlen(end) + 1);
    }
    assert_string_equal(said, expected);
    free(said);
}

#define HEAD                                                                                                           \
    "{\"id\":\"chatcmpl-job-1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"choices\":["
#define TEXT "{\"id\":\"cmpl-job-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":["

static void test_the_transcript_of_a_chat(void **state) {
    (void)state;
    ask(true, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"stream\": true, \"stream_options\": "
              "{\"include_usage\": true}}");
    struct sl_openai_answer answer = {.request = request, .model = "m", .job_id = "job-1", .created = 7};
    assert_said(sl_openai_begin(&answer),
                "data: " HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                "\"finish_reason\":null}],\"usage\":null}\n\n");
    Sluice__V1__Token token = token_of("hi \"you\"", "", NULL, 0), silent = token_of("", "", NULL, 0);
    assert_said(sl_openai_token(&answer, &token),
                "data: " HEAD "{\"index\":0,\"delta\":{\"content\":\"hi \\\"you\\\"\"},\"logprobs\":null,"
                "\"finish_reason\":null}],\"usage\":null}\n\n");
    assert_said(sl_openai_token(&answer, &silent), "");
    Sluice__V1__Finished finished = finished_by(SLUICE__V1__FINISHED__REASON__STOP_STRING, "hi");
    assert_said(sl_openai_end(&answer, &finished),
                "data: " HEAD
                "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
                "data: " HEAD "],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7,"
                "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
                "data: [DONE]\n\n");
}

static void test_logprobs_of_half_a_character(void **state) {
    (void)state;
    ask(false, "{\"prompt\": \"x\", \"stream\": true, \"logprobs\": 1}");
    struct sl_openai_answer answer = {.request = request, .model = "m", .job_id = "job-1", .created = 7};
    Sluice__V1__Alternative one = SLUICE__V1__ALTERNATIVE__INIT;
    one.raw = (ProtobufCBinaryData){2, (uint8_t *)"\xc3\xa9"};
    one.logprob = -0.25f;
    Sluice__V1__Alternative *list[] = {&one};
    Sluice__V1__Token whole = token_of("\xc3\xa9", "\xc3\xa9", list, 1), half = token_of("", "\xc3", list, 1);
    assert_said(sl_openai_token(&answer, &whole),
                "data: " TEXT
                "{\"index\":0,\"text\":\"\xc3\xa9\",\"logprobs\":{\"tokens\":[\"\xc3\xa9\"],\"token_logprobs\":[-0.5],"
                "\"top_logprobs\":[{\"\xc3\xa9\":-0.25}],\"text_offset\":[0]},\"finish_reason\":null}]}\n\n");
    assert_said(sl_openai_token(&answer, &half),
                "data: " TEXT
                "{\"index\":0,\"text\":\"\",\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\"],\"token_logprobs\":[-0.5],"
                "\"top_logprobs\":[{\"\xc3\xa9\":-0.25}],\"text_offset\":[1]},\"finish_reason\":null}]}\n\n");
    sl_openai_answer_cleanup(&answer);
}

static void test_one_object(void **state) {
    (void)state;
    ask(true, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"logprobs\": true}");
    struct sl_openai_answer answer = {.request = request, .model = "m", .job_id = "job-1", .created = 7};
    Sluice__V1__Token token = token_of("A", "A", NULL, 0);
    assert_int_equal(sl_openai_keep(&answer, &token), SL_OK);
    Sluice__V1__Finished finished = finished_by(SLUICE__V1__FINISHED__REASON__LENGTH, "A");
    assert_said(
        sl_openai_whole(&answer, &finished),
        "{\"id\":\"chatcmpl-job-1\",\"object\":\"chat.completion\",\"created\":7,\"model\":\"m\",\"choices\":[{"
        "\"index\":0,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"A\",\"refusal\":null},\"logprobs\":{\"content\":[{\"token\":"
        "\"A\","
        "\"logprob\":-0.5,\"bytes\":[65],\"top_logprobs\":[]}],\"refusal\":null},\"finish_reason\":\"length\"}],"
        "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7,\"prompt_tokens_details\":{\"cached_"
        "tokens\":4}}}");
    sl_openai_answer_cleanup(&answer);

    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT; // how it was drawn
    sampling.temperature = 0.5f;
    sampling.top_k = 20;
    sampling.seed = 7;
    statistics.sampling = &sampling;
    char *drawn = sl_openai_whole(&answer, &finished);
    assert_non_null(drawn);
    assert_non_null(strstr(drawn, "\"sampling\":{\"temperature\":0.5,\"top_k\":20,"));
    statistics.sampling = NULL;
    assert_null(strstr(drawn, "kept")); // nothing is said of copies
    assert_null(strstr(drawn, "not_cached"));
    assert_null(strstr(drawn, "not_joined"));
    free(drawn);
    statistics.kept = SLUICE__V1__KEPT__KEPT_NOT_TOO_LARGE;
    statistics.kept_state = SLUICE__V1__KEPT__KEPT_STORED;
    statistics.not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_OTHER_LENGTH;
    statistics.not_joined = SLUICE__V1__NOT_JOINED__NOT_JOINED_OFFLOADED;
    statistics.restore_ms = 7;
    drawn = sl_openai_whole(&answer, &finished);
    assert_non_null(drawn);
    assert_non_null(strstr(drawn, "\"kept\":\"too_large\",\"kept_state\":\"stored\",\"not_cached\":\"other_length\""));
    assert_non_null(strstr(drawn, "\"not_joined\":\"offloaded\",\"restore_ms\":7.0"));
    free(drawn);
    statistics.not_joined = SLUICE__V1__NOT_JOINED__NOT_JOINED_NOT_SAID;
    statistics.restore_ms = 0;
    statistics.kept = statistics.kept_state = SLUICE__V1__KEPT__KEPT_NOT_SAID;
    statistics.not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID;

    char *none = sl_openai_whole(&answer, &finished); // without any token
    assert_non_null(none);
    assert_non_null(strstr(none, "\"logprobs\":{\"content\":null,"));
    free(none);
}

// Only an answer about documents, one or several, says what their recipe lost in texts as long.
static void test_answers_about_documents_have_a_caution(void **state) {
    (void)state;
    static const char *const prompts[] = {"\"documents\": [\"a\", \"b\"]", "\"documents\": [\"a\"]",
                                          "\"document\": \"a\"", "\"logprobs\": false"};
    for (int i = 0; i < 4; i++) {
        char body[160];
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], %s}", prompts[i]);
        ask(true, body);
        struct sl_openai_answer answer = {.request = request, .model = "m", .job_id = "job-1", .created = 7};
        Sluice__V1__Finished finished = finished_by(SLUICE__V1__FINISHED__REASON__LENGTH, "A");
        statistics.recipe = "score=reconstruct,scope=sinks:4,budget=0.33,heads=pages,when=end,format=int4";
        statistics.n_prompt_tokens = 9000;
        char *whole = sl_openai_whole(&answer, &finished);
        assert_non_null(whole);
        assert_int_equal(strstr(whole, "\"caution\":\"for questions that come later") != NULL, i < 3);
        free(whole);
        sl_openai_answer_cleanup(&answer);
    }
}

// A coordinator that reports no statistics does not end the gateway.
static void test_an_end_without_statistics(void **state) {
    (void)state;
    ask(true, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
    struct sl_openai_answer answer = {.request = request, .model = "m", .job_id = "job-1", .created = 7};
    Sluice__V1__Finished finished = finished_by(SLUICE__V1__FINISHED__REASON__LENGTH, "A");
    finished.statistics = NULL;
    char *whole = sl_openai_whole(&answer, &finished), *end = sl_openai_end(&answer, &finished);
    assert_non_null(whole);
    assert_non_null(strstr(whole, "\"total_tokens\":0"));
    assert_non_null(end);
    assert_non_null(strstr(end, "\"recipe\":\"\""));
    free(whole);
    free(end);
}

static void test_choices_of_several_prompts(void **state) {
    (void)state;
    struct sl_openai_answer answer = {.model = "m", .job_id = "job-2", .first_job_id = "job-1", .created = 7};
    ask(false, "{\"prompt\": [\"x\", \"y\"]}");
    answer.request = request;
    Sluice__V1__Finished first = finished_by(SLUICE__V1__FINISHED__REASON__LENGTH, "A"), second = first;
    second.text = "B";
    assert_said(sl_openai_whole(&answer, &first), "");
    char *whole = sl_openai_whole(&answer, &second);
    assert_non_null(whole);
    assert_non_null(strstr(whole, "\"id\":\"cmpl-job-1\""));
    assert_non_null(strstr(whole, "{\"index\":0,\"text\":\"A\""));
    assert_non_null(strstr(whole, "{\"index\":1,\"text\":\"B\""));
    assert_non_null(strstr(whole, "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":4,\"total_tokens\":14,"
                                  "\"prompt_tokens_details\":{\"cached_tokens\":8}}}"));
    free(whole);
    sl_openai_answer_cleanup(&answer);

    // A text that looks like the list of choices; and answers that are too large together.
    answer = (struct sl_openai_answer){.request = request, .model = "\"choices\":[", .job_id = "job-1", .created = 7};
    first.text = "\"choices\":[";
    assert_said(sl_openai_whole(&answer, &first), "");
    struct sl_refusal refusal = {0};
    assert_int_equal(sl_openai_check_room(&answer, &refusal), SL_OK);
    char *large = calloc(1, (65 << 20) + 1);
    second.text = memset(large, 'x', 65 << 20);
    answer.index = 0;
    assert_said(sl_openai_whole(&answer, &second), "");
    assert_int_equal(sl_openai_check_room(&answer, &refusal), SL_ERR_RANGE);
    assert_int_equal(refusal.http_status, 413);
    whole = sl_openai_whole(&answer, &first);
    json_t *parsed = json_loads(whole, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(parsed, "choices")), 3);
    assert_string_equal(json_string_value(json_object_get(parsed, "model")), "\"choices\":[");
    json_decref(parsed);
    free(whole);
    free(large);
    first.text = "A";
    second.text = "B";

    ask(false, "{\"prompt\": [\"x\", \"y\"], \"stream\": true, \"stream_options\": {\"include_usage\": true}}");
    answer = (struct sl_openai_answer){.request = request, .model = "m", .job_id = "job-1", .created = 7};
    assert_said(sl_openai_end(&answer, &first),
                "data: " TEXT "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}],"
                "\"usage\":null}\n\n");
    Sluice__V1__Token token = token_of("B", "", NULL, 0);
    assert_said(sl_openai_token(&answer, &token),
                "data: " TEXT "{\"index\":1,\"text\":\"B\",\"logprobs\":null,\"finish_reason\":null}],"
                "\"usage\":null}\n\n");
    char *end = sl_openai_end(&answer, &second);
    assert_non_null(strstr(end, "\"choices\":[],\"usage\":{\"prompt_tokens\":10,"));
    assert_string_equal(end + strlen(end) - 16, "\n\ndata: [DONE]\n\n");
    free(end);
    sl_openai_answer_cleanup(&answer);
}

static void test_codes_that_clients_look_for(void **state) {
    (void)state;
    struct sl_refusal refusal;
    struct sl_error err;
    sl_fail(&err, SL_ERR_INVALID, "chat: 9000 prompt tokens leave no room");
    sl_error_blame(&err, SL_REASON_PROMPT_TOO_LONG, "");
    sl_refuse_error(&refusal, &err);
    assert_string_equal(refusal.code, "context_length_exceeded");
    assert_string_equal(refusal.param, "messages");
    sl_refuse(&refusal, 401, "no such key");
    assert_string_equal(refusal.code, "invalid_api_key");
    sl_refuse_unknown(&refusal, "model", "no such model");
    assert_string_equal(refusal.code, "model_not_found");
}

static void test_what_failures_are_called(void **state) {
    (void)state;
    static const struct {
        enum sl_status status;
        int http_status;
        const char *text, *param;
    } rows[] = {
        {SL_ERR_INVALID, 400, "recipe: there is no axis budgt", "recipe"},
        {SL_ERR_INVALID, 400, "sampling: top_p is 3; it must be above 0", "top_p"},
        {SL_ERR_INVALID, 400, "chat: the model has no template", "messages"},
        {SL_ERR_INVALID, 400, "text: the prompt is empty", "prompt"},
        {SL_ERR_INVALID, 400, "tokens: the prompt is empty", "prompt"},
        {SL_ERR_INVALID, 400, "max_new_tokens: too many", "max_tokens"},
        {SL_ERR_INVALID, 400, "two words: no field", ""},
        {SL_ERR_EXHAUSTED, 429, "the line is full", ""},
        {SL_ERR_PEER_LOST, 503, "decode-0: lost", ""},
        {SL_ERR_NOT_FOUND, 503, "there is no job x", ""},
        {SL_ERR_NOT_FOUND, 404, "document: no document x", "document"},
        {SL_ERR_DEADLINE, 504, "too late", ""},
        {SL_ERR_DENIED, 403, "not yours", ""},
        {SL_ERR_INTERNAL, 500, "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_refusal refusal;
        struct sl_error err = {.status = rows[i].status};
        snprintf(err.text, sizeof err.text, "%s", rows[i].text);
        sl_refuse_error(&refusal, &err);
        assert_int_equal(refusal.http_status, rows[i].http_status);
        assert_string_equal(refusal.param, rows[i].param);
        char *json = sl_refusal_json(&refusal);
        char code[32];
        snprintf(code, sizeof code,
                 rows[i].http_status == 404 ? "\"code\":\"document_not_found\"}}" : "\"code\":\"%d\"}}",
                 rows[i].http_status);
        assert_non_null(strstr(json, "{\"error\":{\"message\":\""));
        assert_non_null(strstr(json, code));
        free(json);
    }
}

// A name of a client is cut between bytes, or has bytes that are not UTF-8: the reason stays.
static void test_a_refusal_of_broken_text_keeps_its_reason(void **state) {
    (void)state;
    struct sl_refusal refusal;
    sl_refuse(&refusal, 404, "there is nothing at %.3s", "/\u6a21");
    char *json = sl_refusal_json(&refusal);
    assert_non_null(strstr(json, "\"there is nothing at /??\""));
    free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refusal_of_broken_text_keeps_its_reason),
        cmocka_unit_test(test_zero_characters_are_refused_by_field),
        cmocka_unit_test_teardown(test_a_completion_is_a_request, forget),
        cmocka_unit_test_teardown(test_a_share_takes_the_recipe_for_questions_that_are_there_or_come_later, forget),
        cmocka_unit_test_teardown(test_what_asks_for_nothing_is_ignored_and_named, forget),
        cmocka_unit_test_teardown(test_what_asks_for_something_is_refused, forget),
        cmocka_unit_test_teardown(test_several_prompts, forget),
        cmocka_unit_test_teardown(test_answers_about_documents_have_a_caution, forget),
        cmocka_unit_test_teardown(test_an_end_without_statistics, forget),
        cmocka_unit_test_teardown(test_choices_of_several_prompts, forget),
        cmocka_unit_test(test_codes_that_clients_look_for),
        cmocka_unit_test_teardown(test_prompts_of_other_shapes, forget),
        cmocka_unit_test_teardown(test_a_chat_is_a_request, forget),
        cmocka_unit_test_teardown(test_a_request_about_several_documents, forget),
        cmocka_unit_test_teardown(test_the_transcript_of_a_chat, forget),
        cmocka_unit_test_teardown(test_logprobs_of_half_a_character, forget),
        cmocka_unit_test_teardown(test_one_object, forget),
        cmocka_unit_test(test_what_failures_are_called),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: every field that can be wrong is refused by name, and what is right arrives whole.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "coordinator/jobs/request.h"
#include "engine/job/job_chat.h"
#include "engine/job/job_recipe.h"
#include "engine/text/chat/chat_internal.h"

#define MODEL "models/demo"

static struct sl_tokenizer *tokenizer;
static struct sl_model_config model;
static struct sl_request_rules rules;
static const struct sl_request_setting setting = {.salt = {{1, 2, 3}}, .call_deadline_ns = SL_NO_DEADLINE};

static int load(void **state) {
    (void)state;
    struct sl_error err;
    assert_int_equal(sl_tokenizer_load(MODEL, &tokenizer, &err), SL_OK);
    assert_int_equal(sl_model_config_load(MODEL, &model, &err), SL_OK);
    rules = (struct sl_request_rules){.tokenizer = tokenizer,
                                      .model = &model,
                                      .default_recipe = "full",
                                      .default_deadline_ms = 5000,
                                      .max_deadline_ms = 100000};
    return 0;
}

static int unload(void **state) {
    (void)state;
    sl_tokenizer_destroy(&tokenizer);
    return 0;
}

static Sluice__V1__GenerateRequest good_request(void) {
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = "Once upon a time";
    return request;
}

static void refused(const Sluice__V1__GenerateRequest *request, const char *field) {
    struct sl_job_spec spec;
    struct sl_error err = {0};
    assert_int_equal(sl_request_check(&rules, request, &setting, &spec, &err), SL_ERR_INVALID);
    if (strncmp(err.text, field, strlen(field)) != 0) {
        fail_msg("the text should begin with '%s': %s", field, err.text);
    }
}

// A request with the part of the answer that a client has from a lost coordinator.
static void test_request_goes_on(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request = good_request();
    Sluice__V1__Resumption resumption = SLUICE__V1__RESUMPTION__INIT;
    Sluice__V1__TokenIds delivered = SLUICE__V1__TOKEN_IDS__INIT;
    int32_t ids[] = {7, 8, 9};
    struct sl_job_spec spec;
    struct sl_error err;
    request.resumption = &resumption;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = 3;
    int64_t now_ns = sl_now_ns();
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK); // nothing yet
    assert_int_equal(spec.n_delivered, 0);
    sl_job_spec_cleanup(&spec);
    resumption.delivered = &delivered;
    delivered.ids = ids;
    delivered.n_ids = 3;
    resumption.recipe = (char *)"full,format=int4";
    resumption.elapsed_ms = 4000;
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK);
    assert_true(spec.n_delivered == 3 && spec.delivered[2] == 9);
    assert_string_equal(spec.recipe, "full,format=int4");
    assert_true(spec.deadline_ns >= now_ns + 1000 * SL_NS_PER_MS &&
                spec.deadline_ns < sl_now_ns() + 1001 * SL_NS_PER_MS);
    assert_true(spec.submitted_ns <= sl_now_ns() - 4000 * SL_NS_PER_MS);
    sl_job_spec_cleanup(&spec);
    resumption.elapsed_ms = 6000; // its time is over
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK);
    assert_true(spec.deadline_ns <= sl_now_ns());
    sl_job_spec_cleanup(&spec);
    resumption.elapsed_ms = -1;
    refused(&request, "resumption.elapsed_ms");
    resumption.elapsed_ms = 100001;
    refused(&request, "resumption.elapsed_ms");
    resumption.elapsed_ms = 0;
    request.max_new_tokens = 2;
    refused(&request, "resumption.delivered");
    request.max_new_tokens = 3;
    ids[1] = -1;
    refused(&request, "resumption.delivered");
    ids[1] = model.n_vocab;
    refused(&request, "resumption.delivered");
    ids[1] = 8;
    resumption.recipe = (char *)"nonsense";
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_ERR_INVALID);
}

static void test_request_defaults(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request = good_request();
    struct sl_job_spec spec;
    struct sl_error err;
    int64_t now_ns = sl_now_ns();
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK);
    assert_true(spec.n_tokens >= 3);
    assert_int_equal(spec.max_new_tokens, 128);
    assert_true(spec.sampling.top_p == 1 && spec.sampling.repetition_penalty == 1 && spec.sampling.temperature == 0);
    assert_true(spec.deadline_ns >= now_ns + 5000 * SL_NS_PER_MS);
    assert_true(spec.deadline_ns < sl_now_ns() + 5001 * SL_NS_PER_MS); // a call without one has the default, not none
    assert_int_equal(spec.full_bytes, spec.n_tokens * 8 * 2 * 64 * 4);
    assert_int_equal(spec.demand.n_prefill_tokens, spec.n_tokens - 1);
    sl_job_spec_cleanup(&spec);
    assert_false(spec.ignore_eos || spec.estimate_errors);
    request.ignore_eos = true;
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK);
    assert_true(spec.ignore_eos && !spec.estimate_errors && !spec.no_reuse);
    sl_job_spec_cleanup(&spec);
    request.estimate_errors = true;
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK);
    assert_true(spec.estimate_errors);
    sl_job_spec_cleanup(&spec);
    request.no_reuse = true;
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK);
    assert_true(spec.no_reuse);
    sl_job_spec_cleanup(&spec);
    // The call's own deadline counts when it is earlier.
    const struct sl_request_setting at_once = {.salt = setting.salt, .call_deadline_ns = now_ns + 7};
    assert_int_equal(sl_request_check(&rules, &request, &at_once, &spec, &err), SL_OK);
    assert_int_equal(spec.deadline_ns, now_ns + 7);
    sl_job_spec_cleanup(&spec);
}

static void test_request_bad_prompts(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    refused(&request, "prompt:");
    request = good_request();
    request.text = "";
    refused(&request, "text:");
    request.text = "abc\xff\xfe";
    refused(&request, "text:");
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    int32_t values[3] = {1, 2, model.n_vocab};
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &ids;
    refused(&request, "tokens:");
    ids.ids = values;
    ids.n_ids = 3;
    refused(&request, "tokens: ids[2]");
    values[2] = -1;
    refused(&request, "tokens: ids[2]");
    values[2] = 3;
    struct sl_job_spec spec;
    struct sl_error err;
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_OK);
    assert_int_equal(spec.n_tokens, 3); // as they are: no begin token
    assert_memory_equal(spec.tokens, values, sizeof(values));
    sl_job_spec_cleanup(&spec);
}

// Messages in, tokens out: what the template writes, special tokens as such, and no begin token but its own.
static void test_request_renders_a_chat(void **state) {
    (void)state;
    struct sl_chat_template *chat_template = NULL;
    struct sl_error err = {0};
    assert_int_equal(
        sl_chat_template_parse("{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}{% endfor %}"
                               "{% if messages[0].role == 'critic' %}{{ raise_exception('no critics') }}"
                               "{% endif %}{% if add_generation_prompt %}<|im_end|>{% endif %}",
                               &chat_template, &err),
        SL_OK);
    Sluice__V1__ChatMessage messages[2] = {SLUICE__V1__CHAT_MESSAGE__INIT, SLUICE__V1__CHAT_MESSAGE__INIT};
    Sluice__V1__ChatMessage *list[2] = {&messages[0], &messages[1]};
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.chat = &chat;
    chat.messages = list;
    chat.n_messages = 2;
    messages[0].role = "system";
    messages[0].content = "Be brief.";
    messages[1].role = "user";
    messages[1].content = "Hello";

    rules.no_chat_because = "the model has no chat template";
    refused(&request, "chat: the model has no chat template");
    rules.chat_template = chat_template;
    struct sl_job_spec spec;
    int32_t *expected = NULL;
    size_t n_expected = 0;
    static const char text[] = "<|im_start|>system Be brief.<|im_start|>user Hello<|im_end|>";
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, strlen(text), false, &expected, &n_expected, &err), SL_OK);
    if (sl_request_check(&rules, &request, &setting, &spec, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(spec.n_tokens, n_expected);
    assert_memory_equal(spec.tokens, expected, n_expected * sizeof(*expected));
    sl_job_spec_cleanup(&spec);
    free(expected);

    messages[0].role = "critic";
    refused(&request, "chat: chat template: no critics");
    messages[0].role = "";
    refused(&request, "chat: message 0: the role has 0 bytes");
    messages[0].role = "a role whose name is longer than any that a template would be asked for";
    refused(&request, "chat: message 0: the role has 71 bytes");
    messages[0].role = "user";
    messages[0].content = "\xff";
    refused(&request, "chat: message 0: the content is not UTF-8");
    chat.n_messages = 0;
    refused(&request, "chat: 0 messages");
    chat.n_messages = SL_MAX_CHAT_MESSAGES + 1; // refused before any is looked at
    refused(&request, "chat: 4097 messages");
    chat.n_messages = 1;
    char *large = malloc(SL_MAX_CHAT_BYTES + 2);
    assert_non_null(large);
    memset(large, 'a', SL_MAX_CHAT_BYTES + 1);
    large[SL_MAX_CHAT_BYTES + 1] = '\0';
    messages[0].content = large;
    refused(&request, "chat: messages of 15728641 bytes");
    free(large);
    sl_chat_template_destroy(&chat_template);
    rules.chat_template = NULL;
}

static void test_request_bad_lengths(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request = good_request();
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = 0; // given, and not the default
    refused(&request, "max_new_tokens:");
    request.max_new_tokens = -3;
    refused(&request, "max_new_tokens:");
    request.max_new_tokens = (int32_t)model.max_positions;
    refused(&request, "text:");
    request.max_new_tokens = INT32_MAX;
    refused(&request, "text:");
    struct sl_job_spec spec;
    struct sl_error err = {0};
    assert_int_equal(sl_request_check(&rules, &request, &setting, &spec, &err), SL_ERR_INVALID);
    assert_int_equal(err.reason, SL_REASON_PROMPT_TOO_LONG);
    int64_t most = model.max_positions;
    model.max_positions = 512; // a chunk behind the prompt needs positions, too
    request.recipe = "kvzip,chunk=512";
    request.max_new_tokens = 1;
    refused(&request, "recipe: score=reconstruct repeats the prompt behind itself");
    model.max_positions = most;
}

static char *asked_document = ""; // of budget()

// Returns the budget that a request without one gets for n_tokens of a prompt.
static int32_t budget(int64_t n_tokens, bool is_chat, int64_t arena_bytes, const Sluice__V1__Resumption *resumption) {
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    ids.n_ids = (size_t)n_tokens;
    ids.ids = calloc(ids.n_ids, sizeof *ids.ids);
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &ids;
    request.resumption = (Sluice__V1__Resumption *)resumption;
    request.document = asked_document;
    const struct sl_request_setting of_it = {
        .call_deadline_ns = SL_NO_DEADLINE, .is_chat = is_chat, .arena_bytes = arena_bytes};
    struct sl_job_spec spec;
    struct sl_error err = {0};
    if (sl_request_check(&rules, &request, &of_it, &spec, &err) != SL_OK) {
        fail_msg("%lld tokens: %s", (long long)n_tokens, err.text);
    }
    int32_t n = spec.max_new_tokens;
    assert_true(n == 1 || n == spec.n_delivered || arena_bytes == 0 || spec.demand.decode_bytes <= arena_bytes);
    sl_job_spec_cleanup(&spec);
    free(ids.ids);
    return n;
}

// A number that the client did not name is no reason to refuse it.
static void test_request_without_a_budget_gets_what_fits(void **state) {
    (void)state;
    const int64_t most = model.max_positions, large = INT64_C(1) << 40;
    assert_int_equal(budget(100, false, 0, NULL), 128);
    assert_int_equal(budget(most - 92, false, large, NULL), 92);
    assert_int_equal(budget(most - 1, false, large, NULL), 1);
    assert_int_equal(budget(100, true, 0, NULL), 128);            // no worker has told yet what fits
    assert_int_equal(budget(100, true, large, NULL), most - 100); // to the end of the context
    assert_int_equal(budget(most - 92, true, large, NULL), 92);

    // 8 layers of 2 heads of 64 in f16: 4 KiB a token. A chat takes a quarter of what its prompt leaves free.
    const int64_t token_bytes = 4096, arena = 4096 * token_bytes;
    int32_t quarter = budget(100, true, arena, NULL);
    assert_true(quarter > 850 && quarter <= 1024);
    assert_true(budget(3000, true, arena, NULL) < quarter);
    assert_int_equal(budget(3800, true, arena, NULL), 128); // a quarter of that is less
    assert_int_equal(budget(100, false, arena, NULL), 128);
    int32_t all = budget(4030, false, arena, NULL); // nor does memory refuse it
    assert_true(all > 0 && all < 128);
    assert_int_equal(budget(4030, true, arena, NULL), all);
    assert_int_equal(budget(5000, true, arena, NULL), 1); // admission says that the prompt does not fit

    // A chat about a document does not run to the end of the context.
    asked_document = "gpl";
    assert_int_equal(budget(100, true, large, NULL), 1024);
    assert_int_equal(budget(most - 92, true, large, NULL), 92);
    assert_int_equal(budget(100, false, large, NULL), 128);
    asked_document = "";

    // Another coordinator has promised more: the job keeps that, as far as it fits here.
    Sluice__V1__Resumption resumption = SLUICE__V1__RESUMPTION__INIT;
    resumption.max_new_tokens = 2000;
    assert_int_equal(budget(100, true, arena, &resumption), 2000);
    assert_int_equal(budget(100, false, arena, &resumption), 2000);
    all = budget(3000, true, arena, &resumption);
    assert_true(all > 800 && all <= 1096);
    int32_t ids[2000] = {0};
    Sluice__V1__TokenIds delivered = SLUICE__V1__TOKEN_IDS__INIT;
    delivered.ids = ids;
    delivered.n_ids = 1500;
    resumption.delivered = &delivered; // the client has them
    assert_int_equal(budget(3000, true, arena, &resumption), 1500);

    Sluice__V1__GenerateRequest request = good_request();
    Sluice__V1__TokenIds whole = SLUICE__V1__TOKEN_IDS__INIT;
    whole.n_ids = (size_t)most;
    whole.ids = calloc(whole.n_ids, sizeof *whole.ids);
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &whole;
    refused(&request, "tokens: 32768 prompt tokens leave no room");
    free(whole.ids);
    request = good_request();
    request.resumption = &resumption;
    resumption.delivered = NULL;
    resumption.max_new_tokens = -1;
    refused(&request, "resumption.max_new_tokens");
}

static uint64_t seed_of(const struct sl_request_setting *of_it, const Sluice__V1__Sampling *sampling,
                        const Sluice__V1__Resumption *resumption) {
    Sluice__V1__GenerateRequest request = good_request();
    request.sampling = (Sluice__V1__Sampling *)sampling;
    request.resumption = (Sluice__V1__Resumption *)resumption;
    struct sl_job_spec spec;
    assert_int_equal(sl_request_check(&rules, &request, of_it, &spec, NULL), SL_OK);
    sl_job_spec_cleanup(&spec);
    return spec.sampling.seed;
}

static void test_request_without_a_seed_gets_another_each_time(void **state) {
    (void)state;
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    Sluice__V1__Resumption resumption = SLUICE__V1__RESUMPTION__INIT;
    const uint64_t a = seed_of(&setting, NULL, NULL), b = seed_of(&setting, &sampling, NULL),
                   c = seed_of(&setting, &sampling, &resumption); // the lost coordinator did not report a seed
    assert_true(a != b && b != c && a != c);                      // but for once in 2^52 runs
    assert_true((a | b | c) < UINT64_C(1) << 53);

    const uint64_t last = 5;
    struct sl_request_setting turn = setting;
    turn.seed = &last; // of the turn before
    assert_int_equal(seed_of(&turn, &sampling, NULL), 5);
    resumption.seed_present_case = SLUICE__V1__RESUMPTION__SEED_PRESENT_SEED;
    resumption.seed = 0;
    assert_int_equal(seed_of(&turn, &sampling, &resumption), 0); // of the job itself
    sampling.seed_present_case = SLUICE__V1__SAMPLING__SEED_PRESENT_SEED;
    resumption.seed = 6;
    assert_int_equal(seed_of(&setting, &sampling, NULL), 0); // 0 is a seed
    sampling.seed = UINT64_MAX;
    assert_true(seed_of(&turn, &sampling, &resumption) == UINT64_MAX);
}

// Sampling: the model's values, except those that the request sets.
static void test_request_takes_the_models_sampling(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request = good_request();
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    struct sl_model_config drawing = model;
    drawing.sampling = (struct sl_model_sampling){.has_temperature = true, .temperature = 0.5F, .top_k = 20};
    struct sl_request_rules of_it = rules;
    of_it.model = &drawing;
    request.sampling = &sampling;
    for (int said = 0; said < 2; said++) {
        struct sl_job_spec spec;
        struct sl_error err;
        assert_int_equal(sl_request_check(&of_it, &request, &setting, &spec, &err), SL_OK);
        assert_true(spec.sampling.temperature == (said ? 0 : 0.5F) && spec.sampling.top_k == 20);
        sl_job_spec_cleanup(&spec);
        sampling.temperature_present_case = SLUICE__V1__SAMPLING__TEMPERATURE_PRESENT_TEMPERATURE;
    }
    sampling.temperature_present_case = 0;
    sampling.usual_temperature = -1; // which counts where the model says nothing
    drawing.sampling.has_temperature = false;
    struct sl_job_spec spec;
    assert_int_equal(sl_request_check(&of_it, &request, &setting, &spec, NULL), SL_ERR_INVALID);
}

static void test_request_bad_sampling(void **state) {
    (void)state;
    Sluice__V1__GenerateRequest request = good_request();
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    request.sampling = &sampling;
    sampling.temperature_present_case = SLUICE__V1__SAMPLING__TEMPERATURE_PRESENT_TEMPERATURE;
    sampling.top_k_present_case = SLUICE__V1__SAMPLING__TOP_K_PRESENT_TOP_K;
    sampling.temperature = -1;
    refused(&request, "sampling:");
    sampling.temperature = NAN;
    refused(&request, "sampling:");
    sampling.temperature = 0;
    sampling.top_k = -1;
    refused(&request, "sampling:");
    sampling.top_k = 0;
    sampling.top_p_present_case = SLUICE__V1__SAMPLING__TOP_P_PRESENT_TOP_P;
    sampling.top_p = 0;
    refused(&request, "sampling:");
    sampling.top_p = 0.5F;
    sampling.logprobs = 21;
    refused(&request, "sampling:");
}

static void test_request_bad_stops_labels_deadlines_recipes(void **state) {
    (void)state;
    char long_text[400];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    char *stops[17];
    for (int i = 0; i < 17; i++) {
        stops[i] = "end";
    }
    Sluice__V1__GenerateRequest request = good_request();
    request.stop = stops;
    request.n_stop = 17;
    refused(&request, "stop:");
    request.n_stop = 16;
    stops[3] = "";
    refused(&request, "stop: string 3");
    stops[3] = long_text;
    refused(&request, "stop: string 3");
    stops[3] = "\xc0\x80";
    refused(&request, "stop: string 3");

    request = good_request();
    request.label = long_text;
    refused(&request, "label:");
    request.label = "\xff";
    refused(&request, "label:");

    request = good_request();
    request.deadline_ms = -1;
    refused(&request, "deadline_ms:");
    request.deadline_ms = 100001;
    refused(&request, "deadline_ms:");
    request.deadline_ms = INT64_MAX;
    refused(&request, "deadline_ms:");

    request = good_request();
    request.recipe = "nonsense";
    refused(&request, "recipe");
    request.recipe = "full,format=int4/0-99:int2"; // a layer that the model does not have
    refused(&request, "recipe");
}

static void test_request_keys_depend_on_the_recipe(void **state) {
    (void)state;
    int32_t values[300] = {0};
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    ids.ids = values;
    ids.n_ids = 300;
    Sluice__V1__GenerateRequest request = good_request();
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &ids;
    struct sl_job_spec a, b;
    struct sl_error err;
    assert_int_equal(sl_request_check(&rules, &request, &setting, &a, &err), SL_OK);
    request.recipe = "full,format=int8";
    assert_int_equal(sl_request_check(&rules, &request, &setting, &b, &err), SL_OK);
    assert_int_equal(a.n_keys, 4);
    assert_int_equal(b.n_keys, 4);
    for (int i = 0; i < 4; i++) {
        assert_true(a.keys[i] != b.keys[i]);
    }
    sl_job_spec_cleanup(&a);
    sl_job_spec_cleanup(&b);
}

static void test_request_keys_depend_on_the_tenant(void **state) {
    (void)state;
    static const struct sl_request_setting others = {.salt = {{1, 2, 4}}, .call_deadline_ns = SL_NO_DEADLINE};
    int32_t values[300] = {0};
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    ids.ids = values;
    ids.n_ids = 300;
    Sluice__V1__GenerateRequest request = good_request();
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &ids;
    struct sl_job_spec a, b;
    struct sl_error err;
    assert_int_equal(sl_request_check(&rules, &request, &setting, &a, &err), SL_OK);
    assert_int_equal(sl_request_check(&rules, &request, &others, &b, &err), SL_OK);
    assert_memory_equal(&a.salt, &setting.salt, sizeof a.salt);
    assert_memory_equal(&b.salt, &others.salt, sizeof b.salt);
    assert_int_equal(a.n_keys, 4);
    for (int i = 0; i < 4; i++) {
        assert_true(a.keys[i] != b.keys[i]);
    }
    sl_job_spec_cleanup(&a);
    sl_job_spec_cleanup(&b);
}

// The default recipe is not parsed again, whether a request names it or none; other recipes are.
static void test_the_default_recipe_is_known(void **state) {
    (void)state;
    static const char *const recipes[] = {"", "full", "full,format=int8"};
    struct sl_known_recipe known = {.fingerprint = 5};
    struct sl_request_rules knowing = rules;
    struct sl_error err;
    char words[2000] = "";
    while (strlen(words) < sizeof words - 10) {
        strcat(words, "a word ");
    }
    assert_int_equal(sl_job_recipe("full,format=int4", &model, &known.recipe, &err), SL_OK);
    sl_recipe_format(&known.recipe, known.text, sizeof known.text);
    knowing.known = &known;
    for (int i = 0; i < 3; i++) {
        Sluice__V1__GenerateRequest request = good_request();
        request.text = words;
        request.recipe = (char *)recipes[i];
        struct sl_job_spec parsed, spec;
        assert_int_equal(sl_request_check(&rules, &request, &setting, &parsed, &err), SL_OK);
        assert_int_equal(sl_request_check(&knowing, &request, &setting, &spec, &err), SL_OK);
        assert_true(parsed.n_keys > 0 && spec.n_keys == parsed.n_keys);
        if (i < 2) {
            assert_string_equal(spec.recipe, known.text);
            assert_int_equal(spec.parsed_recipe.format, known.recipe.format);
            assert_true(spec.keys[0] != parsed.keys[0]); // they have the recipe's fingerprint
        } else {
            assert_string_equal(spec.recipe, parsed.recipe);
            assert_true(spec.keys[0] == parsed.keys[0]);
        }
        sl_job_spec_cleanup(&parsed);
        sl_job_spec_cleanup(&spec);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_default_recipe_is_known),
        cmocka_unit_test(test_request_goes_on),
        cmocka_unit_test(test_request_defaults),
        cmocka_unit_test(test_request_bad_prompts),
        cmocka_unit_test(test_request_renders_a_chat),
        cmocka_unit_test(test_request_bad_lengths),
        cmocka_unit_test(test_request_without_a_budget_gets_what_fits),
        cmocka_unit_test(test_request_without_a_seed_gets_another_each_time),
        cmocka_unit_test(test_request_takes_the_models_sampling),
        cmocka_unit_test(test_request_bad_sampling),
        cmocka_unit_test(test_request_bad_stops_labels_deadlines_recipes),
        cmocka_unit_test(test_request_keys_depend_on_the_recipe),
        cmocka_unit_test(test_request_keys_depend_on_the_tenant),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

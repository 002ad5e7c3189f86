// SPDX-License-Identifier: Apache-2.0
// Stop strings, end tokens, lengths and resuming, with the demo model's tokenizer and logits that force each token.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/runner/output.h"

struct fixture {
    struct sl_tokenizer *tokenizer;
    struct sl_model_config model;
    float *logits;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct sl_error err = {0};
    assert_int_equal(sl_tokenizer_load("models/demo", &fixture->tokenizer, &err), SL_OK);
    assert_int_equal(sl_model_config_load("models/demo", &fixture->model, &err), SL_OK);
    fixture->logits = calloc((size_t)fixture->model.n_vocab, sizeof(float));
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_tokenizer_destroy(&fixture->tokenizer);
    free(fixture->logits);
    free(fixture);
    return 0;
}

static struct sl_output_config config_of(const struct fixture *fixture, int64_t max_new_tokens) {
    static const int32_t prompt[] = {1, 2, 3};
    return (struct sl_output_config){.tokenizer = fixture->tokenizer,
                                     .model = &fixture->model,
                                     .sampling = {.top_p = 1, .repetition_penalty = 1},
                                     .max_new_tokens = max_new_tokens,
                                     .prompt = prompt,
                                     .n_prompt = 3};
}

// Have the step choose `id`.
static struct sl_output_token choose(struct fixture *fixture, struct sl_output *output, int32_t id) {
    memset(fixture->logits, 0, sizeof(float) * (size_t)fixture->model.n_vocab);
    fixture->logits[id] = 10;
    struct sl_output_token written;
    sl_choice_take_row(sl_output_choice(output), fixture->logits);
    assert_int_equal(sl_output_next(output, &written, NULL), SL_OK);
    return written;
}

static struct sl_output_token force(struct fixture *fixture, struct sl_output *output, int32_t id) {
    struct sl_output_token written = choose(fixture, output, id);
    assert_int_equal(written.token.id, id);
    return written;
}

// Write `text` token by token; what was shown is appended to `shown`. Returns how it stopped.
static enum sl_stop_reason write_text(struct fixture *fixture, struct sl_output *output, const char *text,
                                      char *shown) {
    int32_t *ids;
    size_t n_ids;
    assert_int_equal(sl_tokenizer_encode(fixture->tokenizer, text, strlen(text), false, &ids, &n_ids, NULL), SL_OK);
    enum sl_stop_reason stop = SL_STOP_NONE;
    for (size_t i = 0; i < n_ids && stop == SL_STOP_NONE; i++) {
        struct sl_output_token written = force(fixture, output, ids[i]);
        assert_int_equal(written.index + 1, sl_output_n_tokens(output));
        strcat(shown, written.text);
        stop = written.stop;
    }
    free(ids);
    return stop;
}

static void test_output_stop_string_never_shows_not_even_in_part(void **state) {
    struct fixture *fixture = *state;
    const char *stops[] = {"END OF", "###"};
    struct sl_output_config config = config_of(fixture, 100);
    config.stops = stops;
    config.n_stops = 2;
    struct sl_output *output;
    assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
    char shown[1000] = "";
    // "EN" and "##" look like the beginning of a stop string and turn out not to be one.
    assert_int_equal(write_text(fixture, output, "an ENGINE ## of END OF the text", shown), SL_STOP_STRING);
    assert_string_equal(shown, "an ENGINE ## of ");
    assert_string_equal(sl_output_text(output), shown);
    sl_output_destroy(&output);
}

#define IM_END 2047 // "<|im_end|>"

// Special tokens are not part of the text, but stop strings see them.
static void test_output_stop_string_matches_special_tokens(void **state) {
    struct fixture *fixture = *state;
    static const struct {
        const char *stop, *before; // the special token comes after `before`
        const char *shown;
        enum sl_stop_reason reason; // where the token ends no answer (ignore_eos),
        enum sl_stop_reason ending; // and where it does
    } cases[] = {
        {"<|im_end|>", "the text", "the text", SL_STOP_STRING, SL_STOP_TOKEN},
        {" text<|im_end|>", "the text", "the", SL_STOP_STRING, SL_STOP_STRING},
        {"<|im_", "the text", "the text", SL_STOP_STRING, SL_STOP_TOKEN},
        {"<|im_end|>\n", "the text", "the text", SL_STOP_NONE, SL_STOP_TOKEN},
        {"text<|im_start|>", "the text", "the text", SL_STOP_NONE, SL_STOP_TOKEN},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        bool ignores = i % 2 == 0;
        struct sl_output_config config = config_of(fixture, 100);
        config.stops = &cases[i / 2].stop;
        config.n_stops = 1;
        config.ignore_eos = ignores;
        struct sl_output *output;
        assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
        char shown[1000] = "";
        assert_int_equal(write_text(fixture, output, cases[i / 2].before, shown), SL_STOP_NONE);
        struct sl_output_token written = force(fixture, output, IM_END);
        strcat(shown, written.text);
        assert_int_equal(written.stop, ignores ? cases[i / 2].reason : cases[i / 2].ending);
        if (written.stop == SL_STOP_NONE) { // "\n" completes one of them; the other was none
            strcat(shown, force(fixture, output, 5).text);
            assert_non_null(strstr(shown, cases[i / 2].shown));
        } else {
            assert_string_equal(shown, cases[i / 2].shown);
        }
        sl_output_destroy(&output);
    }
}

static void test_output_stop_string_goes_on_after_a_special_token(void **state) {
    struct fixture *fixture = *state;
    const char *stop = "a<|im_end|>b";
    struct sl_output_config config = config_of(fixture, 100);
    config.stops = &stop;
    config.n_stops = 1;
    config.ignore_eos = true;
    for (int ends = 0; ends < 2; ends++) {
        struct sl_output *output;
        assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
        char shown[1000] = "";
        assert_int_equal(write_text(fixture, output, "za", shown), SL_STOP_NONE);
        assert_string_equal(force(fixture, output, IM_END).text, "");
        assert_null(strchr(shown, 'a')); // held back
        assert_int_equal(write_text(fixture, output, ends ? "b" : "c", shown), ends ? SL_STOP_STRING : SL_STOP_NONE);
        assert_string_equal(shown, ends ? "z" : "zac");
        sl_output_destroy(&output);
    }
}

static void test_output_shows_what_was_held_back_when_it_ends(void **state) {
    struct fixture *fixture = *state;
    const char *stops[] = {"END OF"};
    struct sl_output_config config = config_of(fixture, 100);
    config.stops = stops;
    config.n_stops = 1;
    struct sl_output *output;
    assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
    char shown[1000] = "";
    assert_int_equal(write_text(fixture, output, "the E", shown), SL_STOP_NONE);
    assert_null(strchr(shown, 'E'));
    struct sl_output_token written = force(fixture, output, fixture->model.ends.ids[0]);
    assert_int_equal(written.stop, SL_STOP_TOKEN);
    strcat(shown, written.text);
    assert_string_equal(shown, "the E");
    sl_output_destroy(&output);
}

static void test_output_length_and_ignored_end(void **state) {
    struct fixture *fixture = *state;
    struct sl_output_config config = config_of(fixture, 3);
    config.ignore_eos = true;
    struct sl_output *output;
    assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
    assert_int_equal(force(fixture, output, fixture->model.ends.ids[0]).stop, SL_STOP_NONE);
    assert_int_equal(force(fixture, output, 5).stop, SL_STOP_NONE);
    assert_int_equal(force(fixture, output, 6).stop, SL_STOP_LENGTH);
    sl_output_destroy(&output);
}

static void test_output_resumed_goes_on_exactly_where_it_was(void **state) {
    struct fixture *fixture = *state;
    const char *text = "caf\xc3\xa9 \xe2\x82\xac"
                       "5 and STOPS here, STOP it";
    const char *stops[] = {"STOP it"};
    int32_t *ids;
    size_t n_ids;
    assert_int_equal(sl_tokenizer_encode(fixture->tokenizer, text, strlen(text), false, &ids, &n_ids, NULL), SL_OK);
    for (size_t cut = 0; cut < n_ids; cut++) {
        char shown[1000] = "";
        for (int attempt = 0; attempt < 2; attempt++) {
            struct sl_output_config config = config_of(fixture, 100);
            config.stops = stops;
            config.n_stops = 1;
            config.resumed = ids;
            config.n_resumed = attempt ? (int64_t)cut : 0;
            struct sl_output *output;
            assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
            enum sl_stop_reason stop = SL_STOP_NONE;
            for (size_t i = attempt ? cut : 0; i < (attempt ? n_ids : cut) && stop == SL_STOP_NONE; i++) {
                struct sl_output_token written = force(fixture, output, ids[i]);
                assert_int_equal(written.index, i);
                strcat(shown, written.text);
                stop = written.stop;
            }
            if (attempt) {
                assert_int_equal(stop, SL_STOP_STRING);
                assert_string_equal(sl_output_text(output), shown);
            }
            sl_output_destroy(&output);
        }
        assert_string_equal(shown, "caf\xc3\xa9 \xe2\x82\xac"
                                   "5 and STOPS here, ");
    }
    free(ids);
}

// A token that readers already have is repeated, whichever one is sampled in its place; the token after it is sampled.
static void test_output_says_again_what_was_said(void **state) {
    struct fixture *fixture = *state;
    const int32_t resumed[] = {5, 6}, said = 7;
    struct sl_output_config config = config_of(fixture, 5);
    config.resumed = resumed;
    config.n_resumed = 2;
    config.said = &said;
    struct sl_output *output;
    assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
    struct sl_output_token written = choose(fixture, output, 9);
    assert_int_equal(written.index, 2);
    assert_int_equal(written.token.id, said);
    assert_int_equal(written.stop, SL_STOP_NONE);
    assert_int_equal(force(fixture, output, 9).token.id, 9);
    sl_output_destroy(&output);

    config.said = fixture->model.ends.ids;
    assert_int_equal(sl_output_create(&config, &output, NULL), SL_OK);
    assert_int_equal(choose(fixture, output, 9).stop, SL_STOP_TOKEN);
    sl_output_destroy(&output);
}

static void test_output_refuses_bad_parameters_by_name(void **state) {
    struct fixture *fixture = *state;
    struct sl_output *output = NULL;
    struct sl_error err = {0};
    struct sl_output_config config = config_of(fixture, 0);
    assert_int_equal(sl_output_create(&config, &output, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "max_new_tokens"));
    config = config_of(fixture, 5);
    const char *stops[] = {""};
    config.stops = stops;
    config.n_stops = 1;
    assert_int_equal(sl_output_create(&config, &output, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "stop string"));
    config = config_of(fixture, 5);
    config.sampling.top_p = 0;
    assert_int_equal(sl_output_create(&config, &output, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "top_p"));
    assert_null(output);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_output_stop_string_never_shows_not_even_in_part, setup, teardown),
        cmocka_unit_test_setup_teardown(test_output_stop_string_matches_special_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(test_output_stop_string_goes_on_after_a_special_token, setup, teardown),
        cmocka_unit_test_setup_teardown(test_output_shows_what_was_held_back_when_it_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_output_length_and_ignored_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_output_resumed_goes_on_exactly_where_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(test_output_says_again_what_was_said, setup, teardown),
        cmocka_unit_test_setup_teardown(test_output_refuses_bad_parameters_by_name, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

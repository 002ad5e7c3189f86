// SPDX-License-Identifier: Apache-2.0
#include "engine/model/generation/generation.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

// The same bound as for users' requests (client/cli/request.h).
#define MAX_TEMPERATURE 100.0
#define MIN_TOP_P       1e-6
#define MIN_PENALTY     1e-3
#define MAX_PENALTY     100.0

// Parameters that change answers in other engines and are not supported here. To support one: add a field to struct
// sl_model_sampling, and remove its row.
static const struct {
    const char *name;
    double neutral; // value without effect; so is an empty list or text
} undone[] = {
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"top_h", 1},
    {"presence_penalty", 0},
    {"frequency_penalty", 0},
    {"encoder_repetition_penalty", 1},
    {"no_repeat_ngram_size", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"bad_words_ids", 0},
    {"suppress_tokens", 0},
    {"begin_suppress_tokens", 0},
    {"sequence_bias", 0},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"num_beams", 1},
    {"penalty_alpha", 0},
    {"guidance_scale", 1},
    // Keys of GGUF files.
    {"sequence", 0},
    {"penalty_last_n", -1},
    {"mirostat", 0},
    {"xtc_probability", 0},
    {"penalty_freq", 0},
    {"penalty_present", 0},
};

static bool asks_for_something(const json_t *value, double neutral) {
    if (json_is_number(value)) {
        return json_number_value(value) != neutral;
    }
    return json_is_true(value) || json_array_size(value) > 0 || json_object_size(value) > 0 ||
           json_string_length(value) > 0;
}

static void list_undone(const json_t *root, char *list, size_t bytes) {
    size_t used = 0;
    for (size_t i = 0; i < sizeof undone / sizeof undone[0]; i++) {
        if (asks_for_something(json_object_get(root, undone[i].name), undone[i].neutral) && used < bytes) {
            used += (size_t)snprintf(list + used, bytes - used, "%s%s", used > 0 ? ", " : "", undone[i].name);
        }
    }
}

// Returns the value of a key, NULL if the file gives none.
static const json_t *given(const json_t *root, const char *key) {
    const json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

// Reads a number between min and max; writes nothing if the file gives none.
static enum sl_status get(const json_t *root, const char *file, const char *key, double min, double max,
                          float *value_out, struct sl_error *err) {
    const json_t *value = given(root, key);
    double number = json_number_value(value);
    if (value == NULL) {
        return SL_OK;
    }
    // Written so that a value that is not a number fails, too.
    SL_FAIL_IF(!json_is_number(value) || !(number >= min && number <= max), err, SL_ERR_INVALID,
               "%s: %s must be a number, %g to %g", file, key, min, max);
    *value_out = (float)number;
    return SL_OK;
}

static enum sl_status get_top_k(const json_t *root, const char *file, int *top_k_out, struct sl_error *err) {
    const json_t *value = given(root, "top_k");
    if (value == NULL) {
        return SL_OK;
    }
    json_int_t k = json_integer_value(value);
    SL_FAIL_IF(!json_is_integer(value) || k < -1 || k > INT_MAX, err, SL_ERR_INVALID,
               "%s: top_k must be an integer, 1 to %d, or 0 or -1 for off", file, INT_MAX);
    *top_k_out = k > 0 ? (int)k : 0;
    return SL_OK;
}

enum sl_status sl_model_sampling_read(const json_t *root, const char *file, struct sl_model_sampling *sampling_out,
                                      struct sl_error *err) {
    struct sl_model_sampling s = {.has_temperature = given(root, "temperature") != NULL};
    const json_t *draws = given(root, "do_sample");
    SL_FAIL_IF(draws != NULL && !json_is_boolean(draws), err, SL_ERR_INVALID, "%s: do_sample must be true or false",
               file);
    enum sl_status status = get(root, file, "temperature", 0, MAX_TEMPERATURE, &s.temperature, err);
    SL_THEN(status, get_top_k(root, file, &s.top_k, err));
    SL_THEN(status, get(root, file, "top_p", MIN_TOP_P, 1, &s.top_p, err));
    SL_THEN(status, get(root, file, "repetition_penalty", MIN_PENALTY, MAX_PENALTY, &s.repetition_penalty, err));
    SL_THEN(status, get(root, file, "min_p", 0, 1, &s.min_p, err));
    SL_TRY(status);
    if (json_is_false(draws)) {
        s.has_temperature = true;
        s.temperature = 0;
    } else if (json_is_true(draws) && !s.has_temperature) { // Transformers' default
        s.has_temperature = true;
        s.temperature = 1;
    }
    list_undone(root, s.left_out, sizeof s.left_out);
    *sampling_out = s;
    return SL_OK;
}

char *sl_model_sampling_text(const struct sl_model_sampling *sampling, char *buf, size_t buf_bytes) {
    const struct {
        const char *name;
        bool is_set;
        double value;
    } parts[] = {{"temperature", sampling->has_temperature, (double)sampling->temperature},
                 {"top_k", sampling->top_k > 0, sampling->top_k},
                 {"top_p", sampling->top_p > 0, (double)sampling->top_p},
                 {"repetition_penalty", sampling->repetition_penalty > 0, (double)sampling->repetition_penalty},
                 {"min_p", sampling->min_p > 0, (double)sampling->min_p}};
    size_t used = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].is_set && used < buf_bytes) {
            used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%s %g", used > 0 ? ", " : "", parts[i].name,
                                     parts[i].value);
        }
    }
    return buf;
}

void sl_model_sampling_log(const struct sl_model_sampling *sampling, const char *component) {
    char text[128];
    if (sl_model_sampling_text(sampling, text, sizeof text)[0] != '\0') {
        sl_log_info(component, "requests that do not say get the model's own sampling: %s", text);
    }
    if (sampling->left_out[0] != '\0') {
        sl_log_warn(component, "the model's generation settings ask for what is not done here: %s", sampling->left_out);
    }
}

enum sl_status sl_model_sampling_choose(const char *word, struct sl_model_sampling *sampling, struct sl_error *err) {
    if (strcmp(word, "none") == 0) {
        *sampling = (struct sl_model_sampling){0};
        return SL_OK;
    }
    return strcmp(word, "auto") == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "--generation-config %.40s: expected auto or none", word);
}

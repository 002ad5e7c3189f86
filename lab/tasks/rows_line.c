// SPDX-License-Identifier: Apache-2.0
#include "lab/tasks/rows_line.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "engine/text/tokenizer/tokenizer.h"

// Returns a member of the object, NULL if it is missing or null.
static json_t *member(json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static enum sl_status add_answer(json_t *value, const char *name, struct sl_sample *sample, struct sl_error *err) {
    char number[32];
    if (json_is_string(value)) {
        return sl_sample_add_answer(sample, json_string_value(value), json_string_length(value), err);
    }
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return sl_sample_add_answer(sample, number, strlen(number), err);
    }
    if (json_is_real(value)) {
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
        return sl_sample_add_answer(sample, number, strlen(number), err);
    }
    return sl_fail(err, SL_ERR_INVALID, "\"%s\" must be a text, a number, or a list of those", name);
}

static enum sl_status read_answers(json_t *line, struct sl_sample *sample, struct sl_error *err) {
    const char *name = member(line, "answers") ? "answers" : "answer";
    json_t *answers = member(line, name), *one;
    size_t i;
    SL_FAIL_IF(!answers, err, SL_ERR_INVALID, "there is no \"answers\"");
    enum sl_status status = json_is_array(answers) ? SL_OK : add_answer(answers, name, sample, err);
    json_array_foreach(answers, i, one) {
        status = status == SL_OK ? add_answer(one, name, sample, err) : status;
    }
    return status == SL_OK && sample->n_answers == 0
               ? sl_fail(err, SL_ERR_INVALID, "\"%s\" is empty: nothing would be right", name)
               : status;
}

static enum sl_status read_prompt(json_t *line, struct sl_sample *sample, struct sl_error *err) {
    json_t *prompt = member(line, "prompt");
    SL_FAIL_IF(!json_is_string(prompt) || json_string_length(prompt) == 0, err, SL_ERR_INVALID,
               prompt ? "\"prompt\" must be a text, not an empty one" : "there is no \"prompt\"");
    sample->prompt = strdup(json_string_value(prompt));
    return sample->prompt ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a prompt");
}

enum sl_status sl_row_read(const char *line, size_t n_bytes, struct sl_sample *sample_out, struct sl_error *err) {
    json_error_t cause;
    size_t bad;
    SL_FAIL_IF(!sl_utf8_valid(line, n_bytes, &bad), err, SL_ERR_INVALID,
               "byte %zu is not valid UTF-8; convert the file with iconv", bad);
    json_t *root = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES, &cause);
    SL_FAIL_IF(!root, err, SL_ERR_INVALID, "byte %d: %s", cause.position, cause.text);
    struct sl_sample sample = {0};
    enum sl_status status =
        json_is_object(root) ? SL_OK : sl_fail(err, SL_ERR_INVALID, "a line must be a JSON object: {...}");
    status = status == SL_OK ? read_answers(root, &sample, err) : status;
    status = status == SL_OK ? read_prompt(root, &sample, err) : status;
    json_decref(root);
    if (status == SL_OK) {
        *sample_out = sample;
    } else {
        sl_sample_cleanup(&sample);
    }
    return status;
}

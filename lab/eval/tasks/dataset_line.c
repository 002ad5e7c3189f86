// SPDX-License-Identifier: Apache-2.0
// Purpose: one line of a data set. See dataset_line.h.
#include "lab/eval/tasks/dataset_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lab/eval/metrics/metric.h"
#include "engine/text/tokenizer/tokenizer.h"

// To add one: a row, and its form in dataset.h.
static const struct sl_dataset_format formats[] = {
    {"longbench", "input", "answers", NULL, NULL, "{context}\n{input}", NULL, false},
    {"infinitebench", "input", "answer", NULL, NULL, "{context}\n{input}", NULL, true},
    {"ruler", "input", "outputs", "answer_prefix", NULL, "{input}", "contains-all", false},
    {"sluice", "prompt", "answers", NULL, "answer", "{input}", "contains-all", false},
    {0},
};

const struct sl_dataset_format *sl_dataset_formats(void) {
    return formats;
}

const struct sl_dataset_format *sl_dataset_format_find(const char *name) {
    for (const struct sl_dataset_format *format = formats; format->name; format++) {
        if (strcmp(format->name, name) == 0) {
            return format;
        }
    }
    return NULL;
}

// --- members -----------------------------------------------------------------------------------------------------

// Returns a member of the object, NULL if it is missing or null.
static json_t *member(json_t *object, const char *name) {
    json_t *value = name ? json_object_get(object, name) : NULL;
    return json_is_null(value) ? NULL : value;
}

static enum sl_status add_text(enum sl_status (*add)(struct sl_sample *, const char *, size_t, struct sl_error *),
                               json_t *value, const char *name, struct sl_sample *sample, struct sl_error *err) {
    char number[32];
    if (json_is_string(value)) {
        return add(sample, json_string_value(value), json_string_length(value), err);
    }
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return add(sample, number, strlen(number), err);
    }
    if (json_is_real(value)) {
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
        return add(sample, number, strlen(number), err);
    }
    return sl_fail(err, SL_ERR_INVALID, "\"%s\" must be a text, a number, or a list of those", name);
}

// Adds a text or a number, or a list of them.
static enum sl_status add_texts(enum sl_status (*add)(struct sl_sample *, const char *, size_t, struct sl_error *),
                                json_t *value, const char *name, struct sl_sample *sample, struct sl_error *err) {
    if (!json_is_array(value)) {
        return add_text(add, value, name, sample, err);
    }
    size_t i;
    json_t *one;
    json_array_foreach(value, i, one) {
        enum sl_status status = add_text(add, one, name, sample, err);
        if (status != SL_OK) {
            return status;
        }
    }
    return SL_OK;
}

// --- the prompt --------------------------------------------------------------------------------------------------

static enum sl_status missing(const char *name, struct sl_error *err) {
    return sl_fail(err, SL_ERR_INVALID, "there is no \"%s\", which the prompt of this data set has a place for", name);
}

static enum sl_status put_text(json_t *line, const char *name, FILE *out, struct sl_error *err) {
    json_t *value = member(line, name);
    if (!json_is_string(value)) {
        return value ? sl_fail(err, SL_ERR_INVALID, "\"%s\" must be a text", name) : missing(name, err);
    }
    fwrite(json_string_value(value), 1, json_string_length(value), out);
    return SL_OK;
}

// Writes "A. first\nB. second".
static enum sl_status put_options(json_t *line, FILE *out, struct sl_error *err) {
    json_t *options = member(line, "options"), *option;
    if (!options || json_array_size(options) == 0) {
        return missing("options", err);
    }
    size_t i;
    json_array_foreach(options, i, option) {
        if (!json_is_string(option) || i >= 26) {
            return sl_fail(err, SL_ERR_INVALID, "\"options\" must be at most 26 texts");
        }
        fprintf(out, "%s%c. %s", i > 0 ? "\n" : "", (char)('A' + i), json_string_value(option));
    }
    return SL_OK;
}

static enum sl_status put_input(const struct sl_dataset_format *format, json_t *line, FILE *out, struct sl_error *err) {
    enum sl_status status = put_text(line, format->input, out, err);
    if (status == SL_OK && member(line, format->input_end)) {
        status = put_text(line, format->input_end, out, err);
    }
    return status;
}

// Writes the prompt with its placeholders replaced; other braces stay.
static enum sl_status write_prompt(const struct sl_dataset_form *form, json_t *line, FILE *out, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (const char *at = form->prompt; *at && status == SL_OK;) {
        if (strncmp(at, "{context}", 9) == 0) {
            status = put_text(line, "context", out, err);
            at += 9;
        } else if (strncmp(at, "{input}", 7) == 0) {
            status = put_input(form->format, line, out, err);
            at += 7;
        } else if (strncmp(at, "{options}", 9) == 0) {
            status = put_options(line, out, err);
            at += 9;
        } else {
            fputc(*at++, out);
        }
    }
    return status;
}

static enum sl_status make_prompt(const struct sl_dataset_form *form, json_t *line, char **prompt_out,
                                  struct sl_error *err) {
    char *prompt = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&prompt, &n_bytes);
    if (!out) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a prompt");
    }
    enum sl_status status = write_prompt(form, line, out, err);
    bool failed = ferror(out);
    if ((fclose(out) != 0 || failed) && status == SL_OK) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a prompt");
    }
    if (status == SL_OK && n_bytes == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "the prompt is empty");
    }
    if (status == SL_OK) {
        *prompt_out = prompt;
    } else {
        free(prompt);
    }
    return status;
}

// --- the answer --------------------------------------------------------------------------------------------------

// Adds the letter of a choice: it is scored by the option's text and its letter, and the file may only have the text.
static enum sl_status add_letter(json_t *line, struct sl_sample *sample, struct sl_error *err) {
    if (sample->n_answers == 2 && strlen(sample->answers[1]) == 1 && strchr("ABCD", sample->answers[1][0])) {
        return SL_OK;
    }
    json_t *option;
    size_t i;
    json_array_foreach(member(line, "options"), i, option) {
        if (sample->n_answers == 1 && i < 4 && json_is_string(option) &&
            strcmp(json_string_value(option), sample->answers[0]) == 0) {
            return sl_sample_add_answer(sample, &"ABCD"[i], 1, err);
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "the answer is none of the first four \"options\"");
}

static enum sl_status read_answers(const struct sl_dataset_form *form, json_t *line, struct sl_sample *sample,
                                   struct sl_error *err) {
    const struct sl_dataset_format *format = form->format;
    const char *name = member(line, format->answers) ? format->answers : format->answers2;
    json_t *answers = member(line, name), *classes = member(line, "all_classes");
    if (!answers) {
        return sl_fail(err, SL_ERR_INVALID, "there is no \"%s\"", format->answers);
    }
    enum sl_status status = add_texts(sl_sample_add_answer, answers, name, sample, err);
    if (status == SL_OK && sample->n_answers == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "\"%s\" is empty: nothing would be right", name);
    }
    if (status == SL_OK && format->letters && strstr(form->metric->name, "choice")) {
        status = add_letter(line, sample, err);
    }
    classes = classes ? classes : member(line, "classes");
    if (status == SL_OK && classes) {
        status = add_texts(sl_sample_add_class, classes, "classes", sample, err);
    }
    if (status == SL_OK) { // finds answers that the metric cannot read now, not after the model has answered
        double ignored;
        status = form->metric->score(sample, "", &ignored, err);
    }
    return status;
}

enum sl_status sl_dataset_read_line(const struct sl_dataset_form *form, const char *line, size_t n_bytes,
                                    struct sl_sample *sample_out, struct sl_error *err) {
    json_error_t cause;
    size_t bad;
    if (!sl_utf8_valid(line, n_bytes, &bad)) {
        return sl_fail(err, SL_ERR_INVALID, "byte %zu is not valid UTF-8; convert the file with iconv", bad);
    }
    json_t *root = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES, &cause);
    if (!root) {
        return sl_fail(err, SL_ERR_INVALID, "byte %d: %s", cause.position, cause.text);
    }
    struct sl_sample sample = {.metric = form->metric, .max_new_tokens = form->max_new_tokens};
    enum sl_status status =
        json_is_object(root) ? SL_OK : sl_fail(err, SL_ERR_INVALID, "a line must be a JSON object: {...}");
    if (status == SL_OK) {
        status = read_answers(form, root, &sample, err);
    }
    if (status == SL_OK) {
        status = make_prompt(form, root, &sample.prompt, err);
    }
    json_decref(root);
    if (status == SL_OK) {
        *sample_out = sample;
    } else {
        sl_sample_cleanup(&sample);
    }
    return status;
}

// SPDX-License-Identifier: Apache-2.0
#include "lab/train/training_forms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The wording of the tasks (lab/tasks/task_parts.c).
#define FACT     " One of the special magic numbers for "
#define IS       " is: "
#define QUESTION "\nWhat is the special magic number for "

#define CODE                                                                                                           \
    " The code of {key} is {value}.", "\nQuestion: What is the code of {key}?\nAnswer: The code of {key} is",          \
        " {value}."
#define LINE "\n{key}: {value}\n", "\n{key}:", " {value}"

// To add one: a row. The task must be one whose facts are needles of numbers.
static const struct sl_training_form forms[] = {
    {"code", "niah-essay", CODE},
    {"code-4", "multikey-4", CODE},
    {"line", "niah-essay", LINE},
    {"line-4", "multikey-4", LINE},
    {0},
};

const struct sl_training_form *sl_training_forms(void) {
    return forms;
}

const struct sl_training_form *sl_training_form_find(const char *name) {
    for (const struct sl_training_form *form = forms; form->name; form++) {
        if (strcmp(form->name, name) == 0) {
            return form;
        }
    }
    return NULL;
}

struct span {
    const char *text;
    size_t n;
};

// Prints `pattern` with {key} and {value} replaced.
static void print_pattern(FILE *out, const char *pattern, struct span key, struct span value) {
    while (*pattern) {
        const char *brace = strchr(pattern, '{');
        size_t n = brace ? (size_t)(brace - pattern) : strlen(pattern);
        fwrite(pattern, 1, n, out);
        pattern += n;
        if (brace) {
            struct span what = pattern[1] == 'k' ? key : value;
            fwrite(what.text, 1, what.n, out);
            pattern = strchr(pattern, '}') + 1;
        }
    }
}

// Reads a fact at the start of the text: its key, its value, and the text after it. Returns false if there is none.
static bool read_fact(const char *text, struct span *key, struct span *value, const char **behind) {
    if (strncmp(text, FACT, sizeof FACT - 1) != 0) {
        return false;
    }
    key->text = text + sizeof FACT - 1;
    const char *is = strstr(key->text, IS);
    if (!is) {
        return false;
    }
    key->n = (size_t)(is - key->text);
    value->text = is + sizeof IS - 1;
    value->n = strcspn(value->text, ".");
    *behind = value->text + value->n + (value->text[value->n] == '.');
    return true;
}

static void print_prompt(FILE *out, const struct sl_training_form *form, const char *prompt, const char *question) {
    struct span key, value = {0};
    for (const char *at = prompt; at < question;) {
        const char *next = strstr(at, FACT), *behind;
        if (!next || next > question || !read_fact(next, &key, &value, &behind)) {
            next = question;
        }
        fwrite(at, 1, (size_t)(next - at), out);
        if (next < question) {
            print_pattern(out, form->fact, key, value);
            next = behind;
        }
        at = next;
    }
    key.text = question + sizeof QUESTION - 1;
    key.n = strcspn(key.text, " ");
    print_pattern(out, form->question, key, value);
}

static enum sl_status finish(FILE *out, struct sl_error *err) {
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    return failed ? sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for a prompt") : SL_OK;
}

enum sl_status sl_training_form_apply(const struct sl_training_form *form, struct sl_sample *sample,
                                      struct sl_error *err) {
    const char *question = strstr(sample->prompt, QUESTION);
    if (!question || sample->n_answers != 1) {
        return sl_fail(err, SL_ERR_INTERNAL, "%s: %s asks in other words than this form knows", form->name, form->task);
    }
    char *prompt = NULL, *completion = NULL;
    size_t n;
    FILE *out = open_memstream(&prompt, &n);
    enum sl_status status = SL_ERR_EXHAUSTED;
    if (out) {
        print_prompt(out, form, sample->prompt, question);
        status = finish(out, err);
    }
    out = status == SL_OK ? open_memstream(&completion, &n) : NULL;
    if (out) {
        struct span value = {sample->answers[0], strlen(sample->answers[0])};
        print_pattern(out, form->answer, value, value);
        status = finish(out, err);
    }
    if (!prompt || !completion || status != SL_OK) {
        free(prompt);
        free(completion);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for a prompt");
    }
    free(sample->prompt);
    free(sample->completion);
    sample->prompt = prompt;
    sample->completion = completion;
    return SL_OK;
}

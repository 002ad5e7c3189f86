// SPDX-License-Identifier: Apache-2.0
// Purpose: memory of samples.
#include "lab/eval/metrics/sample.h"

#include <stdlib.h>
#include <string.h>

static void free_texts(char **texts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(texts[i]);
    }
    free(texts);
}

void sl_sample_cleanup(struct sl_sample *sample) {
    free(sample->prompt);
    free(sample->completion);
    free_texts(sample->answers, sample->n_answers);
    free_texts(sample->classes, sample->n_classes);
    *sample = (struct sl_sample){0};
}

static enum sl_status add(char ***texts, size_t *n, const char *text, size_t n_bytes, struct sl_error *err) {
    char *copy = strndup(text, n_bytes);
    char **more = copy ? realloc(*texts, (*n + 1) * sizeof **texts) : NULL;
    if (!more) {
        free(copy);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a sample");
    }
    *texts = more;
    more[(*n)++] = copy;
    return SL_OK;
}

enum sl_status sl_sample_add_answer(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err) {
    return add(&sample->answers, &sample->n_answers, text, n_bytes, err);
}

enum sl_status sl_sample_add_class(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err) {
    return add(&sample->classes, &sample->n_classes, text, n_bytes, err);
}

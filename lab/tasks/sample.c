// SPDX-License-Identifier: Apache-2.0
#include "lab/tasks/sample.h"

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
    *sample = (struct sl_sample){0};
}

enum sl_status sl_sample_add_answer(struct sl_sample *sample, const char *text, size_t n_bytes, struct sl_error *err) {
    char *copy = strndup(text, n_bytes);
    char **more = copy ? realloc(sample->answers, (sample->n_answers + 1) * sizeof *more) : NULL;
    if (!more) {
        free(copy);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a sample");
    }
    sample->answers = more;
    more[sample->n_answers++] = copy;
    return SL_OK;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the lines of data sets, which come from the authors of benchmarks: whatever the line, it is
 *          refused with a reason or becomes a question that has answers; and every metric can judge any text by it, with a
 *          score from 0 to 1.
 *
 * Design: the first byte chooses the format, the second the metric, the third the prompt; then comes the line, and after a
 *         zero byte the text that is judged, if any.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lab/eval/metrics/metric.h"
#include "lab/eval/tasks/dataset_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check_judge(const struct sl_sample *sample, const char *text) {
    double score = -1, again = -2;
    struct sl_error err = {0};
    enum sl_status status = sample->metric->score(sample, text, &score, &err);
    require(status == SL_OK ? score >= 0 && score <= 1 : err.text[0] != '\0');
    require(sample->metric->score(sample, text, &again, NULL) == status && (status != SL_OK || again == score));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const prompts[] = {"{context}\n{input}", "{input}", "{input}\n{options}\n", "{context}{"};
    size_t n_formats = 0, n_metrics = 0;
    while (sl_dataset_formats()[n_formats].name) {
        n_formats++;
    }
    while (sl_metrics()[n_metrics].name) {
        n_metrics++;
    }
    if (size < 3) {
        return 0;
    }
    struct sl_dataset_form form = {.format = &sl_dataset_formats()[data[0] % n_formats],
                                   .metric = &sl_metrics()[data[1] % n_metrics],
                                   .prompt = prompts[data[2] % 4],
                                   .max_new_tokens = 8};
    char *line = malloc(size - 2);
    require(line != NULL);
    memcpy(line, data + 3, size - 3);
    line[size - 3] = '\0';
    size_t n_line = strlen(line);
    struct sl_sample sample = {0};
    struct sl_error err = {0};
    if (sl_dataset_read_line(&form, line, n_line, &sample, &err) == SL_OK) {
        require(sample.prompt[0] != '\0' && sample.n_answers > 0 && sample.metric == form.metric);
        check_judge(&sample, n_line < size - 3 ? line + n_line + 1 : "");
        check_judge(&sample, sample.prompt);
        check_judge(&sample, sample.answers[0]);
    } else {
        require(err.text[0] != '\0' && sample.prompt == NULL);
    }
    sl_sample_cleanup(&sample);
    free(line);
    return 0;
}

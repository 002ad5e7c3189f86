// SPDX-License-Identifier: Apache-2.0
// Purpose: libFuzzer target for rows of training files: any line is refused with a reason, or becomes a question that has
// answers.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "lab/tasks/rows_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sl_sample sample = {0};
    struct sl_error err = {0};
    if (sl_row_read((const char *)data, size, &sample, &err) == SL_OK) {
        require(sample.prompt[0] != '\0' && sample.n_answers > 0 && sample.answers[0]);
    } else {
        require(err.text[0] != '\0' && sample.prompt == NULL);
    }
    sl_sample_cleanup(&sample);
    return 0;
}

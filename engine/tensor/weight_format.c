// SPDX-License-Identifier: Apache-2.0
// Purpose: the names of weight formats.
#include <string.h>

#include "engine/tensor/ops.h"

static const char *const weight_formats[] = {
    [SL_WEIGHT_STORED] = "stored", [SL_WEIGHT_INT8] = "int8", [SL_WEIGHT_INT4] = "int4", [SL_WEIGHT_CODES] = "codes"};

enum sl_status sl_weight_format_parse(const char *name, enum sl_weight_format *format_out, struct sl_error *err) {
    for (size_t i = 0; i < SL_WEIGHT_CODES; i++) {
        if (strcmp(name, weight_formats[i]) == 0) {
            *format_out = (enum sl_weight_format)i;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "--weights %s: expected stored, int8 or int4", name);
}

const char *sl_weight_format_name(enum sl_weight_format format) {
    return weight_formats[format];
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: names of formats.
#include "engine/kvcache/format.h"

#include <string.h>

const char *sl_kv_format_name(enum sl_kv_format format) {
    switch (format) {
#define X(name, word, ...)                                                                                             \
    case SL_KV_##name:                                                                                                 \
        return #word;
        SL_KV_FORMATS(X)
#undef X
    }
    return "unknown";
}

enum sl_status sl_kv_format_parse(const char *name, enum sl_kv_format *format_out) {
    for (enum sl_kv_format format = 0; format < SL_KV_N_FORMATS; format++) {
        if (strcmp(name, sl_kv_format_name(format)) == 0) {
            *format_out = format;
            return SL_OK;
        }
    }
    return SL_ERR_INVALID;
}

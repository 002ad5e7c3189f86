// SPDX-License-Identifier: Apache-2.0
// Purpose: names of formats, and the halves of pairs.
#include "engine/kvcache/format.h"

#include <string.h>

// Formats of pages: of both halves, then pairs.
static const struct page_format {
    const char *name;
    int format;
    enum sl_kv_format keys, values;
} page_formats[] = {
#define X(name, word, wire, ...) {#word, wire, SL_KV_##name, SL_KV_##name},
    SL_KV_FORMATS(X)
#undef X
#define X(word, wire, keys, values) {#word, wire, SL_KV_##keys, SL_KV_##values},
        SL_KV_PAIRS(X)
#undef X
};

#define N_PAGE_FORMATS (sizeof page_formats / sizeof page_formats[0])

// Returns NULL for an unknown format.
static const struct page_format *find(enum sl_kv_format format) {
    for (size_t i = 0; i < N_PAGE_FORMATS; i++) {
        if (page_formats[i].format == (int)format) {
            return &page_formats[i];
        }
    }
    return NULL;
}

const char *sl_kv_format_name(enum sl_kv_format format) {
    const struct page_format *found = find(format);
    return found ? found->name : "unknown";
}

enum sl_status sl_kv_format_parse(const char *name, enum sl_kv_format *format_out) {
    for (size_t i = 0; i < N_PAGE_FORMATS; i++) {
        if (strcmp(name, page_formats[i].name) == 0) {
            *format_out = (enum sl_kv_format)page_formats[i].format;
            return SL_OK;
        }
    }
    return SL_ERR_INVALID;
}

enum sl_kv_format sl_kv_format_keys(enum sl_kv_format format) {
    const struct page_format *found = find(format);
    return found ? found->keys : format;
}

enum sl_kv_format sl_kv_format_values(enum sl_kv_format format) {
    const struct page_format *found = find(format);
    return found ? found->values : format;
}

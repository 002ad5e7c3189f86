// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the formats of keys and values, one line each.
 *
 * Design: code that distinguishes formats uses a switch without a default, so that the compiler names every place
 *         that a new format needs. Code that treats all formats of a kind alike tests the kind.
 *
 * To add a format: a line here; a field of KvBytes (proto/sluice/v1/inference.proto); then what -Wswitch asks for:
 * how each tier reads it, and writes it if tokens are appended in it.
 */
#pragma once

#include <stdbool.h>

#include "base/status.h"

enum sl_kv_kind {
    SL_KV_FLOATS, // every element is a number by itself; tokens are appended in such formats
    SL_KV_CODES,  // x^ = code * scale + zero by groups (engine/kvcache/page.h); full pages are packed into such formats
};

// name, word, number on the wire (proto/sluice/v1/capsule.proto: append only), bits an element without scales, kind
#define SL_KV_FORMATS(X)                                                                                               \
    X(F32, f32, 0, 32, FLOATS)                                                                                         \
    X(F16, f16, 1, 16, FLOATS)                                                                                         \
    X(BF16, bf16, 2, 16, FLOATS)                                                                                       \
    X(INT8, int8, 3, 8, CODES)                                                                                         \
    X(INT4, int4, 4, 4, CODES)                                                                                         \
    X(INT2, int2, 5, 2, CODES)                                                                                         \
    X(INT1, int1, 6, 1, CODES)

enum sl_kv_format {
#define X(name, word, wire, bits, kind) SL_KV_##name = wire,
    SL_KV_FORMATS(X)
#undef X
};

#define SL_KV_ONE(...) +1
#define SL_KV_N_FORMATS (0 SL_KV_FORMATS(SL_KV_ONE))

const char *sl_kv_format_name(enum sl_kv_format format);                            // "f16"
enum sl_status sl_kv_format_parse(const char *name, enum sl_kv_format *format_out); // SL_ERR_INVALID

static inline bool sl_kv_format_is_known(enum sl_kv_format format) {
    return (int)format >= 0 && (int)format < SL_KV_N_FORMATS;
}

static inline int sl_kv_format_bits(enum sl_kv_format format) {
    switch (format) {
#define X(name, word, wire, bits, kind)                                                                                \
    case SL_KV_##name:                                                                                                 \
        return bits;
        SL_KV_FORMATS(X)
#undef X
    }
    return 0;
}

static inline enum sl_kv_kind sl_kv_format_kind(enum sl_kv_format format) {
    switch (format) {
#define X(name, word, wire, bits, kind)                                                                                \
    case SL_KV_##name:                                                                                                 \
        return SL_KV_##kind;
        SL_KV_FORMATS(X)
#undef X
    }
    return SL_KV_FLOATS;
}

static inline bool sl_kv_format_is_quantized(enum sl_kv_format format) {
    return sl_kv_format_kind(format) == SL_KV_CODES;
}

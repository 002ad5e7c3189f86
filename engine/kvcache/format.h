// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the formats of keys and values, one line each.
 *
 * Design: a format describes one half of a page, K or V. A page has one format in both halves, or a pair: k4v2 has
 *         int4 keys and int2 values. Code that reads or writes elements gets the format of the half that it works on
 *         (k_format, v_format of struct sl_page_layout), which is never a pair. In the tiers of the CPU only the codecs
 *         tell formats apart. All other code asks for a property, or is inlined once for each format by
 *         SL_KV_WITH_FORMAT().
 *
 * To add a format: a line here; a field of the same name in KvBytes (proto/sluice/v1/inference.proto); and its elements
 * in engine/tensor/cpu/pages/ref_codec.h. avx2_codec.h and avx512_codec.h read a format that they do not know by
 * way of the reference. For speed, add it there. A GPU reads it in engine/tensor/cuda/pages.h, fast in codes.h.
 */
#pragma once

#include <stdbool.h>

#include "base/status.h"

enum sl_kv_index { // how a key index in the format keeps keys (engine/kvcache/key_index.h)
    SL_KV_INDEX_NONE,
    SL_KV_INDEX_FLOATS, // as pages do
    SL_KV_INDEX_BYTES,  // as signed codes with a scale
    SL_KV_INDEX_SIGNS,
};

// name, word, number on the wire (proto/sluice/v1/capsule.proto: append only), bits an element without scales, index.
// Floats are numbers by themselves; tokens are appended in such formats. Full pages are packed into codes, by groups
// (engine/kvcache/page.h): x^ = number(code) * scale + zero.
#define SL_KV_FLOAT_LIST(X, ...)                                                                                       \
    X(F32, f32, 0, 32, FLOATS, __VA_ARGS__)                                                                            \
    X(F16, f16, 1, 16, FLOATS, __VA_ARGS__)                                                                            \
    X(BF16, bf16, 2, 16, FLOATS, __VA_ARGS__)
#define SL_KV_CODE_LIST(X, ...)                                                                                        \
    X(INT8, int8, 3, 8, BYTES, __VA_ARGS__)                                                                            \
    X(INT4, int4, 4, 4, NONE, __VA_ARGS__)                                                                             \
    X(INT3, int3, 7, 3, NONE, __VA_ARGS__)                                                                             \
    X(INT2, int2, 5, 2, NONE, __VA_ARGS__)                                                                             \
    X(INT1, int1, 6, 1, SIGNS, __VA_ARGS__)
#define SL_KV_FLOAT_FORMATS(X) SL_KV_FLOAT_LIST(X, )
#define SL_KV_CODE_FORMATS(X)  SL_KV_CODE_LIST(X, )
#define SL_KV_FORMATS(X)       SL_KV_FLOAT_LIST(X, ) SL_KV_CODE_LIST(X, )

enum sl_kv_format {
#define X(name, word, wire, ...) SL_KV_##name = wire,
    SL_KV_FORMATS(X)
#undef X
};

#define SL_KV_ONE(...)  +1
#define SL_KV_N_FORMATS (0 SL_KV_FORMATS(SL_KV_ONE))

// Pairs: name, number on the wire (append only), format of keys, format of values. At least one half is codes; pages of a
// pair are packed pages.
#define SL_KV_PAIRS(X)                                                                                                 \
    X(k16v8, 32, F16, INT8)                                                                                            \
    X(k16v4, 33, F16, INT4)                                                                                            \
    X(k16v3, 44, F16, INT3)                                                                                            \
    X(k16v2, 34, F16, INT2)                                                                                            \
    X(k8v16, 35, INT8, F16)                                                                                            \
    X(k8v4, 36, INT8, INT4)                                                                                            \
    X(k8v3, 45, INT8, INT3)                                                                                            \
    X(k8v2, 37, INT8, INT2)                                                                                            \
    X(k4v16, 38, INT4, F16)                                                                                            \
    X(k4v8, 39, INT4, INT8)                                                                                            \
    X(k4v3, 46, INT4, INT3)                                                                                            \
    X(k4v2, 40, INT4, INT2)                                                                                            \
    X(k3v16, 47, INT3, F16)                                                                                            \
    X(k3v8, 48, INT3, INT8)                                                                                            \
    X(k3v4, 49, INT3, INT4)                                                                                            \
    X(k3v2, 50, INT3, INT2)                                                                                            \
    X(k2v16, 41, INT2, F16)                                                                                            \
    X(k2v8, 42, INT2, INT8)                                                                                            \
    X(k2v4, 43, INT2, INT4)                                                                                            \
    X(k2v3, 51, INT2, INT3)

const char *sl_kv_format_name(enum sl_kv_format format);                            // "f16", "k4v2"
enum sl_status sl_kv_format_parse(const char *name, enum sl_kv_format *format_out); // SL_ERR_INVALID

// Returns true for a format of one half, which is also that of a page with two such halves.
static inline bool sl_kv_format_is_known(enum sl_kv_format format) {
    return (int)format >= 0 && (int)format < SL_KV_N_FORMATS;
}

// Returns the format of the keys, and of the values, of a page; an unknown format is returned as it is.
enum sl_kv_format sl_kv_format_keys(enum sl_kv_format format);
enum sl_kv_format sl_kv_format_values(enum sl_kv_format format);

// Returns true for a format of a page: of both halves, or a pair.
static inline bool sl_kv_format_is_of_page(enum sl_kv_format format) {
    return sl_kv_format_is_known(sl_kv_format_keys(format));
}

static inline int sl_kv_format_bits(enum sl_kv_format format) {
    switch (format) {
#define X(name, word, wire, bits, index, ...)                                                                          \
    case SL_KV_##name:                                                                                                 \
        return bits;
        SL_KV_FORMATS(X)
#undef X
    }
    return 0;
}

// Returns true for codes, and for pairs, which have codes in a half: tokens are not appended to such a page.
static inline bool sl_kv_format_is_quantized(enum sl_kv_format format) {
    switch ((int)format) {
#define X(name, ...) case SL_KV_##name:
        SL_KV_CODE_FORMATS(X)
#undef X
#define X(word, wire, ...) case wire:
        SL_KV_PAIRS(X)
#undef X
        return true;
    default:
        return false;
    }
}

static inline enum sl_kv_index sl_kv_format_index(enum sl_kv_format format) {
    switch (format) {
#define X(name, word, wire, bits, index, ...)                                                                          \
    case SL_KV_##name:                                                                                                 \
        return SL_KV_INDEX_##index;
        SL_KV_FORMATS(X)
#undef X
    }
    return SL_KV_INDEX_NONE;
}

// Runs a statement in which FORMAT is a constant that equals `format`, so that functions that are inlined there become
// the code of one format. The second macro is for formats of floats.
#define SL_KV_CASE(name, word, wire, bits, index, ...)                                                                 \
    case SL_KV_##name: {                                                                                               \
        const enum sl_kv_format FORMAT = SL_KV_##name;                                                                 \
        __VA_ARGS__;                                                                                                   \
        break;                                                                                                         \
    }
#define SL_KV_WITH_FORMAT(format, ...)                                                                                 \
    switch (format) { SL_KV_FLOAT_LIST(SL_KV_CASE, __VA_ARGS__) SL_KV_CODE_LIST(SL_KV_CASE, __VA_ARGS__) }
#define SL_KV_WITH_FLOATS(format, ...)                                                                                 \
    switch (format) {                                                                                                  \
        SL_KV_FLOAT_LIST(SL_KV_CASE, __VA_ARGS__)                                                                      \
    default:                                                                                                           \
        __builtin_unreachable();                                                                                       \
    }

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: elements of pages in AVX-512 registers: sixteen as f32, and for processors with BF16 thirty-two as bf16.
 *          Include only from files compiled for AVX-512 F, BW, VL and DQ.
 *
 * Design: as in avx2_codec.h, a format is a constant in every call. The formats that have code here are those of
 *         sl_avx512_reads() and sl_bf16_decodes(); callers take the tile of a narrower tier for the others.
 */
#pragma once

#include "engine/tensor/cpu/pages/avx2_codec.h"

// Returns true for formats that sl_avx512_widen16() or sl_avx512_decode16() read.
static inline bool sl_avx512_reads(enum sl_kv_format format) {
    return sl_avx2_widens(format) || sl_avx2_integer_bits(format) > 0;
}

// Widens sixteen elements of 16 bits.
static inline __attribute__((always_inline)) __m512 sl_avx512_widen16(__m256i x, enum sl_kv_format format) {
    return format == SL_KV_F16 ? _mm512_cvtph_ps(x)
                               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Loads sixteen elements from element e of a part on, in a float format.
static inline __attribute__((always_inline)) __m512 sl_avx512_load16(const char *part, size_t e,
                                                                     enum sl_kv_format format) {
    if (sl_avx2_widens(format)) {
        return sl_avx512_widen16(_mm256_loadu_si256((const __m256i *)((const uint16_t *)part + e)), format);
    }
    if (format == SL_KV_F32) {
        return _mm512_loadu_ps((const float *)part + e);
    }
    return _mm512_insertf32x8(_mm512_castps256_ps512(sl_avx2_load8(part, e, format)),
                              sl_avx2_load8(part, e + 8, format), 1);
}

// Returns true for codes that stand for at most 16 numbers, which are looked up. Others are computed.
static inline bool sl_avx512_looks_up(enum sl_kv_format format) {
    return sl_avx2_integer_bits(format) > 0 && sl_kv_format_bits(format) <= 4;
}

// Returns the numbers that the codes stand for. Those of fewer than 4 bits are repeated, so that bits above the code do
// not matter. pair: scale and zero. Callers widen eight pairs at once: one by one, they would cost as much as the codes.
static inline __attribute__((always_inline)) __m512 sl_avx512_numbers(const float *pair, enum sl_kv_format format) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                  codes = _mm512_and_si512(lanes, _mm512_set1_epi32((1 << sl_kv_format_bits(format)) - 1));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(pair[0]), _mm512_set1_ps(pair[1]));
}

// The values that the codes of a group stand for.
struct sl_avx512_codebook {
    __m512 values;      // of codes that are looked up
    __m512 scale, zero; // of others
};

static inline __attribute__((always_inline)) struct sl_avx512_codebook sl_avx512_codebook(const float *pair,
                                                                                          enum sl_kv_format format) {
    struct sl_avx512_codebook b = {.scale = _mm512_set1_ps(pair[0]), .zero = _mm512_set1_ps(pair[1])};
    b.values = sl_avx512_looks_up(format) ? sl_avx512_numbers(pair, format) : b.scale;
    return b;
}

static inline __attribute__((always_inline)) __m512 sl_avx512_decode_bytes(const uint8_t *at, __m512 scale,
                                                                           __m512 zero) {
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), scale, zero);
}

// Decodes sixteen codes, from code 16 * n of a row on. Eight codes have as many bytes as a code has bits: four bytes are
// loaded for each eight, up to three of them after the codes, because rows have scales after them.
static inline __attribute__((always_inline)) __m512
sl_avx512_decode16(const uint8_t *row, size_t n, enum sl_kv_format format, const struct sl_avx512_codebook *b) {
    const int bits = sl_kv_format_bits(format);
    const uint8_t *at = row + 2 * n * (size_t)bits;
    if (!sl_avx512_looks_up(format)) {
        return sl_avx512_decode_bytes(at, b->scale, b->zero);
    }
    const __m512i eighths = _mm512_set_epi32(7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0),
                  shifts = _mm512_mullo_epi32(eighths, _mm512_set1_epi32(bits));
    __m512i words = _mm512_broadcastd_epi32(_mm_loadu_si32(at));
    words = _mm512_mask_broadcastd_epi32(words, 0xff00, _mm_loadu_si32(at + bits));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), b->values); // reads the low four bits
}

#if defined(__AVX512VBMI__)

// The places of a group's 64 codes.
struct sl_avx512_spread {
    __m512i bytes; // of the group: for each eight bytes the two that have its codes, four times
    __m512i bits;  // the first bit of each byte's code among the 64 of its eight bytes
};

// Byte s of word i has code 16 s + i.
static inline __attribute__((always_inline)) struct sl_avx512_spread sl_avx512_spread(enum sl_kv_format format) {
    const int bits = sl_kv_format_bits(format);
    _Alignas(64) uint8_t bytes[64], first[64];
    for (int at = 0; at < 64; at++) {
        int pair = at / 8 * 2 * bits; // the first bit of two words' codes in their strip
        bytes[at] = (uint8_t)((16 * bits * (at % 8 / 2) + pair) / 8 + at % 2);
        first[at] = (uint8_t)(16 * (at % 4) + pair % 8 + at % 8 / 4 * bits);
    }
    return (struct sl_avx512_spread){_mm512_load_si512(bytes), _mm512_load_si512(first)};
}

// Brings 64 codes of up to 4 bits to bytes, with other bits above them. It loads 64 bytes: pages have scales after codes.
static inline __attribute__((always_inline)) __m512i sl_avx512_spread64(const uint8_t *at,
                                                                        const struct sl_avx512_spread *spread) {
    return _mm512_multishift_epi64_epi8(spread->bits, _mm512_permutexvar_epi8(spread->bytes, _mm512_loadu_si512(at)));
}

#else

struct sl_avx512_spread {
    char none;
};

static inline struct sl_avx512_spread sl_avx512_spread(enum sl_kv_format format) {
    (void)format;
    return (struct sl_avx512_spread){0};
}

#endif

// Decodes a group of 64 codes, sixteen to a register. pair: scale and zero; spread: sl_avx512_spread(format).
static inline __attribute__((always_inline)) void sl_avx512_decode64(const uint8_t *codes, const float *pair,
                                                                     enum sl_kv_format format,
                                                                     const struct sl_avx512_spread *spread,
                                                                     __m512 x_out[4]) {
    const struct sl_avx512_codebook b = sl_avx512_codebook(pair, format);
#if defined(__AVX512VBMI__)
    if (sl_avx512_looks_up(format)) {
        const __m512i bytes = sl_avx512_spread64(codes, spread);
        SL_UNROLL
        for (unsigned i = 0; i < 4; i++) { // the permutation reads the low four bits
            x_out[i] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 8 * i), b.values);
        }
        return;
    }
#endif
    (void)spread;
    SL_UNROLL
    for (size_t i = 0; i < 4; i++) {
        x_out[i] = sl_avx512_decode16(codes, i, format, &b);
    }
}

// --- bf16 ------------------------------------------------------------------------------------------------------------

#if defined(__AVX512BF16__)

// Converts 32 f32 to bf16, rounded to nearest even.
static inline __m512i sl_bf16_round32(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// Returns true where elements are bf16 already.
static inline bool sl_bf16_is(enum sl_kv_format format) {
    return format == SL_KV_BF16;
}

// Returns true for the format of 16 bits that sl_bf16_widen16() and sl_bf16_narrow32() read. Two bf16 hold all digits
// of its elements, one rounds them.
static inline bool sl_bf16_rounds(enum sl_kv_format format) {
    return format == SL_KV_F16;
}

static inline __m512 sl_bf16_widen16(__m256i x) {
    return sl_avx512_widen16(x, SL_KV_F16);
}

static inline __m512i sl_bf16_narrow32(__m512i x) {
    return sl_bf16_round32(sl_bf16_widen16(_mm512_castsi512_si256(x)),
                           sl_bf16_widen16(_mm512_extracti64x4_epi64(x, 1)));
}

// Returns true for codes that sl_bf16_decode32() reads.
static inline bool sl_bf16_decodes(enum sl_kv_format format) {
    return sl_avx2_integer_bits(format) > 0;
}

// The values that the codes of a group stand for.
struct sl_bf16_codebook {
    __m512i values;     // for codes that are looked up: the numbers in bf16, twice
    __m512 scale, zero; // for others
};

static inline __attribute__((always_inline)) struct sl_bf16_codebook sl_bf16_codebook(const float *pair,
                                                                                      enum sl_kv_format format) {
    struct sl_bf16_codebook b = {.scale = _mm512_set1_ps(pair[0]), .zero = _mm512_set1_ps(pair[1])};
    if (sl_avx512_looks_up(format)) {
        __m512 x = sl_avx512_numbers(pair, format);
        b.values = sl_bf16_round32(x, x);
    }
    return b;
}

// Brings a code to the bottom of each word, with other codes above it. `bit` is its first bit among the 128 that `bytes`
// has four times; the code may cross bytes, and ends within them.
static inline __attribute__((always_inline)) __m512i sl_bf16_codes_to_words(__m512i bytes, __m512i bit) {
    const __m512i byte = _mm512_srli_epi16(bit, 3),
                  both = _mm512_add_epi16(_mm512_or_si512(byte, _mm512_slli_epi16(byte, 8)), _mm512_set1_epi16(0x100));
    return _mm512_srlv_epi16(_mm512_shuffle_epi8(bytes, both), _mm512_and_si512(bit, _mm512_set1_epi16(7)));
}

// Converts 32 codes of up to 4 bits to bf16. It loads 16 bytes: rows have scales after them. The permutation reads the
// lowest 5 bits of each word.
static inline __attribute__((always_inline)) __m512i sl_bf16_look_up32(const uint8_t *at, enum sl_kv_format format,
                                                                       __m512i values) {
    const __m512i bits = _mm512_set1_epi16((short)sl_kv_format_bits(format)),
                  lanes = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13,
                                           12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)at));
    return _mm512_permutexvar_epi16(sl_bf16_codes_to_words(bytes, _mm512_mullo_epi16(lanes, bits)), values);
}

// Converts 16 codes of up to 4 bits of each of two rows to bf16: a0, b0, a1, b1 and so on. It loads 8 bytes of each.
// values: of a row's codes in the low half, and of the other's.
static inline __attribute__((always_inline)) __m512i sl_bf16_look_up_rows(const uint8_t *a, const uint8_t *b,
                                                                          enum sl_kv_format format, __m512i values) {
    const __m512i odd = _mm512_set1_epi32(1 << 16), // 1 in the words of b
        bits = _mm512_set1_epi16((short)sl_kv_format_bits(format)),
                  columns = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                               _mm512_set1_epi32(0x10001)),
                  bit = _mm512_add_epi16(_mm512_mullo_epi16(columns, bits), _mm512_slli_epi16(odd, 6));
    __m512i bytes = _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)a));
    bytes = _mm512_mask_broadcastq_epi64(bytes, 0xaa, _mm_loadl_epi64((const __m128i *)b));
    __m512i x = sl_bf16_codes_to_words(bytes, bit);
    x = _mm512_or_si512(_mm512_and_si512(x, _mm512_set1_epi16(15)), _mm512_slli_epi16(odd, 4));
    return _mm512_permutexvar_epi16(x, values);
}

// Converts 64 codes of 4 bits to bf16: those of even places, and those of odd ones.
static inline __attribute__((always_inline)) void sl_bf16_look_up64(const uint8_t *at, __m512i values,
                                                                    __m512i *even_out, __m512i *odd_out) {
    __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)at));
    *even_out = _mm512_permutexvar_epi16(bytes, values);
    *odd_out = _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), values);
}

// Converts 32 codes to bf16.
static inline __attribute__((always_inline)) __m512i sl_bf16_decode32(const uint8_t *at, enum sl_kv_format format,
                                                                      const struct sl_bf16_codebook *b) {
    return sl_avx512_looks_up(format) ? sl_bf16_look_up32(at, format, b->values)
                                      : sl_bf16_round32(sl_avx512_decode_bytes(at, b->scale, b->zero),
                                                        sl_avx512_decode_bytes(at + 16, b->scale, b->zero));
}

#endif

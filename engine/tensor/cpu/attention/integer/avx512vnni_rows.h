// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: products of vectors with rows of codes of 2 or 3 bits as integers, because widening codes to f32 and
 *          multiplying them takes the same time whatever their bits. Include only from files compiled for AVX-512 F,
 *          BW, VL, DQ, VNNI.
 *
 *     sum_e a_e (s_e code_ex + z_e)  =  step sum_e A_e code_ex + sum_e a_e z_e, but for the rounding of
 *                                       A_e = round(a_e s_e / step), step = max_e |a_e s_e| / MOST
 *
 *         A row e is a channel of a page's keys, or a slot of its values; a column x is a slot, or a channel.
 *
 * Design: A is two bytes with a sign, 256 high + low. An instruction multiplies the codes of four rows and 16 columns
 *         by four bytes. Integer sums are exact, whatever their order. The rest depends on the vector and the page
 *         alone: any number of vectors gives the same bits, as do processors with and without VBMI.
 *
 * Precision: A is off by 1/2 at most, and a product by step / 2 times the sum of the codes of a column: for n rows of b
 *         bits by at most n (2^b - 1) max |a s| / (2 MOST). The codes themselves stand for numbers that were up to s /
 *         2 away: for the row of the largest |a s| alone that is MOST / (n (2^b - 1)) times as much, 36 times for 128
 *         channels of int3.
 *
 * The bound: for four rows of 64 codes a vector takes 8 instructions of ports 0 and 5, half of the multiply-adds of
 *         f32. Splitting vectors and spreading codes take half as much again, so on Sapphire Rapids both formats take
 *         some 0.7 of int4's time: int3 reads as many bytes a second as int4; int2, with 0.56 of the bytes, 0.8 of
 *         them (heads of 64: 0.7). On Zen 5, which multiplies f32 faster, they take 0.97 of int4's time.
 *
 * A tile: for each group of 64 columns, four registers for each four rows: byte e of word x of register i has the code
 *         of row e and column 16 i + x. Then the scales of all rows, and their zeros, as f32. Fours of rows are in the
 *         order in which split() leaves their bytes: place_of().
 */
#pragma once

#include <string.h>

#include "engine/tensor/cpu/attention/avx512_kv.h"
#include "engine/tensor/cpu/pages/avx512_codec.h"

#define MOST        32512.0f  // 127 * 256
#define LEAST       0x1p-100f // of max |a s|, whose inverse is a number then; below it all A are 0
#define AT_ONCE     4         // vectors that are split together
#define QUAD_BYTES  256       // of a tile
#define GROUP_WORDS 18        // floats of a group in a tile, for each row

#define HAS_INTEGERS(format, head_dim)                                                                                 \
    (((format) == SL_KV_INT3 || (format) == SL_KV_INT2) && (head_dim) % SL_PAGE_SLOTS == 0)

// Returns the place of four rows among all fours.
static inline size_t place_of(size_t four) {
    return (four & ~(size_t)7) + four % 4 * 2 + four % 8 / 4;
}

// --- tiles -----------------------------------------------------------------------------------------------------------

// A constant for each 64-bit lane q
#define LANES(of)                                                                                                      \
    _mm512_set_epi64((long long)of(7), (long long)of(6), (long long)of(5), (long long)of(4), (long long)of(3),         \
                     (long long)of(2), (long long)of(1), (long long)of(0))
#define EACH_BYTE 0x0101010101010101u

#if defined(__AVX512VBMI__)

// Writes 64 columns of four rows, whose codes are `stride` bytes apart. It loads 16 bytes of a row, or 12 and 16: pages
// have scales after codes. Lanes of 128 bits take a row each. A lane of 64 bits gets the bytes with the codes of two
// columns, two bytes of each row.
static inline __attribute__((always_inline)) void spread_rows(const uint8_t *codes, size_t stride, int bits,
                                                              uint8_t *to) {
#define BYTES(q) (0x3130212011100100u + EACH_BYTE * (uint64_t)((q)*bits / 4))
#define BITS(q)  (0x3020100030201000u + 0x0101010100000000u * (uint64_t)bits + EACH_BYTE * (uint64_t)(2 * (q)*bits % 8))
    const __m512i bytes = LANES(BYTES), first = LANES(BITS), mask = _mm512_set1_epi8((char)((1 << bits) - 1));
    const int at_once = bits == 2 ? 4 : 2; // registers for 16 bytes of each row
    SL_UNROLL
    for (int i = 0; i < 4; i += at_once, codes += 12) {
        __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)codes));
        x = _mm512_mask_broadcast_i32x4(x, 0x00f0, _mm_loadu_si128((const __m128i *)(codes + stride)));
        x = _mm512_mask_broadcast_i32x4(x, 0x0f00, _mm_loadu_si128((const __m128i *)(codes + 2 * stride)));
        x = _mm512_mask_broadcast_i32x4(x, 0xf000, _mm_loadu_si128((const __m128i *)(codes + 3 * stride)));
        SL_UNROLL
        for (int k = 0; k < at_once; k++) {
            const __m512i from = _mm512_add_epi8(bytes, _mm512_set1_epi8((char)(2 * k * bits)));
            __m512i spread = _mm512_multishift_epi64_epi8(first, _mm512_permutexvar_epi8(from, x));
            _mm512_store_si512(to + 64 * (i + k), _mm512_and_si512(spread, mask));
        }
    }
#undef BYTES
#undef BITS
}

#else

// Returns x | x << shift, but only the bits of the mask.
#define MERGE(x, shift, mask)                                                                                          \
    _mm512_ternarylogic_epi64(x, _mm512_slli_epi64(x, shift), _mm512_set1_epi64((long long)(mask)), 0xa8)

// Brings the 64 codes of a row to bytes: eight to a lane of 64 bits, then four to its halves, and so on. It loads 32
// bytes. Lane 128-bit l then has the words 4 i + l in the place of 4 l + i.
static inline __attribute__((always_inline)) __m512i spread_row(const uint8_t *codes, int bits) {
#define WORDS(q)  ((uint64_t)((q)*bits / 2) + ((uint64_t)((q)*bits / 2 + 1) << 16))
#define SHIFTS(q) ((q)*bits % 2 * 8)
    __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)codes));
    x = _mm512_maskz_permutexvar_epi16(0x33333333, LANES(WORDS), x); // two words of each lane
    x = _mm512_srlv_epi64(x, LANES(SHIFTS));
    x = MERGE(x, 32 - 4 * bits, 0x0000000100000001u * ((1u << 4 * bits) - 1));
    x = MERGE(x, 16 - 2 * bits, 0x0001000100010001u * ((1u << 2 * bits) - 1));
    x = MERGE(x, 8 - bits, EACH_BYTE * ((1u << bits) - 1));
    return _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), x);
#undef WORDS
#undef SHIFTS
}

// Writes 64 columns of four rows, whose codes are `stride` bytes apart.
static inline __attribute__((always_inline)) void spread_rows(const uint8_t *codes, size_t stride, int bits,
                                                              uint8_t *to) {
    __m512i a = spread_row(codes, bits), b = spread_row(codes + stride, bits);
    __m512i c = spread_row(codes + 2 * stride, bits), d = spread_row(codes + 3 * stride, bits);
    __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
    _mm512_store_si512(to, _mm512_unpacklo_epi16(ab, cd));
    _mm512_store_si512(to + 64, _mm512_unpackhi_epi16(ab, cd));
    ab = _mm512_unpackhi_epi8(a, b), cd = _mm512_unpackhi_epi8(c, d);
    _mm512_store_si512(to + 128, _mm512_unpacklo_epi16(ab, cd));
    _mm512_store_si512(to + 192, _mm512_unpackhi_epi16(ab, cd));
}

#endif

// Loads the pairs of a group of 16 rows. It reads no byte after them: they may end a page.
static inline __m512i load_pairs(const char *rows, size_t n_groups, size_t group) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                  at = _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32((int)n_groups)),
                                        _mm512_set1_epi32((int)group));
    if (n_groups == 1) {
        return _mm512_loadu_si512(rows);
    }
    if (n_groups == 2) { // heads of 128 are usual
        return _mm512_permutex2var_epi32(_mm512_loadu_si512(rows), at, _mm512_loadu_si512(rows + 64));
    }
    return _mm512_i32gather_epi32(at, rows, 4);
}

// Writes the scales and zeros of one group of all rows: pages of codes are full.
static inline void widen_group(const struct sl_coded_rows *r, size_t group, float *scales, float *zeros) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0),
                  odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const size_t n_groups = r->columns / r->group;
    for (size_t e = 0; e < r->strip_rows; e += 16) {
        const __m512i pairs = load_pairs(r->pairs + 4 * e * n_groups, n_groups, group);
        __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(pairs));
        __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(pairs, 1));
        _mm512_store_ps(scales + e, _mm512_permutex2var_ps(low, even, high));
        _mm512_store_ps(zeros + e, _mm512_permutex2var_ps(low, odd, high));
    }
}

static inline __attribute__((always_inline)) void fill_codes(const struct sl_coded_rows *r, int bits, float *tile) {
    const size_t row_bytes = sl_row_bytes((int)r->columns, bits), rows = r->strip_rows;
    const char *next = r->next;
    for (size_t group = 0; group < r->columns / SL_PAGE_SLOTS; group++, tile += GROUP_WORDS * rows) {
        const uint8_t *codes = r->codes + group * sl_row_bytes(SL_PAGE_SLOTS, bits);
        for (size_t four = 0; four < rows / 4; four++, codes += 4 * row_bytes, next += 32 * bits) {
            sl_avx512_fetch(next, (bits + 1) / 2);
            spread_rows(codes, row_bytes, bits, (uint8_t *)tile + QUAD_BYTES * place_of(four));
        }
        widen_group(r, group, tile + 16 * rows, tile + 17 * rows);
    }
}

static void fill(const struct sl_coded_rows *r, enum sl_kv_format format, float *tile) {
    if (format == SL_KV_INT3) {
        fill_codes(r, 3, tile);
    } else {
        fill_codes(r, 2, tile);
    }
}

static bool keys_from_codes(const struct sl_page_layout *layout, const char *page, const char *next, float *tile) {
    const struct sl_coded_rows r = sl_coded_keys(layout, page, next);
    bool has = HAS_INTEGERS(layout->k_format, layout->head_dim);
    if (has) {
        fill(&r, layout->k_format, tile);
    }
    return has;
}

static bool values_from_codes(const struct sl_page_layout *layout, const char *page, const char *next, size_t n,
                              float *tile) {
    const struct sl_coded_rows r = sl_coded_values(layout, page, next, n);
    bool has = HAS_INTEGERS(layout->v_format, layout->head_dim);
    if (has) {
        fill(&r, layout->v_format, tile);
    }
    return has;
}

// --- vectors ---------------------------------------------------------------------------------------------------------

// Vectors as bytes, for one group of a tile.
struct parts {
    _Alignas(64) int8_t bytes[AT_ONCE][2 * SL_MAX_HEAD_DIM]; // of each four rows: four low ones, four high ones
    float steps[AT_ONCE], sums[AT_ONCE];                     // step; sum_e a_e z_e
};

// Splits n vectors. A float plus 1.5 * 2^23 + 128 has A + 128 in its low 16 bits: the high byte, and the low one with
// its highest bit flipped.
static void split(const struct sl_avx2_product *p, size_t rows, const float *scales, int n, struct parts *out) {
    const __m128i bytes = _mm_cvtsi64_si128(0x0d0905010c080400),
                  none = _mm_cvtsi64_si128((long long)(EACH_BYTE * 0x80));
    const __m512i first = _mm512_broadcast_i32x4(_mm_unpacklo_epi64(bytes, none)),
                  second = _mm512_broadcast_i32x4(_mm_unpacklo_epi64(none, bytes)),
                  flip = _mm512_set1_epi64(0x80808080);
    const __m512 shift = _mm512_set1_ps(12583040.0f);
    _Alignas(64) float scaled[AT_ONCE][SL_MAX_HEAD_DIM], inverses[AT_ONCE];
    const float *zeros = scales + rows;
    __m512 most[AT_ONCE], sums[AT_ONCE];
    for (int v = 0; v < AT_ONCE; v++) {
        const float *from = p->a + (size_t)(v < n ? v : 0) * p->a_stride;
        most[v] = sums[v] = _mm512_setzero_ps();
        for (size_t e = 0; e < rows; e += 64) {
            SL_UNROLL
            for (size_t i = e; i < e + 64; i += 16) {
                __m512 a = _mm512_loadu_ps(from + i), y = _mm512_mul_ps(a, _mm512_load_ps(scales + i));
                sums[v] =
                    _mm512_fmadd_ps(a, _mm512_load_ps(zeros + i), sums[v]); // NaN if an a is: range_ps() passes over it
                most[v] = _mm512_range_ps(most[v], y, 0xb);                 // the larger |x|
                _mm512_store_ps(scaled[v] + i, y);
            }
        }
    }
    __m128 largest = sl_avx512_reduce_four(most, false);
    const __mmask8 normal = _mm_cmp_ps_mask(largest, _mm_set1_ps(LEAST), _CMP_NLT_UQ);
    _mm_store_ps(inverses, _mm_maskz_div_ps(normal, _mm_set1_ps(MOST), largest));
    _mm_storeu_ps(out->steps, _mm_maskz_mul_ps(normal, _mm_set1_ps(1.0f / MOST), largest));
    _mm_storeu_ps(out->sums, sl_avx512_reduce_four(sums, true));
    for (int v = 0; v < n; v++) {
        const __m512 inverse = _mm512_set1_ps(inverses[v]);
        for (size_t e = 0; e < rows; e += 64) {
            SL_UNROLL
            for (size_t i = e; i < e + 64; i += 32) {
                __m512 x = _mm512_fmadd_ps(_mm512_load_ps(scaled[v] + i), inverse, shift);
                __m512 y = _mm512_fmadd_ps(_mm512_load_ps(scaled[v] + i + 16), inverse, shift);
                __m512i low = _mm512_shuffle_epi8(_mm512_castps_si512(x), first);
                __m512i high = _mm512_shuffle_epi8(_mm512_castps_si512(y), second);
                _mm512_store_si512(out->bytes[v] + 2 * i,
                                   _mm512_ternarylogic_epi64(low, high, flip, 0x56)); // (a | b) ^ c
            }
        }
    }
}

static inline __m512i four_bytes(const int8_t *at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return _mm512_set1_epi32(word);
}

// Multiplies n vectors, a constant, by a group of a tile. The sums of low bytes begin with those of high ones. In
// assembler, because gcc 12 copies and spills the sums of the intrinsic.
static inline __attribute__((always_inline)) void
multiply_group(const uint8_t *tile, size_t rows, const struct parts *x, int n, const struct sl_avx2_product *p) {
    __m512i sum[AT_ONCE][4];
    SL_UNROLL
    for (int v = 0; v < n; v++) {
        SL_UNROLL
        for (int i = 0; i < 4; i++) {
            sum[v][i] = _mm512_setzero_si512();
        }
    }
    SL_UNROLL
    for (int part = 4; part >= 0; part -= 4) {
        const uint8_t *codes = tile;
        const int8_t *bytes = x->bytes[0] + part;
        for (size_t four = 0; four < rows / 4; four++, codes += QUAD_BYTES, bytes += 8) {
            __m512i code[4];
            SL_UNROLL
            for (int i = 0; i < 4; i++) {
                code[i] = _mm512_load_si512(codes + 64 * i);
            }
            SL_UNROLL
            for (int v = 0; v < n; v++) {
                const __m512i a = four_bytes(bytes + (size_t)v * sizeof x->bytes[0]);
                SL_UNROLL
                for (int i = 0; i < 4; i++) {
                    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[v][i]) : "v"(code[i]), "v"(a));
                }
            }
        }
        SL_UNROLL
        for (int v = 0; v < n && part > 0; v++) {
            SL_UNROLL
            for (int i = 0; i < 4; i++) {
                sum[v][i] = _mm512_slli_epi32(sum[v][i], 8);
            }
        }
    }
    SL_UNROLL
    for (int v = 0; v < n; v++) {
        const __m512 step = _mm512_set1_ps(x->steps[v]), zeros = _mm512_set1_ps(x->sums[v]);
        SL_UNROLL
        for (int i = 0; i < 4; i++) {
            float *c = p->c + (size_t)v * p->c_stride + 16 * i;
            __m512 y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[v][i]), step, zeros);
            if (p->factor != NULL) {
                y = _mm512_fmadd_ps(_mm512_loadu_ps(c), _mm512_set1_ps(p->factor[v]), y);
            }
            _mm512_storeu_ps(c, y);
        }
    }
}

// Multiplies n vectors by a tile of rows of n_groups groups, as sl_avx2_multiply() does by a tile of f32.
static void multiply_integers(const struct sl_avx2_product *p, int n, size_t n_groups) {
    const size_t rows = p->strip_rows;
    struct parts parts;
    for (int v = 0; v < n; v += AT_ONCE) {
        struct sl_avx2_product some = sl_avx2_product_from(p, v, 0);
        const int count = n - v < AT_ONCE ? n - v : AT_ONCE;
        for (size_t group = 0; group < n_groups; group++, some.b += GROUP_WORDS * rows, some.c += SL_PAGE_SLOTS) {
            split(&some, rows, some.b + 16 * rows, count, &parts);
            switch (count) { // every case is a kernel of its own
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        multiply_group((const uint8_t *)some.b, rows, &parts, n, &some);                                               \
        break;
                CASE(1) CASE(2) CASE(3) CASE(4)
#undef CASE
            }
        }
    }
}

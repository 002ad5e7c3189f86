// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the inner loops of products with codes (code_matmul.h) with AVX2, which multiplies bytes.
 *
 * Design: a register has a step of 8 rows of W, byte 4 c + i. VPMADDUBSW multiplies unsigned bytes by signed ones, and
 *         adds up pairs of the products in 16 bits, which hold a few steps of them: FITS. Then they become 32 bits. Codes
 *         of 8 bits do not fit, so their 128 is taken away, and x takes their sign. Sums are integers of half a group at a
 *         time, in registers for all rows of x; y is in L1.
 */
#include <immintrin.h>
#include <string.h>

#include "engine/tensor/cpu/dense/code_matmul.h"
#include "engine/tensor/cpu/dense/vector_finish.h"

#define INLINE         static inline __attribute__((always_inline))
#define UNROLL         _Pragma("GCC unroll 8")
#define CODE_TILE_ROWS 8

static int32_t sum_of(__m256i v) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1))));
}

// Returns the largest |x|, or NaN: magnitudes compare as integers.
static float largest(const float *x) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < SL_CODE_GROUP; i += 8) {
        __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        most = _mm256_max_epi32(most, _mm256_and_si256(bits, magnitude));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtss_f32(_mm_castsi128_ps(half));
}

// Returns X of 8 weights; 0 for NaN, and for infinity, whose scale says it.
static __m256i whole_of(const float *x, __m256 inverse) {
    __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    return _mm256_andnot_si256(_mm256_cmpeq_epi32(whole, _mm256_set1_epi32(INT32_MIN)), whole);
}

static void split(const float x[SL_CODE_GROUP], struct sl_code_x *out) {
    float most = largest(x);
    __m256 inverse = _mm256_set1_ps(most < SL_CODE_LEAST ? 0.0f : SL_CODE_LARGEST / most);
    out->scale = most < SL_CODE_LEAST ? 0.0f : most / SL_CODE_LARGEST;
    int32_t sums[2];
    for (int half = 0; half < 2; half++) {
        __m256i first = whole_of(x + 16 * half, inverse), second = whole_of(x + 16 * half + 8, inverse);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), _MM_SHUFFLE(3, 1, 2, 0));
        __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(void *)(out->bytes + 16 * half), bytes);
        sums[half] = sum_of(_mm256_add_epi32(first, second));
    }
    sl_code_x_sum(out, sums[0], sums[1]);
}

// --- a group ---------------------------------------------------------------------------------------------------------

INLINE __m256i bytes_at(const char *at) {
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

// Returns 16 in the bytes whose bit of the 32 at `at` is set.
INLINE __m256i fifth_bits(const char *at) {
    const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3,
                                             3, 3, 3, 3, 3, 3, 3);
    const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    int32_t word;
    memcpy(&word, at, sizeof word);
    __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), byte_of), bit_of);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit_of), _mm256_set1_epi8(16));
}

// Loads step `step` of a group, as bytes, for rows 8 * eight and on.
INLINE __m256i load_codes(struct sl_code_form form, const char *codes, int step, int eight) {
    const char *high = codes + 4 * 64;
    if (form.bits == 8) {
        return bytes_at(codes + step * 64 + eight * 32);
    }
    __m256i pair = bytes_at(codes + step / 2 * 64 + eight * 32);
    __m256i bytes = _mm256_and_si256(step % 2 == 0 ? pair : _mm256_srli_epi16(pair, 4), _mm256_set1_epi8(15));
    if (form.bits == 5) {
        return _mm256_or_si256(bytes, fifth_bits(high + step * 8 + eight * 4));
    }
    if (form.bits == 6) {
        __m256i planes = bytes_at(high + step / 4 * 64 + eight * 32);
        const int at = step % 4 * 2; // bits at, at + 1 of a byte become bits 4 and 5
        planes = at <= 4 ? _mm256_slli_epi16(planes, 4 - at) : _mm256_srli_epi16(planes, 2);
        return _mm256_or_si256(bytes, _mm256_and_si256(planes, _mm256_set1_epi8(0x30)));
    }
    return bytes;
}

INLINE __m256i four_bytes(const int8_t *at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return _mm256_set1_epi32(word);
}

// The scales and offsets of 8 rows of W.
struct scales {
    __m256 scale, offset;
};

// The same group of several rows of x.
struct rows {
    const struct sl_code_x *first;
    int64_t stride; // groups from row to row
};

// A part of the weights of a group: number `share` of those that share scales, of rows 8 * eight and on.
struct part {
    int share, eight;
};

// Adds the products of a part of a group to sums[rows][8].
INLINE void add_part(struct sl_code_form form, int rows, const char *codes, struct part part, struct scales scales,
                     struct rows x, float *sums) {
    const int steps = form.shared / 4, which = form.shared == SL_CODE_GROUP ? 2 : part.share;
    // steps whose products 16 bits hold: 2 (2^bits - 1) 127 each, or 2 * 128 * 127 for bytes with a sign
    const int fits = form.bits == 4 ? 8 : form.bits == 5 ? 4 : form.bits == 6 ? 2 : 1;
    __m256i products[CODE_TILE_ROWS], words[CODE_TILE_ROWS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        products[r] = _mm256_setzero_si256();
    }
    UNROLL
    for (int s = 0; s < steps; s++) {
        const int step = part.share * steps + s;
        __m256i c = load_codes(form, codes, step, part.eight);
        __m256i sign = _mm256_xor_si256(c, _mm256_set1_epi8((char)0x80));
        UNROLL
        for (int r = 0; r < rows; r++) {
            __m256i X = four_bytes(x.first[r * x.stride].bytes + 4 * step);
            __m256i pairs = form.bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(sign), _mm256_sign_epi8(X, sign))
                                           : _mm256_maddubs_epi16(c, X);
            words[r] = s % fits == 0 ? pairs : _mm256_add_epi16(words[r], pairs);
            if (s % fits == fits - 1 || s == steps - 1) {
                products[r] = _mm256_add_epi32(products[r], _mm256_madd_epi16(words[r], _mm256_set1_epi16(1)));
            }
            __asm__("" : "+x"(words[r])); // else the compiler adds up all steps as a tree, and stores its leaves
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++, sums += SL_PANEL) {
        const struct sl_code_x *group = &x.first[r * x.stride];
        __m256i sum = products[r];
        if (form.bits != 8) {
            sum = _mm256_add_epi32(sum, _mm256_set1_epi32(sl_code_start(form, group, part.share)));
        }
        __m256 scaled = _mm256_mul_ps(scales.scale, _mm256_set1_ps(group->scale));
        __m256 y = _mm256_fmadd_ps(scaled, _mm256_cvtepi32_ps(sum), _mm256_loadu_ps(sums));
        if (form.has_offset) {
            y = _mm256_fmadd_ps(scales.offset, _mm256_set1_ps(group->scaled[which]), y);
        }
        _mm256_storeu_ps(sums, y);
    }
}

// --- tiles -----------------------------------------------------------------------------------------------------------

INLINE __m256 from_f16(const char *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

INLINE struct scales load_block_scales(struct sl_code_form form, const char *block, int eight) {
    struct scales scales = {from_f16(block + 16 * eight), _mm256_setzero_ps()};
    if (form.has_offset) {
        scales.offset = from_f16(block + 2 * SL_HALF + 16 * eight);
    }
    return scales;
}

// Returns the scales that a group has at `group`, for the weights of one share.
INLINE struct scales load_scales(struct sl_code_form form, struct scales block, const char *group, int share,
                                 int eight) {
    if (form.block == 1) {
        return block;
    }
    group += SL_HALF * (form.has_offset ? 2 : 1) * share + 8 * eight;
    __m256i s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)group));
    struct scales scales = {_mm256_mul_ps(block.scale, _mm256_cvtepi32_ps(s)), _mm256_setzero_ps()};
    if (form.has_offset) {
        __m256i o = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(group + SL_HALF)));
        scales.offset = _mm256_mul_ps(block.offset, _mm256_cvtepi32_ps(o));
    }
    return scales;
}

INLINE void tile(struct sl_code_form form, int rows, const char *half, const struct sl_code_x *x, int64_t ldx,
                 int64_t n_groups, float *sums) {
    const int shares = SL_CODE_GROUP / form.shared, values = form.has_offset ? 2 : 1;
    const size_t code_bytes = sl_code_group_bytes(form.bits);
    for (int64_t g = 0; g < n_groups; g += form.block) {
        const struct scales block[2] = {load_block_scales(form, half, 0), load_block_scales(form, half, 1)};
        half += 2 * SL_HALF * values;
        for (int i = 0; i < form.block; i++, x++) {
            const char *codes = half + (form.block == 1 ? 0 : SL_HALF * values * shares);
            sl_code_fetch(codes, code_bytes, rows);
            UNROLL
            for (int eight = 0; eight < 2; eight++) {
                UNROLL
                for (int share = 0; share < shares; share++) {
                    add_part(form, rows, codes, (struct part){share, eight},
                             load_scales(form, block[eight], half, share, eight), (struct rows){x, ldx},
                             sums + 8 * eight);
                }
            }
            half = codes + code_bytes;
        }
    }
}

#include "engine/tensor/cpu/dense/code_tiles.h"

const struct sl_code_kernels sl_avx2_code_kernels = {CODE_TILE_ROWS, tiles, split, sl_vector_finish_panel};

// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cpu/dense/code_panels.h"

#include <assert.h>
#include <string.h>

#include "engine/tensor/cpu/simd/unroll.h"
#include "engine/tensor/shared_weights.h"
#include "engine/tensor/weights.h"

static int64_t part_halves(const struct sl_rows *part) {
    return sl_div_up(part->n, SL_HALF);
}

// Returns the bytes of a part, which may have no rows.
static size_t part_bytes(const struct sl_matrix *w, const struct sl_rows *part) {
    return part->n > 0 ? (size_t)part_halves(part) * sl_code_half_bytes(sl_code_type(part->dtype), w->k) : 0;
}

static enum sl_dtype quantized_dtype(const struct sl_matrix *w) {
    return w->format == SL_WEIGHT_INT8 ? SL_Q8_0 : SL_Q4_0;
}

static struct sl_code_half quantized_half_at(const struct sl_matrix *w, int64_t p, int half) {
    enum sl_dtype dtype = quantized_dtype(w);
    const struct sl_code_type *type = sl_code_type(dtype);
    if (sl_panel_row(w, p, half * SL_PANEL_HALF) < 0) {
        return (struct sl_code_half){SL_F32, NULL, NULL};
    }
    const char *data = w->packed;
    return (struct sl_code_half){dtype, type, data + (size_t)(2 * p + half) * sl_code_half_bytes(type, w->k)};
}

struct sl_code_half sl_code_half_at(const struct sl_matrix *w, int64_t p, int half) {
    if (w->format != SL_WEIGHT_CODES) {
        return quantized_half_at(w, p, half);
    }
    int64_t row = w->gated ? p * SL_PANEL_HALF + half * (w->n / 2) : p * SL_PANEL + half * SL_PANEL_HALF;
    const char *data = w->packed;
    for (int i = 0; i < SL_MAX_PARTS; i++) {
        const struct sl_rows *part = &w->parts[i];
        if (row < part->n) {
            const struct sl_code_type *type = sl_code_type(part->dtype);
            return (struct sl_code_half){part->dtype, type,
                                         data + (size_t)(row / SL_HALF) * sl_code_half_bytes(type, w->k)};
        }
        row -= part->n;
        data += part_bytes(w, part);
    }
    return (struct sl_code_half){SL_F32, NULL, NULL};
}

// --- one row of 16 ---------------------------------------------------------------------------------------------------

#define INLINE static inline __attribute__((always_inline)) // dtype and bits are constants

static void or_word(unsigned char *at, uint32_t word) {
    uint32_t old;
    memcpy(&old, at, sizeof old);
    word |= old;
    memcpy(at, &word, sizeof word);
}

// Writes the 32 codes of a group from code `first` of the block on, as those of row c. Eight codes are two steps, whose
// low four bits share a word.
INLINE void put_codes(enum sl_dtype dtype, int bits, const unsigned char *block, int first, int c, unsigned char *out) {
    unsigned char *high = out + sl_code_group_bytes(4);
    SL_UNROLL
    for (int pair = 0; pair < SL_CODE_STEPS / 2; pair++) {
        uint64_t codes = sl_code_eight(dtype, block, first + 8 * pair), low = codes & SL_BITS_OF_EIGHT(4);
        uint32_t words[] = {(uint32_t)codes, (uint32_t)(codes >> 32)}, word = (uint32_t)(low | low >> 28);
        if (bits == 8) {
            memcpy(out + 2 * pair * 64 + 4 * c, &words[0], 4);
            memcpy(out + (2 * pair + 1) * 64 + 4 * c, &words[1], 4);
            continue;
        }
        memcpy(out + pair * 64 + 4 * c, &word, sizeof word);
        if (bits == 5) { // gathers the fifth bits of eight bytes in one
            unsigned fifth = (unsigned)((codes >> 4 & SL_BITS_OF_EIGHT(1)) * 0x0102040810204080u >> 56);
            high[2 * pair * 8 + c / 2] |= (unsigned char)((fifth & 15) << (c % 2 * 4));
            high[(2 * pair + 1) * 8 + c / 2] |= (unsigned char)(fifth >> 4 << (c % 2 * 4));
        } else if (bits == 6) {
            uint64_t two = codes >> 4 & SL_BITS_OF_EIGHT(2);
            or_word(high + pair / 2 * 64 + 4 * c, (uint32_t)(two | two >> 30) << (pair % 2 * 4));
        }
    }
}

// Writes a block of n_groups groups as that of row c into zeroed memory. Unrolled, every code has a constant place.
INLINE void put_block(enum sl_dtype dtype, int bits, int n_groups, const unsigned char *block, int c,
                      unsigned char *out) {
    const struct sl_code_type *type = sl_code_type(dtype);
    struct sl_code_block scales;
    type->read_scales(block, &scales);
    memcpy(out + 2 * c, &scales.scale, 2);
    if (type->has_offset) {
        memcpy(out + 2 * SL_HALF + 2 * c, &scales.offset, 2);
    }
    out += 2 * SL_HALF * (type->has_offset ? 2 : 1);
    int shares = type->n_weights > SL_CODE_GROUP ? SL_CODE_GROUP / type->shared : 0; // of a group
    SL_UNROLL
    for (int g = 0; g < n_groups; g++) {
        for (int share = g * shares; share < (g + 1) * shares; share++) {
            out[c] = (unsigned char)scales.scales[share];
            if (type->has_offset) {
                out[SL_HALF + c] = scales.offsets[share];
            }
            out += SL_HALF * (type->has_offset ? 2 : 1);
        }
        put_codes(dtype, bits, block, g * SL_CODE_GROUP, c, out);
        out += sl_code_group_bytes(bits);
    }
}

// --- a part ----------------------------------------------------------------------------------------------------------

struct packing {
    const struct sl_matrix *w;
    const struct sl_rows *part;
    char *data;
};

INLINE void pack(const struct packing *packing, enum sl_dtype dtype, int bits, int n_groups, int64_t begin,
                 int64_t end) {
    const struct sl_code_type *type = sl_code_type(dtype);
    size_t half_bytes = sl_code_half_bytes(type, packing->w->k), block_bytes = sl_code_block_bytes(type);
    int64_t n_blocks = packing->w->k / type->n_weights;
    const unsigned char *block =
        (const unsigned char *)packing->part->data + (size_t)(begin * SL_HALF * n_blocks) * type->bytes;
    for (int64_t half = begin; half < end; half++) {
        unsigned char *out = (unsigned char *)packing->data + (size_t)half * half_bytes;
        memset(out, 0, half_bytes); // rows that there are not have a scale of 0
        for (int c = 0; c < SL_HALF && half * SL_HALF + c < packing->part->n; c++) {
            for (int64_t b = 0; b < n_blocks; b++, block += type->bytes) {
                put_block(dtype, bits, n_groups, block, c, out + (size_t)b * block_bytes);
            }
        }
    }
}

static void pack_halves(void *arg, int64_t begin, int64_t end, int) {
    const struct packing *packing = arg;
    switch (packing->part->dtype) {
#define PACK(name, bits, shared, has_offset, zero_shift, block)                                                        \
    case SL_##name:                                                                                                    \
        pack(packing, SL_##name, bits, block, begin, end);                                                             \
        break;
        SL_CODE_FORMS(PACK)
#undef PACK
    default:
        assert(false); // numbers have no codes
    }
    sl_shared_weights_progress_within(packing->w->shared);
}

// Writes a group as a block of the file's type, which put_block() reads.
INLINE void make_block(enum sl_dtype dtype, uint16_t scale, const int8_t codes[SL_WEIGHT_GROUP], unsigned char *block) {
    memcpy(block, &scale, sizeof scale);
    for (int i = 0; i < (dtype == SL_Q8_0 ? 32 : 16); i++) {
        int nibbles = (codes[i] + 8) | (codes[i % 16 + 16] + 8) << 4;
        block[2 + i] = (unsigned char)(dtype == SL_Q8_0 ? codes[i] : nibbles);
    }
}

// Quantizes the 16 rows of half panels: number 2 p + half.
INLINE void quantize_as(const struct sl_matrix *w, enum sl_dtype dtype, int bits, int64_t begin, int64_t end) {
    const struct sl_code_type *type = sl_code_type(dtype);
    size_t half_bytes = sl_code_half_bytes(type, w->k), block_bytes = sl_code_block_bytes(type);
    int8_t codes[SL_WEIGHT_GROUP];
    unsigned char block[2 + SL_WEIGHT_GROUP];
    for (int64_t half = begin; half < end; half++) {
        unsigned char *out = (unsigned char *)w->packed + (size_t)half * half_bytes;
        memset(out, 0, half_bytes);
        for (int64_t g = 0; g < sl_weight_groups(w->k); g++, out += block_bytes) {
            for (int c = 0; c < SL_HALF; c++) {
                uint16_t scale = sl_panel_quantize(w, half / 2, (int)(half % 2) * SL_HALF + c, g, codes);
                make_block(dtype, scale, codes, block);
                put_block(dtype, bits, 1, block, c, out);
            }
        }
    }
}

static void quantize_halves(void *arg, int64_t begin, int64_t end, int) {
    const struct sl_matrix *w = arg;
    if (quantized_dtype(w) == SL_Q8_0) {
        quantize_as(w, SL_Q8_0, 8, begin, end);
    } else {
        quantize_as(w, SL_Q4_0, 4, begin, end);
    }
    sl_shared_weights_progress_within(w->shared);
}

static enum sl_status quantize(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    int64_t halves = 2 * sl_panel_count(matrix, sl_matrix_outputs(matrix));
    size_t bytes = (size_t)halves * sl_code_half_bytes(sl_code_type(quantized_dtype(matrix)), matrix->k);
    SL_TRY(sl_panels_allocate(matrix, bytes, err));
    if (!sl_panels_are_packed(matrix)) {
        sl_stream_run(stream, halves, 2, quantize_halves, matrix);
    }
    return SL_OK;
}

enum sl_status sl_code_pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    if (matrix->format != SL_WEIGHT_CODES) {
        return quantize(stream, matrix, err);
    }
    size_t bytes = 0;
    for (int i = 0; i < SL_MAX_PARTS; i++) {
        bytes += part_bytes(matrix, &matrix->parts[i]);
    }
    enum sl_status status = sl_panels_allocate(matrix, bytes, err);
    char *data = matrix->packed;
    for (int i = 0; i < SL_MAX_PARTS && status == SL_OK && !sl_panels_are_packed(matrix); i++) {
        struct packing packing = {matrix, &matrix->parts[i], data};
        sl_stream_run(stream, part_halves(packing.part), 2, pack_halves, &packing);
        data += part_bytes(matrix, packing.part);
    }
    return status;
}

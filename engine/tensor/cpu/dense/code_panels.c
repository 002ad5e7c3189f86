// SPDX-License-Identifier: Apache-2.0
// Purpose: arranges the codes of a file as half panels. See code_panels.h.
#include "engine/tensor/cpu/dense/code_panels.h"

#include <string.h>

#include "engine/tensor/weights.h"

static int64_t part_halves(const struct sl_rows *part) {
    return sl_div_up(part->n, SL_HALF);
}

// Returns the bytes of a part, which may have no rows.
static size_t part_bytes(const struct sl_matrix *w, const struct sl_rows *part) {
    return part->n > 0 ? (size_t)part_halves(part) * sl_code_half_bytes(sl_code_type(part->dtype), w->k) : 0;
}

// Returns the type of the blocks that pack() quantizes.
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

static void or_word(unsigned char *at, uint32_t word) {
    uint32_t old;
    memcpy(&old, at, sizeof old);
    word |= old;
    memcpy(at, &word, sizeof word);
}

// Writes the codes of a group, whose first code is codes[first] of each row. A word has the four codes of a step.
static void put_codes(const struct sl_code_block rows[SL_HALF], int first, int bits, unsigned char *out) {
    unsigned char *high = out + sl_code_group_bytes(4);
    for (int step = 0; step < SL_CODE_STEPS; step++) {
        for (int c = 0; c < SL_HALF; c++) {
            uint32_t codes, fifth;
            memcpy(&codes, &rows[c].codes[first + 4 * step], sizeof codes);
            if (bits == 8) {
                memcpy(out + step * 64 + 4 * c, &codes, sizeof codes);
                continue;
            }
            or_word(out + step / 2 * 64 + 4 * c, (codes & 0x0f0f0f0fu) << (step % 2 * 4));
            if (bits == 5) {
                fifth = codes >> 4 & 0x01010101u;
                fifth = (fifth | fifth >> 7 | fifth >> 14 | fifth >> 21) & 15;
                high[step * 8 + c / 2] |= (unsigned char)(fifth << (c % 2 * 4));
            } else if (bits == 6) {
                or_word(high + step / 4 * 64 + 4 * c, (codes >> 4 & 0x03030303u) << (step % 4 * 2));
            }
        }
    }
}

// Writes one block of 16 rows into zeroed memory.
static void put_block(const struct sl_code_type *type, const struct sl_code_block rows[SL_HALF], unsigned char *out) {
    for (int c = 0; c < SL_HALF; c++) {
        memcpy(out + 2 * c, &rows[c].scale, 2);
        if (type->has_offset) {
            memcpy(out + 2 * SL_HALF + 2 * c, &rows[c].offset, 2);
        }
    }
    out += 2 * SL_HALF * (type->has_offset ? 2 : 1);
    int shares = type->n_weights > SL_CODE_GROUP ? SL_CODE_GROUP / type->shared : 0; // of a group
    for (int g = 0; g < type->n_weights / SL_CODE_GROUP; g++) {
        for (int share = g * shares; share < (g + 1) * shares; share++) {
            for (int c = 0; c < SL_HALF; c++) {
                out[c] = (unsigned char)rows[c].scales[share];
                if (type->has_offset) {
                    out[SL_HALF + c] = rows[c].offsets[share];
                }
            }
            out += SL_HALF * (type->has_offset ? 2 : 1);
        }
        put_codes(rows, g * SL_CODE_GROUP, type->bits, out);
        out += sl_code_group_bytes(type->bits);
    }
}

struct packing {
    const struct sl_matrix *w;
    const struct sl_rows *part;
    char *data;
};

static void pack_halves(void *arg, int64_t begin, int64_t end, int member) {
    const struct packing *packing = arg;
    const struct sl_code_type *type = sl_code_type(packing->part->dtype);
    size_t half_bytes = sl_code_half_bytes(type, packing->w->k), block_bytes = sl_code_block_bytes(type);
    int64_t n_blocks = packing->w->k / type->n_weights;
    struct sl_code_block rows[SL_HALF];
    (void)member;
    for (int64_t half = begin; half < end; half++) {
        unsigned char *out = (unsigned char *)packing->data + (size_t)half * half_bytes;
        memset(out, 0, half_bytes);
        for (int64_t b = 0; b < n_blocks; b++, out += block_bytes) {
            memset(rows, 0, sizeof rows); // rows that there are not have a scale of 0
            for (int64_t c = 0; c < SL_HALF && half * SL_HALF + c < packing->part->n; c++) {
                size_t block = (size_t)((half * SL_HALF + c) * n_blocks + b);
                type->read((const unsigned char *)packing->part->data + block * type->bytes, &rows[c]);
            }
            put_block(type, rows, out);
        }
    }
}

// Quantizes the 16 rows of half panels: number 2 p + half.
static void quantize_halves(void *arg, int64_t begin, int64_t end, int member) {
    const struct sl_matrix *w = arg;
    const struct sl_code_type *type = sl_code_type(quantized_dtype(w));
    size_t half_bytes = sl_code_half_bytes(type, w->k), block_bytes = sl_code_block_bytes(type);
    struct sl_code_block rows[SL_HALF];
    int8_t codes[SL_WEIGHT_GROUP];
    (void)member;
    for (int64_t half = begin; half < end; half++) {
        unsigned char *out = (unsigned char *)w->packed + (size_t)half * half_bytes;
        memset(out, 0, half_bytes);
        for (int64_t g = 0; g < sl_weight_groups(w->k); g++, out += block_bytes) {
            for (int c = 0; c < SL_HALF; c++) {
                rows[c].scale = sl_panel_quantize(w, half / 2, (int)(half % 2) * SL_HALF + c, g, codes);
                for (int i = 0; i < SL_WEIGHT_GROUP; i++) {
                    rows[c].codes[i] = (uint8_t)(codes[i] + type->zero);
                }
            }
            put_block(type, rows, out);
        }
    }
}

static enum sl_status quantize(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    int64_t halves = 2 * sl_panel_count(matrix, sl_matrix_outputs(matrix));
    size_t bytes = (size_t)halves * sl_code_half_bytes(sl_code_type(quantized_dtype(matrix)), matrix->k);
    enum sl_status status = sl_panels_allocate(matrix, bytes, err);
    if (status == SL_OK) {
        sl_stream_run(stream, halves, 2, quantize_halves, matrix);
    }
    return status;
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
    for (int i = 0; i < SL_MAX_PARTS && status == SL_OK; i++) {
        struct packing packing = {matrix, &matrix->parts[i], data};
        sl_stream_run(stream, part_halves(packing.part), 2, pack_halves, &packing);
        data += part_bytes(matrix, packing.part);
    }
    return status;
}

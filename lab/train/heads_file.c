// SPDX-License-Identifier: Apache-2.0
#include "lab/train/heads_file.h"

#include <endian.h>
#include <math.h>
#include <stdlib.h>

#include "base/whole_file.h"
#include "engine/tensor/half.h"

#define ENTRY_BYTES 160 // most bytes of a header entry

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {[SL_F32] = {"F32", 4}, [SL_F16] = {"F16", 2}, [SL_BF16] = {"BF16", 2}};

// Writes JSON: name -> dtype, shape, data_offsets; padded so that the data begins at a multiple of 8.
static size_t write_header(const struct sl_heads_shape *s, enum sl_dtype dtype, char *header, size_t header_bytes) {
    size_t used = 0, offset = 0;
    for (int t = 0; t < 2 * s->n_layers; t++) {
        int64_t rows = t % 2 == 0 ? s->n_hidden : s->n_kv_heads, columns = t % 2 == 0 ? s->n_columns : s->n_hidden;
        size_t end = offset + (size_t)rows * (size_t)columns * dtypes[dtype].bytes;
        used += (size_t)snprintf(header + used, header_bytes - used,
                                 "%s\"layers.%d.w%d\":{\"dtype\":\"%s\",\"shape\":[%lld,%lld],"
                                 "\"data_offsets\":[%zu,%zu]}",
                                 t == 0 ? "{" : ",", t / 2, t % 2 + 1, dtypes[dtype].name, (long long)rows,
                                 (long long)columns, offset, end);
        offset = end;
    }
    header[used++] = '}';
    while (used % 8 != 0) {
        header[used++] = ' ';
    }
    return used;
}

static void write_matrix(const float *w, int64_t n, enum sl_dtype dtype, FILE *file) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(w[i]) : sl_f32_to_bf16(w[i]);
        if (dtype == SL_F32) {
            fwrite(&w[i], sizeof w[i], 1, file);
        } else {
            fwrite(&half, sizeof half, 1, file);
        }
    }
}

enum sl_status sl_heads_write(struct sl_heads *heads, const char *path, enum sl_dtype dtype, struct sl_error *err) {
    const struct sl_heads_shape *s = sl_heads_get_shape(heads);
    const struct sl_heads_state *state = sl_heads_get_state(heads);
    for (size_t i = 0; i < state->n; i++) {
        SL_FAIL_IF(!isfinite(state->parameters[i]), err, SL_ERR_INVALID,
                   "training has diverged: a parameter is %g; use a smaller learning rate",
                   (double)state->parameters[i]);
    }
    size_t header_bytes = (size_t)s->n_layers * 2 * ENTRY_BYTES + 16;
    char *header = malloc(header_bytes);
    SL_FAIL_IF(header == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    struct sl_whole_file whole;
    enum sl_status status = sl_whole_file_open(&whole, path, err);
    if (status == SL_OK) {
        uint64_t used = write_header(s, dtype, header, header_bytes), length = htole64(used);
        fwrite(&length, sizeof length, 1, whole.file);
        fwrite(header, 1, used, whole.file);
        for (int l = 0; l < s->n_layers; l++) {
            write_matrix(state->parameters + sl_heads_w1_offset(s, l), (int64_t)s->n_hidden * s->n_columns, dtype,
                         whole.file);
            write_matrix(state->parameters + sl_heads_w2_offset(s, l), (int64_t)s->n_kv_heads * s->n_hidden, dtype,
                         whole.file);
        }
        status = sl_whole_file_finish(&whole, err);
    }
    free(header);
    return status;
}

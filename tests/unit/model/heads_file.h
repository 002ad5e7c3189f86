// SPDX-License-Identifier: Apache-2.0
// Purpose: model folders with retaining heads for tests: a copy of a golden model and a file of invented heads.
#pragma once

#include "engine/model/model.h"
#include "engine/tensor/half.h"
#include "tests/unit/temp_folder.h"

#define GQA             "tests/golden/llama/gqa" // 3 layers, 6 heads over 2 of 16, hidden 48, vocabulary 160
#define GQA_LAYERS      3
#define GQA_HEADS       6
#define GQA_KV_HEADS    2
#define GQA_HEAD_DIM    16
#define GQA_W1_COLUMNS  ((GQA_HEADS + 2 * GQA_KV_HEADS) * GQA_HEAD_DIM)
#define HEADS_HIDDEN    21 // no multiple of what a kernel likes
#define HEADS_FILE      "retaining_heads.safetensors"
#define HEADS_MAX_BYTES (1 << 20)

// Faults of the file; all zero: none.
struct heads_file {
    enum sl_dtype dtype;
    int n_layers;           // 0: as the model
    const char *leave_out;  // this tensor
    const char *misshape;   // this tensor has a row too many
    const char *narrow;     // this tensor has a column too few
    const char *extra;      // one tensor more, of this name
    const char *dtype_name; // instead of the type's own
    const char *not_finite; // element [1, 2] of this tensor
    size_t cut;             // bytes missing at the end
};

// Element i of W1 or W2 of a layer: multiples of 1/256 below 1/2, exact in every type.
static inline float heads_value(int layer, int w, int64_t i) {
    uint64_t z = ((uint64_t)layer * 2 + (uint64_t)w + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((int)(z >> 56) - 128) / 256.0f;
}

static inline size_t heads_put(unsigned char *to, enum sl_dtype dtype, float value) {
    if (dtype == SL_F32) {
        memcpy(to, &value, 4);
        return 4;
    }
    uint16_t half = dtype == SL_F16 ? sl_f32_to_f16(value) : sl_f32_to_bf16(value);
    memcpy(to, &half, 2);
    return 2;
}

static inline bool heads_is(const char *name, const char *wanted) {
    return wanted != NULL && strcmp(name, wanted) == 0;
}

static inline void heads_write(const struct temp_folder *folder, struct heads_file f) {
    static const char *const dtypes[] = {[SL_F32] = "F32", [SL_F16] = "F16", [SL_BF16] = "BF16"};
    unsigned char *data = malloc(HEADS_MAX_BYTES), *file = malloc(HEADS_MAX_BYTES);
    char header[4096] = "{", name[64];
    size_t used = 1, offset = 0;
    assert_true(data != NULL && file != NULL);
    int n_tensors = 2 * (f.n_layers > 0 ? f.n_layers : GQA_LAYERS);
    for (int t = 0; t < n_tensors + (f.extra != NULL); t++) {
        int layer = t / 2, w = t % 2;
        int64_t rows = w == 0 ? HEADS_HIDDEN : GQA_KV_HEADS, columns = w == 0 ? GQA_W1_COLUMNS : HEADS_HIDDEN;
        snprintf(name, sizeof name, "layers.%d.w%d", layer, w + 1);
        if (t == n_tensors) {
            snprintf(name, sizeof name, "%s", f.extra);
        }
        if (heads_is(name, f.leave_out)) {
            continue;
        }
        rows += heads_is(name, f.misshape);
        columns -= heads_is(name, f.narrow);
        size_t begin = offset;
        for (int64_t i = 0; i < rows * columns; i++) {
            float value = heads_value(layer, w, i);
            if (heads_is(name, f.not_finite) && i == columns + 2) {
                value = w == 0 ? (float)INFINITY : (float)NAN;
            }
            offset += heads_put(data + offset, f.dtype, value);
        }
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%lld, %lld], \"data_offsets\": [%zu, %zu]}",
                                 used > 1 ? ", " : "", name, f.dtype_name != NULL ? f.dtype_name : dtypes[f.dtype],
                                 (long long)rows, (long long)columns, begin, offset);
    }
    used += (size_t)snprintf(header + used, sizeof header - used, "}");
    uint64_t length = htole64(used);
    assert_true(8 + used + offset <= HEADS_MAX_BYTES);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, used);
    memcpy(file + 8 + used, data, offset);
    temp_folder_write(folder, HEADS_FILE, file, 8 + used + offset - f.cut);
    free(data);
    free(file);
}

// A copy of the golden model without what may lie beside it.
static inline struct temp_folder gqa_folder(void) {
    struct temp_folder folder = temp_folder_create();
    temp_folder_copy(&folder, GQA, "config.json");
    temp_folder_copy(&folder, GQA, "generation_config.json");
    temp_folder_copy(&folder, GQA, "model.safetensors");
    return folder;
}

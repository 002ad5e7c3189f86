// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads GGUF files. See gguf.h for the format and the guarantees.
 *
 * Design: a cursor parses the header and never passes its end; the first invalid item ends parsing with the reason.
 *         Metadata is kept as pointers into the mapping, tensors as a list.
 */
#include "engine/model/gguf/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_file.h"
#include "base/little_endian.h"
#include "engine/model/gguf/mapped_file.h"
#include "engine/tensor/half.h"

#define MAX_VALUES        65536 // limit of keys, and of tensors
#define MAX_ALIGNMENT     (1 << 20)
#define DEFAULT_ALIGNMENT 32
#define MAX_SHOWN         64 // bytes of a text in a message

struct sl_gguf {
    struct sl_mapped_file file;
    size_t header_bytes;
    struct sl_gguf_value *values; // sorted by key
    size_t n_values;
    struct sl_gguf_tensor *tensors; // sorted by name
    size_t n_tensors;
};

struct cursor {
    const unsigned char *at, *end;
    const char *path;
    struct sl_error *err;
};

// --- numbers in the mapping ------------------------------------------------------------------------------------------

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Returns the bytes of one value of a kind; 0 for texts and arrays, whose lengths vary.
static size_t kind_bytes(enum sl_gguf_kind kind) {
    static const unsigned char bytes[SL_GGUF_N_KINDS] = {
        [SL_GGUF_U8] = 1,  [SL_GGUF_I8] = 1,  [SL_GGUF_U16] = 2, [SL_GGUF_I16] = 2,
        [SL_GGUF_U32] = 4, [SL_GGUF_I32] = 4, [SL_GGUF_F32] = 4, [SL_GGUF_BOOL] = 1,
        [SL_GGUF_U64] = 8, [SL_GGUF_I64] = 8, [SL_GGUF_F64] = 8,
    };
    return bytes[kind];
}

static bool is_signed(enum sl_gguf_kind kind) {
    return kind == SL_GGUF_I8 || kind == SL_GGUF_I16 || kind == SL_GGUF_I32 || kind == SL_GGUF_I64;
}

bool sl_gguf_as_integer(const struct sl_gguf_value *value, uint64_t i, int64_t *integer_out) {
    size_t n_bytes = kind_bytes(value->kind);
    if (n_bytes == 0 || value->kind == SL_GGUF_F32 || value->kind == SL_GGUF_F64 || value->kind == SL_GGUF_BOOL) {
        return false;
    }
    uint64_t bits = sl_get_bytes(value->data + i * n_bytes, n_bytes);
    if (is_signed(value->kind)) {
        int unused = 64 - 8 * (int)n_bytes;
        *integer_out = (int64_t)(bits << unused) >> unused;
        return true;
    }
    *integer_out = (int64_t)bits;
    return bits <= INT64_MAX;
}

double sl_gguf_element(const struct sl_gguf_value *value, uint64_t i) {
    size_t n_bytes = kind_bytes(value->kind);
    uint64_t bits = sl_get_bytes(value->data + i * n_bytes, n_bytes);
    if (value->kind == SL_GGUF_F32) {
        return (double)sl_bits_to_f32((uint32_t)bits);
    }
    if (value->kind == SL_GGUF_F64) {
        return double_of(bits);
    }
    int64_t integer = 0;
    return sl_gguf_as_integer(value, i, &integer) ? (double)integer : (double)bits;
}

struct sl_gguf_text sl_gguf_next_text(const unsigned char **at) {
    struct sl_gguf_text text = {(const char *)*at + 8, (size_t)sl_get_bytes(*at, 8)};
    *at += 8 + text.n_bytes;
    return text;
}

// --- the header ------------------------------------------------------------------------------------------------------

static enum sl_status truncated(const struct cursor *c, const char *what) {
    return sl_fail(c->err, SL_ERR_INVALID, "%s: the file ends within its %s: it is truncated or damaged", c->path,
                   what);
}

static enum sl_status take(struct cursor *c, uint64_t n_bytes, const char *what, const unsigned char **at_out) {
    if (n_bytes > (uint64_t)(c->end - c->at)) {
        return truncated(c, what);
    }
    *at_out = c->at;
    c->at += n_bytes;
    return SL_OK;
}

static enum sl_status take_number(struct cursor *c, size_t n_bytes, const char *what, uint64_t *value_out) {
    const unsigned char *at = NULL;
    SL_TRY(take(c, n_bytes, what, &at));
    *value_out = sl_get_bytes(at, n_bytes);
    return SL_OK;
}

static enum sl_status take_text(struct cursor *c, const char *what, struct sl_gguf_text *text_out) {
    uint64_t n_bytes = 0;
    const unsigned char *at = NULL;
    SL_TRY(take_number(c, 8, what, &n_bytes));
    SL_TRY(take(c, n_bytes, what, &at));
    *text_out = (struct sl_gguf_text){(const char *)at, (size_t)n_bytes};
    return SL_OK;
}

struct sl_gguf_text sl_gguf_shown(struct sl_gguf_text text) {
    if (text.at == NULL) {
        return (struct sl_gguf_text){"missing", strlen("missing")};
    }
    return (struct sl_gguf_text){text.at, text.n_bytes < MAX_SHOWN ? text.n_bytes : MAX_SHOWN};
}

static enum sl_status take_kind(struct cursor *c, enum sl_gguf_kind *kind_out) {
    uint64_t kind = 0;
    SL_TRY(take_number(c, 4, "metadata", &kind));
    SL_FAIL_IF(kind >= SL_GGUF_N_KINDS, c->err, SL_ERR_INVALID, "%s: a value of the unknown type %llu", c->path,
               (unsigned long long)kind);
    *kind_out = (enum sl_gguf_kind)kind;
    return SL_OK;
}

// Walks over the n elements of a value, so that later readers need no bounds.
static enum sl_status take_elements(struct cursor *c, struct sl_gguf_value *value) {
    size_t n_bytes = kind_bytes(value->kind), all;
    value->data = c->at;
    if (n_bytes > 0) {
        const unsigned char *at;
        return __builtin_mul_overflow(n_bytes, value->n, &all) ? truncated(c, "metadata")
                                                               : take(c, all, "metadata", &at);
    }
    for (uint64_t i = 0; i < value->n; i++) {
        struct sl_gguf_text text;
        SL_TRY(take_text(c, "metadata", &text));
    }
    return SL_OK;
}

static enum sl_status take_value(struct cursor *c, struct sl_gguf_value *value) {
    *value = (struct sl_gguf_value){.n = 1};
    SL_TRY(take_text(c, "metadata", &value->key));
    SL_TRY(take_kind(c, &value->kind));
    if (value->kind == SL_GGUF_ARRAY) {
        value->is_array = true;
        SL_TRY(take_kind(c, &value->kind));
        SL_FAIL_IF(value->kind == SL_GGUF_ARRAY, c->err, SL_ERR_UNSUPPORTED, "%s: %.*s is an array of arrays", c->path,
                   (int)sl_gguf_shown(value->key).n_bytes, value->key.at);
        SL_TRY(take_number(c, 8, "metadata", &value->n));
    }
    return take_elements(c, value);
}

static int compare_texts(struct sl_gguf_text a, struct sl_gguf_text b) {
    int order = memcmp(a.at, b.at, a.n_bytes < b.n_bytes ? a.n_bytes : b.n_bytes);
    return order != 0 ? order : (a.n_bytes > b.n_bytes) - (a.n_bytes < b.n_bytes);
}

static int compare_values(const void *a, const void *b) {
    return compare_texts(((const struct sl_gguf_value *)a)->key, ((const struct sl_gguf_value *)b)->key);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct sl_gguf_tensor *)a)->name, ((const struct sl_gguf_tensor *)b)->name);
}

static int compare_places(const void *a, const void *b) {
    const struct sl_gguf_tensor *x = a, *y = b;
    return x->data != y->data ? (x->data < y->data ? -1 : 1) : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static enum sl_status read_values(struct sl_gguf *g, struct cursor *c, uint64_t n) {
    g->values = calloc(n + 1, sizeof *g->values);
    SL_FAIL_IF(g->values == NULL, c->err, SL_ERR_EXHAUSTED, "%s: out of memory for %llu values", c->path,
               (unsigned long long)n);
    for (; g->n_values < n; g->n_values++) {
        SL_TRY(take_value(c, &g->values[g->n_values]));
    }
    qsort(g->values, g->n_values, sizeof *g->values, compare_values);
    for (size_t i = 1; i < g->n_values; i++) {
        if (compare_values(&g->values[i - 1], &g->values[i]) == 0) {
            struct sl_gguf_text key = sl_gguf_shown(g->values[i].key);
            return sl_fail(c->err, SL_ERR_INVALID, "%s: the key %.*s is there twice", c->path, (int)key.n_bytes,
                           key.at);
        }
    }
    return SL_OK;
}

// --- tensors ---------------------------------------------------------------------------------------------------------

// Reads extents and bytes; in the file, the extent that varies fastest comes first.
static enum sl_status take_shape(struct cursor *c, struct sl_gguf_tensor *tensor, uint64_t n_dims) {
    size_t n = 1;
    SL_FAIL_IF(n_dims < 1 || n_dims > SL_GGUF_MAX_DIMS, c->err, SL_ERR_INVALID,
               "%s: tensor %.96s has %llu dimensions, expected 1 to %d", c->path, tensor->name,
               (unsigned long long)n_dims, SL_GGUF_MAX_DIMS);
    tensor->n_dims = (int)n_dims;
    for (int i = tensor->n_dims - 1; i >= 0; i--) {
        uint64_t extent = 0;
        SL_TRY(take_number(c, 8, "list of tensors", &extent));
        SL_FAIL_IF(extent < 1 || extent > INT32_MAX || __builtin_mul_overflow(n, (size_t)extent, &n) ||
                       n > SIZE_MAX / 8,
                   c->err, SL_ERR_INVALID, "%s: tensor %.96s: impossible shape", c->path, tensor->name);
        tensor->shape[i] = (int64_t)extent;
    }
    uint64_t id = 0;
    SL_TRY(take_number(c, 4, "list of tensors", &id));
    const char *name;
    tensor->type = sl_block_type((uint32_t)id, &name);
    SL_FAIL_IF(tensor->type == NULL, c->err, SL_ERR_UNSUPPORTED,
               "%s: tensor %.96s has type %llu (%s); F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K "
               "are supported",
               c->path, tensor->name, (unsigned long long)id, name);
    SL_FAIL_IF(tensor->shape[tensor->n_dims - 1] % tensor->type->n_weights != 0, c->err, SL_ERR_INVALID,
               "%s: tensor %.96s: rows of %lld weights are not whole blocks of %s", c->path, tensor->name,
               (long long)tensor->shape[tensor->n_dims - 1], name);
    tensor->bytes = n / (size_t)tensor->type->n_weights * tensor->type->bytes;
    return SL_OK;
}

static enum sl_status take_tensor(struct cursor *c, struct sl_gguf_tensor *tensor) {
    struct sl_gguf_text name = {0};
    uint64_t n_dims = 0;
    SL_TRY(take_text(c, "list of tensors", &name));
    SL_FAIL_IF(name.n_bytes == 0 || memchr(name.at, '\0', name.n_bytes) != NULL, c->err, SL_ERR_INVALID,
               "%s: a tensor's name is empty or has a zero byte", c->path);
    tensor->name = strndup(name.at, name.n_bytes);
    SL_FAIL_IF(tensor->name == NULL, c->err, SL_ERR_EXHAUSTED, "%s: out of memory", c->path);
    SL_TRY(take_number(c, 4, "list of tensors", &n_dims));
    SL_TRY(take_shape(c, tensor, n_dims));
    return take_number(c, 8, "list of tensors", &tensor->offset);
}

static enum sl_status place_tensor(const struct sl_gguf *g, const struct cursor *c, uint64_t alignment,
                                   struct sl_gguf_tensor *tensor) {
    uint64_t data_bytes = g->file.bytes - g->header_bytes, offset = tensor->offset;
    SL_FAIL_IF(offset % alignment != 0, c->err, SL_ERR_INVALID,
               "%s: tensor %.96s at byte %llu, expected a multiple of %llu", c->path, tensor->name,
               (unsigned long long)offset, (unsigned long long)alignment);
    SL_FAIL_IF(offset > data_bytes || tensor->bytes > data_bytes - offset, c->err, SL_ERR_INVALID,
               "%s: tensor %.96s of %zu bytes ends behind the file: it is truncated", c->path, tensor->name,
               tensor->bytes);
    tensor->data = g->file.base + g->header_bytes + offset;
    return SL_OK;
}

static enum sl_status check_tensors(struct sl_gguf *g, const struct cursor *c) {
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_places);
    for (size_t i = 1; i < g->n_tensors; i++) {
        SL_FAIL_IF(g->tensors[i - 1].data + g->tensors[i - 1].bytes > g->tensors[i].data, c->err, SL_ERR_INVALID,
                   "%s: tensor %.96s overlaps another one", c->path, g->tensors[i].name);
    }
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_names);
    for (size_t i = 1; i < g->n_tensors; i++) {
        SL_FAIL_IF(compare_names(&g->tensors[i - 1], &g->tensors[i]) == 0, c->err, SL_ERR_INVALID,
                   "%s: tensor %.96s is there twice", c->path, g->tensors[i].name);
    }
    return SL_OK;
}

static enum sl_status read_tensors(struct sl_gguf *g, struct cursor *c, uint64_t n) {
    g->tensors = calloc(n + 1, sizeof *g->tensors);
    SL_FAIL_IF(g->tensors == NULL, c->err, SL_ERR_EXHAUSTED, "%s: out of memory for %llu tensors", c->path,
               (unsigned long long)n);
    while (g->n_tensors < n) {
        SL_TRY(take_tensor(c, &g->tensors[g->n_tensors++]));
    }
    const struct sl_gguf_value *given = sl_gguf_value(g, "general.alignment");
    SL_FAIL_IF(given != NULL && (given->is_array || given->kind != SL_GGUF_U32), c->err, SL_ERR_INVALID,
               "%s: general.alignment is not a number of type u32", c->path);
    int64_t alignment = sl_gguf_integer(g, "general.alignment", DEFAULT_ALIGNMENT);
    SL_FAIL_IF(alignment < 1 || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0, c->err, SL_ERR_INVALID,
               "%s: general.alignment is %lld, expected a power of two up to %d", c->path, (long long)alignment,
               MAX_ALIGNMENT);
    size_t header = (size_t)(c->at - g->file.base), over = header % (size_t)alignment;
    g->header_bytes = over == 0 ? header : header + (size_t)alignment - over;
    if (g->header_bytes > g->file.bytes) { // also for a file without tensors, whose padding may be missing
        g->header_bytes = g->file.bytes;
    }
    for (size_t i = 0; i < n; i++) {
        SL_TRY(place_tensor(g, c, (uint64_t)alignment, &g->tensors[i]));
    }
    return check_tensors(g, c);
}

static enum sl_status read_all(struct sl_gguf *g, const char *path, struct sl_error *err) {
    struct cursor c = {g->file.base, g->file.base + g->file.bytes, path, err};
    const unsigned char *magic = NULL;
    uint64_t version = 0, n_tensors = 0, n_values = 0;
    SL_FAIL_IF(sl_is_lfs_pointer(g->file.base, g->file.bytes), err, SL_ERR_INVALID, "%s: " SL_LFS_POINTER_TEXT, path);
    enum sl_status status = take(&c, 4, "header", &magic);
    SL_FAIL_IF(status != SL_OK || memcmp(magic, "GGUF", 4) != 0, err, SL_ERR_INVALID,
               "%s: not a GGUF file, and no folder", path);
    SL_TRY(take_number(&c, 4, "header", &version));
    SL_FAIL_IF(version != 2 && version != 3, err, SL_ERR_UNSUPPORTED,
               "%s: GGUF of version %llu%s; 2 and 3 are supported, little endian", path, (unsigned long long)version,
               version > 0xffff ? " (big endian?)" : "");
    SL_TRY(take_number(&c, 8, "header", &n_tensors));
    SL_TRY(take_number(&c, 8, "header", &n_values));
    SL_FAIL_IF(n_tensors > MAX_VALUES || n_values > MAX_VALUES, err, SL_ERR_INVALID,
               "%s: %llu tensors and %llu values, expected at most %d", path, (unsigned long long)n_tensors,
               (unsigned long long)n_values, MAX_VALUES);
    SL_TRY(read_values(g, &c, n_values));
    SL_FAIL_IF(sl_gguf_integer(g, "split.count", 1) != 1, err, SL_ERR_UNSUPPORTED,
               "%s: one of %lld files; join them first (llama-gguf-split --merge)", path,
               (long long)sl_gguf_integer(g, "split.count", 1));
    return read_tensors(g, &c, n_tensors);
}

enum sl_status sl_gguf_open(const char *path, struct sl_gguf **gguf_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_gguf, g, err, "%s: out of memory", path);
    enum sl_status status = sl_mapped_file_open(path, &g->file, err);
    SL_THEN(status, read_all(g, path, err));
    SL_TRY_OR(status, sl_gguf_close(&g));
    *gguf_out = g;
    return SL_OK;
}

void sl_gguf_close(struct sl_gguf **gguf) {
    struct sl_gguf *g = *gguf;
    if (g == NULL) {
        return;
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        free(g->tensors[i].name);
    }
    sl_mapped_file_close(&g->file);
    free(g->tensors);
    free(g->values);
    free(g);
    *gguf = NULL;
}

// --- what is asked of it ---------------------------------------------------------------------------------------------

const struct sl_gguf_tensor *sl_gguf_tensors(const struct sl_gguf *g, size_t *n_out) {
    *n_out = g->n_tensors;
    return g->tensors;
}

const struct sl_gguf_tensor *sl_gguf_tensor(const struct sl_gguf *g, const char *name) {
    struct sl_gguf_tensor key = {.name = (char *)name};
    return bsearch(&key, g->tensors, g->n_tensors, sizeof key, compare_names);
}

const unsigned char *sl_gguf_header(const struct sl_gguf *g, size_t *n_bytes_out) {
    *n_bytes_out = g->header_bytes;
    return g->file.base;
}

const unsigned char *sl_gguf_mapping(const struct sl_gguf *g, size_t *n_bytes_out) {
    *n_bytes_out = g->file.bytes;
    return g->file.base;
}

uint64_t sl_gguf_identity(const struct sl_gguf *g) {
    return g->file.identity;
}

const struct sl_gguf_value *sl_gguf_value(const struct sl_gguf *g, const char *key) {
    struct sl_gguf_value wanted = {.key = {key, strlen(key)}};
    return bsearch(&wanted, g->values, g->n_values, sizeof wanted, compare_values);
}

static const struct sl_gguf_value *find_one(const struct sl_gguf *g, const char *key) {
    const struct sl_gguf_value *value = sl_gguf_value(g, key);
    return value != NULL && !value->is_array ? value : NULL;
}

int64_t sl_gguf_integer(const struct sl_gguf *g, const char *key, int64_t fallback) {
    const struct sl_gguf_value *value = find_one(g, key);
    int64_t integer;
    return value != NULL && sl_gguf_as_integer(value, 0, &integer) ? integer : fallback;
}

bool sl_gguf_bool(const struct sl_gguf *g, const char *key, bool fallback) {
    const struct sl_gguf_value *value = find_one(g, key);
    return value != NULL && value->kind == SL_GGUF_BOOL ? value->data[0] != 0 : fallback;
}

struct sl_gguf_text sl_gguf_text(const struct sl_gguf *g, const char *key) {
    const struct sl_gguf_value *value = find_one(g, key);
    if (value == NULL || value->kind != SL_GGUF_STRING) {
        return (struct sl_gguf_text){0};
    }
    const unsigned char *at = value->data;
    return sl_gguf_next_text(&at);
}

bool sl_gguf_text_is(struct sl_gguf_text text, const char *is) {
    return text.at != NULL && strlen(is) == text.n_bytes && memcmp(text.at, is, text.n_bytes) == 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads safetensors files. See safetensors.h for the format and the guarantees.
 *
 * Design: every shard is parsed into the same growing list, each shard's tensors are checked in file order, and then
 *         the list is sorted by name. The list has copies of names and dtypes, so the JSON is freed after opening.
 */
#include "engine/model/safetensors.h"

#include <endian.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/json_file.h"
#include "engine/model/gguf/mapped_file.h"

#define MAX_HEADER_BYTES (100u << 20) // the limit of the format's own library
#define MAX_SHARDS       4096

struct mapping {
    char *name; // file name inside the model folder
    struct sl_mapped_file file;
};

struct sl_safetensors {
    struct mapping *maps;
    size_t n_maps;
    struct sl_tensor *tensors;
    size_t n_tensors, cap_tensors;
};

static const struct {
    const char *name;
    size_t bytes;
    enum sl_dtype dtype;
} dtypes[] = {
    {"F32", 4, SL_F32},     {"F16", 2, SL_F16},        {"BF16", 2, SL_BF16},      {"F64", 8, SL_DTYPES},
    {"I64", 8, SL_DTYPES},  {"I32", 4, SL_DTYPES},     {"I16", 2, SL_DTYPES},     {"I8", 1, SL_DTYPES},
    {"U64", 8, SL_DTYPES},  {"U32", 4, SL_DTYPES},     {"U16", 2, SL_DTYPES},     {"U8", 1, SL_DTYPES},
    {"BOOL", 1, SL_DTYPES}, {"F8_E4M3", 1, SL_DTYPES}, {"F8_E5M2", 1, SL_DTYPES},
};

// Sets the type of a tensor, and how many bytes an element has; false: an unknown name.
static bool set_dtype(struct sl_tensor *tensor, const char *name, size_t *bytes_out) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            tensor->dtype_name = dtypes[i].name;
            tensor->dtype = dtypes[i].dtype;
            *bytes_out = dtypes[i].bytes;
            return true;
        }
    }
    return false;
}

// Writes "[576, 1536]" for messages.
static const char *shape_text(const int64_t *shape, int n_dims, char *buf, size_t buf_bytes) {
    size_t used = (size_t)snprintf(buf, buf_bytes, "[");
    for (int i = 0; i < n_dims && used < buf_bytes; i++) {
        used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
    }
    if (used < buf_bytes) {
        snprintf(buf + used, buf_bytes - used, "]");
    }
    return buf;
}

static enum sl_status map_file(const char *model_dir, const char *name, struct mapping *map_out, struct sl_error *err) {
    char path[PATH_MAX];
    struct mapping map = {0};
    SL_TRY(sl_model_path(model_dir, name, path, sizeof path, err));
    SL_TRY(sl_mapped_file_open(path, &map.file, err));
    enum sl_status status = SL_OK;
    if (map.file.bytes < 8) {
        status = sl_fail(err, SL_ERR_INVALID, "%s: %zu bytes, too short for a safetensors file", path, map.file.bytes);
    } else if ((map.name = strdup(name)) == NULL) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "%s: out of memory", path);
    }
    SL_TRY_OR(status, sl_mapped_file_close(&map.file));
    *map_out = map;
    return SL_OK;
}

// Parses shape, product and offsets of one entry; checks bounds only against the data's size. Overlaps are checked
// later.
static enum sl_status parse_extent(const struct mapping *map, const char *name, const json_t *entry, size_t data_bytes,
                                   struct sl_tensor *tensor, uint64_t *begin_out, struct sl_error *err) {
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    SL_FAIL_IF(dtype == NULL || !json_is_array(shape) || json_array_size(shape) > SL_TENSOR_MAX_DIMS ||
                   json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end),
               err, SL_ERR_INVALID, "%s: tensor %.96s: expected dtype, shape and data_offsets", map->name, name);
    size_t bytes;
    SL_FAIL_IF(!set_dtype(tensor, dtype, &bytes), err, SL_ERR_UNSUPPORTED, "%s: tensor %.96s: unknown dtype %.32s",
               map->name, name, dtype);
    tensor->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < tensor->n_dims; i++) {
        const json_t *extent = json_array_get(shape, (size_t)i);
        tensor->shape[i] = json_integer_value(extent);
        SL_FAIL_IF(!json_is_integer(extent) || tensor->shape[i] < 0 ||
                       __builtin_mul_overflow(bytes, (size_t)tensor->shape[i], &bytes),
                   err, SL_ERR_INVALID, "%s: tensor %.96s: impossible shape", map->name, name);
    }
    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    SL_FAIL_IF(from < 0 || to < from, err, SL_ERR_INVALID, "%s: tensor %.96s: data_offsets [%lld, %lld] run backwards",
               map->name, name, (long long)from, (long long)to);
    SL_FAIL_IF((uint64_t)to > data_bytes, err, SL_ERR_INVALID,
               "%s: tensor %.96s ends at byte %lld of %zu: the file is truncated", map->name, name, (long long)to,
               data_bytes);
    if ((uint64_t)(to - from) != bytes) {
        char text[128];
        return sl_fail(err, SL_ERR_INVALID, "%s: tensor %.96s: %lld bytes, but %s of shape %s has %zu", map->name, name,
                       (long long)(to - from), dtype, shape_text(tensor->shape, tensor->n_dims, text, sizeof text),
                       bytes);
    }
    tensor->bytes = bytes;
    *begin_out = (uint64_t)from;
    return SL_OK;
}

static int compare_data(const void *a, const void *b) {
    const struct sl_tensor *x = a, *y = b;
    if (x->data != y->data) {
        return x->data < y->data ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; // empty tensors first
}

static int compare_name(const void *a, const void *b) {
    return strcmp(((const struct sl_tensor *)a)->name, ((const struct sl_tensor *)b)->name);
}

// Checks that the tensors of one file, in file order, cover its data exactly.
static enum sl_status check_cover(const struct mapping *map, struct sl_tensor *tensors, size_t n,
                                  const unsigned char *data, struct sl_error *err) {
    qsort(tensors, n, sizeof *tensors, compare_data);
    const unsigned char *expected = data;
    for (size_t i = 0; i < n; i++) {
        SL_FAIL_IF(tensors[i].data != expected, err, SL_ERR_INVALID, "%s: tensor %.96s %s", map->name, tensors[i].name,
                   tensors[i].data < expected ? "overlaps the one before it" : "follows a gap");
        expected += tensors[i].bytes;
    }
    SL_FAIL_IF(expected != map->file.base + map->file.bytes, err, SL_ERR_INVALID, "%s: %zu bytes after the last tensor",
               map->name, (size_t)(map->file.base + map->file.bytes - expected));
    return SL_OK;
}

static enum sl_status add_tensor(struct sl_safetensors *st, struct sl_tensor tensor, const char *name,
                                 struct sl_error *err) {
    SL_FAIL_IF(!SL_GROW(st->tensors, st->n_tensors, st->cap_tensors), err, SL_ERR_EXHAUSTED,
               "out of memory for %zu tensors", st->n_tensors + 1);
    tensor.name = strdup(name);
    SL_FAIL_IF(tensor.name == NULL, err, SL_ERR_EXHAUSTED, "out of memory for tensor %.96s", name);
    st->tensors[st->n_tensors++] = tensor;
    return SL_OK;
}

static enum sl_status read_header(struct sl_safetensors *st, const struct mapping *map, struct sl_error *err) {
    uint64_t header_bytes;
    SL_FAIL_IF(sl_is_lfs_pointer(map->file.base, map->file.bytes), err, SL_ERR_INVALID, "%s: " SL_LFS_POINTER_TEXT,
               map->name);
    memcpy(&header_bytes, map->file.base, sizeof header_bytes);
    header_bytes = le64toh(header_bytes);
    SL_FAIL_IF(header_bytes > MAX_HEADER_BYTES || header_bytes > map->file.bytes - 8, err, SL_ERR_INVALID,
               "%s: header of %llu bytes in a file of %zu (limit %u)", map->name, (unsigned long long)header_bytes,
               map->file.bytes, MAX_HEADER_BYTES);
    json_error_t json_error;
    json_t *header = json_loadb((const char *)map->file.base + 8, header_bytes, JSON_REJECT_DUPLICATES, &json_error);
    if (!json_is_object(header)) {
        json_decref(header);
        return sl_fail(err, SL_ERR_INVALID, "%s: header: %s", map->name,
                       header == NULL ? json_error.text : "not a JSON object");
    }
    const unsigned char *data = map->file.base + 8 + header_bytes;
    size_t first = st->n_tensors;
    enum sl_status status = SL_OK;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        struct sl_tensor tensor = {0};
        uint64_t begin = 0;
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        status = parse_extent(map, name, entry, map->file.bytes - 8 - header_bytes, &tensor, &begin, err);
        tensor.data = data + begin;
        SL_THEN(status, add_tensor(st, tensor, name, err));
        if (status != SL_OK) {
            break;
        }
    }
    json_decref(header);
    SL_TRY(status);
    return check_cover(map, st->tensors + first, st->n_tensors - first, data, err);
}

static enum sl_status open_file(struct sl_safetensors *st, const char *model_dir, const char *name,
                                struct sl_error *err) {
    struct mapping *grown = realloc(st->maps, (st->n_maps + 1) * sizeof *grown);
    SL_FAIL_IF(grown == NULL, err, SL_ERR_EXHAUSTED, "out of memory for %zu shards", st->n_maps + 1);
    st->maps = grown;
    SL_TRY(map_file(model_dir, name, &st->maps[st->n_maps], err));
    return read_header(st, &st->maps[st->n_maps++], err);
}

// Returns whether a name is a file name of this folder and not a path.
static bool is_file_name(const char *name) {
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) < NAME_MAX;
}

static enum sl_status open_shards(struct sl_safetensors *st, const char *model_dir, const json_t *index,
                                  struct sl_error *err) {
    static const char file[] = "model.safetensors.index.json";
    json_t *weight_map = json_object_get(index, "weight_map");
    SL_FAIL_IF(!json_is_object(weight_map), err, SL_ERR_INVALID, "%s: weight_map is missing", file);
    const char *name;
    json_t *value;
    json_object_foreach(weight_map, name, value) {
        const char *shard = json_string_value(value);
        SL_FAIL_IF(shard == NULL || !is_file_name(shard), err, SL_ERR_INVALID,
                   "%s: tensor %.96s: the shard must be a file name in the same folder", file, name);
        bool seen = false;
        for (size_t i = 0; i < st->n_maps && !seen; i++) {
            seen = strcmp(st->maps[i].name, shard) == 0;
        }
        if (seen) {
            continue;
        }
        SL_FAIL_IF(st->n_maps == MAX_SHARDS, err, SL_ERR_INVALID, "%s: more than %d shards", file, MAX_SHARDS);
        SL_TRY(open_file(st, model_dir, shard, err));
    }
    return SL_OK;
}

// Checks that every tensor of the index exists in the shard that it names.
static enum sl_status check_index(const struct sl_safetensors *st, const json_t *index, struct sl_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(index, "weight_map"), name, value) {
        struct sl_tensor key = {.name = name};
        const struct sl_tensor *found = bsearch(&key, st->tensors, st->n_tensors, sizeof key, compare_name);
        bool in_shard = false;
        for (size_t i = 0; found != NULL && i < st->n_maps; i++) {
            const struct mapping *map = &st->maps[i];
            in_shard |= strcmp(map->name, json_string_value(value)) == 0 && found->data >= map->file.base &&
                        found->data <= map->file.base + map->file.bytes;
        }
        SL_FAIL_IF(!in_shard, err, SL_ERR_NOT_FOUND, "tensor %.96s is not in %.96s, where the index says it is", name,
                   json_string_value(value));
    }
    return SL_OK;
}

// Opens all files; `only` not NULL: that file alone.
static enum sl_status open_all(struct sl_safetensors *st, const char *model_dir, const char *only,
                               struct sl_error *err) {
    json_t *index = NULL;
    enum sl_status status = open_file(st, model_dir, only != NULL ? only : "model.safetensors", err);
    if (status == SL_ERR_NOT_FOUND && only != NULL) {
        return status;
    }
    if (status == SL_ERR_NOT_FOUND) {
        status = sl_json_file_load(model_dir, "model.safetensors.index.json", &index, err);
        SL_FAIL_IF(status == SL_ERR_NOT_FOUND, err, status,
                   "%s: neither model.safetensors nor model.safetensors.index.json", model_dir);
        SL_THEN(status, open_shards(st, model_dir, index, err));
    }
    if (status == SL_OK) {
        qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_name);
        for (size_t i = 1; i < st->n_tensors && status == SL_OK; i++) {
            if (strcmp(st->tensors[i - 1].name, st->tensors[i].name) == 0) {
                status = sl_fail(err, SL_ERR_INVALID, "tensor %.96s is in more than one shard", st->tensors[i].name);
            }
        }
    }
    if (status == SL_OK && index != NULL) {
        status = check_index(st, index, err);
    }
    json_decref(index);
    return status;
}

enum sl_status sl_safetensors_open(const char *model_dir, struct sl_safetensors **tensors_out, struct sl_error *err) {
    return sl_safetensors_open_file(model_dir, NULL, tensors_out, err);
}

enum sl_status sl_safetensors_open_file(const char *model_dir, const char *name, struct sl_safetensors **tensors_out,
                                        struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_safetensors, st, err, "out of memory");
    // An empty list has memory, too: it is sorted
    SL_FAIL_OR(!SL_GROW(st->tensors, 0, st->cap_tensors), sl_safetensors_close(&st), err, SL_ERR_EXHAUSTED,
               "out of memory");
    SL_TRY_OR(open_all(st, model_dir, name, err), sl_safetensors_close(&st));
    *tensors_out = st;
    return SL_OK;
}

void sl_safetensors_close(struct sl_safetensors **tensors) {
    struct sl_safetensors *st = *tensors;
    if (st == NULL) {
        return;
    }
    for (size_t i = 0; i < st->n_tensors; i++) {
        free((char *)st->tensors[i].name);
    }
    for (size_t i = 0; i < st->n_maps; i++) {
        sl_mapped_file_close(&st->maps[i].file);
        free(st->maps[i].name);
    }
    free(st->tensors);
    free(st->maps);
    free(st);
    *tensors = NULL;
}

uint64_t sl_safetensors_identity(const struct sl_safetensors *t) {
    uint64_t identity = 0;
    for (size_t i = 0; i < t->n_maps; i++) {
        identity = sl_mix(identity + t->maps[i].file.identity);
    }
    return identity;
}

const struct sl_tensor *sl_safetensors_list(const struct sl_safetensors *tensors, size_t *n_out) {
    *n_out = tensors->n_tensors;
    return tensors->tensors;
}

enum sl_status sl_safetensors_find(const struct sl_safetensors *tensors, const char *name, int n_dims, int64_t rows,
                                   int64_t columns, const struct sl_tensor **tensor_out, struct sl_error *err) {
    struct sl_tensor key = {.name = name};
    int64_t expected[2] = {rows, columns};
    const struct sl_tensor *found = bsearch(&key, tensors->tensors, tensors->n_tensors, sizeof key, compare_name);
    SL_FAIL_IF(found == NULL, err, SL_ERR_NOT_FOUND, "tensor %s is missing", name);
    if (found->n_dims != n_dims || memcmp(found->shape, expected, (size_t)n_dims * sizeof expected[0]) != 0) {
        char is[128], should[128];
        return sl_fail(err, SL_ERR_INVALID, "tensor %s has shape %s, expected %s", name,
                       shape_text(found->shape, found->n_dims, is, sizeof is),
                       shape_text(expected, n_dims, should, sizeof should));
    }
    SL_FAIL_IF(found->dtype == SL_DTYPES, err, SL_ERR_UNSUPPORTED, "tensor %s has dtype %s, expected F32, F16 or BF16",
               name, found->dtype_name);
    *tensor_out = found;
    return SL_OK;
}

void sl_safetensors_will_read(const struct sl_safetensors *tensors) {
    for (size_t i = 0; i < tensors->n_maps; i++) {
        if (!tensors->maps[i].file.is_hole) {
            (void)madvise(tensors->maps[i].file.base, tensors->maps[i].file.bytes,
                          MADV_WILLNEED); // advice: failure is harmless
        }
    }
}

void sl_tensor_drop_pages(const struct sl_tensor *tensor) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)tensor->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)tensor->data + tensor->bytes) / page * page;
    if (begin < end) {
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED); // a read-only file mapping: pages come back on use
    }
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a GGUF file: metadata by key, tensors by name, memory-mapped and fully checked before use.
 *
 * File: magic, version, two counts; metadata (key, type, value); the tensors' directory (name, extents from the one
 *       that varies fastest on, type, offset); their data from the next multiple of the alignment on. All little
 *       endian. Versions 2 and 3 are supported.
 * Checks: every length and count lies within the file; keys and names are unique; data is inside the file, aligned,
 *         of the size that shape and type need, and does not overlap.
 * Threads: immutable after opening.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/model/gguf/blocks.h"

#define SL_GGUF_MAX_DIMS 4

// The type numbers of the file.
enum sl_gguf_kind {
    SL_GGUF_U8,
    SL_GGUF_I8,
    SL_GGUF_U16,
    SL_GGUF_I16,
    SL_GGUF_U32,
    SL_GGUF_I32,
    SL_GGUF_F32,
    SL_GGUF_BOOL,
    SL_GGUF_STRING,
    SL_GGUF_ARRAY,
    SL_GGUF_U64,
    SL_GGUF_I64,
    SL_GGUF_F64,
    SL_GGUF_N_KINDS,
};

// A text in the mapping, not NUL-terminated.
struct sl_gguf_text {
    const char *at;
    size_t n_bytes;
};

struct sl_gguf_value {
    struct sl_gguf_text key;
    enum sl_gguf_kind kind;    // for an array, the kind of its elements
    bool is_array;             // arrays of arrays are rejected
    uint64_t n;                // elements; 1 if not an array
    const unsigned char *data; // the first element
};

struct sl_gguf_tensor {
    char *name;
    const struct sl_block_type *type;
    int n_dims;
    int64_t shape[SL_GGUF_MAX_DIMS]; // the last one varies fastest
    uint64_t offset;                 // of the data, after the header
    const unsigned char *data;       // in the mapping
    size_t bytes;
};

struct sl_gguf;

// Opens a file. SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_INVALID, SL_ERR_UNSUPPORTED (a version, a type),
// SL_ERR_EXHAUSTED; all name the file.
enum sl_status sl_gguf_open(const char *path, struct sl_gguf **gguf_out, struct sl_error *err);
void sl_gguf_close(struct sl_gguf **gguf);

// sl_gguf_tensors() returns all tensors, sorted by name. sl_gguf_tensor() returns NULL if there is none of
// this name.
const struct sl_gguf_tensor *sl_gguf_tensors(const struct sl_gguf *gguf, size_t *n_out);
const struct sl_gguf_tensor *sl_gguf_tensor(const struct sl_gguf *gguf, const char *name);

// sl_gguf_header() returns everything before the data; sl_gguf_mapping() returns the whole mapping.
const unsigned char *sl_gguf_header(const struct sl_gguf *gguf, size_t *n_bytes_out);
// sl_gguf_identity() returns a number for the file as it is now (mapped_file.h).
uint64_t sl_gguf_identity(const struct sl_gguf *gguf);
const unsigned char *sl_gguf_mapping(const struct sl_gguf *gguf, size_t *n_bytes_out);

// Returns NULL if the file has no such key.
const struct sl_gguf_value *sl_gguf_value(const struct sl_gguf *gguf, const char *key);

// Return the value if it exists, is not an array and has the requested kind (any integer that fits); otherwise the
// fallback.
int64_t sl_gguf_integer(const struct sl_gguf *gguf, const char *key, int64_t fallback);
bool sl_gguf_bool(const struct sl_gguf *gguf, const char *key, bool fallback);
// Returns a text; `at` is NULL if there is none.
struct sl_gguf_text sl_gguf_text(const struct sl_gguf *gguf, const char *key);
// Returns a text for messages: at most MAX_SHOWN bytes, and "missing" if there is none.
struct sl_gguf_text sl_gguf_shown(struct sl_gguf_text text);
bool sl_gguf_text_is(struct sl_gguf_text text, const char *is);

// Returns element i of an array of numbers of any kind except text.
double sl_gguf_element(const struct sl_gguf_value *value, uint64_t i);
bool sl_gguf_as_integer(const struct sl_gguf_value *value, uint64_t i,
                        int64_t *integer_out); // false: not an integer, or too large

// Returns the texts of an array, one after the other: *at begins as value->data.
struct sl_gguf_text sl_gguf_next_text(const unsigned char **at);

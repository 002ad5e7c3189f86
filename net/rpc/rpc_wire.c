// SPDX-License-Identifier: Apache-2.0
#include "net/rpc/rpc_wire.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

// ---- fields --------------------------------------------------------------------------------------------------------

static bool read_varint(struct sl_rpc_span *at, uint64_t *value_out) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at->bytes; shift += 7) {
        const uint8_t byte = *at->data++;
        at->bytes--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

static bool skip(struct sl_rpc_span *at, uint64_t bytes) {
    if (bytes > at->bytes) {
        return false;
    }
    at->data += bytes;
    at->bytes -= (size_t)bytes;
    return true;
}

// Reads the next field and moves `at` past it. False at the end, and at malformed bytes; those set *bad.
static bool next_field(struct sl_rpc_span *at, struct sl_rpc_field *field_out, bool *bad) {
    if (at->bytes == 0) {
        return false;
    }
    uint64_t key, number;
    *bad = true;
    if (!read_varint(at, &key)) {
        return false;
    }
    struct sl_rpc_field field = {.number = key >> 3};
    switch (key & 7) {
    case 0: // varint
        if (!read_varint(at, &number)) {
            return false;
        }
        break;
    case 1: // 64 bits
    case 5: // 32 bits
        if (!skip(at, (key & 7) == 1 ? 8 : 4)) {
            return false;
        }
        break;
    case 2: // length-delimited
        if (!read_varint(at, &number)) {
            return false;
        }
        field.value.data = at->data;
        if (!skip(at, number)) {
            return false;
        }
        field.value.bytes = (size_t)number;
        break;
    default: // groups
        return false;
    }
    *bad = false;
    *field_out = field;
    return true;
}

// ---- strings -------------------------------------------------------------------------------------------------------

struct level { // one level of nested messages, from the inner ones to the outermost
    const struct level *outer;
    const char *field; // field that the inner level is in; NULL: not inside any yet
    int depth;
};

// Writes "a.b.c" and returns its length; leaves out what does not fit.
static size_t write_path(const struct level *level, char *path, size_t bytes) {
    size_t n = level->outer ? write_path(level->outer, path, bytes) : 0;
    const int written = snprintf(path + n, bytes - n, "%s%s", n ? "." : "", level->field);
    return written > 0 && (size_t)written < bytes - n ? n + (size_t)written : n;
}

static enum sl_status check_message(const ProtobufCMessageDescriptor *type, struct sl_rpc_span message,
                                    const struct level *outer, struct sl_error *err) {
    struct level level = {.outer = outer, .depth = outer ? outer->depth + 1 : 1};
    char path[256] = "";
    struct sl_rpc_field field;
    bool bad = false;
    while (next_field(&message, &field, &bad)) {
        const ProtobufCFieldDescriptor *known =
            field.value.bytes && field.number <= UINT32_MAX
                ? protobuf_c_message_descriptor_get_field(type, (unsigned)field.number)
                : NULL;
        if (!known) {
            continue;
        }
        level.field = known->name;
        if (known->type == PROTOBUF_C_TYPE_STRING && memchr(field.value.data, '\0', field.value.bytes)) {
            write_path(&level, path, sizeof path);
            return sl_fail(err, SL_ERR_INVALID, "%s: a zero byte (U+0000) is not allowed in a string", path);
        }
        if (known->type == PROTOBUF_C_TYPE_MESSAGE) {
            SL_FAIL_IF(level.depth == MAX_DEPTH, err, SL_ERR_INVALID, "messages are nested more than %d deep",
                       MAX_DEPTH);
            SL_TRY(check_message(known->descriptor, field.value, &level, err));
        }
    }
    return SL_OK;
}

enum sl_status sl_rpc_strings_check(const ProtobufCMessageDescriptor *type, struct sl_rpc_span message,
                                    struct sl_error *err) {
    return check_message(type, message, NULL, err);
}

// SPDX-License-Identifier: Apache-2.0
#include "client/cli/message_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static json_t *bytes_json(const ProtobufCBinaryData *bytes) {
    char *hex = malloc(bytes->len * 2 + 1);
    if (!hex) {
        return NULL;
    }
    for (size_t i = 0; i < bytes->len; i++) {
        snprintf(hex + 2 * i, 3, "%02x", bytes->data[i]);
    }
    hex[bytes->len * 2] = '\0';
    json_t *json = json_string(hex);
    free(hex);
    return json;
}

static json_t *enum_json(const ProtobufCFieldDescriptor *field, int number) {
    const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(field->descriptor, number);
    return value ? json_string(value->name) : json_integer(number); // a newer peer may have further values
}

static json_t *real_json(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *unsigned_json(uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *value_json(const ProtobufCFieldDescriptor *field, const void *at) {
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return unsigned_json(*(const uint64_t *)at);
    case PROTOBUF_C_TYPE_FLOAT:
        return real_json(*(const float *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return real_json(*(const double *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_ENUM:
        return enum_json(field, *(const int *)at);
    case PROTOBUF_C_TYPE_STRING:
        return sl_text_json(*(char *const *)at ? *(char *const *)at : "");
    case PROTOBUF_C_TYPE_BYTES:
        return bytes_json(at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return *(ProtobufCMessage *const *)at ? sl_message_json(*(ProtobufCMessage *const *)at) : json_null();
    }
    return json_null();
}

static size_t value_bytes(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static json_t *repeated_json(const ProtobufCFieldDescriptor *field, const char *values, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; array && i < n; i++) {
        if (json_array_append_new(array, value_json(field, values + i * value_bytes(field->type))) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *sl_message_json(const ProtobufCMessage *message) {
    json_t *object = json_object();
    const char *base = (const char *)message;
    for (unsigned i = 0; object && i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const void *at = base + field->offset;
        const void *quantifier = base + field->quantifier_offset;
        if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && *(const uint32_t *)quantifier != field->id) {
            continue;
        }
        json_t *value = field->label == PROTOBUF_C_LABEL_REPEATED
                            ? repeated_json(field, *(const char *const *)at, *(const size_t *)quantifier)
                            : value_json(field, at);
        if (json_object_set_new(object, field->name, value) != 0) { // fails also when value is NULL
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

bool sl_json_print(json_t *json, size_t flags, FILE *file) {
    bool ok = json && json_dumpf(json, file, flags) == 0 && fputc('\n', file) != EOF && fflush(file) == 0;
    json_decref(json);
    return ok;
}

bool sl_message_print_json(const ProtobufCMessage *message, FILE *file) {
    return sl_json_print(sl_message_json(message), JSON_COMPACT | JSON_REAL_PRECISION(9), file);
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: copies messages.
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>
#include <stdlib.h>

// Copies a message and all that it points to, by packing it. The caller frees the copy as an unpacked message. NULL: no memory.
static inline ProtobufCMessage *sl_message_copy(const ProtobufCMessage *message) {
    uint8_t *bytes = malloc(protobuf_c_message_get_packed_size(message) + 1);
    ProtobufCMessage *copy = NULL;
    if (bytes != NULL) {
        copy = protobuf_c_message_unpack(message->descriptor, NULL, protobuf_c_message_pack(message, bytes), bytes);
    }
    free(bytes);
    return copy;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads those parts of protobuf's wire format that protobuf-c hides: the fields of a message, and the length
 *          of its strings.
 *
 * Design: allocates nothing, and every read stays inside its span. Groups are an error, as they are for protobuf-c.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_rpc_span { // a range of bytes inside a message
    const uint8_t *data;
    size_t bytes;
};

struct sl_rpc_field {
    uint64_t number;
    struct sl_rpc_span value; // value of a length-delimited field; empty for others
};

/*
 * Rejects a message with a zero byte (U+0000) in one of its strings, including nested and repeated ones: protobuf-c
 * returns C strings, which would end there silently. SL_ERR_INVALID names the field: "sampling.stop". Also rejects
 * messages nested more than 32 deep. Malformed bytes pass: unpacking rejects them.
 */
enum sl_status sl_rpc_strings_check(const ProtobufCMessageDescriptor *type, struct sl_rpc_span message,
                                    struct sl_error *err);

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads protobuf's wire format where protobuf-c hides it: the fields of a message, and the length of its strings.
 *
 * Design: nothing is allocated, and every read stays inside its span. Groups are an error, as they are for protobuf-c.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_rpc_span { // bytes inside a message
    const uint8_t *data;
    size_t bytes;
};

struct sl_rpc_field {
    uint64_t number;
    struct sl_rpc_span value; // of length-delimited fields; empty for others
};

// Reads the next field and moves `at` past it. False at the end, and at malformed bytes, where it sets *bad.
bool sl_rpc_next_field(struct sl_rpc_span *at, struct sl_rpc_field *field_out, bool *bad);

/*
 * Rejects a message with a zero byte (U+0000) in one of its strings, nested and repeated ones included: protobuf-c hands out C strings,
 * which would end there without notice. SL_ERR_INVALID names the field: "sampling.stop". Also rejects messages nested more than 32
 * deep. Malformed bytes pass: unpacking rejects them.
 */
enum sl_status sl_rpc_strings_check(const ProtobufCMessageDescriptor *type, struct sl_rpc_span message,
                                    struct sl_error *err);

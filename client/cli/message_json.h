// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: any protobuf-c message as JSON, by its descriptor, so that --json follows the .proto without a line of code.
 * Design: field names as in the .proto, enums by name, members of a oneof only when set, everything else always.
 *         64-bit integers are numbers; fixed64 and uint64 (fingerprints, epochs, seeds) are strings, because most
 *         JSON readers would round them.
 */
#pragma once

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdio.h>

// A text from elsewhere (protobuf-c does not check its strings, and file names are any bytes): JSON is UTF-8, so where it is
// not UTF-8, bytes above 0x7f become '?'. A new reference, or NULL when out of memory.
json_t *sl_text_json(const char *text);

// A new reference, or NULL when out of memory.
json_t *sl_message_json(const ProtobufCMessage *message);

// One line, and the reference is taken. False when it is NULL or could not be written. flags: jansson's.
bool sl_json_print(json_t *json, size_t flags, FILE *file);
bool sl_message_print_json(const ProtobufCMessage *message, FILE *file);

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: prints any protobuf-c message as JSON, by its descriptor, so that --json follows the .proto without further
 *          code.
 * Design: field names as in the .proto, enums by name, members of a oneof only when set, everything else always.
 *         64-bit integers are numbers; fixed64 and uint64 (fingerprints, epochs, seeds) are strings, because most
 *         JSON readers would round them.
 */
#pragma once

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/json_file.h"

// Returns the message as a new reference, or NULL when out of memory.
json_t *sl_message_json(const ProtobufCMessage *message);

// Prints one line, and takes the reference. False when it is NULL or could not be written. flags: jansson's.
bool sl_json_print(json_t *json, size_t flags, FILE *file);
bool sl_message_print_json(const ProtobufCMessage *message, FILE *file);

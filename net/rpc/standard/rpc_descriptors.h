// SPDX-License-Identifier: Apache-2.0
// Purpose: answers questions about a serialized FileDescriptorSet from its bytes. For rpc_reflection.c only.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "net/rpc/rpc_wire.h"

enum { SL_RPC_MAX_FILES = 128 };

struct sl_rpc_files { // every file of a set
    struct sl_rpc_span file[SL_RPC_MAX_FILES], name[SL_RPC_MAX_FILES];
    size_t n_files;
};

// Parses a set. SL_ERR_INVALID: not a FileDescriptorSet, or more than SL_RPC_MAX_FILES files.
enum sl_status sl_rpc_files_parse(const uint8_t *set, size_t bytes, struct sl_rpc_files *files_out,
                                  struct sl_error *err);

// Returns the index of the file of this name, or of the one that defines this full name (service, method, message,
// field, enum or enum value); n_files if there is none.
size_t sl_rpc_files_named(const struct sl_rpc_files *files, struct sl_rpc_span name);
size_t sl_rpc_files_defining(const struct sl_rpc_files *files, const char *symbol);

// Writes the indices of a file and of all that it imports, directly or not; the file comes first. Returns their number.
size_t sl_rpc_files_closure(const struct sl_rpc_files *files, size_t file, size_t indices[SL_RPC_MAX_FILES]);

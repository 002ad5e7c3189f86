// SPDX-License-Identifier: Apache-2.0
// Purpose: the .proto files of this folder, and what each defines. Server reflection answers from it.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sl_proto_file {
    const char *name;     // "sluice/v1/worker.proto"
    const uint8_t *bytes; // its FileDescriptorProto, [n_bytes]
    size_t n_bytes;
    const size_t *needs; // [n_needs] its own index, then those of all that it imports, directly or not
    size_t n_needs;
};
extern const struct sl_proto_file sl_proto_files[]; // [sl_proto_n_files]
extern const size_t sl_proto_n_files;

// The full name of a message, field, enum, enum value, service or method, and the index of its file.
struct sl_proto_symbol {
    const char *name; // "sluice.v1.Job.job_id"
    size_t file;
};
extern const struct sl_proto_symbol sl_proto_symbols[]; // [sl_proto_n_symbols]
extern const size_t sl_proto_n_symbols;

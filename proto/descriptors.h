// SPDX-License-Identifier: Apache-2.0
// Purpose: the serialized FileDescriptorSet of every .proto file here. Server reflection answers from it.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern const uint8_t sl_proto_descriptors[];
extern const size_t sl_proto_descriptors_bytes;

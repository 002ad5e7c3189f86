// SPDX-License-Identifier: Apache-2.0
// Purpose: records that are written in one piece. Memory is kept from one piece to the next.
#pragma once

#include "coordinator/state/record.h"

// Zero-initialised; `bytes` is freed by whoever has it.
struct sl_record_buffer {
    uint8_t *bytes;
    size_t n, cap;
};

// False: there is no memory.
bool sl_record_buffer_add_bytes(struct sl_record_buffer *buffer, const uint8_t *bytes, size_t n);
bool sl_record_buffer_add(struct sl_record_buffer *buffer, struct sl_record_chain *chain, enum sl_record_kind kind,
                          const uint8_t *payload, size_t n);

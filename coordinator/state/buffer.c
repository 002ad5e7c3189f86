// SPDX-License-Identifier: Apache-2.0
// Purpose: see buffer.h.
#include "coordinator/state/buffer.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_BYTES 65536

static uint8_t *room_for(struct sl_record_buffer *buffer, size_t n) {
    if (n > buffer->cap - buffer->n) {
        size_t cap = buffer->n + n + SPARE_BYTES;
        uint8_t *grown = realloc(buffer->bytes, cap);
        if (!grown) {
            return NULL;
        }
        buffer->bytes = grown;
        buffer->cap = cap;
    }
    uint8_t *at = buffer->bytes + buffer->n;
    buffer->n += n;
    return at;
}

bool sl_record_buffer_add_bytes(struct sl_record_buffer *buffer, const uint8_t *bytes, size_t n) {
    uint8_t *at = room_for(buffer, n);
    if (at) {
        memcpy(at, bytes, n);
    }
    return at != NULL;
}

bool sl_record_buffer_add(struct sl_record_buffer *buffer, struct sl_record_chain *chain, enum sl_record_kind kind,
                          const uint8_t *payload, size_t n) {
    uint8_t *at = room_for(buffer, SL_RECORD_HEAD_BYTES + n);
    if (at) {
        sl_record_head(chain, kind, payload, n, at);
        memcpy(at + SL_RECORD_HEAD_BYTES, payload, n);
    }
    return at != NULL;
}

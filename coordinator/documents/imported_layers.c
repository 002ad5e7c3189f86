// SPDX-License-Identifier: Apache-2.0
#include "coordinator/documents/imported_layers.h"

#include <string.h>

static int64_t end_of(const struct sl_imported_layers *layers) {
    return layers->segment.begin + layers->segment.n_slots;
}

bool sl_imported_layers_are_complete(const struct sl_imported_layers *layers) {
    return end_of(layers) >= layers->n_tokens;
}

enum sl_status sl_imported_layers_take(struct sl_imported_layers *layers, const uint8_t *bytes, size_t n, bool ends,
                                       struct sl_error *err) {
    SL_FAIL_IF(n > sizeof layers->head - layers->n_head || layers->n_segments == SL_MAX_DOCUMENT_SEGMENTS, err,
               SL_ERR_INVALID,
               "file: its offloaded layers have a head of more than %zu bytes, or more than %d segments",
               sizeof layers->head, SL_MAX_DOCUMENT_SEGMENTS);
    if (n > 0) {
        memcpy(layers->head + layers->n_head, bytes, n);
        layers->n_head += n;
    }
    if (!ends) {
        return SL_OK;
    }
    struct sl_kv_segment_head head;
    struct sl_kv_segment_config config;
    const size_t n_head = layers->n_head;
    layers->n_head = 0;
    SL_TRY(sl_kv_segment_head_read(layers->head, n_head, &head, &config, err));
    SL_TRY(
        sl_kv_segment_head_follows(&head, &layers->family, layers->n_segments, end_of(layers), layers->n_tokens, err));
    const size_t room = (size_t)(layers->max_bytes - layers->bytes);
    SL_FAIL_IF(sl_kv_segment_bytes(&config) > room, err, SL_ERR_PRECONDITION,
               "file: its offloaded layers are cut into more segments than those of this model and recipe");
    layers->bytes += (int64_t)sl_kv_segment_bytes(&config);
    layers->segment = head;
    layers->n_segments++;
    return SL_OK;
}

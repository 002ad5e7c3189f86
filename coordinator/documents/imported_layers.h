// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the offloaded layers of a document that is imported: reads the heads of their segments out of the file, one after
 *          the other, and checks that each follows the one before it.
 * Trust: the bytes are a client's. No more is believed than what agrees with the recipe's plan.
 */
#pragma once

#include "engine/offload/remote_kv/segment_head.h"

// The caller sets the first three members, and the others to zeros.
struct sl_imported_layers {
    struct sl_kv_family family;        // of every segment
    int64_t n_tokens;                  // that all segments have together
    int64_t max_bytes;                 // that they may take in a store
    struct sl_kv_segment_head segment; // the last one that was read; its prefix hash is the file's
    uint32_t n_segments;
    int64_t bytes;                                   // that they take in a store
    uint8_t head[sizeof(struct sl_kv_segment_head)]; // [n_head] the begin of the next one's
    size_t n_head;
};

// Returns whether the segments have all tokens.
bool sl_imported_layers_are_complete(const struct sl_imported_layers *layers);
/*
 * Takes the next n bytes of a segment's head; `ends` with the last of them, when `segment` becomes that segment. SL_ERR_INVALID,
 * SL_ERR_UNSUPPORTED, SL_ERR_PRECONDITION: it is damaged, of another version, or not the next segment of these layers.
 */
enum sl_status sl_imported_layers_take(struct sl_imported_layers *layers, const uint8_t *bytes, size_t n, bool ends,
                                       struct sl_error *err);

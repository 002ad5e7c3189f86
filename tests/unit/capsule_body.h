// SPDX-License-Identifier: Apache-2.0
// Purpose: the body of a session's capsule in one piece of memory.
#pragma once

#include <string.h>

#include "engine/kvcache/capsule.h"

struct capsule_body {
    unsigned char *body;
    size_t bytes;
};

static inline enum sl_status copy_piece(void *arg, const struct sl_capsule_piece *piece) {
    struct capsule_body *to = arg;
    memcpy(to->body + piece->offset, piece->data, piece->bytes);
    to->bytes += piece->bytes;
    return SL_OK;
}

// The size of the body, which is what sl_capsule_body_bytes() says.
static inline size_t copy_body(const struct sl_session *session, void *body) {
    struct capsule_body to = {body, 0};
    size_t offset = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        assert_int_equal(sl_capsule_layer_pieces(session, l, offset, SIZE_MAX, copy_piece, &to), SL_OK);
        offset += sl_capsule_layer_bytes(session, l);
    }
    assert_int_equal(to.bytes, sl_capsule_body_bytes(session));
    return to.bytes;
}

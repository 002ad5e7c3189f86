// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/drawn.h"

#include <stddef.h>

static struct {
    struct sl_ops table;
    const struct sl_ops *ops;
    uint64_t next, end;    // numbers drawn so far, and the model's total
    const void *embedding; // its rows in the file, also used by a tied head
} drawn;

void sl_drawn_begin(const struct sl_model_config *c) {
    uint64_t attention = (uint64_t)c->head_dim * (uint64_t)(2 * c->n_heads + 2 * c->n_kv_heads);
    uint64_t layer = (uint64_t)c->hidden * (attention + 3 * (uint64_t)c->intermediate);
    drawn.next = 0;
    drawn.end =
        (uint64_t)c->n_layers * layer + (uint64_t)c->n_vocab * (uint64_t)c->hidden * (c->tied_embeddings ? 1 : 2);
    drawn.embedding = NULL;
}

static uint64_t take(const struct sl_matrix *matrix) {
    uint64_t first = drawn.next;
    drawn.next += (uint64_t)matrix->n * (uint64_t)matrix->k;
    return first;
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    bool is_tied = drawn.embedding != NULL && matrix->parts[0].data == drawn.embedding;
    if (!is_tied && drawn.next == drawn.end) {
        return drawn.ops->pack(stream, matrix, err);
    }
    return drawn.ops->draw(stream, matrix, false, is_tied ? 0 : take(matrix), err);
}

static enum sl_status pack_rows(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    drawn.embedding = matrix->parts[0].data;
    return drawn.ops->draw(stream, matrix, true, take(matrix), err);
}

const struct sl_ops *sl_drawn_instead(const struct sl_ops *ops) {
    if (ops->draw == NULL) {
        return NULL;
    }
    drawn.ops = ops;
    drawn.table = *ops;
    drawn.table.pack = pack;
    drawn.table.pack_rows = pack_rows;
    return &drawn.table;
}

// SPDX-License-Identifier: Apache-2.0
// Purpose: the arena, the limits and the failure of one parse or rendering. See chat_internal.h.
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/chat/chat_internal.h"

#define CHUNK_BYTES ((size_t)64 << 10)
#define ALIGNMENT   ((size_t)16)

struct sl_chat_chunk {
    struct sl_chat_chunk *next;
    size_t n_bytes, capacity;
    _Alignas(16) char bytes[];
};

void sl_chat_work_cleanup(struct sl_chat_work *work) {
    while (work->chunks) {
        struct sl_chat_chunk *next = work->chunks->next;
        free(work->chunks);
        work->chunks = next;
    }
}

static struct sl_chat_chunk *add_chunk(struct sl_chat_work *work, size_t n_bytes) {
    size_t capacity = n_bytes > CHUNK_BYTES ? n_bytes : CHUNK_BYTES;
    if (capacity > work->max_bytes - work->n_bytes) {
        sl_chat_fail(work, SL_ERR_EXHAUSTED, "takes more than %zu MiB of memory", work->max_bytes >> 20);
        return NULL;
    }
    struct sl_chat_chunk *chunk = calloc(1, sizeof(*chunk) + capacity);
    if (!chunk) {
        sl_chat_fail(work, SL_ERR_EXHAUSTED, "no memory");
        return NULL;
    }
    chunk->capacity = capacity;
    chunk->next = work->chunks;
    work->chunks = chunk;
    work->n_bytes += capacity;
    return chunk;
}

void *sl_chat_alloc(struct sl_chat_work *work, size_t n_bytes) {
    if (work->status != SL_OK) {
        return NULL;
    }
    if (n_bytes > work->max_bytes) {
        sl_chat_fail(work, SL_ERR_EXHAUSTED, "takes more than %zu MiB of memory", work->max_bytes >> 20);
        return NULL;
    }
    n_bytes = (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct sl_chat_chunk *chunk = work->chunks;
    if (!chunk || chunk->capacity - chunk->n_bytes < n_bytes) {
        chunk = add_chunk(work, n_bytes);
        if (!chunk) {
            return NULL;
        }
    }
    void *at = chunk->bytes + chunk->n_bytes;
    chunk->n_bytes += n_bytes;
    return at;
}

void *sl_chat_grow(struct sl_chat_work *work, void *items, size_t n, size_t needed, size_t item_bytes,
                   size_t *capacity_inout) {
    if (needed <= *capacity_inout) {
        return items;
    }
    size_t capacity = needed * item_bytes < 128 ? 256 / item_bytes : 2 * needed;
    void *grown = sl_chat_alloc(work, capacity * item_bytes);
    if (!grown) {
        return NULL;
    }
    if (n > 0) {
        memcpy(grown, items, n * item_bytes);
    }
    *capacity_inout = capacity;
    return grown;
}

bool sl_chat_step(struct sl_chat_work *work, size_t n_bytes) {
    work->steps_left -= 1 + (int64_t)(n_bytes / SL_CHAT_STEP_BYTES);
    if (work->steps_left < 0) {
        sl_chat_fail(work, SL_ERR_EXHAUSTED, "takes more steps than are allowed");
    }
    return work->status == SL_OK;
}

struct sl_chat_value sl_chat_fail(struct sl_chat_work *work, enum sl_status status, const char *format, ...) {
    if (work->status == SL_OK) {
        char text[sizeof(work->err->text)];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        work->status = sl_fail(work->err, status, "line %d: %s", work->line, text);
    }
    return sl_chat_nothing();
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for capsule headers: whatever the bytes, read_header and open give a status or a session
 *          whose pages all lie inside the body, and after which the arena is empty.
 */
#include <stdlib.h>

#include "engine/kvcache/capsule.h"

#define ARENA_BYTES ((size_t)16 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition) {
    if (!condition) {
        abort();
    }
}

// Touch the first and the last byte of every page: AddressSanitizer knows where the arena's memory ends.
static void walk(const struct sl_session *session, const char *body, size_t body_bytes) {
    size_t walked = 0; // body is NULL where there are no pages
    for (int l = 0; l < session->geometry.n_layers; l++) {
        const struct sl_layer *layer = &session->layers[l];
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            const struct sl_head *head = &layer->heads[h];
            must((int64_t)head->n_slots <= session->n_tokens && (int64_t)head->n_slots <= session->max_slots);
            must((uint64_t)head->n_packed * SL_PAGE_SLOTS <= head->n_slots && head->n_pages <= head->cap_pages);
            for (uint32_t p = 0; p < head->n_pages; p++) {
                size_t bytes = p < head->n_packed ? layer->packed.bytes : layer->work.bytes;
                volatile char *page = head->pages[p];
                must(page == body + walked);
                page[0] = page[bytes - 1];
                walked += bytes;
            }
        }
    }
    must(walked == body_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sl_capsule_info info;
    struct sl_error err;
    if (sl_capsule_read_header(data, size, &info, &err) != SL_OK || info.body_bytes > ARENA_BYTES) {
        return 0;
    }
    void *memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    struct sl_arena *arena = NULL;
    must(memory != NULL && sl_arena_create(memory, ARENA_BYTES, &arena, NULL) == SL_OK);
    void *body = info.body_bytes > 0 ? sl_arena_alloc(arena, info.body_bytes) : NULL;
    if (body != NULL || info.body_bytes == 0) {
        struct sl_session *session;
        struct sl_capsule_bytes capsule = {body, info.body_bytes, (uint8_t *)data, size};
        if (sl_capsule_open(&capsule, arena, &info.geometry, &info.id, 1, &session, &err) == SL_OK) {
            walk(session, body, info.body_bytes);
            if (!info.evicted && info.n_tokens > 0) {
                // Nothing but a packed page in the way.
                enum sl_status status = sl_session_truncate(session, info.n_tokens / 2, &err);
                must(status == SL_OK || status == SL_ERR_INVALID);
            }
            sl_session_destroy(&session);
        } else {
            sl_arena_free(arena, body);
        }
    }
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    must(stats.n_blocks == 0);
    sl_arena_destroy(&arena);
    free(memory);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for near retrieval's questions and answers: whatever the bytes of a request, the answer fits
 *          into what was said that it takes and its asker believes it; whatever the bytes of an answer, it is refused, or
 *          what it says lies inside it.
 *
 * Design: the first byte says which side the rest is for. To a reader: seven bytes of what it reads, then a store's map: what is read lands
 *         inside of the answer, without a gap to what is written there by hand. To a remote KV of two offloaded heads:
 *         one request. To an asker: eight bytes of what it asked for (kind, flags, offloaded heads, topk, places,
 *         tokens, channels, last), then the answer. Bytes that begin like a segment's head are read as one.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/offload/remote_kv/near_internal.h"
#include "engine/offload/remote_kv/segment_head.h"
#include "net/offload/remote/remote_kv_map.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/evict/fills.h"
#include "engine/tensor/cpu/retrieve/fills.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define HEAD_DIM    8
#define N_HEADS     2
#define FIRST_HEAD  1

static uint64_t seen[SL_NEAR_SEEN_WORDS(SL_NEAR_MAX_PLACES)]; // scratch of sl_near_next_offloaded_head()

static const uint32_t segments[] = {64, 128, 13};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition) {
    if (!condition) {
        abort();
    }
}

// Memory that ends where the bytes end, at a multiple of 64.
static uint8_t *tight(size_t bytes) {
    void *memory = NULL;
    must(posix_memalign(&memory, 64, bytes > 0 ? bytes : 1) == 0);
    return memory;
}

static const struct sl_remote_kv *make_remote_kv(void) {
    static struct sl_ops ops;
    struct sl_arena *arena;
    struct sl_remote_kv *remote_kv;
    struct sl_kv_segment_config config = {.first_offloaded_head = FIRST_HEAD, .n_offloaded_heads = N_HEADS};
    sl_ref_kv_slots_fill(&ops);
    sl_ref_scan_fill(&ops);
    sl_ref_select_fill(&ops);
    must(sl_page_layout_init(&config.work, SL_KV_F16, HEAD_DIM, 0, false) == SL_OK);
    config.rows = config.scan = SL_KV_INT8;
    must(sl_arena_create(aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES), ARENA_BYTES, &arena, NULL) == SL_OK);
    must(sl_remote_kv_create(&ops, FIRST_HEAD, N_HEADS, HEAD_DIM, 256, &remote_kv, NULL) == SL_OK);
    for (size_t i = 0; i < sizeof segments / sizeof segments[0]; i++, config.begin += config.n_slots) {
        config.n_slots = segments[i];
        size_t bytes = sl_kv_segment_block_bytes(&config);
        uint16_t *block = sl_arena_alloc(arena, bytes);
        for (size_t j = 0; j < bytes / sizeof *block; j++) {
            block[j] = (uint16_t)(0x3000 + j * 37 % 0x1000); // f16 from 1/8 to 2
        }
        struct sl_kv_segment *segment;
        must(sl_kv_segment_create(&config, &ops, NULL, arena, block, &segment, NULL) == SL_OK);
        must(sl_remote_kv_append(remote_kv, segment, NULL) == SL_OK);
        sl_kv_segment_unref(&segment);
    }
    return remote_kv;
}

// --- the asker -----------------------------------------------------------------------------------------------------

static unsigned touch(const uint8_t *bytes, size_t n) {
    volatile unsigned sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += bytes[i];
    }
    return sum;
}

static enum sl_status read_offloaded_heads(const struct sl_near_request *asked, size_t row_bytes, const uint8_t *at,
                                           const uint8_t *end) {
    struct sl_error err;
    for (uint32_t offloaded_head = 0; offloaded_head < asked->n_offloaded_heads; offloaded_head++) {
        struct sl_near_offloaded_head_view view;
        enum sl_status status = sl_near_next_offloaded_head(asked, row_bytes, seen, &at, end, &view, &err);
        if (status != SL_OK) {
            return status;
        }
        must(at <= end && view.n_rows <= asked->topk && view.n_new <= view.n_rows);
        for (uint32_t i = 0; i < view.n_rows; i++) {
            must(view.places[i] < ((asked->flags & SL_NEAR_PROBE) != 0 ? asked->last : asked->places));
        }
        for (uint32_t i = 0; i < view.n_new; i++) {
            must(view.fresh[i] < view.n_rows);
        }
        touch(view.rows, view.n_new * row_bytes);
    }
    return SL_OK;
}

static enum sl_status read_answer(const struct sl_near_request *asked, const struct sl_near_shape *shape,
                                  const uint8_t *answer, size_t bytes) {
    struct sl_near_answer head;
    const uint8_t *body, *end = answer + bytes;
    struct sl_error err = {0};
    size_t row_bytes = sl_near_row_bytes(shape), n;
    enum sl_status status = sl_near_check(asked, answer, bytes, &head, &body, &err);
    if (status != SL_OK) {
        return status;
    }
    switch (asked->kind) {
    case SL_NEAR_TOPK:
        return read_offloaded_heads(asked, row_bytes, body, end);
    case SL_NEAR_ROWS:
        return sl_near_read_rows(asked, row_bytes, body, end, &err);
    case SL_NEAR_CHANNELS: {
        struct sl_near_channels_view view;
        status = sl_near_read_channels(asked, shape, body, end, &view, &err);
        if (status == SL_OK) {
            must(view.indexes + asked->n_offloaded_heads * view.offloaded_head_bytes == end);
        }
        return status;
    }
    case SL_NEAR_ABSMAX: {
        const float *absmax;
        return sl_near_read_absmax(asked, shape->head_dim, body, end, &absmax, &err);
    }
    default: {
        const struct sl_near_segment *map;
        status = sl_near_read_map(body, end, &map, &n, &err);
        if (status == SL_OK) {
            touch((const uint8_t *)map, n * sizeof *map);
        }
        return status;
    }
    }
}

static void ask(const uint8_t *data, size_t size) {
    if (size < 8) {
        return;
    }
    struct sl_near_request asked = {.magic = SL_NEAR_MAGIC,
                                    .version = SL_NEAR_VERSION,
                                    .kind = SL_NEAR_TOPK + data[0] % 5u,
                                    .flags = data[1] & 3u,
                                    .n_offloaded_heads = 1 + data[2] % 4u,
                                    .topk = 1u + data[3],
                                    .places = 1u + data[3] + data[4],
                                    .n_tokens = data[5],
                                    .n_channels = 1 + data[6] % HEAD_DIM,
                                    .last = 1 + data[7]};
    static const enum sl_kv_format scans[] = {SL_KV_F16, SL_KV_INT8, SL_KV_INT1};
    struct sl_near_shape shape = {HEAD_DIM, SL_KV_F16, scans[data[1] / 4 % 3], 256};
    uint8_t *answer = tight(size - 8);
    memcpy(answer, data + 8, size - 8);
    (void)read_answer(&asked, &shape, answer, size - 8);
    free(answer);
}

// --- the reader ----------------------------------------------------------------------------------------------------

// Fills the body of a request with channels or tokens, for all offloaded heads.
static void fill_body(uint8_t *body, size_t bytes, uint32_t kind, const uint8_t *data) {
    for (size_t i = 0; kind == SL_NEAR_CHANNELS && i < bytes / 2; i++) {
        uint16_t channel = (uint16_t)((data[0] + i) % (HEAD_DIM + (data[0] == 255)));
        memcpy(body + 2 * i, &channel, sizeof channel);
    }
    for (size_t i = 0; kind == SL_NEAR_ROWS && i < bytes / 4; i++) {
        uint32_t token = (uint32_t)(data[0] * (i + 1));
        memcpy(body + 4 * i, &token, sizeof token);
    }
}

// Reads a store's map as a reader of `tokens` tokens of two offloaded heads does.
static void read_by_map(const uint8_t *data, size_t size) {
    static const enum sl_kv_format scans[] = {SL_KV_F16, SL_KV_INT8, SL_KV_INT1};
    if (size < 7) {
        return;
    }
    int64_t tokens = 1 + data[0] * 4;
    struct sl_near_shape shape = {HEAD_DIM, SL_KV_F16, scans[data[1] % 3], tokens};
    struct sl_remote_kv_map map = {
        .first_offloaded_head = FIRST_HEAD, .n_offloaded_heads = N_HEADS, .scan = shape.scan};
    must(sl_page_layout_init(&map.work, SL_KV_F16, HEAD_DIM, 0, false) == SL_OK);
    must(sl_page_layout_init(&map.kept, data[1] & 64 ? SL_KV_INT8 : SL_KV_F16, HEAD_DIM, 0, false) == SL_OK);
    struct sl_near_request asked = sl_remote_kv_map_request(&map, 1);
    size_t bytes = size - 7 < sl_remote_kv_map_answer_limit(tokens) ? size - 7 : sl_remote_kv_map_answer_limit(tokens);
    uint8_t *told = tight(bytes);
    memcpy(told, data + 7, bytes);
    struct sl_error err;
    if (sl_remote_kv_map_read(&map, &asked, told, bytes, tokens, &err) == SL_OK) {
        struct sl_near_request request = asked;
        request.kind = data[2] & 1 ? SL_NEAR_ROWS : SL_NEAR_CHANNELS;
        request.first_offloaded_head = data[3] % 4;
        request.n_offloaded_heads = 1 + data[3] / 4 % 3;
        request.n_channels = request.kind == SL_NEAR_CHANNELS ? 1 + data[4] % HEAD_DIM : 0;
        request.n_tokens = request.kind == SL_NEAR_ROWS ? 1 + data[4] % 16u : 0;
        request.last = 1 + data[5] * 4u;
        uint8_t body[N_HEADS * HEAD_DIM * 8];
        fill_body(body, sizeof body, request.kind, data + 6);
        size_t n = sl_remote_kv_map_n_ranges(&map, &request, body), limit = sl_near_answer_limit(&shape, &request);
        if (n > 0 && limit > 0) { // more is not asked for
            uint8_t *answer = tight(limit);
            struct sl_fetch_range *ranges = calloc(n, sizeof *ranges);
            must(ranges != NULL);
            size_t whole = sl_remote_kv_map_answer(&map, &request, body, answer, ranges);
            must(whole <= limit);
            for (size_t i = 0; i < n; i++) {
                uint8_t *to = ranges[i].to;
                must(to >= answer && ranges[i].bytes <= (size_t)(answer + whole - to));
                memset(to, 1, ranges[i].bytes);
            }
            free(ranges);
            free(answer);
        }
    }
    free(map.segments);
    free(told);
}

// --- the remote KV -------------------------------------------------------------------------------------------------

static void serve(const struct sl_remote_kv *remote_kv, const uint8_t *data, size_t size) {
    struct sl_near_request asked = {0};
    struct sl_near_memory *memory;
    struct sl_remote_kv_scratch *scratch = sl_remote_kv_scratch_create(NULL);
    must(scratch != NULL && sl_near_memory_create(remote_kv, &memory, NULL) == SL_OK);
    uint8_t *request = malloc(size + 1); // of no alignment
    must(request != NULL);
    memcpy(request + 1, data, size);
    size_t limit = sl_near_answer_bytes(remote_kv, request + 1, size), n_out = 0;
    memcpy(&asked, data, size < sizeof asked ? size : sizeof asked);
    struct sl_near_shape shape = sl_near_shape_of(remote_kv);
    must(limit == 0 || limit == sl_near_answer_limit(&shape, &asked));
    if (limit <= (size_t)16 << 20) {
        for (int i = 0; i < 2; i++) { // the second time some rows may be there
            uint8_t *answer = tight(limit > 0 ? limit : SL_NEAR_REFUSAL_BYTES);
            sl_near_serve(remote_kv, memory, scratch, request + 1, size, answer, &n_out);
            must(n_out <= (limit > 0 ? limit : SL_NEAR_REFUSAL_BYTES));
            enum sl_status status = read_answer(&asked, &shape, answer, n_out);
            must(status != SL_ERR_PEER_CORRUPT && (status != SL_OK || limit > 0));
            free(answer);
            asked.sequence++;
            memcpy(request + 1, &asked, size < sizeof asked ? size : sizeof asked);
        }
    }
    free(request);
    sl_near_memory_destroy(&memory);
    sl_remote_kv_scratch_destroy(&scratch);
}

// Reads the head of a segment; one that is accepted says what the segment takes, and how it is found.
static void read_head(const uint8_t *data, size_t size) {
    struct sl_kv_segment_head head;
    struct sl_kv_segment_config config;
    struct sl_error err = {0};
    enum sl_status status = sl_kv_segment_head_read(data, size, &head, &config, &err);
    must(status == SL_OK || err.text[0] != '\0');
    if (status == SL_OK) {
        must(size == sizeof head && memcmp(&head, data, size) == 0);
        must(head.body_bytes == sl_kv_segment_kept_bytes(&config) && head.body_bytes <= sl_kv_segment_bytes(&config));
        must(head.index < SL_MAX_DOCUMENT_SEGMENTS && config.begin == head.begin && config.n_slots == head.n_slots);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct sl_remote_kv *remote_kv;
    remote_kv = remote_kv != NULL ? remote_kv : make_remote_kv();
    if (sl_kv_segment_head_is(data, size)) {
        read_head(data, size);
    } else if (size > 0 && data[0] >= 128) {
        read_by_map(data + 1, size - 1);
    } else if (size > 0 && data[0] % 2 == 0) {
        serve(remote_kv, data + 1, size - 1);
    } else if (size > 0) {
        ask(data + 1, size - 1);
    }
    return 0;
}

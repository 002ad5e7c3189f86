// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sizes of answers, and the checks of untrusted bytes: requests on the remote KV's side, answers on the
 * asker's.
 */
#include <string.h>

#include "engine/offload/remote_kv/near_internal.h"

#define MAX_HEADS (SL_MAX_LAYERS * SL_MAX_HEADS)

// --- sizes ---------------------------------------------------------------------------------------------------------

size_t sl_near_row_bytes(const struct sl_near_shape *shape) {
    return 2 * (size_t)shape->head_dim * (size_t)sl_kv_format_bits(shape->rows) / 8;
}

struct sl_near_shape sl_near_shape_of(const struct sl_remote_kv *remote_kv) {
    const struct sl_kv_segment *first = sl_remote_kv_segment(remote_kv, 0);
    return (struct sl_near_shape){.head_dim = remote_kv->head_dim,
                                  .rows = first != NULL ? first->config.work.format : SL_KV_F32, // the widest
                                  .scan = first != NULL ? first->config.scan : SL_KV_F32,
                                  .max_tokens = remote_kv->max_tokens};
}

static size_t scales_bytes(const struct sl_near_shape *shape, size_t n_channels) {
    return sl_kv_format_is_quantized(shape->scan) ? sl_near_padded(n_channels * sizeof(float), 64) : 0;
}

enum sl_status sl_near_channels_layout(const struct sl_near_shape *shape, int n_channels, uint32_t n_slots,
                                       struct sl_key_index_layout *layout_out) {
    struct sl_key_index_layout whole;
    if (n_channels < 1 || n_channels > shape->head_dim ||
        sl_key_index_layout_init(&whole, shape->scan, shape->head_dim, n_slots) != SL_OK) {
        return SL_ERR_INVALID;
    }
    whole.head_dim = n_channels;
    whole.absmax = whole.scale = 0;
    whole.codes = (uint32_t)scales_bytes(shape, (size_t)n_channels);
    whole.bytes = whole.codes + (size_t)n_channels * whole.channel_bytes;
    *layout_out = whole;
    return SL_OK;
}

// Holds for every way to cut the tokens: a segment begins at a multiple of SL_PAGE_SLOTS, and each of its channels is
// padded.
static uint64_t channels_limit(const struct sl_near_shape *shape, uint64_t n_offloaded_heads, uint64_t n_channels,
                               uint64_t n_tokens) {
    uint64_t n_segments = n_tokens / SL_PAGE_SLOTS + 1;
    uint64_t codes = (n_tokens + SL_PAGE_SLOTS) * (uint64_t)sl_kv_format_bits(shape->scan) / 8 + 64 * n_segments;
    uint64_t offloaded_head = n_segments * scales_bytes(shape, n_channels) + n_channels * codes;
    return sl_near_padded(sizeof(uint32_t) * (n_segments + 1), 64) + n_offloaded_heads * offloaded_head;
}

size_t sl_near_answer_limit(const struct sl_near_shape *shape, const struct sl_near_request *request) {
    uint64_t n_offloaded_heads = request->n_offloaded_heads, row_bytes = sl_near_row_bytes(shape), bytes = 0;
    if (n_offloaded_heads > MAX_HEADS) {
        return 0;
    }
    switch (request->kind) { // no product below reaches 2^63
    case SL_NEAR_TOPK: {
        uint64_t n = request->last > request->first ? sl_near_n_rows(request) : 0;
        bool is_probe = (request->flags & SL_NEAR_PROBE) != 0;
        uint64_t lists = sl_near_padded((is_probe ? n : 2 * n) * sizeof(uint32_t), 8);
        bytes = n_offloaded_heads * (sizeof(struct sl_near_offloaded_head) + lists + (is_probe ? 0 : n * row_bytes));
        break;
    }
    case SL_NEAR_ROWS:
        bytes = n_offloaded_heads * request->n_tokens * row_bytes;
        break;
    case SL_NEAR_CHANNELS:
        if (request->last < 1 || request->last > shape->max_tokens || request->n_channels > (uint32_t)shape->head_dim) {
            return 0;
        }
        bytes = channels_limit(shape, n_offloaded_heads, request->n_channels, (uint64_t)request->last);
        break;
    case SL_NEAR_ABSMAX:
        bytes = n_offloaded_heads * (uint64_t)shape->head_dim * sizeof(float);
        break;
    case SL_NEAR_MAP:
        bytes = ((uint64_t)shape->max_tokens / SL_PAGE_SLOTS + 1) * sizeof(struct sl_near_segment);
        break;
    default:
        return 0;
    }
    bytes += sizeof(struct sl_near_answer);
    bytes = bytes > SL_NEAR_REFUSAL_BYTES ? bytes : SL_NEAR_REFUSAL_BYTES;
    return bytes <= SL_NEAR_MAX_ANSWER_BYTES ? bytes : 0;
}

// --- requests ------------------------------------------------------------------------------------------------------

// Returns the bytes after the header.
static uint64_t body_bytes(const struct sl_remote_kv *remote_kv, const struct sl_near_request *r) {
    switch (r->kind) {
    case SL_NEAR_TOPK:
        return (uint64_t)r->n_offloaded_heads * (uint64_t)remote_kv->head_dim * sizeof(float);
    case SL_NEAR_ROWS:
        return (uint64_t)r->n_tokens * sizeof(uint32_t);
    case SL_NEAR_CHANNELS:
        return (uint64_t)r->n_offloaded_heads * r->n_channels * sizeof(uint16_t);
    default:
        return 0;
    }
}

static enum sl_status check_topk(const struct sl_remote_kv *remote_kv, const struct sl_near_request *r,
                                 struct sl_error *err) {
    uint32_t places = (r->flags & SL_NEAR_PROBE) != 0 ? r->topk : r->places;
    SL_FAIL_IF(r->topk < 1 || r->topk > places || places > SL_NEAR_MAX_PLACES, err, SL_ERR_INVALID,
               "request: the best %u of an offloaded head into %u places; expected 1 to places, at most %u", r->topk,
               r->places, SL_NEAR_MAX_PLACES);
    SL_FAIL_IF(r->first < 0 || r->last < r->first || r->last > remote_kv->max_tokens, err, SL_ERR_INVALID,
               "request: tokens [%lld, %lld) of at most %lld", (long long)r->first, (long long)r->last,
               (long long)remote_kv->max_tokens);
    return SL_OK;
}

enum sl_status sl_near_read_request(const struct sl_remote_kv *remote_kv, const void *request, size_t request_bytes,
                                    struct sl_near_request *head_out, struct sl_error *err) {
    struct sl_near_request *r = head_out;
    memset(r, 0, sizeof *r);
    SL_FAIL_IF(request_bytes < sizeof *r, err, SL_ERR_INVALID, "request of %zu bytes: its head has %zu", request_bytes,
               sizeof *r);
    memcpy(r, request, sizeof *r);
    SL_FAIL_IF(r->magic != SL_NEAR_MAGIC || r->version != SL_NEAR_VERSION, err, SL_ERR_INVALID,
               "request: magic %08x, version %u; expected %08x, %d", r->magic, r->version, SL_NEAR_MAGIC,
               SL_NEAR_VERSION);
    SL_FAIL_IF(r->kind < SL_NEAR_TOPK || r->kind > SL_NEAR_MAP || (r->flags & ~(SL_NEAR_RESET | SL_NEAR_PROBE)) != 0,
               err, SL_ERR_INVALID, "request of kind %u with flags %x: not known", r->kind, r->flags);
    uint64_t end_offloaded_head = (uint64_t)r->first_offloaded_head + r->n_offloaded_heads;
    SL_FAIL_IF(
        r->kind != SL_NEAR_MAP &&
            (r->n_offloaded_heads < 1 || r->first_offloaded_head < (uint32_t)remote_kv->first_offloaded_head ||
             end_offloaded_head > (uint64_t)remote_kv->first_offloaded_head + (uint64_t)remote_kv->n_offloaded_heads),
        err, SL_ERR_INVALID, "request for offloaded heads %u and %u more: the remote KV has offloaded heads %d to %d",
        r->first_offloaded_head, r->n_offloaded_heads, remote_kv->first_offloaded_head,
        remote_kv->first_offloaded_head + remote_kv->n_offloaded_heads - 1);
    SL_FAIL_IF(request_bytes - sizeof *r != body_bytes(remote_kv, r), err, SL_ERR_INVALID,
               "request of kind %u: %zu bytes behind its head, expected %llu", r->kind, request_bytes - sizeof *r,
               (unsigned long long)body_bytes(remote_kv, r));
    SL_FAIL_IF((r->kind == SL_NEAR_TOPK || r->kind == SL_NEAR_CHANNELS) &&
                   (r->n_channels < 1 || r->n_channels > (uint32_t)remote_kv->head_dim),
               err, SL_ERR_INVALID, "request: %u channels of %d", r->n_channels, remote_kv->head_dim);
    if (r->kind == SL_NEAR_TOPK && check_topk(remote_kv, r, err) != SL_OK) {
        return SL_ERR_INVALID;
    }
    struct sl_near_shape shape = sl_near_shape_of(remote_kv);
    SL_FAIL_IF(sl_near_answer_limit(&shape, r) == 0, err, SL_ERR_INVALID,
               "request of kind %u: of tokens [0, %lld) where there can be %lld, or for more than %zu bytes at "
               "once",
               r->kind, (long long)r->last, (long long)remote_kv->max_tokens, SL_NEAR_MAX_ANSWER_BYTES);
    return SL_OK;
}

size_t sl_near_answer_bytes(const struct sl_remote_kv *remote_kv, const void *request, size_t request_bytes) {
    struct sl_near_request head;
    struct sl_near_shape shape = sl_near_shape_of(remote_kv);
    return sl_near_read_request(remote_kv, request, request_bytes, &head, NULL) == SL_OK
               ? sl_near_answer_limit(&shape, &head)
               : 0;
}

// --- answers -------------------------------------------------------------------------------------------------------

#define CORRUPT(...) sl_fail(err, SL_ERR_PEER_CORRUPT, "answer of a remote KV: " __VA_ARGS__)

// Returns true if a number is a status of a failure.
static bool is_failure(int32_t status) {
    static const enum sl_status statuses[] = {
#define X(name, number, text) SL_##name,
        SL_STATUS_MAP(X)
#undef X
    };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        if (status < 0 && status == (int32_t)statuses[i]) {
            return true;
        }
    }
    return false;
}

enum sl_status sl_near_check(const struct sl_near_request *request, const void *answer, size_t answer_bytes,
                             struct sl_near_answer *head_out, const uint8_t **body_out, struct sl_error *err) {
    struct sl_near_answer head;
    if (answer_bytes < sizeof head) {
        return CORRUPT("%zu bytes, its head has %zu", answer_bytes, sizeof head);
    }
    memcpy(&head, answer, sizeof head);
    if (head.magic != SL_NEAR_MAGIC || head.n_bytes != answer_bytes - sizeof head) {
        return CORRUPT("magic %08x, %llu of %zu bytes", head.magic, (unsigned long long)head.n_bytes,
                       answer_bytes - sizeof head);
    }
    const char *body = (const char *)answer + sizeof head;
    if (head.status != SL_OK) {
        if (!is_failure(head.status) || head.n_bytes >= sizeof err->text) {
            return CORRUPT("status %d with a text of %llu bytes", head.status, (unsigned long long)head.n_bytes);
        }
        int n = (int)strnlen(body, head.n_bytes);
        return sl_fail(err, (enum sl_status)head.status, "%.*s", n, body);
    }
    if (head.kind != request->kind || head.n_offloaded_heads != request->n_offloaded_heads) {
        return CORRUPT("kind %u for %u offloaded heads, asked was kind %u for %u", head.kind, head.n_offloaded_heads,
                       request->kind, request->n_offloaded_heads);
    }
    *head_out = head;
    *body_out = (const uint8_t *)body;
    return SL_OK;
}

// Checks that the places are distinct and that the asker has them.
static bool are_places(const struct sl_near_request *request, const uint32_t *places, uint32_t n, uint64_t *seen) {
    if (request->places > SL_NEAR_MAX_PLACES) {
        return false;
    }
    memset(seen, 0, SL_NEAR_SEEN_WORDS(request->places) * sizeof *seen);
    for (uint32_t i = 0; i < n; i++) {
        if (places[i] >= request->places || (seen[places[i] / 64] >> places[i] % 64 & 1) != 0) {
            return false;
        }
        seen[places[i] / 64] |= 1ull << places[i] % 64;
    }
    return true;
}

// Checks that the numbers are strictly ascending and in [first, last).
static bool are_ascending(const uint32_t *numbers, uint32_t n, int64_t first, int64_t last) {
    for (uint32_t i = 0; i < n; i++) {
        if ((int64_t)numbers[i] < (i > 0 ? (int64_t)numbers[i - 1] + 1 : first) || (int64_t)numbers[i] >= last) {
            return false;
        }
    }
    return true;
}

enum sl_status sl_near_next_offloaded_head(const struct sl_near_request *request, size_t row_bytes, uint64_t *seen,
                                           const uint8_t **at, const uint8_t *end,
                                           struct sl_near_offloaded_head_view *view_out, struct sl_error *err) {
    struct sl_near_offloaded_head head;
    size_t left = (size_t)(end - *at);
    if (left < sizeof head) {
        return CORRUPT("%zu bytes left where an offloaded head begins", left);
    }
    memcpy(&head, *at, sizeof head);
    bool is_probe = (request->flags & SL_NEAR_PROBE) != 0;
    uint32_t expected = request->last > request->first ? sl_near_n_rows(request) : 0;
    if (head.n_rows != expected || head.n_new > (is_probe ? 0 : head.n_rows)) {
        return CORRUPT("%u rows of an offloaded head, %u of them new; asked was for %u", head.n_rows, head.n_new,
                       expected);
    }
    size_t lists = sl_near_padded(((size_t)head.n_rows + head.n_new) * sizeof(uint32_t), 8);
    if (left - sizeof head < lists || (left - sizeof head - lists) / row_bytes < head.n_new) {
        return CORRUPT("%u rows of an offloaded head, %u of them new, in %zu bytes", head.n_rows, head.n_new, left);
    }
    struct sl_near_offloaded_head_view view = {head.n_rows, head.n_new, (const uint32_t *)(*at + sizeof head), NULL,
                                               NULL};
    view.fresh = view.places + head.n_rows;
    view.rows = *at + sizeof head + lists;
    if (!are_ascending(view.fresh, view.n_new, 0, view.n_rows) ||
        !(is_probe ? are_ascending(view.places, view.n_rows, request->first, request->last)
                   : are_places(request, view.places, view.n_rows, seen))) {
        return CORRUPT("places, tokens or indices of an offloaded head are out of bounds or of order");
    }
    *at = view.rows + view.n_new * row_bytes;
    *view_out = view;
    return SL_OK;
}

enum sl_status sl_near_read_rows(const struct sl_near_request *request, size_t row_bytes, const uint8_t *body,
                                 const uint8_t *end, struct sl_error *err) {
    uint64_t expected = (uint64_t)request->n_offloaded_heads * request->n_tokens;
    if ((size_t)(end - body) % row_bytes != 0 || (size_t)(end - body) / row_bytes != expected) {
        return CORRUPT("%zu bytes, asked was for %u rows of %u offloaded heads", (size_t)(end - body),
                       request->n_tokens, request->n_offloaded_heads);
    }
    return SL_OK;
}

enum sl_status sl_near_read_absmax(const struct sl_near_request *request, int head_dim, const uint8_t *body,
                                   const uint8_t *end, const float **absmax_out, struct sl_error *err) {
    if ((size_t)(end - body) != (size_t)request->n_offloaded_heads * (size_t)head_dim * sizeof(float)) {
        return CORRUPT("%zu bytes, asked was for %d maxima of %u offloaded heads", (size_t)(end - body), head_dim,
                       request->n_offloaded_heads);
    }
    *absmax_out = (const float *)body;
    return SL_OK;
}

enum sl_status sl_near_read_channels(const struct sl_near_request *request, const struct sl_near_shape *shape,
                                     const uint8_t *body, const uint8_t *end, struct sl_near_channels_view *view_out,
                                     struct sl_error *err) {
    size_t left = (size_t)(end - body), offloaded_head_bytes = 0;
    struct sl_near_channels_view view = {0};
    if (left >= sizeof view.n_segments) {
        memcpy(&view.n_segments, body, sizeof view.n_segments);
    }
    size_t index_bytes = sl_near_padded(sizeof(uint32_t) * ((size_t)view.n_segments + 1), 64);
    if (view.n_segments < 1 || left < index_bytes) {
        return CORRUPT("%u segments in %zu bytes", view.n_segments, left);
    }
    view.n_slots = (const uint32_t *)body + 1;
    view.indexes = body + index_bytes;
    int64_t n_tokens = 0;
    for (uint32_t i = 0; i < view.n_segments; i++) {
        struct sl_key_index_layout layout;
        n_tokens += view.n_slots[i];
        bool is_cut = i + 1 < view.n_segments && view.n_slots[i] % SL_PAGE_SLOTS != 0;
        if (n_tokens > request->last || is_cut ||
            sl_near_channels_layout(shape, (int)request->n_channels, view.n_slots[i], &layout) != SL_OK) {
            return CORRUPT("a segment of %u slots, asked was for %lld tokens", view.n_slots[i],
                           (long long)request->last);
        }
        offloaded_head_bytes += layout.bytes;
    }
    size_t indexes_bytes = left - index_bytes;
    if (n_tokens != request->last || indexes_bytes % offloaded_head_bytes != 0 ||
        indexes_bytes / offloaded_head_bytes != request->n_offloaded_heads) {
        return CORRUPT("channels of %lld tokens in %zu bytes, asked was for %lld tokens of %u offloaded heads",
                       (long long)n_tokens, indexes_bytes, (long long)request->last, request->n_offloaded_heads);
    }
    view.offloaded_head_bytes = offloaded_head_bytes;
    *view_out = view;
    return SL_OK;
}

enum sl_status sl_near_read_map(const uint8_t *body, const uint8_t *end, const struct sl_near_segment **segments_out,
                                size_t *n_out, struct sl_error *err) {
    size_t n = (size_t)(end - body) / sizeof(struct sl_near_segment);
    const struct sl_near_segment *segments = (const struct sl_near_segment *)body;
    int64_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        if (segments[i].begin != begin || segments[i].n_slots < 1 || begin % SL_PAGE_SLOTS != 0) {
            return CORRUPT("segment %zu begins at token %lld, expected at %lld", i, (long long)segments[i].begin,
                           (long long)begin);
        }
        begin += segments[i].n_slots;
    }
    if ((size_t)(end - body) % sizeof(struct sl_near_segment) != 0) {
        return CORRUPT("a map of %zu bytes", (size_t)(end - body));
    }
    *segments_out = segments;
    *n_out = n;
    return SL_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "net/offload/remote/remote_kv_map.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// ---- the map --------------------------------------------------------------------------------------------------------

struct sl_near_request sl_remote_kv_map_request(const struct sl_remote_kv_map *map, uint64_t remote_kv_id) {
    return (struct sl_near_request){.magic = SL_NEAR_MAGIC,
                                    .version = SL_NEAR_VERSION,
                                    .remote_kv_id = remote_kv_id,
                                    .kind = SL_NEAR_MAP,
                                    .first_offloaded_head = (uint32_t)map->first_offloaded_head,
                                    .n_offloaded_heads = (uint32_t)map->n_offloaded_heads};
}

size_t sl_remote_kv_map_answer_limit(int64_t n_tokens) {
    size_t bytes = sizeof(struct sl_near_answer) + (size_t)sl_pages_for(n_tokens) * sizeof(struct sl_near_segment);
    return bytes > SL_NEAR_REFUSAL_BYTES ? bytes : SL_NEAR_REFUSAL_BYTES;
}

static int64_t end_of(const struct sl_near_segment *segments, size_t n) {
    return n > 0 ? segments[n - 1].begin + segments[n - 1].n_slots : 0;
}

enum sl_status sl_remote_kv_map_read(struct sl_remote_kv_map *map, const struct sl_near_request *request,
                                     const void *answer, size_t bytes, int64_t n_tokens, struct sl_error *err) {
    struct sl_near_answer head;
    const uint8_t *body;
    const struct sl_near_segment *segments = NULL;
    size_t n = 0;
    enum sl_status status = sl_near_check(request, answer, bytes, &head, &body, err);
    SL_THEN(status, sl_near_read_map(body, (const uint8_t *)answer + bytes, &segments, &n, err));
    for (size_t i = 0; status == SL_OK && i < n; i++) {
        struct sl_key_index_layout layout;
        if (segments[i].n_offloaded_heads != (uint32_t)map->n_offloaded_heads ||
            sl_key_index_layout_init(&layout, map->scan, map->work.head_dim, segments[i].n_slots) != SL_OK) {
            status = sl_fail(err, SL_ERR_PEER_CORRUPT,
                             "a segment of %u offloaded heads and %u tokens; the share has %d offloaded heads",
                             segments[i].n_offloaded_heads, segments[i].n_slots, map->n_offloaded_heads);
        }
    }
    SL_THEN_FAIL_IF(status, end_of(segments, n) < n_tokens, err, SL_ERR_PEER_CORRUPT,
                    "it shows where %lld tokens lie instead of %lld", (long long)end_of(segments, n),
                    (long long)n_tokens);
    SL_TRY(status);
    struct sl_near_segment *copy = malloc((n + 1) * sizeof *copy);
    SL_FAIL_IF(!copy, err, SL_ERR_EXHAUSTED, "no memory for a map of %zu segments", n);
    memcpy(copy, segments, n * sizeof *copy);
    map->segments = copy;
    map->n_segments = n;
    return SL_OK;
}

uint64_t sl_remote_kv_map_page(const struct sl_remote_kv_map *map, int offloaded_head, int64_t token, size_t *at) {
    *at = token < map->segments[*at].begin ? 0 : *at;
    while (map->segments[*at].begin + map->segments[*at].n_slots <= token) {
        ++*at;
    }
    // Offloaded head after offloaded head, each with its full pages and then the partial one as shipped
    // (engine/offload/remote_kv/remote_kv.h).
    const struct sl_near_segment *segment = &map->segments[*at];
    uint64_t full = segment->n_slots / SL_PAGE_SLOTS, partial = segment->n_slots % SL_PAGE_SLOTS != 0;
    uint64_t offloaded_head_bytes = full * map->kept.bytes + partial * map->work.bytes;
    return segment->offset + (uint64_t)offloaded_head * offloaded_head_bytes +
           (uint64_t)((token - segment->begin) / SL_PAGE_SLOTS) * map->kept.bytes;
}

// ---- rows -----------------------------------------------------------------------------------------------------------

// Returns the bytes of K or of V of one token, which are one run.
static size_t row_bytes(const struct sl_remote_kv_map *map) {
    return (size_t)map->work.head_dim * (size_t)sl_kv_format_bits(map->work.format) / 8;
}

static uint32_t token_at(const void *body, uint32_t i) {
    uint32_t token;
    memcpy(&token, (const char *)body + i * sizeof token, sizeof token);
    return token;
}

static size_t count_rows(const struct sl_remote_kv_map *map, const struct sl_near_request *request, const void *body) {
    if (map->kept.format != map->work.format) {
        return 0;
    }
    int64_t n_tokens = end_of(map->segments, map->n_segments);
    for (uint32_t i = 0; i < request->n_tokens; i++) {
        if (token_at(body, i) >= n_tokens) {
            return 0;
        }
    }
    return (size_t)2 * request->n_offloaded_heads * request->n_tokens;
}

static uint8_t *place_rows(const struct sl_remote_kv_map *map, const struct sl_near_request *request, const void *body,
                           uint8_t *to, struct sl_fetch_range *range) {
    size_t bytes = row_bytes(map);
    int first = (int)request->first_offloaded_head - map->first_offloaded_head;
    for (int offloaded_head = first; offloaded_head < first + (int)request->n_offloaded_heads; offloaded_head++) {
        size_t at = 0;
        for (uint32_t i = 0; i < request->n_tokens; i++) {
            uint32_t token = token_at(body, i);
            uint64_t page = sl_remote_kv_map_page(map, offloaded_head, token, &at), row = token % SL_PAGE_SLOTS * bytes;
            *range++ = (struct sl_fetch_range){.offset = page + map->work.k + row, .to = to, .bytes = bytes};
            *range++ = (struct sl_fetch_range){.offset = page + map->work.v + row, .to = to + bytes, .bytes = bytes};
            to += 2 * bytes;
        }
    }
    return to;
}

// ---- channels -------------------------------------------------------------------------------------------------------

static uint16_t channel_at(const void *body, size_t i) {
    uint16_t channel;
    memcpy(&channel, (const char *)body + i * sizeof channel, sizeof channel);
    return channel;
}

static bool has_scales(const struct sl_remote_kv_map *map) {
    return sl_kv_format_is_quantized(map->scan);
}

// Returns how many segments begin before `last`.
static size_t n_before(const struct sl_remote_kv_map *map, int64_t last) {
    size_t n = 0;
    while (n < map->n_segments && map->segments[n].begin < last) {
        n++;
    }
    return n;
}

static size_t count_channels(const struct sl_remote_kv_map *map, const struct sl_near_request *request,
                             const void *body) {
    size_t n_channels = (size_t)request->n_offloaded_heads * request->n_channels;
    if (request->last > end_of(map->segments, map->n_segments) || request->n_channels > (uint32_t)map->work.head_dim) {
        return 0;
    }
    for (size_t i = 0; i < n_channels; i++) {
        if (channel_at(body, i) >= map->work.head_dim) {
            return 0;
        }
    }
    return n_before(map, request->last) * n_channels * (has_scales(map) ? 2 : 1);
}

// The channels of one segment, in the window and in the answer.
struct channels {
    struct sl_key_index_layout whole, chosen;
};

static struct channels lay_out(const struct sl_remote_kv_map *map, const struct sl_near_request *request,
                               size_t segment, uint32_t n_slots) {
    struct channels c;
    struct sl_near_shape shape = {.head_dim = map->work.head_dim, .rows = map->work.format, .scan = map->scan};
    enum sl_status status =
        sl_key_index_layout_init(&c.whole, map->scan, map->work.head_dim, map->segments[segment].n_slots);
    SL_THEN(status, sl_near_channels_layout(&shape, (int)request->n_channels, n_slots, &c.chosen));
    assert(status == SL_OK); // sl_remote_kv_map_read() and count_channels() have checked it
    (void)status;
    return c;
}

// Writes one offloaded head's part of one segment. Returns the next range.
static struct sl_fetch_range *place_copy(const struct channels *c, uint64_t copy, const uint8_t *channels,
                                         uint32_t n_channels, uint8_t *to, struct sl_fetch_range *range) {
    memset(to, 0, c->chosen.codes); // after the scales
    for (uint32_t i = 0; i < n_channels; i++) {
        uint64_t channel = channel_at(channels, i);
        if (c->chosen.codes > 0) {
            *range++ = (struct sl_fetch_range){.offset = copy + c->whole.scale + channel * sizeof(float),
                                               .to = to + i * sizeof(float),
                                               .bytes = sizeof(float)};
        }
        *range++ = (struct sl_fetch_range){.offset = copy + c->whole.codes + channel * c->whole.channel_bytes,
                                           .to = to + c->chosen.codes + i * c->chosen.channel_bytes,
                                           .bytes = c->chosen.channel_bytes};
    }
    return range;
}

static uint8_t *place_channels(const struct sl_remote_kv_map *map, const struct sl_near_request *request,
                               const void *body, uint8_t *to, struct sl_fetch_range *range) {
    size_t n = n_before(map, request->last), index_bytes = (n + 1) * sizeof(uint32_t);
    uint32_t *index = (uint32_t *)to;
    index[0] = (uint32_t)n;
    for (size_t s = 0; s < n; s++) {
        int64_t left = request->last - map->segments[s].begin;
        index[s + 1] = left < map->segments[s].n_slots ? (uint32_t)left : map->segments[s].n_slots;
    }
    memset(to + index_bytes, 0, (64 - index_bytes % 64) % 64);
    to += (index_bytes + 63) / 64 * 64;
    for (uint32_t offloaded_head = 0; offloaded_head < request->n_offloaded_heads; offloaded_head++) {
        const uint8_t *channels =
            (const uint8_t *)body + (size_t)offloaded_head * request->n_channels * sizeof(uint16_t);
        uint64_t in_share = request->first_offloaded_head + offloaded_head - (uint32_t)map->first_offloaded_head;
        for (size_t s = 0; s < n; s++) {
            struct channels c = lay_out(map, request, s, index[s + 1]);
            uint64_t copy = map->segments[s].scan_offset + in_share * map->segments[s].scan_stride;
            range = place_copy(&c, copy, channels, request->n_channels, to, range);
            to += c.chosen.bytes;
        }
    }
    return to;
}

// ---- either ---------------------------------------------------------------------------------------------------------

static const struct {
    size_t (*count)(const struct sl_remote_kv_map *map, const struct sl_near_request *request, const void *body);
    uint8_t *(*place)(const struct sl_remote_kv_map *map, const struct sl_near_request *request, const void *body,
                      uint8_t *to, struct sl_fetch_range *range);
} kinds[] = {[SL_NEAR_ROWS] = {count_rows, place_rows},
             [SL_NEAR_CHANNELS] = {count_channels, place_channels},
             [SL_NEAR_MAP] = {NULL, NULL}};

size_t sl_remote_kv_map_n_ranges(const struct sl_remote_kv_map *map, const struct sl_near_request *request,
                                 const void *body) {
    int64_t first = (int64_t)request->first_offloaded_head - map->first_offloaded_head;
    bool is_known = map->segments && request->kind < sizeof kinds / sizeof kinds[0] && kinds[request->kind].count &&
                    first >= 0 && first + request->n_offloaded_heads <= map->n_offloaded_heads;
    return is_known ? kinds[request->kind].count(map, request, body) : 0;
}

size_t sl_remote_kv_map_answer(const struct sl_remote_kv_map *map, const struct sl_near_request *request,
                               const void *body, void *answer, struct sl_fetch_range *ranges_out) {
    struct sl_near_answer head = {
        .magic = SL_NEAR_MAGIC, .kind = request->kind, .n_offloaded_heads = request->n_offloaded_heads};
    uint8_t *begin = (uint8_t *)answer + sizeof head;
    head.n_bytes = (size_t)(kinds[request->kind].place(map, request, body, begin, ranges_out) - begin);
    memcpy(answer, &head, sizeof head);
    return sizeof head + head.n_bytes;
}

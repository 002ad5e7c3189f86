// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the protocol between a remote KV and a decode worker (or a prefill worker that reads back): one request, one
 *          answer, each a contiguous message (net/fabric/request.h). In one process the same bytes go through a function
 *          call, so that both compute the same.
 *
 *   TOPK      request  the query of every requested offloaded head (f32 [n_offloaded_heads][d])
 *             answer   per offloaded head: the places of the topk rows in the asker's hot cache, and the rows missing
 *                      there
 *   ROWS      request  tokens (u32 [n_tokens], the same for all requested offloaded heads)
 *             answer   their rows [n_offloaded_heads][n_tokens][2][d]
 *   CHANNELS  request  channels (u16 [n_offloaded_heads][n_channels], ascending within an offloaded head)
 *             answer   those channels of tokens [0, last): u32 n_segments, u32 n_slots [n_segments], padded to 64
 *                      bytes; then offloaded head by offloaded head, segment by segment, a key index of the n_channels
 *                      channels alone (sl_near_channels_layout()), which ops->scan reads as channels 0 .. n_channels -
 *                      1
 *   ABSMAX    answer   f32 [n_offloaded_heads][d]
 *   MAP       answer   where every segment lies, for one-sided reads: struct sl_near_segment [n]
 *
 * Delta: the asker has a hot cache of `places` rows an offloaded head. The remote KV side remembers which token is in
 *        which place, and in which order they were wanted. It sends only rows that are missing, and says into which
 *        place each goes: a place that was never used (the lowest first), else the one wanted longest ago (of those
 *        wanted at the same time the lowest token's), never one that is wanted now. `sequence` counts the asker's TOPK
 *        requests of an offloaded head. The memory of the offloaded head is reset if `sequence` does not follow the
 *        last answered one, `places` differs, or the asker sets SL_NEAR_RESET: such an answer has every row in it and
 *        is right whatever the asker's places hold. An asker that did not use an answer, or used one of another store,
 *        must reset. places == topk with reset in every request is retrieval without delta.
 * Trust: both sides check everything before they use it; sl_near_read_*() bound every count by what the caller knows.
 *        Requests may have any alignment; answers are aligned to 64 bytes.
 */
#pragma once

#include "engine/offload/remote_kv/remote_kv.h"

#define SL_NEAR_MAGIC   0x534c4e52u // "RNLS"
#define SL_NEAR_VERSION 1

enum sl_near_kind { SL_NEAR_TOPK = 1, SL_NEAR_ROWS, SL_NEAR_CHANNELS, SL_NEAR_ABSMAX, SL_NEAR_MAP };

#define SL_NEAR_RESET 1u // forget what the asker's places hold
#define SL_NEAR_PROBE 2u // to measure recall: tokens instead of places, no rows, nothing is remembered

// The header of every request; little endian, copied in and out with memcpy. A kind leaves unused fields 0.
struct sl_near_request {
    uint32_t magic, version;
    uint64_t remote_kv_id;
    uint32_t kind, flags;
    uint32_t first_offloaded_head, n_offloaded_heads; // offloaded heads of the session, all in one share
    uint32_t n_channels, topk;
    uint32_t places;     // rows per offloaded head in the asker's hot cache: topk to SL_NEAR_MAX_PLACES
    uint32_t n_tokens;   // ROWS
    int64_t first, last; // TOPK: candidate tokens; CHANNELS: [0, last)
    uint64_t sequence;   // TOPK
};
#define SL_NEAR_MAX_PLACES         (1u << 20)
#define SL_NEAR_SEEN_WORDS(places) (((size_t)(places) + 63) / 64) // one bit a place
#define SL_NEAR_MAX_ANSWER_BYTES   ((size_t)1 << 30)

// The header of every answer: 64 bytes, so that the body is aligned like the answer.
struct sl_near_answer {
    uint32_t magic;
    int32_t status; // enum sl_status; not SL_OK: a text of n_bytes follows
    uint32_t kind;
    uint32_t n_offloaded_heads;
    uint64_t n_bytes;    // after this header
    uint64_t scan_ns;    // duration of the search
    uint64_t scan_bytes; // bytes that it read
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct sl_near_answer) == 64, "the body begins at a multiple of 64 bytes");

#define SL_NEAR_REFUSAL_BYTES (sizeof(struct sl_near_answer) + sizeof(struct sl_error)) // the longest failure

// TOPK: one per offloaded head, in order. After this header: places u32 [n_rows], by ascending token (PROBE: the tokens
// themselves); fresh u32 [n_new], ascending indices into places; padding to a multiple of 8 bytes; the rows
// [n_new][2][d].
struct sl_near_offloaded_head {
    uint32_t n_rows; // selected: min(topk, last - first)
    uint32_t n_new;  // of those, sent
};

struct sl_near_segment {
    int64_t begin;
    uint32_t n_slots, n_offloaded_heads;
    uint64_t offset;      // of its block in the store's window (net/fabric/fetch.h)
    uint64_t scan_offset; // of its first offloaded head's key index; the others follow at scan_stride
    uint64_t scan_stride;
};

/*
 * The store's record of one asker's places. One per (remote KV, asker); an asker's requests are answered one at a time
 * per layer.
 */
struct sl_near_memory;
enum sl_status sl_near_memory_create(const struct sl_remote_kv *remote_kv, struct sl_near_memory **memory_out,
                                     struct sl_error *err);
void sl_near_memory_destroy(struct sl_near_memory **memory);
size_t sl_near_memory_bytes(const struct sl_near_memory *memory);

// The properties of a remote KV that both sides know; sizes follow from them.
struct sl_near_shape {
    int head_dim;
    enum sl_kv_format rows, scan; // formats of the work layout, and of the key indexes
    int64_t max_tokens;
};
size_t sl_near_row_bytes(const struct sl_near_shape *shape); // K and V

// Returns the largest size of an answer to a request with this header, for the asker's buffer. 0: more than
// SL_NEAR_MAX_ANSWER_BYTES, or no such kind.
size_t sl_near_answer_limit(const struct sl_near_shape *shape, const struct sl_near_request *request);

// Returns the same on the remote KV's side, after checking magic, version, sizes and bounds; 0: the request is
// malformed.
size_t sl_near_answer_bytes(const struct sl_remote_kv *remote_kv, const void *request, size_t request_bytes);
/*
 * Answers one request (any kind except MAP, which the store answers). answer: sl_near_answer_bytes() bytes, at least
 * SL_NEAR_REFUSAL_BYTES (the answer to a malformed request says what is wrong); *n_out is how many were written.
 * Failures are reported in the answer's status alone. memory: for TOPK; may be NULL for other kinds and for
 * SL_NEAR_PROBE.
 */
void sl_near_serve(const struct sl_remote_kv *remote_kv, struct sl_near_memory *memory,
                   struct sl_remote_kv_scratch *scratch, const void *request, size_t request_bytes, void *answer,
                   size_t *n_out);

/*
 * Answers several TOPK requests, at most SL_NEAR_MAX_TOGETHER, in one pass over memory: bytes that their remote KVs
 * share are read once. The answers are the same as those of sl_near_serve() one by one.
 */
struct sl_near_served {
    const struct sl_remote_kv *remote_kv;
    struct sl_near_memory *memory;
    const void *request;
    size_t request_bytes;
    void *answer;
    size_t n_out; // out: bytes of the answer
};
#define SL_NEAR_MAX_TOGETHER 8
void sl_near_serve_together(struct sl_near_served *served, int n, struct sl_remote_kv_scratch *scratch);

/*
 * Checks an answer to `request`, on the asker's side. SL_ERR_PEER_CORRUPT: it is not one. Returns the status that the
 * answer carries, with its text in err. *body_out points after the header.
 */
enum sl_status sl_near_check(const struct sl_near_request *request, const void *answer, size_t answer_bytes,
                             struct sl_near_answer *head_out, const uint8_t **body_out, struct sl_error *err);
// Walks the offloaded heads of a TOPK answer that passed sl_near_check(); advances *at. seen: scratch of
// SL_NEAR_SEEN_WORDS(request->places). SL_ERR_PEER_CORRUPT.
struct sl_near_offloaded_head_view {
    uint32_t n_rows, n_new;
    const uint32_t *places; // [n_rows], each < request->places, no two equal; PROBE: tokens, ascending
    const uint32_t *fresh;  // [n_new] ascending indices into places
    const uint8_t *rows;    // [n_new][row_bytes]
};
enum sl_status sl_near_next_offloaded_head(const struct sl_near_request *request, size_t row_bytes, uint64_t *seen,
                                           const uint8_t **at, const uint8_t *end,
                                           struct sl_near_offloaded_head_view *view_out, struct sl_error *err);

// Read the bodies of the other kinds, after sl_near_check(): [body, end) has the requested content, or
// SL_ERR_PEER_CORRUPT.
enum sl_status sl_near_read_rows(const struct sl_near_request *request, size_t row_bytes, const uint8_t *body,
                                 const uint8_t *end, struct sl_error *err);
enum sl_status sl_near_read_absmax(const struct sl_near_request *request, int head_dim, const uint8_t *body,
                                   const uint8_t *end, const float **absmax_out, struct sl_error *err);

struct sl_near_channels_view {
    uint32_t n_segments;
    const uint32_t *n_slots;     // [n_segments]; their sum is request->last
    const uint8_t *indexes;      // [n_offloaded_heads][n_segments] key indexes, adjacent
    size_t offloaded_head_bytes; // of one offloaded head's indexes
};
enum sl_status sl_near_read_channels(const struct sl_near_request *request, const struct sl_near_shape *shape,
                                     const uint8_t *body, const uint8_t *end, struct sl_near_channels_view *view_out,
                                     struct sl_error *err);
// Computes the layout of a key index of n_slots slots with n_channels channels and without absmax; a CHANNELS answer
// consists of such indexes. SL_ERR_INVALID: as sl_key_index_layout_init().
enum sl_status sl_near_channels_layout(const struct sl_near_shape *shape, int n_channels, uint32_t n_slots,
                                       struct sl_key_index_layout *layout_out);
// Reads segments from token 0 on without gaps. The reader of the window checks the offsets (net/fabric/fetch.h).
enum sl_status sl_near_read_map(const uint8_t *body, const uint8_t *end, const struct sl_near_segment **segments_out,
                                size_t *n_out, struct sl_error *err);

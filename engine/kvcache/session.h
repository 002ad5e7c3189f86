// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the KV state of one job (or conversation) on one worker: page tables per (layer, KV head) over an arena.
 *
 * Design: a head holds first n_packed pages in its layer's packed layout (quantized, always full), then pages in the
 *         working layout (float), of which only the last may be partly filled. Heads of a layer may differ in length
 *         (eviction is per head) and layers may differ in layout and length. Pages come from the arena one by one, or
 *         from one adopted span: the block that received a capsule. Pages of a span are freed with the span. If the
 *         arena has several ranges (of ranks' memories), a head's pages come from one of them, and a span is one
 *         block in each. kvstores hold the prompt of an offloaded layer (offload/): slots missing here are there, not
 *         evicted. Sessions may share the full pages of a base session, which none of them writes: what they append
 *         begins on a page of their own. The last of them to be destroyed frees the base.
 *
 * Invariants: n_pages >= sl_pages_for(n_slots); n_packed * 64 <= n_slots; slots keep the order of their positions;
 *             n_tokens counts all tokens ever read, evicted ones too: it is the position of the next token.
 * Threads: one at a time per session. Sessions on one arena are independent, and so are sessions that share a base,
 *          which may be shared and released on any thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/arena.h"
#include "engine/kvcache/page.h"

#define SL_MAX_LAYERS 256
#define SL_MAX_HEADS  1024 // per layer

#define SL_MAX_ROPE_SETS 2 // sets of rotation frequencies of a model: long contexts may have their own

struct sl_kv_geometry {
    int n_layers;
    int n_kv_heads;
    int head_dim;
};

enum sl_position_mode {
    SL_POSITION_ORIGINAL = 0, // keys are stored after RoPE at their original position
    SL_POSITION_SLOT = 1,     // keys are stored before RoPE and rotated to their slot index at every use
};

struct sl_head {
    void **pages; // [cap_pages], the first n_pages are valid
    uint32_t n_pages;
    uint32_t cap_pages;
    uint32_t n_packed; // leading pages in the packed layout
    uint32_t n_slots;
};

struct sl_layer {
    struct sl_page_layout work;   // the layout that new tokens are appended in: a float format
    struct sl_page_layout packed; // the layout of final pages; equal to work when the layer is not quantized
    struct sl_head *heads;        // [n_kv_heads]
    float merge_threshold;        // evicted=merge: moving average of similarities; 0 before the first eviction
    bool offloaded;               // slots may be in kvstores; false unless the session's creator sets it. Never packed
};

struct sl_session {
    struct sl_kv_geometry geometry;
    enum sl_position_mode positions;
    struct sl_arena *arena;  // not owned
    int n_ranges;            // ranges of the arena
    struct sl_layer *layers; // [n_layers]
    int rope_set; // set of frequencies that rotates the keys (engine/model/model.h); 0 unless the creator sets it
    int64_t n_tokens;
    int64_t max_slots; // per head: the capacity of the page tables
    struct sl_session_span {
        void *at;
        size_t bytes;
    } adopted; // a block of the arena with the pages of a body; NULL: none
    struct sl_session_span
        *spans; // [n_spans], by address: the adopted block, those that its pages moved to, or the base's
    int n_spans;
    struct sl_session *base; // a reference to the session whose pages this one shares; NULL: none
    atomic_int n_refs;       // the owner's, of sessions that share this one's pages, and of sl_session_ref()
    size_t taken_bytes;      // bytes of held pages that came from the arena one by one
    uint32_t *n_before;      // [n_kv_heads] scratch of sl_session_reserve()
    void *tables;            // one allocation that holds layers, heads, pages and n_before
};

// Returns the range of the arena that a KV head's pages come from: heads are divided as in engine/tensor/ranks.
int sl_session_range(const struct sl_session *session, int head);

// Returns the current page list of one head: valid until room is reserved, slots are set or pages are packed.
static inline struct sl_kv sl_session_kv(const struct sl_session *session, int layer, int head) {
    const struct sl_layer *l = &session->layers[layer];
    const struct sl_head *h = &l->heads[head];
    return (struct sl_kv){h->pages, h->n_packed, h->n_slots, &l->work, &l->packed};
}

// Returns the page lists of all heads of a layer; kv has room for n_kv_heads.
static inline struct sl_kv_heads sl_session_heads(const struct sl_session *session, int layer, struct sl_kv *kv) {
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        kv[h] = sl_session_kv(session, layer, h);
    }
    return (struct sl_kv_heads){.kv = kv, .n = session->geometry.n_kv_heads};
}

struct sl_session_config {
    struct sl_kv_geometry geometry;
    enum sl_position_mode positions;
    int64_t max_slots;                   // per head, the most that will ever be held at once
    const struct sl_page_layout *work;   // [n_layers]
    const struct sl_page_layout *packed; // [n_layers]
};

/*
 * Creates an empty session. Takes no page of the arena yet; the arena must outlive it. SL_ERR_INVALID (geometry out
 * of bounds, max_slots < 1), SL_ERR_EXHAUSTED (page tables).
 */
enum sl_status sl_session_create(const struct sl_session_config *config, struct sl_arena *arena,
                                 struct sl_session **session_out, struct sl_error *err);

// Creates a session with every layer in one format and nothing packed. SL_ERR_UNSUPPORTED: no such page for head_dim.
enum sl_status sl_session_create_plain(const struct sl_kv_geometry *geometry, enum sl_kv_format format,
                                       enum sl_position_mode positions, int64_t max_slots, struct sl_arena *arena,
                                       struct sl_session **session_out, struct sl_error *err);

// Frees every page and the span; those of a base with its last reference. Accepts NULL, sets *session to NULL.
void sl_session_destroy(struct sl_session **session);

/*
 * Creates a session that begins with the first n_tokens of `base` and shares its pages. n_tokens is a multiple of
 * SL_PAGE_SLOTS, or all (SL_ERR_INVALID); copy() then copies each head's last page if that is not full. The base must not
 * change from now on. SL_ERR_PRECONDITION: not all pages of the base lie in its span, or it has offloaded slots; or it has
 * evicted slots or score states and is not shared whole. A session shared whole must score nothing. SL_ERR_EXHAUSTED.
 */
typedef void (*sl_session_copy_fn)(void *arg, void *to, const void *from, size_t bytes);
enum sl_status sl_session_share(struct sl_session *base, int64_t n_tokens, int64_t max_slots, sl_session_copy_fn copy,
                                void *arg, struct sl_session **session_out, struct sl_error *err);
// Returns another reference, for sl_session_destroy(): the session stays until then.
static inline struct sl_session *sl_session_ref(struct sl_session *session) {
    atomic_fetch_add(&session->n_refs, 1);
    return session;
}
// Returns whether other sessions share this one's pages: destroying it frees no memory.
static inline bool sl_session_is_shared(const struct sl_session *session) {
    return atomic_load(&session->n_refs) > 1;
}

/*
 * Moves a session that was just adopted to another arena. Its span becomes a block in each range of that arena, or
 * several blocks of whole pages if none is large enough. Calls copy() for each contiguous piece, with source and
 * destination; the old span is then the caller's. SL_ERR_EXHAUSTED: the session is unchanged.
 */
enum sl_status sl_session_move(struct sl_session *session, struct sl_arena *arena, sl_session_copy_fn copy, void *arg,
                               void **left_out);

/*
 * Reserves room for n_new more slots in every head of `layer`; n_slots does not change. The forward pass calls it
 * before it appends. SL_ERR_EXHAUSTED (arena, or max_slots): the session is unchanged.
 */
enum sl_status sl_session_reserve(struct sl_session *session, int layer, int n_new);

// Adds n_new slots to every head of `layer`, for which room is reserved; the caller writes them.
void sl_session_add_slots(struct sl_session *session, int layer, int n_new);

// Sets the slot count of one head after ops->gather() or ops->quantize() and frees the pages that are no longer
// needed.
void sl_session_set_slots(struct sl_session *session, int layer, int head, uint32_t n_slots);

/*
 * Replaces the head's first working page by `page`, a block of the arena that holds the same slots in the packed
 * layout. The session owns `page` from now on; the old page is freed.
 */
void sl_session_pack_page(struct sl_session *session, int layer, int head, void *page);

// Returns whether every full page of layers with a quantized format is packed: a session that is being read has working pages only.
bool sl_session_is_packed(const struct sl_session *session);

// Clears the slots of each head's last page that no token uses. The host must be able to write pages.
void sl_session_clear_unused(const struct sl_session *session, int layer);

/*
 * Frees the first n_pages pages of one head of an offloaded layer, all of them full: kvstores hold them now. Slot 0 is
 * then the first one after them. n_tokens does not change.
 */
void sl_session_drop_pages(struct sl_session *session, int layer, int head, uint32_t n_pages);

/*
 * Forgets every token at or after position n_tokens. Only for sessions that have evicted nothing
 * (SL_ERR_PRECONDITION); n_tokens must not cut through a packed or shared page (SL_ERR_INVALID). For offloaded layers the
 * session holds the newest tokens: the kvstores that hold the others must forget the same tokens.
 */
enum sl_status sl_session_truncate(struct sl_session *session, int64_t n_tokens, struct sl_error *err);

struct sl_session_stats {
    int64_t n_tokens;
    int64_t n_slots_min, n_slots_max; // over all heads
    double n_slots_mean;
    size_t resident_bytes; // bytes of the held pages
    size_t bytes_by_format[SL_KV_N_FORMATS];
};
void sl_session_get_stats(const struct sl_session *session, struct sl_session_stats *stats_out);

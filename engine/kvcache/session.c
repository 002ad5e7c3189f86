// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: page tables of a session, and the movement of pages between them and the arena.
 *
 * Design: one calloc holds layers, heads and the page pointers of all heads (max_slots each), so that growing a head
 *         allocates only pages. A page inside the adopted span is never freed by itself.
 */
#include "engine/kvcache/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "engine/kvcache/internal.h"

// In pages, slot counts are u32 and positions i32.
#define MAX_SLOTS ((int64_t)INT32_MAX - SL_PAGE_SLOTS)

static bool same_layout(const struct sl_page_layout *a, const struct sl_page_layout *b) {
    return a->format == b->format && a->k_format == b->k_format && a->v_format == b->v_format &&
           a->head_dim == b->head_dim && a->n_states == b->n_states && a->has_positions == b->has_positions &&
           a->k == b->k && a->k_scale == b->k_scale && a->v == b->v && a->v_scale == b->v_scale &&
           a->positions == b->positions && a->states == b->states && a->bytes == b->bytes;
}

// Returns true when the layout equals what sl_page_layout_init() makes from its parameters.
static bool well_formed(const struct sl_page_layout *layout) {
    struct sl_page_layout made;
    return sl_page_layout_init(&made, layout->format, layout->head_dim, layout->n_states, layout->has_positions) ==
               SL_OK &&
           same_layout(layout, &made);
}

enum sl_status sl_layer_check_layouts(const struct sl_page_layout *work, const struct sl_page_layout *packed,
                                      int head_dim, struct sl_error *err) {
    SL_FAIL_IF(!well_formed(work) || !well_formed(packed) || work->head_dim != head_dim || packed->head_dim != head_dim,
               err, SL_ERR_INVALID, "a page layout is not one of sl_page_layout_init() for head_dim %d", head_dim);
    SL_FAIL_IF(sl_kv_format_is_quantized(work->format), err, SL_ERR_INVALID,
               "working format %s is quantized; tokens are appended in a float format",
               sl_kv_format_name(work->format));
    if (!sl_kv_format_is_quantized(packed->format)) {
        return same_layout(work, packed)
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID, "packed layout %s is a float format and not the working layout",
                             sl_kv_format_name(packed->format));
    }
    SL_FAIL_IF(packed->n_states > work->n_states || packed->has_positions != work->has_positions, err, SL_ERR_INVALID,
               "packed layout has score states or positions other than the working one's");
    return SL_OK;
}

static enum sl_status check_config(const struct sl_session_config *config, struct sl_error *err) {
    const struct sl_kv_geometry *g = &config->geometry;
    SL_FAIL_IF(g->n_layers < 1 || g->n_layers > SL_MAX_LAYERS || g->n_kv_heads < 1 || g->n_kv_heads > SL_MAX_HEADS, err,
               SL_ERR_INVALID, "%d layers of %d KV heads are outside 1..%d and 1..%d", g->n_layers, g->n_kv_heads,
               SL_MAX_LAYERS, SL_MAX_HEADS);
    SL_FAIL_IF(config->max_slots < 1 || config->max_slots > MAX_SLOTS, err, SL_ERR_INVALID,
               "%lld slots a head are outside 1..%lld", (long long)config->max_slots, (long long)MAX_SLOTS);
    SL_FAIL_IF(config->positions != SL_POSITION_ORIGINAL && config->positions != SL_POSITION_SLOT, err, SL_ERR_INVALID,
               "unknown position mode %d", (int)config->positions);
    for (int l = 0; l < g->n_layers; l++) {
        SL_TRY(sl_layer_check_layouts(&config->work[l], &config->packed[l], g->head_dim, err));
    }
    return SL_OK;
}

enum sl_status sl_session_create(const struct sl_session_config *config, struct sl_arena *arena,
                                 struct sl_session **session_out, struct sl_error *err) {
    SL_TRY(check_config(config, err));
    size_t n_layers = (size_t)config->geometry.n_layers;
    size_t n_heads = (size_t)config->geometry.n_kv_heads;
    size_t cap_pages = sl_pages_for(config->max_slots);
    size_t layers_bytes = n_layers * sizeof(struct sl_layer);
    size_t heads_bytes = n_layers * n_heads * sizeof(struct sl_head);
    // at most 2^8 * 2^10 * 2^25 * 2^3 = 2^46: no overflow in 64 bits
    size_t pages_bytes = n_layers * n_heads * cap_pages * sizeof(void *);
    size_t tables_bytes = layers_bytes + heads_bytes + pages_bytes + n_heads * sizeof(uint32_t);

    struct sl_session *session = calloc(1, sizeof *session);
    char *tables = calloc(1, tables_bytes);
    if (session == NULL || tables == NULL) {
        free(session);
        free(tables);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for page tables of %zu bytes", tables_bytes);
    }
    session->geometry = config->geometry;
    session->positions = config->positions;
    session->arena = arena;
    session->n_ranges = sl_arena_ranges(arena);
    session->spans = &session->adopted;
    session->n_spans = 1;
    session->max_slots = config->max_slots;
    atomic_init(&session->n_refs, 1);
    session->tables = tables;
    session->n_before = (uint32_t *)(tables + layers_bytes + heads_bytes + pages_bytes);
    session->layers = (struct sl_layer *)tables;
    struct sl_head *heads = (struct sl_head *)(tables + layers_bytes);
    void **pages = (void **)(tables + layers_bytes + heads_bytes);
    for (size_t l = 0; l < n_layers; l++) {
        session->layers[l].work = config->work[l];
        session->layers[l].packed = config->packed[l];
        session->layers[l].heads = heads + l * n_heads;
        for (size_t h = 0; h < n_heads; h++) {
            session->layers[l].heads[h].pages = pages + (l * n_heads + h) * cap_pages;
            session->layers[l].heads[h].cap_pages = (uint32_t)cap_pages;
        }
    }
    *session_out = session;
    return SL_OK;
}

enum sl_status sl_session_create_plain(const struct sl_kv_geometry *geometry, enum sl_kv_format format,
                                       enum sl_position_mode positions, int64_t max_slots, struct sl_arena *arena,
                                       struct sl_session **session_out, struct sl_error *err) {
    struct sl_page_layout layout, *layouts = malloc((size_t)geometry->n_layers * sizeof *layouts);
    SL_FAIL_IF(layouts == NULL, err, SL_ERR_EXHAUSTED, "no memory for the layouts of a session");
    enum sl_status status = sl_page_layout_init(&layout, format, geometry->head_dim, 0, false);
    if (status == SL_OK) {
        for (int l = 0; l < geometry->n_layers; l++) {
            layouts[l] = layout;
        }
        struct sl_session_config config = {*geometry, positions, max_slots, layouts, layouts};
        status = sl_session_create(&config, arena, session_out, err);
    } else {
        status = sl_fail(err, SL_ERR_UNSUPPORTED, "no page layout for head_dim %d", geometry->head_dim);
    }
    free(layouts);
    return status;
}

static int range_of(int head, int n_heads, int n_ranges) {
    return ((head + 1) * n_ranges + n_heads - 1) / n_heads - 1;
}

int sl_session_range(const struct sl_session *session, int head) {
    return range_of(head, session->geometry.n_kv_heads, session->n_ranges);
}

static bool in_span(const struct sl_session *session, const void *page) {
    int first = 0, end = session->n_spans;
    while (first < end) {
        int middle = first + (end - first) / 2;
        uintptr_t at = (uintptr_t)page,
                  begin =
                      (uintptr_t)session->spans[middle].at; // compared as numbers: the page may lie in another object
        if (begin != 0 && at >= begin && at - begin < session->spans[middle].bytes) {
            return true;
        }
        if (at < begin) {
            end = middle;
        } else {
            first = middle + 1;
        }
    }
    return false;
}

static void return_page(struct sl_session *session, void *page, size_t page_bytes) {
    if (!in_span(session, page)) {
        sl_arena_free(session->arena, page);
        session->taken_bytes -= page_bytes;
    }
}

// Keeps the first n_pages pages of a head.
static void shrink(struct sl_session *session, const struct sl_layer *layer, struct sl_head *head, uint32_t n_pages) {
    while (head->n_pages > n_pages) {
        head->n_pages--;
        return_page(session, head->pages[head->n_pages], sl_layer_page_layout(layer, head, head->n_pages)->bytes);
        head->pages[head->n_pages] = NULL;
    }
}

void sl_session_destroy(struct sl_session **session) {
    struct sl_session *s = *session;
    *session = NULL;
    if (s == NULL || atomic_fetch_sub(&s->n_refs, 1) > 1) {
        return;
    }
    for (int l = 0; l < s->geometry.n_layers; l++) {
        for (int h = 0; h < s->geometry.n_kv_heads; h++) {
            shrink(s, &s->layers[l], &s->layers[l].heads[h], 0);
        }
    }
    for (int i = 0; i < s->n_spans && s->base == NULL; i++) {
        sl_arena_free(s->arena, s->spans[i].at);
    }
    if (s->spans != &s->adopted && s->base == NULL) {
        free(s->spans);
    }
    sl_session_destroy(&s->base);
    free(s->tables);
    free(s);
}

// Takes pages in order, one at a time: the arena tends to return adjacent pages, which are then sent as one piece.
static enum sl_status grow(struct sl_session *session, int range, struct sl_head *head, uint32_t n_pages,
                           size_t page_bytes) {
    while (head->n_pages < n_pages) {
        void *page = sl_arena_alloc_near(session->arena, range, page_bytes);
        if (page == NULL) {
            return SL_ERR_EXHAUSTED;
        }
        head->pages[head->n_pages++] = page;
        session->taken_bytes += page_bytes;
    }
    return SL_OK;
}

// ---- sharing --------------------------------------------------------------------------------------------------------

static enum sl_status check_shareable(const struct sl_session *base, int64_t n_tokens, struct sl_error *err) {
    bool whole = n_tokens == base->n_tokens, shareable = base->taken_bytes == 0 && base->base == NULL;
    SL_FAIL_IF(n_tokens < 0 || n_tokens > base->n_tokens || (!whole && n_tokens % SL_PAGE_SLOTS != 0), err,
               SL_ERR_INVALID, "cannot share %lld of a session's %lld tokens: use a multiple of %d, or all",
               (long long)n_tokens, (long long)base->n_tokens, SL_PAGE_SLOTS);
    for (int i = 0; i < base->geometry.n_layers * base->geometry.n_kv_heads; i++) {
        const struct sl_layer *layer = &base->layers[i / base->geometry.n_kv_heads];
        bool complete = layer->heads[i % base->geometry.n_kv_heads].n_slots == base->n_tokens;
        shareable &= !layer->offloaded && (whole || (layer->work.n_states == 0 && complete));
    }
    SL_FAIL_IF(!shareable, err, SL_ERR_PRECONDITION,
               "a session with offloaded slots or pages of its own is not shared, and one with evicted slots or score "
               "states only whole");
    return SL_OK;
}

// Shares the pages that a head's first n_slots fill. Copies the rest into a page of the session's own.
static enum sl_status share_head(struct sl_session *session, int layer, int head, uint32_t n_slots,
                                 sl_session_copy_fn copy, void *arg) {
    const struct sl_head *from = &session->base->layers[layer].heads[head];
    struct sl_head *to = &session->layers[layer].heads[head];
    uint32_t n_pages = n_slots / SL_PAGE_SLOTS;
    memcpy(to->pages, from->pages, n_pages * sizeof *to->pages);
    to->n_pages = n_pages;
    to->n_packed = from->n_packed < n_pages ? from->n_packed : n_pages;
    to->n_slots = n_slots;
    if (n_slots % SL_PAGE_SLOTS == 0) {
        return SL_OK;
    }
    size_t bytes = session->layers[layer].work.bytes;
    SL_TRY(grow(session, sl_session_range(session, head), to, n_pages + 1, bytes));
    copy(arg, to->pages[n_pages], from->pages[n_pages], bytes);
    return SL_OK;
}

enum sl_status sl_session_share(struct sl_session *base, int64_t n_tokens, int64_t max_slots, sl_session_copy_fn copy,
                                void *arg, struct sl_session **session_out, struct sl_error *err) {
    int n_layers = base->geometry.n_layers;
    struct sl_page_layout *layouts = malloc(2 * sizeof *layouts * (size_t)n_layers);
    enum sl_status status = layouts ? check_shareable(base, n_tokens, err)
                                    : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %d page layouts", 2 * n_layers);
    for (int l = 0; status == SL_OK && l < n_layers; l++) {
        layouts[l] = base->layers[l].work;
        layouts[n_layers + l] = base->layers[l].packed;
    }
    struct sl_session *session = NULL;
    if (status == SL_OK) {
        int64_t most = max_slots > n_tokens ? max_slots : n_tokens + 1;
        struct sl_session_config config = {base->geometry, base->positions, most, layouts, layouts + n_layers};
        status = sl_session_create(&config, base->arena, &session, err);
    }
    free(layouts);
    SL_TRY(status);
    session->rope_set = base->rope_set;
    session->n_tokens = n_tokens;
    session->spans = base->spans;
    session->n_spans = base->n_spans;
    session->base = sl_session_ref(base);
    for (int i = 0; status == SL_OK && i < n_layers * base->geometry.n_kv_heads; i++) {
        int l = i / base->geometry.n_kv_heads, h = i % base->geometry.n_kv_heads;
        bool whole = n_tokens == base->n_tokens;
        status = share_head(session, l, h, whole ? base->layers[l].heads[h].n_slots : (uint32_t)n_tokens, copy, arg);
    }
    if (status != SL_OK) {
        sl_session_destroy(&session);
        return sl_fail(err, status, "no arena memory for the last pages of a session that is shared");
    }
    *session_out = session;
    return SL_OK;
}

enum sl_status sl_session_reserve(struct sl_session *session, int layer, int n_new) {
    assert(layer >= 0 && layer < session->geometry.n_layers && n_new >= 0);
    struct sl_layer *l = &session->layers[layer];
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        session->n_before[h] = l->heads[h].n_pages;
        if ((int64_t)l->heads[h].n_slots + n_new > session->max_slots) {
            return SL_ERR_EXHAUSTED;
        }
    }
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        struct sl_head *head = &l->heads[h];
        if (grow(session, sl_session_range(session, h), head, sl_pages_for((int64_t)head->n_slots + n_new),
                 l->work.bytes) != SL_OK) {
            for (int i = 0; i <= h; i++) {
                shrink(session, l, &l->heads[i], session->n_before[i]);
            }
            return SL_ERR_EXHAUSTED;
        }
    }
    return SL_OK;
}

// --- to another arena ------------------------------------------------------------------------------------------------

// A walk over a session's pages in body order, for the heads of one range at a time: each range has its own part of
// the body.
struct walk {
    int layer, head;
    uint32_t page;
};

// Moves *walk to the next page of the range; returns false if there is none.
static bool find_page(const struct sl_session *s, int range, int n_ranges, struct walk *walk) {
    for (; walk->layer < s->geometry.n_layers; walk->layer++, walk->head = 0) {
        for (; walk->head < s->geometry.n_kv_heads; walk->head++, walk->page = 0) {
            if (range_of(walk->head, s->geometry.n_kv_heads, n_ranges) == range &&
                walk->page < s->layers[walk->layer].heads[walk->head].n_pages) {
                return true;
            }
        }
    }
    return false;
}

static size_t page_bytes(const struct sl_session *s, const struct walk *walk) {
    const struct sl_layer *layer = &s->layers[walk->layer];
    return sl_layer_page_layout(layer, &layer->heads[walk->head], walk->page)->bytes;
}

// Returns the bytes of the next pages, at least one and together at most `most`. Moves *walk past them.
static size_t measure(const struct sl_session *s, int range, int n_ranges, size_t most, struct walk *walk) {
    size_t bytes = 0;
    while (find_page(s, range, n_ranges, walk)) {
        size_t next = page_bytes(s, walk);
        if (bytes > 0 && bytes + next > most) {
            break;
        }
        bytes += next;
        walk->page++;
    }
    return bytes;
}

struct spans {
    struct sl_session_span *at; // malloc'd
    size_t n, room;
};

static enum sl_status add_span(struct spans *spans, struct sl_arena *arena, int range, size_t bytes) {
    void *block = SL_GROW(spans->at, spans->n, spans->room) ? sl_arena_alloc_near(arena, range, bytes) : NULL;
    if (block == NULL) {
        return SL_ERR_EXHAUSTED;
    }
    spans->at[spans->n++] = (struct sl_session_span){block, bytes};
    return SL_OK;
}

// Allocates blocks for the pages of a range: one, or several if none is large enough, down to a page each. Several
// are needed because admission counts free bytes, not their fragmentation.
static enum sl_status take_spans(const struct sl_session *s, struct sl_arena *arena, int range, int n_ranges,
                                 struct spans *spans) {
    size_t most = SIZE_MAX, bytes;
    struct walk at = {0}, end = at;
    while ((bytes = measure(s, range, n_ranges, most, &end)) > 0) {
        struct walk one = at;
        if (add_span(spans, arena, range, bytes) == SL_OK) {
            at = end;
            continue;
        }
        if (bytes == measure(s, range, n_ranges, 0, &one)) {
            return SL_ERR_EXHAUSTED;
        }
        most = bytes / 2;
        end = at;
    }
    return SL_OK;
}

// The destination of the pages of a range.
struct target {
    const struct sl_session_span *span;
    size_t used;
};

static char *lay_page(struct target *target, size_t bytes) {
    if (target->used == target->span->bytes) {
        target->span++;
        target->used = 0;
    }
    char *to = (char *)target->span->at + target->used;
    target->used += bytes;
    return to;
}

// Moves pages. Pages that are adjacent in source and destination are one copy.
static void move_pages(struct sl_session *s, int n_ranges, struct target *targets, sl_session_copy_fn copy, void *arg) {
    const char *from = s->spans->at;
    char *to = NULL;
    size_t bytes = 0;
    for (int l = 0; l < s->geometry.n_layers; l++) {
        for (int h = 0; h < s->geometry.n_kv_heads; h++) {
            struct sl_head *head = &s->layers[l].heads[h];
            for (uint32_t p = 0; p < head->n_pages; p++) {
                size_t next = sl_layer_page_layout(&s->layers[l], head, p)->bytes;
                char *page = lay_page(&targets[range_of(h, s->geometry.n_kv_heads, n_ranges)], next);
                if (to == NULL || page != to + bytes) {
                    if (bytes > 0) {
                        copy(arg, to, from, bytes);
                    }
                    from += bytes;
                    to = page;
                    bytes = 0;
                }
                head->pages[p] = page;
                bytes += next;
            }
        }
    }
    if (bytes > 0) {
        copy(arg, to, from, bytes);
    }
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const struct sl_session_span *)a)->at,
              y = (uintptr_t)((const struct sl_session_span *)b)->at;
    return (x > y) - (x < y);
}

enum sl_status sl_session_move(struct sl_session *s, struct sl_arena *arena, sl_session_copy_fn copy, void *arg,
                               void **left_out) {
    int n_ranges = sl_arena_ranges(arena);
    size_t first[SL_ARENA_RANGES];
    struct spans spans = {0};
    struct target targets[SL_ARENA_RANGES];
    enum sl_status status = SL_OK;
    for (int i = 0; i < n_ranges && status == SL_OK; i++) {
        first[i] = spans.n;
        status = take_spans(s, arena, i, n_ranges, &spans);
    }
    if (status != SL_OK) {
        while (spans.n > 0) {
            sl_arena_free(arena, spans.at[--spans.n].at);
        }
        free(spans.at);
        return status;
    }
    for (int i = 0; i < n_ranges; i++) {
        targets[i] = (struct target){spans.at + first[i], 0};
    }
    move_pages(s, n_ranges, targets, copy, arg);
    *left_out = s->adopted.at;
    s->adopted = (struct sl_session_span){0};
    if (spans.n > 0) {
        qsort(spans.at, spans.n, sizeof *spans.at, by_address);
        s->spans = spans.at;
        s->n_spans = (int)spans.n;
    }
    s->arena = arena;
    s->n_ranges = n_ranges;
    return SL_OK;
}

void sl_session_set_slots(struct sl_session *session, int layer, int head, uint32_t n_slots) {
    struct sl_layer *l = &session->layers[layer];
    struct sl_head *h = &l->heads[head];
    assert(n_slots <= (uint64_t)h->n_pages * SL_PAGE_SLOTS && n_slots >= h->n_packed * SL_PAGE_SLOTS);
    h->n_slots = n_slots;
    shrink(session, l, h, sl_pages_for(n_slots));
}

void sl_session_add_slots(struct sl_session *session, int layer, int n_new) {
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        struct sl_head *head = &session->layers[layer].heads[h];
        head->n_slots += (uint32_t)n_new;
        assert(head->n_slots <= (uint64_t)head->n_pages * SL_PAGE_SLOTS);
    }
}

void sl_session_pack_page(struct sl_session *session, int layer, int head, void *page) {
    struct sl_layer *l = &session->layers[layer];
    struct sl_head *h = &l->heads[head];
    assert((h->n_packed + 1) * SL_PAGE_SLOTS <= h->n_slots && h->n_packed < h->n_pages);
    return_page(session, h->pages[h->n_packed], l->work.bytes);
    h->pages[h->n_packed++] = page;
    session->taken_bytes += l->packed.bytes;
}

bool sl_session_is_packed(const struct sl_session *session) {
    bool is_packed = true;
    for (int i = 0; i < session->geometry.n_layers * session->geometry.n_kv_heads; i++) {
        const struct sl_layer *l = &session->layers[i / session->geometry.n_kv_heads];
        const struct sl_head *h = &l->heads[i % session->geometry.n_kv_heads];
        is_packed &= !sl_kv_format_is_quantized(l->packed.format) || h->n_packed >= h->n_slots / SL_PAGE_SLOTS;
    }
    return is_packed;
}

void sl_session_drop_pages(struct sl_session *session, int layer, int head, uint32_t n_pages) {
    struct sl_layer *l = &session->layers[layer];
    struct sl_head *h = &l->heads[head];
    assert(l->offloaded && h->n_packed == 0 && (uint64_t)n_pages * SL_PAGE_SLOTS <= h->n_slots);
    for (uint32_t p = 0; p < n_pages; p++) {
        return_page(session, h->pages[p], l->work.bytes);
    }
    h->n_pages -= n_pages;
    h->n_slots -= n_pages * SL_PAGE_SLOTS;
    memmove(h->pages, h->pages + n_pages, h->n_pages * sizeof *h->pages);
    memset(h->pages + h->n_pages, 0, n_pages * sizeof *h->pages);
}

void sl_session_clear_unused(const struct sl_session *session, int layer) {
    const struct sl_layer *l = &session->layers[layer];
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        uint32_t n_full = l->heads[h].n_slots / SL_PAGE_SLOTS, n_last = l->heads[h].n_slots % SL_PAGE_SLOTS;
        if (n_last > 0) {
            sl_page_clear(&l->work, l->heads[h].pages[n_full], n_last);
        }
    }
}

// Returns the slots of a head that remain when the session's newest n_forgotten tokens are forgotten.
static int64_t slots_without(const struct sl_head *head, int64_t n_forgotten) {
    return (int64_t)head->n_slots > n_forgotten ? (int64_t)head->n_slots - n_forgotten : 0;
}

enum sl_status sl_session_truncate(struct sl_session *session, int64_t n_tokens, struct sl_error *err) {
    SL_FAIL_IF(n_tokens < 0 || n_tokens > session->n_tokens, err, SL_ERR_INVALID,
               "cannot truncate a session of %lld tokens to %lld", (long long)session->n_tokens, (long long)n_tokens);
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            const struct sl_head *head = &session->layers[l].heads[h];
            if (session->layers[l].offloaded) {
                continue;
            }
            SL_FAIL_IF((int64_t)head->n_slots != session->n_tokens, err, SL_ERR_PRECONDITION,
                       "layer %d head %d holds %u slots of %lld tokens: an evicted session cannot be truncated", l, h,
                       head->n_slots, (long long)session->n_tokens);
            SL_FAIL_IF(n_tokens % SL_PAGE_SLOTS != 0 &&
                           (n_tokens < (int64_t)head->n_packed * SL_PAGE_SLOTS ||
                            (session->base != NULL && in_span(session, head->pages[n_tokens / SL_PAGE_SLOTS]))),
                       err, SL_ERR_INVALID,
                       "%lld tokens would cut through a packed or shared page; use a multiple of %d",
                       (long long)n_tokens, SL_PAGE_SLOTS);
        }
    }
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            struct sl_head *head = &session->layers[l].heads[h];
            int64_t n_slots = slots_without(head, session->n_tokens - n_tokens);
            uint32_t n_full = (uint32_t)(n_slots / SL_PAGE_SLOTS);
            shrink(session, &session->layers[l], head, sl_pages_for(n_slots)); // before n_packed changes
            head->n_packed = head->n_packed < n_full ? head->n_packed : n_full;
            sl_session_set_slots(session, l, h, (uint32_t)n_slots);
        }
    }
    session->n_tokens = n_tokens;
    return SL_OK;
}

void sl_session_get_stats(const struct sl_session *session, struct sl_session_stats *stats_out) {
    struct sl_session_stats s = {.n_tokens = session->n_tokens, .n_slots_min = INT64_MAX};
    int64_t n_slots_sum = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        const struct sl_layer *layer = &session->layers[l];
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            const struct sl_head *head = &layer->heads[h];
            int64_t n_slots = head->n_slots;
            s.n_slots_min = n_slots < s.n_slots_min ? n_slots : s.n_slots_min;
            s.n_slots_max = n_slots > s.n_slots_max ? n_slots : s.n_slots_max;
            n_slots_sum += n_slots;
            sl_pages_count(&layer->packed, head->n_packed, s.bytes_by_format);
            sl_pages_count(&layer->work, head->n_pages - head->n_packed, s.bytes_by_format);
        }
    }
    for (int f = 0; f < SL_KV_N_FORMATS; f++) {
        s.resident_bytes += s.bytes_by_format[f];
    }
    s.n_slots_mean = (double)n_slots_sum / ((double)session->geometry.n_layers * session->geometry.n_kv_heads);
    *stats_out = s;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a segment: the pages of consecutive tokens as shipped, or int8 pages made of them, and a key index of every
 *          offloaded head's keys.
 *
 * Design: key indexes are made of the kept pages, so that a segment with int8 rows is searched like a session of one
 *         process whose pages were quantized. One loop over offloaded heads makes everything.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/offload/remote_kv/remote_kv_internal.h"

#define MAX_HEADS (SL_MAX_LAYERS * SL_MAX_HEADS)
#define MAX_SLOTS (1u << 30)

// The sizes that follow from a configuration. None overflows: page and index bytes per slot are below 2^13, slots below
// 2^30, offloaded heads at most 2^18.
struct shape {
    struct sl_page_layout packed; // of int8 rows
    struct sl_key_index_layout scan;
    uint32_t n_pages, n_packed;
    size_t shipped_bytes, kept_bytes; // of one offloaded head's pages
};

static enum sl_status measure(const struct sl_kv_segment_config *config, struct shape *shape_out,
                              struct sl_error *err) {
    const struct sl_page_layout *work = &config->work;
    struct sl_page_layout expected;
    struct shape s = {.n_pages = sl_pages_for(config->n_slots)};
    SL_FAIL_IF(config->begin < 0 || config->begin % SL_PAGE_SLOTS != 0 || config->n_slots < 1 ||
                   config->n_slots > MAX_SLOTS || config->first_offloaded_head < 0 || config->n_offloaded_heads < 1 ||
                   config->first_offloaded_head > MAX_HEADS - config->n_offloaded_heads,
               err, SL_ERR_INVALID,
               "segment of %u slots from token %lld on, offloaded heads %d and %d more: expected to begin at a "
               "multiple of "
               "%d and to have something in it",
               config->n_slots, (long long)config->begin, config->first_offloaded_head, config->n_offloaded_heads,
               SL_PAGE_SLOTS);
    SL_FAIL_IF(sl_page_layout_init(&expected, work->format, work->head_dim, 0, false) != SL_OK ||
                   sl_kv_format_is_quantized(work->format) || work->n_states != 0 || work->has_positions ||
                   work->bytes != expected.bytes || work->v != expected.v,
               err, SL_ERR_INVALID,
               "segment: pages come in a float format without positions and states, not as %s of %d channels",
               sl_kv_format_name(work->format), work->head_dim);
    bool is_packed = config->rows != work->format;
    SL_FAIL_IF((is_packed && (config->rows != SL_KV_INT8 ||
                              sl_page_layout_init(&s.packed, SL_KV_INT8, work->head_dim, 0, false) != SL_OK)) ||
                   (config->scan != work->format && config->scan != SL_KV_INT8 && config->scan != SL_KV_INT1) ||
                   sl_key_index_layout_init(&s.scan, config->scan, work->head_dim, config->n_slots) != SL_OK,
               err, SL_ERR_INVALID,
               "segment of %s pages of %d channels: rows as %s and key indexes as %s are not built; rows may be "
               "%s or int8, key indexes also int1",
               sl_kv_format_name(work->format), work->head_dim, sl_kv_format_name(config->rows),
               sl_kv_format_name(config->scan), sl_kv_format_name(work->format));
    s.n_packed = is_packed ? config->n_slots / SL_PAGE_SLOTS : 0;
    s.shipped_bytes = (size_t)s.n_pages * work->bytes;
    s.kept_bytes = (size_t)s.n_packed * s.packed.bytes + (size_t)(s.n_pages - s.n_packed) * work->bytes;
    *shape_out = s;
    return SL_OK;
}

static size_t arena_bytes(size_t bytes) {
    return (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
}

size_t sl_kv_segment_block_bytes(const struct sl_kv_segment_config *config) {
    struct shape s;
    return measure(config, &s, NULL) == SL_OK ? (size_t)config->n_offloaded_heads * s.shipped_bytes : 0;
}

size_t sl_kv_segment_kept_bytes(const struct sl_kv_segment_config *config) {
    struct shape s;
    return measure(config, &s, NULL) == SL_OK ? (size_t)config->n_offloaded_heads * s.kept_bytes : 0;
}

size_t sl_kv_segment_bytes(const struct sl_kv_segment_config *config) {
    struct shape s;
    if (measure(config, &s, NULL) != SL_OK) {
        return 0;
    }
    size_t n_offloaded_heads = (size_t)config->n_offloaded_heads;
    return arena_bytes(n_offloaded_heads * s.kept_bytes) + arena_bytes(n_offloaded_heads * s.scan.bytes);
}

// --- making --------------------------------------------------------------------------------------------------------

struct make_task {
    struct sl_kv_segment *segment;
    const struct sl_ops *ops;
    const char *shipped;  // the block to quantize from; NULL: pages are kept as shipped
    size_t shipped_bytes; // of one offloaded head
};

static void pack_offloaded_head(const struct make_task *task, int64_t offloaded_head) {
    const struct sl_kv_segment *s = task->segment;
    const struct sl_kv *kv = &s->kv[offloaded_head];
    const char *from = task->shipped + (size_t)offloaded_head * task->shipped_bytes;
    for (uint32_t p = 0; p < sl_pages_for(kv->n_slots); p++, from += kv->work->bytes) {
        if (p < kv->n_packed) {
            task->ops->host.quantize(kv->work, from, kv->packed, kv->pages[p]);
        } else {
            memcpy(kv->pages[p], from, kv->work->bytes);
        }
    }
}

static void make_offloaded_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct make_task *task = arg;
    struct sl_kv_segment *s = task->segment;
    (void)member;
    for (int64_t offloaded_head = begin; offloaded_head < end; offloaded_head++) {
        if (task->shipped != NULL) {
            pack_offloaded_head(task, offloaded_head);
        }
        task->ops->host.index_keys(&s->kv[offloaded_head], s->config.n_slots, &s->scan,
                                   s->indexes + (size_t)offloaded_head * s->scan.bytes);
    }
}

// Allocates a segment without pages: its tables, and memory for its key indexes.
static struct sl_kv_segment *begin_segment(const struct sl_kv_segment_config *config, const struct shape *shape,
                                           struct sl_arena *arena) {
    size_t n_offloaded_heads = (size_t)config->n_offloaded_heads;
    struct sl_kv_segment *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->config = *config;
    s->packed = shape->packed;
    s->scan = shape->scan;
    s->arena = arena;
    atomic_init(&s->n_refs, 1);
    s->kv = calloc(n_offloaded_heads, sizeof *s->kv);
    s->indexes = sl_arena_alloc(arena, n_offloaded_heads * shape->scan.bytes);
    if (s->kv == NULL || s->indexes == NULL) {
        sl_kv_segment_unref(&s);
    }
    return s;
}

// Fills the page table: every offloaded head's pages are adjacent in the segment's block.
static bool table_pages(struct sl_kv_segment *s, const struct shape *shape) {
    s->pages = calloc((size_t)s->config.n_offloaded_heads * shape->n_pages, sizeof *s->pages);
    if (s->pages == NULL) {
        return false;
    }
    for (int offloaded_head = 0; offloaded_head < s->config.n_offloaded_heads; offloaded_head++) {
        char *page = (char *)s->block + (size_t)offloaded_head * s->offloaded_head_bytes;
        void **pages = s->pages + (size_t)offloaded_head * shape->n_pages;
        for (uint32_t p = 0; p < shape->n_pages; p++) {
            pages[p] = page;
            page += p < shape->n_packed ? s->packed.bytes : s->config.work.bytes;
        }
        s->kv[offloaded_head] = (struct sl_kv){pages, shape->n_packed, s->config.n_slots, &s->config.work,
                                               shape->n_packed > 0 ? &s->packed : &s->config.work};
    }
    return true;
}

static enum sl_status no_memory(const struct sl_kv_segment_config *config, struct sl_error *err) {
    return sl_fail(err, SL_ERR_EXHAUSTED, "segment of %u tokens from %lld on: no memory for %zu bytes beside its pages",
                   config->n_slots, (long long)config->begin, sl_kv_segment_bytes(config));
}

// The tools that build a segment.
struct tools {
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_arena *arena;
};

// Builds a segment from a block: of pages as shipped, or of kept ones.
static enum sl_status build(const struct sl_kv_segment_config *config, const struct tools *tools, void *block,
                            bool is_kept, struct sl_kv_segment **segment_out, struct sl_error *err) {
    struct shape shape;
    SL_TRY(measure(config, &shape, err));
    struct sl_kv_segment *s = begin_segment(config, &shape, tools->arena);
    if (s == NULL) {
        return no_memory(config, err);
    }
    struct make_task task = {s, tools->ops, NULL, shape.shipped_bytes};
    s->block = block;
    s->offloaded_head_bytes = shape.kept_bytes;
    if (shape.n_packed > 0 && !is_kept) {
        task.shipped = block;
        s->block = sl_arena_alloc(tools->arena, (size_t)config->n_offloaded_heads * shape.kept_bytes);
    }
    if (s->block == NULL || !table_pages(s, &shape)) {
        if (s->block == block) {
            s->block = NULL; // the caller still owns it
        }
        sl_kv_segment_unref(&s);
        return no_memory(config, err);
    }
    sl_team_run(tools->team, config->n_offloaded_heads, 1, make_offloaded_heads, &task);
    if (task.shipped != NULL) {
        sl_arena_free(tools->arena, block);
    }
    *segment_out = s;
    return SL_OK;
}

enum sl_status sl_kv_segment_create(const struct sl_kv_segment_config *config, const struct sl_ops *ops,
                                    struct sl_team *team, struct sl_arena *arena, void *block,
                                    struct sl_kv_segment **segment_out, struct sl_error *err) {
    return build(config, &(struct tools){ops, team, arena}, block, false, segment_out, err);
}

enum sl_status sl_kv_segment_restore(const struct sl_kv_segment_config *config, const struct sl_ops *ops,
                                     struct sl_team *team, struct sl_arena *arena, void *block,
                                     struct sl_kv_segment **segment_out, struct sl_error *err) {
    return build(config, &(struct tools){ops, team, arena}, block, true, segment_out, err);
}

enum sl_status sl_kv_segment_borrow(const struct sl_kv_segment_config *config, const struct sl_ops *ops,
                                    struct sl_team *team, struct sl_arena *arena, const struct sl_kv *kv,
                                    struct sl_kv_segment **segment_out, struct sl_error *err) {
    struct shape shape;
    SL_TRY(measure(config, &shape, err));
    for (int offloaded_head = 0; offloaded_head < config->n_offloaded_heads; offloaded_head++) {
        SL_FAIL_IF(kv[offloaded_head].n_slots < config->n_slots ||
                       kv[offloaded_head].work->format != config->work.format ||
                       kv[offloaded_head].work->head_dim != config->work.head_dim,
                   err, SL_ERR_INVALID, "segment: offloaded head %d holds %u slots of %s, not %u of %s",
                   config->first_offloaded_head + offloaded_head, kv[offloaded_head].n_slots,
                   sl_kv_format_name(kv[offloaded_head].work->format), config->n_slots,
                   sl_kv_format_name(config->work.format));
    }
    struct sl_kv_segment *s = begin_segment(config, &shape, arena);
    if (s == NULL) {
        return no_memory(config, err);
    }
    for (int offloaded_head = 0; offloaded_head < config->n_offloaded_heads; offloaded_head++) {
        s->kv[offloaded_head] = kv[offloaded_head];
        s->kv[offloaded_head].n_slots = config->n_slots;
    }
    struct make_task task = {s, ops, NULL, 0};
    sl_team_run(team, config->n_offloaded_heads, 1, make_offloaded_heads, &task);
    *segment_out = s;
    return SL_OK;
}

// --- sharing -------------------------------------------------------------------------------------------------------

struct sl_kv_segment *sl_kv_segment_ref(struct sl_kv_segment *segment) {
    atomic_fetch_add_explicit(&segment->n_refs, 1, memory_order_relaxed);
    return segment;
}

void sl_kv_segment_unref(struct sl_kv_segment **segment) {
    struct sl_kv_segment *s = *segment;
    *segment = NULL;
    if (s == NULL || atomic_fetch_sub_explicit(&s->n_refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    sl_arena_free(s->arena, s->block);
    sl_arena_free(s->arena, s->indexes);
    free(s->pages);
    free(s->kv);
    free(s);
}

const struct sl_kv_segment_config *sl_kv_segment_get_config(const struct sl_kv_segment *segment) {
    return &segment->config;
}

int sl_kv_segment_n_refs(const struct sl_kv_segment *segment) {
    return atomic_load_explicit(&segment->n_refs, memory_order_acquire);
}

const void *sl_kv_segment_pages(const struct sl_kv_segment *segment, size_t *stride_out) {
    *stride_out = segment->offloaded_head_bytes;
    return segment->block;
}

const void *sl_kv_segment_key_indexes(const struct sl_kv_segment *segment, size_t *stride_out) {
    *stride_out = segment->scan.bytes;
    return segment->indexes;
}

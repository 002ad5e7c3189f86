// SPDX-License-Identifier: Apache-2.0
/*
 * Reads back what the stores have: pages of one offloaded layer at a time, and attention over them.
 *
 * Tiles are needed in one order: layer by layer, within a layer from the first to the last, and after the last layer
 * that attends the first tile of the first layer again, for the next step. So while one tile is computed on, the next one
 * is read into the other buffer. It is the right tile even if the next step holds less here, because stored pages never
 * change.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "engine/runtime/transfer.h"
#include "net/offload/prefill/offload_internal.h"

#define READ_MS 5000

// ---- pages of a layer ----------------------------------------------------------------------------------------------

struct span { // of the offloaded heads of a link, counted within the layer
    int first, n;
};

static struct span offloaded_heads_of(const struct sl_offload *offload, const struct sl_store_link *link, int layer) {
    int layer_first = sl_offloaded_heads_first(&offload->offloaded_heads, layer), share_first = link->share->first_lane;
    int first = share_first > layer_first ? share_first : layer_first;
    int end = share_first + link->share->n_lanes, layer_end = layer_first + offload->offloaded_heads.n_heads;
    end = end < layer_end ? end : layer_end;
    return (struct span){first - layer_first, end > first ? end - first : 0};
}

// Merges pages that are adjacent at both ends into one range.
static size_t list_ranges(struct sl_offload *offload, const struct sl_store_link *link, const struct sl_read_back *read,
                          struct span offloaded_heads) {
    size_t n = 0, page_bytes = offload->kept.bytes;
    int share_offloaded_head = sl_offloaded_heads_first(&offload->offloaded_heads, read->layer) +
                               offloaded_heads.first - link->share->first_lane;
    SL_LOCKED(&offload->mutex);
    for (int i = 0; i < offloaded_heads.n; i++) {
        size_t at = 0;
        for (uint32_t p = 0; p < read->n_pages; p++) {
            char *to = read->heads[offloaded_heads.first + i][p];
            uint64_t from = sl_remote_kv_map_page(&link->map, share_offloaded_head + i,
                                                  read->begin + (int64_t)p * SL_PAGE_SLOTS, &at);
            struct sl_fetch_range *last = n > 0 ? &offload->ranges[n - 1] : NULL;
            if (last && last->offset + last->bytes == from && (char *)last->to + last->bytes == to) {
                last->bytes += page_bytes;
            } else {
                offload->ranges[n++] = (struct sl_fetch_range){.offset = from, .to = to, .bytes = page_bytes};
            }
        }
    }
    return n;
}

// Opens fetches from the current replica. Leaves a failure in `read` for the caller that waits.
static void open_fetches(struct sl_offload *offload, struct sl_read_back *read) {
    read->status = SL_OK;
    read->err = (struct sl_error){0};
    for (int i = 0; read->status == SL_OK && i < offload->n_links; i++) {
        const struct sl_store_link *link = &offload->links[i];
        struct span offloaded_heads = offloaded_heads_of(offload, link, read->layer);
        if (link->share->replica != offload->replica || offloaded_heads.n == 0) {
            continue;
        }
        size_t n_ranges = list_ranges(offload, link, read, offloaded_heads);
        struct sl_error why = {0};
        read->from[read->n_fetches] = link;
        struct sl_fetch_plan fetch_plan = {.ticket = link->remote_kv->window.data,
                                           .ticket_bytes = link->remote_kv->window.len,
                                           .ranges = offload->ranges,
                                           .n_ranges = n_ranges,
                                           .deadline_ns = sl_deadline_in_ms(READ_MS)};
        read->status = sl_fetch_open(link->connection, &fetch_plan, &read->fetches[read->n_fetches], &why);
        if (read->status == SL_OK) {
            read->n_fetches++;
        } else {
            sl_store_link_fail(link, read->status, &why, &read->err);
        }
    }
}

static void close_fetches(struct sl_read_back *read) {
    while (read->n_fetches > 0) {
        sl_fetch_close(&read->fetches[--read->n_fetches]);
    }
}

// Ends the reads: then nothing writes to their pages any more.
static void end_read(struct sl_read_back *read) {
    close_fetches(read);
    read->layer = -1;
}

// Starts to read the pages of slots [begin, begin + 64 * n_pages) of a layer; read->heads is their destination.
static void begin_read(struct sl_offload *offload, struct sl_read_back *read, int layer, int64_t begin,
                       uint32_t n_pages) {
    end_read(read);
    read->layer = layer;
    read->begin = begin;
    read->n_pages = n_pages;
    open_fetches(offload, read);
}

static enum sl_status wait_fetches(struct sl_read_back *read, struct sl_error *err) {
    enum sl_status status = read->status;
    if (status != SL_OK) {
        *err = read->err;
    }
    for (int i = 0; status == SL_OK && i < read->n_fetches; i++) {
        struct sl_error why = {0};
        while ((status = sl_fetch_wait(read->fetches[i], sl_deadline_in_ms(READ_MS), &why)) == SL_AGAIN) {
        }
        if (status != SL_OK) {
            status = status == SL_ERR_DEADLINE ? SL_ERR_PEER_LOST : status;
            sl_store_link_fail(read->from[i], status, &why, err);
        }
    }
    close_fetches(read);
    return status;
}

static enum sl_status wait_read(struct sl_offload *offload, struct sl_read_back *read, struct sl_error *err) {
    if (read->n_fetches == 0 && read->status == SL_OK) {
        return SL_OK; // an earlier call has waited for it
    }
    int64_t begin_ns = sl_now_ns();
    struct sl_error why = {0};
    enum sl_status status = wait_fetches(read, &why);
    while (status != SL_OK && offload->replica + 1 < offload->n_replicas) {
        offload->replica++;
        sl_log_warn("offload", "job=%s reads from its other stores: %s", offload->job_id, why.text);
        open_fetches(offload, read);
        status = wait_fetches(read, &why);
    }
    offload->read_back_wait_ns += sl_now_ns() - begin_ns;
    SL_TRY_OR(status, *err = why);
    offload->read_back_bytes +=
        (int64_t)read->n_pages * offload->offloaded_heads.n_heads * (int64_t)offload->kept.bytes;
    return SL_OK;
}

// ---- tiles ---------------------------------------------------------------------------------------------------------

size_t sl_tile_bytes(const struct sl_offload *offload) {
    return (size_t)offload->offloaded_heads.n_heads * SL_TILE_PAGES * offload->kept.bytes;
}

size_t sl_offload_arena_bytes(const struct sl_offload *offload) {
    return offload->tiles[0].memory && offload->tiles[0].memory[0] ? 2 * sl_tile_bytes(offload) : 0;
}

enum sl_status sl_read_back_create(struct sl_offload *offload, struct sl_error *err) {
    size_t n_heads = (size_t)offload->offloaded_heads.n_heads, n_pages = n_heads * SL_TILE_PAGES;
    offload->kv = calloc(n_heads, sizeof *offload->kv);
    offload->ranges = calloc(n_pages, sizeof *offload->ranges);
    bool there = offload->kv && offload->ranges;
    for (int t = 0; t < 2; t++) {
        offload->tiles[t].read.layer = -1;
        offload->tiles[t].memory = calloc(n_heads, sizeof *offload->tiles[t].memory);
        offload->tiles[t].pages = calloc(n_pages, sizeof *offload->tiles[t].pages);
        offload->tiles[t].receive_buffer = calloc(n_pages, sizeof *offload->tiles[t].receive_buffer);
        there &= offload->tiles[t].memory && offload->tiles[t].pages && offload->tiles[t].receive_buffer;
    }
    return there ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "offload: out of memory");
}

static void free_softmax(struct sl_offload *offload) {
    struct sl_device *device = offload->node->runtime.device;
    sl_device_free(device, SL_MEMORY_DEVICE, offload->softmax.out);
    sl_device_free(device, SL_MEMORY_DEVICE, offload->softmax.max);
    sl_device_free(device, SL_MEMORY_DEVICE, offload->softmax.sum);
    sl_device_free(device, SL_MEMORY_SHARED, offload->unseen);
    offload->softmax = (struct sl_softmax){0};
    offload->unseen = NULL;
    offload->softmax_rows = 0;
}

void sl_read_back_destroy(struct sl_offload *offload) {
    for (int t = 0; t < 2; t++) {
        (void)sl_mark_wait(&offload->tiles[t].used, NULL); // a failed device reports it again later
    }
    for (int t = 0; t < 2; t++) {
        struct sl_tile *tile = &offload->tiles[t];
        end_read(&tile->read);
        for (int h = 0; tile->memory && h < offload->offloaded_heads.n_heads; h++) {
            sl_arena_free(offload->node->arena, tile->memory[h]);
        }
        free(tile->memory);
        free(tile->pages);
        free(tile->receive_buffer);
    }
    free(offload->kv);
    free(offload->ranges);
    free_softmax(offload);
}

// Sets the receive buffer of a tile: staging memory if the device has its own memory.
static void set_receive_buffer(struct sl_offload *offload, struct sl_tile *tile) {
    bool stages = sl_node_stages(offload->node);
    assert(!stages || tile->staged != NULL);
    for (int h = 0; h < offload->offloaded_heads.n_heads; h++) {
        tile->read.heads[h] = tile->receive_buffer + (size_t)h * SL_TILE_PAGES;
    }
    for (size_t page = 0; page < (size_t)offload->offloaded_heads.n_heads * SL_TILE_PAGES; page++) {
        tile->receive_buffer[page] = stages ? (char *)tile->staged + page * offload->kept.bytes : tile->pages[page];
    }
}

// Takes the buffers at the first tile that is read: one per head, as the arena may have no contiguous range for all.
static enum sl_status take_buffers(struct sl_offload *offload, struct sl_error *err) {
    struct sl_arena *arena = offload->node->arena;
    size_t bytes = SL_TILE_PAGES * (size_t)offload->kept.bytes;
    for (int t = 0; t < 2; t++) {
        struct sl_tile *tile = &offload->tiles[t];
        bool taken = tile->memory[offload->offloaded_heads.n_heads - 1] != NULL;
        for (int h = 0; h < offload->offloaded_heads.n_heads && !taken; h++) {
            SL_FAIL_IF(!tile->memory[h] && !(tile->memory[h] = sl_arena_alloc(arena, bytes)), err, SL_ERR_EXHAUSTED,
                       "no room in the arena for %zu bytes to read offloaded layers back", sl_tile_bytes(offload));
            for (size_t page = 0; page < SL_TILE_PAGES; page++) {
                tile->pages[(size_t)h * SL_TILE_PAGES + page] = (char *)tile->memory[h] + page * offload->kept.bytes;
            }
        }
        if (!taken) {
            set_receive_buffer(offload, tile);
        }
    }
    return SL_OK;
}

// Copies the arrived pages up, one copy per head on another stream; later computation waits for it.
static void move_up(struct sl_offload *offload, struct sl_tile *tile) {
    if (!sl_node_stages(offload->node) || tile->is_up) {
        return;
    }
    struct sl_stream *compute = offload->node->runtime.stream;
    struct sl_stream *in = sl_device_stream(compute->device, SL_STREAM_IN);
    struct sl_mark before = sl_stream_mark(compute); // another job may just have used the memory
    sl_stream_after(in, &before);
    size_t bytes = SL_TILE_PAGES * (size_t)offload->kept.bytes;
    for (int h = 0; h < offload->offloaded_heads.n_heads; h++) {
        sl_stream_copy(in, tile->memory[h], (char *)tile->staged + (size_t)h * bytes, bytes);
    }
    tile->used = sl_stream_mark(in);
    sl_stream_after(compute, &tile->used);
    tile->is_up = true;
}

// Reads the pages of one head through staging memory, with one copy for adjacent ones.
static enum sl_status read_staged(struct sl_offload *offload, const struct sl_session *session, int layer,
                                  uint32_t n_pages, struct sl_error *err) {
    struct sl_tile *tile = &offload->tiles[0];
    enum sl_status status = wait_read(offload, &tile->read, err);
    for (int h = 0; status == SL_OK && h < session->geometry.n_kv_heads; h++) {
        for (uint32_t p = 0; status == SL_OK && p < n_pages; p++) {
            status = sl_transfer_in(&offload->node->runtime, session->layers[layer].heads[h].pages[p],
                                    tile->read.heads[h][p], offload->kept.bytes, err);
        }
    }
    return status;
}

enum sl_status sl_read_back_session(struct sl_offload *offload, struct sl_session *session, int layer, uint32_t n_slots,
                                    struct sl_error *err) {
    struct sl_read_back *read = &offload->tiles[0].read;
    bool stages = sl_node_stages(offload->node);
    uint32_t n_pages = sl_pages_for(n_slots); // of less than a split
    if (stages) {
        set_receive_buffer(offload, &offload->tiles[0]);
    }
    for (int h = 0; !stages && h < session->geometry.n_kv_heads; h++) {
        read->heads[h] = session->layers[layer].heads[h].pages;
    }
    begin_read(offload, read, layer, offload->held, n_pages);
    enum sl_status status = stages ? read_staged(offload, session, layer, n_pages, err) : wait_read(offload, read, err);
    end_read(read);
    return status;
}

// Grows the one set for all layers and steps; a step may have more rows than those before it.
static enum sl_status grow_softmax(struct sl_offload *offload, const struct sl_attend *attend, struct sl_error *err) {
    struct sl_softmax *softmax = &offload->softmax;
    struct sl_stream *stream = offload->node->runtime.stream;
    size_t n = (size_t)attend->m * (size_t)attend->n_heads;
    if (n > offload->softmax_rows) {
        SL_TRY(sl_stream_wait(stream, err));
        free_softmax(offload);
        softmax->out = sl_device_alloc(stream->device, SL_MEMORY_DEVICE, n * (size_t)attend->head_dim * sizeof(float));
        softmax->max = sl_device_alloc(stream->device, SL_MEMORY_DEVICE, n * sizeof(float));
        softmax->sum = sl_device_alloc(stream->device, SL_MEMORY_DEVICE, n * sizeof(float));
        offload->unseen = sl_device_alloc(stream->device, SL_MEMORY_SHARED, n * sizeof(float));
        SL_FAIL_OR(!softmax->out || !softmax->max || !softmax->sum || !offload->unseen, free_softmax(offload), err,
                   SL_ERR_EXHAUSTED, "offload: out of memory");
        offload->softmax_rows = n;
        for (size_t i = 0; i < n; i++) {
            offload->unseen[i] = -INFINITY;
        }
    }
    sl_stream_copy(stream, softmax->max, offload->unseen, n * sizeof(float));
    return SL_OK;
}

// Returns the buffer that has the tile, or into which it is being read; else NULL.
static struct sl_tile *find(struct sl_offload *offload, int layer, int64_t begin) {
    for (int t = 0; t < 2; t++) {
        struct sl_tile *tile = &offload->tiles[t];
        if (tile->read.layer == layer && tile->read.begin == begin) {
            return tile;
        }
    }
    return NULL;
}

// Requests a tile, into the buffer that is not `in_use`, once no attention reads its old content.
static enum sl_status ask_for(struct sl_offload *offload, int layer, int64_t begin, const struct sl_tile *in_use,
                              struct sl_tile **tile_out, struct sl_error *err) {
    enum sl_status status = SL_OK;
    struct sl_tile *tile = find(offload, layer, begin);
    if (!tile) {
        tile = &offload->tiles[in_use == &offload->tiles[0]];
        status = sl_mark_wait(&tile->used, err);
        if (status == SL_OK) {
            tile->is_up = false;
            begin_read(offload, &tile->read, layer, begin, SL_TILE_PAGES);
        }
    }
    *tile_out = tile;
    return status;
}

// Nothing follows the attention of the model's last layer, because prompts are read without logits.
static bool is_unused(const struct sl_offload *offload, int layer) {
    return layer + 1 == offload->plan->geometry.n_layers;
}

// Returns how many offloaded layers attend.
static int n_attending(const struct sl_offload *offload) {
    int n = offload->offloaded_heads.n_layers;
    return is_unused(offload, offload->offloaded_heads.layers[n - 1]) ? n - 1 : n;
}

// Requests the tile after this one, while this one is computed on. `last`: no step follows this one.
static enum sl_status ask_for_next(struct sl_offload *offload, const struct sl_tile *tile, bool last,
                                   struct sl_error *err) {
    int layer = tile->read.layer, index = offload->offloaded_heads.index_of[layer];
    int64_t begin = tile->read.begin + SL_ATTEND_SPLIT;
    if (begin >= offload->held) {
        begin = 0;
        index = (index + 1) % n_attending(offload);
        layer = offload->offloaded_heads.layers[index];
        if (index == 0 && last) {
            return SL_OK;
        }
    }
    struct sl_tile *next;
    return ask_for(offload, layer, begin, tile, &next, err);
}

enum sl_status sl_offload_attend(struct sl_offload *offload, int layer, const struct sl_attend *attend,
                                 struct sl_error *err) {
    const struct sl_ops *ops = offload->node->runtime.ops;
    struct sl_stream *stream = offload->node->runtime.stream;
    bool packs = sl_kv_format_is_quantized(offload->kept.format);
    struct sl_attend args = *attend;
    if (is_unused(offload, layer)) {
        return SL_OK;
    }
    if (offload->held > 0) {
        enum sl_status status = take_buffers(offload, err);
        SL_THEN(status, grow_softmax(offload, attend, err));
        struct sl_tile *tile = NULL;
        for (int64_t begin = 0; status == SL_OK && begin < offload->held; begin += SL_ATTEND_SPLIT) {
            status = ask_for(offload, layer, begin, tile, &tile, err);
            SL_THEN(status, wait_read(offload, &tile->read, err));
            bool last = offload->n_tokens + attend->m >= offload->plan->n_prompt;
            SL_THEN(status, ask_for_next(offload, tile, last, err));
            if (status != SL_OK) {
                break;
            }
            move_up(offload, tile);
            for (int h = 0; h < attend->heads.n; h++) {
                offload->kv[h] = (struct sl_kv){.pages = tile->pages + (size_t)h * SL_TILE_PAGES,
                                                .n_packed = packs ? SL_TILE_PAGES : 0,
                                                .n_slots = SL_ATTEND_SPLIT,
                                                .work = &offload->work,
                                                .packed = &offload->kept};
            }
            args.heads = (struct sl_kv_heads){.kv = offload->kv, .n = attend->heads.n};
            status = ops->publish(stream, &args.heads, err);
            if (status == SL_OK) {
                ops->attend_before(stream, &args, &offload->softmax);
                tile->used = sl_stream_mark(stream);
            }
        }
        SL_TRY(status);
        args.heads = attend->heads;
        args.before = &offload->softmax;
    }
    ops->attend(stream, &args, 1);
    return SL_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "kvstore/remote_kv/document_layers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"

#define TURN_MS  10000 // to wait for another read of the disk
#define AGAIN_MS 20    // between looks of a prompt that waits

#define MAX_EXPECTED_MS (INT64_C(24) * 3600 * 1000)

// A document that was not restored.
struct pause {
    struct sl_document_remote_kv document;
    int64_t again_ns;
};

struct sl_document_layers {
    struct sl_document_layers_config config;
    struct sl_loop loop;
    // Under the loop's mutex:
    bool is_asked;   // the disk has something that memory does not have
    bool is_awaited; // a prompt waits for `awaited`: it comes next
    struct sl_document_remote_kv awaited;
    int64_t restored_bytes, restored_ns; // of pages, since the start
    struct pause *pauses;                // [n_pauses]
    size_t n_pauses;
};

// ---- pauses (lock held) ---------------------------------------------------------------------------------------------

static struct pause *find_pause(struct sl_document_layers *layers, const struct sl_document_remote_kv *document) {
    for (size_t i = 0; i < layers->n_pauses; i++) {
        if (memcmp(&layers->pauses[i].document, document, sizeof *document) == 0) {
            return &layers->pauses[i];
        }
    }
    return NULL;
}

static bool is_paused(struct sl_document_layers *layers, const struct sl_document_remote_kv *document) {
    SL_LOCKED(&layers->loop.mutex);
    const struct pause *pause = find_pause(layers, document);
    return pause && pause->again_ns > sl_now_ns();
}

// Drops pauses that are over, so that those of removed documents do not stay. Without memory for a pause there is none.
static void pause_document(struct sl_document_layers *layers, const struct sl_document_remote_kv *document) {
    SL_LOCKED(&layers->loop.mutex);
    size_t n = 0;
    for (size_t i = 0; i < layers->n_pauses; i++) {
        if (layers->pauses[i].again_ns > sl_now_ns()) {
            layers->pauses[n++] = layers->pauses[i];
        }
    }
    layers->n_pauses = n;
    struct pause *grown = realloc(layers->pauses, (n + 1) * sizeof *grown);
    if (grown) {
        layers->pauses = grown;
        grown[layers->n_pauses++] = (struct pause){*document, sl_deadline_in_ms(layers->config.pause_ms)};
    }
}

// ---- on disk --------------------------------------------------------------------------------------------------------

// Returns the bytes of a document's segments on disk from `first` on, if all segments are there.
static int64_t on_disk(struct sl_document_layers *layers, const struct sl_pinned_document *pinned, uint32_t first) {
    int64_t bytes = 0, end = 0;
    struct sl_disk_entry entry;
    for (uint32_t i = 0; i < SL_MAX_DOCUMENT_SEGMENTS && end < pinned->document.n_tokens; i++) {
        const struct sl_capsule_id key = sl_document_segment_id(&pinned->segments, i);
        if (!sl_disk_get(layers->config.disk, &key, &entry) || entry.head.n_tokens <= end) {
            return 0;
        }
        end = entry.head.n_tokens;
        bytes += i >= first ? (int64_t)entry.head.body_bytes : 0;
    }
    return end == pinned->document.n_tokens ? bytes : 0;
}

// Offers the pinned segments that the disk does not have, and removes those of an earlier reading that was cut elsewhere.
// Returns the bytes on disk, if they are all there.
static int64_t keep_on_disk(struct sl_document_layers *layers, const struct sl_pinned_document *pinned, bool is_due) {
    int64_t bytes = 0;
    bool is_whole = true;
    for (uint32_t i = 0; i < pinned->n_segments; i++) {
        const struct sl_capsule_id key = sl_document_segment_id(&pinned->segments, i);
        struct sl_stored *stored = sl_remote_kv_pins_hold(layers->config.pins, &key);
        if (!stored) {
            return 0; // removed meanwhile
        }
        struct sl_disk_entry entry;
        bool is_there = sl_disk_get(layers->config.disk, &key, &entry);
        bool is_same =
            is_there && entry.head.n_tokens == stored->n_tokens && entry.head.body_bytes == stored->capsule.body_bytes;
        bytes += (int64_t)stored->capsule.body_bytes;
        is_whole = is_whole && is_same;
        sl_capsule_cache_release(layers->config.room->capsule_cache, stored);
        if (is_there && !is_same) {
            sl_disk_forget(layers->config.disk, &key);
        }
        if (!is_same && is_due) {
            sl_disk_offer(layers->config.disk, &key);
        }
    }
    return is_whole ? bytes : 0;
}

void sl_document_layers_look(struct sl_document_layers *layers, const struct sl_document_remote_kv *document,
                             struct sl_document_layers_copies *copies_out) {
    struct sl_disk *disk = layers->config.disk;
    struct sl_pinned_document pinned;
    *copies_out = (struct sl_document_layers_copies){.disk = disk ? SL_DISK_FAILED : SL_DISK_NONE};
    if (!sl_remote_kv_pins_get(layers->config.pins, document, &pinned)) {
        return;
    }
    copies_out->memory_bytes = sl_remote_kv_pins_bytes(layers->config.pins, document);
    if (!disk || !sl_disk_answers(disk)) {
        return;
    }
    bool has_no_room = false;
    if (pinned.is_complete) {
        bool is_due = sl_remote_kv_pins_try_disk(layers->config.pins, document, SL_DISK_AGAIN_MS, &has_no_room);
        copies_out->disk_bytes = keep_on_disk(layers, &pinned, is_due);
    } else if (!pinned.is_refused) {
        copies_out->disk_bytes = on_disk(layers, &pinned, 0);
    }
    copies_out->disk = copies_out->disk_bytes > 0 ? SL_DISK_WRITTEN : has_no_room ? SL_DISK_NO_ROOM : SL_DISK_WAITING;
    if (!pinned.is_complete && copies_out->disk_bytes > 0 && !is_paused(layers, document)) {
        SL_LOCKED(&layers->loop.mutex);
        layers->is_asked = true;
        pthread_cond_broadcast(&layers->loop.changed);
    }
}

struct sl_stored *sl_document_layers_hold(struct sl_document_layers *layers, const struct sl_capsule_id *key) {
    return sl_remote_kv_pins_hold(layers->config.pins, key);
}

bool sl_document_layers_have(struct sl_document_layers *layers, const struct sl_capsule_id *key) {
    struct sl_stored *stored = layers ? sl_document_layers_hold(layers, key) : NULL;
    if (stored) {
        sl_capsule_cache_release(layers->config.room->capsule_cache, stored);
    }
    return stored != NULL;
}

// ---- arriving -------------------------------------------------------------------------------------------------------

// Builds a segment; on success it owns the body.
static enum sl_status build(struct sl_document_layers *layers, const struct sl_kv_segment_config *config, void *body,
                            struct sl_kv_segment **segment_out, struct sl_error *err) {
    struct sl_room *room = layers->config.room;
    enum sl_status status;
    while ((status = sl_kv_segment_restore(config, layers->config.ops, layers->config.team, room->arena, body,
                                           segment_out, err)) == SL_ERR_EXHAUSTED &&
           sl_room_evict_one(room)) {
    }
    return status;
}

enum sl_status sl_document_layers_put(struct sl_document_layers *layers, const struct sl_capsule_id *key,
                                      struct sl_capsule_bytes *segment, struct sl_error *err) {
    struct sl_kv_segment_head head;
    struct sl_kv_segment_config config;
    struct sl_kv_segment *built = NULL;
    uint32_t index;
    const struct sl_capsule_id segments = sl_document_segments_of(key, &index);
    SL_TRY(sl_kv_segment_head_read(segment->header, segment->header_bytes, &head, &config, err));
    SL_FAIL_IF(head.index != index || head.body_bytes != segment->body_bytes, err, SL_ERR_INVALID,
               "segment: it is not the one that was announced");
    SL_TRY(sl_remote_kv_pins_check(layers->config.pins, &segments, &head, err));
    SL_TRY(build(layers, &config, segment->body, &built, err));
    free(segment->header);
    *segment = (struct sl_capsule_bytes){.body = NULL};
    enum sl_status status =
        sl_kv_segments_put(layers->config.room->segments, &head.family, head.prefix_hash, &built, err);
    SL_THEN(status, sl_remote_kv_pins_add(layers->config.pins, &segments, &head, built, err));
    sl_kv_segment_unref(&built);
    return status;
}

// ---- restoring ------------------------------------------------------------------------------------------------------

static enum sl_status restore_one(struct sl_document_layers *layers, const struct sl_pinned_document *pinned,
                                  struct sl_error *err) {
    const struct sl_capsule_id key = sl_document_segment_id(&pinned->segments, pinned->n_segments);
    struct sl_capsule_bytes segment;
    int64_t begin_ns = sl_now_ns();
    SL_TRY(sl_disk_read(layers->config.disk, &key, sl_deadline_in_ms(TURN_MS), &segment, err));
    const int64_t bytes = (int64_t)segment.body_bytes;
    enum sl_status status = sl_document_layers_put(layers, &key, &segment, err);
    if (status == SL_OK) {
        SL_LOCKED(&layers->loop.mutex);
        layers->restored_bytes += bytes;
        layers->restored_ns += sl_now_ns() - begin_ns;
    } else {
        sl_capsule_bytes_free(&segment, layers->config.room->arena);
    }
    if (status == SL_ERR_INVALID || status == SL_ERR_UNSUPPORTED) { // it would be so again; the text is read again
        sl_disk_forget(layers->config.disk, &key);
    }
    return status;
}

// Returns whether the thread has to leave this document: the store ends, or a prompt waits for another one.
static bool is_interrupted(struct sl_document_layers *layers, const struct sl_document_remote_kv *document) {
    SL_LOCKED(&layers->loop.mutex);
    return layers->loop.stopping || (layers->is_awaited && memcmp(&layers->awaited, document, sizeof *document) != 0);
}

static bool is_silent(struct sl_document_layers *layers) {
    struct sl_disk_stats stats;
    sl_disk_get_stats(layers->config.disk, &stats);
    return stats.is_silent;
}

// Restores a document that the disk has whole, unless it is interrupted or the disk is busy; false: it was not possible now.
static bool restore(struct sl_document_layers *layers, struct sl_pinned_document *pinned) {
    const struct sl_document_remote_kv document = pinned->document;
    int64_t begin_ns = sl_now_ns();
    struct sl_error err = {0};
    enum sl_status status = SL_OK;
    bool is_named = true;
    while (status == SL_OK && is_named && !pinned->is_complete && !is_interrupted(layers, &document)) {
        status = restore_one(layers, pinned, &err);
        if (status == SL_ERR_EXISTS ||
            status == SL_ERR_PRECONDITION) { // a job has read it meanwhile; or all was dropped
            status = SL_OK;
        }
        is_named = sl_remote_kv_pins_get(layers->config.pins, &document, pinned);
    }
    if (status == SL_ERR_DEADLINE && !is_silent(layers)) { // others read the disk: a prompt that waits asks again
        return true;
    }
    if (status != SL_OK) {
        sl_log_warn("remote_kv", "%u segments of a document's offloaded layers are back from the disk, not more: %s",
                    pinned->n_segments, err.text);
    } else if (is_named && pinned->is_complete) {
        sl_log_debug("remote_kv", "%u segments of a document are back after %.1f ms", pinned->n_segments,
                     (double)(sl_now_ns() - begin_ns) / SL_NS_PER_MS);
    }
    return status == SL_OK;
}

static void restore_if_due(struct sl_document_layers *layers, struct sl_pinned_document *pinned) {
    const struct sl_document_remote_kv document = pinned->document;
    if (!pinned->is_complete && !is_paused(layers, &document) && on_disk(layers, pinned, 0) > 0 &&
        !restore(layers, pinned)) {
        pause_document(layers, &document);
    }
}

// Takes the document for which a prompt waits.
static bool take_awaited(struct sl_document_layers *layers, struct sl_document_remote_kv *document_out) {
    SL_LOCKED(&layers->loop.mutex);
    bool is_awaited = layers->is_awaited;
    *document_out = layers->awaited;
    layers->is_awaited = false;
    return is_awaited;
}

static void restore_all(struct sl_document_layers *layers) {
    struct sl_document_remote_kv awaited;
    struct sl_pinned_document pinned;
    for (size_t i = 0;;) {
        if (take_awaited(layers, &awaited)) {
            if (sl_remote_kv_pins_get(layers->config.pins, &awaited, &pinned)) {
                restore_if_due(layers, &pinned);
            }
        } else if (sl_remote_kv_pins_at(layers->config.pins, i++, &pinned)) {
            restore_if_due(layers, &pinned);
        } else {
            return;
        }
    }
}

static void *layers_main(void *arg) {
    struct sl_document_layers *layers = arg;
    pthread_mutex_lock(&layers->loop.mutex);
    while (!layers->loop.stopping) {
        if (!layers->is_asked) {
            sl_loop_wait(&layers->loop, SL_NO_DEADLINE);
            continue;
        }
        layers->is_asked = false;
        pthread_mutex_unlock(&layers->loop.mutex);
        restore_all(layers);
        pthread_mutex_lock(&layers->loop.mutex);
    }
    pthread_mutex_unlock(&layers->loop.mutex);
    return NULL;
}

// Finds a document that is to be restored and with which the prompt begins.
static bool find_coming(struct sl_document_layers *layers, const struct sl_kv_family *family,
                        const struct sl_prompt_hashes *prompt, struct sl_pinned_document *pinned_out) {
    struct sl_pinned_document pinned;
    for (size_t i = 0; sl_remote_kv_pins_at(layers->config.pins, i, &pinned); i++) {
        const struct sl_document_remote_kv *document = &pinned.document;
        struct sl_disk_entry entry;
        const struct sl_capsule_id first = sl_document_segment_id(&pinned.segments, 0);
        if (pinned.is_complete || pinned.is_refused || document->n_offloaded_heads != family->n_offloaded_heads ||
            document->scan != family->scan || document->n_tokens > prompt->n_tokens || is_paused(layers, document) ||
            !sl_disk_get(layers->config.disk, &first, &entry) || entry.head.n_tokens % SL_PAGE_SLOTS != 0 ||
            entry.head.n_tokens > document->n_tokens) { // no file is trusted to be a segment of the document
            continue;
        }
        const struct sl_hash128 hash =
            sl_prompt_hash_at(prompt, entry.head.n_tokens); // remote_kv_pins.c has named it so
        if (sl_disk_begins_with(layers->config.disk, &first, &hash) && on_disk(layers, &pinned, 0) > 0) {
            *pinned_out = pinned;
            return true;
        }
    }
    return false;
}

// Asks the thread for what the prompt waits for. Returns in how many milliseconds it is expected; 0: there is nothing to wait for.
static int64_t ask_for(struct sl_document_layers *layers, const struct sl_kv_family *family,
                       const struct sl_prompt_hashes *prompt) {
    struct sl_pinned_document pinned;
    bool is_named = sl_protected_is_known(layers->config.protected),
         is_coming = is_named && find_coming(layers, family, prompt, &pinned);
    if (is_named && !is_coming) {
        return 0;
    }
    int64_t left_bytes = is_coming ? on_disk(layers, &pinned, pinned.n_segments) : 0;
    SL_LOCKED(&layers->loop.mutex);
    layers->is_asked = true;
    if (is_coming) {
        layers->is_awaited = true;
        layers->awaited = pinned.document;
    }
    pthread_cond_broadcast(&layers->loop.changed);
    double bytes = (double)layers->restored_bytes,
           ms = bytes > 0 ? (double)left_bytes / bytes * (double)layers->restored_ns / SL_NS_PER_MS : 0;
    return ms < 1 ? 1 : ms < MAX_EXPECTED_MS ? (int64_t)ms : MAX_EXPECTED_MS;
}

int64_t sl_document_layers_await(struct sl_document_layers *layers, const struct sl_kv_family *family,
                                 const struct sl_prompt_hashes *prompt, int64_t deadline_ns) {
    int64_t expected_ms = 0;
    bool is_stopping = false;
    while (layers->config.disk && !is_stopping && (expected_ms = ask_for(layers, family, prompt)) > 0 &&
           sl_now_ns() < deadline_ns) {
        SL_LOCKED(&layers->loop.mutex);
        int64_t again_ns = sl_deadline_in_ms(AGAIN_MS);
        // Sleeps on when other prompts' broadcasts wake it.
        sl_loop_sleep(&layers->loop, again_ns < deadline_ns ? again_ns : deadline_ns);
        is_stopping = layers->loop.stopping;
    }
    return is_stopping ? 0 : expected_ms;
}

// ---- life -----------------------------------------------------------------------------------------------------------

bool sl_document_layers_forget(struct sl_document_layers *layers, const struct sl_document_remote_kv *document) {
    const struct sl_capsule_id segments =
        sl_document_segments_id(&document->capsule, document->n_offloaded_heads, document->scan);
    bool was_there = sl_remote_kv_pins_bytes(layers->config.pins, document) > 0;
    sl_remote_kv_pins_drop(layers->config.pins, document);
    // A segment has a page at least. One may be missing before others: it was damaged, or the disk had no room for it. The
    // disk's thread forgets one that it writes now: it is not pinned any more.
    const int64_t most = layers->config.disk ? SL_MAX_DOCUMENT_SEGMENTS : 0;
    for (int64_t i = 0; i < most && i * SL_PAGE_SLOTS < document->n_tokens; i++) {
        const struct sl_capsule_id key = sl_document_segment_id(&segments, (uint32_t)i);
        if (sl_disk_holds(layers->config.disk, &key) > 0) {
            was_there = true;
            sl_disk_forget(layers->config.disk, &key);
        }
    }
    return was_there;
}

enum sl_status sl_document_layers_create(const struct sl_document_layers_config *config,
                                         struct sl_document_layers **layers_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_document_layers, layers, err, "layers of documents: out of memory");
    layers->config = *config;
    sl_loop_init(&layers->loop);
    SL_TRY_OR(sl_loop_start(&layers->loop, "layers", layers_main, layers, err), sl_document_layers_destroy(&layers));
    *layers_out = layers;
    return SL_OK;
}

void sl_document_layers_destroy(struct sl_document_layers **layers_inout) {
    SL_TAKE_OR_RETURN(layers, layers_inout);
    sl_loop_stop(&layers->loop);
    sl_loop_cleanup(&layers->loop);
    free(layers->pauses);
    free(layers);
}

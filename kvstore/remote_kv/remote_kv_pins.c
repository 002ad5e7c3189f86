// SPDX-License-Identifier: Apache-2.0
#include "kvstore/remote_kv/remote_kv_pins.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"

#define LEAST_BYTES_MS 16 // how fast a partial remote KV has to arrive, after partial_ms

// The pinned segments of a document, from token 0 on without a gap.
struct pin {
    struct sl_document_remote_kv document;
    struct sl_capsule_id key; // of its segments
    struct sl_kv_family family;
    struct sl_kv_segment **segments; // [n_segments], a reference each; grows by one allocation a segment
    struct sl_hash128 *hashes;       // [n_segments], of all tokens up to the segment's end
    size_t n_segments, bytes;
    int64_t end;                // tokens
    size_t arriving_bytes;      // of the next segment, while a sender's pieces arrive
    int64_t began_ns, moved_ns; // when it got its first segment, and its last bytes
    bool is_refused;            // it did not fit, and the log has said so
    bool disk_has_no_room;
    int64_t disk_again_ns; // when to offer it to the disk again
};

struct sl_remote_kv_pins {
    struct sl_kv_segments *segments;
    size_t max_bytes;
    int64_t partial_ms;
    pthread_mutex_t mutex;
    // Under the mutex:
    struct pin *list; // [n_list], sorted by document
    size_t n_list, bytes, capsule_bytes;
};

enum sl_status sl_remote_kv_pins_create(struct sl_kv_segments *segments, size_t max_bytes, int64_t partial_ms,
                                        struct sl_remote_kv_pins **pins_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_remote_kv_pins, pins, err, "remote KVs of documents: out of memory");
    pins->segments = segments;
    pins->max_bytes = max_bytes;
    pins->partial_ms = partial_ms;
    pthread_mutex_init(&pins->mutex, NULL);
    *pins_out = pins;
    return SL_OK;
}

// Without the lock: frees memory of the arena.
static void drop(struct sl_remote_kv_pins *pins, struct pin *pin) {
    if (pin->segments) {
        sl_kv_segments_drop(pins->segments, pin->segments, pin->n_segments);
    }
    for (size_t i = 0; i < pin->n_segments; i++) {
        sl_kv_segment_unref(&pin->segments[i]);
    }
    free(pin->segments);
    free(pin->hashes);
}

static void drop_list(struct sl_remote_kv_pins *pins, struct pin *list, size_t n_list) {
    for (size_t i = 0; i < n_list; i++) {
        drop(pins, &list[i]);
    }
    free(list);
}

void sl_remote_kv_pins_destroy(struct sl_remote_kv_pins **pins_inout) {
    SL_TAKE_OR_RETURN(pins, pins_inout);
    drop_list(pins, pins->list, pins->n_list);
    pthread_mutex_destroy(&pins->mutex);
    free(pins);
}

static int by_document(const void *a, const void *b) {
    const struct pin *one = a, *other = b;
    return memcmp(&one->document, &other->document, sizeof one->document);
}

// Sorts the list, and removes documents with the remote KV of another; returns how many are left.
static size_t sort(struct pin *list, size_t n_list) {
    size_t n = 0;
    qsort(list, n_list, sizeof *list, by_document);
    for (size_t i = 0; i < n_list; i++) {
        if (n == 0 || by_document(&list[n - 1], &list[i]) != 0) {
            list[n++] = list[i];
        }
    }
    return n;
}

// Call with the lock held, like the following.
static struct pin *find(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document) {
    const struct pin wanted = {.document = *document};
    return pins->n_list > 0 ? bsearch(&wanted, pins->list, pins->n_list, sizeof wanted, by_document) : NULL;
}

static struct pin *find_key(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *key) {
    size_t i = 0;
    while (i < pins->n_list && memcmp(&pins->list[i].key, key, sizeof *key) != 0) {
        i++;
    }
    return i < pins->n_list ? &pins->list[i] : NULL;
}

static bool is_complete(const struct pin *pin) {
    return pin->n_segments > 0 && pin->end == pin->document.n_tokens;
}

// Takes what is pinned out of the pin.
static struct pin take(struct sl_remote_kv_pins *pins, struct pin *pin) {
    struct pin taken = *pin;
    pins->bytes -= pin->bytes;
    *pin = (struct pin){.document = pin->document,
                        .key = pin->key,
                        .is_refused = pin->is_refused,
                        .disk_has_no_room = pin->disk_has_no_room,
                        .disk_again_ns = pin->disk_again_ns};
    return taken;
}

// Returns whether the pin is partial, and nothing more of it comes, or it comes too slowly.
static bool is_abandoned(const struct sl_remote_kv_pins *pins, const struct pin *pin, int64_t now_ns) {
    int64_t most_ms = pins->partial_ms + (int64_t)((pin->bytes + pin->arriving_bytes) / LEAST_BYTES_MS);
    return pin->n_segments > 0 && !is_complete(pin) &&
           (now_ns - pin->moved_ns > pins->partial_ms * SL_NS_PER_MS ||
            now_ns - pin->began_ns > most_ms * SL_NS_PER_MS);
}

// Moves what is pinned for the document to *pin_inout, unless it is abandoned.
static void take_over(struct sl_remote_kv_pins *pins, struct pin *pin_inout, int64_t now_ns) {
    struct pin *there = find(pins, &pin_inout->document);
    if (there && !is_abandoned(pins, there, now_ns)) {
        *pin_inout = take(pins, there);
    }
}

void sl_remote_kv_pins_note_arriving(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segment,
                                     size_t n_bytes, int64_t now_ns) {
    uint32_t index;
    const struct sl_capsule_id key = sl_document_segments_of(segment, &index);
    SL_LOCKED(&pins->mutex);
    struct pin *pin = find_key(pins, &key);
    if (pin && index == pin->n_segments) { // bytes that are sent again give no more time on the whole
        pin->arriving_bytes = n_bytes > pin->arriving_bytes ? n_bytes : pin->arriving_bytes;
        pin->moved_ns = now_ns;
    }
}

enum sl_status sl_remote_kv_pins_set(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *documents,
                                     size_t n_documents, size_t capsule_bytes, int64_t now_ns, struct sl_error *err) {
    struct pin *list = calloc(n_documents + 1, sizeof *list);
    SL_FAIL_IF(!list, err, SL_ERR_EXHAUSTED, "remote KVs of documents: out of memory");
    for (size_t i = 0; i < n_documents; i++) {
        const struct sl_document_remote_kv *document = &documents[i];
        list[i].document = *document;
        list[i].key = sl_document_segments_id(&document->capsule, document->n_offloaded_heads, document->scan);
    }
    n_documents = sort(list, n_documents);
    pthread_mutex_lock(&pins->mutex);
    struct pin *before = pins->list;
    size_t n_before = pins->n_list, bytes = 0;
    pins->capsule_bytes = capsule_bytes;
    for (size_t i = 0; i < n_documents; i++) {
        take_over(pins, &list[i], now_ns);
        bytes += list[i].bytes;
    }
    pins->bytes = bytes;
    pins->list = list;
    pins->n_list = n_documents;
    pthread_mutex_unlock(&pins->mutex);
    drop_list(pins, before, n_before);
    return SL_OK;
}

void sl_remote_kv_pins_drop(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document) {
    struct pin taken = {.n_segments = 0};
    pthread_mutex_lock(&pins->mutex);
    struct pin *pin = find(pins, document);
    if (pin) {
        taken = take(pins, pin);
    }
    pthread_mutex_unlock(&pins->mutex);
    drop(pins, &taken);
}

// ---- adding (lock held) ---------------------------------------------------------------------------------------------

// Fails if this many bytes more exceed the bound; the log says so once.
static enum sl_status check_bytes(struct sl_remote_kv_pins *pins, struct pin *pin, size_t bytes, struct sl_error *err) {
    size_t taken = pins->bytes + pins->capsule_bytes;
    bool fits = taken <= pins->max_bytes && bytes <= pins->max_bytes - taken;
    if (!fits && !pin->is_refused) {
        sl_log_warn("remote_kv", "%zu bytes of a document's offloaded layers are not kept: %zu of %zu bytes are taken",
                    bytes, taken, pins->max_bytes);
    }
    pin->is_refused = !fits;
    return fits
               ? SL_OK
               : sl_fail(err, SL_ERR_EXHAUSTED, "%zu bytes of offloaded layers: %zu of the %zu for documents are taken",
                         bytes, taken, pins->max_bytes);
}

// Pins a segment, which follows the others. Takes the reference.
static enum sl_status add(struct sl_remote_kv_pins *pins, struct pin *pin, struct sl_kv_segment *segment,
                          struct sl_hash128 prefix_hash, struct sl_error *err) {
    const struct sl_kv_segment_config *config = sl_kv_segment_get_config(segment);
    size_t n = pin->n_segments + 1, bytes = sl_kv_segment_bytes(config);
    struct sl_kv_segment **segments = realloc(pin->segments, n * sizeof(struct sl_kv_segment *));
    pin->segments = segments ? segments : pin->segments;
    struct sl_hash128 *hashes = realloc(pin->hashes, n * sizeof *hashes);
    pin->hashes = hashes ? hashes : pin->hashes;
    SL_FAIL_IF(!segments || !hashes, err, SL_ERR_EXHAUSTED, "remote KVs of documents: out of memory");
    segments[n - 1] = sl_kv_segment_ref(segment);
    hashes[n - 1] = prefix_hash;
    pin->n_segments = n;
    pin->end = config->begin + config->n_slots;
    pin->moved_ns = sl_now_ns();
    pin->began_ns = n == 1 ? pin->moved_ns : pin->began_ns;
    pin->arriving_bytes = 0;
    pin->bytes += bytes;
    pins->bytes += bytes;
    return SL_OK;
}

static size_t count_bytes(const struct sl_remote_kv *remote_kv) {
    const struct sl_kv_segment *segment;
    size_t bytes = 0;
    for (int i = 0; (segment = sl_remote_kv_segment(remote_kv, i)) != NULL; i++) {
        bytes += sl_kv_segment_bytes(sl_kv_segment_get_config(segment));
    }
    return bytes;
}

// Replaces what is pinned by a complete remote KV; all of it or nothing.
static void fill(struct sl_remote_kv_pins *pins, struct pin *pin, const struct sl_kv_family *family,
                 const struct sl_prompt_hashes *prompt, const struct sl_remote_kv *remote_kv) {
    enum sl_status status = check_bytes(pins, pin, count_bytes(remote_kv), NULL);
    struct sl_kv_segment *segment;
    pin->family = *family;
    for (int i = 0; status == SL_OK && (segment = (struct sl_kv_segment *)sl_remote_kv_segment(remote_kv, i)) != NULL;
         i++) {
        const struct sl_kv_segment_config *config = sl_kv_segment_get_config(segment);
        status = add(pins, pin, segment, sl_prompt_hash_at(prompt, config->begin + config->n_slots), NULL);
    }
    pin->disk_again_ns = 0;
}

void sl_remote_kv_pins_offer(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *capsule,
                             const struct sl_kv_family *family, const struct sl_prompt_hashes *prompt,
                             const struct sl_remote_kv *remote_kv) {
    const struct sl_document_remote_kv document = {*capsule, prompt->n_tokens, family->n_offloaded_heads, family->scan};
    struct pin partial[2] = {{.n_segments = 0}, {.n_segments = 0}};
    pthread_mutex_lock(&pins->mutex);
    struct pin *pin = find(pins, &document);
    if (pin && !is_complete(pin) && family->first_offloaded_head == 0) {
        partial[0] = take(pins, pin);
        fill(pins, pin, family, prompt, remote_kv);
    }
    if (pin && !is_complete(pin)) {
        partial[1] = take(pins, pin); // without memory for all
    }
    pthread_mutex_unlock(&pins->mutex);
    for (size_t i = 0; i < 2; i++) {
        drop(pins, &partial[i]);
    }
}

static enum sl_status check(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segments,
                            const struct sl_kv_segment_head *head, struct pin **pin_out, struct sl_error *err) {
    const struct sl_kv_family *family = &head->family;
    struct sl_kv_segment_config config;
    struct pin *pin = find_key(pins, segments);
    SL_FAIL_IF(!pin, err, SL_ERR_NOT_FOUND, "no document here has this segment");
    SL_FAIL_IF(is_complete(pin) || head->index < pin->n_segments, err, SL_ERR_EXISTS, "this segment is here already");
    SL_FAIL_IF(head->index > pin->n_segments, err, SL_ERR_PRECONDITION,
               "segment %u of offloaded layers comes before those that it follows: %zu are here", head->index,
               pin->n_segments);
    const struct sl_document_remote_kv *document = &pin->document;
    SL_FAIL_IF(head->begin != pin->end || head->n_slots > document->n_tokens - head->begin ||
                   family->first_offloaded_head != 0 || family->n_offloaded_heads != document->n_offloaded_heads ||
                   family->scan != document->scan ||
                   (pin->n_segments > 0 && memcmp(family, &pin->family, sizeof *family) != 0),
               err, SL_ERR_INVALID, "segment %u of tokens [%lld, %lld) does not follow the %zu segments that are here",
               head->index, (long long)head->begin, (long long)(head->begin + head->n_slots), pin->n_segments);
    SL_TRY(sl_kv_family_config(family, head->begin, head->begin + head->n_slots, &config, err));
    SL_TRY(check_bytes(pins, pin, sl_kv_segment_bytes(&config), err));
    *pin_out = pin;
    return SL_OK;
}

enum sl_status sl_remote_kv_pins_check(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segments,
                                       const struct sl_kv_segment_head *head, struct sl_error *err) {
    struct pin *pin;
    SL_LOCKED(&pins->mutex);
    return check(pins, segments, head, &pin, err);
}

enum sl_status sl_remote_kv_pins_add(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segments,
                                     const struct sl_kv_segment_head *head, struct sl_kv_segment *segment,
                                     struct sl_error *err) {
    struct pin *pin;
    SL_LOCKED(&pins->mutex);
    SL_TRY(check(pins, segments, head, &pin, err));
    pin->family = head->family;
    return add(pins, pin, segment, head->prefix_hash, err);
}

// ---- holding --------------------------------------------------------------------------------------------------------

// A segment like a capsule.
struct held {
    struct sl_stored stored;
    struct sl_kv_segment_head head;
    struct sl_hash128 hash; // its one prefix, by which the disk finds it for a prompt (document_layers.h)
    struct sl_remote_kv_pins *pins;
    struct sl_kv_segment *segment; // a reference
    struct sl_document_remote_kv document;
};

static void release(struct sl_stored *stored) {
    struct held *held = (struct held *)stored; // its first member
    pthread_mutex_lock(&held->pins->mutex);
    struct pin *pin = find(held->pins, &held->document);
    bool is_pinned = pin && held->head.index < pin->n_segments && pin->segments[held->head.index] == held->segment;
    if (is_pinned && atomic_load(&stored->disk_has_no_room)) {
        pin->disk_has_no_room = true;
    }
    pthread_mutex_unlock(&held->pins->mutex);
    if (!is_pinned) { // its document was removed meanwhile
        sl_kv_segments_drop(held->pins->segments, &held->segment, 1);
    }
    sl_kv_segment_unref(&held->segment);
    free(held);
}

// Call with the lock held.
static struct sl_stored *hold(struct sl_remote_kv_pins *pins, const struct pin *pin, uint32_t index) {
    struct held *held = calloc(1, sizeof *held);
    if (!held) {
        return NULL;
    }
    held->pins = pins;
    held->document = pin->document;
    held->segment = sl_kv_segment_ref(pin->segments[index]);
    held->head = sl_kv_segment_head_make(held->segment, &pin->family, index, pin->hashes[index]);
    held->hash = pin->hashes[index];
    const int64_t end = held->head.begin + held->head.n_slots;
    size_t stride;
    struct sl_stored *stored = &held->stored;
    stored->keys.id = sl_document_segment_id(&pin->key, index);
    if (end > 1) { // a prefix of no prompt, as it ends within a page
        stored->keys.hashes = &held->hash;
        stored->keys.n_hashes = 1;
        stored->keys.stride = end - 1;
    }
    stored->n_tokens = end;
    stored->capsule =
        (struct sl_capsule_bytes){(void *)sl_kv_segment_pages(held->segment, &stride), (size_t)held->head.body_bytes,
                                  (uint8_t *)&held->head, sizeof held->head};
    stored->release_fn = release;
    return stored;
}

struct sl_stored *sl_remote_kv_pins_hold(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *segment) {
    uint32_t index;
    const struct sl_capsule_id key = sl_document_segments_of(segment, &index);
    SL_LOCKED(&pins->mutex);
    const struct pin *pin = find_key(pins, &key);
    return pin && index < pin->n_segments ? hold(pins, pin, index) : NULL;
}

// ---- what there is --------------------------------------------------------------------------------------------------

int64_t sl_remote_kv_pins_bytes(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document) {
    SL_LOCKED(&pins->mutex);
    const struct pin *pin = document ? find(pins, document) : NULL;
    return (int64_t)(pin && is_complete(pin) ? pin->bytes : document ? 0 : pins->bytes);
}

static void describe(const struct pin *pin, struct sl_pinned_document *pinned_out) {
    *pinned_out = (struct sl_pinned_document){.document = pin->document,
                                              .segments = pin->key,
                                              .n_segments = (uint32_t)pin->n_segments,
                                              .is_complete = is_complete(pin),
                                              .is_refused = pin->is_refused};
}

bool sl_remote_kv_pins_at(struct sl_remote_kv_pins *pins, size_t i, struct sl_pinned_document *pinned_out) {
    SL_LOCKED(&pins->mutex);
    if (i < pins->n_list) {
        describe(&pins->list[i], pinned_out);
    }
    return i < pins->n_list;
}

bool sl_remote_kv_pins_get(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document,
                           struct sl_pinned_document *pinned_out) {
    SL_LOCKED(&pins->mutex);
    const struct pin *pin = find(pins, document);
    if (pin) {
        describe(pin, pinned_out);
    }
    return pin != NULL;
}

bool sl_remote_kv_pins_try_disk(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document,
                                int64_t again_ms, bool *has_no_room_out) {
    SL_LOCKED(&pins->mutex);
    struct pin *pin = find(pins, document);
    *has_no_room_out = pin && pin->disk_has_no_room;
    bool is_due = pin && sl_now_ns() >= pin->disk_again_ns;
    if (is_due) {
        pin->disk_again_ns = sl_deadline_in_ms(again_ms);
    }
    return is_due;
}

// SPDX-License-Identifier: Apache-2.0
#include "kvstore/remote_kv/remote_kv_pins.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "base/log.h"

struct pin {
    struct sl_document_remote_kv document;
    struct sl_kv_segment **segments; // [n_segments], a reference each; NULL: not complete yet
    size_t n_segments, bytes;
    bool is_refused; // it did not fit, and the log has said so
};

struct sl_remote_kv_pins {
    struct sl_kv_segments *segments;
    size_t max_bytes;
    pthread_mutex_t mutex;
    // Under the mutex:
    struct pin *list; // [n_list], sorted by document
    size_t n_list, bytes, capsule_bytes;
};

enum sl_status sl_remote_kv_pins_create(struct sl_kv_segments *segments, size_t max_bytes,
                                        struct sl_remote_kv_pins **pins_out, struct sl_error *err) {
    struct sl_remote_kv_pins *pins = calloc(1, sizeof *pins);
    SL_FAIL_IF(!pins, err, SL_ERR_EXHAUSTED, "remote KVs of documents: out of memory");
    pins->segments = segments;
    pins->max_bytes = max_bytes;
    pthread_mutex_init(&pins->mutex, NULL);
    *pins_out = pins;
    return SL_OK;
}

// Without the lock: frees memory of the arena.
static void drop(struct sl_remote_kv_pins *pins, struct pin *list, size_t n_list) {
    for (size_t i = 0; i < n_list; i++) {
        struct pin *pin = &list[i];
        if (pin->segments) {
            sl_kv_segments_drop(pins->segments, pin->segments, pin->n_segments);
        }
        for (size_t j = 0; j < pin->n_segments; j++) {
            sl_kv_segment_unref(&pin->segments[j]);
        }
        free(pin->segments);
    }
    free(list);
}

void sl_remote_kv_pins_destroy(struct sl_remote_kv_pins **pins_inout) {
    SL_TAKE_OR_RETURN(pins, pins_inout);
    drop(pins, pins->list, pins->n_list);
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

// Call with the lock held.
static struct pin *find(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document) {
    const struct pin wanted = {.document = *document};
    return pins->n_list > 0 ? bsearch(&wanted, pins->list, pins->n_list, sizeof wanted, by_document) : NULL;
}

// Call with the lock held. Moves what is pinned for the document to *pin_out.
static void take_over(struct sl_remote_kv_pins *pins, struct pin *pin_out) {
    struct pin *there = find(pins, &pin_out->document);
    if (there) {
        *pin_out = *there;
        there->segments = NULL;
        there->n_segments = there->bytes = 0;
    }
}

enum sl_status sl_remote_kv_pins_set(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *documents,
                                     size_t n_documents, size_t capsule_bytes, struct sl_error *err) {
    struct pin *list = calloc(n_documents + 1, sizeof *list);
    SL_FAIL_IF(!list, err, SL_ERR_EXHAUSTED, "remote KVs of documents: out of memory");
    for (size_t i = 0; i < n_documents; i++) {
        list[i].document = documents[i];
    }
    n_documents = sort(list, n_documents);
    pthread_mutex_lock(&pins->mutex);
    struct pin *before = pins->list;
    size_t n_before = pins->n_list;
    pins->bytes = 0;
    pins->capsule_bytes = capsule_bytes;
    for (size_t i = 0; i < n_documents; i++) {
        take_over(pins, &list[i]);
        pins->bytes += list[i].bytes;
    }
    pins->list = list;
    pins->n_list = n_documents;
    pthread_mutex_unlock(&pins->mutex);
    drop(pins, before, n_before);
    return SL_OK;
}

static size_t count_bytes(const struct sl_remote_kv *remote_kv, size_t *n_out) {
    const struct sl_kv_segment *segment;
    size_t bytes = 0;
    for (*n_out = 0; (segment = sl_remote_kv_segment(remote_kv, (int)*n_out)) != NULL; (*n_out)++) {
        bytes += sl_kv_segment_bytes(sl_kv_segment_get_config(segment));
    }
    return bytes;
}

// Call with the lock held. Takes the references.
static void fill(struct sl_remote_kv_pins *pins, struct pin *pin, const struct sl_remote_kv *remote_kv) {
    size_t n, bytes = count_bytes(remote_kv, &n);
    size_t taken = pins->bytes + pins->capsule_bytes;
    bool fits = taken <= pins->max_bytes && bytes <= pins->max_bytes - taken;
    struct sl_kv_segment **segments = fits ? malloc(n * sizeof(struct sl_kv_segment *)) : NULL;
    if (!segments && !pin->is_refused) {
        sl_log_warn("remote_kv", "%zu bytes of a document's offloaded layers are not kept: %zu of %zu bytes are taken",
                    bytes, taken, pins->max_bytes);
    }
    pin->is_refused = !segments;
    if (!segments) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        segments[i] = sl_kv_segment_ref((struct sl_kv_segment *)sl_remote_kv_segment(remote_kv, (int)i));
    }
    pin->segments = segments;
    pin->n_segments = n;
    pin->bytes = bytes;
    pins->bytes += bytes;
}

void sl_remote_kv_pins_offer(struct sl_remote_kv_pins *pins, const struct sl_capsule_id *capsule,
                             const struct sl_kv_family *family, const struct sl_remote_kv *remote_kv) {
    const struct sl_document_remote_kv document = {*capsule, family->n_offloaded_heads, family->scan};
    SL_LOCKED(&pins->mutex);
    struct pin *pin = find(pins, &document);
    if (pin && !pin->segments && family->first_offloaded_head == 0) {
        fill(pins, pin, remote_kv);
    }
}

int64_t sl_remote_kv_pins_bytes(struct sl_remote_kv_pins *pins, const struct sl_document_remote_kv *document) {
    SL_LOCKED(&pins->mutex);
    const struct pin *pin = document ? find(pins, document) : NULL;
    return (int64_t)(pin ? pin->bytes : document ? 0 : pins->bytes);
}

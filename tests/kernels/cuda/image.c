// SPDX-License-Identifier: Apache-2.0
// Purpose: see image.h.
#include "tests/kernels/cuda/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_PLACES = 40960, ALIGN = 256, PATTERN = 0xa5 };

struct place {
    char *host;
    size_t at, bytes;
    bool written;
};

static struct {
    struct sl_device *device;
    char *here, *there; // shared and device memory
    size_t used, most;
    struct place places[MOST_PLACES];
    int n_places;
} image;

void image_open(struct sl_device *device, size_t most_bytes) {
    image.device = device;
    image.most = most_bytes;
    image.here = sl_device_alloc(device, SL_MEMORY_SHARED, most_bytes);
    image.there = sl_device_alloc(device, SL_MEMORY_REPLICATED, most_bytes); // as a model's activations on ranks
    assert_true(image.here != NULL && image.there != NULL);
}

void image_close(void) {
    sl_device_free(image.device, SL_MEMORY_SHARED, image.here);
    sl_device_free(image.device, SL_MEMORY_REPLICATED, image.there);
}

static void *name(const void *at, size_t bytes, bool written) {
    char *host = (char *)at;
    if (host == NULL || bytes == 0) {
        return NULL;
    }
    for (int i = 0; i < image.n_places; i++) {
        struct place *p = &image.places[i];
        if (host >= p->host && host + bytes <= p->host + p->bytes) {
            p->written = p->written || written;
            return image.there + p->at + (host - p->host);
        }
        bool apart = host + bytes <= p->host || p->host + p->bytes <= host;
        assert_true(apart || !(written || p->written));
    }
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN + ALIGN;
    assert_true(image.n_places < MOST_PLACES && image.used + room <= image.most);
    image.places[image.n_places++] = (struct place){host, image.used, bytes, written};
    memcpy(image.here + image.used, host, bytes);
    memset(image.here + image.used + bytes, PATTERN, room - bytes);
    image.used += room;
    return image.there + image.used - room;
}

void *image_of(const void *host, size_t bytes) {
    return name(host, bytes, false);
}

void *image_of_written(void *host, size_t bytes) {
    return name(host, bytes, true);
}

void image_up(struct sl_stream *stream) {
    sl_stream_copy(stream, image.there, image.here, image.used);
}

static void check_border(const struct place *p, size_t end, const char *what) {
    for (size_t at = p->at + p->bytes; at < end; at++) {
        if ((unsigned char)image.here[at] != PATTERN) {
            fail_msg("%s wrote behind %zu bytes, at %zu", what, p->bytes, at - p->at);
        }
    }
}

void image_down(struct sl_stream *stream, const char *what) {
    struct sl_error err = {0};
    sl_stream_copy(stream, image.here, image.there, image.used);
    if (sl_stream_wait(stream, &err) != SL_OK) {
        fail_msg("%s: %s", what, err.text);
    }
    for (int i = 0; i < image.n_places; i++) {
        const struct place *p = &image.places[i];
        check_border(p, i + 1 < image.n_places ? p[1].at : image.used, what);
        if (!p->written && memcmp(p->host, image.here + p->at, p->bytes) != 0) {
            fail_msg("%s wrote into what it only reads, %zu bytes", what, p->bytes);
        }
    }
    for (int i = 0; i < image.n_places; i++) {
        const struct place *p = &image.places[i];
        if (p->written) {
            memcpy(p->host, image.here + p->at, p->bytes);
        }
    }
    image.n_places = 0;
    image.used = 0;
}

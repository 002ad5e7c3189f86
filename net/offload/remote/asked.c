// SPDX-License-Identifier: Apache-2.0
// Reused memory of a question and its answers. See remote_internal.h.
#include <stdlib.h>
#include <string.h>

#include "net/offload/remote/remote_internal.h"

// Takes a buffer that needs the least growth: the smallest that has enough room, else the largest. NULL: there is none.
static struct sl_asked *take_best(struct sl_asked **unused, size_t capacity) {
    struct sl_asked **best = NULL;
    for (struct sl_asked **at = unused; *at; at = &(*at)->next) {
        size_t cap = (*at)->replicas[0].cap, best_cap = best ? (*best)->replicas[0].cap : 0;
        bool fits = cap >= capacity, best_fits = best && best_cap >= capacity;
        if (!best || (fits && (!best_fits || cap < best_cap)) || (!fits && !best_fits && cap > best_cap)) {
            best = at;
        }
    }
    struct sl_asked *asked = best ? *best : NULL;
    if (asked) {
        *best = asked->next;
    }
    return asked;
}

struct sl_asked *sl_asked_take(struct sl_asked **unused, const struct sl_near_request *request, size_t request_bytes,
                               size_t capacity) {
    struct sl_asked *asked = take_best(unused, capacity);
    if (!asked && !(asked = calloc(1, sizeof *asked))) {
        return NULL;
    }
    if (asked->request_cap < request_bytes) {
        free(asked->request);
        asked->request = malloc(request_bytes);
        asked->request_cap = asked->request ? request_bytes : 0;
    }
    if (asked->request_cap < request_bytes) {
        sl_asked_give(unused, &asked);
        return NULL;
    }
    memcpy(asked->request, request, request_bytes);
    asked->request_bytes = request_bytes;
    asked->capacity = capacity;
    for (int i = 0; i < SL_MAX_REPLICAS; i++) {
        asked->replicas[i].retry_ns = 0;
        asked->replicas[i].was_cut = false;
    }
    return asked;
}

void sl_asked_give(struct sl_asked **unused, struct sl_asked **asked) {
    (*asked)->next = *unused;
    *unused = *asked;
    *asked = NULL;
}

bool sl_asked_make_room(const struct sl_source *source, struct sl_asked *asked, int replica) {
    if (asked->replicas[replica].cap < asked->capacity) {
        sl_source_free(source, asked->replicas[replica].answer);
        asked->replicas[replica].cap = (asked->capacity + 63) / 64 * 64;
        asked->replicas[replica].answer = sl_source_alloc(source, asked->replicas[replica].cap);
        if (!asked->replicas[replica].answer) {
            asked->replicas[replica].cap = 0;
        }
    }
    return asked->replicas[replica].cap > 0;
}

void sl_asked_free_all(const struct sl_source *source, struct sl_asked **unused) {
    while (*unused) {
        struct sl_asked *asked = *unused;
        *unused = asked->next;
        for (int i = 0; i < SL_MAX_REPLICAS; i++) {
            sl_source_free(source, asked->replicas[i].answer);
        }
        free(asked->request);
        free(asked);
    }
}

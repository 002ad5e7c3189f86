// SPDX-License-Identifier: Apache-2.0
// Purpose: see huge.h.
#include "net/fabric/core/huge.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#ifndef MADV_COLLAPSE // of newer headers than Debian 12 has
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES  ((size_t)2 << 20)
#define SLICE_BYTES ((size_t)16 << 20) // per request: a stop waits for one
#define MOST_FAILED 4                  // requests in a row: the kernel cannot do it, or has no huge pages

struct sl_huge_joining {
    pthread_t thread;
    atomic_bool stopping;
    char *base, *end; // multiples of HUGE_BYTES
};

void *sl_huge_reserve(size_t bytes) {
    size_t room_bytes = bytes + HUGE_BYTES;
    char *room = mmap(NULL, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return NULL;
    }
    char *base = (char *)(((uintptr_t)room + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
    if (base > room) {
        munmap(room, (size_t)(base - room));
    }
    munmap(base + bytes, (size_t)(room + room_bytes - (base + bytes)));
    return base;
}

// Joins the pages of one slice. Returns 0, or the kernel's error.
static int join_slice(char *from, size_t bytes) {
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t at = 0; at < bytes; at += HUGE_BYTES) { // the kernel looks only at ranges where something is mapped
        (void)madvise(from + at, page_bytes, MADV_POPULATE_READ);
    }
    return madvise(from, bytes, MADV_COLLAPSE) == 0 ? 0 : errno;
}

static void *join_main(void *arg) {
    struct sl_huge_joining *joining = arg;
    int64_t begin_ns = sl_now_ns();
    int n_failed = 0, why = 0;
    for (char *at = joining->base; at < joining->end && n_failed < MOST_FAILED && !atomic_load(&joining->stopping);) {
        size_t left = (size_t)(joining->end - at), bytes = left < SLICE_BYTES ? left : SLICE_BYTES;
        int failed = join_slice(at, bytes);
        n_failed = failed ? n_failed + 1 : 0;
        why = failed ? failed : why;
        at += bytes;
    }
    sl_log_debug("fabric", "bytes=%zu huge_pages=%s ms=%lld", (size_t)(joining->end - joining->base),
                 why == 0 ? "all" : strerror(why), (long long)((sl_now_ns() - begin_ns) / SL_NS_PER_MS));
    return NULL;
}

struct sl_huge_joining *sl_huge_join(void *base, size_t bytes) {
    uintptr_t begin = ((uintptr_t)base + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    uintptr_t end = ((uintptr_t)base + bytes) / HUGE_BYTES * HUGE_BYTES;
    struct sl_huge_joining *joining = begin < end ? calloc(1, sizeof *joining) : NULL;
    if (!joining) {
        return NULL;
    }
    joining->base = (char *)begin;
    joining->end = (char *)end;
    if (sl_thread_start("huge", join_main, joining, &joining->thread, NULL) != SL_OK) {
        free(joining);
        return NULL;
    }
    return joining;
}

void sl_huge_stop(struct sl_huge_joining **joining) {
    if (*joining) {
        atomic_store(&(*joining)->stopping, true);
        pthread_join((*joining)->thread, NULL);
        free(*joining);
        *joining = NULL;
    }
}

// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/core/huge.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/futex.h"
#include "base/log.h"
#include "base/thread.h"

#ifndef MADV_COLLAPSE // of newer headers than Debian 12 has
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES   ((size_t)2 << 20)
#define MOST_AT_ONCE 8  // huge pages per request: a stop waits for one request
#define MOST_FAILED  4  // requests in a row: the kernel cannot do it, or has no huge pages
#define PRIORITY     19 // the lowest: what uses the memory goes first

enum { CHUNK_UNUSED, CHUNK_WANTED, CHUNK_TRIED };
enum { WANTED = 1, STOPPING = 2 };

struct sl_huge_joining {
    pthread_t thread;
    _Atomic uint32_t asks; // WANTED, STOPPING: a lock would make ships wait for a thread of the lowest priority

    char *base; // a multiple of HUGE_BYTES
    size_t n_chunks;
    _Atomic uint8_t chunks[]; // [n_chunks] of HUGE_BYTES
};

void *sl_huge_reserve(size_t bytes) {
    if (bytes > SIZE_MAX - HUGE_BYTES) {
        return NULL;
    }
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

// Joins the pages of `n` chunks. Returns 0, or the kernel's error.
static int join_chunks(char *from, size_t n) {
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < n; i++) { // the kernel looks only at ranges where something is mapped
        (void)madvise(from + i * HUGE_BYTES, page_bytes, MADV_POPULATE_READ);
    }
    return madvise(from, n * HUGE_BYTES, MADV_COLLAPSE) == 0 ? 0 : errno;
}

// Takes wanted chunks, from *at_inout on, that lie side by side. Returns how many, and advances to them.
static size_t take_chunks(struct sl_huge_joining *joining, size_t *at_inout) {
    size_t n = 0;
    while (*at_inout < joining->n_chunks && atomic_load(&joining->chunks[*at_inout]) != CHUNK_WANTED) {
        ++*at_inout;
    }
    while (n < MOST_AT_ONCE && *at_inout + n < joining->n_chunks &&
           atomic_load(&joining->chunks[*at_inout + n]) == CHUNK_WANTED) {
        atomic_store(&joining->chunks[*at_inout + n++], CHUNK_TRIED);
    }
    return n;
}

static void ask(struct sl_huge_joining *joining, uint32_t what) {
    if (!(atomic_fetch_or(&joining->asks, what) & what)) {
        sl_futex_wake(&joining->asks);
    }
}

static bool is_stopping(struct sl_huge_joining *joining) {
    return atomic_load(&joining->asks) & STOPPING;
}

// Waits until chunks are wanted. Returns false if it is being stopped.
static bool await_work(struct sl_huge_joining *joining) {
    uint32_t seen;
    while ((seen = atomic_load(&joining->asks)) == 0) {
        sl_futex_sleep(&joining->asks, seen, -1);
    }
    atomic_fetch_and(&joining->asks, ~(uint32_t)WANTED);
    return !(seen & STOPPING);
}

static void *join_main(void *arg) {
    struct sl_huge_joining *joining = arg;
    int n_failed = 0, why = 0;
    (void)setpriority(PRIO_PROCESS, 0, PRIORITY); // of this thread
    while (n_failed < MOST_FAILED && await_work(joining)) {
        size_t at = 0, n;
        while (n_failed < MOST_FAILED && !is_stopping(joining) && (n = take_chunks(joining, &at)) > 0) {
            why = join_chunks(joining->base + at * HUGE_BYTES, n);
            n_failed = why ? n_failed + 1 : 0;
            at += n;
        }
    }
    if (n_failed == MOST_FAILED) {
        sl_log_debug("fabric", "shared memory stays in ordinary pages: %s", strerror(why));
    }
    return NULL;
}

struct sl_huge_joining *sl_huge_start(void *base, size_t bytes) {
    uintptr_t begin = ((uintptr_t)base + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    uintptr_t end = ((uintptr_t)base + bytes) / HUGE_BYTES * HUGE_BYTES;
    size_t n_chunks = begin < end ? (end - begin) / HUGE_BYTES : 0;
    struct sl_huge_joining *joining = n_chunks > 0 ? calloc(1, sizeof *joining + n_chunks) : NULL;
    if (!joining) {
        return NULL;
    }
    joining->base = (char *)begin;
    joining->n_chunks = n_chunks;
    if (sl_thread_start("huge", join_main, joining, &joining->thread, NULL) != SL_OK) {
        free(joining);
        return NULL;
    }
    return joining;
}

void sl_huge_want(struct sl_huge_joining *joining, const void *data, size_t bytes) {
    if (!joining || bytes == 0 || (uintptr_t)data + bytes <= (uintptr_t)joining->base) {
        return;
    }
    uintptr_t base = (uintptr_t)joining->base, from = (uintptr_t)data > base ? (uintptr_t)data - base : 0;
    size_t last = ((uintptr_t)data + bytes - 1 - base) / HUGE_BYTES;
    bool wanted = false;
    for (size_t i = from / HUGE_BYTES; i <= last && i < joining->n_chunks; i++) {
        uint8_t unused = CHUNK_UNUSED;
        wanted |= atomic_load_explicit(&joining->chunks[i], memory_order_relaxed) == CHUNK_UNUSED &&
                  atomic_compare_exchange_strong(&joining->chunks[i], &unused, CHUNK_WANTED);
    }
    if (wanted) {
        ask(joining, WANTED);
    }
}

void sl_huge_stop(struct sl_huge_joining **joining) {
    struct sl_huge_joining *it = *joining;
    if (!it) {
        return;
    }
    ask(it, STOPPING);
    pthread_join(it->thread, NULL);
    free(it);
    *joining = NULL;
}

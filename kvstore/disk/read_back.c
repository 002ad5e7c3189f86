// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/read_back.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/loop.h"

#define TURN_MS       10000 // to wait for another read of the disk
#define MAX_DOUBLINGS 6

// A capsule that was not read back.
struct pause {
    struct sl_capsule_id id;
    int64_t again_ns;
    int n_failures;
};

struct sl_disk_reader {
    struct sl_disk *disk;
    struct sl_capsule_cache *capsule_cache;
    struct sl_protected *protected;
    int64_t pause_ms;
    struct sl_loop loop;
    // Under the loop's mutex:
    bool is_busy;
    struct sl_prefix wanted;
    struct pause *pauses; // [n_pauses]
    size_t n_pauses;
};

// Call with the lock held.
static struct pause *find_pause(struct sl_disk_reader *reader, const struct sl_capsule_id *id) {
    for (size_t i = 0; i < reader->n_pauses; i++) {
        if (memcmp(&reader->pauses[i].id, id, sizeof *id) == 0) {
            return &reader->pauses[i];
        }
    }
    return NULL;
}

// Call with the lock held. Drops the pauses of what is not a document any more.
static void drop_old_pauses(struct sl_disk_reader *reader) {
    size_t n = 0;
    for (size_t i = 0; i < reader->n_pauses; i++) {
        if (sl_protected_has(reader->protected, &reader->pauses[i].id)) {
            reader->pauses[n++] = reader->pauses[i];
        }
    }
    reader->n_pauses = n;
}

// Call with the lock held. Without memory for a pause, the next call offers the capsule again.
static void note_failure(struct sl_disk_reader *reader, const struct sl_capsule_id *id) {
    struct pause *pause = find_pause(reader, id);
    if (!pause) {
        drop_old_pauses(reader);
        struct pause *grown = realloc(reader->pauses, (reader->n_pauses + 1) * sizeof *grown);
        if (!grown) {
            return;
        }
        reader->pauses = grown;
        pause = &grown[reader->n_pauses++];
        *pause = (struct pause){.id = *id};
    }
    pause->again_ns = sl_deadline_in_ms(reader->pause_ms << pause->n_failures);
    pause->n_failures += pause->n_failures < MAX_DOUBLINGS;
}

// Call with the lock held.
static void note_success(struct sl_disk_reader *reader, const struct sl_capsule_id *id) {
    struct pause *pause = find_pause(reader, id);
    if (pause) {
        *pause = reader->pauses[--reader->n_pauses];
    }
}

static void *reader_main(void *arg) {
    struct sl_disk_reader *reader = arg;
    pthread_mutex_lock(&reader->loop.mutex);
    while (!reader->loop.stopping) {
        if (!reader->is_busy) {
            sl_loop_wait(&reader->loop, SL_NO_DEADLINE);
            continue;
        }
        struct sl_prefix wanted = reader->wanted;
        pthread_mutex_unlock(&reader->loop.mutex);
        size_t at;
        struct sl_stored *stored = sl_disk_recall(reader->disk, &wanted, 1, sl_deadline_in_ms(TURN_MS), &at);
        if (stored) {
            sl_capsule_cache_unpin(reader->capsule_cache, stored);
        }
        pthread_mutex_lock(&reader->loop.mutex);
        if (stored) {
            note_success(reader, &wanted.id);
        } else {
            note_failure(reader, &wanted.id);
        }
        reader->is_busy = false;
    }
    pthread_mutex_unlock(&reader->loop.mutex);
    return NULL;
}

enum sl_status sl_read_back_create(struct sl_disk *disk, struct sl_capsule_cache *capsule_cache,
                                   struct sl_protected *protected, int64_t pause_ms, struct sl_disk_reader **reader_out,
                                   struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_disk_reader, reader, err, "disk: out of memory");
    reader->disk = disk;
    reader->capsule_cache = capsule_cache;
    reader->protected = protected;
    reader->pause_ms = pause_ms;
    sl_loop_init(&reader->loop);
    SL_TRY_OR(sl_loop_start(&reader->loop, "read-back", reader_main, reader, err), sl_read_back_destroy(&reader));
    *reader_out = reader;
    return SL_OK;
}

void sl_read_back_destroy(struct sl_disk_reader **reader_inout) {
    SL_TAKE_OR_RETURN(reader, reader_inout);
    sl_loop_cleanup(&reader->loop);
    free(reader->pauses);
    free(reader);
}

bool sl_read_back_offer(struct sl_disk_reader *reader, const struct sl_prefix *whole) {
    if (!reader) {
        return true;
    }
    SL_LOCKED(&reader->loop.mutex);
    const struct pause *pause = find_pause(reader, &whole->id);
    bool is_taken = reader->is_busy || !pause || pause->again_ns <= sl_now_ns();
    if (is_taken && !reader->is_busy) {
        reader->is_busy = true;
        reader->wanted = *whole;
        pthread_cond_signal(&reader->loop.changed);
    }
    return is_taken;
}

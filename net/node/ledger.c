// SPDX-License-Identifier: Apache-2.0
#include "net/node/ledger.h"
#include "base/locked.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct sl_ledger {
    struct sl_arena *arena;
    pthread_mutex_t mutex;
    size_t promised_bytes;
};

enum sl_status sl_ledger_create(struct sl_arena *arena, struct sl_ledger **ledger_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_ledger, ledger, err, "ledger: out of memory");
    ledger->arena = arena;
    pthread_mutex_init(&ledger->mutex, NULL);
    *ledger_out = ledger;
    return SL_OK;
}

void sl_ledger_destroy(struct sl_ledger **ledger_inout) {
    SL_TAKE_OR_RETURN(ledger, ledger_inout);
    pthread_mutex_destroy(&ledger->mutex);
    free(ledger);
}

struct sl_arena *sl_ledger_arena(const struct sl_ledger *ledger) {
    return ledger->arena;
}

// Call with the lock held.
static bool fits(struct sl_ledger *ledger, size_t bytes, struct sl_arena_stats *stats_out) {
    sl_arena_get_stats(ledger->arena, stats_out);
    size_t taken = stats_out->used_bytes + ledger->promised_bytes;
    return taken <= stats_out->capacity_bytes && bytes <= stats_out->capacity_bytes - taken;
}

// Call with the lock held.
static void change(struct sl_ledger *ledger, size_t from_bytes, size_t to_bytes) {
    assert(ledger->promised_bytes >= from_bytes);
    ledger->promised_bytes = ledger->promised_bytes - from_bytes + to_bytes;
}

enum sl_status sl_ledger_try_promise(struct sl_ledger *ledger, size_t bytes) {
    struct sl_arena_stats stats;
    SL_LOCKED(&ledger->mutex);
    bool fit = fits(ledger, bytes, &stats);
    change(ledger, 0, fit ? bytes : 0);
    return fit ? SL_OK : SL_AGAIN;
}

void sl_ledger_set_promise(struct sl_ledger *ledger, size_t *promised_inout, size_t bytes) {
    pthread_mutex_lock(&ledger->mutex);
    change(ledger, *promised_inout, bytes);
    pthread_mutex_unlock(&ledger->mutex);
    *promised_inout = bytes;
}

void sl_ledger_reconcile(struct sl_ledger *ledger, size_t *promised_inout, size_t planned_bytes, size_t taken_bytes) {
    sl_ledger_set_promise(ledger, promised_inout, planned_bytes > taken_bytes ? planned_bytes - taken_bytes : 0);
}

void sl_ledger_promise_again(struct sl_ledger *ledger, size_t bytes) {
    size_t promised = 0;
    sl_ledger_set_promise(ledger, &promised, bytes);
}

void sl_ledger_return(struct sl_ledger *ledger, size_t bytes) {
    sl_ledger_set_promise(ledger, &bytes, 0);
}

enum sl_status sl_ledger_take_block(struct sl_ledger *ledger, const char *label, size_t block_bytes,
                                    size_t promised_bytes, void **block_out, struct sl_error *err) {
    SL_FAIL_IF(block_bytes == 0 || block_bytes > SIZE_MAX / 4 || promised_bytes > SIZE_MAX / 4, err, SL_ERR_INVALID,
               "%s: a capsule of %zu bytes cannot be reserved", label, block_bytes);
    struct sl_arena_stats stats;
    enum sl_status status = SL_OK;
    SL_LOCKED(&ledger->mutex);
    void *block =
        fits(ledger, block_bytes + promised_bytes, &stats) ? sl_arena_alloc(ledger->arena, block_bytes) : NULL;
    if (block) {
        change(ledger, 0, promised_bytes);
        *block_out = block;
    } else {
        status =
            sl_fail(err, SL_ERR_EXHAUSTED,
                    "%s: %zu bytes for the capsule and %zu beside it do not fit: arena %zu, used %zu, promised %zu; "
                    "retry in 500 ms",
                    label, block_bytes, promised_bytes, stats.capacity_bytes, stats.used_bytes, ledger->promised_bytes);
    }
    return status;
}

size_t sl_ledger_promised_bytes(struct sl_ledger *ledger) {
    SL_LOCKED(&ledger->mutex);
    return ledger->promised_bytes;
}

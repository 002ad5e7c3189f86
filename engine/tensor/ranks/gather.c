// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: activations on ranks with memory of their own: each rank has a replica, and ranks gather the results that
 *          they compute in shares.
 *
 * Design: replicated memory (engine/tensor/device.h) is a block on every rank; rank 0's address stands for all. After
 *         an operation that writes replicated memory all replicas are equal: a norm runs on every rank, on its own
 *         replica; a product or attention writes a rank's columns into its own replica, and all ranks gather the
 *         columns of the others. A gather packs the columns (put_columns), exchanges the parts, and unpacks them
 *         (take_columns). Where only products read the result, and they round it to bf16, ranks exchange bf16: the
 *         product reads the same bits. Parts are exchanged by a group (engine/tensor/group.h: ncclAllGather) within the
 *         call. Without one each rank copies the others' parts over peer access in a call of its own, which begins
 *         after all have written theirs.
 *
 * Memory: the exchange buffer of a rank holds the parts of all ranks for as many rows as fit; more rows take several
 *         rounds. It is large enough for one row of any replica.
 */
#include <assert.h>

#include "base/locked.h"
#include "base/log.h"
#include "engine/tensor/ranks/internal.h"

#define EXCHANGE_BYTES ((size_t)32 << 20) // at most, for all parts
#define PADDING_BYTES  2048 // for each part: ranks exchange parts of equal size, and shares differ by a unit

// --- replicas --------------------------------------------------------------------------------------------------------

static const struct sl_ranks_replica *find_replica(const struct sl_ranks *ranks, const void *at) {
    for (int i = 0; i < SL_RANKS_REPLICAS; i++) {
        const struct sl_ranks_replica *replica = &ranks->replicas[i];
        const char *first = atomic_load(&replica->first);
        if (first != NULL && (const char *)at >= first && (const char *)at < first + replica->bytes) {
            return replica;
        }
    }
    return NULL;
}

bool sl_ranks_is_replicated(const struct sl_ranks *ranks, const void *at) {
    return ranks->apart && find_replica(ranks, at) != NULL;
}

void *sl_ranks_here(const struct sl_ranks *ranks, int rank, const void *at) {
    const struct sl_ranks_replica *replica = ranks->apart && rank > 0 ? find_replica(ranks, at) : NULL;
    return replica != NULL ? replica->at[rank] + ((const char *)at - replica->at[0]) : (void *)at;
}

static void free_replica(struct sl_ranks *ranks, struct sl_ranks_replica *replica) {
    for (int r = 0; r < ranks->n; r++) {
        sl_device_free(ranks->devices[r], SL_MEMORY_DEVICE, replica->at[r]);
        replica->at[r] = NULL;
    }
}

static void *alloc_on(struct sl_ranks *ranks, int rank, size_t bytes) {
    void *block = sl_device_alloc(ranks->devices[rank], SL_MEMORY_DEVICE, bytes);
    if (block == NULL) {
        sl_log_warn("ranks", "rank=%d of=%d no_room=%zu: of activations, which every rank has", rank, ranks->n, bytes);
    }
    return block;
}

static bool grow_exchange(struct sl_ranks *ranks, size_t replica_bytes) {
    size_t bytes = (replica_bytes < EXCHANGE_BYTES ? replica_bytes : EXCHANGE_BYTES) + PADDING_BYTES * (size_t)ranks->n;
    for (int r = 0; r < ranks->n && bytes > ranks->exchange_bytes; r++) {
        void *block = alloc_on(ranks, r, bytes);
        if (block == NULL) {
            return false; // blocks that have grown stay and are used at their old size
        }
        sl_device_free(ranks->devices[r], SL_MEMORY_DEVICE, ranks->exchange[r]);
        ranks->exchange[r] = block;
    }
    ranks->exchange_bytes = bytes > ranks->exchange_bytes ? bytes : ranks->exchange_bytes;
    return true;
}

void *sl_ranks_replicate(struct sl_ranks *ranks, size_t bytes) {
    struct sl_ranks_replica *replica = NULL;
    SL_LOCKED(&ranks->turn);
    for (int i = 0; i < SL_RANKS_REPLICAS && replica == NULL; i++) {
        replica = ranks->replicas[i].at[0] == NULL ? &ranks->replicas[i] : NULL;
    }
    bool good = replica != NULL && bytes > 0;
    for (int r = 0; r < ranks->n && good; r++) {
        replica->at[r] = alloc_on(ranks, r, bytes);
        good = replica->at[r] != NULL;
    }
    good = good && grow_exchange(ranks, bytes);
    void *first = NULL;
    if (good) {
        replica->bytes = bytes;
        first = replica->at[0];
        atomic_store(&replica->first, replica->at[0]);
    } else if (replica != NULL) {
        free_replica(ranks, replica);
    }
    return first;
}

bool sl_ranks_free_replica(struct sl_ranks *ranks, const void *at) {
    SL_LOCKED(&ranks->turn);
    struct sl_ranks_replica *replica = (struct sl_ranks_replica *)find_replica(ranks, at);
    if (replica != NULL) {
        atomic_store(&replica->first, NULL);
        free_replica(ranks, replica);
    }
    return replica != NULL;
}

// --- gathers ---------------------------------------------------------------------------------------------------------

static int64_t width_of(const struct sl_columns *g, int rank) {
    return g->bounds[rank + 1] - g->bounds[rank];
}

static int64_t widest(const struct sl_columns *g) {
    int64_t most = 0;
    for (int r = 0; r < g->n_parts; r++) {
        most = width_of(g, r) > most ? width_of(g, r) : most;
    }
    return most;
}

static size_t number_bytes(const struct sl_columns *g) {
    return g->bf16 ? sizeof(uint16_t) : sizeof(float);
}

// Returns how many rows one round exchanges.
static int64_t rows_at_once(const struct sl_ranks *ranks, const struct sl_columns *g) {
    size_t row = (size_t)widest(g) * number_bytes(g);
    int64_t rows = (int64_t)(ranks->exchange_bytes / ((size_t)ranks->n * row));
    assert(rows > 0);
    return rows;
}

// Returns the columns of a round on a rank, from row `begin` on.
static struct sl_columns round_of(const struct sl_ranks *ranks, int rank, const struct sl_columns *g, int64_t row) {
    struct sl_columns c = *g;
    int64_t rows = rows_at_once(ranks, g);
    c.m = g->m - row < rows ? g->m - row : rows;
    c.x = (float *)sl_ranks_here(ranks, rank, g->x) + row * g->stride;
    c.parts = ranks->exchange[rank];
    c.part_bytes = (size_t)(c.m * widest(g)) * number_bytes(g);
    return c;
}

static bool is_wanted(const struct sl_ranks *ranks, const struct sl_columns *g) {
    return g->x != NULL && g->m > 0 && widest(g) > 0 && !sl_ranks_is_lost(ranks);
}

void sl_ranks_gather_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream,
                          const struct sl_columns *g) {
    struct sl_ranks *ranks = call->ranks;
    if (!is_wanted(ranks, g)) {
        return;
    }
    if (ranks->group == NULL) { // the first round only; sl_ranks_gather_rest() does the following ones
        struct sl_columns c = round_of(ranks, rank, g, 0);
        ranks->each->put_columns(stream, &c, rank);
        return;
    }
    enum sl_status status = SL_OK;
    struct sl_error err;
    for (int64_t row = 0; row < g->m && status == SL_OK; row += rows_at_once(ranks, g)) {
        struct sl_columns c = round_of(ranks, rank, g, row);
        ranks->each->put_columns(stream, &c, rank);
        if (row == 0) {
            ranks->marks[ranks->n_calls % SL_RANKS_AHEAD].came[rank] = sl_stream_mark(stream);
        }
        status = ranks->group->ops->gather(ranks->group, rank, stream, c.parts, c.part_bytes, &err);
        if (status == SL_OK) {
            ranks->each->take_columns(stream, &c, rank);
        }
    }
    if (status != SL_OK) {
        int lost = ranks->group->ops->lost(ranks->group);
        sl_ranks_lose(ranks, lost >= 0 ? lost : rank, &err);
    }
}

// --- without a group -------------------------------------------------------------------------------------------------

struct round_call {
    struct sl_ranks_call call;
    struct sl_columns columns;
    int64_t row;
};

static void put_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct round_call *c = (const struct round_call *)call;
    struct sl_columns round = round_of(call->ranks, rank, &c->columns, c->row);
    call->ranks->each->put_columns(stream, &round, rank);
}

static void pull_parts(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct round_call *c = (const struct round_call *)call;
    struct sl_ranks *ranks = call->ranks;
    struct sl_columns round = round_of(ranks, rank, &c->columns, c->row);
    for (int r = 0; r < ranks->n; r++) {
        size_t at = (size_t)r * round.part_bytes;
        size_t bytes = (size_t)(round.m * width_of(&round, r)) * number_bytes(&round);
        if (r != rank && bytes > 0) {
            sl_stream_copy(stream, (char *)ranks->exchange[rank] + at, (char *)ranks->exchange[r] + at, bytes);
        }
    }
    ranks->each->take_columns(stream, &round, rank);
}

void sl_ranks_gather_rest(struct sl_ranks *ranks, const struct sl_columns *g) {
    if (ranks->group != NULL || !is_wanted(ranks, g)) {
        return;
    }
    for (int64_t row = 0; row < g->m; row += rows_at_once(ranks, g)) {
        struct round_call c = {{ranks, ranks->n, put_part}, *g, row};
        if (row > 0) {
            SL_RANKS_RUN(c);
        }
        c.call.run = pull_parts;
        SL_RANKS_RUN(c);
    }
}

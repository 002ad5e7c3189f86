// SPDX-License-Identifier: Apache-2.0
// Purpose: declarations that the files of ranks share: the device, and the way an operation is called on every rank.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/team.h"
#include "engine/tensor/group.h"
#include "engine/tensor/ranks/ranks.h"

#define SL_RANKS_CALL_BYTES 512
#define SL_RANKS_PUBLISHED  4096 // published heads that are remembered, as a device does

#define SL_RANKS_AHEAD                                                                                                 \
    32 // calls that are queued before the first of them has to be done; their marks show which rank hangs

// The result of publishing heads on each rank; sl_kv_heads.published points to it.
struct sl_ranks_published {
    const void *of[SL_MAX_RANKS];
    enum sl_status status[SL_MAX_RANKS];
};

// A block of replicated memory.
struct sl_ranks_replica {
    char *at[SL_MAX_RANKS];
    size_t bytes;
    char *_Atomic first; // at[0], once the block may be looked up; NULL: the entry is free
};
#define SL_RANKS_REPLICAS 16

struct sl_ranks {
    struct sl_device device;
    struct sl_device_ops device_ops;
    bool apart;                             // each rank has memory of its own
    struct sl_stream streams[SL_N_STREAMS]; // rank 0's; the host's loops run in its team
    struct sl_ops ops;                      // the operations that callers call
    const struct sl_ops *each;              // the operations that each rank executes for them
    int n;
    struct sl_device *devices[SL_MAX_RANKS];
    struct sl_team *teams[SL_MAX_RANKS];
    struct sl_team *crew; // one thread for each rank; the calling thread is rank 0's
    struct sl_team_vigil vigil;
    pthread_mutex_t turn; // held during a call; protects the following fields
    // the call; it stays where a rank is lost, whose thread may still read it
    _Alignas(64) char called[SL_RANKS_CALL_BYTES];
    struct sl_ranks_marks {
        struct sl_mark begun, done[SL_MAX_RANKS]; // for a call: marks in rank 0's stream, and in the others'
        // for every rank: after the work that precedes the call's gather by the group
        struct sl_mark came[SL_MAX_RANKS];
    } marks[SL_RANKS_AHEAD]; // for the last calls
    uint64_t n_calls;
    struct sl_ranks_published *published; // [SL_RANKS_PUBLISHED]; NULL where memory is one
    uint64_t n_published;
    struct sl_error errors[SL_MAX_RANKS]; // of the most recent publish
    struct sl_group *group;               // the group by which ranks gather; NULL: they copy
    struct sl_ranks_replica replicas[SL_RANKS_REPLICAS];
    void *exchange[SL_MAX_RANKS]; // each rank's buffer: exchange_bytes for the parts of a gather
    size_t exchange_bytes;
    atomic_int lost;      // the lost rank; -1: none
    struct sl_error why;  // the reason, where lost is not -1
    pthread_mutex_t word; // protects both
    atomic_size_t weight_bytes[SL_MAX_RANKS];
};

// A call of an operation. The struct of each operation's call begins with it.
struct sl_ranks_call {
    struct sl_ranks *ranks;
    int n; // ranks that take part: all, or only rank 0
    void (*run)(const struct sl_ranks_call *call, int rank,
                struct sl_stream *stream); // queues a rank's part, in its compute stream
};

static inline struct sl_ranks *sl_ranks_of(const struct sl_stream *stream) {
    return (struct sl_ranks *)stream->device;
}

static inline bool sl_ranks_is_lost(const struct sl_ranks *ranks) {
    return atomic_load(&ranks->lost) >= 0;
}

static inline struct sl_stream *sl_ranks_compute(const struct sl_ranks *ranks, int rank) {
    return sl_device_stream(ranks->devices[rank], SL_STREAM_COMPUTE);
}

// Returns SL_ERR_INTERNAL where a rank is lost.
enum sl_status sl_ranks_check(const struct sl_ranks *ranks, struct sl_error *err);

// Waits until a mark of rank 0's stream is reached. Returns SL_ERR_INTERNAL when no rank has made progress for
// still_ms; the rank that the others wait for is then lost.
enum sl_status sl_ranks_wait(struct sl_ranks *ranks, const struct sl_mark *mark, struct sl_error *err);

// Returns the heads as this rank published them.
static inline struct sl_kv_heads sl_ranks_heads(const struct sl_ranks *ranks, int rank, struct sl_kv_heads heads) {
    if (ranks->apart) {
        heads.published = ((const struct sl_ranks_published *)heads.published)->of[rank];
    }
    return heads;
}

// Notes that a rank is lost, with the reason, unless another one already is. Ends the gathers of all ranks.
void sl_ranks_lose(struct sl_ranks *ranks, int rank, const struct sl_error *why);

// In gather.c. Returns the address on a rank that corresponds to `at` of rank 0: its replica where memory is
// replicated, else `at`; NULL for NULL.
void *sl_ranks_here(const struct sl_ranks *ranks, int rank, const void *at);
bool sl_ranks_is_replicated(const struct sl_ranks *ranks, const void *at);

// Allocates replicated memory and returns its address on rank 0. Returns NULL when there is no room; the log says on
// which rank. Do not call it while operations are queued.
void *sl_ranks_replicate(struct sl_ranks *ranks, size_t bytes);
// Returns false where there is no replica at this address.
bool sl_ranks_free_replica(struct sl_ranks *ranks, const void *at);

// Gives every rank's replica the columns of all other ranks. columns: x is rank 0's address, or NULL when there is
// nothing to gather; these functions set the parts. Call the first within a call of all ranks, after its work, and the
// second after the call.
void sl_ranks_gather_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream,
                          const struct sl_columns *columns);
void sl_ranks_gather_rest(struct sl_ranks *ranks, const struct sl_columns *columns);

// Executes a call of this many bytes on call->n ranks; the calling thread executes a call of rank 0 alone. Does nothing
// where a rank is lost. Ranks write their results through pointers in the call.
void sl_ranks_run(const struct sl_ranks_call *call, size_t bytes);
#define SL_RANKS_RUN(c)                                                                                                \
    do {                                                                                                               \
        _Static_assert(sizeof(c) <= SL_RANKS_CALL_BYTES, "a call of ranks");                                           \
        sl_ranks_run((const struct sl_ranks_call *)&(c), sizeof(c));                                                   \
    } while (0)

// Makes a call that touches about `work` numbers, of heads or rows. One rank finishes a small one sooner than the
// others would start.
#define SL_RANKS_LEAST_WORK 16384
static inline struct sl_ranks_call sl_ranks_call(struct sl_stream *stream, size_t work,
                                                 void (*run)(const struct sl_ranks_call *, int, struct sl_stream *)) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    return (struct sl_ranks_call){ranks, work < SL_RANKS_LEAST_WORK ? 1 : ranks->n, run};
}

struct sl_share {
    int64_t first, n;
};

// Divides units [0, total) into n shares whose sizes differ by at most one.
static inline struct sl_share sl_share_of(int64_t total, int rank, int n) {
    int64_t first = total * rank / n;
    return (struct sl_share){first, total * (rank + 1) / n - first};
}

// Returns the vectors from head `first` on.
static inline struct sl_vectors sl_vectors_from(struct sl_vectors x, int64_t first) {
    return (struct sl_vectors){x.at != NULL ? x.at + (size_t)first * x.stride : NULL, x.stride};
}
static inline struct sl_lists sl_lists_from(struct sl_lists x, int64_t first) {
    return (struct sl_lists){x.at != NULL ? x.at + (size_t)first * x.stride : NULL, x.stride};
}
static inline struct sl_counts sl_counts_from(struct sl_counts x, int64_t first) {
    return (struct sl_counts){x.host != NULL ? x.host + first : NULL, x.device != NULL ? x.device + first : NULL};
}

void sl_ranks_fill_dense(struct sl_ops *ops);     // dense.c: weights and rows
void sl_ranks_fill_attention(struct sl_ops *ops); // attention.c
void sl_ranks_fill_heads(struct sl_ops *ops);     // heads.c: pages and slots
void sl_ranks_fill_first(struct sl_ops *ops);     // first.c: operations that rank 0 executes

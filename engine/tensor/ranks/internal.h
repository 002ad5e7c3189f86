// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of ranks share: the device, and how an operation becomes one of every rank.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/team.h"
#include "engine/tensor/group.h"
#include "engine/tensor/ranks/ranks.h"

#define SL_RANKS_CALL_BYTES 512
#define SL_RANKS_PUBLISHED  4096 // that are remembered, as a device does

#define SL_RANKS_AHEAD                                                                                                 \
    32 // calls that are queued before the first of them has to be done: who stands still is told by these

// What publishing heads has made on each rank: sl_kv_heads.published leads to it.
struct sl_ranks_published {
    const void *of[SL_MAX_RANKS];
    enum sl_status status[SL_MAX_RANKS];
};

// A block of replicated memory.
struct sl_ranks_replica {
    char *at[SL_MAX_RANKS];
    size_t bytes;
    char *_Atomic first; // at[0], once the block may be looked up; NULL: there is none
};
#define SL_RANKS_REPLICAS 16

struct sl_ranks {
    struct sl_device device;
    struct sl_device_ops device_ops;
    bool apart;                             // each rank has memory of its own
    struct sl_stream streams[SL_N_STREAMS]; // rank 0's; beside them the host's loops run in its team
    struct sl_ops ops;                      // what is called
    const struct sl_ops *each;              // what it becomes on every rank
    int n;
    struct sl_device *devices[SL_MAX_RANKS];
    struct sl_team *teams[SL_MAX_RANKS];
    struct sl_team *crew; // a thread a rank; whoever drives is rank 0's
    struct sl_team_vigil vigil;
    pthread_mutex_t turn;                          // of those who call: it is about the following
    _Alignas(64) char called[SL_RANKS_CALL_BYTES]; // the call: it stays where a rank is lost, which may come back to it
    struct sl_ranks_marks {
        struct sl_mark begun, done[SL_MAX_RANKS]; // of a call: in rank 0's stream, and in the others'
        struct sl_mark came[SL_MAX_RANKS]; // of every rank: what it computes before the call's gather by the group
    } marks[SL_RANKS_AHEAD];               // of the last calls
    uint64_t n_calls;
    struct sl_ranks_published *published; // [SL_RANKS_PUBLISHED]; NULL where memory is one
    uint64_t n_published;
    struct sl_error errors[SL_MAX_RANKS]; // of what was published last
    struct sl_group *group;               // by which ranks gather; NULL: by copies
    struct sl_ranks_replica replicas[SL_RANKS_REPLICAS];
    void *exchange[SL_MAX_RANKS]; // of each rank: exchange_bytes for the parts of a gather
    size_t exchange_bytes;
    atomic_int lost;      // rank; -1: none
    struct sl_error why;  // where lost is not -1
    pthread_mutex_t word; // over both
    atomic_size_t weight_bytes[SL_MAX_RANKS];
    _Atomic uint64_t sent[SL_MAX_RANKS], received[SL_MAX_RANKS]; // activations, to and from other ranks' memory
};

// A call of an operation: a struct of its own begins with it.
struct sl_ranks_call {
    struct sl_ranks *ranks;
    int n; // ranks that take part: all, or rank 0 alone
    void (*run)(const struct sl_ranks_call *call, int rank,
                struct sl_stream *stream); // its part, in the rank's compute stream
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

// SL_ERR_INTERNAL where a rank is lost.
enum sl_status sl_ranks_check(const struct sl_ranks *ranks, struct sl_error *err);

// Until a mark of rank 0's stream is reached. SL_ERR_INTERNAL: no rank has got anything done for still_ms, and the one that the
// others wait for is lost.
enum sl_status sl_ranks_wait(struct sl_ranks *ranks, const struct sl_mark *mark, struct sl_error *err);

// The heads as a rank knows them.
static inline struct sl_kv_heads sl_ranks_heads(const struct sl_ranks *ranks, int rank, struct sl_kv_heads heads) {
    if (ranks->apart) {
        heads.published = ((const struct sl_ranks_published *)heads.published)->of[rank];
    }
    return heads;
}

// Notes that a rank is lost, unless another one is, with the reason, and ends what ranks gather.
void sl_ranks_lose(struct sl_ranks *ranks, int rank, const struct sl_error *why);

// gather.c. Returns what `at` of rank 0's memory is on a rank: its replica where memory is replicated, else `at`; NULL is NULL.
void *sl_ranks_here(const struct sl_ranks *ranks, int rank, const void *at);
bool sl_ranks_is_replicated(const struct sl_ranks *ranks, const void *at);

// Allocates replicated memory, and returns its address on rank 0. NULL: no room; the log says on which rank. Not while operations are queued.
void *sl_ranks_replicate(struct sl_ranks *ranks, size_t bytes);
// Returns false where there is no replica at this address.
bool sl_ranks_free_replica(struct sl_ranks *ranks, const void *at);

// Every rank's replica gets the columns of all others. columns: x is rank 0's address, or NULL: nothing to gather; parts are not
// the caller's to set. The first within a call of all ranks, after its work; the second after the call.
void sl_ranks_gather_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream,
                          const struct sl_columns *columns);
void sl_ranks_gather_rest(struct sl_ranks *ranks, const struct sl_columns *columns);

// Notes that a rank has written so many numbers straight into rank 0's memory.
void sl_ranks_count_straight(struct sl_ranks *ranks, int rank, size_t n);

// A call of so many bytes by call->n ranks; rank 0 alone is whoever calls. Nothing is done where a rank is lost. What ranks
// find out they write where pointers of the call lead.
void sl_ranks_run(const struct sl_ranks_call *call, size_t bytes);
#define SL_RANKS_RUN(c)                                                                                                \
    do {                                                                                                               \
        _Static_assert(sizeof(c) <= SL_RANKS_CALL_BYTES, "a call of ranks");                                           \
        sl_ranks_run((const struct sl_ranks_call *)&(c), sizeof(c));                                                   \
    } while (0)

// A call that touches about so many numbers, of heads or rows: few are sooner done by one rank than others have begun.
#define SL_RANKS_LEAST_WORK 16384
static inline struct sl_ranks_call sl_ranks_call(struct sl_stream *stream, size_t work,
                                                 void (*run)(const struct sl_ranks_call *, int, struct sl_stream *)) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    return (struct sl_ranks_call){ranks, work < SL_RANKS_LEAST_WORK ? 1 : ranks->n, run};
}

struct sl_share {
    int64_t first, n;
};

// Units [0, total) in n shares, each as large as any but for one.
static inline struct sl_share sl_share_of(int64_t total, int rank, int n) {
    int64_t first = total * rank / n;
    return (struct sl_share){first, total * (rank + 1) / n - first};
}

// What is said of heads, from head `first` on.
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
void sl_ranks_fill_first(struct sl_ops *ops);     // first.c: what rank 0 does
